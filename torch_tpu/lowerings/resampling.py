"""Resizing of images and signals: nearest, linear and cubic interpolation, with and without antialiasing, and their gradients.

Each method is a rule for the taps of one axis; an op applies it to its axes one after the other, and its gradient applies
the transposed taps. The rules follow PyTorch's CPU kernels, including the width of float that positions are computed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .promotion import opmath
from .separable import Taps, apply_taps
from .table import lowers

aten = torch.ops.aten

# (inputs, outputs, align_corners, scale or None, float type of positions) -> taps of one axis
TapRule = Callable[[int, int, bool, float | None, type], Taps]


def source_scale(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> np.floating:
    """How far a step of one output goes in the input; a scale that the user gave wins over the ratio of sizes."""
    if align_corners:
        return real(inputs - 1) / real(outputs - 1) if outputs > 1 else real(0)
    if scale is not None and scale > 0:
        return real(1.0 / scale)
    return real(inputs) / real(outputs)


def source_positions(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> np.ndarray:
    step = source_scale(inputs, outputs, align_corners, scale, real)
    position: np.ndarray = np.arange(outputs).astype(real)
    return step * position if align_corners else step * (position + real(0.5)) - real(0.5)


def nearest_taps(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> Taps:
    step = source_scale(inputs, outputs, False, scale, real)
    return _single_tap(np.arange(outputs).astype(real) * step, inputs)


def nearest_exact_taps(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> Taps:
    step = source_scale(inputs, outputs, False, scale, real)
    return _single_tap(((np.arange(outputs) + 0.5) * np.float64(step) - 0.5).astype(real) + real(0.5), inputs)


# The gradients of PyTorch's nearest methods place an output by another expression than the methods, always in float32; the two
# differ where rounding decides between two inputs.


def nearest_gradient_taps(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> Taps:
    return nearest_taps(inputs, outputs, align_corners, scale, np.float32)


def nearest_exact_gradient_taps(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> Taps:
    step = source_scale(inputs, outputs, False, scale, np.float32)
    return _single_tap(((np.arange(outputs) + 0.5) * np.float64(step)).astype(np.float32), inputs)


def _single_tap(position: np.ndarray, inputs: int) -> Taps:
    return Taps.of(np.floor(position).astype(np.int64)[:, None], np.ones((len(position), 1), position.dtype), inputs)


def _index_and_fraction(position: np.ndarray, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    index = np.minimum(np.floor(position).astype(np.int64), inputs - 1)
    return index, np.clip(position - index.astype(position.dtype), 0, 1)


def linear_taps(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> Taps:
    position = np.maximum(source_positions(inputs, outputs, align_corners, scale, real), real(0))
    index, fraction = _index_and_fraction(position, inputs)
    return Taps.of(np.stack([index, index + 1], axis=1), np.stack([1 - fraction, fraction], axis=1), inputs)


def cubic_convolution(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic kernel with parameter ``a``."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(distance.dtype)


def triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(distance), 0)


def lanczos(distance: np.ndarray) -> np.ndarray:
    """The sinc function under the window of a three times wider one."""
    return np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0)


def cubic_taps(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> Taps:
    index, fraction = _index_and_fraction(source_positions(inputs, outputs, align_corners, scale, real), inputs)
    offset = np.arange(-1, 3)
    weight = cubic_convolution(offset.astype(real) - fraction[:, None], -0.75)
    return Taps.of(index[:, None] + offset, weight, inputs)


def antialiased(kernel: Callable[[np.ndarray], np.ndarray], width: int) -> TapRule:
    """The rule that stretches ``kernel``, ``width`` inputs wide, over all the inputs that an output stands for."""

    def taps(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> Taps:
        step = source_scale(inputs, outputs, align_corners, scale, real)
        stretch = max(step, real(1))
        support = real(width) * real(0.5) * stretch
        center = step * (np.arange(outputs).astype(real) + real(0.5))
        first = np.maximum((center - support + real(0.5)).astype(np.int64), 0)
        last = np.minimum((center + support + real(0.5)).astype(np.int64), inputs)
        count = np.clip(last - first, 0, int(np.ceil(support)) * 2 + 1)
        offset = np.arange(max(int(count.max(initial=0)), 1))
        valid = offset < count[:, None]
        index = first[:, None] + offset
        weight: np.ndarray = np.where(valid, kernel((index - center[:, None] + real(0.5)) / stretch), 0).astype(real)
        total = weight.sum(axis=1, keepdims=True)
        return Taps.of(index, np.where(total != 0, weight / np.where(total == 0, 1, total), weight), inputs, valid)

    return taps


def keeping_equal_sizes(rule: TapRule) -> TapRule:
    """``rule``, except that an axis that keeps its size is left alone, whatever scale came with it."""

    def taps(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> Taps:
        if inputs == outputs:
            return _single_tap(np.arange(outputs).astype(real), inputs)
        return rule(inputs, outputs, align_corners, scale, real)

    return taps


def position_type(dtype: np.dtype) -> type:
    return np.float64 if dtype == np.float64 else np.float32


def resize(x: Array, rule: TapRule, sizes: Sequence[int], align_corners: bool, scales: Sequence[float | None]) -> Array:
    for axis in reversed(range(2, x.ndim)):
        taps = rule(x.shape[axis], sizes[axis - 2], align_corners, scales[axis - 2], position_type(x.dtype))
        x = apply_taps(x, axis, taps)
    return x


def resize_gradient(
    grad: Array, rule: TapRule, input_sizes: Sequence[int], align_corners: bool, scales: Sequence[float | None]
) -> Array:
    for axis in range(2, grad.ndim):
        taps = rule(input_sizes[axis], grad.shape[axis], align_corners, scales[axis - 2], position_type(grad.dtype))
        grad = apply_taps(grad, axis, taps.transposed())
    return grad


def _lower_nearest(name: str, rule: TapRule, gradient_rule: TapRule) -> None:
    @lowers(getattr(aten, name).default)
    def forward(x: Array, output_size: Sequence[int], *scales: float | None) -> Array:
        return resize(x, rule, output_size, False, scales)

    @lowers(getattr(aten, name + "_backward").default)
    def backward(grad: Array, output_size: Sequence[int], input_size: Sequence[int], *scales: float | None) -> Array:
        return resize_gradient(opmath(grad), gradient_rule, input_size, False, scales)


def _lower_interpolating(name: str, rule: TapRule, gradient_rule: TapRule) -> None:
    @lowers(getattr(aten, name).default)
    def forward(x: Array, output_size: Sequence[int], align_corners: bool, *scales: float | None) -> Array:
        if x.dtype == np.uint8:
            return resize_bytes(x, rule, output_size, align_corners, scales)
        return resize(opmath(x), rule, output_size, align_corners, scales)

    @lowers(getattr(aten, name + "_backward").default)
    def backward(
        grad: Array, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool, *scales: float | None
    ) -> Array:
        return resize_gradient(opmath(grad), gradient_rule, input_size, align_corners, scales)


def resize_bytes(x: Array, rule: TapRule, sizes: Sequence[int], align_corners: bool, scales: Sequence[float | None]) -> Array:
    """Resize 8-bit images in PyTorch's fixed-point arithmetic: 16-bit weights, and bytes again after each axis."""
    for axis in reversed(range(2, x.ndim)):
        if x.shape[axis] == sizes[axis - 2]:
            continue
        taps = _merged(rule(x.shape[axis], sizes[axis - 2], align_corners, scales[axis - 2], np.float64))
        fixed, bits = _fixed_point(taps)
        total = apply_taps(x.astype(np.int32), axis, fixed)
        x = jnp.clip((total + (1 << (bits - 1))) >> bits, 0, 255).astype(np.uint8)
    return x


