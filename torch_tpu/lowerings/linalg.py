"""Linear systems, inverses, determinants and functions of matrices, out of the factorizations."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .factorizations import EXACT, conjugate_transpose, eigh, lu_factors, lu_info, qr, row_order, svd
from .promotion import opmath, promote
from .table import lowers

aten = torch.ops.aten


def product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=EXACT)


def same_batch(*matrices: Array) -> tuple[Array, ...]:
    """``matrices`` with their batch dimensions broadcast against each other."""
    batch = jnp.broadcast_shapes(*(m.shape[:-2] for m in matrices))
    return tuple(jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in matrices)


def identity(like: Array) -> Array:
    return jnp.broadcast_to(jnp.eye(like.shape[-1], dtype=like.dtype), like.shape)


def is_vector(a: Array, b: Array) -> bool:
    """Whether PyTorch takes ``b`` as right-hand sides that are vectors, one for each matrix of ``a``."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


# Triangular systems


@lowers(aten.linalg_solve_triangular.default)
def solve_triangular(a: Array, b: Array, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Array:
    a, b = same_batch(a, b)
    if b.size == 0:
        return b
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@lowers(aten.triangular_solve.default)
def triangular_solve(
    b: Array, a: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    a, b = same_batch(a, b)
    if transpose:
        return solve_triangular(jnp.swapaxes(a, -1, -2), b, upper=not upper, unitriangular=unitriangular), a
    return solve_triangular(a, b, upper=upper, unitriangular=unitriangular), a


@lowers(aten.cholesky_solve.default, aten._cholesky_solve_helper.default)
def cholesky_solve(b: Array, factor: Array, upper: bool = False) -> Array:
    first = conjugate_transpose(factor) if upper else factor
    return solve_triangular(conjugate_transpose(first), solve_triangular(first, b, upper=False), upper=True)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(factor: Array, upper: bool = False) -> Array:
    inverse = solve_triangular(factor, identity(factor), upper=upper)
    return product(inverse, conjugate_transpose(inverse)) if upper else product(conjugate_transpose(inverse), inverse)


# General systems


@lowers(aten.linalg_lu_solve.default)
def lu_solve(factors: Array, pivots: Array, b: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    if not left:
        return conjugate_transpose(_lu_solve(factors, pivots, conjugate_transpose(b), not adjoint))
    return _lu_solve(factors, pivots, b, adjoint)


def _lu_solve(factors: Array, pivots: Array, b: Array, of_adjoint: bool) -> Array:
    order = row_order(pivots, factors.shape[-1])[..., None]
    factors, b = same_batch(factors, b)
    order = jnp.broadcast_to(order, (*b.shape[:-1], 1))
    if not of_adjoint:
        half = solve_triangular(factors, jnp.take_along_axis(b, order, axis=-2), upper=False, unitriangular=True)
        return solve_triangular(factors, half, upper=True)
    factors = conjugate_transpose(factors)
    half = solve_triangular(factors, b, upper=False)
    solution = solve_triangular(factors, half, upper=True, unitriangular=True)
    return jnp.take_along_axis(solution, jnp.argsort(order, axis=-2), axis=-2)


@lowers(aten._linalg_solve_ex.default)
def solve_ex(a: Array, b: Array, *, left: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array, Array]:
    factors, pivots = lu_factors(a)
    vector = is_vector(a, b)
    columns = b[..., None] if vector else b
    solution = lu_solve(factors, pivots, columns, left=left)
    return solution[..., 0] if vector else solution, factors, pivots, lu_info(factors)


@lowers(aten.linalg_inv_ex.default)
def inv_ex(a: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    factors, pivots = lu_factors(a)
    return lu_solve(factors, pivots, identity(a)), lu_info(factors)


def _pivot_sign(pivots: Array) -> Array:
    exchanges = jnp.sum(pivots != jnp.arange(1, pivots.shape[-1] + 1), axis=-1)
    return 1 - 2 * (exchanges % 2)


def _determinant_factors(a: Array, contiguous: bool) -> tuple[Array, Array]:
    """The LU factors that PyTorch's gradients of determinants expect.

    They go by the layout of ``a``: they take the factors for those of its transpose if it is real and contiguous, for its
    own otherwise.
    """
    return lu_factors(jnp.swapaxes(a, -1, -2) if contiguous and a.dtype.kind != "c" else a)


@lowers(aten._linalg_det.default)
def det(a: Array, *, contiguous: bool = True) -> tuple[Array, Array, Array]:
    factors, pivots = _determinant_factors(a, contiguous)
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    return jnp.prod(diagonal, axis=-1) * _pivot_sign(pivots).astype(a.dtype), factors, pivots


@lowers(aten._linalg_slogdet.default)
def slogdet(a: Array, *, contiguous: bool = True) -> tuple[Array, Array, Array, Array]:
    factors, pivots = _determinant_factors(a, contiguous)
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    sign = jnp.prod(jnp.sign(diagonal), axis=-1) * _pivot_sign(pivots).astype(a.dtype)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), axis=-1), factors, pivots


# Least squares and pseudoinverses


@lowers(aten.linalg_lstsq.default)
def lstsq(a: Array, b: Array, rcond: float | None = None, *, driver: str | None = None) -> tuple[Array, Array, Array, Array]:
    """The shortest x that brings A x nearest to b, squared residuals, rank and singular values.

    ``gels`` takes A to be of full rank and uses QR. The other drivers of LAPACK differ in how they find the rank; all are
    served by singular values, and report of them what the driver would. PyTorch leaves residuals out if it sees a deficient
    rank, which cannot decide a shape here: they are there whenever A has more rows than columns and the driver gives them.
    """
    driver = driver or "gelsy"
    vector = is_vector(a, b)
    a, b = same_batch(a, b[..., None] if vector else b)
    rows, columns = a.shape[-2:]
    rank, residuals, reported = jnp.zeros((0,), np.int64), *[jnp.zeros((0,), a.real.dtype)] * 2
    if driver == "gels":
        solution = _full_rank_solution(a, b)
    else:
        left, values, right = svd(a)
        tolerance = jnp.finfo(a.dtype).eps * max(rows, columns) if rcond is None else rcond
        kept = values > tolerance * jnp.max(values, axis=-1, keepdims=True, initial=0)
        rank = jnp.sum(kept, axis=-1)
        inverted = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)[..., None].astype(a.dtype)
        solution = product(conjugate_transpose(right), inverted * product(conjugate_transpose(left), b))
        reported = reported if driver == "gelsy" else values
    if rows > columns and driver != "gelsy":
        residuals = jnp.sum(jnp.abs(b - product(a, solution)) ** 2, axis=-2)
    return solution[..., 0] if vector else solution, residuals, rank, reported


def _full_rank_solution(a: Array, b: Array) -> Array:
    if a.shape[-2] >= a.shape[-1]:
        orthogonal, triangle = qr(a)
        return solve_triangular(triangle, product(conjugate_transpose(orthogonal), b), upper=True)
    orthogonal, triangle = qr(conjugate_transpose(a))
    return product(orthogonal, solve_triangular(conjugate_transpose(triangle), b, upper=False))


@lowers(aten.linalg_pinv.atol_rtol_tensor)
def pinv(a: Array, *, atol: Array | None = None, rtol: Array | None = None, hermitian: bool = False) -> Array:
    if a.size == 0:
        return jnp.zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype)
    if hermitian:
        values, vectors = eigh(a)
        left, right = vectors, conjugate_transpose(vectors)
    else:
        left, values, right = svd(a)
    absolute = jnp.abs(values)
    relative = jnp.asarray(jnp.finfo(a.dtype).eps * max(a.shape[-2:]), absolute.dtype)
    atol = jnp.zeros((), absolute.dtype) if atol is None else atol
    if rtol is None:
        # An absolute tolerance replaces the default of the relative one.
        rtol = jnp.where(atol > 0, 0, relative)
    threshold = jnp.maximum(atol[..., None], rtol[..., None] * jnp.max(absolute, axis=-1, keepdims=True))
    kept = absolute > threshold.astype(absolute.dtype)
    inverted = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)[..., None, :].astype(a.dtype)
    return product(conjugate_transpose(right) * inverted, conjugate_transpose(left))


