"""Views as values: what reading through each view op gives, for traces where nothing is shared in memory.

Eager tensors get their views from geometry alone and never come here; compiled graphs and traced decompositions do. An array
stands for a contiguous tensor, so ``as_strided`` and ``view.dtype`` mean what they mean for a contiguous base.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

# Up to so many overlapping windows, slices that fuse beat one gather or scatter.
FEW_WINDOWS = 32


def wrap(dim: int, ndim: int) -> int:
    """``dim`` counted from the front; a 0-d array counts as having one dimension, as in PyTorch."""
    return dim % max(ndim, 1)


@lowers(
    aten.alias.default,
    aten.alias_copy.default,
    aten.detach.default,
    aten.detach_copy.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten._lazy_clone.default,
)
def same(x: Array) -> Array:
    return x


# Forward-mode differentiation is done above the lowerings: a dual tensor's value is its primal's.
@lowers(aten._fw_primal.default, aten._fw_primal_copy.default)
def forward_primal(x: Array, level: int) -> Array:
    return x


@lowers(aten._make_dual.default, aten._make_dual_copy.default)
def make_dual(primal: Array, tangent: Array, level: int) -> Array:
    return primal


@lowers(aten._conj.default, aten._conj_copy.default)
def conjugate_view(x: Array) -> Array:
    return jnp.conj(x)


@lowers(aten._neg_view.default, aten._neg_view_copy.default)
def negative_view(x: Array) -> Array:
    return -x


@lowers(aten.view.default, aten.view_copy.default, aten._unsafe_view.default)
def view(x: Array, sizes: Sequence[int]) -> Array:
    return jnp.reshape(x, tuple(sizes))


@lowers(aten._reshape_alias.default, aten._reshape_alias_copy.default)
def reshape_alias(x: Array, sizes: Sequence[int], strides: Sequence[int]) -> Array:
    # Only ever called with the strides that ``view`` would compute.
    return jnp.reshape(x, tuple(sizes))


@lowers(aten._reshape_copy.default)
def reshape_copy(x: Array, sizes: Sequence[int]) -> Array:
    return jnp.reshape(x, tuple(sizes))


@lowers(aten.permute.default, aten.permute_copy.default)
def permute(x: Array, dims: Sequence[int]) -> Array:
    return lax.transpose(x, [wrap(d, x.ndim) for d in dims])


@lowers(aten.transpose.int, aten.transpose_copy.int)
def transpose(x: Array, dim0: int, dim1: int) -> Array:
    return jnp.swapaxes(x, dim0, dim1) if x.ndim else x


@lowers(aten.t.default, aten.t_copy.default)
def t(x: Array) -> Array:
    return x.T


@lowers(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(x: Array, dim: int) -> Array:
    return lax.expand_dims(x, [dim % (x.ndim + 1)])


@lowers(aten.squeeze.default, aten.squeeze_copy.default)
def squeeze(x: Array) -> Array:
    return lax.squeeze(x, [d for d, n in enumerate(x.shape) if n == 1])


@lowers(aten.squeeze.dim, aten.squeeze_copy.dim)
def squeeze_dim(x: Array, dim: int) -> Array:
    return squeeze_dims(x, [dim])


@lowers(aten.squeeze.dims, aten.squeeze_copy.dims)
def squeeze_dims(x: Array, dims: Sequence[int]) -> Array:
    wrapped = {wrap(d, x.ndim) for d in dims}
    return lax.squeeze(x, [d for d in sorted(wrapped) if d < x.ndim and x.shape[d] == 1])


@lowers(aten.expand.default, aten.expand_copy.default)
def expand(x: Array, sizes: Sequence[int], *, implicit: bool = False) -> Array:
    # ``implicit`` only tells functorch who asked; it never changes the value.
    own = (1,) * (len(sizes) - x.ndim) + x.shape
    return jnp.broadcast_to(x, tuple(n if size == -1 else size for size, n in zip(sizes, own)))


@lowers(aten.select.int, aten.select_copy.int)
def select(x: Array, dim: int, index: int) -> Array:
    dim = wrap(dim, x.ndim)
    return lax.index_in_dim(x, index, dim, keepdims=False)


def slice_bounds(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """The first index and the number of indices of a slice over ``size`` elements, clamped as PyTorch does."""

    def clamp(bound: int) -> int:
        return min(max(bound + size if bound < 0 else bound, 0), size)

    first = clamp(start or 0)
    last = max(first, size if end is None else clamp(end))
    return first, -(-(last - first) // step)


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_dim(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    dim = wrap(dim, x.ndim)
    first, count = slice_bounds(x.shape[dim], start, end, step)
    last = first + (count - 1) * step + 1 if count else first
    return lax.slice_in_dim(x, first, last, step, dim)


@lowers(aten.narrow_copy.default)
def narrow(x: Array, dim: int, start: int, length: int) -> Array:
    dim = wrap(dim, x.ndim)
    first = start + x.shape[dim] if start < 0 else start
    return lax.slice_in_dim(x, first, first + length, axis=dim)


@lowers(
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split_with_sizes.default,
)
def split_with_sizes(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    return list(lax.split(x, list(sizes), wrap(dim, x.ndim)))


@lowers(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(x: Array, size: int, dim: int = 0) -> list[Array]:
    total = x.shape[wrap(dim, x.ndim)]
    if total == 0:
        return [x]
    return split_with_sizes(x, [min(size, total - first) for first in range(0, total, size)], dim)


@lowers(aten.unbind.int, aten.unbind_copy.int)
def unbind(x: Array, dim: int = 0) -> list[Array]:
    return [select(x, dim, i) for i in range(x.shape[wrap(dim, x.ndim)])]


def diagonal_geometry(rows: int, columns: int, offset: int) -> tuple[int, int, int]:
    """The first row, the first column and the length of the diagonal at ``offset`` of a matrix."""
    row, column = max(-offset, 0), max(offset, 0)
    return row, column, max(min(rows - row, columns - column), 0)


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    x = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    row, column, length = diagonal_geometry(x.shape[-2], x.shape[-1], offset)
    batch = x.shape[:-2]
    if length == 0:
        return jnp.zeros((*batch, 0), x.dtype)
    # The diagonal of a square matrix is every (length + 1)-th of its elements: a strided slice instead of a gather.
    square = x[..., row : row + length, column : column + length].reshape(*batch, length * length)
    return lax.slice_in_dim(square, 0, None, length + 1, axis=square.ndim - 1)


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(x: Array, dim: int, size: int, step: int) -> Array:
    if x.ndim == 0:
        return jnp.broadcast_to(x, (size,))
    dim = wrap(dim, x.ndim)
    count = (x.shape[dim] - size) // step + 1
    if size == 0:
        return jnp.zeros((*x.shape[:dim], count, *x.shape[dim + 1 :], 0), x.dtype)
    reach = (count - 1) * step + 1
    if size <= FEW_WINDOWS:
        return jnp.stack([lax.slice_in_dim(x, j, j + reach, step, dim) for j in range(size)], axis=-1)
    if count <= FEW_WINDOWS:
        windows = [jnp.moveaxis(lax.slice_in_dim(x, i * step, i * step + size, axis=dim), dim, -1) for i in range(count)]
        return jnp.stack(windows, axis=dim)
    index = jnp.arange(count, dtype=np.int32)[:, None] * step + jnp.arange(size, dtype=np.int32)
    return jnp.moveaxis(jnp.take(x, index, axis=dim, mode="clip"), dim + 1, -1)


@lowers(aten.unfold_backward.default)
def unfold_backward(grad: Array, sizes: Sequence[int], dim: int, size: int, step: int) -> Array:
    return adjoint(lambda x: unfold(x, dim, size, step), tuple(sizes))(opmath(grad))


def adjoint(linear: Callable[[Array], Array], shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """The backward of an op that only moves and adds elements: its linear transpose, for inputs of ``shape``."""

    def transposed(grad: Array) -> Array:
        return jax.linear_transpose(linear, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]

    return transposed


@lowers(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(x: Array) -> Array:
    return jnp.stack([x.real, x.imag], axis=-1)


@lowers(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(x: Array) -> Array:
    return lax.complex(x[..., 0], x[..., 1])


@lowers(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(x: Array, dtype: np.dtype) -> Array:
    if x.dtype == dtype:
        return x
    # XLA bitcasts neither complex numbers nor bools: those are pairs of floats, and bytes.
    if x.dtype.kind == "c":
        x = view_as_real(x).reshape(*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else view_as_real(x)
    if x.dtype.kind == "b":
        x = x.astype(np.uint8)
    if dtype.kind == "b":
        return _bitcast(x, np.dtype(np.uint8)) != 0
    if dtype.kind == "c":
        parts = _bitcast(x, np.dtype(f"f{dtype.itemsize // 2}"))
        pairs = parts.reshape(*parts.shape[:-1], parts.shape[-1] // 2, 2)
        return view_as_complex(pairs)
    return _bitcast(x, dtype)


def _bitcast(x: Array, dtype: np.dtype) -> Array:
    """Reinterpret the bytes of the last dimension; XLA keeps the ratio of widths as a dimension of its own."""
    wide, narrow_ = x.dtype.itemsize, dtype.itemsize
    if wide > narrow_:
        parts = lax.bitcast_convert_type(x, dtype)
        return parts.reshape(*x.shape[:-1], math.prod(parts.shape[x.ndim - 1 :])) if x.ndim else parts
    if wide < narrow_:
        ratio = narrow_ // wide
        return lax.bitcast_convert_type(x.reshape(*x.shape[:-1], x.shape[-1] // ratio, ratio), dtype)
    return lax.bitcast_convert_type(x, dtype)


@dataclass(frozen=True)
class Blocks:
    """A strided view whose strides nest: a stretch of the storage cut into blocks, with a corner of each block kept.

    ``order`` lists the dimensions that move, widest stride first; ``shape`` is the stretch as blocks of blocks.
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]


