"""Matrix factorizations: Cholesky, LU, QR, and the eigenvalue and singular value decompositions.

XLA calls LAPACK on a CPU, as PyTorch does, so factors agree there up to rounding; on a TPU they are as unique as mathematics
makes them. Where LAPACK would report a failure, ``info`` does; nothing is raised.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .table import lowers

aten = torch.ops.aten

# Products inside of an algorithm keep its own accuracy, whatever precision a program chose for its matrix products.
EXACT = lax.Precision.HIGHEST


def conjugate_transpose(x: Array) -> Array:
    """The conjugate transpose of the matrices of ``x``."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def nothing(like: Array) -> Array:
    """What PyTorch returns for a factor that was not asked for."""
    return jnp.zeros((0,), like.dtype)


def _first_failing_minor(a: Array) -> Array:
    """For Hermitian ``a`` given by its lower triangle: the order of the first leading minor not positive, 0 if all are."""
    a = jnp.tril(a) + conjugate_transpose(jnp.tril(a, -1))
    rows = jnp.arange(a.shape[-1])

    def eliminate(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, info = state
        column = lax.dynamic_index_in_dim(a, k, axis=-1, keepdims=False)
        pivot = lax.dynamic_index_in_dim(column, k, axis=-1, keepdims=False).real
        positive = pivot > 0
        info = jnp.where((info == 0) & ~positive, k + 1, info)
        below = jnp.where(rows > k, column, 0)
        update = below[..., :, None] * jnp.conj(below)[..., None, :]
        return a - update / jnp.where(positive, pivot, 1)[..., None, None].astype(a.dtype), info

    return lax.fori_loop(0, a.shape[-1], eliminate, (a, jnp.zeros(a.shape[:-2], np.int32)))[1]


@lowers(aten.linalg_cholesky_ex.default)
def cholesky_ex(a: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    if a.size == 0:
        return a, jnp.zeros(a.shape[:-2], np.int32)
    lower = conjugate_transpose(a) if upper else a
    factor = jnp.tril(lax.linalg.cholesky(lower, symmetrize_input=False))
    # A failure leaves NaN behind, and only then is it worth to find out where.
    failed = jnp.any(jnp.isnan(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
    info = lax.cond(jnp.any(failed), _first_failing_minor, lambda a: jnp.zeros(a.shape[:-2], np.int32), lower)
    return conjugate_transpose(factor) if upper else factor, info


@lowers(aten.cholesky.default)
def cholesky(a: Array, upper: bool = False) -> Array:
    return cholesky_ex(a, upper=upper)[0]


def lu_factors(a: Array, pivot: bool = True) -> tuple[Array, Array]:
    """L (below the diagonal, whose ones are not stored) and U in one matrix, and LAPACK's row exchanges, counted from 1."""
    smaller = min(a.shape[-2:])
    if a.size == 0 or not pivot:
        pivots = jnp.broadcast_to(jnp.arange(1, smaller + 1, dtype=np.int32), (*a.shape[:-2], smaller))
        return (a if a.size == 0 else _eliminated(a)), pivots
    factors, pivots, _ = lax.linalg.lu(a)
    return factors, pivots + 1


def _eliminated(a: Array) -> Array:
    """Gaussian elimination without exchanges; the multipliers take the place of the zeros."""
    rows, columns = jnp.arange(a.shape[-2])[:, None], jnp.arange(a.shape[-1])[None, :]

    def eliminate(k: Array, a: Array) -> Array:
        row = lax.dynamic_slice_in_dim(a, k, 1, axis=-2)
        column = lax.dynamic_slice_in_dim(a, k, 1, axis=-1)
        pivot = lax.dynamic_slice_in_dim(row, k, 1, axis=-1)
        multipliers = column / pivot
        a = jnp.where((rows > k) & (columns > k), a - multipliers * row, a)
        return jnp.where((rows > k) & (columns == k), multipliers, a)

    return lax.fori_loop(0, min(a.shape[-2:]), eliminate, a)


def lu_info(factors: Array) -> Array:
    """The place, from 1, of the first zero on the diagonal of U; 0 if there is none."""
    zeros = jnp.diagonal(factors, axis1=-2, axis2=-1) == 0
    if zeros.shape[-1] == 0:
        return jnp.zeros(zeros.shape[:-1], np.int32)
    return jnp.where(jnp.any(zeros, axis=-1), jnp.argmax(zeros, axis=-1) + 1, 0).astype(np.int32)


def row_order(pivots: Array, rows: int) -> Array:
    """The permutation that LAPACK's row exchanges amount to: row i of P^T A is row ``order[i]`` of A."""
    if pivots.shape[-1] == 0 or 0 in pivots.shape:
        return jnp.broadcast_to(jnp.arange(rows, dtype=np.int32), (*pivots.shape[:-1], rows))
    return lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)


@lowers(aten.linalg_lu_factor_ex.default)
def lu_factor_ex(a: Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array]:
    factors, pivots = lu_factors(a, pivot)
    return factors, pivots, lu_info(factors)


@lowers(aten.lu_unpack.default)
def lu_unpack(factors: Array, pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Array, Array, Array]:
    rows, smaller = factors.shape[-2], min(factors.shape[-2:])
    permutation = lower = upper = nothing(factors)
    if unpack_pivots:
        order = row_order(pivots, rows)
        permutation = (order[..., None, :] == jnp.arange(rows)[:, None]).astype(factors.dtype)
    if unpack_data:
        lower = jnp.tril(factors[..., :smaller], -1) + jnp.eye(rows, smaller, dtype=factors.dtype)
        upper = jnp.triu(factors[..., :smaller, :])
    return permutation, lower, upper


@lowers(aten.linalg_lu.default)
def lu(a: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    return lu_unpack(*lu_factors(a, pivot), unpack_pivots=pivot)


@lowers(aten.linalg_qr.default)
def qr(a: Array, mode: str = "reduced") -> tuple[Array, Array]:
    rows, columns = a.shape[-2:]
    if a.size == 0:
        return _qr_of_nothing(a, mode)
    if mode == "r":
        reflectors, _ = geqrf(a)
        return nothing(a), jnp.triu(reflectors[..., : min(rows, columns), :])
    return lax.linalg.qr(a, full_matrices=mode == "complete")


def _qr_of_nothing(a: Array, mode: str) -> tuple[Array, Array]:
    rows, columns = a.shape[-2:]
    inner = rows if mode == "complete" else min(rows, columns)
    orthogonal = jnp.broadcast_to(jnp.eye(rows, inner, dtype=a.dtype), (*a.shape[:-2], rows, inner))
    return nothing(a) if mode == "r" else orthogonal, jnp.zeros((*a.shape[:-2], inner, columns), a.dtype)


@lowers(aten.geqrf.default)
def geqrf(a: Array) -> tuple[Array, Array]:
    """R above the Householder vectors, and their scales."""
    if a.size == 0:
        return a, jnp.zeros((*a.shape[:-2], min(a.shape[-2:])), a.dtype)
    transposed, scales = jnp.linalg.qr(a, mode="raw")
    return jnp.swapaxes(transposed, -1, -2), scales


@lowers(aten.linalg_householder_product.default)
def householder_product(reflectors: Array, scales: Array) -> Array:
    """The leading columns of the product of the reflections."""
    rows, columns = reflectors.shape[-2:]
    if reflectors.size == 0 or scales.size == 0:
        return jnp.broadcast_to(jnp.eye(rows, columns, dtype=reflectors.dtype), reflectors.shape)
    return lax.linalg.householder_product(reflectors, scales)


@lowers(aten.ormqr.default)
def ormqr(reflectors: Array, scales: Array, other: Array, left: bool = True, transpose: bool = False) -> Array:
    """``other`` times the product of the reflections (its adjoint if ``transpose``), from the left or from the right."""
    rows, columns = reflectors.shape[-2:]
    padding = [(0, 0)] * (reflectors.ndim - 2) + [(0, 0), (0, max(0, rows - columns))]
    square = jnp.pad(reflectors, padding)[..., :rows]
    product = householder_product(square, scales)
    product = conjugate_transpose(product) if transpose else product
    return jnp.matmul(*((product, other) if left else (other, product)), precision=EXACT)


@lowers(aten._linalg_eigh.default)
def eigh(a: Array, triangle: str = "L", compute_vectors: bool = True) -> tuple[Array, Array]:
    if a.size == 0:
        return jnp.zeros(a.shape[:-1], a.real.dtype), a if compute_vectors else nothing(a)
    vectors, values = lax.linalg.eigh(a, lower=triangle.upper() == "L", symmetrize_input=False)
    return values, vectors if compute_vectors else nothing(a)


@lowers(aten.linalg_eig.default)
def eig(a: Array) -> tuple[Array, Array]:
    # XLA has this one for the CPU (LAPACK) alone: compiling it for a TPU fails.
    if a.size == 0:
        wide = a.astype(jnp.result_type(a.dtype, np.complex64))
        return jnp.zeros(a.shape[:-1], wide.dtype), wide
    values, vectors = lax.linalg.eig(a, compute_left_eigenvectors=False)
    return values, vectors


@lowers(aten._linalg_eigvals.default)
def eigvals(a: Array) -> Array:
    if a.size == 0:
        return eig(a)[0]
    return lax.linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


@lowers(aten._linalg_svd.default)
def svd(a: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> tuple[Array, ...]:
    # A driver names one of cuSOLVER's algorithms, never another result: XLA's own serves all of them.
    rows, columns = a.shape[-2:]
    if a.size == 0:
        return _svd_of_nothing(a, full_matrices, compute_uv)
    if not compute_uv:
        return nothing(a), lax.linalg.svd(a, full_matrices=False, compute_uv=False), nothing(a)
    left, values, right = lax.linalg.svd(a, full_matrices=full_matrices, compute_uv=True)
    return left, values, right


def _svd_of_nothing(a: Array, full_matrices: bool, compute_uv: bool) -> tuple[Array, Array, Array]:
    rows, columns = a.shape[-2:]
    smaller, batch = min(rows, columns), a.shape[:-2]
    values = jnp.zeros((*batch, smaller), a.real.dtype)
    if not compute_uv:
        return nothing(a), values, nothing(a)
    left = jnp.eye(rows, rows if full_matrices else smaller, dtype=a.dtype)
    right = jnp.eye(columns if full_matrices else smaller, columns, dtype=a.dtype)
    return jnp.broadcast_to(left, (*batch, *left.shape)), values, jnp.broadcast_to(right, (*batch, *right.shape))
