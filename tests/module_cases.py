"""PyTorch's databases of modules and optimizers on the device, as cases of the same table as the operators'."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput
from torch.utils._pytree import tree_leaves

from .comparison import Tolerance, compare, differ, place, tolerance, widened
from .opinfo import DEVICE, Case, Inapplicable, Outcome, described, other_seed, seed

MODULE_DTYPES = ("float32", "float64", "bfloat16", "float16")


# ---- modules


@functools.cache
def modules() -> dict[str, ModuleInfo]:
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def module_cases(info: ModuleInfo) -> list[Case]:
    listed = [name for name in MODULE_DTYPES if getattr(torch, name) in info.dtypes]
    return [Case("module", info.name, dtype, kind) for kind in ("forward", "backward") for dtype in listed]


def run_module_case(case: Case, most: int) -> Outcome:
    """Build the module of each input on the CPU, copy it, and compare results, or the gradients of inputs and parameters."""
    info = modules()[case.name]
    dtype = getattr(torch, case.dtype)
    outcome = Outcome("inapplicable")
    for training in (False, True) if info.train_and_eval_differ else (True,):
        seed()
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=case.kind == "backward", training=training
        )
        for module_input in inputs[: most or None]:
            try:
                deviation = _check_module(info, dtype, module_input, training, case.kind)
            except Inapplicable as reason:
                outcome.cause = outcome.cause or str(reason)
                continue
            except Exception as error:
                return Outcome("failed", f"{described(error)} [{module_input.desc}, training={training}]", outcome.checked)
            outcome.checked += 1
            if deviation is not None:
                outcome.status, outcome.cause = "deviates", deviation
            elif outcome.status == "inapplicable":
                outcome.status, outcome.cause = "passed", ""
    return outcome


def _check_module(info: ModuleInfo, dtype: torch.dtype, module_input: ModuleInput, training: bool, kind: str) -> str | None:
    seed()
    args, kwargs = module_input.constructor_input.args, module_input.constructor_input.kwargs
    original = info.module_cls(*args, **kwargs).to(dtype).train(training)
    forward = module_input.forward_input

    def run(device: str, wide: bool = False) -> list[Any]:
        module = copy.deepcopy(original)
        arguments = place((forward.args, dict(forward.kwargs)), "cpu")
        if wide:
            module, arguments = module.double(), widened(arguments)
        module, (a, k) = module.to(device), place(arguments, device)
        seed()
        result = module(*a, **k)
        return [result] if kind == "forward" else _all_gradients(module, (a, k), result)

    try:
        expected = run("cpu")
    except Inapplicable:
        raise
    except Exception as error:
        raise Inapplicable(f"CPU: {described(error)}") from error
    got = run(DEVICE)
    try:
        return compare(got, expected, tolerance(dtype, info.decorators or ()), lambda: run("cpu", wide=True))
    except AssertionError:
        with other_seed():
            if not differ(expected, run("cpu")):
                raise
    for a, b in zip(tree_leaves(got), tree_leaves(expected)):
        assert not isinstance(b, torch.Tensor) or (a.shape == b.shape and a.dtype == b.dtype), "another shape or dtype than CPU's"
    return None


def _all_gradients(module: torch.nn.Module, arguments: Any, result: Any) -> list[Any]:
    outputs = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves += [p for p in module.parameters() if p.requires_grad]
    if not outputs or not leaves:
        raise Inapplicable("no gradient flows")
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype).to(x.device) for x in outputs]
    return list(torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True))


# ---- optimizers

STEPS = 4


@functools.cache
def optimizers() -> dict[str, OptimizerInfo]:
    from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}


def optimizer_cases(info: OptimizerInfo) -> list[Case]:
    """One case for each way to run the optimizer; each goes through all the database's inputs."""
    kinds = ["single", *info.supported_impls, *(["capturable"] if info.has_capturable_arg else [])]
    return [Case("optimizer", info.optim_cls.__name__, "float32", kind) for kind in kinds]


def run_optimizer_case(case: Case, most: int) -> Outcome:
    """A few steps with the same gradients on both sides, for every input of the database."""
    info = optimizers()[case.name]
    outcome = Outcome("inapplicable")
    for optimizer_input in info.optim_inputs_func(device="cpu"):
        try:
            deviation = _check_optimizer(info, optimizer_input, case.kind)
        except Inapplicable as reason:
            outcome.cause = outcome.cause or str(reason)
            continue
        except Exception as error:
            return Outcome("failed", f"{described(error)} [{optimizer_input.desc}]", outcome.checked)
        outcome.checked += 1
        if deviation is not None:
            outcome.status, outcome.cause = "deviates", deviation
        elif outcome.status == "inapplicable":
            outcome.status, outcome.cause = "passed", ""
    return outcome


def _check_optimizer(info: OptimizerInfo, optimizer_input: OptimizerInput, kind: str) -> str | None:
    def run(device: str, dtype: torch.dtype) -> list[Any]:
        generator = torch.Generator().manual_seed(0)
        shapes = [(4, 5), (3, 4)] if info.optim_cls.__name__ == "Muon" else [(4, 5), (3,), ()]
        if info.only_supports_sparse_grads:
            shapes = [(4, 5), (6, 2)]
        parameters = [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype).to(device)) for s in shapes]
        targets = [torch.randn(s, generator=generator).to(dtype).to(device) for s in shapes]
        kwargs = place(copy.deepcopy(optimizer_input.kwargs), device)
        if kind in info.supported_impls:
            kwargs[kind] = True
        elif "foreach" in info.supported_impls:
            kwargs["foreach"] = False
        if kind == "capturable":
            kwargs["capturable"] = device != "cpu"  # on the CPU the plain form says what it should give
        if kind == "differentiable":
            parameters = [p.clone() for p in parameters]  # what PyTorch differentiates through
        optimizer = info.optim_cls(parameters, **kwargs)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = sum(((p - t) ** 2).sum() for p, t in zip(parameters, targets))
            loss.backward()
            return loss.detach()

        for _ in range(STEPS):
            if info.step_requires_closure:
                optimizer.step(closure)
                continue
            for p in parameters:
                gradient = torch.randn(p.shape, generator=generator).to(dtype)
                p.grad = (_sparse(gradient) if info.only_supports_sparse_grads else gradient).to(device)
            optimizer.step()
        state = [value for held in optimizer.state_dict()["state"].values() for value in tree_leaves(held)]
        return [[p.detach() for p in parameters], [x.detach().to(device) if isinstance(x, torch.Tensor) else x for x in state]]

    try:
        expected = run("cpu", torch.float32)
    except Exception as error:
        raise Inapplicable(f"CPU: {described(error)}") from error
    got = run(DEVICE, torch.float32)
    return compare(got, expected, Tolerance(1.3e-6, 1e-5), lambda: run("cpu", torch.float64))


def _sparse(gradient: torch.Tensor) -> torch.Tensor:
    """Every other row of a dense gradient, as a sparse one."""
    rows = torch.arange(0, gradient.shape[0], 2)
    return torch.sparse_coo_tensor(rows[None], gradient[rows], gradient.shape)
