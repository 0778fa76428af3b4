"""Deferred execution, as the user sees it."""

from __future__ import annotations

from .. import _C
from ..eager.fusion_report import FusionReport, fusion_report

__all__ = ["FusionReport", "fusion_report", "mark_step"]


def mark_step() -> None:
    """Run what ``EagerMode.DEFER_AND_FUSE`` has recorded so far, without waiting for it; nothing in other modes.

    Never needed for reuse or for correctness: it only says where one executable should end.
    """
    _C.flush("mark_step() is called")
