"""The LDL factorization of symmetric and Hermitian matrices, and the systems that it solves.

XLA has none, so this is the Bunch-Kaufman algorithm (J. R. Bunch and L. Kaufman, "Some stable methods for calculating inertia
and solving symmetric linear systems", 1977) with LAPACK's conventions, the lower triangle being given: block k of D is a number
where ``pivots[k]`` is positive, rows k and ``pivots[k]`` (from 1) having been exchanged; it has two rows where ``pivots[k]`` and
``pivots[k + 1]`` are the same negative number, the second of the two rows having been exchanged with the one it names.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .factorizations import EXACT
from .linalg import same_batch
from .table import lowers

aten = torch.ops.aten

# The growth of elements is least with this bound on the pivots (Bunch and Kaufman, section 4).
THRESHOLD = (1 + 17**0.5) / 8


def _size(x: Array) -> Array:
    """LAPACK's cheap absolute value, by which pivots are compared."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if x.dtype.kind == "c" else jnp.abs(x)


def _over_batch(function: Callable[..., tuple[Array, ...]], *arrays: Array, ranks: tuple[int, ...]) -> tuple[Array, ...]:
    """``function`` of single matrices (and vectors, as ``ranks`` tell) over the batch dimensions."""
    batch = arrays[0].shape[: arrays[0].ndim - ranks[0]]
    flat = [x.reshape(-1, *x.shape[x.ndim - rank :]) for x, rank in zip(arrays, ranks, strict=True)]
    return tuple(x.reshape(*batch, *x.shape[1:]) for x in jax.vmap(function)(*flat))


def _exchange(count: int, first: Array, second: Array) -> Array:
    """The permutation of ``count`` rows that exchanges two."""
    rows = jnp.arange(count)
    return jnp.where(rows == first, second, jnp.where(rows == second, first, rows))


