"""What is known of a device's memory, and what to say when it runs out."""

from __future__ import annotations

import re

import torch

from .. import _C
from .arrays import memory_statistics
from .client import devices


def host_bytes() -> int:
    """The bytes of physical memory of this machine, which the emulation's devices share."""
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def host_bytes_available() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def memory_info(index: int) -> tuple[int, int, int]:
    """(free, total, reserved) bytes of device ``index``: PJRT's figures, or the host's where PJRT keeps none."""
    statistics = memory_statistics(index)
    live = _C.memory_counters(index)["bytes"]
    if "bytes_limit" in statistics:
        total, used = statistics["bytes_limit"], statistics.get("bytes_in_use", live)
        return max(0, total - used), total, statistics.get("bytes_reserved", used)
    return host_bytes_available(), host_bytes(), live


def format_bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.2f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def largest_storages(index: int, most: int = 5) -> list[str]:
    """The largest live storages of a device, described."""
    live = [(nbytes, shape, dtype) for _, nbytes, shape, dtype, device in _C.live_storages() if device == index]
    described = []
    for nbytes, shape, dtype in sorted(live, key=lambda each: -each[0])[:most]:
        what = f"{str(dtype).removeprefix('torch.')}{list(shape)}" if shape is not None else "never written"
        described.append(f"{format_bytes(nbytes)} {what}")
    return described


def out_of_memory(what: str, detail: str, index: int) -> torch.OutOfMemoryError:
    """The error for a program that device ``index`` had no room for."""
    asked = re.search(r"(?:allocate|allocating|out of memory)\D*(\d+)\s*(?:bytes|B)?", detail, re.IGNORECASE)
    free, total, _ = memory_info(index)
    live = _C.memory_counters(index)["bytes"]
    lines = [
        f"tpu:{index} is out of memory in {what}.",
        f"Asked for: {format_bytes(int(asked[1])) if asked else detail.splitlines()[0]}.",
        f"Live tensors hold {format_bytes(live)}; the device has {format_bytes(total)}, of which {format_bytes(free)} are free.",
        "The largest live tensors: " + ("; ".join(largest_storages(index)) or "none") + ".",
        "Free tensors that are not needed, use a smaller batch, or recompute activations with torch.utils.checkpoint.",
    ]
    return torch.OutOfMemoryError("\n".join(lines))


def describe_device(index: int) -> str:
    """The chip's name; the emulation says that it is one."""
    device = devices()[index]
    if device.platform == "cpu":
        return "TPU (XLA:CPU emulation)"
    names = {"TPU v5 lite": "TPU v5e", "TPU v5": "TPU v5p", "TPU v6 lite": "TPU v6e", "TPU7x": "TPU v7"}
    return names.get(device.device_kind, device.device_kind)
