"""One way to run a graph, with all sizes settled: what its executable takes and gives."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from ..lowerings.dtypes import storage_dtype
from ..runtime.executables import ArrayType, Executable
from .layouts import Layout, Shape


@dataclass(frozen=True)
class Input:
    """A tensor among the arguments; one on the CPU is uploaded at every call."""

    argument: int
    layout: Layout
    host: bool
    lazy: bool  # whether it may have a conjugation or a negation that is yet to be done

    @classmethod
    def of(cls, argument: int, value: torch.Tensor) -> Input:
        """For a tensor like ``value`` (a real one, or the graph's record)."""
        sizes, host = tuple(value.shape), value.device.type == "cpu"
        if host or value.is_conj() or value.is_neg():
            return cls(argument, Layout.contiguous(sizes, value.dtype), host, lazy=True)
        return cls(argument, Layout.nearest(sizes, tuple(value.stride()), value.dtype), host, value.dtype.is_complex)

    @property
    def type(self) -> ArrayType:
        return ArrayType(self.layout.base_shape, storage_dtype(self.layout.dtype))


@dataclass(frozen=True)
class Output:
    """One result of a graph: a new tensor (result ``slot`` of the executable), one of the arguments, or a constant."""

    layout: Layout | None = None
    slot: int = -1  # none for a tensor without elements
    host: bool = False
    argument: int = -1
    constant: Any = None


class Read(NamedTuple):
    """How an argument enters, for the loop that every call runs: ``shape`` of its base if that is all there is to check."""

    argument: int
    shape: Shape | None
    input: Input


class Made(NamedTuple):
    """How a result leaves, for the same loop: as a new tensor over result ``slot``; -1: in another way, by ``output``."""

    slot: int
    sizes: Shape
    strides: Shape
    dtype: torch.dtype
    base_shape: Shape
    output: Output


@dataclass
class Plan:
    numbers: dict[int, Any]  # the arguments that are no tensors, by position
    inputs: list[Input]
    constants: list[ArrayType]
    written: list[int]  # positions among the inputs
    seeded: bool
    draws: int
    device: int
    name: str
    outputs: list[Output] = field(default_factory=list)
    fresh: int = 0  # results of the executable before the new values of written inputs
    executables: dict[bool, Executable] = field(default_factory=dict)  # by whether written inputs are donated

    @functools.cached_property
    def reads(self) -> list[Read]:
        def simple(each: Input) -> bool:
            return each.layout.plain and not (each.host or each.lazy)

        return [Read(each.argument, each.layout.base_shape if simple(each) else None, each) for each in self.inputs]

    @functools.cached_property
    def makes(self) -> list[Made]:
        made, seen = [], set()
        for each in self.outputs:
            if each.layout is None or each.host or each.slot < 0 or each.slot in seen:
                made.append(Made(-1, (), (), torch.float32, (), each))
                continue
            seen.add(each.slot)
            layout = each.layout
            made.append(Made(each.slot, layout.sizes, layout.strides, layout.dtype, layout.base_shape, each))
        return made

    @property
    def types(self) -> list[ArrayType]:
        """Of the executable's inputs."""
        return [each.type for each in self.inputs] + self.constants + ([STATE] if self.seeded else [])

    @property
    def text(self) -> str:
        """What of a plan shapes the executable, beside the graph."""
        return repr((sorted(self.numbers.items()), self.inputs, self.outputs, self.constants, self.written))


# The seed and the offset of a generator.
STATE = ArrayType((2,), np.dtype(np.int64))
