"""Tensors from nothing: constants, ranges and index patterns.

The lowerings know no device. A ``dtype`` of None leaves the choice to PyTorch's meta function, to whose dtype the runner casts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .promotion import cast, default_dtype, opmath, result_type
from .table import lowers

aten = torch.ops.aten
DType = np.dtype | None


def constant(sizes: Sequence[int], value: ArrayLike, dtype: np.dtype) -> Array:
    return jnp.broadcast_to(cast(value, dtype), tuple(sizes))


@lowers(aten.full.default)
def full(sizes: Sequence[int], value: ArrayLike, *, dtype: DType = None) -> Array:
    return constant(sizes, value, dtype or result_type(value))


@lowers(aten.full_like.default)
def full_like(x: Array, value: ArrayLike, *, dtype: DType = None) -> Array:
    return constant(x.shape, value, dtype or x.dtype)


@lowers(aten.new_full.default)
def new_full(x: Array, sizes: Sequence[int], value: ArrayLike, *, dtype: DType = None) -> Array:
    return constant(sizes, value, dtype or x.dtype)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(value: ArrayLike, *, dtype: DType = None) -> Array:
    return cast(value, dtype or default_dtype())


@lowers(aten.zero.default)
def zero(x: Array) -> Array:
    return jnp.zeros_like(x)


# What is in an uninitialised tensor is anybody's guess; here it is zeros, which cost the least.
@lowers(aten.zeros.default, aten._efficientzerotensor.default, aten.empty.memory_format)
def zeros(sizes: Sequence[int], *, dtype: DType = None) -> Array:
    return constant(sizes, 0, dtype or default_dtype())


@lowers(aten.empty_strided.default, aten.empty_permuted.default)
def empty_laid_out(sizes: Sequence[int], layout: Sequence[int], *, dtype: DType = None) -> Array:
    return constant(sizes, 0, dtype or default_dtype())


@lowers(aten.zeros_like.default, aten.empty_like.default)
def zeros_like(x: Array, *, dtype: DType = None) -> Array:
    return constant(x.shape, 0, dtype or x.dtype)


@lowers(aten.new_zeros.default, aten.new_empty.default)
def new_zeros(x: Array, sizes: Sequence[int], *, dtype: DType = None) -> Array:
    return constant(sizes, 0, dtype or x.dtype)


@lowers(aten.new_empty_strided.default)
def new_empty_strided(x: Array, sizes: Sequence[int], strides: Sequence[int], *, dtype: DType = None) -> Array:
    return constant(sizes, 0, dtype or x.dtype)


@lowers(aten.ones.default)
def ones(sizes: Sequence[int], *, dtype: DType = None) -> Array:
    return constant(sizes, 1, dtype or default_dtype())


@lowers(aten.ones_like.default)
def ones_like(x: Array, *, dtype: DType = None) -> Array:
    return constant(x.shape, 1, dtype or x.dtype)


@lowers(aten.new_ones.default)
def new_ones(x: Array, sizes: Sequence[int], *, dtype: DType = None) -> Array:
    return constant(sizes, 1, dtype or x.dtype)


def progression(start: float, step: float, count: int, dtype: np.dtype) -> Array:
    """``start + step * i`` for ``count`` values of i, exact where start and step are whole, as PyTorch's is."""
    whole = float(start).is_integer() and float(step).is_integer() and abs(start) + abs(step) * count < 2**63
    if whole or dtype.kind in "iu":
        return (lax.iota(np.int64, count) * int(step) + int(start)).astype(dtype)
    return (lax.iota(np.float64, count) * float(step) + float(start)).astype(dtype)


