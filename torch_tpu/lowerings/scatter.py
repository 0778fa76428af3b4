"""Writing at positions that arrays hold: scatters, index_put and its relatives, put, masked_scatter.

All return a new array. The program cannot raise, so a write at an index that PyTorch would refuse is dropped. Sums of 16-bit
floats are gathered up in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .indexing import Indices, clamped, full_key, index_dtype, wrapped
from .promotion import cast, opmath
from .table import lowers

aten = torch.ops.aten

Key = tuple[Array | slice, ...]


def droppable(index: Array, size: int) -> Array:
    """``index`` in the narrow index dtype, with everything outside ``[0, size)`` at ``size``, where writes are dropped."""
    return jnp.where((index >= 0) & (index < size), index, size).astype(index_dtype(size))


def _set(x: Array, key: Key, source: Array) -> Array:
    return x.at[key].set(source, mode="drop")


def _add(x: Array, key: Key, source: Array) -> Array:
    if x.dtype == np.bool_:  # sums of bools saturate, their products conjoin
        return _max(x, key, source)
    return opmath(x).at[key].add(opmath(source), mode="drop").astype(x.dtype)


def _multiply(x: Array, key: Key, source: Array) -> Array:
    if x.dtype == np.bool_:
        return _min(x, key, source)
    return opmath(x).at[key].multiply(opmath(source), mode="drop").astype(x.dtype)


def _max(x: Array, key: Key, source: Array) -> Array:
    return x.at[key].max(source, mode="drop")


def _min(x: Array, key: Key, source: Array) -> Array:
    return x.at[key].min(source, mode="drop")


Write = Callable[[Array, Key, Array], Array]

_REDUCTIONS: dict[str, Write] = {
    "add": _add,
    "sum": _add,
    "mean": _add,
    "multiply": _multiply,
    "prod": _multiply,
    "amax": _max,
    "amin": _min,
}


def _least(dtype: np.dtype) -> Any:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else False if dtype == np.bool_ else jnp.iinfo(dtype).min


def _greatest(dtype: np.dtype) -> Any:
    return np.inf if jnp.issubdtype(dtype, jnp.floating) else True if dtype == np.bool_ else jnp.iinfo(dtype).max


def _identity(reduce: str, dtype: np.dtype) -> Any:
    """What ``reduce`` starts from where the old value does not take part."""
    if reduce in ("prod", "multiply"):
        return 1
    return _least(dtype) if reduce == "amax" else _greatest(dtype) if reduce == "amin" else 0


def _reduce_into(x: Array, key: Key, source: Array, reduce: str, include_self: bool) -> Array:
    start = x if include_self else _set(x, key, jnp.full(source.shape, _identity(reduce, x.dtype), x.dtype))
    if reduce != "mean":
        return _REDUCTIONS[reduce](start, key, source)
    total = opmath(start).at[key].add(opmath(source), mode="drop")
    count = jnp.zeros(x.shape, np.int32).at[key].add(1, mode="drop") + int(include_self)
    count = jnp.maximum(count, 1).astype(total.dtype)
    mean = total // count if jnp.issubdtype(x.dtype, jnp.integer) else total / count
    return mean.astype(x.dtype)


# Along one dimension, element by element


def _element_key(x: Array, dim: int, index: Array) -> Key:
    """The key that names ``x[i0, …, index[i0, …, in], …, in]`` for every element of ``index``."""
    return tuple(
        droppable(index, size) if d == dim else lax.broadcasted_iota(index_dtype(size), index.shape, d)
        for d, size in enumerate(x.shape)
    )


def _scatter(x: Array, dim: int, index: Array, source: Array, write: Write) -> Array:
    """``write`` the elements of ``source`` that have a counterpart in ``index`` (which may be the smaller) into ``x``."""
    line = x.reshape(-1) if x.ndim == 0 else x
    index = index.reshape(-1) if index.ndim == 0 else index
    source = source.reshape(-1) if source.ndim == 0 else source
    if index.size == 0:
        return x
    source = source[tuple(slice(0, size) for size in index.shape)]
    return write(line, _element_key(line, dim % line.ndim, index), source).reshape(x.shape)


def _filled(index: Array, value: Any, dtype: np.dtype) -> Array:
    return jnp.broadcast_to(cast(value, dtype), index.shape)


@lowers(aten.scatter.src)
def scatter(x: Array, dim: int, index: Array, source: Array) -> Array:
    return _scatter(x, dim, index, source, _set)


@lowers(aten.scatter.value)
def scatter_value(x: Array, dim: int, index: Array, value: Any) -> Array:
    return _scatter(x, dim, index, _filled(index, value, x.dtype), _set)


@lowers(aten.scatter.reduce)
def scatter_reduce_source(x: Array, dim: int, index: Array, source: Array, *, reduce: str) -> Array:
    return _scatter(x, dim, index, source, _REDUCTIONS[reduce])


@lowers(aten.scatter.value_reduce)
def scatter_reduce_value(x: Array, dim: int, index: Array, value: Any, *, reduce: str) -> Array:
    return _scatter(x, dim, index, _filled(index, value, x.dtype), _REDUCTIONS[reduce])


@lowers(aten.scatter_add.default)
def scatter_add(x: Array, dim: int, index: Array, source: Array) -> Array:
    return _scatter(x, dim, index, source, _add)


@lowers(aten.scatter_reduce.two)
def scatter_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True) -> Array:
    def write(line: Array, key: Key, elements: Array) -> Array:
        return _reduce_into(line, key, elements, reduce, include_self)

    return _scatter(x, dim, index, source, write)


# Along one dimension, slice by slice


def _along(x: Array, dim: int, index: Array, source: Array, write: Write) -> Array:
    """``write`` slice ``i`` of ``source`` into slice ``index[i]`` of ``x`` along ``dim``; 0-d arrays are one slice of one."""
    line = x.reshape(-1) if x.ndim == 0 else x
    dim %= line.ndim
    index = index.reshape(-1)
    shape = line.shape[:dim] + index.shape + line.shape[dim + 1 :]
    key = (slice(None),) * dim + (droppable(index, line.shape[dim]),)
    source = source.reshape(shape) if source.size == math.prod(shape) else jnp.broadcast_to(source, shape)
    return write(line, key, source).reshape(x.shape)


@lowers(aten.index_add.default)
def index_add(x: Array, dim: int, index: Array, source: Array, *, alpha: Any = 1) -> Array:
    source = opmath(source)
    if not (isinstance(alpha, int) and alpha == 1):
        source = source * cast(alpha, source.dtype)
    return _along(x, dim, index, source, _add)


@lowers(aten.index_copy.default)
def index_copy(x: Array, dim: int, index: Array, source: Array) -> Array:
    return _along(x, dim, index, source, _set)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(x: Array, dim: int, index: Array, value: Any) -> Array:
    # Alone of its family, index_fill counts negative indices from the end.
    index = wrapped(index, x.shape[dim] if x.ndim else 1)
    return _along(x, dim, index, cast(value, x.dtype).reshape(()), _set)


@lowers(aten.index_reduce.default)
def index_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True) -> Array:
    def write(line: Array, key: Key, slices: Array) -> Array:
        return _reduce_into(line, key, slices, reduce, include_self)

    return _along(x, dim, index, source, write)


# At several index arrays


def _write_at(x: Array, key: Key, values: Array, accumulate: bool) -> Array:
    """``values``, broadcast, into the in-range places that the index arrays of ``key`` name in ``x``."""
    droppables = tuple(k if isinstance(k, slice) else droppable(k, size) for k, size in zip(key, x.shape))
    values = values.astype(x.dtype)
    return (_add if accumulate else _set)(x, droppables, values)


def _one_value_where(x: Array, indices: Indices, value: Array, accumulate: bool) -> Array | None:
    """``x`` with one value put wherever a mask, the only index, is set; None if that isn't what is asked."""
    masks = [(dim, mask) for dim, mask in enumerate(indices) if mask is not None]
    if len(masks) != 1 or masks[0][1].dtype != np.bool_ or value.size != 1:
        return None
    ((dim, mask),) = masks
    mask = mask.reshape(mask.shape + (1,) * (x.ndim - dim - mask.ndim))
    value = value.astype(x.dtype).reshape(())
    if accumulate:
        value = x | value if x.dtype == np.bool_ else x + value
    return jnp.where(mask, value, x)


