"""Fake quantization and its observer, against PyTorch's CPU kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lowering_check import LoweringCheck

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ZERO_POINTS = [0.0, 2.3, 2.5, 2.7, -2.5, -2.7, 30.0]


def assert_agrees(overload: Any, *args: Any) -> None:
    check = LoweringCheck()
    with check:
        overload(*args)
    assert check.failures == []
    assert sum(check.checked.values()) == 1


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(shape) * 2).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (), (0,)])
def test_per_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = sample(*shape, dtype=dtype)
    assert_agrees(aten.fake_quantize_per_tensor_affine_cachemask.default, x, 0.13, 3, -8, 7)


def test_infinities_saturate_and_nan_takes_the_lowest_level() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -1e30, -0.0])
    assert_agrees(aten.fake_quantize_per_tensor_affine_cachemask.default, x, 0.1, 2, -10, 10)


@pytest.mark.parametrize("enabled", [0, 1])
@pytest.mark.parametrize("zero_point", [torch.tensor([3], dtype=torch.int32), torch.tensor([2.6])])
def test_per_tensor_with_tensor_parameters(zero_point: torch.Tensor, enabled: int) -> None:
    overload = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    assert_agrees(overload, sample(3, 4), torch.tensor([0.13]), zero_point, torch.tensor([enabled]), -8, 7)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("zero_point", [torch.tensor([3, -1, 0], dtype=torch.int32), torch.tensor([2.6, 0.5, -0.1])])
def test_per_channel(zero_point: torch.Tensor, axis: int, dtype: torch.dtype) -> None:
    x = sample(3, 3, 2, dtype=dtype)
    overload = aten.fake_quantize_per_channel_affine_cachemask.default
    assert_agrees(overload, x, torch.tensor([0.13, 0.2, 0.3]), zero_point, axis, -8, 7)


@pytest.mark.parametrize("zero_point", ZERO_POINTS)
def test_learnable_per_tensor_and_its_gradients(zero_point: float) -> None:
    x, parameters = sample(5, 6), (torch.tensor([0.13]), torch.tensor([zero_point]), -8, 7, 0.7)
    assert_agrees(aten._fake_quantize_learnable_per_tensor_affine.default, x, *parameters)
    assert_agrees(aten._fake_quantize_learnable_per_tensor_affine_backward.default, torch.rand(5, 6), x, *parameters)


@pytest.mark.parametrize("axis", [0, 1])
def test_learnable_per_channel_and_its_gradients(axis: int) -> None:
    n = len(ZERO_POINTS)
    x, parameters = sample(n, n, 2), (torch.rand(n) + 0.1, torch.tensor(ZERO_POINTS), axis, -8, 7, 0.7)
    assert_agrees(aten._fake_quantize_learnable_per_channel_affine.default, x, *parameters)
    assert_agrees(aten._fake_quantize_learnable_per_channel_affine_backward.default, torch.rand(n, n, 2), x, *parameters)


@pytest.mark.parametrize("switches", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("size, shift", [(1.0, 0.0), (1.0, 9.0), (1.0, -9.0), (1e-7, 0.0), (1e-7, 9.0), (0.0, 0.0)])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
def test_observer_and_fake_quantization_in_one(
    per_row: bool, symmetric: bool, size: float, shift: float, switches: tuple[int, int]
) -> None:
    x = sample(3, 4, 2) * size + shift * size
    channels = 3 if per_row else 1
    # Before the first observation there is no range that could be quantized to.
    for running in (torch.full((channels,), torch.inf), torch.rand(channels))[switches == (0, 1) :]:
        state = -running, running.clone(), torch.full((channels,), 0.1), torch.zeros(channels, dtype=torch.int32)
        on = [torch.tensor([switch]) for switch in switches]
        assert_agrees(
            aten._fused_moving_avg_obs_fq_helper_functional.default, x, *on, *state, 0.1, -128, 127, 0, per_row, symmetric
        )
