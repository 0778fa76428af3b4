"""Putting tensors together and rearranging their elements: concatenation, repetition, reversal, rotation, triangles, shuffles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .dtypes import numpy_dtype, torch_dtype
from .table import lowers
from .views import wrap

aten = torch.ops.aten


def joined_dtype(tensors: Sequence[Array]) -> np.dtype:
    """The dtype of a concatenation: all operands count alike, whatever their number of dimensions."""
    dtype = torch_dtype(tensors[0].dtype)
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, torch_dtype(x.dtype))
    return numpy_dtype(dtype)


@lowers(aten.cat.default)
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    dtype = joined_dtype(tensors)
    # An empty 1-d tensor joins anything: PyTorch keeps this from the days when it had no other empty tensors.
    kept = [x for x in tensors if x.shape != (0,)] or [tensors[0]]
    return lax.concatenate([x.astype(dtype) for x in kept], wrap(dim, kept[0].ndim))


@lowers(aten.stack.default, aten._stack.default)
def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    dtype = joined_dtype(tensors)
    return jnp.stack([x.astype(dtype) for x in tensors], axis=dim % (tensors[0].ndim + 1))


@lowers(aten._chunk_cat.default)
def chunk_cat(tensors: Sequence[Array], dim: int, num_chunks: int) -> Array:
    dim = wrap(dim, tensors[0].ndim)
    dtype = joined_dtype(tensors)

    def chunked(x: Array) -> Array:
        padding = [(0, 0)] * x.ndim
        padding[dim] = (0, -x.shape[dim] % num_chunks)
        # The chunks become a dimension; all that follows is flattened into one.
        flat = math.prod(x.shape[dim + 1 :]) * (x.shape[dim] + padding[dim][1]) // num_chunks
        return jnp.pad(x.astype(dtype), padding).reshape(*x.shape[:dim], num_chunks, flat)

    return lax.concatenate([chunked(x) for x in tensors], dim + 1)


@lowers(aten.block_diag.default)
def block_diag(tensors: Sequence[Array]) -> Array:
    dtype = joined_dtype(tensors)
    blocks = [jnp.atleast_2d(x).astype(dtype) for x in tensors]
    width, left, rows = sum(b.shape[1] for b in blocks), 0, []
    for block in blocks:
        rows.append(jnp.pad(block, ((0, 0), (left, width - left - block.shape[1]))))
        left += block.shape[1]
    return lax.concatenate(rows, 0)


@lowers(aten.repeat.default)
def repeat(x: Array, repeats: Sequence[int]) -> Array:
    return jnp.tile(x, tuple(repeats))


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Array, *, output_size: int | None = None) -> Array:
    if output_size is None:
        raise NotImplementedError(
            "tpu: repeat_interleave(): the size of the result depends on the values in repeats; pass output_size="
        )
    index = jnp.arange(repeats.shape[0], dtype=repeats.dtype)
    return jnp.repeat(index, repeats, total_repeat_length=output_size)


@lowers(aten.flip.default)
def flip(x: Array, dims: Sequence[int]) -> Array:
    return lax.rev(x, sorted({wrap(d, x.ndim) for d in dims})) if x.ndim else x


@lowers(aten.roll.default)
def roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    if not dims:
        return jnp.roll(x, shifts[0])
    return jnp.roll(x, tuple(shifts), tuple(dims)) if x.ndim else x


@lowers(aten.rot90.default)
def rot90(x: Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> Array:
    return jnp.rot90(x, k, (dims[0], dims[1]))


@lowers(aten.tril.default)
def tril(x: Array, diagonal: int = 0) -> Array:
    return jnp.tril(x, diagonal)


@lowers(aten.triu.default)
def triu(x: Array, diagonal: int = 0) -> Array:
    return jnp.triu(x, diagonal)


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(x: Array, factor: int) -> Array:
    *batch, channels, height, width = x.shape
    n = len(batch)
    x = x.reshape(*batch, channels // factor**2, factor, factor, height, width)
    x = lax.transpose(x, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return x.reshape(*batch, channels // factor**2, height * factor, width * factor)


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(x: Array, factor: int) -> Array:
    *batch, channels, height, width = x.shape
    n = len(batch)
    x = x.reshape(*batch, channels, height // factor, factor, width // factor, factor)
    x = lax.transpose(x, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return x.reshape(*batch, channels * factor**2, height // factor, width // factor)


@lowers(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def channel_shuffle(x: Array, groups: int) -> Array:
    batch, channels, *spatial = x.shape
    return jnp.swapaxes(x.reshape(batch, groups, channels // groups, *spatial), 1, 2).reshape(x.shape)
