"""``torch.tpu``: everything that it offers, in one place.

Each name is explained where it is defined: devices.py, memory.py, random.py, streams.py, amp.py, modes.py, cache.py, interop.py,
and for ``torch.tpu.compiler`` the package torch_tpu/compiler, of which this imports no more than the names.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch

from .. import compiler
from . import amp, memory, random, streams
from .amp import _get_autocast_dtype, get_amp_supported_dtype, is_bf16_supported
from .cache import CacheStats, _clear_cache, _get_cache_stats, cache_stats, clear_cache
from .devices import (
    DeviceProperties,
    _is_in_bad_fork,
    _lazy_init,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    set_device,
    synchronize,
)  # fmt: skip
from .fusion import FusionReport, fusion_report, mark_step
from .interop import from_jax, to_jax
from .memory import (
    _hbm_usage_summary,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)  # fmt: skip
from .modes import (
    EagerMode,
    Precision,
    cpu_fallback,
    cpu_fallback_counts,
    debug_nans,
    precision,
    process_mode,
    set_eager_mode,
    set_process_mode,
)  # fmt: skip
from .random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)  # fmt: skip
from .streams import Event, Stream, StreamContext, current_stream, default_stream, set_stream, stream

__all__ = [
    # devices
    "DeviceProperties", "current_device", "device", "device_count", "device_of", "get_device_capability",
    "get_device_name", "get_device_properties", "init", "is_available", "is_initialized", "set_device", "synchronize",
    # memory
    "empty_cache", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory", "memory_allocated",
    "memory_reserved", "memory_stats", "memory_summary", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    # streams and events
    "Event", "Stream", "StreamContext", "current_stream", "default_stream", "set_stream", "stream", "streams",
    # random numbers
    "default_generators", "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all", "random",
    "seed", "seed_all", "set_rng_state", "set_rng_state_all",
    # modes and precision
    "EagerMode", "Precision", "allow_excess_precision", "cpu_fallback", "cpu_fallback_counts", "debug_nans", "eager_mode",
    "precision", "set_eager_mode",
    # deferred execution
    "FusionReport", "fusion_report", "mark_step",
    # autocast
    "amp", "get_amp_supported_dtype", "is_bf16_supported",
    # compiled programs
    "CacheStats", "cache_stats", "clear_cache",
    "compiler",
    # other libraries
    "from_jax", "to_jax",
]  # fmt: skip

# What PyTorch and other libraries look for by name.
_PRIVATE = (_clear_cache, _get_autocast_dtype, _get_cache_stats, _hbm_usage_summary, _is_in_bad_fork, _lazy_init)


class _Namespace(ModuleType):
    """The module's class, because a module has properties only through one."""

    @property
    def eager_mode(self) -> EagerMode:
        """How eager ops run in this process; see ``EagerMode``. Assign to change it."""
        return process_mode()

    @eager_mode.setter
    def eager_mode(self, mode: EagerMode) -> None:
        set_process_mode(mode)

    @property
    def allow_excess_precision(self) -> bool:
        """Whether the compiler may keep more bits between two ops of a program than their dtype has; False at first."""
        from ..runtime import options

        return options.allow_excess_precision()

    @allow_excess_precision.setter
    def allow_excess_precision(self, allow: bool) -> None:
        from ..runtime import options

        options.set_allow_excess_precision(allow)

    @property
    def _initialized(self) -> bool:
        # torch.utils.checkpoint keeps the state of the generators only where this says that there are any in use.
        return is_initialized()

    @property
    def default_generators(self) -> tuple[torch.Generator, ...]:
        """The generator that each device draws from where none is given."""
        return random.default_generators()


sys.modules[__name__].__class__ = _Namespace
