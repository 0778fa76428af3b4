"""``torch.backends.tpu``: what this build and this machine can do, as ``torch.backends.cuda`` says it."""

from __future__ import annotations

import importlib.metadata

from ..runtime import platform as _platform

__all__ = ["is_available", "is_built", "platform", "version"]


def is_built() -> bool:
    """Whether PyTorch can use tpu devices at all: always, where this module exists."""
    return True


def is_available() -> bool:
    """Whether this process has a tpu device; the same as ``torch.tpu.is_available()``."""
    return _platform.expected_device_count() > 0


def platform() -> str:
    """The PJRT platform under the device: ``tpu``, ``cpu`` (the emulation), ``cuda``, or ``none``."""
    return _platform.platform()


def version() -> str | None:
    """The version of libtpu, or None where it is not installed."""
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return None
