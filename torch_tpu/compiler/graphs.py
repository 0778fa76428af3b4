"""An FX graph of ATen ops as a function on arrays: what enters, what leaves, and the evaluation in between.

The graphs are AOTAutograd's: functional, except for ``copy_`` to an input where the program writes it. Sizes may be symbolic:
they enter as Python ints, and the graph is evaluated for the ints at hand.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from torch._higher_order_ops.effects import with_effects
from torch._ops import HigherOrderOperator, OpOverload
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_iter

from ..eager.transfers import host_view
from ..lowerings import TABLE, functional_of
from ..lowerings.dtypes import numpy_dtype
from ..lowerings.graph import call_lowering, run_node
from ..lowerings.promotion import cast
from ..lowerings.randomness import random_key
from ..lowerings.table import Lowering
from ..runtime.executables import weakly_typed
from .layouts import Layout

aten = torch.ops.aten

# A generator moves on by so much with every op that draws from it (csrc/runtime.cpp), eager or compiled.
OFFSET_PER_OP = 4


class CompilationError(RuntimeError):
    """A node of a graph cannot be compiled; says which, the user's line, and the lowering."""


_WAY_OUT = "Let it run eagerly between two graphs by wrapping the call in torch.compiler.disable()."


class UnsupportedNode(CompilationError, NotImplementedError):
    """A node of a graph has no lowering."""


# ---- what a graph is made of


def fake_values(module: GraphModule) -> Iterator[torch.Tensor]:
    for node in module.graph.nodes:
        for key in ("val", "example_value"):
            yield from (x for x in tree_iter(node.meta.get(key)) if isinstance(x, torch.Tensor))


def device_of(module: GraphModule) -> int | None:
    """The index of the tpu device that a graph's tensors lie on; None if none does, ValueError if several do."""
    found = {value.device.index or 0 for value in fake_values(module) if value.device.type == "tpu"}
    if len(found) > 1:
        names = ", ".join(f"tpu:{i}" for i in sorted(found))
        raise ValueError(f"tpu: a compiled graph has tensors on {names}: compile the parts on each device by themselves")
    return next(iter(found), None)


