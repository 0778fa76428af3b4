"""A whole training step as one executable: forward, backward and the optimizer's update of the user's own module and optimizer.

The step is traced as PyTorch runs it, with the optimizer's own ``step`` on a shallow copy that holds the traced tensors.
Parameters, buffers and optimizer state are inputs that the graph writes, so they are updated in their own memory. Learning
rates enter as numbers at run time, and counters as tensors, so neither makes a new executable.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.utils import stateless
from torch.optim import Optimizer
from torch.utils import checkpoint
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .backend import decompositions
from .compiled import CompiledGraph
from .settings import Options, current_options

Loss = Callable[..., Any]

_TENSOR = object()  # a tensor's place among the arguments

# How a group of parameters may be updated: one after the other, which is one program here, with counters as tensors.
_PLAIN = {"foreach": False, "fused": False, "capturable": True}


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: Loss | None = None,
    *,
    max_grad_norm: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A function that takes one training step on a batch, as one executable, and returns what ``loss_fn`` returns, detached.

    ``loss_fn(model, *batch)`` gives the loss, or a tuple that starts with it; by default ``model(*batch)`` is the loss.
    ``max_grad_norm`` clips the gradients' norm first. Module and optimizer are as after an ordinary step whenever it returns,
    except that no gradients are left in ``.grad``, and step counters live on the device. Schedulers work on the optimizer as
    ever. A new shape, training mode, or value of a hyperparameter other than ``lr`` makes a new executable.
    """
    return TrainStep(model, optimizer, loss_fn or (lambda model, *batch, **named: model(*batch, **named)), max_grad_norm, options)


@dataclass
class _Traced:
    """A compiled step, and the state that it makes beside what it was given: (parameter, name) of each."""

    run: Callable[..., Any]
    spec: TreeSpec  # of what the loss function returned
    created: list[tuple[int, str]]


