"""Devices: what there is, which is current, how they are named, and what PyTorch's own interfaces ask of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.subprocesses import checks_in, outcomes


def test_the_device_has_its_name():
    x = torch.ones(2, device="tpu")
    assert x.device == torch.device("tpu:0") == torch.device("tpu", 0) == torch.device(0)
    assert x.is_tpu and not x.is_cpu and not x.is_cuda and str(x.device) == "tpu:0"
    assert x.get_device() == 0 and x.untyped_storage().is_tpu


def test_accelerator_is_the_device():
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == torch.tpu.device_count()
    assert torch.get_device_module("tpu") is torch.tpu
    assert torch.get_device_module() is torch.tpu


@pytest.mark.parametrize("device", [None, 0, "tpu", "tpu:0", torch.device("tpu"), torch.device("tpu", 0)])
def test_functions_take_whatever_names_a_device(device):
    torch.tpu.synchronize(device)
    torch.accelerator.synchronize(device)
    assert torch.tpu.get_device_name(device) == "TPU (XLA:CPU emulation)"
    assert torch.tpu.memory_allocated(device) >= 0
    assert torch.tpu.current_stream(device).device.index == 0


@pytest.mark.parametrize("device", ["cpu", "cuda:0", torch.device("meta")])
def test_another_kind_of_device_is_refused(device):
    with pytest.raises(ValueError, match="Expected a tpu device, but got: "):
        torch.tpu.synchronize(device)


@pytest.mark.parametrize("device", [1.5, [], True])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(TypeError, match="expected a tpu device"):
        torch.tpu.get_device_name(device)


def test_a_device_that_is_not_there_is_named():
    for ask in (lambda: torch.empty(1, device="tpu:7"), lambda: torch.tpu.set_device(7), lambda: torch.tpu.synchronize(7)):
        with pytest.raises(RuntimeError, match="invalid device index 7: there is 1 device"):
            ask()


def test_properties():
    properties = torch.tpu.get_device_properties(0)
    assert properties.name == torch.tpu.get_device_name() and properties.platform == "cpu"
    assert properties.total_memory > 0 and properties.multi_processor_count >= 1
    assert (properties.major, properties.minor) == torch.tpu.get_device_capability() == (0, 0)
    assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]


def test_the_default_device_may_be_the_tpu():
    with torch.device("tpu"):
        assert torch.ones(2).is_tpu and torch.nn.Linear(2, 2).weight.is_tpu
    assert torch.ones(2).is_cpu


def test_modules_keep_their_parameters_when_they_move():
    # PyTorch replaces a module's parameters where it thinks a type cannot be changed in place: an optimizer would hold the old ones.
    module = torch.nn.Linear(2, 2)
    weight = module.weight
    assert module.to("tpu").weight is weight and weight.is_tpu
    assert module.cpu().tpu().weight is weight
    weight.data = torch.zeros(2, 2, device="tpu")
    assert module(torch.ones(1, 2, device="tpu")).shape == (1, 2)


def test_packed_sequences_have_the_method():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3)]).tpu()
    assert packed.is_tpu and packed.data.is_tpu


def test_autocast_computes_in_bfloat16():
    x = torch.ones(4, 4, device="tpu")
    with torch.autocast("tpu"):
        assert (x @ x).dtype == torch.bfloat16 == torch.get_autocast_dtype("tpu")
        assert torch.exp(x.bfloat16()).dtype == torch.float32
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype == torch.float32
    with torch.autocast("tpu", dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
    assert torch.tpu._get_autocast_dtype() == torch.bfloat16 and torch.tpu.is_bf16_supported()
    assert torch.bfloat16 in torch.tpu.get_amp_supported_dtype()


def test_autocast_is_bfloat16_on_a_new_thread_too():
    import threading

    seen = []

    def work():
        with torch.autocast("tpu"):
            seen.append((torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu")).dtype)
        with torch.autocast("tpu", dtype=torch.float16):
            seen.append((torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu")).dtype)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [torch.bfloat16, torch.float16]


def test_autocast_warns_of_a_dtype_that_it_does_not_have():
    with pytest.warns(UserWarning, match="In tpu autocast, but the target dtype is not supported"):
        torch.autocast("tpu", dtype=torch.int32)


def test_every_public_name_is_there_and_explained():
    for name in torch.tpu.__all__:
        value = getattr(torch.tpu, name)
        if callable(value):
            assert value.__doc__, name
    for name in ("_is_in_bad_fork", "_lazy_init", "_get_cache_stats", "_clear_cache", "_hbm_usage_summary", "_get_autocast_dtype"):
        assert callable(getattr(torch.tpu, name)), name


def test_dynamo_is_given_the_interface_when_it_is_loaded():
    program = """
import sys, torch
assert "torch._dynamo" not in sys.modules
from torch._dynamo.device_interface import get_interface_for_device, get_registered_device_interfaces
for name in ("tpu", "tpu:0", torch.device("tpu")):
    interface = get_interface_for_device(name)
    assert interface.device_count() == 1 and interface.current_device() == 0 and interface.is_available()
    assert interface.is_bf16_supported() and interface.is_dtype_supported(torch.float64)
    assert issubclass(interface.Event, torch.Event) and issubclass(interface.Stream, torch.Stream)
    assert interface.exchange_device(0) == 0 and interface.maybe_exchange_device(0) == 0
    assert interface.get_raw_stream(0) == 0
    interface.synchronize()
    with interface.device(0), interface.stream(interface.current_stream()):
        pass
    assert interface.get_device_properties(0).multi_processor_count == 1
    assert interface.memory_allocated() == 0
assert "cpu" in dict(get_registered_device_interfaces())
"""
    done = subprocess.run([sys.executable, "-c", "import torch_tpu" + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def two_devices():
    return outcomes("tests.two_devices", TORCH_TPU_NUM_CPU_DEVICES="2")


@pytest.mark.parametrize("check", checks_in("tests.two_devices"))
def test_two_devices(two_devices, check):
    assert not two_devices[check], two_devices[check]


def test_the_names_that_other_projects_import_are_the_public_ones():
    from torch_tpu._internal import execution_mode, sync
    from torch_tpu._internal.utils import hardware

    assert execution_mode.EagerMode is torch.tpu.EagerMode and execution_mode.set_eager_mode is torch.tpu.set_eager_mode
    assert hardware.get_tpu_device_name() == torch.tpu.get_device_name()
    x = torch.ones(2, device="tpu") + 1
    sync.synchronize([x])
    sync.synchronize(tensors=None, wait=False)
    sync.synchronize()
    assert torch.tpu.to_jax(x).is_ready()
