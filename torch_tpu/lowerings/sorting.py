"""Order: sorts, selections (top-k, k-th value, median, mode), searches in sorted sequences, and histograms.

Everywhere NaN counts as larger than every number, as in PyTorch, and equal elements keep their order.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .promotion import cast, opmath, promote
from .table import lowers

aten = torch.ops.aten


def _sorted(x: Array, dim: int, descending: bool = False) -> tuple[Array, Array]:
    """``x`` (not 0-d) stably sorted along ``dim``, and the 32-bit indices that sort it."""
    dim %= x.ndim
    position = lax.broadcasted_iota(np.int32, x.shape, dim)
    if descending:
        # Reversed on both sides of an ascending stable sort: equal elements end in their first order, NaNs in front.
        values, indices = lax.sort((jnp.flip(x, dim), jnp.flip(position, dim)), dimension=dim, is_stable=True, num_keys=1)
        return jnp.flip(values, dim), jnp.flip(indices, dim)
    values, indices = lax.sort((x, position), dimension=dim, is_stable=True, num_keys=1)
    return values, indices


@lowers(aten.sort.default)
def sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    values, indices = _sorted(x, dim, descending)
    return values, indices.astype(np.int64)


@lowers(aten.sort.stable)
def sort_stable(x: Array, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    return sort(x, dim, descending)


def _order_key(x: Array) -> Array:
    """Integers in the order of ``x``, so that NaN is the largest and complementing them reverses the order."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(np.uint8) if x.dtype == np.bool_ else x
    x = opmath(x)
    integer = np.dtype(f"int{x.dtype.itemsize * 8}")
    bits = lax.bitcast_convert_type(jnp.where(x == 0, jnp.zeros_like(x), x), integer)
    # Negative floats descend as their bits ascend: flipping all but the sign bit mends it.
    key = jnp.where(bits < 0, bits ^ np.iinfo(integer).max, bits)
    return jnp.where(jnp.isnan(x), np.iinfo(integer).max, key)


@lowers(aten.topk.default)
def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    line = jnp.moveaxis(x, dim, -1)
    key = _order_key(line)
    _, indices = lax.top_k(key if largest else ~key, k)
    values = jnp.take_along_axis(line, indices, -1, mode="promise_in_bounds")
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(indices, -1, dim).astype(np.int64)


# Selections out of a sorted line


def _pick(values: Array, indices: Array, rank: Array | int, dim: int, keepdim: bool) -> tuple[Array, Array]:
    """The elements of sorted ``values`` and their ``indices`` at ``rank`` (one for each line, or one for all)."""
    shape = tuple(1 if d == dim else size for d, size in enumerate(values.shape))
    where = jnp.broadcast_to(jnp.asarray(rank, np.int32), shape)
    picked = (jnp.take_along_axis(a, where, dim, mode="clip") for a in (values, indices))
    value, index = (a if keepdim else jnp.squeeze(a, dim) for a in picked)
    return value, index.astype(np.int64)


