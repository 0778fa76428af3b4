"""Max pooling with the places that the maxima came from, over sliding, adaptive and fractional windows; unpooling; gradients.

A maximum over a window is taken one axis at a time. PyTorch takes the first of equal maxima in row-major order and the last
NaN, and both rules survive that split; the work then grows with the sum of a window's sides and not with their product.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .promotion import opmath
from .separable import MAX_UNROLLED_TAPS, along, gather_windows, static_take
from .table import lowers

aten = torch.ops.aten

# Windows of up to so many elements pass their gradient back element by element; for larger ones it is scattered.
MAX_UNROLLED_WINDOW = 49


def spread(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """``values`` for each of ``rank`` axes; a single one stands for all."""
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def pooled_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """The number of windows along an axis; in ceil mode the last may overhang, but not start in the right padding."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def adaptive_bounds(size: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each of ``outputs`` windows over ``size`` starts and ends."""
    output = np.arange(outputs)
    return output * size // outputs, -(-(output + 1) * size // outputs)


def adaptive_windows(size: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs of each window (outputs, widest window), and which of them count."""
    start, end = adaptive_bounds(size, outputs)
    index = start[:, None] + np.arange(max(int(np.max(end - start, initial=1)), 1))
    return np.clip(index, 0, max(size - 1, 0)), index < end[:, None]


def sliding_windows(
    size: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int
) -> tuple[np.ndarray, np.ndarray]:
    """As ``adaptive_windows``, for windows of ``kernel`` inputs; the padding does not count."""
    index = np.arange(outputs)[:, None] * stride - padding + np.arange(kernel) * dilation
    return np.clip(index, 0, size - 1), (index >= 0) & (index < size)


def lowest(dtype: np.dtype) -> np.ndarray:
    return np.array(-np.inf, dtype) if jnp.issubdtype(dtype, jnp.floating) else np.array(jnp.iinfo(dtype).min, dtype)


def is_nan(x: Array) -> Array:
    return jnp.isnan(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(x.shape, np.bool_)


def max_along(values: Array, places: Array, axis: int, index: np.ndarray, counts: np.ndarray) -> tuple[Array, Array]:
    """The maxima of ``values`` over the windows ``index`` of ``axis``, and the ``places`` they had."""
    if index.shape[1] > MAX_UNROLLED_TAPS:
        return _max_at_once(values, places, axis, index, counts)
    best, best_place = static_take(values, index[:, 0], axis), static_take(places, index[:, 0], axis)
    seen = counts[:, 0]
    for t in range(1, index.shape[1]):
        value, place = static_take(values, index[:, t], axis), static_take(places, index[:, t], axis)
        better = (value > best) | is_nan(value)
        if not seen.all():
            better |= along(~seen, axis, values.ndim)
        if not counts[:, t].all():
            better &= along(counts[:, t], axis, values.ndim)
        best, best_place = jnp.where(better, value, best), jnp.where(better, place, best_place)
        seen = seen | counts[:, t]
    if not seen.all():
        best = jnp.where(along(seen, axis, values.ndim), best, lowest(values.dtype))
    return best, best_place


def _max_at_once(values: Array, places: Array, axis: int, index: np.ndarray, counts: np.ndarray) -> tuple[Array, Array]:
    """As ``max_along``, for windows too wide to go through input by input."""
    values, places = gather_windows(values, index, axis), gather_windows(places, index, axis)
    window = axis + 1
    counted = lax.broadcast_in_dim(counts, values.shape, (axis, window))
    best = jnp.max(jnp.where(counted, values, lowest(values.dtype)), axis=window, keepdims=True)
    offset = lax.broadcasted_iota(np.int32, values.shape, window)
    first = jnp.min(jnp.where(counted & (values == best), offset, index.shape[1] - 1), axis=window, keepdims=True)
    last_nan = jnp.max(jnp.where(counted & is_nan(values), offset, -1), axis=window, keepdims=True)
    chosen = jnp.where(last_nan >= 0, last_nan, first)
    if jnp.issubdtype(values.dtype, jnp.floating):  # not every backend's reduction keeps a NaN
        best = jnp.where(last_nan >= 0, jnp.asarray(jnp.nan, values.dtype), best)
    return best.squeeze(window), jnp.sum(jnp.where(offset == chosen, places, 0), axis=window)


def max_over_windows(x: Array, windows: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Array, Array]:
    """Maxima over the last ``len(windows)`` axes, and their flat indices within these axes."""
    rank = len(windows)
    values, places = x, jnp.zeros(x.shape, np.int32)
    stride = 1
    for axis in reversed(range(x.ndim - rank, x.ndim)):
        places = places + lax.broadcasted_iota(np.int32, values.shape, axis) * stride
        index, counts = windows[axis - (x.ndim - rank)]
        values, places = max_along(values, places, axis, index, counts)
        stride *= x.shape[axis]
    return values, places


def _max_pool(
    rank: int,
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Array, Array]:
    kernel = spread(kernel, rank)
    stride, padding, dilation = spread(stride or kernel, rank), spread(padding, rank), spread(dilation, rank)
    windows = []
    for size, k, s, p, d in zip(x.shape[-rank:], kernel, stride, padding, dilation):
        windows.append(sliding_windows(size, pooled_size(size, k, s, p, d, ceil_mode), k, s, p, d))
    return max_over_windows(x, windows)


def _max_pool_gradient(
    rank: int,
    grad: Array,
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Array,
) -> Array:
    kernel = spread(kernel, rank)
    stride, padding, dilation = spread(stride or kernel, rank), spread(padding, rank), spread(dilation, rank)
    spatial = x.shape[-rank:]
    if kernel == stride and all(p == 0 for p in padding) and all(d == 1 for d in dilation):
        if all(n == o * k for n, o, k in zip(spatial, grad.shape[-rank:], kernel)):
            return _spread_over_tiles(grad, indices, spatial)
    if grad.size == 0 or math.prod(kernel) > MAX_UNROLLED_WINDOW:
        return scatter_to_places(grad, indices, spatial)
    grad, indices = opmath(grad), indices.astype(np.int32)
    leading = grad.ndim - rank
    zero = jnp.zeros((), grad.dtype)
    total = jnp.zeros(x.shape, grad.dtype)
    for taps in itertools.product(*(range(k) for k in kernel)):
        place = jnp.zeros((), np.int32)
        padding_config = [(0, 0, 0)] * leading
        for i, (tap, size, outputs) in enumerate(zip(taps, spatial, grad.shape[leading:])):
            start = tap * dilation[i] - padding[i]
            position = np.arange(outputs, dtype=np.int32) * stride[i] + start
            place = place * size + along(position, i, rank)
            # Negative padding crops what fell outside the input, so that no place there is taken for one inside.
            padding_config.append((start, size - 1 - start - (outputs - 1) * stride[i], stride[i] - 1))
        total = total + lax.pad(jnp.where(indices == place, grad, zero), zero, padding_config)
    return total


def _spread_over_tiles(grad: Array, indices: Array, spatial: Sequence[int]) -> Array:
    """The gradient where windows tile the input: each element asks whether it was its window's maximum."""
    rank = len(spatial)
    grad, indices = opmath(grad), indices.astype(np.int32)
    for axis, size in zip(range(grad.ndim - rank, grad.ndim), spatial):
        of_output = np.arange(size) * grad.shape[axis] // size
        grad, indices = static_take(grad, of_output, axis), static_take(indices, of_output, axis)
    own_place = jnp.arange(math.prod(spatial), dtype=np.int32).reshape(spatial)
    return jnp.where(indices == own_place, grad, jnp.zeros((), grad.dtype))


def _by_plane(x: Array, rank: int) -> Array:
    planes = x.shape[: x.ndim - rank]
    return x.reshape(math.prod(planes), math.prod(x.shape[x.ndim - rank :]))


def scatter_to_places(grad: Array, indices: Array, spatial: Sequence[int]) -> Array:
    """Sums of ``grad`` at the flat ``indices`` into ``spatial``, plane by plane."""
    rank = len(spatial)
    leading = grad.shape[: grad.ndim - rank]
    values, places = _by_plane(opmath(grad), rank), _by_plane(indices, rank)
    empty = jnp.zeros((values.shape[0], math.prod(spatial)), values.dtype)
    return jax.vmap(lambda plane, at, value: plane.at[at].add(value))(empty, places, values).reshape(*leading, *spatial)


for _rank, _forward, _backward in (
    (2, aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default),
    (3, aten.max_pool3d_with_indices.default, aten.max_pool3d_with_indices_backward.default),
):
    lowers(_forward)(functools.partial(_max_pool, _rank))
    lowers(_backward)(functools.partial(_max_pool_gradient, _rank))


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(x: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    sizes = x.shape[x.ndim - len(output_size) :]
    return max_over_windows(x, [adaptive_windows(size, outputs) for size, outputs in zip(sizes, output_size)])


def _adaptive_max_pool_gradient(rank: int, grad: Array, x: Array, indices: Array) -> Array:
    spatial, outputs = x.shape[-rank:], grad.shape[-rank:]
    if grad.size and all(size % count == 0 for size, count in zip(spatial, outputs)):
        return _spread_over_tiles(grad, indices, spatial)
    return scatter_to_places(grad, indices, spatial)


lowers(aten.adaptive_max_pool2d_backward.default)(functools.partial(_adaptive_max_pool_gradient, 2))
lowers(aten.adaptive_max_pool3d_backward.default)(functools.partial(_adaptive_max_pool_gradient, 3))


# Fractional maxima


def _fractional_starts(samples: Array, size: int, outputs: int, kernel: int) -> Array:
    """Where the windows of each plane start (planes, outputs), from one sample in [0, 1) for each plane."""
    last = jnp.full((samples.shape[0], 1), size - kernel, np.int32)
    if outputs == 1:
        return last
    alpha = np.asarray(size - kernel, samples.dtype) / np.asarray(outputs - 1, samples.dtype)
    output = jnp.arange(outputs - 1, dtype=samples.dtype)
    shifted = jnp.trunc((output + samples[:, None]) * alpha) - jnp.trunc(samples[:, None] * alpha)
    return jnp.concatenate([shifted.astype(np.int32), last], axis=1)


@lowers(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def fractional_max_pool(
    x: Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Array
) -> tuple[Array, Array]:
    rank = len(output_size)
    leading, spatial = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    values = x.reshape(math.prod(leading), *spatial)
    samples = opmath(random_samples).reshape(-1, rank)
    # In two dimensions PyTorch spends the first sample on the width, in three dimensions on the depth.
    samples = samples[:, ::-1] if rank == 2 else samples
    places = jnp.zeros(values.shape, np.int32)
    stride = 1
    for axis in reversed(range(rank)):
        places = places + lax.broadcasted_iota(np.int32, values.shape, axis + 1) * stride
        starts = _fractional_starts(samples[:, axis], spatial[axis], output_size[axis], kernel_size[axis])
        values, places = _max_from_starts(values, places, axis + 1, starts, kernel_size[axis])
        stride *= spatial[axis]
    shape = (*leading, *output_size)
    return values.reshape(shape), places.reshape(shape)


def _max_from_starts(values: Array, places: Array, axis: int, starts: Array, kernel: int) -> tuple[Array, Array]:
    """As ``max_along``, for windows of ``kernel`` elements from ``starts`` (planes, outputs)."""
    starts = starts.reshape(tuple(starts.shape[1] if i == axis else starts.shape[0] if i == 0 else 1 for i in range(values.ndim)))
    best, best_place = (jnp.take_along_axis(a, starts, axis=axis) for a in (values, places))
    for t in range(1, kernel):
        value, place = (jnp.take_along_axis(a, starts + t, axis=axis) for a in (values, places))
        better = (value > best) | is_nan(value)
        best, best_place = jnp.where(better, value, best), jnp.where(better, place, best_place)
    return best, best_place


@lowers(aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default)
def fractional_max_pool_backward(
    grad: Array, x: Array, kernel_size: Sequence[int], output_size: Sequence[int], indices: Array
) -> Array:
    return scatter_to_places(grad, indices, x.shape[x.ndim - len(output_size) :])


# Unpooling


def _unpool(x: Array, indices: Array, output_size: Sequence[int]) -> Array:
    rank = len(output_size)
    leading = x.shape[: x.ndim - rank]
    values, places = _by_plane(x, rank), _by_plane(indices, rank)
    empty = jnp.zeros((values.shape[0], math.prod(output_size)), x.dtype)
    return jax.vmap(lambda plane, at, value: plane.at[at].set(value))(empty, places, values).reshape(*leading, *output_size)


@lowers(aten.max_unpool2d.default)
def max_unpool2d(x: Array, indices: Array, output_size: Sequence[int]) -> Array:
    return _unpool(x, indices, output_size)


@lowers(aten.max_unpool3d.default)
def max_unpool3d(x: Array, indices: Array, output_size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Array:
    # The strides and paddings only led to output_size; the indices are absolute.
    return _unpool(x, indices, output_size)
