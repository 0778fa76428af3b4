"""Scans along one dimension: cumulative sums, products, extrema with their indices, and log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .promotion import accumulation_dtype, cast, opmath
from .table import lowers

aten = torch.ops.aten


def _cumulative(scan: Callable[..., Array]) -> Callable[..., Array]:
    def lowering(x: Array, dim: int, *, dtype: np.dtype | None = None) -> Array:
        x = opmath(cast(x, accumulation_dtype(x.dtype) if dtype is None else dtype))
        return scan(x, axis=dim % x.ndim) if x.ndim else x

    return lowering


lowers(aten.cumsum.default)(_cumulative(lax.cumsum))
lowers(aten.cumprod.default)(_cumulative(lax.cumprod))


@lowers(aten.logcumsumexp.default, aten._logcumsumexp.default)
def logcumsumexp(x: Array, dim: int) -> Array:
    line = opmath(x)
    if x.ndim == 0 or x.size == 0:
        return x
    if jnp.iscomplexobj(x):
        return lax.associative_scan(jnp.logaddexp, line, axis=dim % x.ndim)
    return lax.cumlogsumexp(line, axis=dim % x.ndim).astype(x.dtype)


def _running_extremum(x: Array, dim: int, scan: Callable[..., Array]) -> tuple[Array, Array]:
    """The running extremum and the last index that it was taken from; NaN beats every number."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = dim % x.ndim
    line = x.astype(np.uint8) if x.dtype == np.bool_ else x
    values = scan(line, axis=axis)
    # An element is taken where it equals the extremum so far, or is NaN (which equals nothing, itself included).
    taken = (line == values) | (line != line)
    position = lax.broadcasted_iota(np.int32, x.shape, axis)
    index = lax.cummax(jnp.where(taken, position, 0), axis=axis)
    return values.astype(x.dtype), index.astype(np.int64)


@lowers(aten.cummax.default)
def cummax(x: Array, dim: int) -> tuple[Array, Array]:
    return _running_extremum(x, dim, lax.cummax)


@lowers(aten.cummin.default)
def cummin(x: Array, dim: int) -> tuple[Array, Array]:
    return _running_extremum(x, dim, lax.cummin)


@lowers(aten._cummax_helper.default)
def cummax_helper(x: Array, values: Array, indices: Array, dim: int) -> tuple[Array, Array]:
    return _running_extremum(x, dim, lax.cummax)


@lowers(aten._cummin_helper.default)
def cummin_helper(x: Array, values: Array, indices: Array, dim: int) -> tuple[Array, Array]:
    return _running_extremum(x, dim, lax.cummin)