def _merged(taps: Taps) -> Taps:
    """``taps`` with the weights of one input added up, as they are before rounding them."""
    weight, valid = taps.weight.copy(), taps.valid.copy()
    for t in range(1, weight.shape[1]):
        same = valid[:, t] & valid[:, t - 1] & (taps.index[:, t] == taps.index[:, t - 1])
        weight[same, t] += weight[same, t - 1]
        valid[same, t - 1] = False
    return Taps(taps.index, weight, valid, taps.inputs)


def _fixed_point(taps: Taps) -> tuple[Taps, int]:
    """``taps`` with 16-bit integer weights, and how many bits of them stand after the point."""
    largest = float(np.max(taps.weight, where=taps.valid, initial=0.0))
    bits = next((b for b in range(22) if int(0.5 + largest * (1 << (b + 1))) >= 1 << 15), 22)
    scaled = taps.weight * (1 << bits)
    weight = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32)
    return Taps(taps.index, weight, taps.valid, taps.inputs), bits


for _rank in (1, 2, 3):
    _lower_nearest(f"upsample_nearest{_rank}d", nearest_taps, nearest_gradient_taps)
    _lower_nearest(f"_upsample_nearest_exact{_rank}d", nearest_exact_taps, nearest_exact_gradient_taps)

_linear = keeping_equal_sizes(linear_taps)
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _lower_interpolating(_name, _linear, _linear)
_lower_interpolating("upsample_bicubic2d", cubic_taps, cubic_taps)
for _name, _rule in {
    "_upsample_bilinear2d_aa": antialiased(triangle, 2),
    "_upsample_bicubic2d_aa": antialiased(lambda distance: cubic_convolution(distance, -0.5), 4),
    "_upsample_lanczos2d_aa": antialiased(lanczos, 6),
}.items():
    _lower_interpolating(_name, keeping_equal_sizes(_rule), _rule)
