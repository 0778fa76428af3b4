"""A model as portable StableHLO, for programs that have JAX (or any StableHLO compiler) and no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax import Array
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from ..eager.transfers import download, host_view
from ..lowerings import TABLE
from ..lowerings.dtypes import numpy_dtype
from ..runtime.platform import platform
from .backend import decompositions
from .compiled import undisturbed
from .graphs import GraphFunction, evaluate

_BUFFERS_OUT = {OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION}


@dataclass(frozen=True)
class StableHLO:
    """A function ``(weights, *inputs) -> (outputs, updates)`` and the weights that the model had.

    ``weights`` maps names to NumPy arrays; ``outputs`` is the flat tuple of the model's results; ``updates`` maps what the
    model writes (buffers such as running statistics, or inputs) to its new values.
    """

    exported: jax.export.Exported
    weights: Mapping[str, np.ndarray]

    @property
    def text(self) -> str:
        """The module as StableHLO text."""
        return self.exported.mlir_module()

    @property
    def bytecode(self) -> bytes:
        """The module as a versioned StableHLO artifact, which compilers of other versions read."""
        return bytes(self.exported.mlir_module_serialized)

    def serialize(self) -> bytes:
        """What ``jax.export.deserialize`` reads: the module with its calling convention. The weights are not in it."""
        return bytes(self.exported.serialize())


def export_stablehlo(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    platforms: Sequence[str] | None = None,
) -> StableHLO:
    """Lower a model on example arguments, or an exported program, for ``platforms`` (by default the one of this process).

    ValueError for a program that draws random numbers (put the model in ``eval()``) or whose sizes are symbolic.
    """
    program = model if isinstance(model, ExportedProgram) else torch.export.export(model, tuple(args), dict(kwargs or {}))
    program = program.run_decompositions(_decompositions())
    graph = GraphFunction(program.graph_module)
    graph.check()
    if graph.seeded:
        raise ValueError("export_stablehlo(): the program draws random numbers, which an export has no generator for; use model.eval()")
    weights, names, inputs, numbers = _inputs(program, graph)
    updates = [(i, spec.target) for i, spec in enumerate(program.graph_signature.output_specs) if spec.kind in _BUFFERS_OUT]
    updated = {i for i, _ in updates}

    def exported(weights: dict[str, Array], *given: Array) -> tuple[tuple[Array, ...], dict[str, Array]]:
        values: list[Any] = [None] * len(graph.placeholders)
        for i, name in names.items():
            values[i] = weights[name]
        for i, number in numbers.items():
            values[i] = number
        for i, value in zip(inputs, given):
            values[i] = value
        attributes = {name: jax.numpy.asarray(_values(tensor)) for name, tensor in graph.attributes.items()}
        results, _ = evaluate(graph, values, attributes, None)
        return tuple(x for i, x in enumerate(results) if i not in updated), {name: results[i] for i, name in updates}

    types = [_type(graph.placeholders[i]) for i in inputs]
    with undisturbed(), jax.enable_x64(True):
        jitted = jax.jit(exported, keep_unused=True)
        chosen = tuple(platforms) if platforms is not None else (platform(),)
        return StableHLO(jax.export.export(jitted, platforms=chosen)(_types(weights), *types), weights)


def _decompositions() -> dict[Any, Any]:
    """Those of ``torch.compile``, and of the composite ops that an export keeps whole."""
    table = torch.export.default_decompositions()
    for op in [op for op in table if op in TABLE]:
        del table[op]
    table.update(decompositions())
    return table


def _inputs(program: ExportedProgram, graph: GraphFunction) -> tuple[dict[str, np.ndarray], dict[int, str], list[int], dict[int, Any]]:
    """The weights by name; and of the placeholders: which is which weight, which are inputs, which are numbers."""
    weights: dict[str, np.ndarray] = {}
    names: dict[int, str] = {}
    inputs: list[int] = []
    numbers: dict[int, Any] = {}
    for i, spec in enumerate(program.graph_signature.input_specs):
        if spec.kind is InputKind.USER_INPUT and isinstance(graph.placeholders[i].meta.get("val"), torch.Tensor):
            inputs.append(i)
        elif spec.kind is InputKind.USER_INPUT:
            numbers[i] = getattr(spec.arg, "value", None)
        else:
            name = names[i] = str(spec.target)
            weights[name] = _values(program.state_dict[name] if name in program.state_dict else program.constants[name])
    return weights, names, inputs, numbers


def _values(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    return download(tensor) if tensor.device.type == "tpu" else np.array(host_view(tensor.cpu().contiguous()))


def _types(weights: Mapping[str, np.ndarray]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in weights.items()}


def _type(node: Node) -> jax.ShapeDtypeStruct:
    value = node.meta["val"]
    if any(isinstance(n, torch.SymInt) for n in value.shape):
        raise ValueError(f"export_stablehlo(): input {node.name} has symbolic sizes {tuple(value.shape)}; export with fixed sizes")
    return jax.ShapeDtypeStruct(tuple(value.shape), numpy_dtype(value.dtype))
