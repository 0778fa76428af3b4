"""Execution modes: one for the process, and one that a thread may set for a block of code.

A thread's mode travels with PyTorch's thread-local state, which the autograd engine hands to the threads that run the backward
of a graph, so a backward runs in the mode of its ``backward()`` call.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from contextlib import contextmanager

from .. import _C


class EagerMode(enum.Enum):
    """How eager ops run.

    STRICT (``DEFER_NEVER``): each op is one cached executable, launched asynchronously.
    DEBUG (``DEFER_NEVER_AND_LAUNCH_BLOCKING``): the same, but each op is waited for and indices are checked, so that an error
    is raised at the line that made it.
    DEFER_AND_FUSE: ops are recorded and run together as few executables.
    """

    STRICT = 0
    DEBUG = 1
    DEFER_AND_FUSE = 2
    DEFER_NEVER = 0
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1


def check_mode(mode: object) -> EagerMode:
    if not isinstance(mode, EagerMode):
        known = ", ".join(f"EagerMode.{m.name}" for m in EagerMode)
        raise TypeError(f"tpu: expected one of {known} as the eager mode, got {mode!r}")
    return mode


def mode_from_environment() -> EagerMode:
    """DEBUG with ``TORCH_TPU_LAUNCH_BLOCKING=1``; else DEFER_AND_FUSE with ``TORCH_TPU_DEFER_AND_FUSE=1``; else STRICT."""
    if os.environ.get("TORCH_TPU_LAUNCH_BLOCKING", "0") == "1":
        return EagerMode.DEBUG
    return EagerMode.DEFER_AND_FUSE if os.environ.get("TORCH_TPU_DEFER_AND_FUSE", "0") == "1" else EagerMode.STRICT


_process_mode = EagerMode.STRICT


def process_mode() -> EagerMode:
    return _process_mode


def set_process_mode(mode: EagerMode) -> None:
    global _process_mode
    _process_mode = check_mode(mode)
    _C.flush("the mode changes")
    _C.set_mode(_process_mode.value)


def current_mode() -> EagerMode:
    """The mode in effect on this thread."""
    return EagerMode(_C.effective_mode())


@contextmanager
def set_eager_mode(mode: EagerMode) -> Iterator[None]:
    """Run the block in ``mode`` on this thread and in the backward passes that it starts."""
    _C.push_mode(check_mode(mode).value)
    try:
        yield
    finally:
        _C.flush("the mode changes")
        _C.pop_mode()
