"""Embedding tables: look-ups, bags of look-ups, renormalisation, and the dense gradients.

Indices are brought into range as in ``indexing``; gradients of indices out of range are dropped as in ``scatter``, and
accumulate in float32 for the 16-bit floats.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .indexing import clamped
from .promotion import opmath
from .reductions import vector_norm
from .scatter import droppable
from .sorting import search_sorted
from .table import lowers

aten = torch.ops.aten

SUM, MEAN, MAX = 0, 1, 2


def _rows(weight: Array, indices: Array) -> Array:
    return weight.at[clamped(indices, weight.shape[0])].get(mode="promise_in_bounds")


@lowers(aten.embedding.default)
def embedding(
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Array:
    # The last three arguments speak of the gradient alone.
    return _rows(weight, indices)


def _frequencies(indices: Array, num_weights: int) -> Array:
    """How often the row that each of ``indices`` names is named in all of them."""
    counts = jnp.zeros(num_weights, np.int32).at[droppable(indices, num_weights)].add(1, mode="drop")
    return counts.at[clamped(indices, num_weights)].get(mode="promise_in_bounds")


def _sum_rows(grads: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Array:
    """The gradient of the table: row ``i`` of ``grads`` (n, features) added to row ``indices[i]``, the padding row left zero."""
    grads = opmath(grads)
    if scale_grad_by_freq:
        grads = grads / _frequencies(indices, num_weights)[:, None].astype(grads.dtype)
    place = droppable(indices, num_weights)
    if padding_idx >= 0:
        place = jnp.where(indices == padding_idx, num_weights, place)
    return jnp.zeros((num_weights, grads.shape[-1]), grads.dtype).at[place].add(grads, mode="drop")


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(grad: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Array:
    return _sum_rows(
        grad.reshape(indices.size, grad.shape[-1]), indices.reshape(-1), num_weights, padding_idx, scale_grad_by_freq
    )


@lowers(aten.embedding_renorm.default)
def embedding_renorm(weight: Array, indices: Array, max_norm: float, norm_type: float) -> Array:
    indices = indices.reshape(-1)
    rows = opmath(_rows(weight, indices))
    length = vector_norm(rows, norm_type, (1,), keepdim=True)
    rows = jnp.where(length > max_norm, rows * (max_norm / (length + 1e-7)), rows)
    # An index that comes twice writes the same row twice.
    return weight.at[droppable(indices, weight.shape[0])].set(rows.astype(weight.dtype), mode="drop")


# Bags


def _bag_of_each(offsets: Array, count: int, bags: int) -> Array:
    """The bag of each of ``count`` indices; ``offsets`` says where the bags begin (an end behind the last begins none)."""
    starts = offsets[:bags]
    return search_sorted(starts, jnp.arange(count, dtype=starts.dtype), right=True) - 1


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """The bags (bags, features), the bag of each index, each bag's size, and, for MAX, the row each maximum came from.

    The padding index belongs to no sum, mean or maximum, nor to a size.
    """
    bags, features = offsets.shape[0] - include_last_offset, weight.shape[1]
    bag = _bag_of_each(offsets, indices.shape[0], bags)
    rows = opmath(_rows(weight, indices))
    if per_sample_weights is not None:
        rows = rows * opmath(per_sample_weights)[:, None]
    counted = indices != padding_idx if padding_idx >= 0 else jnp.ones(indices.shape, np.bool_)
    place = jnp.where(counted, bag, bags)
    size = jnp.zeros(bags, np.int32).at[place].add(1, mode="drop")
    max_indices = jnp.zeros((bags, features) if mode == MAX else 0, indices.dtype)
    if mode == MAX:
        largest = jnp.full((bags, features), -np.inf, rows.dtype).at[place].max(rows, mode="drop")
        result = jnp.where(size[:, None] > 0, largest, 0)
        max_indices = _first_of_maximum(rows, indices, bag, counted, largest)
    else:
        result = jnp.zeros((bags, features), rows.dtype).at[place].add(rows, mode="drop")
        if mode == MEAN:
            result = result / jnp.maximum(size, 1)[:, None].astype(result.dtype)
    sizes = jnp.concatenate([size, jnp.zeros(offsets.shape[0] - bags, np.int32)])
    return result, bag.astype(indices.dtype), sizes.astype(indices.dtype), max_indices


def _first_of_maximum(rows: Array, indices: Array, bag: Array, counted: Array, largest: Array) -> Array:
    """For each bag and feature, the table row (0 in an empty bag) of the first look-up that reaches ``largest``."""
    bags, count = largest.shape[0], rows.shape[0]
    of_bag = largest.at[clamped(bag, bags)].get(mode="promise_in_bounds")
    reaches = counted[:, None] & ((rows == of_bag) | (jnp.isnan(rows) & jnp.isnan(of_bag)))
    position = jnp.where(reaches, jnp.arange(count, dtype=np.int32)[:, None], count)
    first = jnp.full(largest.shape, count, np.int32).at[droppable(bag, bags)].min(position, mode="drop")
    return jnp.concatenate([indices, jnp.zeros(1, indices.dtype)])[first]


@lowers(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    grad = opmath(grad)
    if mode == MAX:
        place = jnp.where(bag_size[: grad.shape[0], None] > 0, droppable(maximum_indices, num_weights), num_weights)
        feature = jnp.arange(grad.shape[1], dtype=np.int32)[None, :]
        return jnp.zeros((num_weights, grad.shape[1]), grad.dtype).at[place, feature].add(grad, mode="drop")
    bag = clamped(offset2bag, grad.shape[0])
    if mode == MEAN:
        grad = grad / jnp.maximum(bag_size[: grad.shape[0]], 1)[:, None].astype(grad.dtype)
    grads = grad.at[bag].get(mode="promise_in_bounds")
    if per_sample_weights is not None:
        grads = grads * opmath(per_sample_weights)[:, None]
    return _sum_rows(grads, indices, num_weights, padding_idx, scale_grad_by_freq)


@lowers(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    grad: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    if sparse:
        raise NotImplementedError("tpu: embedding_bag(sparse=True): gradients are dense here; pass sparse=False")
    return embedding_bag_dense_backward(
        grad,
        indices,
        _bag_of_each(offsets, indices.shape[0], grad.shape[0]),
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    grad: Array, weight: Array, indices: Array, offsets: Array, offset2bag: Array, mode: int, padding_idx: int = -1
) -> Array:
    bag = _bag_of_each(offsets, indices.shape[0], grad.shape[0])
    grads = opmath(grad).at[clamped(bag, grad.shape[0])].get(mode="promise_in_bounds")
    products = jnp.sum(grads * opmath(_rows(weight, indices)), axis=1)
    return jnp.where(indices == padding_idx, 0, products) if padding_idx >= 0 else products