def attribute(module: GraphModule, node: Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def lowering_of(target: Any) -> Lowering | None:
    if not isinstance(target, OpOverload):
        return None
    functional = functional_of(target)
    return TABLE.get(functional) if functional is not None else None


def _op_of(node: Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The op that a node runs, with its arguments, looking through the ops that save and bring back a generator's state."""
    if node.target is run_and_save_rng_state:
        return node.args[0], node.args[1:], dict(node.kwargs)
    if node.target is run_with_rng_state:
        return node.args[1], node.args[2:], dict(node.kwargs)
    return node.target, node.args, dict(node.kwargs)


def draws_random(node: Node) -> bool:
    """Whether the node takes its turn with the device's generator, as the op does in eager mode."""
    if node.op != "call_function" or node.target is run_with_rng_state:
        return False
    lowering = lowering_of(_op_of(node)[0])
    return lowering is not None and lowering.random


def depends_on_draw(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the values of an op that draws depend on what it draws: attention without dropout does not."""
    for i, argument in enumerate(op._schema.arguments):
        if argument.name == "dropout_p":
            return (args[i] if i < len(args) else kwargs.get("dropout_p", argument.default_value)) != 0
    return True


def prepare_random_states(module: GraphModule) -> None:
    """Record what ops that save and bring back a generator's state give: PyTorch takes the state for one of the CPU's.

    Here a state is the seed and the offset that the op drew, two int64 on the device.
    """
    nodes = [node for node in module.graph.nodes if node.target in (run_and_save_rng_state, run_with_rng_state)]
    if not nodes:
        return
    fake_mode = next(value.fake_mode for value in fake_values(module))  # type: ignore[attr-defined]
    with fake_mode:
        state = torch.empty(2, dtype=torch.int64, device=torch.device("tpu", device_of(module) or 0))
        for node in nodes:
            op, args, kwargs = _op_of(node)
            result = op(*torch.fx.node.map_arg(args, recorded), **torch.fx.node.map_arg(kwargs, recorded))
            if node.target is run_with_rng_state:
                node.meta["val"] = result
                node.args[0].meta["val"] = state
                continue
            node.meta["val"] = state, result
            for user in node.users:
                user.meta["val"] = node.meta["val"][user.args[1]]


def recorded(node: Node) -> Any:
    return node.meta["val"]


@dataclass
class GraphFunction:
    """A graph taken apart: its inputs, its constants, what it writes and what it gives."""

    module: GraphModule
    placeholders: list[Node] = field(default_factory=list)
    attributes: dict[str, torch.Tensor] = field(default_factory=dict)  # by name: tensors that PyTorch put into the graph
    written: list[Node] = field(default_factory=list)  # placeholders, in the order of their first write
    outputs: list[Any] = field(default_factory=list)  # nodes and constants
    draws: int = 0
    seeded: bool = False  # whether values depend on the generator

    def __post_init__(self) -> None:
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.placeholders.append(node)
            elif node.op == "get_attr" and isinstance(value := attribute(self.module, node), torch.Tensor):
                self.attributes[str(node.target)] = value
            elif node.op == "output":
                given = node.args[0]
                self.outputs = list(given) if isinstance(given, (tuple, list)) else [given]
            elif node.target is aten.copy_.default and node.args[0].op == "placeholder":
                if node.args[0] not in self.written:
                    self.written.append(node.args[0])
            elif draws_random(node):
                self.draws += 1
                self.seeded = self.seeded or depends_on_draw(*_op_of(node))

    def check(self) -> None:
        """UnsupportedNode for the first node that nothing can run, before any of it is traced."""
        for node in self.module.graph.nodes:
            if node.op != "call_function" or node.target in _SPECIAL or node.target in _NOTHING:
                continue
            op = _op_of(node)[0]
            if node.target is with_effects:
                raise UnsupportedNode(
                    f"tpu: {node.args[1]} raises or prints when it runs, which a compiled graph cannot{place_of(node)}\n{_WAY_OUT}"
                )
            if op in BRANCHES:
                for branch in _branches(self.module, node):
                    branch.check()
                    if branch.draws or branch.written:
                        raise UnsupportedNode(f"tpu: {op.name()} whose parts draw random numbers or write inputs{place_of(node)}")
            elif isinstance(op, HigherOrderOperator):
                raise UnsupportedNode(f"tpu: the higher-order op {op.name()} has no lowering{place_of(node)}")
            if isinstance(op, OpOverload) and lowering_of(op) is None:
                raise UnsupportedNode(
                    f"tpu: {op} (node {node.name}) has no lowering, and PyTorch has no decomposition for it{place_of(node)}\n{_WAY_OUT}"
                )


# ---- evaluation


def evaluate(
    graph: GraphFunction, inputs: Sequence[Any], attributes: dict[str, Array], state: Array | None
) -> tuple[list[Any], list[Array]]:
    """The outputs of a graph (arrays, numbers, None) and the new values of the inputs that it writes.

    ``inputs`` has an array or a number for each placeholder; ``state`` is the seed and the offset of the generator.
    """
    values: dict[Node, Any] = dict(zip(graph.placeholders, inputs))
    drawn = 0

    def value_of(node: Node) -> Any:
        return values[node]

    def next_state() -> Array:
        nonlocal drawn
        drawn += 1
        if state is None:  # nothing depends on it
            return jnp.zeros(2, np.int64)
        return state + np.array([0, (drawn - 1) * OFFSET_PER_OP], np.int64)

    originals = dict(values)
    attributes = attributes | {name: _constant(value) for name, value in graph.attributes.items() if name not in attributes}
    for node in graph.module.graph.nodes:
        if node.op == "get_attr":
            name = str(node.target)
            values[node] = attributes[name] if name in attributes else attribute(graph.module, node)
        elif node.op == "call_function":
            args = torch.fx.node.map_arg(node.args, value_of)
            kwargs = torch.fx.node.map_arg(node.kwargs, value_of)
            try:
                if node.target in BRANCHES:
                    parts = [functools.partial(_part, branch) for branch in _branches(graph.module, node)]
                    values[node] = BRANCHES[node.target](*parts, args)
                else:
                    values[node] = _run(node, tuple(args), dict(kwargs), values, next_state)
            except CompilationError:
                raise
            except Exception as error:
                raise CompilationError(_failure(node, error)) from error
    # A graph that gives back an input which it also writes means the value that came in.
    outputs = [originals.get(each, values.get(each)) if isinstance(each, Node) else each for each in graph.outputs]
    return outputs, [values[node] for node in graph.written]


def _run(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], values: dict[Node, Any], next_state: Callable[[], Array]) -> Any:
    target = node.target
    if target in _NOTHING:
        return None
    if target is aten.copy_.default:
        new = jnp.broadcast_to(cast(args[1], args[0].dtype), args[0].shape)
        if node.args[0].op == "placeholder":  # type: ignore[union-attr]
            values[node.args[0]] = new  # type: ignore[index]
        return new
    if target is run_and_save_rng_state or target is run_with_rng_state:
        op, *rest = args if target is run_and_save_rng_state else args[1:]
        state = next_state() if target is run_and_save_rng_state else args[0]
        lowering = lowering_of(op)
        assert lowering is not None, "checked before"
        results = call_lowering(lowering, tuple(rest), kwargs, lambda: random_key(state[0], state[1]))
        if target is run_with_rng_state:
            return _as_recorded(results, node.meta["val"])
        return state, _as_recorded(results, node.meta["val"][1])
    if target in _SPECIAL:
        return _SPECIAL[target](node, args, kwargs)
    if kwargs.get("generator") is not None:
        raise UnsupportedNode(f"tpu: {target} with a generator of its own has no place in a compiled graph{place_of(node)}")
    return run_node(node, args, kwargs, lambda: random_key(*next_state()))


def _as_recorded(results: Any, record: Any) -> Any:
    if isinstance(record, torch.Tensor):
        single = results[0] if isinstance(results, (tuple, list)) else results
        return cast(single, numpy_dtype(record.dtype))
    return [_as_recorded(a, b) if isinstance(b, torch.Tensor) else a for a, b in zip(results, record)]


# ---- control flow


def _branches(module: GraphModule, node: Node) -> list[GraphFunction]:
    """The graphs that a node of control flow runs."""
    return [GraphFunction(attribute(module, each)) for each in node.args if isinstance(each, Node) and _is_graph(module, each)]


def _is_graph(module: GraphModule, node: Node) -> bool:
    return node.op == "get_attr" and isinstance(attribute(module, node), GraphModule)


def _part(branch: GraphFunction, *inputs: Any) -> list[Any]:
    return evaluate(branch, inputs, {}, None)[0]


def _constant(tensor: torch.Tensor) -> Array:
    return jnp.asarray(host_view(tensor.detach().cpu().contiguous()))


def _cond(when_true: Callable[..., Any], when_false: Callable[..., Any], args: Sequence[Any]) -> Any:
    predicate, _, _, operands = args
    if isinstance(predicate, bool):
        return (when_true if predicate else when_false)(*operands)
    arrays = [x for x in operands if isinstance(x, Array)]

    def on_arrays(branch: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Array) -> list[Any]:
            remaining = iter(given)
            return branch(*(next(remaining) if isinstance(x, Array) else x for x in operands))

        return run

    return lax.cond(predicate.reshape(()), on_arrays(when_true), on_arrays(when_false), *arrays)


def _while_loop(go_on: Callable[..., Any], body: Callable[..., Any], args: Sequence[Any]) -> Any:
    _, _, carried, additional = args

    def test(state: tuple[Array, ...]) -> Array:
        return go_on(*state, *additional)[0].reshape(())

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(jnp.asarray(new, old.dtype) for new, old in zip(body(*state, *additional), state))

    return lax.while_loop(test, step, tuple(jnp.asarray(x) for x in carried))


BRANCHES: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while_loop,
}


# ---- ops that need the graph's own record of a value


def hint(size: Any) -> int:
    return size.node.hint if isinstance(size, torch.SymInt) else int(size)


def storage_layout(value: torch.Tensor) -> Layout | None:
    """How a recorded tensor lies in its storage; None unless it fills it from the start."""
    sizes, strides = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
    layout = Layout.nearest(sizes, strides, value.dtype)
    whole = hint(value.storage_offset()) == 0 and np.prod(sizes, dtype=np.int64) * value.element_size() == hint(
        value.untyped_storage().nbytes()
    )
    same = all(a == b for a, b, n in zip(layout.strides, strides, sizes) if n > 1)
    return layout if whole and same else None


def _as_strided(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``as_strided`` counts in the storage, whose order the array of a permuted tensor does not have."""
    source = node.args[0]
    layout = storage_layout(source.meta["val"])  # type: ignore[union-attr]
    if layout is None:
        raise UnsupportedNode(f"tpu: {node.target} of a tensor that is itself a part of another has no lowering{place_of(node)}")
    lowering = lowering_of(node.target)
    assert lowering is not None
    return call_lowering(lowering, (layout.to_base(args[0]), *args[1:]), kwargs)


def _as_strided_scatter(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    layout = storage_layout(node.args[0].meta["val"])  # type: ignore[union-attr]
    return layout.from_base(_as_strided(node, args, kwargs)) if layout is not None else _as_strided(node, args, kwargs)


def _stride(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return Layout.contiguous(args[0].shape, torch.float32).strides[args[1]]


_SPECIAL: dict[Any, Callable[..., Any]] = {
    aten.copy_.default: lambda *_: None,  # handled where it can write
    run_and_save_rng_state: lambda *_: None,
    run_with_rng_state: lambda *_: None,
    aten.as_strided.default: _as_strided,
    aten.as_strided_copy.default: _as_strided,
    aten.as_strided_scatter.default: _as_strided_scatter,
    torch.ops.prims.convert_element_type.default: lambda node, args, kwargs: cast(args[0], numpy_dtype(args[1])),
    aten._local_scalar_dense.default: lambda node, args, kwargs: weakly_typed(args[0].reshape(())),
    aten.sym_size.int: lambda node, args, kwargs: args[0].shape[args[1]],
    aten.sym_stride.int: _stride,
    aten.sym_numel.default: lambda node, args, kwargs: args[0].size,
    aten.sym_storage_offset.default: lambda node, args, kwargs: 0,
}

# Checks of sizes, which are known when a graph is compiled, and marks for a profiler of single ops.
_NOTHING = {
    torch.ops.profiler._record_function_enter.default,
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    aten._assert_tensor_metadata.default,
}


# ---- failures


def place_of(node: Node) -> str:
    """The user's line that a node comes from, for the end of a message."""
    trace = node.meta.get("stack_trace")
    return f"; it comes from\n{trace.strip()}" if trace else f" (node {node.format_node()})"


def _failure(node: Node, error: Exception) -> str:
    lowering = lowering_of(_op_of(node)[0])
    where = ""
    if lowering is not None:
        function = inspect.unwrap(lowering.function)
        code = getattr(function, "__code__", None)
        file = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""
        where = f" in its lowering {getattr(function, '__qualname__', function)}{file}"
    return f"tpu: node {node.name} ({node.target}) fails{where}: {type(error).__name__}: {error}{place_of(node)}"
