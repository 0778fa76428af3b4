"""Every operator of PyTorch's database, once: its smallest sample in one dtype, forward and backward.

A fixed and quick part of ``make sweep``. What docs/operators.json says passes must pass; what it lists as failing may fail.
"""

from __future__ import annotations

import pytest

from . import module_cases, operator_table, opinfo
from .opinfo import Case

COMMITTED = operator_table.read()


def one_dtype(name: str, kind: str) -> str | None:
    """The first dtype, in the order that they matter, that the committed table says works; else the first listed."""
    listed = opinfo.listed_dtypes(opinfo.operators()[name], kind)
    working = [dtype for dtype in listed if _works(Case("op", name, dtype, kind))]
    return (working or listed or [None])[0]


def _works(case: Case) -> bool:
    line = COMMITTED.get((case.suite, case.name, case.dtype, case.kind))
    return line is not None and line["status"] in ("passed", "deviates")


def hold(case: Case, outcome: opinfo.Outcome) -> None:
    """Fail if a case that the table says passes does not; report one that the table lists as failing as an expected failure."""
    if outcome.status in ("passed", "deviates"):
        return
    if _works(case):
        pytest.fail(f"docs/operators.json says that {case} passes, but it {outcome.status}: {outcome.cause}")
    pytest.xfail(outcome.cause or "nothing to check")


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize("name", sorted(opinfo.operators()))
def test_operator(name: str, kind: str) -> None:
    dtype = one_dtype(name, kind)
    if dtype is None:
        assert kind == "backward"  # not differentiable
        return
    case = Case("op", name, dtype, kind)
    hold(case, opinfo.run_operator_case(case, most=1, smallest=True))


@pytest.mark.parametrize("name", sorted(module_cases.modules()))
def test_module(name: str) -> None:
    case = Case("module", name, "float32", "backward")
    hold(case, module_cases.run_module_case(case, most=1))


@pytest.mark.parametrize("name", sorted(module_cases.optimizers()))
def test_optimizer(name: str) -> None:
    for case in module_cases.optimizer_cases(module_cases.optimizers()[name]):
        if case.kind in ("single", "foreach"):
            hold(case, module_cases.run_optimizer_case(case, most=1))