# Functions of matrices, and the cross product

# Coefficients of the diagonal Padé approximants of exp, and the 1-norm up to which each is exact to the dtype's precision
# (N. J. Higham, "The scaling and squaring method for the matrix exponential revisited", 2005, table 2.3 and section 5).
_PADE_7 = (17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0)
_PADE_13 = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0, 10559470521600.0,
    670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_SINGLE, _DOUBLE = (_PADE_7, 3.925724783138660), (_PADE_13, 5.371920351148152)


@lowers(aten.linalg_matrix_exp.default)
def matrix_exp(a: Array) -> Array:
    """Scaling and squaring: exp(A) = exp(A / 2^s)^(2^s), with s chosen for each matrix."""
    if a.size == 0:
        return a
    a = opmath(a)
    coefficients, largest = _SINGLE if a.real.dtype.itemsize <= 4 else _DOUBLE
    norm = jnp.max(jnp.sum(jnp.abs(a), axis=-2), axis=-1)
    squarings = jnp.ceil(jnp.log2(jnp.maximum(norm / largest, 1)))
    squarings = jnp.where(jnp.isfinite(norm), squarings, 0).astype(np.int32)[..., None, None]
    scaled = a * jnp.exp2(-squarings.astype(a.real.dtype)).astype(a.dtype)

    power = one = identity(a)
    square = product(scaled, scaled)
    even, odd = coefficients[0] * one, coefficients[1] * one
    for i in range(2, len(coefficients), 2):
        power = product(power, square) if i > 2 else square
        even, odd = even + coefficients[i] * power, odd + coefficients[i + 1] * power
    odd = product(scaled, odd)
    factors, pivots = lu_factors(even - odd)
    result = lu_solve(factors, pivots, even + odd)

    def square_once(state: tuple[Array, Array]) -> tuple[Array, Array]:
        done, x = state
        return done + 1, jnp.where(done < squarings, product(x, x), x)

    most = jnp.max(squarings)
    return lax.while_loop(lambda state: state[0] < most, square_once, (jnp.zeros((), np.int32), result))[1]


@lowers(aten.linalg_cross.default)
def cross(a: Array, b: Array, *, dim: int = -1) -> Array:
    a, b = jnp.broadcast_arrays(*promote(a, b))
    return jnp.roll(a, -1, dim) * jnp.roll(b, -2, dim) - jnp.roll(a, -2, dim) * jnp.roll(b, -1, dim)