def nested_blocks(sizes: Sequence[int], strides: Sequence[int]) -> Blocks | None:
    """The blocks of a strided view, or None where its elements overlap or its strides do not nest."""
    order = sorted((d for d, (n, s) in enumerate(zip(sizes, strides)) if n > 1 and s != 0), key=lambda d: -strides[d])
    steps = [strides[d] for d in order]
    for (outer, inner), d in zip(itertools.pairwise(steps), order[1:]):
        if outer % inner or sizes[d] * inner > outer:
            return None
    if not order:
        return Blocks((), (1,))
    return Blocks(tuple(order), (sizes[order[0]], *(a // b for a, b in itertools.pairwise(steps)), steps[-1]))


def strided_index(sizes: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    """The storage index of every element of a strided view."""
    index = jnp.full(tuple(sizes), offset, np.int64)
    for d, stride in enumerate(strides):
        index = index + lax.broadcasted_iota(np.int64, tuple(sizes), d) * stride
    return index


def _stretch(flat: Array, offset: int, length: int) -> Array:
    """``length`` elements from ``offset``, padded where the last block reaches past the end of the storage."""
    return lax.pad(flat, jnp.zeros((), flat.dtype), [(-offset, offset + length - flat.size, 0)])


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(x: Array, sizes: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Array:
    sizes, flat, offset = tuple(sizes), x.reshape(-1), offset or 0
    if math.prod(sizes) == 0:
        return jnp.zeros(sizes, x.dtype)
    blocks = nested_blocks(sizes, strides)
    if blocks is None:
        return jnp.take(flat, strided_index(sizes, strides, offset), mode="clip")
    stretch = _stretch(flat, offset, math.prod(blocks.shape)).reshape(blocks.shape)
    kept = [sizes[d] for d in blocks.order]
    corner = lax.slice(stretch, [0] * stretch.ndim, [*kept, 1]).reshape(kept)
    moving = sorted(blocks.order)
    corner = lax.transpose(corner, [blocks.order.index(d) for d in moving])
    return lax.broadcast_in_dim(corner, sizes, moving)


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(x: Array, src: Array, sizes: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Array:
    sizes, flat, offset = tuple(sizes), x.reshape(-1), offset or 0
    src = jnp.broadcast_to(src, sizes).astype(x.dtype)
    if src.size == 0:
        return x
    blocks = nested_blocks(sizes, strides)
    if blocks is None or any(n > 1 and s == 0 for n, s in zip(sizes, strides)):
        return flat.at[strided_index(sizes, strides, offset).reshape(-1)].set(src.reshape(-1)).reshape(x.shape)
    length = math.prod(blocks.shape)
    stretch = _stretch(flat, offset, length).reshape(blocks.shape)
    moving = sorted(blocks.order)
    corner = lax.transpose(src.reshape([sizes[d] for d in moving]), [moving.index(d) for d in blocks.order])
    stretch = lax.dynamic_update_slice(stretch, corner[..., None], [0] * stretch.ndim).reshape(-1)
    inside = min(length, flat.size - offset)
    return lax.dynamic_update_slice(flat, stretch[:inside], [offset]).reshape(x.shape)


def _padding(ndim: int, dim: int, low: int, high: int, interior: int = 0) -> list[tuple[int, int, int]]:
    return [(low, high, interior) if d == dim else (0, 0, 0) for d in range(ndim)]


def embed_slice(src: Array, size: int, dim: int, first: int, step: int) -> Array:
    """``src`` as the slice from ``first`` with ``step`` of zeros that have ``size`` elements along ``dim``."""
    reach = (src.shape[dim] - 1) * step + 1 if src.shape[dim] else 0
    padding = _padding(src.ndim, dim, first, size - first - reach, step - 1)
    return lax.pad(src, jnp.zeros((), src.dtype), padding)


@lowers(aten.slice_backward.default)
def slice_backward(grad: Array, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Array:
    dim = wrap(dim, grad.ndim)
    first, _ = slice_bounds(sizes[dim], start, end, step)
    return embed_slice(grad, sizes[dim], dim, first, step)


@lowers(aten.slice_scatter.default)
def slice_scatter(x: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    dim = wrap(dim, x.ndim)
    size = x.shape[dim]
    first, count = slice_bounds(size, start, end, step)
    src = jnp.broadcast_to(src, (*x.shape[:dim], count, *x.shape[dim + 1 :])).astype(x.dtype)
    if step == 1:
        return lax.dynamic_update_slice_in_dim(x, src, first, dim)
    along = np.arange(size)
    written = (along >= first) & (along < first + count * step) & ((along - first) % step == 0)
    mask = lax.broadcast_in_dim(jnp.asarray(written), x.shape, [dim])
    return jnp.where(mask, embed_slice(src, size, dim, first, step), x)


@lowers(aten.select_backward.default)
def select_backward(grad: Array, sizes: Sequence[int], dim: int, index: int) -> Array:
    dim = wrap(dim, len(sizes))
    return embed_slice(jnp.expand_dims(grad, dim), sizes[dim], dim, index % sizes[dim], 1)


@lowers(aten.select_scatter.default)
def select_scatter(x: Array, src: Array, dim: int, index: int) -> Array:
    dim = wrap(dim, x.ndim)
    return lax.dynamic_update_index_in_dim(x, src.astype(x.dtype), index % x.shape[dim], dim)


def write_diagonal(x: Array, src: Array, offset: int, dim1: int, dim2: int) -> Array:
    """``x`` with ``src`` on a diagonal: a comparison of row and column numbers, which fuses, instead of a scatter."""
    shape = jnp.moveaxis(x, (dim1, dim2), (-2, -1)).shape
    row, column, length = diagonal_geometry(shape[-2], shape[-1], offset)
    rows = lax.broadcasted_iota(np.int32, shape, len(shape) - 2)
    columns = lax.broadcasted_iota(np.int32, shape, len(shape) - 1)
    by_row = embed_slice(src, shape[-2], src.ndim - 1, row, 1)[..., None]
    written = (columns - rows == offset) & (rows < row + length)
    mask, values = (jnp.moveaxis(jnp.broadcast_to(a, shape), (-2, -1), (dim1, dim2)) for a in (written, by_row))
    return jnp.where(mask, values.astype(x.dtype), x)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(x: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return write_diagonal(x, src, offset, dim1, dim2)


@lowers(aten.diagonal_backward.default)
def diagonal_backward(grad: Array, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Array:
    return write_diagonal(jnp.zeros(tuple(sizes), grad.dtype), grad, offset, dim1, dim2)


@lowers(aten.diag_embed.default)
def diag_embed(x: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    side = x.shape[-1] + abs(offset)
    dim1, dim2 = dim1 % (x.ndim + 1), dim2 % (x.ndim + 1)
    sizes = list(x.shape[:-1])
    for d in sorted((dim1, dim2)):
        sizes.insert(d, side)
    return write_diagonal(jnp.zeros(sizes, x.dtype), x, offset, dim1, dim2)
