"""The switches of ``torch.tpu``: eager mode, debugging, running unsupported ops on the CPU, and precision."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..eager import fallback
from ..eager.modes import EagerMode, process_mode, set_eager_mode, set_process_mode

__all__ = [
    "EagerMode", "Precision", "cpu_fallback", "cpu_fallback_counts", "debug_nans", "precision", "process_mode",
    "set_eager_mode", "set_process_mode",
]  # fmt: skip


class _Switch:
    """Sets a flag when made; as a context manager, puts the old value back at the end of the block."""

    def __init__(self, on: bool = True) -> None:
        self.previous = self._get()
        self._set(bool(on))

    @staticmethod
    def _get() -> bool:
        raise NotImplementedError

    @staticmethod
    def _set(on: bool) -> None:
        raise NotImplementedError

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        self._set(self.previous)


class cpu_fallback(_Switch):
    """Whether an op that the device does not have runs on the CPU instead of raising. A function, and a context manager.

    Each such op warns once and is counted in ``cpu_fallback_counts()``: its arguments travel to the host and back.
    """

    @staticmethod
    def _get() -> bool:
        return fallback.enabled()

    @staticmethod
    def _set(on: bool) -> None:
        fallback.set_enabled(on)


def cpu_fallback_counts() -> dict[str, int]:
    """How often each op has run on the CPU, most often first."""
    return dict(fallback.counts.most_common())


class debug_nans(_Switch):
    """Whether debug mode stops at the op that makes the first NaN or infinity. A function, and a context manager."""

    @staticmethod
    def _get() -> bool:
        from ..eager import debug

        return debug.debug_nans_enabled()

    @staticmethod
    def _set(on: bool) -> None:
        from ..eager import debug

        debug.set_debug_nans(on)


class Precision(enum.Enum):
    """How float32 matrix products are computed: from bfloat16 parts (one, three or six passes on a TPU)."""

    DEFAULT = "medium"
    HIGH = "high"
    HIGHEST = "highest"


@contextmanager
def precision(mode: Precision) -> Iterator[None]:
    """Compute the block's float32 products with ``mode``: ``torch.set_float32_matmul_precision`` for the process, put back after."""
    if not isinstance(mode, Precision):
        raise TypeError(f"expected one of {', '.join(map(str, Precision))}, got {mode!r}")
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(mode.value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)