def _index_put(x: Array, indices: Indices, values: Array, accumulate: bool) -> Array:
    if (masked := _one_value_where(x, indices, values, accumulate)) is not None:
        return masked
    key = full_key(indices, x.ndim)
    return _write_at(x, tuple(k if isinstance(k, slice) else wrapped(k, n) for k, n in zip(key, x.shape)), values, accumulate)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(x: Array, indices: Indices, values: Array, accumulate: bool = False) -> Array:
    return _index_put(x, indices, values, accumulate)


@lowers(aten._index_put_impl.default)
def index_put_impl(x: Array, indices: Indices, values: Array, accumulate: bool = False, unsafe: bool = False) -> Array:
    # ``unsafe`` spares PyTorch the check of the bounds; here an index out of range writes nothing either way.
    return _index_put(x, indices, values, accumulate)


@lowers(aten._unsafe_masked_index_put_accumulate.default)
def unsafe_masked_index_put_accumulate(x: Array, mask: Array, indices: Indices, values: Array) -> Array:
    if x.size == 0:
        return x
    key = tuple(k if isinstance(k, slice) else clamped(k, size) for k, size in zip(full_key(indices, x.ndim), x.shape))
    return _write_at(x, key, jnp.where(mask, values, jnp.zeros_like(values)), True)


@lowers(aten.put.default)
def put(x: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    key = (wrapped(index.reshape(-1), x.size),)
    return _write_at(x.reshape(-1), key, source.reshape(-1), accumulate).reshape(x.shape)


# Where a mask holds


def _rank_in_mask(mask: Array) -> Array:
    """For each element of the flat ``mask``, how many before it are set."""
    flags = mask.astype(index_dtype(mask.size))
    return jnp.cumsum(flags) - flags


@lowers(aten.masked_scatter.default)
def masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    x, mask = jnp.broadcast_to(x, shape), jnp.broadcast_to(mask, shape)
    if source.size == 0 or x.size == 0:
        return x
    rank = _rank_in_mask(mask.reshape(-1))
    taken = source.reshape(-1).at[clamped(rank, source.size)].get(mode="promise_in_bounds")
    return jnp.where(mask, taken.reshape(shape), x)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad: Array, mask: Array, sizes: Sequence[int]) -> Array:
    size = math.prod(sizes)
    flat_mask = jnp.broadcast_to(mask, grad.shape).reshape(-1)
    place = jnp.where(flat_mask, _rank_in_mask(flat_mask), size)
    return _set(jnp.zeros(size, grad.dtype), (droppable(place, size),), grad.reshape(-1)).reshape(tuple(sizes))
