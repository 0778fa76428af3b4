"""Reading at positions that arrays hold: gather, advanced indexing, index_select, take.

The program cannot raise, so every index is brought into range before it reads: an index that PyTorch would refuse reads
the nearest element, never memory beyond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .promotion import cast
from .table import lowers

aten = torch.ops.aten

Indices = Sequence[Array | None]


def index_dtype(size: int) -> np.dtype:
    """The narrowest index dtype that covers ``size`` elements: TPUs emulate 64-bit integers."""
    return np.dtype(np.int32 if size <= np.iinfo(np.int32).max else np.int64)


def clamped(index: Array, size: int) -> Array:
    """``index`` brought into ``[0, size)``."""
    return jnp.clip(index, 0, max(size - 1, 0)).astype(index_dtype(size))


def wrapped(index: Array, size: int) -> Array:
    """``index`` with negative values counted from the end."""
    return jnp.where(index < 0, index + size, index)


def full_key(indices: Indices, ndim: int) -> tuple[Array | slice, ...]:
    """One entry a dimension: the index array, or everything where ``indices`` has None or ends. TypeError for a mask."""
    if any(index is not None and index.dtype == np.bool_ for index in indices):
        raise TypeError(
            "tpu: a boolean index selects a number of elements that depends on data; expand it to integer indices first"
        )
    padded = list(indices) + [None] * (ndim - len(indices))
    return tuple(slice(None) if index is None else index for index in padded)


def _read(x: Array, key: tuple[Array | slice, ...]) -> Array:
    """``x[key]`` with the index arrays of ``key`` brought into range."""
    safe = tuple(k if isinstance(k, slice) else clamped(k, size) for k, size in zip(key, x.shape))
    return x.at[safe].get(mode="promise_in_bounds") if safe else x


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_tensor(x: Array, indices: Indices) -> Array:
    key = full_key(indices, x.ndim)
    return _read(x, tuple(k if isinstance(k, slice) else wrapped(k, size) for k, size in zip(key, x.shape)))


@lowers(aten._unsafe_masked_index.default)
def unsafe_masked_index(x: Array, mask: Array, indices: Indices, fill: Any) -> Array:
    if x.size == 0:  # nothing may be read, hence nothing is unmasked
        shape = jnp.broadcast_shapes(mask.shape, *(i.shape for i in indices if i is not None))
        return jnp.full(shape, cast(fill, x.dtype))
    return jnp.where(mask, _read(x, full_key(indices, x.ndim)), cast(fill, x.dtype))


@lowers(aten.gather.default)
def gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    # sparse_grad speaks of the gradient's layout alone, which autograd settles.
    if x.ndim == 0:
        return jnp.broadcast_to(x, index.shape)
    if index.ndim == 0:
        return x.reshape(-1).at[clamped(index, x.size)].get(mode="promise_in_bounds")
    dim %= x.ndim
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    # The index may be shorter than x in the other dimensions; just that corner of x is read.
    corner = x[tuple(slice(None) if d == dim else slice(0, size) for d, size in enumerate(index.shape))]
    return jnp.take_along_axis(corner, clamped(index, x.shape[dim]), dim, mode="promise_in_bounds")


@lowers(aten.index_select.default)
def index_select(x: Array, dim: int, index: Array) -> Array:
    if x.ndim == 0:
        return x
    dim %= x.ndim
    return _read(x, (slice(None),) * dim + (index.reshape(-1),) + (slice(None),) * (x.ndim - dim - 1))


@lowers(aten.take.default)
def take(x: Array, index: Array) -> Array:
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    return _read(x.reshape(-1), (wrapped(index, math.prod(x.shape)),))
