"""Running a function on arrays as one compiled program on tensors: what Python kernels are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..runtime.arrays import download
from ..runtime.executables import ArrayType, Executable, compile_program
from .transfers import adopt, array_of


@functools.lru_cache(maxsize=4096)
def _compiled(function: Callable[..., Any], types: tuple[ArrayType, ...], device: int, static: tuple[Any, ...]) -> Executable:
    return compile_program(
        lambda *arrays: function(*arrays, *static),
        types,
        device=device,
        signature=f"{function.__module__}.{function.__qualname__}|{static}|{types}",
        name=function.__name__,
    )


def launch(function: Callable[..., Any], tensors: list[torch.Tensor], *static: Any) -> list[Any]:
    """The arrays that ``function(*arrays, *static)`` gives for the tensors' values; compiled once for their shapes."""
    arrays = [array_of(tensor) for tensor in tensors]
    types = tuple(ArrayType(tuple(array.shape), array.dtype) for array in arrays)
    return _compiled(function, types, tensors[0].device.index, static)(arrays)


def launch_arrays(function: Callable[..., Any], arrays: list[Any], device: int, *static: Any) -> list[Any]:
    """The same for arrays on ``device``."""
    types = tuple(ArrayType(tuple(array.shape), array.dtype) for array in arrays)
    return _compiled(function, types, device, static)(arrays)


def read(array: Any) -> Any:
    """Integers on the host: the one wait of an op whose shape depends on values."""
    return download(array).tolist()


def bucket(count: int, most: int) -> int:
    """The length of the buffer that ``count`` elements are kept in: a power of two, so that few lengths are ever compiled."""
    return min(1 << max(count - 1, 0).bit_length(), most) if count else 0


def prefix(buffer: Any, count: int, dtype: torch.dtype, device: int) -> torch.Tensor:
    """A contiguous tensor of the first ``count`` rows of ``buffer``, in ``buffer``'s own storage."""
    shape = (count, *buffer.shape[1:])
    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device=torch.device("tpu", device))
    whole = adopt(buffer, dtype, device)
    return whole if count == buffer.shape[0] else whole.as_strided(shape, whole.stride(), 0)
