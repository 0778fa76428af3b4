"""A stretch of recorded ops as one program: the same lowerings, composed."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax import Array

from ..lowerings.dtypes import storage_dtype
from ..runtime import arrays
from ..runtime.executables import ArrayType, compile_program, weakly_typed
from .programs import INT64, Program, program_function

# Keeping bfloat16 chains in float32 would be faster and more precise, but not what the same ops give one by one.
_OPTIONS = {"xla_allow_excess_precision": False}


@dataclass(frozen=True)
class Node:
    """One recorded op: its program, the values that it reads, and the first of those that it makes."""

    program: Program
    inputs: tuple[int, ...]
    first_value: int
    line: str  # of the user's code


@dataclass(frozen=True)
class FusedProgram:
    """What an error message says of a fused executable."""

    nodes: tuple[Node, ...]
    device: int

    def __str__(self) -> str:
        shown = [str(node.program) for node in self.nodes[:8]]
        more = f", … ({len(self.nodes)} ops in all)" if len(self.nodes) > len(shown) else ""
        lines = [node.line for node in self.nodes if node.line]
        where = f", recorded from {lines[0]} to {lines[-1]}" if lines else ""
        return "the fused ops " + ", ".join(shown) + more + where


def pack(words: bytes, dtype: str, device: int) -> Array:
    """The run-time numbers of a whole trace as one array."""
    return arrays.upload(np.frombuffer(words, dtype), device)


def fuse(nodes: list[Any], leaves: list[Any], live: list[int], donated: list[int], device: int) -> tuple[Any, Any, Any]:
    """Compile a trace: (record, execute, handlers). Inputs: the leaves' bases, then the packed floats and ints if any."""
    trace = tuple(
        Node(program, tuple(inputs), first, f"{code.co_filename}:{line}" if code is not None else "")
        for program, inputs, first, code, line in nodes
    )
    leaf_ids = [value for value, _, _ in leaves]
    inputs = [ArrayType(tuple(shape), storage_dtype(dtype)) for _, shape, dtype in leaves]
    takers, floats, ints = _number_takers(trace)
    if floats:
        inputs.append(ArrayType((floats,), np.dtype(np.float64)))
    if ints:
        inputs.append(ArrayType((ints,), np.dtype(np.int64)))
    functions = {id(node.program): jax.jit(program_function(node.program), inline=True) for node in trace}

    def function(*given: Array) -> list[Array]:
        values = dict(zip(leaf_ids, given))
        rest = list(given[len(leaf_ids) :])
        packed_floats = rest.pop(0) if floats else None
        packed_ints = rest.pop(0) if ints else None
        for node, take in zip(trace, takers):
            try:
                results = functions[id(node.program)](*(values[i] for i in node.inputs), *take(packed_floats, packed_ints))
            except Exception as error:
                if node.line:
                    error.add_note(f"The op was recorded at {node.line}")
                raise
            values.update(enumerate(results, node.first_value))
        return [values[i] for i in live]

    types = dict(zip(leaf_ids, inputs))
    for node in trace:
        types.update(enumerate(node.program.result_types, node.first_value))
    wanted = collections.Counter(types[i] for i in live)
    taken = []
    for i in donated:  # only a buffer that some result fits in can be taken over
        if wanted[inputs[i]] > 0:
            wanted[inputs[i]] -= 1
            taken.append(i)
    signature = "\n".join(f"{node.program.signature} {node.inputs} {node.first_value}" for node in trace)
    digest = hashlib.sha256(f"{signature}|{leaf_ids}|{live}".encode()).hexdigest()
    with torch._C.DisableTorchFunction():
        executable = compile_program(
            function,
            inputs,
            device=device,
            donated=taken,
            signature=f"fused {digest}",
            name=f"fused_{len(trace)}_ops",
            options=_OPTIONS,
        )
    return FusedProgram(trace, device), executable.execute, executable.handlers


Taker = Callable[[Array | None, Array | None], list[Array]]


def _number_takers(trace: Sequence[Node]) -> tuple[list[Taker], int, int]:
    """For each node, what takes its numbers out of the packed arrays; and how many floats and ints there are."""
    takers: list[Taker] = []
    floats = ints = 0
    for node in trace:
        types = [*node.program.scalars, *([INT64, INT64] if node.program.random else [])]
        places = []
        for each in types:
            kind = np.dtype(each.dtype).kind
            if kind == "c":
                places.append((each, "c", floats))
                floats += 2
            elif kind in "biu":
                places.append((each, "i", ints))
                ints += 1
            else:
                places.append((each, "f", floats))
                floats += 1
        takers.append(_taker(places))
    return takers, floats, ints


def _taker(places: list[tuple[ArrayType, str, int]]) -> Taker:
    def take(packed_floats: Array | None, packed_ints: Array | None) -> list[Array]:
        numbers = []
        for each, kind, at in places:
            if kind == "i":
                assert packed_ints is not None
                number = packed_ints[at] if each.dtype.kind != "b" else packed_ints[at] != 0
            else:
                assert packed_floats is not None
                number = packed_floats[at] if kind == "f" else jax.lax.complex(packed_floats[at], packed_floats[at + 1])
            number = number.astype(each.dtype)
            numbers.append(weakly_typed(number) if each.weak else number)
        return numbers

    return take



