"""Makes ``tpu`` a PyTorch device: names and callbacks only. PJRT and JAX start with the first tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _C
from ..runtime import platform

_CALLBACKS = (
    "describe", "miss", "plan_view", "make_scalar", "make_zeros", "resize", "transfer", "failed", "before", "after",
    "synchronize", "record_event", "query_event", "wait_event", "elapsed", "memory_info",
)  # fmt: skip


def register() -> None:
    """Name the device, hand the native layer its callbacks, and install ``torch.tpu`` and ``torch.backends.tpu``."""
    torch.utils.rename_privateuse1_backend("tpu")
    callbacks: dict[str, Callable[..., Any]] = {name: _late(name) for name in _CALLBACKS}
    _C.setup(platform.expected_device_count(), callbacks | {"initialize": initialize})
    _C.register_overload("*")
    from . import namespace

    torch._register_device_module("tpu", namespace)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def initialize() -> None:
    """Start the engine, and with it JAX and PJRT; once a process."""
    if not _C.is_initialized():
        from ..eager import engine

        _C.setup(platform.expected_device_count(), engine.CALLBACKS | {"initialize": initialize})
        engine.start()


def _late(name: str) -> Callable[..., Any]:
    """A callback that starts the engine at its first call, and from then on is replaced by the engine's own."""

    def callback(*args: Any) -> Any:
        initialize()
        from ..eager import engine

        return engine.CALLBACKS[name](*args)

    return callback
