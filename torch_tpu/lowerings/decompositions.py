"""Lowerings for ops that have none, out of PyTorch's own decompositions: traced once a signature to a graph of lowered ops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from .table import TABLE, functional_of


@functools.cache
def _all_decompositions() -> dict[Any, Callable[..., Any]]:
    import torch._decomp
    import torch._refs

    return dict(torch._decomp.decomposition_table)


def decomposition_of(overload: OpOverload) -> Callable[..., Any] | None:
    """PyTorch's decomposition of a functional overload: registered, or the composite kernel itself; None if it has none."""
    registered = _all_decompositions().get(overload)
    if registered is not None:
        return registered
    return overload.decompose if overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd) else None


@functools.cache
def _until_lowered() -> dict[Any, Callable[..., Any]]:
    """The decompositions to apply inside a trace: all but those of ops that have a lowering."""
    return {op: function for op, function in _all_decompositions().items() if op not in TABLE}


def trace_decomposition(overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule | None:
    """A graph over the tensors in (``args``, ``kwargs``) (meta tensors, in order) that computes ``overload``; None if none.

    The graph holds functional ops only.
    """
    functional = functional_of(overload)
    decomposition = decomposition_of(functional) if functional is not None else None
    if decomposition is None:
        return None
    leaves, structure = tree_flatten((args, kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def on_tensors(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for i, tensor in zip(where, tensors):
            filled[i] = tensor
        a, k = tree_unflatten(filled, structure)
        results = decomposition(*a, **k)
        return [each for each in tree_flatten(results)[0] if isinstance(each, torch.Tensor)]

    functionalized = torch.func.functionalize(on_tensors, remove="mutations_and_views")
    return make_fx(functionalized, decomposition_table=_until_lowered(), tracing_mode="fake")(*(leaves[i] for i in where))
