"""Losses and their gradients, with PyTorch's three reductions.

A class index picks its element by comparison with an iota, not by gather and scatter: the choice then fuses with the softmax
before it, the gradient is elementwise, and a class axis split over chips stays split.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .elementwise import operands
from .promotion import Number, cast, opmath
from .table import lowers

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2


def reduced(losses: Array, reduction: int) -> Array:
    if reduction == NONE:
        return losses
    return jnp.mean(losses) if reduction == MEAN else jnp.sum(losses)


def grad_share(grad: Array, size: int, reduction: int) -> Array:
    """The gradient of each of ``size`` losses, out of the gradient of what they were reduced to."""
    return grad / max(size, 1) if reduction == MEAN else grad


@lowers(aten.mse_loss.default)
def mse_loss(x: Array, target: Array, reduction: int = MEAN) -> Array:
    x, target = operands(x, target)
    return reduced(jnp.square(x - target), reduction)


@lowers(aten.mse_loss_backward.default)
def mse_loss_backward(grad: Array, x: Array, target: Array, reduction: int) -> Array:
    grad, x, target = operands(grad, x, target)
    difference = x - target
    return 2 * difference * grad_share(grad, difference.size, reduction)


@lowers(aten.smooth_l1_loss.default)
def smooth_l1_loss(x: Array, target: Array, reduction: int = MEAN, beta: float = 1.0) -> Array:
    x, target = operands(x, target)
    distance = jnp.abs(x - target)
    quadratic = 0.5 * distance * distance / beta if beta else distance
    return reduced(jnp.where(distance < beta, quadratic, distance - 0.5 * beta), reduction)


@lowers(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(grad: Array, x: Array, target: Array, reduction: int, beta: float) -> Array:
    grad, x, target = operands(grad, x, target)
    difference = x - target
    linear = jnp.where(difference <= -beta, -1, 1).astype(difference.dtype)
    slope = jnp.where(jnp.abs(difference) < beta, difference / beta, linear) if beta else linear
    return slope * grad_share(grad, difference.size, reduction)


@lowers(aten.huber_loss.default)
def huber_loss(x: Array, target: Array, reduction: int = MEAN, delta: float = 1.0) -> Array:
    x, target = operands(x, target)
    distance = jnp.abs(x - target)
    return reduced(jnp.where(distance <= delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta)), reduction)


@lowers(aten.huber_loss_backward.default)
def huber_loss_backward(grad: Array, x: Array, target: Array, reduction: int, delta: float) -> Array:
    grad, x, target = operands(grad, x, target)
    difference = x - target
    slope = jnp.where(difference <= -delta, -delta, jnp.where(difference >= delta, delta, difference))
    return slope * grad_share(grad, difference.size, reduction)


@lowers(aten.soft_margin_loss.default)
def soft_margin_loss(x: Array, target: Array, reduction: int = MEAN) -> Array:
    x, target = operands(x, target)
    return reduced(jnp.log1p(jnp.exp(-target * x)), reduction)


@lowers(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(grad: Array, x: Array, target: Array, reduction: int) -> Array:
    grad, x, target = operands(grad, x, target)
    odds = jnp.exp(-target * x)
    return -target * grad_share(grad, odds.size, reduction) * odds / (odds + 1)


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(x: Array, target: Array, weight: Array | None = None, reduction: int = MEAN) -> Array:
    x, target, weight = operands(x, target, weight)
    # Logarithms stop at -100, so that a certain and wrong prediction has a finite loss.
    losses = (target - 1) * jnp.maximum(jnp.log1p(-x), -100) - target * jnp.maximum(jnp.log(x), -100)
    return reduced(losses if weight is None else losses * weight, reduction)


@lowers(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    grad: Array, x: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    grad, x, target, weight = operands(grad, x, target, weight)
    slope = (x - target) / jnp.maximum((1 - x) * x, 1e-12)
    slope = slope if weight is None else slope * weight
    return slope * grad_share(grad, x.size, reduction)


@lowers(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    x: Array, target: Array, weight: Array | None = None, pos_weight: Array | None = None, reduction: int = MEAN
) -> Array:
    x, target, weight, pos_weight = operands(x, target, weight, pos_weight)
    softplus_of_minus_x = jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(-x, 0)
    if pos_weight is not None:
        softplus_of_minus_x = ((pos_weight - 1) * target + 1) * softplus_of_minus_x
    losses = (1 - target) * x + softplus_of_minus_x
    return reduced(losses if weight is None else losses * weight, reduction)


def _chosen(target: Array, classes: int, axis: int) -> Array:
    """Where the class axis, inserted into ``target``, has the index that ``target`` names."""
    shape = target.shape[:axis] + (classes,) + target.shape[axis:]
    return lax.broadcasted_iota(target.dtype, shape, axis) == jnp.expand_dims(target, axis)


def _class_axis(x: Array) -> int:
    return 1 if x.ndim > 1 else 0


def _class_weights(weight: Array | None, x: Array, chosen: Array) -> Array:
    """The weight of the chosen class at every place of ``target``; 0 where the target names none."""
    axis = _class_axis(x)
    if weight is None:
        return jnp.any(chosen, axis).astype(x.dtype)
    weight = jnp.reshape(weight, (-1,) + (1,) * (x.ndim - axis - 1))
    return jnp.sum(jnp.where(chosen, weight, 0), axis)


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int) -> tuple[Array, Array]:
    x, weight = operands(x, weight)
    axis = _class_axis(x)
    target = jnp.reshape(target, x.shape[:axis] + x.shape[axis + 1 :])
    chosen = _chosen(target, x.shape[axis], axis) & jnp.expand_dims(target != ignore_index, axis)
    weights = _class_weights(weight, x, chosen)
    losses = jnp.sum(jnp.where(chosen, -x, 0), axis) * weights
    if reduction == NONE and x.ndim > 1:
        return losses, jnp.zeros((), x.dtype)
    total, total_weight = jnp.sum(losses), jnp.sum(weights)
    # Unreduced, a lone row still tells its weight.
    return (total / total_weight if reduction == MEAN else total), total_weight


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad: Array, x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int, total_weight: Array
) -> Array:
    grad, x, weight, total_weight = operands(grad, x, weight, total_weight)
    axis = _class_axis(x)
    target = jnp.reshape(target, x.shape[:axis] + x.shape[axis + 1 :])
    chosen = _chosen(target, x.shape[axis], axis) & jnp.expand_dims(target != ignore_index, axis)
    if reduction == NONE:
        grad = jnp.expand_dims(jnp.reshape(grad, target.shape), axis)
    elif reduction == MEAN:
        grad = grad / total_weight
    slope = -1 if weight is None else -jnp.reshape(weight, (-1,) + (1,) * (x.ndim - axis - 1))
    return jnp.where(chosen, slope * grad, 0)


def _margins(x: Array, target: Array, margin: ArrayLike) -> tuple[Array, Array]:
    """``margin - x[target] + x`` for each class, and where the class is the target."""
    chosen = _chosen(target, x.shape[1], 1)
    at_target = jnp.sum(jnp.where(chosen, x, 0), 1, keepdims=True)
    return cast(margin, x.dtype) - at_target + x, chosen


def _rows_and_targets(x: Array, target: Array) -> tuple[Array, Array]:
    rows = jnp.reshape(x, (-1, x.shape[-1])) if x.ndim else jnp.reshape(x, (1, 1))
    return rows, jnp.reshape(target, (rows.shape[0],))


@lowers(aten.multi_margin_loss.default, static=["p"])
def multi_margin_loss(
    x: Array, target: Array, p: Number = 1, margin: ArrayLike = 1, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    x, weight = operands(x, weight)
    rows, targets = _rows_and_targets(x, target)
    margins, chosen = _margins(rows, targets, margin)
    losses = jnp.where(chosen | (margins <= 0), 0, margins if p == 1 else margins * margins)
    losses = jnp.sum(losses, 1) / rows.shape[1]
    if weight is not None:
        losses = losses * _class_weights(weight, rows, chosen)
    return reduced(jnp.reshape(losses, target.shape), reduction)


@lowers(aten.multi_margin_loss_backward.default, static=["p"])
def multi_margin_loss_backward(
    grad: Array,
    x: Array,
    target: Array,
    p: Number,
    margin: ArrayLike,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    grad, x, weight = operands(grad, x, weight)
    rows, targets = _rows_and_targets(x, target)
    margins, chosen = _margins(rows, targets, margin)
    slopes = jnp.where(chosen | (margins <= 0), 0, 1 if p == 1 else 2 * margins) / rows.shape[1]
    if weight is not None:
        slopes = slopes * _class_weights(weight, rows, chosen)[:, None]
    slopes = jnp.where(chosen, -jnp.sum(slopes, 1, keepdims=True), slopes)
    share = grad_share(grad, rows.shape[0], reduction)
    return jnp.reshape(slopes * (share[..., None] if reduction == NONE else share), x.shape)


def _listed(target: Array) -> Array:
    """Where a row of multilabel targets is still before its first negative entry."""
    return jnp.cumprod(target >= 0, axis=1, dtype=jnp.int32) != 0


def _pair_margins(rows: Array, targets: Array, is_target: Array) -> tuple[Array, Array]:
    """Violations ``1 - x[target] + x[other]`` (row, place in the list, class), where positive and else 0, and the choices."""
    chosen = _chosen(targets, rows.shape[1], 2) & _listed(targets)[:, :, None]
    at_target = jnp.sum(jnp.where(chosen, rows[:, None, :], 0), 2, keepdims=True)
    counts = _listed(targets)[:, :, None] & ~is_target[:, None, :]
    return jnp.where(counts, jnp.maximum(1 - at_target + rows[:, None, :], 0), 0), chosen


@lowers(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss(x: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    x = opmath(x)
    rows = jnp.reshape(x, (-1, x.shape[-1] if x.ndim else 1))
    targets = jnp.reshape(target, rows.shape)
    is_target = jnp.any(_chosen(targets, rows.shape[1], 2) & _listed(targets)[:, :, None], 1)
    margins, _ = _pair_margins(rows, targets, is_target)
    losses = jnp.reshape(jnp.sum(margins, (1, 2)) / rows.shape[1], x.shape[:-1])
    return reduced(losses, reduction), jnp.reshape(is_target, target.shape).astype(x.dtype)


@lowers(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(grad: Array, x: Array, target: Array, reduction: int, is_target: Array) -> Array:
    grad, x = operands(grad, x)
    rows = jnp.reshape(x, (-1, x.shape[-1] if x.ndim else 1))
    targets = jnp.reshape(target, rows.shape)
    margins, chosen = _pair_margins(rows, targets, jnp.reshape(is_target, rows.shape) != 0)
    violated = (margins > 0).astype(rows.dtype)
    pulled = jnp.sum(jnp.where(chosen, jnp.sum(violated, 2, keepdims=True), 0), 1)
    slopes = (jnp.sum(violated, 1) - pulled) / rows.shape[1]
    share = grad_share(grad, rows.shape[0], reduction)
    return jnp.reshape(slopes * (jnp.reshape(share, (-1, 1)) if reduction == NONE else share), x.shape)
