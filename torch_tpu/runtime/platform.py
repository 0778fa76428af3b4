"""Which PJRT platform the process uses, decided without starting it.

``TORCH_TPU_PLATFORM`` chooses among ``tpu``, ``cpu``, ``cuda`` and ``none``; by default it is ``tpu`` where the machine has a
TPU chip and libtpu is installed, and ``cpu`` elsewhere. Chips are found on the PCI bus, so that looking for one neither loads
libtpu nor asks a metadata server.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

PLATFORMS = ("tpu", "cpu", "cuda", "none")
_GOOGLE = "0x1ae0"
# PCI device id → (name, devices a chip).
_CHIPS = {
    "0x005e": ("TPU v4", 1),
    "0x0062": ("TPU v5p", 1),
    "0x0063": ("TPU v5e", 1),
    "0x006f": ("TPU v6e", 1),
    "0x0076": ("TPU v7", 2),
}


@functools.cache
def chips() -> tuple[tuple[str, int], ...]:
    """(name, devices) of each TPU chip on the PCI bus."""
    found = []
    for device in sorted(Path("/sys/bus/pci/devices").glob("*")):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "device").read_text().strip()
        except OSError:  # a device that went away, or that we may not read, is not a chip that we can use
            continue
        if vendor == _GOOGLE and kind in _CHIPS:
            found.append(_CHIPS[kind])
    return tuple(found)


@functools.cache
def platform() -> str:
    """The platform's name; ValueError for an unknown ``TORCH_TPU_PLATFORM``."""
    asked = os.environ.get("TORCH_TPU_PLATFORM", "").strip().lower()
    if not asked:
        return "tpu" if chips() and importlib.util.find_spec("libtpu") is not None else "cpu"
    if asked not in PLATFORMS:
        raise ValueError(f"TORCH_TPU_PLATFORM={asked!r} is not a platform; choose one of {', '.join(PLATFORMS)}")
    return asked


@functools.cache
def expected_device_count() -> int:
    """The number of devices, before PJRT has been asked; ValueError for a bad ``TORCH_TPU_NUM_CPU_DEVICES``."""
    kind = platform()
    if kind == "none":
        return 0
    if kind == "cpu":
        return num_cpu_devices()
    if kind == "tpu":
        return max(1, sum(devices for _, devices in chips()))
    return 1


def num_cpu_devices() -> int:
    """``TORCH_TPU_NUM_CPU_DEVICES``: how many devices the CPU emulation has."""
    text = os.environ.get("TORCH_TPU_NUM_CPU_DEVICES", "1")
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise ValueError(f"TORCH_TPU_NUM_CPU_DEVICES={text!r}: expected a number from 1 to 64")
    return int(text)
