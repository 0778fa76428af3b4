"""Which devices there are, which one is current, and what each is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..runtime import client, platform

__all__ = [
    "DeviceProperties", "current_device", "device", "device_count", "device_of", "get_device_capability", "get_device_name",
    "get_device_properties", "init", "is_available", "is_initialized", "set_device", "synchronize",
]  # fmt: skip

Device = int | str | torch.device | None


def index_of(device: Device) -> int:
    """The index of a device given in any way that PyTorch takes one; the current device for None and for plain ``"tpu"``."""
    if device is None:
        return current_device()
    if isinstance(device, bool) or not isinstance(device, (int, str, torch.device)):
        raise TypeError(f"expected a tpu device as an int, a str or a torch.device, got {device!r}")
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "tpu":
        raise ValueError(f"Expected a tpu device, but got: {device}")
    return current_device() if device.index is None else device.index


def checked_index(device: Device) -> int:
    """``index_of``, or RuntimeError where there is no such device."""
    index = index_of(device)
    if not 0 <= index < device_count():
        count = device_count()
        have = "there is 1 device" if count == 1 else f"there are {count} devices"
        raise RuntimeError(f"tpu: invalid device index {index}: {have}")
    return index


def is_available() -> bool:
    """Whether this process has a tpu device. Starts nothing."""
    return device_count() > 0


def device_count() -> int:
    """The number of tpu devices of this process. Starts nothing."""
    return platform.expected_device_count()


def is_initialized() -> bool:
    """Whether the runtime has started, which it does with the first tensor."""
    return _C.is_initialized() and not client.in_forked_child()


def init() -> None:
    """Start the runtime now rather than with the first tensor. RuntimeError where it cannot start."""
    client.check_not_forked()
    from .registration import initialize

    initialize()


_lazy_init = init


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had started the runtime, and so cannot use the device."""
    return client.in_forked_child()


def current_device() -> int:
    """The index of the device that this thread creates tensors on."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Make a device the current one of this thread. A negative index changes nothing."""
    _C.set_device(index_of(device))


class device:
    """Context manager: the given device is the current one within the block. None or a negative index changes nothing."""

    def __init__(self, device: Device) -> None:
        self.index = -1 if device is None else index_of(device)
        self.previous = -1

    def __enter__(self) -> None:
        self.previous = _C.set_device(self.index)

    def __exit__(self, *exception: object) -> None:
        _C.set_device(self.previous)


class device_of(device):
    """Context manager: the device of a tensor or storage is the current one within the block, if it is a tpu device."""

    def __init__(self, holder: Any) -> None:
        super().__init__(holder.device if holder.device.type == "tpu" else None)


def synchronize(device: Device = None) -> None:
    """Wait until the device (the current one for None) has done all work given to it; raises what failed there."""
    index = checked_index(device)
    if _C.is_initialized():
        client.check_not_forked()
        torch._C._accelerator_synchronizeDevice(index)


@dataclass(frozen=True)
class DeviceProperties:
    """What a device is: its name, its memory in bytes, and its place among the chips of its slice (None in emulation).

    ``multi_processor_count``, ``major`` and ``minor`` are there for programs written for GPUs: the number of cores that take
    work, and the chip's generation (0 in emulation).
    """

    name: str
    total_memory: int
    multi_processor_count: int
    major: int
    minor: int
    platform: str
    coords: tuple[int, ...] | None


def get_device_name(device: Device = None) -> str:
    """The chip's name, such as ``TPU v5e``; ``TPU (XLA:CPU emulation)`` where there is none. Starts the runtime."""
    index = checked_index(device)
    init()
    from ..runtime.memory import describe_device

    return describe_device(index)


def get_device_properties(device: Device = None) -> DeviceProperties:
    """The properties of a device. Starts the runtime."""
    index = checked_index(device)
    name = get_device_name(index)
    from ..runtime.memory import memory_info

    _, total, _ = memory_info(index)
    handle = client.devices()[index]
    major, minor = get_device_capability(index)
    coords = tuple(handle.coords) if hasattr(handle, "coords") else None
    return DeviceProperties(name, total, getattr(handle, "num_cores", 1), major, minor, handle.platform, coords)


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """(generation, variant) of the chip: (5, 0) is a v5e, (5, 1) a v5p; (0, 0) in emulation. Starts the runtime."""
    found = re.match(r"TPU v(\d+)(p?)", get_device_name(device))
    return (int(found[1]), int(bool(found[2]))) if found else (0, 0)
