"""``torch.tpu.streams``: streams and events, as programs written for GPUs use them.

A device runs one queue in order, so streams are labels on it: waiting for one another is always satisfied, and work on two
streams does not overlap. Events are real: they know when the device has reached them.
"""

from __future__ import annotations

from typing import Any

import torch

from .devices import Device, checked_index, set_device

__all__ = ["Event", "Stream", "StreamContext", "current_stream", "default_stream", "set_stream", "stream"]


class _AnyOfBase(type):
    """The metaclass of a class that only makes instances of PyTorch's own one: those that PyTorch makes are instances too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


class Stream(torch.Stream, metaclass=_AnyOfBase):
    """A stream on a device (the current one for None). ``priority`` is accepted and has no effect."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> torch.Stream:  # type: ignore[misc]
        if kwargs:
            return torch.Stream(priority=priority, **kwargs)  # from ids
        return torch.Stream(torch.device("tpu", checked_index(device)), priority=priority)


class Event(torch.Event, metaclass=_AnyOfBase):
    """A place in a device's queue. With ``enable_timing``, ``elapsed_time`` gives the milliseconds between two."""

    def __new__(  # type: ignore[misc]
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        device: Device = None,
    ) -> torch.Event:
        if interprocess or external:
            raise NotImplementedError("tpu: an event cannot be shared with another process or runtime")
        return torch.Event(torch.device("tpu", checked_index(device)), enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream:
    """The stream that this thread uses on a device."""
    return torch.accelerator.current_stream(checked_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that a device has from the start."""
    index = checked_index(device)
    return torch.Stream(stream_id=0, device_index=index, device_type=torch._C._autograd.DeviceType.PrivateUse1.value)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream, and its device, the current ones of this thread. None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager: the given stream is the current one within the block. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self.previous: list[torch.Stream] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            self.previous = [current_stream(self.stream.device), current_stream()]
            set_stream(self.stream)

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            for stream in self.previous:
                set_stream(stream)
            set_device(self.previous[-1].device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """A context manager in which ``stream`` is the current stream."""
    return StreamContext(stream)
