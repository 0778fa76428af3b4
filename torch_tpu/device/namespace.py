"""``torch.tpu``."""

import torch

from .. import _C
from ..runtime import platform


def is_available() -> bool:
    return platform.expected_device_count() > 0


def device_count() -> int:
    return platform.expected_device_count()


def is_initialized() -> bool:
    return _C.is_initialized()


def current_device() -> int:
    return _C.current_device()


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16, torch.float32]


def _is_in_bad_fork() -> bool:
    return False


def manual_seed_all(seed: int) -> None:
    for i in range(device_count()):
        _C.default_generator(i).manual_seed(seed)
