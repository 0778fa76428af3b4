"""PyTorch's native backend for TPUs, in Python, over XLA."""

from __future__ import annotations

__version__ = "0.3.0"


def _autoload() -> None:
    from .device.registration import register

    register()
