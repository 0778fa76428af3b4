"""Random programs over views: chains of view ops with reads and in-place writes between them, for any device.

A program is data (a list of steps), so that hypothesis can shrink it and the same program runs on the CPU and on the device.
Steps that do not apply to the tensor at hand are left out on both sides alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64]
Step = tuple[Any, ...]


@dataclass(frozen=True)
class ViewProgram:
    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool
    steps: tuple[Step, ...]


def _dim(x: torch.Tensor, n: int) -> int:
    return n % x.dim()


def _slice(x: torch.Tensor, d: int, start: int, length: int, step: int) -> torch.Tensor:
    d = _dim(x, d)
    start = start % (x.shape[d] + 1)
    return x[(slice(None),) * d + (slice(start, start + length, step),)]


def _unfold(x: torch.Tensor, d: int, size: int, step: int) -> torch.Tensor:
    d = _dim(x, d)
    return x.unfold(d, min(size, x.shape[d]), step)


def _as_strided(x: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> torch.Tensor | None:
    n = min(len(sizes), len(strides))
    needed = offset + sum((a - 1) * b for a, b in zip(sizes[:n], strides[:n])) + 1
    if needed * x.element_size() > x.untyped_storage().nbytes():
        return None
    return x.as_strided(sizes[:n], strides[:n], offset)


def _view_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    if x.dtype is torch.bool or x.is_conj() or x.is_neg():  # a byte that is neither 0 nor 1 makes no bool
        return None
    try:
        return x.view(dtype)
    except RuntimeError:
        return None


VIEWS: dict[str, Callable[..., torch.Tensor | None]] = {
    "slice": _slice,
    "select": lambda x, d, i: x.select(_dim(x, d), i % x.shape[_dim(x, d)]) if x.shape[_dim(x, d)] else None,
    "transpose": lambda x, a, b: x.transpose(_dim(x, a), _dim(x, b)),
    "expand": lambda x, n: x.unsqueeze(0).expand(n, *x.shape),
    "unsqueeze": lambda x, d: x.unsqueeze(d % (x.dim() + 1)),
    "squeeze": lambda x: x.squeeze(),
    "flatten": lambda x: x.view(-1) if x.is_contiguous() else None,
    "unfold": _unfold,
    "diagonal": lambda x, offset: x.diagonal(offset) if x.dim() > 1 else None,
    "as_strided": _as_strided,
    "view_dtype": _view_dtype,
    "as_real": lambda x: torch.view_as_real(x) if x.is_complex() and not x.is_conj() else None,
    "as_complex": lambda x: _as_complex(x),
    "real": lambda x: x.real if x.is_complex() else None,
    "imag": lambda x: x.imag if x.is_complex() else None,
    "conj": lambda x: x.conj() if x.is_complex() else None,
    "detach": lambda x: x.detach(),
}


def _as_complex(x: torch.Tensor) -> torch.Tensor | None:
    try:
        return torch.view_as_complex(x)
    except RuntimeError:
        return None


def overlaps(x: torch.Tensor) -> bool:
    """Whether two elements of ``x`` may share a place, so that PyTorch refuses or does not define a write."""
    if x.numel() == 0:
        return False
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(x.shape, x.stride()):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return places.unique().numel() != places.numel()


def _copy(x: torch.Tensor, seed: int) -> torch.Tensor:
    return x.copy_(values(tuple(x.shape), x.dtype, seed).to(x.device))


WRITES: dict[str, Callable[..., Any]] = {
    "fill": lambda x, n: x.fill_(n % 2 if x.dtype is torch.bool else n),
    "zero": lambda x, n: x.zero_(),
    "add": lambda x, n: x.add_(n) if x.dtype is not torch.bool else x.logical_not_(),
    "copy": _copy,
    "mul_self": lambda x, n: x.mul_(x) if x.dtype is not torch.bool else x.logical_and_(x),
}


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    numbers = torch.arange(max(1, torch.Size(shape).numel()), dtype=torch.int64) * 7 + seed
    numbers = (numbers % 23)[: torch.Size(shape).numel()].reshape(shape)
    if dtype.is_complex:
        return torch.complex(numbers.float(), (numbers + 1).float()).to(dtype)
    return numbers.to(dtype) if dtype is not torch.bool else numbers % 2 == 0


small = st.integers(0, 5)
views = st.one_of(
    st.tuples(st.just("slice"), small, small, st.integers(0, 5), st.integers(1, 3)),
    st.tuples(st.just("select"), small, small),
    st.tuples(st.just("transpose"), small, small),
    st.tuples(st.just("expand"), st.integers(1, 3)),
    st.tuples(st.just("unsqueeze"), small),
    st.tuples(st.just("unfold"), small, st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.just("diagonal"), st.integers(-2, 2)),
    st.tuples(
        st.just("as_strided"),
        st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple),
        st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple),
        small,
    ),
    st.tuples(st.just("view_dtype"), st.sampled_from([torch.uint8, torch.int32, torch.float32, torch.int64, torch.complex64])),
    st.sampled_from([("squeeze",), ("flatten",), ("as_real",), ("as_complex",), ("real",), ("imag",), ("conj",), ("detach",)]),
)
writes = st.tuples(st.sampled_from(sorted(WRITES)), st.integers(0, 9))
steps = st.one_of(views, views, views, writes, st.just(("read",)))
programs = st.builds(
    ViewProgram,
    st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.lists(steps, min_size=1, max_size=7).map(tuple),
)


def run(program: ViewProgram, device: str, allowed: list[bool] | None = None) -> tuple[list[torch.Tensor], list[bool]]:
    """What the program reads, with the whole storage at its end; and which of its writes were done (decided on the CPU)."""
    x = values(program.shape, program.dtype, 3)
    if program.channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    base = x = x.to(device)
    read, done = [], []
    for name, *arguments in program.steps:
        if name == "read":
            read.append(x.cpu().resolve_conj().resolve_neg().clone())
        elif name in WRITES:
            write = not overlaps(x) if allowed is None else allowed[len(done)]
            done.append(write)
            if write:
                WRITES[name](x, *arguments)
        elif x.dim() or name in ("expand", "unsqueeze", "flatten", "as_strided", "detach", "real", "imag", "conj", "as_real", "squeeze"):
            viewed = VIEWS[name](x, *arguments)
            x = x if viewed is None else viewed
    read.append(x.cpu().resolve_conj().resolve_neg().clone())
    read.append(base.cpu())
    return read, done
