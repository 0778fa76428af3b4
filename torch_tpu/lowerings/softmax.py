"""Softmax and log-softmax over one dimension, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import Array

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten


@lowers(aten._softmax.default)
def softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    return jax.nn.softmax(opmath(x), axis=dim) if x.ndim else jnp.ones_like(x)


@lowers(aten._log_softmax.default)
def log_softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    return jax.nn.log_softmax(opmath(x), axis=dim) if x.ndim else jnp.zeros_like(x)


@lowers(aten._softmax_backward_data.default)
def softmax_backward(grad: Array, output: Array, dim: int, input_dtype: object) -> Array:
    grad, output = opmath(grad), opmath(output)
    weighted = grad * output
    return weighted - output * jnp.sum(weighted, axis=dim, keepdims=True) if output.ndim else jnp.zeros_like(grad)


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Array, output: Array, dim: int, input_dtype: object) -> Array:
    grad, output = opmath(grad), opmath(output)
    return grad - jnp.exp(output) * jnp.sum(grad, axis=dim, keepdims=True) if output.ndim else jnp.zeros_like(grad)
