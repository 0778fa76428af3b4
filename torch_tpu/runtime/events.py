"""When work on a device is done. A device runs one in-order queue, so a marker launched now is done when all before it is."""

from __future__ import annotations

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _C
from . import arrays
from .arrays import upload
from .executables import ArrayType, Executable, compile_program


@functools.cache
def _marker_program(device: int) -> tuple[Executable, jax.Array]:
    executable = compile_program(
        lambda x: [x + jnp.ones((), jnp.int32)], [ArrayType((), np.dtype(np.int32))], device=device, signature="marker", name="marker"
    )
    return executable, upload(np.zeros((), np.int32), device)


def marker(device: int) -> jax.Array:
    """An array that is ready once everything that this thread launched on ``device`` so far is done."""
    _C.flush("an event is recorded or waited for")
    executable, zero = _marker_program(device)
    return executable([zero])[0]


@dataclass
class EventState:
    """A recorded event: a place in a device's queue, and (for timing) the moment at which the device reached it."""

    device: int
    array: Any  # a jax.Array; its type does not declare is_ready()
    reached: float | None = None
    done: threading.Event | None = field(default=None, repr=False)


@functools.cache
def _waiters(device: int) -> ThreadPoolExecutor:
    # One thread a device: places in one queue are reached in order.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"torch_tpu events of tpu:{device}")


def record(device: int, timing: bool) -> EventState:
    state = EventState(device, marker(device))
    if timing:
        state.done = threading.Event()
        if query(state):  # the device was idle, and is there already
            state.reached = time.perf_counter()
            state.done.set()
            return state

        def wait() -> None:
            try:
                state.array.block_until_ready()
            finally:
                state.reached = time.perf_counter()
                state.done.set()  # type: ignore[union-attr]

        _waiters(device).submit(wait)
    return state


def query(state: EventState) -> bool:
    return bool(state.array.is_ready())


def wait(state: EventState) -> None:
    state.array.block_until_ready()
    if state.done is not None:
        state.done.wait()


def elapsed_milliseconds(start: EventState, end: EventState) -> float:
    """Milliseconds between the moments at which the device reached two timing events; RuntimeError as PyTorch raises it."""
    for state in (start, end):
        if state.done is None:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not state.done.is_set():
            if not state.array.is_ready():
                raise RuntimeError("Both events must be completed before calculating elapsed time.")
            state.done.wait()
    assert start.reached is not None and end.reached is not None
    return 1e3 * (end.reached - start.reached)


def synchronize(device: int) -> None:
    """Wait until the device has done everything; a failure of asynchronous work is raised here."""
    _C.flush("the device is synchronized")
    for base, _, _, _, where in _C.live_storages():
        if where == device and base is not None and not base.is_deleted():
            arrays.wait(base)
    arrays.wait(marker(device))
