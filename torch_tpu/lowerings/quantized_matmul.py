"""Matrix products of quantized operands: int8, int4 weights, and float8 with one scale a tensor, row or block.

int8 and float8 values are exact in bfloat16, so they are multiplied as such and accumulated in float32; scales that belong to
a whole row or column multiply the product instead of an operand.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .matmul import contract, grouped_mm, mm
from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

BLOCK = 128
# PyTorch's numbers of the ways to scale (torch.nn.functional.ScalingType).
PER_TENSOR, PER_ROW, PER_1X128, PER_128X128 = 0, 1, 4, 5


@lowers(aten._int_mm.default)
def int_mm(a: Array, b: Array) -> Array:
    return lax.dot_general(a, b, (([1], [0]), ((), ())), preferred_element_type=np.dtype(np.int32))


@lowers(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(x: Array, weight: Array, scales: Array) -> Array:
    return contract(x, weight.astype(x.dtype), ([1], [1])) * opmath(scales)


# The packed int4 layout is that of GPUs with m16n8k16 tensor cores, so that checkpoints packed there load here: a 4-d int32
# array [columns / 8, terms / (16 · inner tiles), 32, inner tiles / 2] whose words hold 8 of the 32 terms of two tiles.
# A word's nibbles, lowest first, are indexed by (odd term?, upper tile?, upper half of the tile?).


@lowers(aten._convert_weight_to_int4pack.default)
def convert_weight_to_int4pack(weight: Array, inner_tiles: int) -> Array:
    """Pack [columns, terms / 2] bytes, whose upper halves are the even terms."""
    columns, pairs = weight.shape
    weight = jnp.pad(weight, ((0, -columns % 8), (0, 0)))
    words = inner_tiles // 2
    tiles = weight.reshape(-1, 8, pairs // (16 * words), words, 2, 2, 4)
    by_lane = lax.transpose(tiles, [0, 2, 1, 6, 3, 4, 5]).astype(np.uint32)
    nibbles = jnp.stack([by_lane >> 4, by_lane & 15], axis=-3).reshape(*by_lane.shape[:-2], 8)
    packed = jnp.sum(nibbles << jnp.arange(0, 32, 4, dtype=np.uint32), axis=-1, dtype=np.uint32)
    return lax.bitcast_convert_type(packed, np.int32).reshape(tiles.shape[0], tiles.shape[2], 32, words)


def unpack_int4(packed: Array) -> Array:
    """The unsigned 4-bit values of a packed weight, [columns, terms]."""
    column_tiles, term_tiles, _, words = packed.shape
    bits = lax.bitcast_convert_type(packed, np.uint32)[..., None] >> jnp.arange(0, 32, 4, dtype=np.uint32)
    nibbles = (bits & 15).astype(np.int8).reshape(column_tiles, term_tiles, 8, 4, words, 2, 2, 2)
    in_order = lax.transpose(nibbles, [0, 2, 1, 4, 6, 7, 3, 5])
    return in_order.reshape(column_tiles * 8, term_tiles * words * 32)


def dequantize_int4(values: Array, group_size: int, scales_and_zeros: Array) -> Array:
    """Float32 weights out of 4-bit values [columns, terms] and their [groups of terms, columns, (scale, zero)]."""
    scales, zeros = (jnp.repeat(opmath(scales_and_zeros[..., i]).T, group_size, axis=1) for i in (0, 1))
    return (values.astype(scales.dtype) - 8) * scales + zeros


@lowers(aten._weight_int4pack_mm.default)
def weight_int4pack_mm(x: Array, packed: Array, group_size: int, scales_and_zeros: Array) -> Array:
    weight = dequantize_int4(unpack_int4(packed), group_size, scales_and_zeros)
    return contract(x, weight.astype(x.dtype), ([1], [1]))


def spread(scale: Array, shape: tuple[int, ...]) -> Array:
    """Scales that broadcast to ``shape``, out of one for each, one for every 128, or a single one along each dimension."""
    for d, size in enumerate(shape):
        if scale.shape[d] not in (1, size):
            scale = lax.slice_in_dim(jnp.repeat(scale, BLOCK, axis=d), 0, size, axis=d)
    return scale


def scaled_product(a: Array, b: Array, scale_a: Array, scale_b: Array) -> Array:
    """The product of float8 matrices, with scales along their dimensions: see ``spread``."""
    if scale_a.shape[1] == 1 and scale_b.shape[0] == 1:
        product = mm(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))
        return product * spread(scale_a, (a.shape[0], 1)) * spread(scale_b, (1, b.shape[1]))
    return mm(a.astype(np.float32) * spread(scale_a, a.shape), b.astype(np.float32) * spread(scale_b, b.shape))


def refuse_packed(*arrays: Array) -> None:
    if any(x.dtype != np.float32 and x.dtype.itemsize == 1 for x in arrays[2:]) or arrays[0].dtype == np.uint8:
        raise NotImplementedError(
            "tpu: _scaled_mm(): float4 operands and 8-bit scales are in a GPU's tile order; "
            "use float8 operands with float32 scales a tensor, a row or a block of 128"
        )


@lowers(aten._scaled_mm.default)
def scaled_mm(
    a: Array,
    b: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: np.dtype | None = None,
    use_fast_accum: bool = False,
) -> Array:
    refuse_packed(a, b, scale_a, scale_b)
    if scale_a.size == 1 and scale_b.size == 1:
        scale_a, scale_b = scale_a.reshape(1, 1), scale_b.reshape(1, 1)
    product = scaled_product(a, b, scale_a, scale_b)
    if bias is not None:
        product = product + opmath(bias)
    # As on CPU, only a result that was asked for in float8 is scaled.
    if scale_result is not None and out_dtype is not None and out_dtype.itemsize == 1:
        product = product / scale_result
    return saturated(product, out_dtype or a.dtype)


def saturated(x: Array, dtype: np.dtype) -> Array:
    """``x`` within the range of a float8 that has no infinity, where a cast would make NaN of what lies beyond."""
    if dtype.itemsize > 1 or not jnp.issubdtype(dtype, jnp.floating) or np.isinf(np.float32(np.inf).astype(dtype)):
        return x
    most = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -most, most)


@lowers(aten._scaled_mm_v2.default)
def scaled_mm_v2(
    a: Array,
    b: Array,
    scales_a: Sequence[Array],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scales_b: Sequence[Array],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Array | None,
    out_dtype: np.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Array:
    refuse_packed(a, b, *scales_a, *scales_b)
    blocks = -(-a.shape[1] // BLOCK)

    def left(scale: Array, recipe: int) -> Array:
        # Square blocks are listed by their place along the sum first, padded to a multiple of 4 of them.
        shapes = {PER_TENSOR: (1, 1), PER_ROW: (-1, 1), PER_1X128: scale.shape}
        return scale[:blocks].T if recipe == PER_128X128 else scale.reshape(shapes[recipe])

    product = scaled_product(a, b, left(scales_a[0], recipe_a[0]), left(scales_b[0], recipe_b[0]).T)
    product = product if bias is None else product + opmath(bias)
    return saturated(product, out_dtype or a.dtype)


@lowers(aten._scaled_grouped_mm.default)
def scaled_grouped_mm(
    a: Array,
    b: Array,
    scale_a: Array,
    scale_b: Array,
    ends: Array | None = None,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: np.dtype | None = None,
    use_fast_accum: bool = False,
) -> Array:
    """``_grouped_mm`` of float8 matrices, with a scale a row of ``a`` and a column of ``b``, group by group."""
    refuse_packed(a, b, scale_a, scale_b)
    product = grouped_mm(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), ends).astype(np.float32)
    if ends is None or (a.ndim == 2 and b.ndim == 2):
        groups, rows, columns = product.shape
        return product * scale_a.reshape(groups, rows, 1) * scale_b.reshape(groups, 1, columns)
    place = jnp.arange(product.shape[0 if a.ndim == 2 else 1], dtype=ends.dtype)
    group = jnp.minimum(jnp.searchsorted(ends, place, side="right"), ends.shape[0] - 1)
    if a.ndim == 2:
        return product * scale_a[:, None] * jnp.take(scale_b, group, axis=0)
    return product * jnp.take(scale_a, group, axis=0).T * scale_b[None, :]
