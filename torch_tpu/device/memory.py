"""``torch.tpu.memory``: what the device's memory holds.

The figures of tensors are our own: bytes of live storages, exact at any moment. What the device reserves and has free comes
from PJRT; the emulation's devices share the host's memory.
"""

from __future__ import annotations

import collections
import pickle
from typing import Any

import torch

from .. import _C
from .devices import Device, checked_index, device_count, init, is_initialized

__all__ = [
    "empty_cache", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved",
    "memory_stats", "memory_summary", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
    "reset_peak_memory_stats",
]  # fmt: skip


def memory_stats(device: Device = None) -> collections.OrderedDict[str, Any]:
    """All figures of a device, under the names that ``torch.cuda.memory_stats`` has; empty before the first tensor."""
    return torch.accelerator.memory_stats(checked_index(device))


def memory_allocated(device: Device = None) -> int:
    """The bytes that live tensors hold now."""
    return _C.memory_counters(checked_index(device))["bytes"]


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that tensors have held since the start, or since ``reset_peak_memory_stats``."""
    return _C.memory_counters(checked_index(device))["peak_bytes"]


def memory_reserved(device: Device = None) -> int:
    """The bytes that the runtime holds of the device's memory."""
    return torch.accelerator.memory_reserved(checked_index(device))


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes that the runtime has held."""
    return torch.accelerator.max_memory_reserved(checked_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes of the device. Starts the runtime."""
    index = checked_index(device)
    init()
    return torch.accelerator.get_memory_info(index)


def empty_cache() -> None:
    """Nothing to do: memory goes back to the runtime with the last reference to a tensor."""


def reset_peak_memory_stats(device: Device = None) -> None:
    """Count the peaks from what is held now."""
    index = checked_index(device)
    if is_initialized():
        torch.accelerator.reset_peak_memory_stats(index)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Count what was allocated and freed from now on."""
    index = checked_index(device)
    if is_initialized():
        torch.accelerator.reset_accumulated_memory_stats(index)


reset_max_memory_allocated = reset_peak_memory_stats


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The figures of a device and its largest tensors, as text to print; without the tensors if ``abbreviated``."""
    from ..runtime.memory import format_bytes, largest_storages

    index = checked_index(device)
    free, total = mem_get_info(index)
    counters = _C.memory_counters(index)
    rows = [
        ("device", f"{format_bytes(total)}, of which {format_bytes(free)} free"),
        ("tensors", f"{format_bytes(counters['bytes'])} in {counters['storages']} storages"),
        ("at most", f"{format_bytes(counters['peak_bytes'])} in {counters['peak_storages']} storages"),
        ("reserved", format_bytes(memory_reserved(index))),
    ]
    if not abbreviated:
        rows += [("largest" if i == 0 else "", text) for i, text in enumerate(largest_storages(index))]
    return "\n".join([f"Memory of tpu:{index}", *(f"  {label:<9} {text}" for label, text in rows)])


def _hbm_usage_summary() -> str:
    return "\n".join(memory_summary(i, abbreviated=True) for i in range(device_count()))


def _record_memory_history(*args: Any, **kwargs: Any) -> None:
    """Nothing to switch on: the live storages are always known. Where they were made is not recorded."""


def _snapshot(device: Device = None, **kwargs: Any) -> dict[str, Any]:
    """The live storages, in the form of ``torch.cuda.memory._snapshot`` that memory viewers read."""
    index = None if device is None else checked_index(device)
    segments = []
    address = 0
    for _, nbytes, _, _, where in _C.live_storages():
        if index is not None and where != index:
            continue
        block = {"size": nbytes, "requested_size": nbytes, "address": address, "state": "active_allocated", "frames": []}
        segments.append({
            "device": where, "address": address, "total_size": nbytes, "allocated_size": nbytes, "active_size": nbytes,
            "requested_size": nbytes, "stream": 0, "segment_type": "large", "frames": [], "blocks": [block],
        })  # fmt: skip
        address += nbytes
    return {"segments": segments, "device_traces": [[] for _ in range(device_count())], "allocator_settings": {}}


def _dump_snapshot(filename: str = "dump_snapshot.pickle", **kwargs: Any) -> None:
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)
