"""Interleaved repeats and their minima, and a table of what was reached.

On a shared machine a mean says how busy the neighbours were. The minimum over many short repeats, taken in turns by the
programs that are compared, says how quick the code is.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


def best(
    programs: Mapping[str, Callable[[], object]], *, calls: int, repeats: int, between: Callable[[], object]
) -> dict[str, float]:
    """Seconds a call of each program: the minimum over ``repeats`` of ``calls`` calls in a row, the programs taking turns.

    ``between`` runs untimed after each repeat, to let the device finish before the next one starts.
    """
    for program in programs.values():
        program()
    between()
    least = dict.fromkeys(programs, float("inf"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, program in programs.items():
                start = time.perf_counter()
                for _ in range(calls):
                    program()
                least[name] = min(least[name], (time.perf_counter() - start) / calls)
                between()
    finally:
        gc.enable()
    return least


@dataclass(frozen=True)
class Row:
    """One figure: what it is, its value, the bound that it must reach, and what it was computed from."""

    what: str
    value: float
    bound: float
    detail: str
    at_least: bool = False

    @property
    def reached(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def print_table(rows: list[Row]) -> None:
    width = max(len(row.what) for row in rows)
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        verdict = "reached" if row.reached else "MISSED"
        print(f"{row.what:{width}s}  {row.value:7.2f}  {sign} {row.bound:<5g} {verdict:8s} {row.detail}")


def microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.2f} µs"
