"""What was compiled and what was found: the caches behind eager ops."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _C
from .devices import is_initialized

__all__ = ["CacheStats", "cache_stats", "clear_cache"]


@dataclass(frozen=True)
class CacheStats:
    """Counts since the process began.

    ``hits`` and ``misses`` are lookups of an op's signature in memory; ``launches`` are programs run. A miss that had to be
    compiled is one of ``compilations``, one that the disk had is one of ``disk_hits``.
    """

    hits: int = 0
    misses: int = 0
    launches: int = 0
    compilations: int = 0
    compile_seconds: float = 0.0
    disk_hits: int = 0
    load_seconds: float = 0.0

    @property
    def num_cache_reqs(self) -> int:
        return self.hits + self.misses

    @property
    def num_cache_hits(self) -> int:
        return self.hits


def cache_stats() -> CacheStats:
    """What has been compiled and what was found, in memory and on disk. Starts nothing."""
    if not is_initialized():
        return CacheStats()
    from ..runtime.executables import stats

    return CacheStats(**_C.dispatch_counters(), **vars(stats))


def clear_cache(disk: bool = False) -> None:
    """Forget the executables in memory, and with ``disk`` also those on disk (of all programs that share the folder)."""
    _C.clear_entries()
    if disk:
        from ..runtime import disk_cache

        disk_cache.clear()


_get_cache_stats = cache_stats
_clear_cache = clear_cache
