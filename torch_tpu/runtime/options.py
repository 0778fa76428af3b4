"""Compiler options that hold for every program of the process."""

from __future__ import annotations

from typing import Any

from .. import _C

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
    return {"xla_allow_excess_precision": _allow_excess_precision} | (options or {})
