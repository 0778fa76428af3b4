"""Compiled programs: from a function on arrays to something that runs in a few microseconds, by way of the disk cache.

An executable is run through ``LoadedExecutable.execute_sharded``, which is what ``jax.jit`` itself ends in, without the
argument checks that our own key has made already. This is the file that knows those corners of jaxlib.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src.lax import lax as lax_internal
from jax._src.lib import xla_client

from . import disk_cache
from .client import devices, sharding
from .options import with_defaults
from .progress import long_work

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Executable:
    """A loaded program: ``execute`` takes the list of input arrays, ``handlers`` make arrays of what it gives."""

    loaded: Any
    handlers: list[Any]

    @property
    def execute(self) -> Callable[[list[jax.Array]], Any]:
        return self.loaded.execute_sharded

    def __call__(self, inputs: Sequence[jax.Array]) -> list[jax.Array]:
        return self.execute(list(inputs)).consume_with_handlers(self.handlers)


@dataclass
class CompilationStats:
    """What has been compiled and what was found, since the process began."""

    compilations: int = 0
    compile_seconds: float = 0.0
    disk_hits: int = 0
    load_seconds: float = 0.0


stats = CompilationStats()


@dataclass(frozen=True)
class ArrayType:
    """The shape and dtype of an input; ``weak`` as JAX means it (a Python number)."""

    shape: tuple[int, ...]
    dtype: np.dtype
    weak: bool = False

    def abstract(self, index: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype, sharding=sharding(index), weak_type=self.weak)


def compile_program(
    function: Callable[..., Any],
    inputs: Sequence[ArrayType],
    *,
    device: int,
    donated: Sequence[int] = (),
    signature: str | None = None,
    name: str = "program",
    options: dict[str, Any] | None = None,
) -> Executable:
    """The executable of ``function`` (arrays → flat sequence of arrays) on ``device``.

    ``donated`` lists the inputs whose buffers the outputs may take over. ``signature`` names the program across processes:
    with one, a copy in the disk cache is loaded instead of compiling, and a new one is stored.
    """
    options = with_defaults(options)
    key = None
    if signature is not None and disk_cache.enabled():
        key = disk_cache.key_of(f"{signature}|device {device}|donated {tuple(donated)}|options {sorted(options.items())}")
        found = _load(key, device)
        if found is not None:
            return found
    started = time.perf_counter()

    def named(*arrays: jax.Array) -> Any:
        return tuple(function(*arrays))

    named.__name__ = named.__qualname__ = name
    # The place of the results is said, because a program without inputs would run on the first device.
    jitted = jax.jit(named, donate_argnums=tuple(donated), keep_unused=True, out_shardings=sharding(device))
    with jax.enable_x64(True), long_work(f"compiling {name}"):
        lowered = jitted.trace(*(each.abstract(device) for each in inputs)).lower()
        compiled = lowered.compile(options)
    outputs = [(tuple(each.shape), np.dtype(each.dtype)) for each in jax.tree.leaves(lowered.out_info)]
    loaded = compiled.runtime_executable()
    stats.compilations += 1
    stats.compile_seconds += time.perf_counter() - started
    log.debug("compiled %s in %.1f ms", name, 1e3 * (time.perf_counter() - started))
    if key is not None:
        disk_cache.store(key, outputs, loaded.client.serialize_executable(loaded))
    return Executable(loaded, _handlers(outputs, device))


def weakly_typed(number: jax.Array) -> jax.Array:
    """A traced 0-d array as JAX types a Python number, so that it promotes like one."""
    return lax_internal._convert_element_type(number, number.dtype, weak_type=True)


def _load(key: str, device: int) -> Executable | None:
    started = time.perf_counter()
    entry = disk_cache.load(key)
    if entry is None:
        return None
    outputs, serialized = entry
    if _CALLS_LAPACK in serialized:
        _find_lapack()
    where = devices()[device]
    try:
        loaded = where.client.deserialize_executable(serialized, xla_client.DeviceList((where,)), None)
    except Exception as error:  # jaxlib raises various types; whichever it is, a foreign entry means compiling again
        log.warning("a cached executable does not load and is compiled again: %s", error)
        disk_cache.discard(key)
        return None
    stats.disk_hits += 1
    stats.load_seconds += time.perf_counter() - started
    return Executable(loaded, _handlers(outputs, device))


_CALLS_LAPACK = b"lapack_"


@functools.cache
def _find_lapack() -> None:
    """What jaxlib does when a call of LAPACK is lowered, and not when one is loaded: take the functions from SciPy."""
    from jaxlib import lapack

    lapack.prepare_lapack_call("getrf", np.dtype(np.float32))


def _handlers(outputs: Sequence[tuple[tuple[int, ...], np.dtype]], device: int) -> list[Any]:
    return [
        xla_client.array_result_handler(jax.core.ShapedArray(shape, dtype), sharding(device), True, True) for shape, dtype in outputs
    ]
