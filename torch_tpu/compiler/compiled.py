"""A graph compiled for one device, as AOTAutograd calls it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import torch
from jax import Array
from torch.fx import GraphModule, Node

from .. import _C
from ..eager.transfers import array_of, upload
from ..eager.views import loaded, stored
from ..runtime.executables import ArrayType, Executable, compile_program
from .graphs import GraphFunction, UnsupportedNode, device_of, evaluate, hint, place_of
from .launch import run
from .layouts import Layout, Shape
from .plans import Input, Output, Plan
from .settings import Options
from .signature import graph_signature

log = logging.getLogger(__name__)

_MANY_EXECUTABLES = 8

# Every graph that is alive, for reports, and numbers that say their order.
_numbers = itertools.count()
compiled_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()


class CompiledGraph:
    """Called with the list of a graph's arguments, which it empties; gives the list of its results.

    Without symbolic sizes the graph is compiled when this is made; with them, at the first call with each combination. Of the
    results, the first ``strided`` (None: all) have the strides that PyTorch gives them; the others are contiguous.
    """

    def __init__(self, module: GraphModule, options: Options, strided: int | None = None, name: str = "graph") -> None:
        self._boxed_call = True  # AOTAutograd's word for it; an attribute of the instance, because wrappers copy those
        self.options, self.name = options, name
        with undisturbed():
            index = device_of(module)
            self.device = _C.current_device() if index is None else index
            self.graph = GraphFunction(module)
            self.graph.check()
            self.strided = len(self.graph.outputs) if strided is None else strided
            self.precision = torch.get_float32_matmul_precision()
            self.signature = graph_signature(module)
            self.kinds = [_kind(node) for node in self.graph.placeholders]
            self.constants = {
                name: array_of(tensor) if tensor.device.type == "tpu" else upload(tensor, self.device)
                for name, tensor in self.graph.attributes.items()
            }
            self.settled = [i for i, kind in enumerate(self.kinds) if kind != "tensor"]
            self.plans: OrderedDict[Any, Plan] = OrderedDict()
            self.static: Plan | None = None
            if not self.settled:
                self.static = self.plans[()] = self._plan([node.meta["val"] for node in self.graph.placeholders])
                self.executable(self.static, options.donate)
        self.number = next(_numbers)
        compiled_graphs.add(self)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        if torch.get_float32_matmul_precision() != self.precision:
            self._change_precision()
        return run(self, self.static or self._plan_for(arguments), arguments)

    def _change_precision(self) -> None:
        """Dynamo's guards see only whether float32 products may be less than exact, not by how much."""
        with undisturbed():
            self.precision = torch.get_float32_matmul_precision()
            self.signature = graph_signature(self.graph.module)
            for plan in self.plans.values():
                plan.executables.clear()

    @property
    def output_strides(self) -> list[Shape | None]:
        """How the results will lie in memory, in terms of the graph's own sizes."""
        strides: list[Any] = []
        for i, each in enumerate(self.graph.outputs):
            value = each.meta.get("val") if isinstance(each, Node) else None
            if not isinstance(value, torch.Tensor):
                strides.append(None)
            elif each in self.graph.placeholders or i < self.strided:
                strides.append(tuple(value.stride()))
            else:
                strides.append(tuple(torch._prims_common.make_contiguous_strides_for(value.shape)))
        return strides

    # ---- plans

    def _plan_for(self, arguments: Sequence[Any]) -> Plan:
        key = tuple(
            (tuple(arguments[i].shape), arguments[i].stride()) if self.kinds[i] == "symbolic" else arguments[i] for i in self.settled
        )
        plan = self.plans.get(key)
        if plan is not None:
            self.plans.move_to_end(key)
            return plan
        with undisturbed():
            plan = self.plans[key] = self._plan(arguments)
        if len(self.plans) == _MANY_EXECUTABLES + 1:
            log.warning("%s has been compiled for more than %d combinations of sizes", self.name, _MANY_EXECUTABLES)
        while len(self.plans) > self.options.max_executables:
            self.plans.popitem(last=False)
        return plan

    def _plan(self, arguments: Sequence[Any]) -> Plan:
        """The plan for arguments of these sizes (tensors, or the graph's record of them)."""
        inputs = [Input.of(i, arguments[i]) for i, kind in enumerate(self.kinds) if kind in ("tensor", "symbolic")]
        positions = {each.argument: position for position, each in enumerate(inputs)}
        plan = Plan(
            numbers={i: arguments[i] for i, kind in enumerate(self.kinds) if kind == "number"},
            inputs=inputs,
            constants=[ArrayType(tuple(array.shape), array.dtype) for array in self.constants.values()],
            written=[positions[self.graph.placeholders.index(node)] for node in self.graph.written],
            seeded=self.graph.seeded,
            draws=self.graph.draws,
            device=self.device,
            name=self.name,
        )
        shapes: list[Any] = [None] * len(self.graph.outputs)
        if self.settled or any(isinstance(x, Node) and not _is_tensor(x) for x in self.graph.outputs):
            # What comes out, only an evaluation tells.

            def record(*given: Array) -> list[Array]:
                shapes[:] = [x if not isinstance(x, Array) else tuple(x.shape) for x in self._evaluate(plan, given)[0]]
                return []

            with jax.enable_x64(True):
                jax.eval_shape(record, *(each.abstract(self.device) for each in plan.types))
        slots: dict[Node, int] = {}
        plan.outputs = [self._output(i, shapes[i], slots) for i in range(len(self.graph.outputs))]
        plan.fresh = len(slots)
        return plan

    def _output(self, i: int, evaluated: Any, slots: dict[Node, int]) -> Output:
        """``evaluated`` is the shape, or the number, that an evaluation gave; None where there was none."""
        given = self.graph.outputs[i]
        if not isinstance(given, Node):
            return Output(constant=given)
        if given in self.graph.placeholders and given not in self.graph.written:
            return Output(argument=self.graph.placeholders.index(given))
        value = given.meta.get("val")
        if not isinstance(value, torch.Tensor):
            if isinstance(evaluated, tuple):
                raise UnsupportedNode(f"tpu: a number that only running the graph tells cannot leave it{place_of(given)}")
            return Output(constant=evaluated)
        sizes = tuple(value.shape) if evaluated is None else evaluated
        layout = Layout.contiguous(sizes, value.dtype)
        if i < self.strided:
            recorded = Layout.nearest([hint(n) for n in value.shape], [hint(n) for n in value.stride()], value.dtype)
            layout = Layout.ordered(sizes, recorded.order, value.dtype)
        slot = -1 if layout.empty else slots.setdefault(given, len(slots))
        return Output(layout, slot, value.device.type == "cpu")

    # ---- executables

    def _evaluate(self, plan: Plan, given: Sequence[Array]) -> tuple[list[Any], list[Array]]:
        inputs: list[Any] = [plan.numbers.get(i) for i in range(len(self.kinds))]
        for each, base in zip(plan.inputs, given):
            inputs[each.argument] = loaded(each.layout.from_base(base), each.layout.dtype)
        rest = list(given[len(plan.inputs) :])
        state = rest.pop() if self.graph.seeded else None
        return evaluate(self.graph, inputs, dict(zip(self.constants, rest)), state)

    def executable(self, plan: Plan, donate: bool) -> Executable:
        """From the bases of the plan's inputs to those of its new results, then those of the inputs that it writes."""
        if donate in plan.executables:
            return plan.executables[donate]

        def function(*given: Array) -> list[Array]:
            results, written = self._evaluate(plan, given)
            fresh: dict[int, Array] = {}
            for output, result in zip(plan.outputs, results):
                if output.layout is not None and output.slot >= 0:
                    fresh[output.slot] = output.layout.to_base(stored(result, output.layout.dtype))
            layouts = [plan.inputs[position].layout for position in plan.written]
            new = [layout.to_base(stored(value, layout.dtype)) for layout, value in zip(layouts, written)]
            return [fresh[slot] for slot in range(plan.fresh)] + new

        with undisturbed():
            plan.executables[donate] = compile_program(
                function,
                plan.types,
                device=self.device,
                donated=plan.written if donate else [],
                signature=f"{self.signature}|{plan.text}",
                name=self.name,
                options=dict(self.options.xla),
            )
        return plan.executables[donate]


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _kind(node: Node) -> str:
    """How an argument enters: a ``tensor`` of known or of ``symbolic`` sizes, or a ``number`` that is known at each call."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride())
        return "symbolic" if any(isinstance(n, torch.SymInt) for n in sizes) else "tensor"
    if value is None or isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return "number"
    raise NotImplementedError(f"tpu: a compiled graph cannot take a {type(value).__name__} as an argument{place_of(node)}")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Outside the user's torch function and dispatch modes, and PyTorch's own of the tracing that goes on around us."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        yield
