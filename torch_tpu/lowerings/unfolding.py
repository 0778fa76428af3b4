"""Sliding blocks laid out as columns, and columns added up into an image again.

Both go one axis at a time, with slices and pads only: a kernel of 16 by 16 takes 32 of them, and no gather, scatter or product.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import torch
from jax import Array, lax

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten


def windows_along(x: Array, axis: int, kernel: int, dilation: int, stride: int) -> Array:
    """``axis`` replaced by two: the position in the window, and the window."""
    count = (x.shape[axis] - dilation * (kernel - 1) - 1) // stride + 1
    starts = (tap * dilation for tap in range(kernel))
    return jnp.stack([lax.slice_in_dim(x, start, start + (count - 1) * stride + 1, stride, axis) for start in starts], axis=axis)


def overlap_add(blocks: Array, axis: int, size: int, dilation: int, stride: int) -> Array:
    """The transpose of ``windows_along``: axes ``axis`` and ``axis + 1`` added up into one of ``size``."""
    if dilation == 1 and stride > 1:
        return _overlap_add_runs(blocks, axis, size, stride)
    total = jnp.zeros((*blocks.shape[:axis], size, *blocks.shape[axis + 2 :]), blocks.dtype)
    for tap in range(blocks.shape[axis]):
        start = tap * dilation
        total = total + _placed(lax.index_in_dim(blocks, tap, axis, keepdims=False), axis, size, start, stride)
    return total


def _placed(part: Array, axis: int, size: int, start: int, stride: int) -> Array:
    span = (part.shape[axis] - 1) * stride + 1
    config = [(start, size - start - span, stride - 1) if i == axis else (0, 0, 0) for i in range(part.ndim)]
    return lax.pad(part, jnp.zeros((), part.dtype), config)


def _overlap_add_runs(blocks: Array, axis: int, size: int, stride: int) -> Array:
    """Overlap-add in runs of ``stride`` neighbours: such runs of successive windows lie end to end, so a run is one pad."""
    kernel, count = blocks.shape[axis], blocks.shape[axis + 1]
    runs = -(-kernel // stride)
    padding = [(0, runs * stride - kernel, 0) if i == axis else (0, 0, 0) for i in range(blocks.ndim)]
    blocks = jnp.swapaxes(lax.pad(blocks, jnp.zeros((), blocks.dtype), padding), axis, axis + 1)
    before, after = blocks.shape[:axis], blocks.shape[axis + 2 :]
    total = jnp.zeros((*before, size, *after), blocks.dtype)
    for run in range(runs):
        part = lax.slice_in_dim(blocks, run * stride, (run + 1) * stride, axis=axis + 1)
        total = total + _placed(part.reshape(*before, count * stride, *after), axis, size, run * stride, 1)
    return total


@lowers(aten.im2col.default)
def im2col(x: Array, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> Array:
    """(*batch, C, H, W) to (*batch, C * kernel height * kernel width, windows)."""
    *batch, channels, _, _ = x.shape
    around = [(0, 0, 0)] * (x.ndim - 2) + [(p, p, 0) for p in padding]
    x = lax.pad(x, jnp.zeros((), x.dtype), around)
    x = windows_along(x, x.ndim - 1, kernel_size[1], dilation[1], stride[1])
    x = windows_along(x, x.ndim - 3, kernel_size[0], dilation[0], stride[0])
    *_, rows, height, columns, width = x.shape
    return x.swapaxes(-3, -2).reshape(*batch, channels * rows * columns, height * width)


@lowers(aten.col2im.default)
def col2im(
    x: Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """The transpose of ``im2col``, into images of ``output_size``."""
    x = opmath(x)
    padded = [size + 2 * p for size, p in zip(output_size, padding)]
    height, width = ((n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(padded, kernel_size, dilation, stride))
    rows, columns = kernel_size
    *batch, features, _ = x.shape
    x = x.reshape(*batch, features // (rows * columns), rows, columns, height, width).swapaxes(-3, -2)
    x = overlap_add(x, x.ndim - 4, padded[0], dilation[0], stride[0])
    x = overlap_add(x, x.ndim - 2, padded[1], dilation[1], stride[1])
    top, left = padding
    return x[..., top : top + output_size[0], left : left + output_size[1]]