class TrainStep:
    """See ``train_step``."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, loss_fn: Loss, max_grad_norm: float | None, options: Mapping[str, Any] | None
    ) -> None:
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            raise ValueError("train_step(): step hooks of the optimizer would run once, when the step is traced; remove them")
        self.model, self.optimizer, self.loss_fn, self.max_grad_norm = model, optimizer, loss_fn, max_grad_norm
        self.options: Options = current_options().changed(options or {})
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        named = dict(model.named_parameters())
        known = {id(p): name for name, p in named.items()}
        if any(id(p) not in known for p in self.parameters):
            raise ValueError("train_step(): the optimizer has parameters that are not the model's")
        self.trained = [known[id(p)] for p in self.parameters]
        self.traced: OrderedDict[Any, _Traced] = OrderedDict()
        self.prepared = False  # whether the optimizer's state has been made

    def __call__(self, *batch: Any, **named: Any) -> Any:
        device = self.parameters[0].device
        leaves, batch_spec = tree_flatten((batch, named))
        tensors = [leaf.to(device) for leaf in leaves if isinstance(leaf, Tensor)]
        static = tuple(_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if not self.prepared:
            self._make_state()
        weights, frozen = self._weights()
        names, states = self._states()
        rates = [torch.tensor([float(group["lr"]) for group in self.optimizer.param_groups], dtype=torch.float64)]
        given = [*weights.values(), *frozen.values(), *states, *rates, *tensors]
        key = (
            tuple((t.shape, t.stride(), t.dtype) for t in tensors), static, batch_spec, tuple(names), _hyperparameters(self.optimizer),
            tuple(module.training for module in self.model.modules()), tuple(t.requires_grad for t in given[: len(given) - len(tensors)]),
            torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.is_autocast_enabled("tpu"),
            torch.get_autocast_dtype("tpu"),
        )  # fmt: skip
        traced = self.traced.get(key)
        if traced is None:
            traced = self.traced[key] = self._trace(list(weights), list(frozen), names, given, static, batch_spec)
            while len(self.traced) > self.options.max_executables:
                self.traced.popitem(last=False)
        with torch.no_grad():
            results = traced.run(*given)
        for (i, name), state in zip(traced.created, results[len(results) - len(traced.created) :]):
            self.optimizer.state[self.parameters[i]][name] = state
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # what schedulers ask
        return tree_unflatten(list(results[: traced.spec.num_leaves]), traced.spec)

    # ---- what a step reads and writes

    def _weights(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The trained parameters by name, in the optimizer's order; and all other parameters and buffers."""
        weights = dict(zip(self.trained, self.parameters))
        others = [*self.model.named_parameters(), *self.model.named_buffers()]
        return weights, {name: tensor for name, tensor in others if name not in weights}

    def _states(self) -> tuple[list[tuple[int, str]], list[Tensor]]:
        names, states = [], []
        for i, parameter in enumerate(self.parameters):
            state = self.optimizer.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, Tensor):
                    if value.device != parameter.device:
                        value = state[name] = value.to(parameter.device)
                    names.append((i, name))
                    states.append(value)
        return names, states

    def _make_state(self) -> None:
        """Have the optimizer make the state that it makes before its first update: the first step would be a program of its own."""
        optimizer = self.optimizer
        if hasattr(optimizer, "_init_group"):
            kept = [p.grad for p in self.parameters]
            try:
                for p in self.parameters:
                    p.grad = p.detach() if p.requires_grad else None
                for group in optimizer.param_groups:
                    lists = len(inspect.signature(optimizer._init_group).parameters) - 1  # what it sorts parameters into
                    optimizer._init_group(group, *([] for _ in range(lists)))
            finally:
                for p, grad in zip(self.parameters, kept):
                    p.grad = grad
        self.prepared = True

    # ---- tracing

    def _trace(
        self,
        weight_names: list[str],
        frozen_names: list[str],
        state_names: list[tuple[int, str]],
        given: Sequence[Tensor],
        static: tuple[Any, ...],
        batch_spec: TreeSpec,
    ) -> _Traced:
        fake_mode = FakeTensorMode(shape_env=ShapeEnv())
        fakes = [fake_mode.from_tensor(t.detach(), static_shapes=True) for t in given]
        gradients = [t.requires_grad for t in given]
        found: dict[str, Any] = {}

        def step(*flat: Tensor) -> list[Tensor]:
            rest = list(flat)

            def take(count: int) -> list[Tensor]:
                taken, rest[:count] = rest[:count], []
                return taken

            weights, frozen, states = take(len(weight_names)), take(len(frozen_names)), take(len(state_names))
            (rates,) = take(1)
            leaves = [rest.pop(0) if each is _TENSOR else each for each in static]
            batch, named = tree_unflatten(leaves, batch_spec)
            live = [w.detach().requires_grad_(needs) for w, needs in zip(weights, gradients)]
            tensors = dict(zip(weight_names, live)) | dict(zip(frozen_names, frozen))
            with torch.enable_grad(), stateless._reparametrize_module(self.model, tensors, tie_weights=True):
                returned = self.loss_fn(self.model, *batch, **named)
                results, found["spec"] = tree_flatten(returned)
                wanted = [w for w in live if w.requires_grad]
                grads = dict(zip(map(id, wanted), torch.autograd.grad(results[0], wanted, allow_unused=True)))
            for name, before in zip(frozen_names, frozen):
                if tensors[name] is not before:  # the module put another tensor in its place
                    before.copy_(tensors[name])
            by_weight = [grads.get(id(w)) for w in live]
            if self.max_grad_norm is not None:
                by_weight = _clipped(by_weight, self.max_grad_norm)
            with torch.no_grad():
                created = self._update(weights, by_weight, dict(zip(state_names, states)), rates)
            found["created"] = list(created)
            return [r.detach() for r in results] + list(created.values())

        def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            return CompiledGraph(gm, self.options, name="train_step")

        with tracing(TracingContext(fake_mode)), torch.no_grad(), _autocast_cache_off(), _checkpoints_keep_no_state():
            run = aot_module_simplified(
                cast(GraphModule, _Function(step)),  # any module will do
                fakes,
                fw_compiler=compile_graph,
                inference_compiler=compile_graph,
                decompositions=decompositions(),
                keep_inference_input_mutations=True,
            )
        return _Traced(run, found["spec"], found["created"])

    def _update(
        self, weights: list[Tensor], grads: list[Tensor | None], states: dict[tuple[int, str], Tensor], rates: Tensor
    ) -> dict[tuple[int, str], Tensor]:
        """Run the optimizer's own step on traced tensors, which it writes; the state that it newly makes."""
        shadow = object.__new__(type(self.optimizer))
        shadow.__dict__ = self.optimizer.__dict__ | {"param_groups": [], "state": defaultdict(dict)}
        remaining = iter(weights)
        for i, group in enumerate(self.optimizer.param_groups):
            members = [next(remaining) for _ in group["params"]]
            plain = {name: value for name, value in _PLAIN.items() if name in group}
            shadow.param_groups.append({**group, **plain, "params": members, "lr": rates[i]})
        for weight, grad in zip(weights, grads):
            weight.grad = grad
        before: dict[tuple[int, str], Any] = {}
        for i, (parameter, weight) in enumerate(zip(self.parameters, weights)):
            for name, value in self.optimizer.state.get(parameter, {}).items():
                # Counters in double precision, in which PyTorch computes with them on the host.
                value = states.get((i, name), value)
                if name == "step" and isinstance(value, Tensor):
                    value = value.double()
                before[i, name] = shadow.state[weight][name] = value
        type(self.optimizer).step(shadow)
        created: dict[tuple[int, str], Tensor] = {}
        for i, weight in enumerate(weights):
            weight.grad = None
            for name, value in shadow.state[weight].items():
                own = states.get((i, name))
                if own is not None:
                    if value is not own:
                        own.copy_(value)
                elif isinstance(value, Tensor):
                    created[i, name] = value.clone()
                elif (i, name) not in before or before[i, name] != value:
                    raise NotImplementedError(
                        f"train_step(): {type(self.optimizer).__name__} keeps {name!r} as a {type(value).__name__} that changes from "
                        "step to step; only tensors can change in a compiled step"
                    )
        return created


class _Function(nn.Module):
    """What AOTAutograd takes: a module without parameters around a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *flat: Tensor) -> Any:
        return self.function(*flat)


def _hyperparameters(optimizer: Optimizer) -> tuple[Any, ...]:
    return tuple(
        tuple((name, value) for name, value in group.items() if name not in ("params", "lr", "initial_lr"))
        for group in optimizer.param_groups
    )


def _clipped(grads: list[Tensor | None], max_norm: float) -> list[Tensor | None]:
    """As ``torch.nn.utils.clip_grad_norm_`` scales them."""
    present = [g for g in grads if g is not None]
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in present]))
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    return [g * scale.to(g.dtype) if g is not None else None for g in grads]


@contextmanager
def _autocast_cache_off() -> Iterator[None]:
    """Autocast keeps casts of parameters by identity, which traced ones must not enter."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextmanager
def _checkpoints_keep_no_state() -> Iterator[None]:
    """A checkpoint reads the generators' states, which a trace has none of, and needs none: PyTorch traces it as if not there."""
    kept = checkpoint.get_device_states
    checkpoint.get_device_states = lambda *tensors: ([], [])
    try:
        yield
    finally:
        checkpoint.get_device_states = kept
