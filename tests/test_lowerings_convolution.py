"""The convolution overloads that only a device outside PyTorch's tree gets, against PyTorch's convolutions on CPU."""

from __future__ import annotations

import jax
import pytest
import torch

from tests.lowering_check import run_lowering, to_torch

aten = torch.ops.aten

# input, weight, stride, padding, dilation, transposed, output padding, groups
GEOMETRIES = {
    "signal": ((2, 3, 9), (4, 3, 3), [2], [1], [1], False, [0], 1),
    "image": ((2, 4, 7, 8), (6, 2, 3, 2), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
    "depthwise": ((1, 4, 6, 6), (8, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    "pointwise with a leftover": ((2, 3, 6, 5), (4, 3, 1, 1), [4, 3], [0, 0], [1, 1], False, [0, 0], 1),
    "volume": ((1, 2, 5, 6, 4), (4, 2, 2, 3, 2), [1, 2, 1], [0, 1, 1], [2, 1, 1], False, [0, 0, 0], 1),
    "transposed signal": ((2, 4, 5), (4, 3, 3), [3], [1], [1], True, [2], 1),
    "transposed image": ((2, 4, 5, 4), (4, 3, 3, 2), [2, 3], [1, 0], [1, 2], True, [1, 2], 2),
    "transposed and cropped": ((1, 3, 6, 6), (3, 2, 2, 2), [2, 2], [2, 2], [1, 1], True, [0, 0], 1),
    "transposed volume": ((1, 4, 3, 4, 3), (4, 2, 2, 2, 3), [2, 1, 2], [0, 1, 1], [1, 2, 1], True, [1, 0, 0], 2),
}
DTYPES = [torch.float32, torch.float64, torch.complex64]


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-4, 5, shape) if dtype is torch.int64 else torch.randn(shape, dtype=dtype)


def operands(name: str, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], tuple[object, ...]]:
    torch.manual_seed(0)
    x_shape, weight_shape, *geometry = GEOMETRIES[name]
    transposed, groups = geometry[3], geometry[5]
    channels = weight_shape[1] * groups if transposed else weight_shape[0]
    return (values(x_shape, dtype), values(weight_shape, dtype), values((channels,), dtype)), tuple(geometry)


def on_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *geometry: object) -> torch.Tensor:
    """PyTorch's convolution; it has complex ones as sums of real ones only."""
    if not x.is_complex():
        return aten.convolution(x, weight, bias, *geometry)
    real, imaginary = (
        [aten.convolution(part, w, None, *geometry) for w in (weight.real, weight.imag)] for part in (x.real, x.imag)
    )
    result = torch.complex(real[0] - imaginary[1], real[1] + imaginary[0])
    return result if bias is None else result + bias.reshape(-1, *(1,) * (x.ndim - 2))


def run(overload: torch._ops.OpOverload, *args: object) -> object:
    with jax.enable_x64(True):
        return run_lowering(overload, args, {})


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64], ids=str)
def test_convolution_agrees_with_cpu(name: str, dtype: torch.dtype) -> None:
    (x, weight, bias), geometry = operands(name, dtype)
    expected = on_cpu(x, weight, bias, *geometry)
    actual = run(aten.convolution_overrideable.default, x, weight, bias, *geometry)
    torch.testing.assert_close(to_torch(actual, dtype), expected, check_stride=False)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    (x, weight, bias), geometry = operands(name, dtype)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    output = on_cpu(*leaves, *geometry)
    grad = torch.randn_like(output)
    expected = torch.autograd.grad(output, leaves, grad)
    actual = run(aten.convolution_backward_overrideable.default, grad, x, weight, *geometry, [True, True, True])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(to_torch(a, dtype), e, rtol=1e-4, atol=1e-5, check_stride=False)


@pytest.mark.parametrize("asked", [0, 1, 2, None])
def test_only_the_gradients_that_are_asked_for_are_computed(asked: int | None) -> None:
    mask = [i == asked for i in range(3)]
    (x, weight, bias), geometry = operands("image", torch.float32)
    grad = torch.randn_like(aten.convolution(x, weight, bias, *geometry))
    actual = run(aten.convolution_backward_overrideable.default, grad, x, weight, *geometry, mask)
    assert [a is not None for a in actual] == mask


def test_a_convolution_without_bias_adds_none() -> None:
    (x, weight, _), geometry = operands("image", torch.float32)
    actual = run(aten.convolution_overrideable.default, x, weight, None, *geometry)
    torch.testing.assert_close(to_torch(actual, x.dtype), aten.convolution(x, weight, None, *geometry))


def test_one_entry_of_a_geometry_stands_for_all_dimensions() -> None:
    x, weight = torch.randn(1, 2, 6, 7), torch.randn(3, 2, 3, 3)
    actual = run(aten.convolution_overrideable.default, x, weight, None, [2], [1], [1], False, [0], 1)
    torch.testing.assert_close(to_torch(actual, x.dtype), torch.conv2d(x, weight, None, 2, 1))


def test_an_empty_batch_gives_an_empty_result_and_zero_gradients() -> None:
    x, weight, geometry = torch.randn(0, 2, 6, 7), torch.randn(3, 2, 3, 3), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    output = run(aten.convolution_overrideable.default, x, weight, torch.ones(3), *geometry)
    assert output.shape == (0, 3, 4, 5)
    mask = [True, True, True]
    grads = run(aten.convolution_backward_overrideable.default, torch.zeros(output.shape), x, weight, *geometry, mask)
    assert [tuple(g.shape) for g in grads] == [(0, 2, 6, 7), (3, 2, 3, 3), (3,)]
    assert not any(g.any() for g in grads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bit_convolutions_round_once(dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 64, 9, 9, dtype=dtype), torch.randn(8, 64, 3, 3, dtype=dtype)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    expected = torch.conv2d(x.double(), weight.double(), None, 1, 1).to(dtype)
    actual = to_torch(run(aten.convolution_overrideable.default, x, weight, None, *geometry), dtype)
    torch.testing.assert_close(actual, expected, rtol=torch.finfo(dtype).eps, atol=1e-4)
