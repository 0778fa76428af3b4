"""Linear algebra where a comparison of every element with the CPU says too little or too much.

Eigenvectors and singular vectors are unique up to a factor of modulus 1 only, failures show in ``info``, and the layout of a
matrix decides what PyTorch's gradients of determinants take its LU factors for.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

from tests.lowering_check import run_lowering, to_numpy
from torch_tpu.lowerings import TABLE

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [(1, 1), (5, 5), (2, 3, 6, 4), (4, 6), (0, 3), (2, 3, 0), (0, 4, 4)]
SQUARE = [(1, 1), (5, 5), (2, 3, 4, 4), (0, 0), (0, 4, 4)]


def run(overload: Any, *args: Any, **kwargs: Any) -> Any:
    with jax.enable_x64(True):
        result = run_lowering(overload, args, kwargs)
    return [np.asarray(x) for x in result] if isinstance(result, (tuple, list)) else np.asarray(result)


def matrix(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(x, -1, -2))


def assert_close(got: np.ndarray, expected: Any) -> None:
    expected = to_numpy(expected) if isinstance(expected, torch.Tensor) else np.asarray(expected)
    tolerance = 3e-5 if expected.dtype in (np.float32, np.complex64) else 1e-10
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * 10)


def assert_orthonormal_columns(x: np.ndarray) -> None:
    identity = np.broadcast_to(np.eye(x.shape[-1], dtype=x.dtype), (*x.shape[:-2], x.shape[-1], x.shape[-1]))
    assert_close(adjoint(x) @ x, identity)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("full", [False, True])
def test_singular_vectors_rebuild_the_matrix(full: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, k = matrix(*shape, dtype=dtype), min(shape[-2:])
    left, values, right = run(aten._linalg_svd.default, a, full)
    expected = torch.linalg.svd(a, full_matrices=full)
    assert left.shape == expected.U.shape and right.shape == expected.Vh.shape
    assert_close(values, expected.S)
    assert_orthonormal_columns(left)
    assert_orthonormal_columns(adjoint(right))
    assert_close(left[..., :k] * values[..., None, :] @ right[..., :k, :], a)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_alone(shape: tuple[int, ...]) -> None:
    left, values, right = run(aten._linalg_svd.default, matrix(*shape), False, False)
    assert left.shape == right.shape == (0,)
    assert_close(values, torch.linalg.svdvals(matrix(*shape)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SQUARE, ids=str)
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_hermitian_eigenvectors_diagonalise_the_named_triangle(triangle: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrix(*shape, dtype=dtype)
    half = a.triu() if triangle == "U" else a.tril()
    whole = half + half.mH - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).real.to(dtype))
    values, vectors = run(aten._linalg_eigh.default, a, triangle)
    assert_close(values, torch.linalg.eigvalsh(a, UPLO=triangle))
    assert_orthonormal_columns(vectors)
    assert_close(vectors * values[..., None, :] @ adjoint(vectors), whole)
    values, vectors = run(aten._linalg_eigh.default, a, triangle, False)
    assert vectors.shape == (0,) and values.shape == shape[:-1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_eigenvectors_satisfy_their_equation(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrix(*shape, dtype=dtype)
    values, vectors = run(aten.linalg_eig.default, a)
    assert_close(to_numpy(a).astype(vectors.dtype) @ vectors, vectors * values[..., None, :])
    assert_close(np.linalg.norm(vectors, axis=-2), np.ones(shape[:-1], vectors.real.dtype))
    order = lambda x: np.sort_complex(x.round(3))
    assert_close(order(run(aten._linalg_eigvals.default, a)), order(to_numpy(torch.linalg.eigvals(a))))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr_agrees_with_the_cpu(mode: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrix(*shape, dtype=dtype)
    for got, expected in zip(run(aten.linalg_qr.default, a, mode), torch.linalg.qr(a, mode), strict=True):
        assert_close(got, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_tells_the_first_minor_that_is_not_positive(upper: bool, dtype: torch.dtype) -> None:
    good = matrix(6, 6, dtype=dtype)
    good = good @ good.mH + torch.eye(6, dtype=dtype)
    batch = [good] + [good - 100 * torch.diag(torch.eye(6, dtype=dtype)[k]) for k in range(6)]
    batch.append(good * torch.nan)
    factor, info = run(aten.linalg_cholesky_ex.default, torch.stack(batch), upper=upper)
    assert info.tolist() == torch.linalg.cholesky_ex(torch.stack(batch)).info.tolist()
    assert_close(factor[0], torch.linalg.cholesky(good, upper=upper))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lu_of_a_singular_matrix_tells_the_first_zero_pivot(dtype: torch.dtype) -> None:
    a = torch.stack([torch.eye(3, dtype=dtype), torch.ones(3, 3, dtype=dtype), torch.zeros(3, 3, dtype=dtype)])
    expected = torch.linalg.lu_factor_ex(a)
    for got, value in zip(run(aten.linalg_lu_factor_ex.default, a), expected, strict=True):
        assert_close(got, value)
    assert run(aten.linalg_inv_ex.default, a)[1].tolist() == torch.linalg.inv_ex(a).info.tolist()
    assert run(aten._linalg_solve_ex.default, a, a)[3].tolist() == torch.linalg.solve_ex(a, a).info.tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (2, 6, 4), (4, 6), (0, 3)], ids=str)
def test_lu_without_pivoting_rebuilds_the_matrix(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrix(*shape, dtype=dtype) + 10 * torch.eye(*shape[-2:], dtype=dtype)
    permutation, lower, upper = run(aten.linalg_lu.default, a, pivot=False)
    assert permutation.shape == (0,)
    assert_close(lower @ upper, a)
    pivots = run(aten.linalg_lu_factor_ex.default, a, pivot=False)[1]
    assert np.all(pivots == np.arange(1, min(shape[-2:]) + 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("overload", [aten._linalg_det.default, aten._linalg_slogdet.default], ids=str)
@pytest.mark.parametrize("contiguous", [True, False])
def test_lu_factors_are_those_that_gradients_of_determinants_expect(contiguous: bool, overload: Any, dtype: torch.dtype) -> None:
    a = matrix(2, 4, 4, dtype=dtype)
    a = a if contiguous else a.mT
    with jax.enable_x64(True):
        got = TABLE[overload].function(to_numpy(a), contiguous=contiguous)
    for g, e in zip(got, overload(a), strict=True):
        assert_close(np.asarray(g), e)


@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_determinants_of_singular_and_empty_matrices(shape: tuple[int, ...]) -> None:
    for a in (torch.zeros(shape), torch.ones(shape), -torch.eye(shape[-1]).expand(shape)):
        assert_close(run(aten._linalg_det.default, a)[0], torch.linalg.det(a))
        sign, logarithm = run(aten._linalg_slogdet.default, a)[:2]
        assert_close(sign, torch.linalg.slogdet(a).sign)
        assert_close(logarithm, torch.linalg.slogdet(a).logabsdet)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_ldl_agrees_with_lapack(n: int, hermitian: bool, dtype: torch.dtype) -> None:
    a = matrix(3, n, n, dtype=dtype)
    a = a + (a.mH if hermitian else a.mT)
    # A small diagonal asks for pivots of two rows.
    a[1] -= torch.diag(a[1].diagonal())
    b = matrix(n, 2, dtype=dtype, seed=1)
    expected = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
    factors, pivots, info = run(aten.linalg_ldl_factor_ex.default, a, hermitian=hermitian)
    assert pivots.tolist() == expected.pivots.tolist() and info.tolist() == expected.info.tolist()
    solution = run(
        aten.linalg_ldl_solve.default, torch.from_numpy(factors), expected.pivots, b.expand(3, n, 2), hermitian=hermitian
    )
    scale = np.abs(solution).max(axis=(-1, -2), keepdims=True)
    assert_close(to_numpy(a) @ (solution / scale), to_numpy(b) / scale)


def test_ldl_of_a_zero_matrix_reports_it() -> None:
    factors, pivots, info = run(aten.linalg_ldl_factor_ex.default, torch.zeros(3, 3))
    assert np.all(factors == 0) and info == 1 and pivots.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (4, 4), (2, 6, 3)], ids=str)
@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("vector", [False, True])
def test_least_squares_agree_with_lapack(vector: bool, driver: str | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrix(*shape, dtype=dtype)
    b = matrix(*shape[:-1], *(() if vector else (2,)), dtype=dtype, seed=1)
    for got, expected in zip(
        run(aten.linalg_lstsq.default, a, b, driver=driver), torch.linalg.lstsq(a, b, driver=driver), strict=True
    ):
        assert_close(got, expected)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd"])
def test_least_squares_of_a_deficient_rank_are_the_shortest(driver: str) -> None:
    a = matrix(6, 2) @ matrix(2, 4, seed=1)
    b = matrix(6, 2, seed=2)
    solution, _, rank, _ = run(aten.linalg_lstsq.default, a, b, driver=driver)
    assert rank == 2
    assert_close(solution, torch.linalg.pinv(a, rtol=1e-10) @ b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"atol": 1.0}, {"rtol": 0.5}, {"atol": 0.1, "rtol": 0.4}, {"atol": 0.0}], ids=str)
@pytest.mark.parametrize("hermitian", [False, True])
def test_pseudoinverses_agree_with_the_cpu(hermitian: bool, options: dict[str, float], dtype: torch.dtype) -> None:
    a = matrix(2, 5, 5 if hermitian else 3, dtype=dtype)
    a = a + a.mH if hermitian else a
    options = {name: torch.tensor([value], dtype=a.real.dtype) for name, value in options.items()}
    got = run(aten.linalg_pinv.atol_rtol_tensor, a, hermitian=hermitian, **options)
    assert_close(got, torch.linalg.pinv(a, hermitian=hermitian, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matrix_exponentials_of_small_and_large_matrices_side_by_side(dtype: torch.dtype) -> None:
    a = matrix(4, 5, 5, dtype=dtype)
    a = (a - a.mH) * torch.tensor([0.0, 1e-3, 1.0, 30.0]).reshape(-1, 1, 1).to(dtype)
    expected = torch.linalg.matrix_exp(a.to(torch.complex128 if dtype.is_complex else torch.float64)).to(dtype)
    np.testing.assert_allclose(
        run(aten.linalg_matrix_exp.default, a), expected, atol=1e-4 if a.real.dtype == torch.float32 else 1e-10
    )


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reflections_multiply_as_on_the_cpu(dtype: torch.dtype, left: bool) -> None:
    reflectors, scales = torch.geqrf(matrix(2, 6, 4, dtype=dtype))
    other = matrix(2, *((6, 3) if left else (3, 6)), dtype=dtype, seed=1)
    for transpose in (False, True):
        got = run(aten.ormqr.default, reflectors, scales, other, left, transpose)
        assert_close(got, torch.ormqr(reflectors, scales, other, left, transpose))
    assert_close(
        run(aten.linalg_householder_product.default, reflectors, scales), torch.linalg.householder_product(reflectors, scales)
    )
