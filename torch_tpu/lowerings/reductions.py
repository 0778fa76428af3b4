"""Reductions: sums, means, moments, norms, truth values, and extrema with their index forms, over any subset of dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .promotion import accumulation_dtype, cast, opmath, promote, promote_to_float
from .table import lowers

aten = torch.ops.aten

Axes = tuple[int, ...]


def axes(dims: int | Sequence[int] | None, ndim: int) -> Axes:
    """The axes that ``dims`` name in an array of rank ``ndim``: all of them for None and for an empty list, none in a 0-d one."""
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted(d % ndim for d in dims)) if dims and ndim else tuple(range(ndim))


def extent(x: Array, over: Axes) -> int:
    """The number of elements that a reduction of ``x`` over the axes ``over`` folds into one."""
    return math.prod(x.shape[a] for a in over)


# Sums, products, means


def _sum(x: Array, over: Axes, keepdim: bool, dtype: np.dtype | None) -> Array:
    x = cast(x, accumulation_dtype(x.dtype) if dtype is None else dtype)
    return jnp.sum(opmath(x), axis=over, keepdims=keepdim)


def _prod(x: Array, over: Axes, keepdim: bool, dtype: np.dtype | None) -> Array:
    x = cast(x, accumulation_dtype(x.dtype) if dtype is None else dtype)
    return jnp.prod(opmath(x), axis=over, keepdims=keepdim)


def _mean(x: Array, over: Axes, keepdim: bool, dtype: np.dtype | None) -> Array:
    x = opmath(x if dtype is None else cast(x, dtype))
    return jnp.sum(x, axis=over, keepdims=keepdim) / extent(x, over)


def _nansum(x: Array, over: Axes, keepdim: bool, dtype: np.dtype | None) -> Array:
    return _sum(jnp.where(jnp.isnan(x), 0, x) if jnp.issubdtype(x.dtype, jnp.inexact) else x, over, keepdim, dtype)


def _over_all(reduce: Callable[..., Array]) -> Callable[..., Array]:
    def lowering(x: Array, *, dtype: np.dtype | None = None) -> Array:
        return reduce(x, axes(None, x.ndim), False, dtype)

    return lowering


def _over_dims(reduce: Callable[..., Array]) -> Callable[..., Array]:
    def lowering(x: Array, dims: int | Sequence[int] | None, keepdim: bool = False, *, dtype: np.dtype | None = None) -> Array:
        return reduce(x, axes(dims, x.ndim), keepdim, dtype)

    return lowering


for _overload, _reduce in {aten.sum.default: _sum, aten.prod.default: _prod, aten.mean.default: _mean}.items():
    lowers(_overload)(_over_all(_reduce))

for _overload, _reduce in {
    aten.sum.dim_IntList: _sum,
    aten.prod.dim_int: _prod,
    aten.mean.dim: _mean,
    aten.nansum.default: _nansum,
}.items():
    lowers(_overload)(_over_dims(_reduce))


@lowers(aten.trace.default)
def trace(x: Array) -> Array:
    x = cast(x, accumulation_dtype(x.dtype))
    return jnp.sum(jnp.diagonal(opmath(x)))


@lowers(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(x: Array, dims: int | Sequence[int] | None = None) -> Array:
    return jnp.sum(x != 0, axis=axes(dims, x.ndim), dtype=np.int64)


@lowers(aten.logsumexp.default)
def logsumexp(x: Array, dims: Sequence[int], keepdim: bool = False) -> Array:
    over = axes(dims, x.ndim)
    (x,) = promote_to_float(x)
    x = opmath(x)
    # An infinite maximum is not subtracted: inf - inf would turn the answers inf and -inf into NaN.
    largest = jnp.max(x.real, axis=over, keepdims=True, initial=-np.inf)
    shift = jnp.where(jnp.isinf(largest), 0, largest)
    result = jnp.log(jnp.sum(jnp.exp(x - shift), axis=over, keepdims=True)) + shift
    return result if keepdim else jnp.squeeze(result, over)


# Truth values


def _any(x: Array, over: Axes, keepdim: bool) -> Array:
    return jnp.any(x != 0, axis=over, keepdims=keepdim)


def _all(x: Array, over: Axes, keepdim: bool) -> Array:
    return jnp.all(x != 0, axis=over, keepdims=keepdim)


def _truth(reduce: Callable[..., Array]) -> Callable[..., Array]:
    def lowering(x: Array, dims: int | Sequence[int] | None = None, keepdim: bool = False) -> Array:
        # Alone among the reductions, these reduce nothing when the list of dimensions is empty.
        over = () if isinstance(dims, Sequence) and not dims else axes(dims, x.ndim)
        return reduce(x, over, keepdim)

    return lowering


lowers(aten.any.default, aten.any.dim, aten.any.dims)(_truth(_any))
lowers(aten.all.default, aten.all.dim, aten.all.dims)(_truth(_all))


# Moments


def _moments(x: Array, dims: Sequence[int] | None, correction: Any, keepdim: bool) -> tuple[Array, Array]:
    """Variance and mean; two passes, since the one-pass formula cancels when the mean is far from zero."""
    over = axes(dims, x.ndim)
    x = opmath(x)
    count = extent(x, over)
    mean = jnp.sum(x, axis=over, keepdims=True) / count
    centred = x - mean
    squares = jnp.real(centred * jnp.conj(centred))
    freedom = jnp.maximum(cast(count - (1 if correction is None else correction), squares.dtype), 0)
    variance = jnp.sum(squares, axis=over, keepdims=keepdim) / freedom
    return variance, mean if keepdim else jnp.squeeze(mean, over)


@lowers(aten.var.correction)
def var(x: Array, dims: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False) -> Array:
    return _moments(x, dims, correction, keepdim)[0]


@lowers(aten.std.correction)
def std(x: Array, dims: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False) -> Array:
    return jnp.sqrt(_moments(x, dims, correction, keepdim)[0])


@lowers(aten.var_mean.correction)
def var_mean(
    x: Array, dims: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    return _moments(x, dims, correction, keepdim)


@lowers(aten.std_mean.correction)
def std_mean(
    x: Array, dims: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    variance, mean = _moments(x, dims, correction, keepdim)
    return jnp.sqrt(variance), mean


# Norms


def _power_sum(x: Array, order: float, over: Axes, keepdim: bool) -> Array:
    """The sum of ``|x| ** order``; the extremum of ``|x|`` where ``order`` is infinite."""
    if order == 2 and not jnp.iscomplexobj(x):
        return jnp.sum(x * x, axis=over, keepdims=keepdim)
    magnitude = jnp.abs(x)
    if order == math.inf:
        return jnp.max(magnitude, axis=over, keepdims=keepdim, initial=0)
    if order == -math.inf:
        return jnp.min(magnitude, axis=over, keepdims=keepdim, initial=np.inf)
    if order == 0:
        return jnp.sum(x != 0, axis=over, keepdims=keepdim, dtype=magnitude.dtype)
    powers = magnitude if order == 1 else magnitude * magnitude if order == 2 else magnitude**order
    return jnp.sum(powers, axis=over, keepdims=keepdim)


def vector_norm(x: Array, order: float | None, over: Axes, keepdim: bool = False) -> Array:
    """The vector norm of ``x`` of the given order (None: 2) over the axes ``over``, in the dtype of intermediate arithmetic."""
    order = 2 if order is None else order
    total = _power_sum(opmath(x), order, over, keepdim)
    if order == 2:
        return jnp.sqrt(total)
    return total if order in (0, 1, math.inf, -math.inf) else total ** (1 / order)


@lowers(aten.linalg_vector_norm.default, static=("ord",))
def linalg_vector_norm(
    x: Array, order: float = 2, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: np.dtype | None = None
) -> Array:
    return vector_norm(x if dtype is None else _widened(x, dtype), order, axes(dims, x.ndim), keepdim)


@lowers(aten.norm.Scalar, aten.norm.ScalarOpt_dtype, static=("p",))
def norm(x: Array, order: float | None = 2, *, dtype: np.dtype | None = None) -> Array:
    return linalg_vector_norm(x, 2 if order is None else order, dtype=dtype)


@lowers(aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype, static=("p",))
def norm_dims(
    x: Array, order: float | None, dims: Sequence[int], keepdim: bool = False, *, dtype: np.dtype | None = None
) -> Array:
    return linalg_vector_norm(x, 2 if order is None else order, dims, keepdim, dtype=dtype)


@lowers(aten.dist.default, static=("p",))
def dist(x: Array, y: Array, order: float = 2) -> Array:
    x, y = promote(x, y)
    difference = opmath(x) - opmath(y)
    return vector_norm(difference, order, axes(None, difference.ndim))


def _widened(x: Array, dtype: np.dtype) -> Array:
    # A real dtype asked of a complex array names the norm's dtype, not a projection on the real axis.
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        return cast(x, np.result_type(dtype, np.complex64))
    return cast(x, dtype)


# Extrema


def _ordered(x: Array) -> Array:
    """``x`` in a dtype that index reductions accept: bools become bytes."""
    return x.astype(np.uint8) if x.dtype == np.bool_ else x


def _arg_extremum(x: Array, dim: int | None, keepdim: bool, find: Callable[..., Array]) -> Array:
    """The first index of the extremum (of the first NaN, where there is one) along ``dim``; None: in the flattened array."""
    if x.ndim == 0:
        return jnp.zeros((), np.int64)
    axis = 0 if dim is None else dim % x.ndim
    line = _ordered(x.reshape(-1) if dim is None else x)
    # 32-bit indices halve the traffic of the reduction wherever they suffice.
    index_dtype = np.int32 if line.shape[axis] <= np.iinfo(np.int32).max else np.int64
    index = find(line, axis, index_dtype).astype(np.int64)
    if not keepdim:
        return index
    return index.reshape((1,) * x.ndim) if dim is None else jnp.expand_dims(index, axis)


def _extremum(reduce: Callable[..., Array]) -> Callable[..., Array]:
    def lowering(x: Array, dims: int | Sequence[int] | None = (), keepdim: bool = False) -> Array:
        return reduce(x, axis=axes(dims, x.ndim), keepdims=keepdim)

    return lowering


def _extremum_with_index(reduce: Callable[..., Array], find: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    def lowering(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        values = reduce(x, axis=axes(dim, x.ndim), keepdims=keepdim)
        return values, _arg_extremum(x, dim, keepdim, find)

    return lowering


def _extremum_index(find: Callable[..., Array]) -> Callable[..., Array]:
    def lowering(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        return _arg_extremum(x, dim, keepdim, find)

    return lowering


lowers(aten.amax.default, aten.max.default)(_extremum(jnp.max))
lowers(aten.amin.default, aten.min.default)(_extremum(jnp.min))
lowers(aten.max.dim)(_extremum_with_index(jnp.max, lax.argmax))
lowers(aten.min.dim)(_extremum_with_index(jnp.min, lax.argmin))
lowers(aten.argmax.default)(_extremum_index(lax.argmax))
lowers(aten.argmin.default)(_extremum_index(lax.argmin))


@lowers(aten._aminmax.default, aten._aminmax.dim)
def aminmax_of_dim(x: Array, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    over = axes(dim, x.ndim)
    return jnp.min(x, axis=over, keepdims=keepdim), jnp.max(x, axis=over, keepdims=keepdim)


@lowers(aten.aminmax.default)
def aminmax(x: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    return aminmax_of_dim(x, dim, keepdim)
