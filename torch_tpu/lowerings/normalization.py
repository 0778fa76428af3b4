"""Normalisation within a sample (layer, group, RMS), of weights (weight norm), and of slices (renorm), with the gradients.

Batch norm, whose statistics run over samples and calls, has a module of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jax import Array, lax

from .promotion import cast, opmath
from .reductions import Axes, vector_norm
from .table import lowers

aten = torch.ops.aten

Optional3 = tuple[Array | None, Array | None, Array | None]


def _last(x: Array, normalized_shape: Sequence[int]) -> Axes:
    """The axes of ``x`` that ``normalized_shape`` covers: the last ones."""
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        x = x * opmath(weight)
    return x if bias is None else x + opmath(bias)


def _standardized(x: Array, over: Axes, eps: float) -> tuple[Array, Array, Array]:
    """``x`` with mean 0 and variance 1 over the axes ``over``; the mean and the reciprocal deviation, dimensions kept."""
    mean = jnp.mean(x, axis=over, keepdims=True)
    centred = x - mean
    rstd = lax.rsqrt(jnp.mean(centred * centred, axis=over, keepdims=True) + eps)
    return centred * rstd, mean, rstd


def _standardized_backward(grad: Array, normalized: Array, rstd: Array, over: Axes) -> Array:
    """The gradient of what was standardized to ``normalized``: ``grad`` less its parts along the mean and along the scale."""
    along_scale = jnp.mean(grad * normalized, axis=over, keepdims=True)
    return rstd * (grad - jnp.mean(grad, axis=over, keepdims=True) - normalized * along_scale)


# Layer norm


@lowers(aten.native_layer_norm.default)
def layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    normalized, mean, rstd = _standardized(opmath(x), _last(x, normalized_shape), eps)
    return _scaled(normalized, weight, bias), mean, rstd


@lowers(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    grad: Array,
    x: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> Optional3:
    grad, x, mean, rstd = opmath(grad), opmath(x), opmath(mean), opmath(rstd)
    over = _last(x, normalized_shape)
    outer = tuple(range(over[0]))
    normalized = (x - mean) * rstd
    return (
        _standardized_backward(_scaled(grad, weight, None), normalized, rstd, over) if output_mask[0] else None,
        jnp.sum(grad * normalized, axis=outer) if output_mask[1] and weight is not None else None,
        jnp.sum(grad, axis=outer) if output_mask[2] and bias is not None else None,
    )


# RMS norm


@lowers(aten._fused_rms_norm.default)
def rms_norm(x: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None) -> tuple[Array, Array]:
    x = opmath(x)
    eps = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(x * x, axis=_last(x, normalized_shape), keepdims=True) + eps)
    return _scaled(x * rstd, weight, None), rstd


@lowers(aten._fused_rms_norm_backward.default)
def rms_norm_backward(
    grad: Array, x: Array, normalized_shape: Sequence[int], rstd: Array, weight: Array | None, output_mask: Sequence[bool]
) -> tuple[Array | None, Array | None]:
    grad, x, rstd = opmath(grad), opmath(x), opmath(rstd)
    over = _last(x, normalized_shape)
    normalized = x * rstd
    scaled = _scaled(grad, weight, None)
    along_scale = jnp.mean(scaled * normalized, axis=over, keepdims=True)
    return (
        rstd * (scaled - normalized * along_scale) if output_mask[0] else None,
        jnp.sum(grad * normalized, axis=tuple(range(over[0]))) if output_mask[1] and weight is not None else None,
    )


# Group norm


def _grouped_weight(weight: Array | None, groups: int) -> Array | None:
    return None if weight is None else weight.reshape(groups, -1, 1)


@lowers(aten.native_group_norm.default)
def group_norm(
    x: Array, weight: Array | None, bias: Array | None, n: int, channels: int, spatial: int, groups: int, eps: float
) -> tuple[Array, Array, Array]:
    """(n, channels, …) normalised over the channels of a group and all positions; mean and rstd are (n, groups)."""
    grouped = opmath(x).reshape(n, groups, channels // groups, spatial)
    normalized, mean, rstd = _standardized(grouped, (2, 3), eps)
    result = _scaled(normalized, _grouped_weight(weight, groups), _grouped_weight(bias, groups))
    return result.reshape(x.shape), mean.reshape(n, groups), rstd.reshape(n, groups)


@lowers(aten.native_group_norm_backward.default)
def group_norm_backward(
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    n: int,
    channels: int,
    spatial: int,
    groups: int,
    output_mask: Sequence[bool],
) -> Optional3:
    shape = (n, groups, channels // groups, spatial)
    grad, grouped = opmath(grad).reshape(shape), opmath(x).reshape(shape)
    rstd = opmath(rstd).reshape(n, groups, 1, 1)
    normalized = (grouped - opmath(mean).reshape(n, groups, 1, 1)) * rstd
    scaled = _scaled(grad, _grouped_weight(weight, groups), None)
    return (
        _standardized_backward(scaled, normalized, rstd, (2, 3)).reshape(x.shape) if output_mask[0] else None,
        jnp.sum(grad * normalized, axis=(0, 3)).reshape(channels) if output_mask[1] else None,
        jnp.sum(grad, axis=(0, 3)).reshape(channels) if output_mask[2] else None,
    )


# Weight norm, renorm


def _all_but(dim: int, ndim: int) -> Axes:
    return tuple(a for a in range(ndim) if a != dim % ndim)


@lowers(aten._weight_norm_interface.default)
def weight_norm(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    norms = vector_norm(v, 2, _all_but(dim, v.ndim), keepdim=True)
    return opmath(v) * (opmath(g) / norms), norms


@lowers(aten._weight_norm_interface_backward.default)
def weight_norm_backward(grad: Array, v: Array, g: Array, norms: Array, dim: int) -> tuple[Array, Array]:
    grad_dtypes = v.dtype, g.dtype
    grad, v, g, norms = opmath(grad), opmath(v), opmath(g), opmath(norms)
    along = jnp.sum(grad * v, axis=_all_but(dim, v.ndim), keepdims=True)
    grad_v = g / norms * (grad - v * (along / (norms * norms)))
    return grad_v.astype(grad_dtypes[0]), (along / norms).astype(grad_dtypes[1])


@lowers(aten.renorm.default, static=("p",))
def renorm(x: Array, order: float, dim: int, max_norm: Any) -> Array:
    """Slices of ``x`` along ``dim`` longer than ``max_norm`` shrunk to that length."""
    norms = vector_norm(x, order, _all_but(dim, x.ndim), keepdim=True)
    limit = cast(max_norm, norms.dtype)
    return opmath(x) * jnp.where(norms > limit, limit / (norms + 1e-7), jnp.ones_like(norms))
