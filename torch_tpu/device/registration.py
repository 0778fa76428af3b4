"""Makes ``tpu`` a PyTorch device: names and callbacks only. PJRT and JAX start with the first tensor."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from .. import _C
from ..eager.modes import mode_from_environment, set_process_mode
from ..runtime import platform

_CALLBACKS = (
    "describe", "miss", "prepare", "fuse", "pack", "flushed", "plan_view", "make_scalar", "make_zeros", "resize", "transfer",
    "failed", "before", "after", "synchronize", "record_event", "query_event", "wait_event", "elapsed", "memory_info",
)  # fmt: skip

_registered = False
_starting = threading.RLock()


def register() -> None:
    """Name the device, hand the native layer its callbacks, and install ``torch.tpu`` and ``torch.backends.tpu``; once."""
    global _registered
    if _registered:
        return
    count = platform.expected_device_count()
    # Without devices, the name would only hide another accelerator that PyTorch was built with.
    named = count > 0 or torch.accelerator.current_accelerator() is None
    if named:
        torch.utils.rename_privateuse1_backend("tpu")
    callbacks: dict[str, Callable[..., Any]] = {name: _late(name) for name in _CALLBACKS}
    _C.setup(count, callbacks | {"initialize": initialize})
    _C.register_overload("*")
    set_process_mode(mode_from_environment())
    _install_modules()
    if named:
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        from . import amp, dynamo, interop, printing

        for part in (amp, dynamo, interop, printing):
            part.install()
    _registered = True


def _install_modules() -> None:
    from . import backends, namespace

    torch._register_device_module("tpu", namespace)
    for name in ("memory", "random", "streams", "amp"):
        sys.modules[f"torch.tpu.{name}"] = sys.modules[f"{__package__}.{name}"]
    sys.modules["torch.tpu.compiler"] = namespace.compiler
    torch.backends.tpu = backends  # type: ignore[attr-defined]
    sys.modules["torch.backends.tpu"] = backends


def initialize() -> None:
    """Start the engine, and with it JAX and PJRT; once a process. Threads that come meanwhile wait."""
    with _starting:
        if not _C.is_initialized():
            from ..eager import engine

            engine.start()
            _C.setup(platform.expected_device_count(), engine.CALLBACKS | {"initialize": initialize})


def _late(name: str) -> Callable[..., Any]:
    """A callback that starts the engine at its first call, and from then on is replaced by the engine's own."""

    def callback(*args: Any) -> Any:
        initialize()
        from ..eager import engine

        return engine.CALLBACKS[name](*args)

    return callback
