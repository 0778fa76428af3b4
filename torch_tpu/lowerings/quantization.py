"""Fake quantization: rounding to the grid of a quantized dtype while staying in floats, with its gradients and its observer.

Everything is computed in floats, so numbers beyond the int64 range saturate; NaN lands on the lowest level of the grid.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

# Scales below this one are raised to it, lest their reciprocal overflow a narrow float.
SMALLEST_SCALE = 6.1e-5


def _levels(x: Array, scale: Array, zero_point: Array) -> Array:
    """The level of the grid next to ``x``, unbounded."""
    scaled = x * (1 / scale)
    if jnp.issubdtype(zero_point.dtype, jnp.floating):
        return jnp.round(scaled + zero_point)
    return jnp.round(scaled) + zero_point


def _on_grid(x: Array, scale: Array, zero_point: Array, low: int, high: int) -> tuple[Array, Array]:
    """``x`` rounded to the grid, and where it lay in the grid's range."""
    levels = _levels(opmath(x), scale, zero_point)
    inside = (levels >= low) & (levels <= high)
    bounded = jnp.where(jnp.isnan(levels), low, jnp.clip(levels, low, high))
    return (bounded - zero_point) * scale, inside


def _along(values: Array, axis: int, ndim: int) -> Array:
    """One value a channel, in the shape that broadcasts along ``axis``."""
    return values.reshape([-1 if d == axis % max(ndim, 1) else 1 for d in range(ndim)])


def _rounded_zero_point(zero_point: Array, low: int, high: int) -> Array:
    """A learned zero point as the level that it stands for."""
    return jnp.clip(jnp.round(zero_point), low, high).astype(np.int32)


@lowers(aten.fake_quantize_per_tensor_affine_cachemask.default, runtime=("scale",))
def fake_quantize(x: Array, scale: float | Array, zero_point: int, low: int, high: int) -> tuple[Array, Array]:
    return _on_grid(x, jnp.asarray(scale).astype(np.float32), jnp.asarray(zero_point, np.int32), low, high)


