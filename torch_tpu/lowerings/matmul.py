"""Matrix products: of one pair, of a batch, of groups of rows.

Products of 16-bit and 8-bit floats accumulate in float32, and what is added to them is added before the one rounding that the
runner does. Sums over several dimensions are flattened to one: XLA answers two contracting dimensions with slow transposing
fusions.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .precision import matmul_precision
from .promotion import cast, is_half, opmath, promote
from .table import lowers

aten = torch.ops.aten
Dims = Sequence[int]


def contract(a: Array, b: Array, contracting: tuple[Dims, Dims], batch: tuple[Dims, Dims] = ((), ())) -> Array:
    """``lax.dot_general`` in the dtype that PyTorch accumulates in."""
    if a.dtype == np.bool_:
        return contract(a.astype(np.int32), b.astype(np.int32), contracting, batch) != 0
    accumulator = np.dtype(np.float32) if is_half(a.dtype) else a.dtype
    return lax.dot_general(a, b, (contracting, batch), precision=matmul_precision(), preferred_element_type=accumulator)


def scaled_sum(added: Array, product: Array, beta: ArrayLike, alpha: ArrayLike) -> Array:
    """``beta * added + alpha * product``, where a beta of zero hides even NaN in ``added``."""
    if added.dtype == np.bool_:
        return (added & (jnp.asarray(beta) != 0)) | (product & (jnp.asarray(alpha) != 0))
    dtype = product.dtype
    added, beta, alpha = cast(added, dtype), cast(beta, dtype), cast(alpha, dtype)
    return jnp.where(beta == 0, jnp.zeros((), dtype), beta * added) + alpha * product


@lowers(aten.mm.default)
def mm(a: Array, b: Array) -> Array:
    return contract(a, b, ([1], [0]))


@lowers(aten.bmm.default)
def bmm(a: Array, b: Array) -> Array:
    return contract(a, b, ([2], [1]), ([0], [0]))


@lowers(aten.mv.default)
def mv(a: Array, v: Array) -> Array:
    return contract(a, v, ([1], [0]))


@lowers(aten.dot.default)
def dot(a: Array, b: Array) -> Array:
    return contract(a, b, ([0], [0]))


@lowers(aten.vdot.default)
def vdot(a: Array, b: Array) -> Array:
    return contract(jnp.conj(a), b, ([0], [0]))


@lowers(aten.addmm.default)
def addmm(added: Array, a: Array, b: Array, *, beta: ArrayLike = 1, alpha: ArrayLike = 1) -> Array:
    return scaled_sum(added, mm(a, b), beta, alpha)


@lowers(aten.baddbmm.default)
def baddbmm(added: Array, a: Array, b: Array, *, beta: ArrayLike = 1, alpha: ArrayLike = 1) -> Array:
    return scaled_sum(added, bmm(a, b), beta, alpha)


@lowers(aten.addbmm.default)
def addbmm(added: Array, a: Array, b: Array, *, beta: ArrayLike = 1, alpha: ArrayLike = 1) -> Array:
    batch, rows, inner = a.shape
    wide = lax.transpose(a, [1, 0, 2]).reshape(rows, batch * inner)
    return scaled_sum(added, mm(wide, b.reshape(batch * inner, b.shape[2])), beta, alpha)


@lowers(aten.addmv.default)
def addmv(added: Array, a: Array, v: Array, *, beta: ArrayLike = 1, alpha: ArrayLike = 1) -> Array:
    return scaled_sum(added, mv(a, v), beta, alpha)


@lowers(aten.addr.default)
def addr(added: Array, a: Array, b: Array, *, beta: ArrayLike = 1, alpha: ArrayLike = 1) -> Array:
    added, a, b = promote(added, a, b)
    return scaled_sum(added, opmath(a)[:, None] * opmath(b)[None, :], beta, alpha)


# With an output dtype wider than the operands', the accumulator is not rounded at all.
@lowers(aten.mm.dtype)
def mm_dtype(a: Array, b: Array, out_dtype: np.dtype) -> Array:
    return mm(a, b)


@lowers(aten.bmm.dtype)
def bmm_dtype(a: Array, b: Array, out_dtype: np.dtype) -> Array:
    return bmm(a, b)


@lowers(aten.addmm.dtype)
def addmm_dtype(added: Array, a: Array, b: Array, out_dtype: np.dtype, *, beta: ArrayLike = 1, alpha: ArrayLike = 1) -> Array:
    return addmm(added, a, b, beta=beta, alpha=alpha)


@lowers(aten.baddbmm.dtype)
def baddbmm_dtype(added: Array, a: Array, b: Array, out_dtype: np.dtype, *, beta: ArrayLike = 1, alpha: ArrayLike = 1) -> Array:
    return baddbmm(added, a, b, beta=beta, alpha=alpha)


@lowers(aten._addmm_activation.default)
def addmm_activation(
    added: Array, a: Array, b: Array, *, beta: ArrayLike = 1, alpha: ArrayLike = 1, use_gelu: bool = False
) -> Array:
    total = addmm(added, a, b, beta=beta, alpha=alpha)
    return jax.nn.gelu(total, approximate=False) if use_gelu else jnp.maximum(total, 0)


@lowers(aten._trilinear.default)
def trilinear(
    a: Array, b: Array, c: Array, expand1: Dims, expand2: Dims, expand3: Dims, sum_dims: Dims, unroll_dim: int = 1
) -> Array:
    # Operand dimensions are numbered as in the full product, in which each operand lacks those that it expands.
    # ``unroll_dim`` bounds the memory of PyTorch's own loop; an einsum needs no such bound.
    total = a.ndim + len(expand1)
    labels = [[d for d in range(total) if d not in {e % total for e in expanded}] for expanded in (expand1, expand2, expand3)]
    summed = {d % total for d in sum_dims}
    kept = [d for d in range(total) if d not in summed and any(d in own for own in labels)]
    operands = [x for pair in zip((a, b, c), labels) for x in pair]
    accumulator = opmath(a).dtype
    result = jnp.einsum(*operands, kept, precision=matmul_precision(), preferred_element_type=accumulator)
    absent = [d for d in range(total) if d not in summed and d not in kept]
    return jnp.expand_dims(result, [d - sum(s < d for s in summed) for d in absent])


@lowers(aten._grouped_mm.default)
def grouped_mm(
    a: Array, b: Array, ends: Array | None = None, bias: Array | None = None, out_dtype: np.dtype | None = None
) -> Array:
    """One product a group. ``ends`` are the ends of the groups along the dimension that they share.

    2-d by 3-d: groups of rows of ``a``; 3-d by 2-d: groups of columns of ``b``; 2-d by 2-d: groups of terms of the sum.
    """
    if ends is None:
        return bmm(a, b)
    sizes = jnp.diff(ends, prepend=jnp.zeros((1,), ends.dtype))
    if a.ndim == 3:
        by_column = _ragged(b.T, jnp.swapaxes(a, 1, 2), sizes, (([1], [1]), ([], [])), [0], [0])
        # Rounded first: XLA:CPU cannot run a bfloat16 product whose float32 result is transposed.
        return by_column.astype(a.dtype).T
    if b.ndim == 3:
        return _ragged(a, b, sizes, (([1], [1]), ([], [])), [0], [0])
    return _ragged(a, b, sizes, (([1], [0]), ([], [])), [1], [])


def _ragged(
    a: Array, b: Array, sizes: Array, dims: tuple[tuple[Dims, Dims], tuple[Dims, Dims]], ragged: Dims, groups: Dims
) -> Array:
    numbers = lax.RaggedDotDimensionNumbers(dims, ragged, groups)
    accumulator = np.dtype(np.float32) if is_half(a.dtype) else a.dtype
    return lax.ragged_dot_general(a, b, sizes, numbers, precision=matmul_precision(), preferred_element_type=accumulator)
