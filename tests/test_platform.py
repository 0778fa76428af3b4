"""Which platform a process uses, and that JAX is asked for nothing else."""

from __future__ import annotations

import importlib.util

import jax
import pytest
import torch

from tests.subprocesses import run
from torch_tpu.runtime import platform


@pytest.fixture
def machine(monkeypatch):
    """A machine to describe: its chips, whether libtpu is installed, and the environment."""

    def describe(chips=(), libtpu=False, **environment):
        for function in (platform.chips, platform.platform, platform.expected_device_count):
            function.cache_clear()
        monkeypatch.setattr(platform, "chips", lambda: chips)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if libtpu and name == "libtpu" else None)
        for name in ("TORCH_TPU_PLATFORM", "TORCH_TPU_NUM_CPU_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    yield describe
    platform.platform.cache_clear()
    platform.expected_device_count.cache_clear()


FOUR = (("TPU v5e", 1),) * 4


@pytest.mark.parametrize(
    ("chips", "libtpu", "environment", "expected", "count"),
    [
        ((), False, {}, "cpu", 1),
        ((), True, {}, "cpu", 1),  # libtpu alone makes no TPU: it would look for one over the network
        (FOUR, False, {}, "cpu", 1),
        (FOUR, True, {}, "tpu", 4),
        ((("TPU v7", 2),) * 4, True, {}, "tpu", 8),
        (FOUR, True, {"TORCH_TPU_PLATFORM": "cpu", "TORCH_TPU_NUM_CPU_DEVICES": "3"}, "cpu", 3),
        (FOUR, True, {"TORCH_TPU_PLATFORM": "none"}, "none", 0),
        ((), False, {"TORCH_TPU_PLATFORM": "TPU "}, "tpu", 1),
    ],
)
def test_the_platform_follows_the_machine_and_the_environment(machine, chips, libtpu, environment, expected, count):
    machine(chips, libtpu, **environment)
    assert platform.platform() == expected and platform.expected_device_count() == count


@pytest.mark.parametrize("text", ["0", "65", "-1", "two", ""])
def test_a_wrong_number_of_devices_is_named(machine, text):
    machine(TORCH_TPU_NUM_CPU_DEVICES=text)
    with pytest.raises(ValueError, match=f"TORCH_TPU_NUM_CPU_DEVICES='{text}': expected a number from 1 to 64"):
        platform.expected_device_count()


def test_jax_is_asked_for_the_platform_alone():
    torch.ones(1, device="tpu")
    assert jax.config.jax_platforms == "cpu" and jax.default_backend() == "cpu"


def test_the_first_tensor_warns_of_nothing():
    program = """
        import torch_tpu, torch
        print((torch.ones(3, device="tpu", requires_grad=True) * 2).sum().item())
    """
    assert run(program, PYTHONWARNINGS="error").strip() == "6.0"


def test_jax_may_be_used_first():
    program = """
        import jax
        before = jax.numpy.arange(3) + 1
        import torch_tpu, torch
        print(torch.tpu.from_jax(before).tolist())
    """
    assert run(program).strip() == "[1, 2, 3]"


def test_more_devices_than_jax_started_with_are_asked_for_in_vain():
    program = """
        import jax
        jax.devices()
        import torch_tpu, torch
        try:
            torch.ones(1, device="tpu")
        except RuntimeError as error:
            print(error)
    """
    assert "create a tpu tensor first" in run(program, TORCH_TPU_NUM_CPU_DEVICES="2")


def test_a_platform_that_is_not_there_is_named():
    program = """
        import torch_tpu, torch
        try:
            torch.ones(1, device="tpu")
        except RuntimeError as error:
            print(error)
    """
    assert "the PJRT platform 'cuda' (TORCH_TPU_PLATFORM) does not start" in run(program, TORCH_TPU_PLATFORM="cuda")