@lowers(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def fake_quantize_if_enabled(
    x: Array, scale: Array, zero_point: Array, enabled: Array, low: int, high: int
) -> tuple[Array, Array]:
    out, inside = _on_grid(x, scale.reshape(()), zero_point.reshape(()).astype(np.int32), low, high)
    on = enabled.reshape(()) != 0
    return jnp.where(on, out.astype(x.dtype), x), inside | ~on


@lowers(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_channels(x: Array, scale: Array, zero_point: Array, axis: int, low: int, high: int) -> tuple[Array, Array]:
    return _on_grid(x, _along(scale, axis, x.ndim), _along(zero_point, axis, x.ndim), low, high)


@lowers(aten._fake_quantize_learnable_per_tensor_affine.default)
def learnable(x: Array, scale: Array, zero_point: Array, low: int, high: int, grad_factor: float = 1.0) -> Array:
    return _on_grid(x, scale.reshape(()), _rounded_zero_point(zero_point, low, high).reshape(()), low, high)[0]


@lowers(aten._fake_quantize_learnable_per_channel_affine.default)
def learnable_channels(
    x: Array, scale: Array, zero_point: Array, axis: int, low: int, high: int, grad_factor: float = 1.0
) -> Array:
    return fake_quantize_channels(x, scale, _rounded_zero_point(zero_point, low, high), axis, low, high)[0]


def _learnable_gradients(
    grad: Array, x: Array, scale: Array, zero_point: Array, low: int, high: int, grad_factor: float
) -> tuple[Array, Array, Array]:
    """Elementwise gradients of x, scale and zero point: those of the rounded value within the grid, of its end beyond."""
    grad, x = opmath(grad), opmath(x)
    levels = _levels(x, scale, zero_point)
    inside = (levels >= low) & (levels <= high)
    end = jnp.where(levels < low, low, high)
    to_scale = jnp.where(inside, ((levels - zero_point) * scale - x) / scale, end - zero_point)
    to_zero_point = jnp.where(inside, 0, -scale)
    return jnp.where(inside, grad, 0), grad * to_scale * grad_factor, grad * to_zero_point * grad_factor


@lowers(aten._fake_quantize_learnable_per_tensor_affine_backward.default)
def learnable_backward(
    grad: Array, x: Array, scale: Array, zero_point: Array, low: int, high: int, grad_factor: float = 1.0
) -> tuple[Array, Array, Array]:
    # Here, unlike everywhere else, PyTorch rounds the zero point by adding one half and truncating.
    level = jnp.trunc(jnp.clip(zero_point + 0.5, low, high)).astype(np.int32).reshape(())
    to_x, to_scale, to_zero_point = _learnable_gradients(grad, x, scale.reshape(()), level, low, high, grad_factor)
    return to_x, jnp.sum(to_scale).reshape(1), jnp.sum(to_zero_point).reshape(1)


@lowers(aten._fake_quantize_learnable_per_channel_affine_backward.default)
def learnable_channels_backward(
    grad: Array, x: Array, scale: Array, zero_point: Array, axis: int, low: int, high: int, grad_factor: float = 1.0
) -> tuple[Array, Array, Array]:
    level = _along(_rounded_zero_point(zero_point, low, high), axis, x.ndim)
    to_x, to_scale, to_zero_point = _learnable_gradients(grad, x, _along(scale, axis, x.ndim), level, low, high, grad_factor)
    others = tuple(d for d in range(x.ndim) if d != axis % x.ndim)
    return to_x, jnp.sum(to_scale, axis=others), jnp.sum(to_zero_point, axis=others)


def _choose_grid(smallest: Array, largest: Array, low: int, high: int, symmetric: bool) -> tuple[Array, Array]:
    """Scale and zero point of the grid that covers [smallest, largest] and has 0 exactly (PyTorch's quant_utils.h)."""
    smallest, largest = smallest.astype(np.float64), largest.astype(np.float64)
    both_signs = (smallest < 0) & (largest > 0)
    if symmetric:
        below, above = -((high - low) // 2 + 1), (high - low) // 2
        widest = jnp.maximum(jnp.abs(smallest / below), jnp.abs(largest / above))
        smallest = jnp.where(both_signs, widest * below, smallest)
        largest = jnp.where(both_signs, widest * above, largest)
    smallest, largest = jnp.minimum(smallest, 0), jnp.maximum(largest, 0)
    natural = ((largest - smallest) / (high - low)).astype(np.float32).astype(np.float64)
    natural = jnp.where((natural == 0) | jnp.isinf(1 / natural), 0.1, natural)
    scale = jnp.maximum(natural, np.float64(np.float32(SMALLEST_SCALE)))
    amplified = scale / natural
    smallest, largest = smallest * amplified / scale, largest * amplified / scale
    # Of the two ends of the range, the one with the smaller rounding error settles the zero point.
    from_low_end = abs(low) + jnp.abs(smallest) < abs(high) + jnp.abs(largest)
    zero_point = jnp.where(from_low_end, low - smallest, high - largest)
    if symmetric:
        zero_point = jnp.where(both_signs, (low + high) / 2, zero_point)
    return scale, jnp.round(jnp.clip(zero_point, low, high))


@lowers(aten._fused_moving_avg_obs_fq_helper_functional.default)
def observe_and_fake_quantize(
    x: Array,
    observer_on: Array,
    fake_quant_on: Array,
    running_min: Array,
    running_max: Array,
    scale: Array,
    zero_point: Array,
    averaging_const: float,
    low: int,
    high: int,
    channel_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Array, ...]:
    """One step of quantization-aware training: follow the range of ``x``, choose the grid that covers it, round to it."""
    axes = tuple(d for d in range(x.ndim) if not per_row_fake_quant or d != channel_axis % x.ndim)
    wide, observing, quantizing = opmath(x), observer_on.reshape(()) != 0, fake_quant_on.reshape(()) != 0

    def followed(running: Array, seen: Array) -> Array:
        seen = seen.reshape(running.shape).astype(running.dtype)
        moved = jnp.where(jnp.isinf(running), seen, running + averaging_const * (seen - running))
        return jnp.where(observing, moved, running)

    running_min = followed(running_min, jnp.min(wide, axis=axes))
    running_max = followed(running_max, jnp.max(wide, axis=axes))
    new_scale, new_zero_point = _choose_grid(running_min, running_max, low, high, symmetric_quant)
    scale = jnp.where(quantizing, new_scale.reshape(scale.shape).astype(scale.dtype), scale)
    zero_point = jnp.where(quantizing, new_zero_point.reshape(zero_point.shape).astype(zero_point.dtype), zero_point)
    if per_row_fake_quant:
        out, inside = fake_quantize_channels(x, scale, zero_point, channel_axis, low, high)
    else:
        out, inside = _on_grid(x, scale.reshape(()), zero_point.reshape(()), low, high)
    out, inside = jnp.where(quantizing, out.astype(x.dtype), x), inside | ~quantizing
    return out, inside, running_min, running_max, scale, zero_point
