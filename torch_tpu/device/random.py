"""``torch.tpu.random``: seeds and states of the devices' generators. A state is 16 bytes: seed and offset. Starts nothing."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .. import _C
from .devices import Device, checked_index, current_device, device_count

__all__ = [
    "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all", "seed", "seed_all",
    "set_rng_state", "set_rng_state_all",
]  # fmt: skip


def default_generators() -> tuple[torch.Generator, ...]:
    """The generator that each device draws from where none is given."""
    return tuple(_C.default_generator(i) for i in range(device_count()))


def get_rng_state(device: Device = "tpu") -> torch.Tensor:
    """The state of a device's generator, as a tensor of 16 bytes on the CPU."""
    return _C.default_generator(checked_index(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "tpu") -> None:
    """Set the state of a device's generator to one that ``get_rng_state`` gave."""
    _C.default_generator(checked_index(device)).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [generator.get_state() for generator in default_generators()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all devices' generators, in order."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _C.default_generator(checked_index(current_device())).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator."""
    for generator in default_generators():
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator from the system's randomness; returns the seed."""
    return _C.default_generator(checked_index(current_device())).seed()


def seed_all() -> None:
    """Seed every device's generator with one seed from the system's randomness."""
    if device_count():
        manual_seed_all(seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _C.default_generator(checked_index(current_device())).initial_seed()
