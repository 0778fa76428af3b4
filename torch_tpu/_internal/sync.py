"""Waiting for tensors, under the name by which other projects import it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .. import _C
from ..runtime import arrays

__all__ = ["synchronize"]


def synchronize(tensors: Iterable[torch.Tensor] | None = None, wait: bool = True) -> None:
    """Run what is deferred; with ``wait``, until ``tensors`` (everything on the current device for None) have been computed."""
    _C.flush("sync.synchronize() is called")
    if not wait:
        return
    if tensors is None:
        torch.accelerator.synchronize()
        return
    for tensor in tensors:
        base = _C.base(tensor)
        if base is not None:
            arrays.wait(base)
