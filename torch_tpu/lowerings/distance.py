"""Pairwise p-norm distances between rows, of two sets (``cdist``) or within one (``pdist``), and their gradients."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .precision import matmul_precision
from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

# cdist's compute_mode: by matrix product above this many rows, always, or never.
MATMUL_ABOVE_25, MATMUL_ALWAYS = 0, 1


def norm_of_differences(difference: Array, p: float) -> Array:
    """The p-norm over the last axis."""
    size = jnp.abs(difference)
    if p == 0:
        return jnp.sum(jnp.minimum(jnp.ceil(size), 1), axis=-1)
    if p == 1:
        return jnp.sum(size, axis=-1)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=-1))
    if math.isinf(p):
        return jnp.max(size, axis=-1, initial=0)
    return jnp.sum(size**p, axis=-1) ** (1 / p)


def gradient_of_differences(difference: Array, grad: Array, distance: Array, p: float) -> Array:
    """The gradient for each difference (..., features), given those of the distances and the distances (..., 1)."""
    if p == 0:
        return jnp.zeros_like(difference)
    size, sign = jnp.abs(difference), jnp.sign(difference)
    if p == 1:
        return grad * sign
    if math.isinf(p):
        return grad * sign * (1 - jnp.minimum(1, jnp.ceil(jnp.abs(size - distance))))
    at_zero = distance == 0
    if p < 1:
        at_zero = at_zero | (size == 0)
    safe = jnp.where(at_zero, 1, distance)
    if p == 2:
        result = grad * difference / safe
    elif p < 2:
        result = sign * jnp.where(at_zero, 0, size) ** (p - 1) * grad / safe ** (p - 1)
    else:
        result = difference * size ** (p - 2) * grad / safe ** (p - 1)
    return jnp.where(at_zero, 0, result)


@lowers(aten._euclidean_dist.default)
def euclidean_distances(x1: Array, x2: Array) -> Array:
    """Distances by one matrix product: |a|^2 - 2ab + |b|^2."""
    x1, x2 = opmath(x1), opmath(x2)
    norm1, norm2 = (jnp.sum(x * x, axis=-1, keepdims=True) for x in (x1, x2))
    left = jnp.concatenate([-2 * x1, norm1, jnp.ones_like(norm1)], axis=-1)
    right = jnp.concatenate([x2, jnp.ones_like(norm2), norm2], axis=-1)
    squares = jnp.matmul(left, jnp.swapaxes(right, -1, -2), precision=matmul_precision())
    return jnp.sqrt(jnp.maximum(squares, 0))


@lowers(aten._cdist_forward.default)
def cdist(x1: Array, x2: Array, p: float, compute_mode: int | None) -> Array:
    """x1 (*batch, P, M), x2 (*batch, R, M) to (*batch, P, R)."""
    x1, x2 = opmath(x1), opmath(x2)
    mode = compute_mode or MATMUL_ABOVE_25
    is_large = x1.shape[-2] > 25 or x2.shape[-2] > 25
    if p == 2 and x1.shape[-1] and (mode == MATMUL_ALWAYS or (mode == MATMUL_ABOVE_25 and is_large)):
        return euclidean_distances(x1, x2)
    return norm_of_differences(x1[..., :, None, :] - x2[..., None, :, :], p)


@lowers(aten._cdist_backward.default)
def cdist_backward(grad: Array, x1: Array, x2: Array, p: float, distances: Array) -> Array:
    """The gradient of x1, which for x2 PyTorch asks with the roles exchanged."""
    x1, x2, grad, distances = opmath(x1), opmath(x2), opmath(grad), opmath(distances)
    if 0 in (x1.size, x2.size, grad.size):
        return jnp.zeros_like(x1)
    difference = x1[..., :, None, :] - x2[..., None, :, :]
    return jnp.sum(gradient_of_differences(difference, grad[..., None], distances[..., None], p), axis=-2)


@lowers(aten._pdist_forward.default)
def pdist(x: Array, p: float = 2) -> Array:
    """x (N, M) to the distances of all pairs of rows i < j, in order."""
    x = opmath(x)
    distances = norm_of_differences(x[:, None, :] - x[None, :, :], p)
    rows, columns = np.triu_indices(x.shape[0], 1)
    return jnp.take(distances.reshape(-1), rows * x.shape[0] + columns, mode="clip")


@lowers(aten._pdist_backward.default)
def pdist_backward(grad: Array, x: Array, p: float, distances: Array) -> Array:
    x = opmath(x)
    rows = x.shape[0]
    if grad.size == 0:
        return jnp.zeros_like(x)
    pair = np.zeros((rows, rows), np.int64)
    pair[np.triu_indices(rows, 1)] = np.arange(grad.size)
    pair = pair + pair.T
    # A row's distance to itself has no pair; its difference is zero, and so must be its gradient.
    grads = jnp.where(np.eye(rows, dtype=np.bool_), 0, jnp.take(opmath(grad), pair, mode="clip"))
    full = jnp.where(np.eye(rows, dtype=np.bool_), 0, jnp.take(opmath(distances), pair, mode="clip"))
    difference = x[:, None, :] - x[None, :, :]
    return jnp.sum(gradient_of_differences(difference, grads[..., None], full[..., None], p), axis=1)
