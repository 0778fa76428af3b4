"""Softmax and log-softmax over one dimension, plain, masked and safe, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .promotion import cast, opmath
from .table import lowers

aten = torch.ops.aten


def _on_a_line(function: Callable[..., Array], dim: int, *operands: Array) -> Array:
    """``function(*operands, dim)`` in the dtype of intermediate arithmetic; 0-d arrays count as lines of one element."""
    if operands[0].ndim:
        return function(*map(opmath, operands), dim)
    return function(*(opmath(x).reshape(1) for x in operands), 0).reshape(())


@lowers(aten._softmax.default)
def softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    # half_to_float chooses the result's dtype, which the runner settles.
    return _on_a_line(jax.nn.softmax, dim, x)


@lowers(aten._log_softmax.default)
def log_softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    return _on_a_line(jax.nn.log_softmax, dim, x)


@lowers(aten._safe_softmax.default)
def safe_softmax(x: Array, dim: int, dtype: np.dtype | None = None) -> Array:
    """Softmax in which a line of nothing but -inf becomes zeros, not NaNs."""

    def safe(line: Array, axis: int) -> Array:
        empty = jnp.all(line == -jnp.inf, axis=axis, keepdims=True)
        return jnp.where(empty, 0, jax.nn.softmax(line, axis=axis))

    return _on_a_line(safe, dim, x if dtype is None else cast(x, dtype))


def _weighted_backward(grad: Array, output: Array, dim: int) -> Array:
    weighted = grad * output
    return weighted - output * jnp.sum(weighted, axis=dim, keepdims=True)


@lowers(aten._softmax_backward_data.default)
def softmax_backward(grad: Array, output: Array, dim: int, input_dtype: np.dtype) -> Array:
    return _on_a_line(_weighted_backward, dim, grad, output)


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Array, output: Array, dim: int, input_dtype: np.dtype) -> Array:
    def backward(grad: Array, output: Array, axis: int) -> Array:
        return grad - jnp.exp(output) * jnp.sum(grad, axis=axis, keepdims=True)

    return _on_a_line(backward, dim, grad, output)


# Masked softmax: True in the mask leaves an element out


def _full_mask(mask: Array, x: Array, mask_type: int | None) -> Array:
    """``mask`` in the shape of ``x`` (batch, heads, queries, keys): 0 for a (queries, keys) one, 1 for a (batch, keys) one."""
    if mask_type == 1:
        mask = mask[:, None, None, :]
    return jnp.broadcast_to(mask, x.shape)


@lowers(aten._masked_softmax.default)
def masked_softmax(x: Array, mask: Array, dim: int | None = None, mask_type: int | None = None) -> Array:
    """Softmax over what the mask lets in, zeros elsewhere; NaNs in a line that is masked whole."""
    mask = _full_mask(mask, x, mask_type)

    def masked(line: Array, left_out: Array, axis: int) -> Array:
        return jax.nn.softmax(jnp.where(left_out, -jnp.inf, line), axis=axis)

    return _on_a_line(masked, -1 if dim is None else dim, x, mask).astype(x.dtype)


@lowers(aten._masked_softmax_backward.default)
def masked_softmax_backward(grad: Array, output: Array, mask: Array, dim: int | None = None) -> Array:
    mask = _full_mask(mask, output, None)

    def backward(grad: Array, output: Array, left_out: Array, axis: int) -> Array:
        kept = jnp.where(left_out, 0, output)
        return jnp.where(left_out, 0, _weighted_backward(jnp.where(left_out, 0, grad), kept, axis))

    return _on_a_line(backward, -1 if dim is None else dim, grad, output, mask).astype(output.dtype)