@lowers(aten.kthvalue.default)
def kthvalue(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    dim %= x.ndim
    return _pick(*_sorted(x, dim), k - 1, dim, keepdim)


def _is_nan(x: Array) -> Array:
    return x != x


def _median(x: Array, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    dim %= x.ndim
    values, indices = _sorted(x, dim)
    nans = jnp.sum(_is_nan(x), axis=dim, keepdims=True, dtype=np.int32)
    size = x.shape[dim]
    if ignore_nan:
        rank = jnp.maximum(size - nans - 1, 0) // 2
    else:  # NaNs sort to the end, stably: the first of them stands just behind the numbers
        rank = jnp.where(nans > 0, size - nans, (size - 1) // 2)
    return _pick(values, indices, rank, dim, keepdim)


def _median_of_all(x: Array, ignore_nan: bool) -> Array:
    if x.size == 0:
        return jnp.full((), np.nan if jnp.issubdtype(x.dtype, jnp.floating) else np.iinfo(x.dtype).min, x.dtype)
    return _median(x.reshape(-1), 0, False, ignore_nan)[0]


@lowers(aten.median.dim)
def median_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _median(x, dim, keepdim, ignore_nan=False)


@lowers(aten.nanmedian.dim)
def nanmedian_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _median(x, dim, keepdim, ignore_nan=True)


@lowers(aten.median.default)
def median(x: Array) -> Array:
    return _median_of_all(x, ignore_nan=False)


@lowers(aten.nanmedian.default)
def nanmedian(x: Array) -> Array:
    return _median_of_all(x, ignore_nan=True)


@lowers(aten.mode.default)
def mode(x: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """The most frequent element (the smallest of them), and the last index that holds it."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    dim %= x.ndim
    values, indices = _sorted(x, dim)
    position = lax.broadcasted_iota(np.int32, x.shape, dim)
    before = lax.slice_in_dim(values, 0, max(x.shape[dim] - 1, 0), axis=dim)
    first = lax.slice_in_dim(values, 0, min(1, x.shape[dim]), axis=dim)
    changes = jnp.concatenate([jnp.ones_like(first, np.bool_), lax.slice_in_dim(values, 1, None, axis=dim) != before], dim)
    # The length so far of the run of equal elements; its first maximum ends the longest run with the smallest value.
    run = position - lax.cummax(jnp.where(changes, position, 0), axis=dim)
    end = lax.argmax(run, dim, np.int32)
    return _pick(values, indices, jnp.expand_dims(end, dim), dim, keepdim)


# Searches


def search_sorted(sequence: Array, values: Array, right: bool) -> Array:
    """For each of ``values``, its first place in the last dimension of ``sequence``; with ``right``, the one behind its equals.

    ``sequence`` is one line for all values, or has one line for each line of ``values``. A search by halves in a fixed
    number of steps, so that nothing in the program depends on the data.
    """
    size = sequence.shape[-1]
    low = jnp.zeros(values.shape, np.int32)
    if size == 0:
        return low
    high = jnp.full(values.shape, size, np.int32)

    def at(middle: Array) -> Array:
        if sequence.ndim == 1:
            return jnp.take(sequence, middle, mode="clip")
        return jnp.take_along_axis(sequence, middle, -1, mode="clip")

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        there = at(middle)
        goes_before = there > values if right else there >= values
        searching = low < high
        return (
            jnp.where(searching & ~goes_before, middle + 1, low),
            jnp.where(searching & goes_before, middle, high),
        )

    return lax.fori_loop(0, size.bit_length(), halve, (low, high))[0]


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    sequence: Array,
    values: Array,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, -1, mode="clip")
    sequence, values = promote(sequence, values)
    right = right if side is None else side == "right"
    return search_sorted(sequence, values, right).astype(np.int32 if out_int32 else np.int64)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(values: Array, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    return searchsorted(boundaries, values, out_int32=out_int32, right=right)


@lowers(aten.histc.default)
def histc(x: Array, bins: int = 100, low: Any = 0, high: Any = 0) -> Array:
    if x.size == 0:
        return jnp.zeros(bins, x.dtype)
    line = opmath(x.reshape(-1))
    line = line if jnp.issubdtype(line.dtype, jnp.floating) else line.astype(np.float64)
    low, high = cast(low, line.dtype), cast(high, line.dtype)
    # Equal bounds ask for the data's own range, and a range of one point is widened by one on each side.
    own = low == high
    low, high = jnp.where(own, jnp.min(line), low), jnp.where(own, jnp.max(line), high)
    point = low == high
    low, high = jnp.where(point, low - 1, low), jnp.where(point, high + 1, high)
    inside = (line >= low) & (line <= high)
    position = jnp.floor((line - low) * bins / (high - low))
    bin_of = jnp.where(inside, jnp.clip(jnp.where(inside, position, 0), 0, bins - 1), bins).astype(np.int32)
    return jnp.zeros(bins, np.int32).at[bin_of].add(1, mode="drop").astype(x.dtype)
