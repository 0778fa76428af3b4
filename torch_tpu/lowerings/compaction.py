"""Moving chosen elements to the front of a buffer of full length: what ops with data-dependent shapes are computed by.

A program has fixed shapes, so the ops whose result's length depends on values (nonzero, masked_select, unique, …) run as
programs that fill a buffer as long as the input and say how much of it counts. The eager engine reads that count and cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .table import lowers

aten = torch.ops.aten


def index_dtype(size: int) -> np.dtype:
    """The narrowest dtype that counts ``size`` elements: 32-bit positions take half the memory traffic."""
    return np.dtype(np.int32 if size <= np.iinfo(np.int32).max else np.int64)


def to_front(chosen: Array) -> tuple[Array, Array]:
    """Where each element of a 1-d mask goes if the true ones move to the front in order, and how many are true.

    False ones go past the end, each to a place of its own, for a scatter that drops them.
    """
    dtype = index_dtype(2 * chosen.size)
    rank = jnp.cumsum(chosen, dtype=dtype)
    beyond = chosen.size + lax.iota(dtype, chosen.size)
    return jnp.where(chosen, rank - 1, beyond), rank[-1] if chosen.size else jnp.zeros((), dtype)


def moved(values: Array, places: Array) -> Array:
    """``values`` (first axis as long as ``places``) scattered to ``places``; zeros where none goes."""
    return jnp.zeros_like(values).at[places].set(values, mode="drop", unique_indices=True)


def true_positions(x: Array) -> tuple[Array, Array]:
    """The row-major positions of the elements of ``x`` that are not zero, at the front of a buffer of full length, and their
    number."""
    chosen = (x != 0).reshape(-1)
    places, count = to_front(chosen)
    return moved(lax.iota(index_dtype(chosen.size), chosen.size), places), count.astype(np.int64)


def coordinates(positions: Array, shape: Sequence[int]) -> Array:
    """The coordinates (one row a dimension) of row-major positions in ``shape``."""
    rows, rest = [], positions
    for size in reversed(shape):
        rows.append((rest % max(size, 1)).astype(np.int64))
        rest = rest // max(size, 1)
    return jnp.stack(rows[::-1])


@lowers(aten.nonzero_static.default)
def nonzero_static(x: Array, *, size: int, fill_value: int = -1) -> Array:
    if x.ndim == 0 or x.size == 0 or size == 0:
        return jnp.full((size, x.ndim), fill_value, np.int64)
    positions, count = true_positions(x)
    found = coordinates(jnp.pad(positions, (0, max(0, size - positions.size)))[:size], x.shape).T
    return jnp.where((lax.iota(np.int64, size) < count)[:, None], found, fill_value)


def bounds(x: Array) -> Array:
    """The least and the greatest element, for a host that checks both in one read."""
    return jnp.stack([jnp.min(x), jnp.max(x)]).astype(np.int64)


def counts_of(x: Array, weights: Array | None, length: int) -> Array:
    """How often each of 0 … ``length - 1`` occurs in ``x``, or the sum of its weights."""
    ones = jnp.ones(x.shape, np.int64) if weights is None else weights
    places = x.astype(jnp.promote_types(x.dtype, np.int32))  # a narrow index cannot be compared with the length
    return jnp.zeros(length, ones.dtype).at[places].add(ones, mode="drop")


def repeated(repeats: Array, length: int) -> Array:
    """``i`` occurs ``repeats[i]`` times, in order; the rest of ``length`` is filled with the last."""
    ends = jnp.cumsum(repeats.astype(np.int64))
    marks = jnp.zeros(length, np.int64).at[ends[:-1]].add(1, mode="drop")
    return jnp.cumsum(marks).astype(repeats.dtype)


# ---- groups of equal elements


def sorted_order(rows: Array) -> Array:
    """The stable order that sorts the rows of a matrix, its first column weighing most."""
    order = lax.iota(index_dtype(rows.shape[0]), rows.shape[0])

    def by_column(k: Array | np.int32, order: Array) -> Array:
        column = lax.dynamic_index_in_dim(rows, rows.shape[1] - 1 - k, axis=1, keepdims=False)
        return order[jnp.argsort(column[order], stable=True)]

    if rows.shape[1] == 1:  # the common case needs no loop
        return by_column(np.int32(0), order)
    return lax.fori_loop(np.int32(0), np.int32(rows.shape[1]), by_column, order)


def groups(rows: Array, sort: bool) -> tuple[Array, Array, Array, Array]:
    """The distinct rows of a matrix (neighbours only, unless ``sort``): they, the group of each row, the groups' sizes, and
    the number of groups. All but the last are buffers of full length.
    """
    count = rows.shape[0]
    dtype = index_dtype(2 * count)
    order = sorted_order(rows) if sort else lax.iota(dtype, count)
    ordered = rows[order] if sort else rows
    # NaN differs from itself, so each one is a group, as on CPU.
    starts = jnp.concatenate([jnp.ones(1, np.bool_), jnp.any(ordered[1:] != ordered[:-1], axis=1)])
    group = jnp.cumsum(starts, dtype=dtype) - 1
    places, number = to_front(starts)
    distinct = moved(ordered, places)
    inverse = jnp.zeros(count, np.int64).at[order].set(group.astype(np.int64), unique_indices=True)
    sizes = jnp.zeros(count, np.int64).at[group].add(1)
    return distinct, inverse, sizes, number.astype(np.int64)
