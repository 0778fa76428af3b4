"""Average pooling, over sliding windows and over adaptive ones, and the gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .pooling import adaptive_bounds, adaptive_windows, pooled_size, spread
from .promotion import opmath
from .separable import Taps, along, apply_taps, static_take
from .table import lowers

aten = torch.ops.aten


class _Windows:
    """The windows of an average pool over the last axes of an input, with their divisors."""

    def __init__(
        self,
        spatial: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> None:
        rank = len(spatial)
        self.kernel = spread(kernel, rank)
        self.stride, before = spread(stride or kernel, rank), spread(padding, rank)
        self.padding: list[tuple[int, int]] = []
        divisor = np.ones((1,) * rank, np.int64)
        for axis, (size, k, s, p) in enumerate(zip(spatial, self.kernel, self.stride, before)):
            outputs = pooled_size(size, k, s, p, 1, ceil_mode)
            self.padding.append((p, max((outputs - 1) * s + k - size - p, 0)))
            start = np.arange(outputs) * s - p
            end = np.minimum(start + k, size + p)
            if not count_include_pad:
                start, end = np.maximum(start, 0), np.minimum(end, size)
            divisor = divisor * along(end - start, axis, rank)
        self.divisor = divisor if divisor_override is None else np.array(divisor_override, np.int64)

    def total(self, x: Array) -> Array:
        leading = (1,) * (x.ndim - len(self.kernel))
        padding = [(0, 0)] * len(leading) + self.padding
        zero = np.zeros((), x.dtype)
        return lax.reduce_window(x, zero, lax.add, leading + self.kernel, leading + self.stride, padding)


def _average_pool(
    rank: int,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    x = opmath(x)
    windows = _Windows(x.shape[-rank:], kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    total, divisor = windows.total(x), windows.divisor.astype(x.dtype)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return lax.div(total, jnp.broadcast_to(divisor, total.shape))
    return total / divisor


def _average_pool_gradient(
    rank: int,
    grad: Array,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    grad = opmath(grad)
    windows = _Windows(x.shape[-rank:], kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    if grad.size == 0:
        return jnp.zeros(x.shape, grad.dtype)
    spread_out = jax.linear_transpose(windows.total, jax.ShapeDtypeStruct(x.shape, grad.dtype))
    (result,) = spread_out(grad / windows.divisor.astype(grad.dtype))
    return result


for _rank, _forward, _backward in (
    (2, aten.avg_pool2d.default, aten.avg_pool2d_backward.default),
    (3, aten.avg_pool3d.default, aten.avg_pool3d_backward.default),
):
    lowers(_forward)(functools.partial(_average_pool, _rank))
    lowers(_backward)(functools.partial(_average_pool_gradient, _rank))


# Adaptive averages


def _adaptive_taps(size: int, outputs: int, dtype: np.dtype) -> Taps:
    index, valid = adaptive_windows(size, outputs)
    start, end = adaptive_bounds(size, outputs)
    weight = np.broadcast_to(1 / np.maximum(end - start, 1)[:, None], index.shape).astype(dtype)
    return Taps.of(index, weight, size, valid)


def _average_tiles(x: Array, axis: int, outputs: int) -> Array:
    return jnp.mean(x.reshape(*x.shape[:axis], outputs, x.shape[axis] // outputs, *x.shape[axis + 1 :]), axis=axis + 1)


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_average_pool(x: Array, output_size: Sequence[int]) -> Array:
    x = opmath(x)
    for axis, outputs in zip(range(x.ndim - len(output_size), x.ndim), output_size):
        if outputs and x.shape[axis] % outputs == 0:
            x = _average_tiles(x, axis, outputs)
        else:
            x = apply_taps(x, axis, _adaptive_taps(x.shape[axis], outputs, x.dtype))
    return x


def _adaptive_average_pool_gradient(rank: int, grad: Array, x: Array) -> Array:
    grad = opmath(grad)
    for axis in range(x.ndim - rank, x.ndim):
        size, outputs = x.shape[axis], grad.shape[axis]
        if outputs and size % outputs == 0:
            tile = size // outputs
            grad = static_take(grad / tile, np.arange(size) // tile, axis)
        else:
            grad = apply_taps(grad, axis, _adaptive_taps(size, outputs, grad.dtype).transposed())
    return grad


lowers(aten._adaptive_avg_pool2d_backward.default)(functools.partial(_adaptive_average_pool_gradient, 2))
lowers(aten._adaptive_avg_pool3d_backward.default)(functools.partial(_adaptive_average_pool_gradient, 3))
