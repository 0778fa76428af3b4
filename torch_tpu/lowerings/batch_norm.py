"""Batch norm: its forms for training and inference, the gradients, and the pieces that SyncBatchNorm puts together.

Running statistics are written arguments: their new values follow the results, and are None where the argument is. Where
inference needs no saved statistics, the running mean and its reciprocal deviation stand in for them, as PyTorch's meta
functions have it for every device but the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .promotion import opmath
from .reductions import Axes, extent
from .table import lowers

aten = torch.ops.aten

Pair = tuple[Array, Array]
Optional3 = tuple[Array | None, Array | None, Array | None]
RUNNING = ("running_mean", "running_var")


def _all_but_channels(x: Array) -> Axes:
    return tuple(a for a in range(x.ndim) if a != 1)


def _per_channel(statistic: Array, x: Array) -> Array:
    """A (channels,) array shaped to broadcast against ``x``, (batch, channels, …)."""
    return opmath(statistic).reshape((-1,) + (1,) * (x.ndim - 2))


def _batch_statistics(x: Array) -> Pair:
    """The mean and the biased variance of each channel."""
    over = _all_but_channels(x)
    x = opmath(x)
    mean = jnp.mean(x, axis=over)
    centred = x - _per_channel(mean, x)
    return mean, jnp.mean(centred * centred, axis=over)


def _elementwise(x: Array, weight: Array | None, bias: Array | None, mean: Array, invstd: Array) -> Array:
    result = (opmath(x) - _per_channel(mean, x)) * _per_channel(invstd, x)
    if weight is not None:
        result = result * _per_channel(weight, x)
    return result if bias is None else result + _per_channel(bias, x)


def _drift(running: Array | None, batch: Array, momentum: float) -> Array | None:
    """``running`` moved towards ``batch`` by the fraction ``momentum``."""
    if running is None:
        return None
    batch = batch.astype(opmath(running).dtype)
    fraction = jnp.asarray(momentum, batch.dtype)
    return (fraction * batch + (1 - fraction) * opmath(running)).astype(running.dtype)


def _unbiased(variance: Array, count: int) -> Array:
    return variance * count / (count - 1) if count > 1 else jnp.full_like(variance, np.nan)


def _train(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    mean, variance = _batch_statistics(x)
    invstd = lax.rsqrt(variance + eps)
    return (
        _elementwise(x, weight, bias, mean, invstd),
        mean,
        invstd,
        _drift(running_mean, mean, momentum),
        _drift(running_var, _unbiased(variance, extent(x, _all_but_channels(x))), momentum),
    )


def _infer(
    x: Array, weight: Array | None, bias: Array | None, running_mean: Array, running_var: Array, eps: float
) -> tuple[Array, Array, Array]:
    mean, invstd = opmath(running_mean), lax.rsqrt(opmath(running_var) + eps)
    return _elementwise(x, weight, bias, mean, invstd), mean, invstd


def _no_reserve() -> Array:
    """What cuDNN keeps from forward to backward; nothing here."""
    return jnp.zeros(0, np.uint8)


@lowers(aten.native_batch_norm.default, aten._native_batch_norm_legit.default, runtime=("momentum",), writes=RUNNING)
@lowers(aten._native_batch_norm_legit_functional.default, runtime=("momentum",))
def batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    if training:
        return _train(x, weight, bias, running_mean, running_var, momentum, eps)
    assert running_mean is not None and running_var is not None, "inference needs running statistics"
    return *_infer(x, weight, bias, running_mean, running_var, eps), running_mean, running_var


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    # With no running statistics, inference too normalises by the batch's own.
    return _train(x, weight, bias, None, None, momentum, eps)[:3]


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    return _infer(x, weight, bias, running_mean, running_var, eps)


@lowers(aten._batch_norm_no_update.default)
def batch_norm_no_update(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array]:
    return *_infer(x, weight, bias, running_mean, running_var, eps), _no_reserve()


@lowers(aten._batch_norm_with_update.default, aten._batch_norm_with_update_functional.default, runtime=("momentum",))
def batch_norm_with_update(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array, Array | None, Array | None]:
    result, mean, invstd, new_mean, new_var = _train(x, weight, bias, running_mean, running_var, momentum, eps)
    return result, mean, invstd, _no_reserve(), new_mean, new_var


# Gradients


def _reduced_gradients(grad: Array, x: Array, mean: Array) -> Pair:
    """For each channel, the sums of ``grad`` and of ``grad * (x - mean)``."""
    over = _all_but_channels(x)
    grad = opmath(grad)
    return jnp.sum(grad, axis=over), jnp.sum(grad * (opmath(x) - _per_channel(mean, x)), axis=over)


def _input_gradient(
    grad: Array, x: Array, mean: Array, invstd: Array, weight: Array | None, mean_dy: Array, mean_dy_xmu: Array
) -> Array:
    """The gradient of the input, given the means over the batch of ``grad`` and of ``grad * (x - mean)``."""
    scale = invstd if weight is None else invstd * opmath(weight)
    projection = (opmath(x) - _per_channel(mean, x)) * _per_channel(mean_dy_xmu * invstd * invstd, x)
    return (opmath(grad) - _per_channel(mean_dy, x) - projection) * _per_channel(scale, x)


@lowers(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Optional3:
    if train:
        assert save_mean is not None and save_invstd is not None, "training saves its statistics"
        mean, invstd = opmath(save_mean), opmath(save_invstd)
    else:
        assert running_mean is not None and running_var is not None, "inference needs running statistics"
        mean, invstd = opmath(running_mean), lax.rsqrt(opmath(running_var) + eps)
    sum_dy, sum_dy_xmu = _reduced_gradients(grad, x, mean)
    grad_input = None
    if output_mask[0] and train:
        count = extent(x, _all_but_channels(x))
        grad_input = _input_gradient(grad, x, mean, invstd, weight, sum_dy / count, sum_dy_xmu / count)
    elif output_mask[0]:
        scale = invstd if weight is None else invstd * opmath(weight)
        grad_input = opmath(grad) * _per_channel(scale, x)
    return grad_input, sum_dy_xmu * invstd if output_mask[1] else None, sum_dy if output_mask[2] else None


@lowers(aten.batch_norm_backward.default)
def batch_norm_backward_with_reserve(
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_var: Array | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Array,
) -> Optional3:
    # ``save_var`` is the reciprocal deviation that the forward pass returned under that name.
    return batch_norm_backward(grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask)


# The pieces of SyncBatchNorm: statistics of a part of the batch, and what to do with those of all parts


@lowers(aten.batch_norm_update_stats.default, runtime=("momentum",), writes=RUNNING)
def batch_norm_update_stats(
    x: Array, running_mean: Array | None, running_var: Array | None, momentum: float
) -> tuple[Array, Array, Array | None, Array | None]:
    mean, variance = _batch_statistics(x)
    unbiased = _unbiased(variance, extent(x, _all_but_channels(x)))
    return mean, variance, _drift(running_mean, mean, momentum), _drift(running_var, unbiased, momentum)


@lowers(aten.batch_norm_stats.default)
def batch_norm_stats(x: Array, eps: float) -> Pair:
    mean, variance = _batch_statistics(x)
    return mean, lax.rsqrt(variance + eps)


@lowers(aten.batch_norm_elemt.default)
def batch_norm_elemt(x: Array, weight: Array | None, bias: Array | None, mean: Array, invstd: Array, eps: float) -> Array:
    return _elementwise(x, weight, bias, mean, invstd).astype(x.dtype)


@lowers(aten.batch_norm_gather_stats_with_counts.default, runtime=("momentum",), writes=RUNNING)
def batch_norm_gather_stats_with_counts(
    x: Array,
    mean: Array,
    invstd: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: float,
    eps: float,
    counts: Array,
) -> tuple[Array, Array, Array | None, Array | None]:
    """The statistics of the whole out of those of its parts: ``mean`` and ``invstd`` (parts, channels), ``counts`` (parts,)."""
    mean, invstd = opmath(mean), opmath(invstd)
    counts = counts.astype(mean.dtype).reshape(-1, 1)
    total = jnp.sum(counts)
    overall = jnp.sum(mean * counts, axis=0) / total
    spread = jnp.sum((1 / (invstd * invstd) - eps + (mean - overall) ** 2) * counts, axis=0)
    return (
        overall,
        lax.rsqrt(spread / total + eps),
        _drift(running_mean, overall, momentum),
        _drift(running_var, spread / (total - 1), momentum),
    )


@lowers(aten.batch_norm_gather_stats.default, runtime=("momentum",), writes=RUNNING)
def batch_norm_gather_stats(
    x: Array,
    mean: Array,
    invstd: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Array, Array, Array | None, Array | None]:
    counts = jnp.full(mean.shape[0], count, np.int32)
    return batch_norm_gather_stats_with_counts(x, mean, invstd, running_mean, running_var, momentum, eps, counts)


@lowers(aten.batch_norm_backward_reduce.default)
def batch_norm_backward_reduce(
    grad: Array,
    x: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Array | None, Array | None, Array | None, Array | None]:
    sum_dy, sum_dy_xmu = _reduced_gradients(grad, x, mean)
    dtype = x.dtype if weight is None else weight.dtype
    return (
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        (sum_dy_xmu * opmath(invstd)).astype(dtype) if weight_g else None,
        sum_dy.astype(dtype) if bias_g else None,
    )


@lowers(aten.batch_norm_backward_elemt.default)
def batch_norm_backward_elemt(
    grad: Array,
    x: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None,
    sum_dy: Array,
    sum_dy_xmu: Array,
    count: Array,
) -> Array:
    """The gradient of this part's input; ``count`` (parts,) holds how many elements a channel has in each part."""
    total = jnp.sum(count).astype(opmath(sum_dy).dtype)
    means = opmath(sum_dy) / total, opmath(sum_dy_xmu) / total
    return _input_gradient(grad, x, opmath(mean), opmath(invstd), weight, *means).astype(x.dtype)
