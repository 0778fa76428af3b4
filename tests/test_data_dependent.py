"""Ops whose result's shape depends on values: as on CPU, and with no new program for each new count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

NAN = float("nan")
GRID = torch.tensor([[0, 1.0, NAN], [3, 0, 2]])
ROWS = torch.tensor([[1, 2], [0, 5], [1, 2], [0, 4], [0, 5]])


def outcome(function: Callable[..., Any], device: str, *tensors: torch.Tensor) -> Any:
    """What a call gives, as CPU tensors, or the type and first line of what it raises."""
    try:
        result = function(*(x.to(device) for x in tensors))
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]
    return tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, result)


def same(function: Callable[..., Any], *tensors: torch.Tensor) -> None:
    expected, got = outcome(function, "cpu", *tensors), outcome(function, "tpu", *tensors)
    if isinstance(expected, tuple) and isinstance(expected[0], str):
        assert got == expected
    else:
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True, check_stride=False)


@pytest.mark.parametrize("x", [GRID, GRID.t(), torch.tensor(3), torch.tensor(0), torch.zeros(0, 3), torch.zeros(4, 3)])
def test_positions_of_nonzero_elements(x: torch.Tensor) -> None:
    same(torch.nonzero, x)
    same(lambda x: x.nonzero(as_tuple=True), x)
    same(lambda x: torch.nonzero(x, out=torch.empty(0, dtype=torch.int64, device=x.device)), x)
    same(lambda x: torch.nonzero_static(x, size=5, fill_value=7), x)


def test_masked_select_broadcasts_and_checks_its_mask() -> None:
    row = torch.tensor([True, False, True])
    same(torch.masked_select, GRID, row)
    same(torch.masked_select, row, GRID > 1)
    same(torch.masked_select, GRID, torch.tensor([True, False]))
    same(torch.masked_select, GRID, torch.tensor([1, 0, 1]))
    same(lambda x, m: x[m], GRID, GRID > 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_unique(dtype: torch.dtype, dim: int | None) -> None:
    for function in (torch.unique, torch.unique_consecutive):
        same(lambda x, f=function: f(x, return_inverse=True, return_counts=True, dim=dim), ROWS.to(dtype))
        same(lambda x, f=function: f(x, dim=dim), ROWS.to(dtype))


def test_every_nan_is_unique() -> None:
    same(lambda x: torch.unique(x, return_inverse=True, return_counts=True), torch.tensor([3.0, NAN, -0.0, 0.0, NAN]))


@pytest.mark.parametrize("shape, dim", [((0, 3), 0), ((0, 3), 1), ((0, 0), 1), ((), 0), ((), None), ((0,), None)])
def test_unique_of_nothing(shape: tuple[int, ...], dim: int | None) -> None:
    for function in (torch.unique, torch.unique_consecutive):
        same(lambda x, f=function: f(x, return_inverse=True, return_counts=True, dim=dim), torch.zeros(shape))


@pytest.mark.parametrize("values", [[1, 5, 3, 3], [-1], [1.0], [True], [[1]]])
def test_bincount(values: list[Any]) -> None:
    same(torch.bincount, torch.tensor(values))
    same(lambda x: torch.bincount(x, minlength=7), torch.tensor(values))
    same(lambda x: torch.bincount(x, minlength=-7), torch.tensor(values))
    same(torch.bincount, torch.tensor(values), torch.tensor([1, 2, 0.5, 3]))


@pytest.mark.parametrize("repeats", [[1, 4], [0, 0], [2, -1], [1.0, 2.0], [[1, 1]], [3]])
def test_repeat_interleave(repeats: list[Any]) -> None:
    same(torch.repeat_interleave, torch.tensor(repeats))
    same(lambda x, r: torch.repeat_interleave(x, r, dim=0), GRID, torch.tensor(repeats))


@pytest.mark.parametrize("other", [torch.ones(3), torch.zeros(3), torch.ones(2), torch.ones(3, dtype=torch.int64)])
def test_equal(other: torch.Tensor) -> None:
    same(torch.equal, torch.ones(3), other)


@pytest.mark.parametrize("condition", [torch.tensor(0), torch.tensor(1), torch.tensor([0, 1]), torch.tensor([])])
def test_assert_async(condition: torch.Tensor) -> None:
    same(torch._assert_async, condition)


def test_a_new_count_compiles_nothing() -> None:
    from torch_tpu.runtime.executables import stats

    x, places = torch.arange(64.0).to("tpu"), torch.arange(64).to("tpu")
    selections = [lambda m: torch.masked_select(x, m), torch.nonzero, lambda m: torch.repeat_interleave(m.long())]
    for select in selections:
        for count in (33, 64):
            select(places < count).cpu()
        before = stats.compilations
        lengths = [select(places < count).cpu().shape[0] for count in range(34, 60)]
        assert lengths == list(range(34, 60))
        # The comparison is a run-time number; 33 to 64 elements share a buffer.
        assert stats.compilations == before
