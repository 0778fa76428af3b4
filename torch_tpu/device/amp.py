"""``torch.tpu.amp``: what ``torch.autocast("tpu")`` asks of a device."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

__all__ = ["get_amp_supported_dtype", "is_bf16_supported"]

_DEFAULT = torch.bfloat16
_threads = threading.local()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may compute in: bfloat16 is what a TPU's matrix unit takes."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always true."""
    return True


def _get_autocast_dtype() -> torch.dtype:
    """The dtype that autocast computes in on this thread."""
    _prepare_thread()
    return torch.get_autocast_dtype("tpu")


def _prepare_thread() -> None:
    # PyTorch keeps autocast's dtype for each thread, and starts it at float16 for a device that it does not know.
    if not getattr(_threads, "prepared", False):
        _threads.prepared = True
        torch.set_autocast_dtype("tpu", _DEFAULT)


def install() -> None:
    """Make bfloat16 the default of autocast on this thread, and on any other when it first uses autocast."""
    _prepare_thread()
    original = torch.amp.autocast_mode.autocast.__init__

    @functools.wraps(original)
    def prepared(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == "tpu":
            _prepare_thread()
        original(self, device_type, *args, **kwargs)

    torch.amp.autocast_mode.autocast.__init__ = prepared  # type: ignore[method-assign]
