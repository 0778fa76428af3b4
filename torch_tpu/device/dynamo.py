"""Dynamo's view of the device, given to Dynamo when (and if) a program loads it: importing it costs a second."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_MODULE = "torch._dynamo.device_interface"


def install() -> None:
    """Register the interface now if Dynamo is loaded, else once it is."""
    if _MODULE in sys.modules:
        register_interfaces(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Watcher())


class _Watcher(MetaPathFinder):
    """Has the interface registered right after Dynamo's own interfaces are defined; then takes itself away."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        register_interfaces(module)


def register_interfaces(device_interface: ModuleType) -> None:
    """Register the device's interface for ``tpu`` and each ``tpu:i``, after Dynamo's own, which it would overwrite later."""
    import torch

    from . import devices, memory, streams

    class TpuInterface(device_interface.DeviceInterface):  # type: ignore[name-defined]
        device = devices.device
        Event = torch.Event
        Stream = torch.Stream

        class Worker:
            @staticmethod
            def set_device(device: int) -> None:
                device_interface.caching_worker_current_devices["tpu"] = device

            @staticmethod
            def current_device() -> int:
                cached = device_interface.caching_worker_current_devices
                return cached["tpu"] if "tpu" in cached else devices.current_device()

            @staticmethod
            def get_device_properties(device: devices.Device = None) -> devices.DeviceProperties:
                return devices.get_device_properties(device)

        current_device = staticmethod(devices.current_device)
        set_device = staticmethod(devices.set_device)
        device_count = staticmethod(devices.device_count)
        is_available = staticmethod(devices.is_available)
        synchronize = staticmethod(devices.synchronize)
        stream = staticmethod(streams.stream)
        current_stream = staticmethod(streams.current_stream)
        set_stream = staticmethod(streams.set_stream)
        memory_allocated = staticmethod(memory.memory_allocated)
        get_compute_capability = staticmethod(devices.get_device_capability)
        exchange_device = staticmethod(torch._C._accelerator_exchangeDevice)
        maybe_exchange_device = staticmethod(torch._C._accelerator_maybeExchangeDevice)

        @staticmethod
        def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
            streams.set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return streams.current_stream(device_idx).stream_id

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return True

    if not device_interface._device_initialized:
        device_interface.init_device_reg()
    for name in ("tpu", *(f"tpu:{i}" for i in range(devices.device_count()))):
        device_interface.register_interface_for_device(name, TpuInterface)
