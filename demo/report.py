"""What both demos share: the command line, and what they say about the device and its executables."""

from __future__ import annotations

import argparse

import torch


def parse_device(description: str | None) -> torch.device:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="tpu", help="where to run: tpu (the default) or cpu")
    return torch.device(parser.parse_args().device)


def heading(title: str, device: torch.device) -> None:
    name = torch.tpu.get_device_name(device) if device.type == "tpu" else "CPU"
    print(f"== {title}, on {device.type}: {name}")


def executables(device: torch.device) -> None:
    """Say how many executables were compiled, and how many came out of the cache on disk."""
    if device.type == "tpu":
        stats = torch.tpu.cache_stats()
        print(
            f"Executables: {stats.compilations} compiled in {stats.compile_seconds:.1f} s, {stats.disk_hits} loaded from disk in "
            f"{stats.load_seconds:.1f} s; {stats.launches:,} launches"
        )
