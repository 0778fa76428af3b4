"""The PJRT client and its devices, started with the first tensor and shared with the user's own JAX code."""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

from .platform import num_cpu_devices, platform

_started_in: int | None = None


def in_forked_child() -> bool:
    """Whether this process was forked from one whose client had started: its threads did not survive the fork."""
    return _started_in is not None and _started_in != os.getpid()


def check_not_forked() -> None:
    if in_forked_child():
        raise RuntimeError(
            "Cannot re-initialize tpu in forked subprocess. To use tpu with multiprocessing, you must use the 'spawn' start method"
        )


@functools.cache
def devices() -> tuple[Any, ...]:
    """The ``jax.Device``s of the platform, in index order. Starts PJRT; RuntimeError where there is no such platform."""
    global _started_in
    kind = platform()
    if kind == "none":
        raise RuntimeError("tpu: TORCH_TPU_PLATFORM=none leaves this process without a tpu device")
    import jax
    from jax._src import xla_bridge

    _accept_worker_processes()
    if not xla_bridge.backends_are_initialized():
        if kind == "cpu":
            jax.config.update("jax_num_cpu_devices", num_cpu_devices())
        if jax.config.values["jax_platforms"] is None:
            # Only what is asked for: with libtpu installed and no chip, JAX would look for one over the network.
            jax.config.update("jax_platforms", "cpu" if kind == "cpu" else f"{kind},cpu")
    try:
        found = tuple(jax.local_devices(backend=kind))
    except RuntimeError as error:
        raise RuntimeError(f"tpu: the PJRT platform {kind!r} (TORCH_TPU_PLATFORM) does not start: {error}") from error
    if kind == "cpu" and len(found) < num_cpu_devices():
        raise RuntimeError(
            f"tpu: TORCH_TPU_NUM_CPU_DEVICES={num_cpu_devices()}, but JAX was used before and started with {len(found)} CPU "
            "device(s); create a tpu tensor first, or set jax_num_cpu_devices in the JAX code"
        )
    _started_in = os.getpid()
    return found


def _accept_worker_processes() -> None:
    """Silence JAX's warning for forks by ``multiprocessing``: data loaders' workers do not use the device, and raise if they do."""
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning, r"multiprocessing\.popen_fork")


@functools.cache
def sharding(index: int) -> Any:
    """The sharding that puts an array on device ``index``."""
    from jax.sharding import SingleDeviceSharding

    return SingleDeviceSharding(devices()[index])
