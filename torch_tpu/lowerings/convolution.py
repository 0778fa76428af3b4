"""Convolutions of one to three spatial dimensions, transposed ones, and their gradients.

Everything is one ``conv_general_dilated``; the gradients are its linear transposes, which are again the forms that XLA knows
(an input-dilated convolution for the input, a batch-for-features one for the weight).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .precision import matmul_precision
from .promotion import opmath
from .table import lowers

aten = torch.ops.aten


@dataclass(frozen=True)
class Geometry:
    """The static arguments of a convolution, with one entry for each spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls,
        rank: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Geometry:
        """Like PyTorch, a single entry stands for all ``rank`` spatial dimensions."""

        def spread(values: Sequence[int]) -> tuple[int, ...]:
            return tuple(values) * rank if len(values) == 1 else tuple(values)

        return cls(spread(stride), spread(padding), spread(dilation), transposed, spread(output_padding), groups)

    def output_shape(self, x: Array, weight: Array) -> tuple[int, ...]:
        sizes = zip(x.shape[2:], weight.shape[2:], self.stride, self.padding, self.dilation, self.output_padding)
        if self.transposed:
            spatial = [(n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, k, s, p, d, extra in sizes]
            return (x.shape[0], weight.shape[1] * self.groups, *spatial)
        spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes]
        return (x.shape[0], weight.shape[0], *spatial)


def convolve(x: Array, weight: Array, geometry: Geometry, accumulate: np.dtype | None = None) -> Array:
    """The convolution without bias; x (N, C, *spatial), weight as PyTorch lays it out for the direction of ``geometry``."""
    stride, spatial_padding, dilation = geometry.stride, geometry.padding, geometry.dilation
    padding = [(p, p) for p in spatial_padding]
    input_dilation = (1,) * len(stride)
    if geometry.transposed:
        weight = _as_forward_weight(weight, geometry.groups)
        reach = [d * (k - 1) - p for k, d, p in zip(weight.shape[2:], dilation, spatial_padding)]
        padding = [(r, r + extra) for r, extra in zip(reach, geometry.output_padding)]
        stride, input_dilation = input_dilation, stride
    return lax.conv_general_dilated(
        x,
        weight,
        stride,
        padding,
        lhs_dilation=input_dilation,
        rhs_dilation=dilation,
        feature_group_count=geometry.groups,
        precision=matmul_precision(),
        preferred_element_type=accumulate,
    )


def _as_forward_weight(weight: Array, groups: int) -> Array:
    """(in, out / groups, *kernel) of a transposed convolution to (out, in / groups, *flipped kernel)."""
    inputs, outputs, *kernel = weight.shape
    weight = weight.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
    return jnp.flip(weight.reshape(groups * outputs, inputs // groups, *kernel), range(2, weight.ndim - 1))


def _is_degenerate(x: Array, weight: Array, output_shape: Sequence[int]) -> bool:
    return 0 in (x.size, weight.size, math.prod(output_shape))


def _widen_float16(x: Array) -> Array:
    # The matrix units multiply bfloat16 and accumulate in float32, but have no float16.
    return x.astype(np.float32) if x.dtype == np.float16 else x


@lowers(aten.convolution.default, aten.convolution_overrideable.default)
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    geometry = Geometry.of(x.ndim - 2, stride, padding, dilation, transposed, output_padding, groups)
    shape = geometry.output_shape(x, weight)
    accumulate = opmath(jnp.zeros((), x.dtype)).dtype
    if _is_degenerate(x, weight, shape):
        result = jnp.zeros(shape, accumulate)
    else:
        result = convolve(_widen_float16(x), _widen_float16(weight), geometry, accumulate)
    if bias is not None:
        result = result + bias.astype(accumulate).reshape(-1, *(1,) * (x.ndim - 2))
    return result


def _gradients(
    grad: Array, x: Array, weight: Array, geometry: Geometry, mask: Sequence[bool]
) -> tuple[Array | None, Array | None, Array | None]:
    wants_input, wants_weight, wants_bias = mask
    degenerate = _is_degenerate(x, weight, grad.shape)

    def transpose(of: Callable[[Array], Array], operand: Array) -> Array:
        if degenerate:
            return jnp.zeros_like(operand)
        # PyTorch's gradients are conjugate transposes; a convolution is conjugated by conjugating all that goes in.
        (result,) = jax.linear_transpose(of, operand)(jnp.conj(_widen_float16(grad)))
        return jnp.conj(result)

    x, weight = _widen_float16(x), _widen_float16(weight)
    bias_axes = [axis for axis in range(grad.ndim) if axis != 1]
    return (
        transpose(lambda x: convolve(x, weight, geometry), x) if wants_input else None,
        transpose(lambda weight: convolve(x, weight, geometry), weight) if wants_weight else None,
        jnp.sum(opmath(grad), axis=bias_axes) if wants_bias else None,
    )


@lowers(aten.convolution_backward.default)
def convolution_backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    geometry = Geometry.of(x.ndim - 2, stride, padding, dilation, transposed, output_padding, groups)
    return _gradients(grad, x, weight, geometry, output_mask)


@lowers(aten.convolution_backward_overrideable.default)
def convolution_backward_overrideable(
    grad: Array,
    x: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    geometry = Geometry.of(x.ndim - 2, stride, padding, dilation, transposed, output_padding, groups)
    return _gradients(grad, x, weight, geometry, output_mask)
