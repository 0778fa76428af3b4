"""Compiler options that hold for every program of the process."""

from __future__ import annotations

import os
from typing import Any

from .. import _C
from .platform import platform

_allow_excess_precision = False


def allow_excess_precision() -> bool:
    return _allow_excess_precision


def set_allow_excess_precision(allow: bool) -> None:
    """Off, a program rounds after every op as its dtype says, so that ops give the same alone and fused."""
    global _allow_excess_precision
    if bool(allow) != _allow_excess_precision:
        _allow_excess_precision = bool(allow)
        _C.clear_entries()


def with_defaults(options: dict[str, Any] | None) -> dict[str, Any]:
    """``options`` of one program over those of the process."""
    chosen: dict[str, Any] = {"xla_allow_excess_precision": _allow_excess_precision}
    if platform() == "cpu":
        # XLA:CPU's YNN reductions drop NaNs in max and min (jaxlib 0.10.2): let YNN have matrix products only.
        chosen["xla_cpu_experimental_ynn_fusion_type"] = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
        if os.environ.get("TORCH_TPU_COMPILE_EFFORT", "normal") == "low":
            # Half the compile time for slower code: for tests, which run each of many tiny programs a few times.
            chosen["xla_backend_optimization_level"] = 0
    return chosen | (options or {})