@lowers(aten.arange.start_step, static=["start", "end", "step"])
def arange_start_step(start: float, end: float, step: float = 1, *, dtype: DType = None) -> Array:
    dtype = dtype or result_type(start, end, step)
    if dtype == np.int64:
        start, end, step = int(start), int(end), int(step)
        count = -((start - end) // step)
    else:
        count = math.ceil((end - start) / step)
    return progression(start, step, count, dtype)


@lowers(aten.arange.start, static=["start", "end"])
def arange_start(start: float, end: float, *, dtype: DType = None) -> Array:
    return arange_start_step(start, end, 1, dtype=dtype)


@lowers(aten.arange.default, static=["end"])
def arange(end: float, *, dtype: DType = None) -> Array:
    return arange_start_step(0, end, 1, dtype=dtype)


@lowers(aten.range.step, static=["start", "end", "step"])
def range_step(start: float, end: float, step: float = 1, *, dtype: DType = None) -> Array:
    # The deprecated cousin of arange, with an inclusive end.
    return progression(start, step, int((end - start) / step + 1), dtype or default_dtype())


@lowers(aten.range.default, static=["start", "end"])
def range_default(start: float, end: float, *, dtype: DType = None) -> Array:
    return range_step(start, end, 1, dtype=dtype)


def evenly_spaced(start: ArrayLike, end: ArrayLike, count: int, dtype: np.dtype) -> Array:
    """``count`` points from ``start`` to ``end`` in the arithmetic dtype for ``dtype``, symmetrical about the middle."""
    if dtype.kind in "iu":
        start, end = (cast(cast(x, dtype), np.float64) for x in (start, end))
    else:
        start, end = (opmath(cast(x, dtype)) for x in (start, end))
    if count == 1:
        return start[None]
    step = (end - start) / (count - 1)
    # Each half counts from its own end, so that both ends are hit exactly.
    index = lax.iota(np.int64, count)
    counted = jnp.where(index < count // 2, index, count - 1 - index).astype(step.dtype)
    return jnp.where(index < count // 2, start + step * counted, end - step * counted)


@lowers(aten.linspace.default, aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def linspace(start: ArrayLike, end: ArrayLike, steps: int, *, dtype: DType = None) -> Array:
    return evenly_spaced(start, end, steps, dtype or spaced_dtype(start, end))


@lowers(aten.logspace.default, aten.logspace.Tensor_Tensor, aten.logspace.Tensor_Scalar, aten.logspace.Scalar_Tensor)
def logspace(start: ArrayLike, end: ArrayLike, steps: int, base: float = 10.0, *, dtype: DType = None) -> Array:
    exponents = evenly_spaced(start, end, steps, dtype or spaced_dtype(start, end))
    return jnp.power(jnp.asarray(base, exponents.dtype), exponents)


def spaced_dtype(start: ArrayLike, end: ArrayLike) -> np.dtype:
    either_complex = any(result_type(x).kind == "c" for x in (start, end))
    return np.result_type(default_dtype(), np.complex64) if either_complex else default_dtype()


@lowers(aten.eye.default)
def eye(n: int, *, dtype: DType = None) -> Array:
    return jnp.eye(n, dtype=dtype or default_dtype())


@lowers(aten.eye.m)
def eye_m(n: int, m: int, *, dtype: DType = None) -> Array:
    return jnp.eye(n, m, dtype=dtype or default_dtype())


def indices_of_rows(first: np.ndarray, count: np.ndarray) -> Array:
    """Row and column numbers of ``count[r]`` elements from column ``first[r]`` in each row r, rows in order, in int64.

    Only the rows are known on the host, so that a large triangle is not a large constant in the program.
    """
    total, starts = int(count.sum()), np.cumsum(count) - count
    rows = jnp.repeat(jnp.arange(len(count)), count, total_repeat_length=total)
    columns = jnp.arange(total) + jnp.take(jnp.asarray(first - starts), rows, mode="clip") if total else rows
    return jnp.stack([rows, columns])


# The schema's default for ``dtype`` is a bare type code, so these two leave dtypes to the runner's cast.
@lowers(aten.tril_indices.default)
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: object = None) -> Array:
    count = np.clip(np.arange(row, dtype=np.int64) + offset + 1, 0, col)
    return indices_of_rows(np.zeros_like(count), count)


@lowers(aten.triu_indices.default)
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: object = None) -> Array:
    first = np.clip(np.arange(row, dtype=np.int64) + offset, 0, col)
    return indices_of_rows(first, col - first)
