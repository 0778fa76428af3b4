"""Interpret an FX graph of ATen ops with the table of lowerings: what compiled graphs and decomposed ops run as."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten

from .dtypes import numpy_dtype
from .promotion import cast
from .table import TABLE, Lowering, bind, functional_of

KeyMaker = Callable[[], Array]


class MissingLowering(NotImplementedError):
    """An op in a graph has neither a lowering nor a decomposition."""


def interpret(module: GraphModule, inputs: Sequence[Any], next_key: KeyMaker | None = None) -> list[Any]:
    """The outputs of ``module`` on ``inputs`` (arrays or constants, one a placeholder).

    Results are cast to the dtype that each node's ``meta["val"]`` records. ``next_key`` gives a fresh JAX key to each op that
    draws random numbers. MissingLowering names the op and its place in the user's code.
    """
    values: dict[Node, Any] = {}
    remaining = iter(inputs)

    def value_of(node: Node) -> Any:
        return values[node]

    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "get_attr":
            values[node] = _constant(module, node)
        elif node.op == "output":
            return list(torch.fx.node.map_arg(node.args[0], value_of))
        else:
            args = torch.fx.node.map_arg(node.args, value_of)
            kwargs = torch.fx.node.map_arg(node.kwargs, value_of)
            values[node] = run_node(node, tuple(args), dict(kwargs), next_key)
    raise AssertionError("an FX graph ends in an output node")


def run_node(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], next_key: KeyMaker | None) -> Any:
    target = node.target
    if target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(target, OpOverload):
        assert callable(target)
        return target(*args, **kwargs)  # arithmetic on sizes
    functional = functional_of(target)
    lowering = TABLE.get(functional) if functional is not None else None
    if lowering is None:
        raise MissingLowering(f"{target} has no lowering{_place(node)}")
    with jax.named_scope(str(target)):
        results = call_lowering(lowering, args, kwargs, next_key, _first_is_contiguous(node))
    return _like(results, node.meta.get("val"))


def call_lowering(
    lowering: Lowering, args: tuple[Any, ...], kwargs: dict[str, Any], next_key: KeyMaker | None = None, contiguous: bool = True
) -> Any:
    """Run a lowering on the arguments of its overload; ``contiguous`` tells of the first tensor's layout."""
    positional, keyword = bind(lowering.overload, args, kwargs)
    if lowering.layout:
        keyword["contiguous"] = contiguous
    if lowering.random:
        if next_key is None:
            raise MissingLowering(f"{lowering.overload} draws random numbers, which this graph gives no key for")
        keyword["key"] = next_key()
    return lowering.function(*positional, **keyword)


def _first_is_contiguous(node: Node) -> bool:
    first = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
    return first.is_contiguous() if isinstance(first, torch.Tensor) else True


def _like(results: Any, recorded: Any) -> Any:
    """``results`` with the dtypes that the graph recorded."""
    if isinstance(recorded, torch.Tensor):
        single = results[0] if isinstance(results, (tuple, list)) and len(results) == 1 else results
        return cast(single, numpy_dtype(recorded.dtype))
    if isinstance(recorded, (tuple, list)) and isinstance(results, (tuple, list)):
        return [_like(result, each) for result, each in zip(results, recorded)]
    return results


def _constant(module: GraphModule, node: Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if isinstance(value, torch.Tensor):
        return jnp.asarray(value.detach().cpu().numpy())
    return value


def _place(node: Node) -> str:
    trace = node.meta.get("stack_trace")
    return f"; it is reached from\n{trace.strip()}" if trace else ""


def flatten_arrays(results: Any) -> list[Array]:
    """The arrays in a lowering's results, in order; absent ones (None) are left out."""
    return [each for each in tree_flatten(results)[0] if each is not None]
