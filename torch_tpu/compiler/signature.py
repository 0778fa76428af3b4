"""A graph's name in the disk cache: the same in every process that would compile the same program."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from ..eager.transfers import host_view
from .graphs import attribute


@functools.cache
def _sources() -> str:
    """Of this package: it decides, beside the lowerings, what a graph becomes."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _target(target: Any) -> str:
    if isinstance(target, str):
        return target
    return str(target) if hasattr(target, "_schema") else f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def graph_text(module: GraphModule, embedded: bool = False) -> str:
    """Every node with its op, arguments, and the type of its value; nodes by number, since names may differ.

    The constants of an ``embedded`` graph (a branch) are part of the program, with their values; a graph's own are inputs.
    """
    numbers: dict[Node, int] = {}

    def shown(x: Any) -> Any:
        return f"%{numbers[x]}" if isinstance(x, Node) else x

    def type_of(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return f"{x.dtype}{tuple(x.shape)}{x.stride()}+{x.storage_offset()}@{x.device}"
        return type(x).__name__

    lines = []
    for node in module.graph.nodes:
        numbers[node] = len(numbers)
        target = "" if node.op in ("placeholder", "output") else node.target
        if node.op == "get_attr":
            value = attribute(module, node)
            if isinstance(value, GraphModule):
                target = f"({graph_text(value, embedded=True)})"
            elif isinstance(value, torch.Tensor):
                target = type_of(value) + (_digest(value) if embedded else "")
            else:
                target = repr(value)
        arguments = [_repr(torch.fx.node.map_arg(each, lambda n: _Name(shown(n)))) for each in (node.args, node.kwargs)]
        lines.append(f"{node.op} {_target(target)} {arguments} {tree_map(type_of, node.meta.get('val'))}")
    return "\n".join(lines)


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(host_view(tensor.detach().cpu().contiguous()).tobytes()).hexdigest()


class _Name(str):
    """A node's number, shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _repr(x: Any) -> str:
    if isinstance(x, dict):
        return repr({name: _repr(each) for name, each in x.items()})
    if isinstance(x, (list, tuple)):
        return repr([_repr(each) for each in x])
    return _target(x) if callable(x) and not isinstance(x, type) else repr(x)


def graph_signature(module: GraphModule) -> str:
    parts = (graph_text(module), _sources(), str(torch.get_default_dtype()), torch.get_float32_matmul_precision())
    return "graph " + hashlib.sha256("|".join(parts).encode()).hexdigest()