def _solve_block(a: Array, b: Array, b_conjugate: Array, c: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """[[a, b_conjugate], [b, c]]^-1 (first, second), scaled by b as b is the largest element of a block of two rows."""
    a_scaled, c_scaled = a / b_conjugate, c / b
    divisor = a_scaled * c_scaled - 1
    first, second = first / b_conjugate, second / b
    return (c_scaled * first - second) / divisor, (a_scaled * second - first) / divisor


def _choose_pivot(a: Array, k: Array) -> tuple[Array, Array, Array]:
    """The row to exchange, whether the block has two rows, and whether the column was zero, for column k."""
    rows = jnp.arange(a.shape[-1])
    diagonal = _size(a[k, k])
    column = jnp.where(rows > k, _size(a[:, k]), 0)
    largest_row = jnp.argmax(column)
    column_max = column[largest_row]
    row_max = jnp.max(jnp.where((rows >= k) & (rows != largest_row), _size(a[:, largest_row]), 0))
    stays = (diagonal >= THRESHOLD * column_max) | (diagonal * row_max >= THRESHOLD * column_max * column_max)
    single = stays | (_size(a[largest_row, largest_row]) >= THRESHOLD * row_max)
    zero = ~(jnp.maximum(diagonal, column_max) > 0)
    return jnp.where(zero | stays, k, largest_row), ~zero & ~single, zero


def _factor(a: Array, hermitian: bool) -> tuple[Array, Array, Array]:
    n = a.shape[-1]
    rows, columns = jnp.arange(n)[:, None], jnp.arange(n)[None, :]
    conjugate = jnp.conj if hermitian else (lambda x: x)
    mirrored = conjugate(jnp.tril(a, -1)).T
    diagonal = jnp.diagonal(a)
    a = jnp.tril(a, -1) + mirrored + jnp.diag(diagonal.real.astype(a.dtype) if hermitian else diagonal)

    def step(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        k, a, pivots, info = state
        other, double, zero = _choose_pivot(a, k)
        after = jnp.minimum(k + 1, n - 1)
        order = _exchange(n, jnp.where(double, after, k), other)
        # Finished columns keep their rows in place, as LAPACK leaves them.
        a = jnp.where((rows >= k) & (columns >= k), a[order][:, order], a)

        first, second = a[:, k], a[:, after]
        pivot = jnp.where(zero, 1, a[k, k])
        safe = jnp.where(double, a[after, k], 1)
        pair = _solve_block(a[k, k], safe, conjugate(safe), a[after, after], conjugate(first), conjugate(second))
        multipliers = jnp.where(double, conjugate(pair[0]), first / pivot), jnp.where(double, conjugate(pair[1]), 0)

        end = jnp.where(double, k + 2, k + 1)
        outer = multipliers[0][:, None] * conjugate(first)[None, :] + multipliers[1][:, None] * conjugate(second)[None, :]
        a = jnp.where((rows >= end) & (columns >= end), a - outer, a)
        a = jnp.where((rows >= end) & (columns == k), multipliers[0][:, None], a)
        a = jnp.where((rows >= end) & (columns == k + 1) & double, multipliers[1][:, None], a)
        number = jnp.where(double, -(other + 1), other + 1).astype(np.int32)
        pivots = jnp.where((jnp.arange(n) >= k) & (jnp.arange(n) < end), number, pivots)
        return end, a, pivots, jnp.where((info == 0) & zero, k + 1, info).astype(np.int32)

    start = jnp.zeros((), np.int64), a, jnp.zeros(n, np.int32), jnp.zeros((), np.int32)
    _, a, pivots, info = lax.while_loop(lambda state: state[0] < n, step, start)
    return jnp.tril(a), pivots, info


@lowers(aten.linalg_ldl_factor_ex.default)
def ldl_factor_ex(a: Array, *, hermitian: bool = False, check_errors: bool = False) -> tuple[Array, ...]:
    if a.size == 0:
        return a, jnp.zeros(a.shape[:-1], np.int32), jnp.zeros(a.shape[:-2], np.int32)
    complex_hermitian = hermitian and a.dtype.kind == "c"
    return _over_batch(lambda matrix: _factor(matrix, complex_hermitian), a, ranks=(2,))


def _solve(factors: Array, pivots: Array, b: Array, hermitian: bool) -> tuple[Array]:
    n = factors.shape[-1]
    rows = jnp.arange(n)
    conjugate = jnp.conj if hermitian else (lambda x: x)

    def below(k: Array, end: Array) -> Array:
        return jnp.where(rows >= end, factors[:, k], 0)

    def forward(state: tuple[Array, Array]) -> tuple[Array, Array]:
        k, b = state
        double, after = pivots[k] < 0, jnp.minimum(k + 1, n - 1)
        end = jnp.where(double, k + 2, k + 1)
        b = b[_exchange(n, jnp.where(double, after, k), jnp.abs(pivots[k]) - 1)]
        second = jnp.where(double, below(after, end), 0)
        b = b - below(k, end)[:, None] * b[k] - second[:, None] * b[after]
        safe = jnp.where(double, factors[after, k], 1)
        pair = _solve_block(factors[k, k], safe, conjugate(safe), factors[after, after], b[k], b[after])
        single = b[k] / jnp.where(double, 1, factors[k, k])
        b = b.at[after].set(jnp.where(double, pair[1], b[after]))
        return end, b.at[k].set(jnp.where(double, pair[0], single))

    def backward(state: tuple[Array, Array]) -> tuple[Array, Array]:
        k, b = state
        double, before = pivots[k] < 0, jnp.maximum(k - 1, 0)
        rest = jnp.matmul(conjugate(below(k, k + 1)), b, precision=EXACT)
        rest_before = jnp.matmul(conjugate(below(before, k + 1)), b, precision=EXACT)
        b = b.at[k].add(-rest)
        b = b.at[before].add(jnp.where(double, -rest_before, 0))
        return jnp.where(double, k - 2, k - 1), b[_exchange(n, k, jnp.abs(pivots[k]) - 1)]

    _, b = lax.while_loop(lambda state: state[0] < n, forward, (jnp.zeros((), np.int64), b))
    _, b = lax.while_loop(lambda state: state[0] >= 0, backward, (jnp.asarray(n - 1, np.int64), b))
    return (b,)


@lowers(aten.linalg_ldl_solve.default)
def ldl_solve(factors: Array, pivots: Array, b: Array, *, hermitian: bool = False) -> Array:
    factors, columns, b = same_batch(factors, pivots[..., None], b)
    if b.size == 0:
        return b
    complex_hermitian = hermitian and factors.dtype.kind == "c"
    solve = lambda f, p, x: _solve(f, p.astype(np.int64), x, complex_hermitian)
    return _over_batch(solve, factors, columns[..., 0], b, ranks=(2, 1, 2))[0]
