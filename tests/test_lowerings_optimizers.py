"""The fused optimizer steps and the gradient scaler's operations, against PyTorch's CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch

from tests.lowering_check import LoweringCheck, run_lowering, to_torch

SHAPES = [(3, 4), (), (0, 2), (7,)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def parameters_with_grads(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    parameters = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in SHAPES]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return parameters


def assert_steps_agree(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], dtype: torch.dtype, expected: str) -> None:
    """Three steps of an optimizer on CPU, where every fused kernel is also run as its lowering and compared."""
    parameters = parameters_with_grads(dtype)
    optimizer, check = make(parameters), LoweringCheck({expected})
    with check:
        for _ in range(3):
            optimizer.step()
    assert check.failures == []
    assert check.checked[expected] >= 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"amsgrad": True}, {"maximize": True, "weight_decay": 0.1}, {"betas": (0.0, 0.99)}], ids=str
)
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adam_steps_agree_with_the_cpu_kernels(kind: str, options: dict[str, Any], tensor_lr: bool, dtype: torch.dtype) -> None:
    optimizer = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    lr = torch.tensor(0.1) if tensor_lr else 0.1
    expected = f"aten._fused_{kind}.{'tensor_lr' if tensor_lr else 'default'}"
    assert_steps_agree(lambda p: optimizer(p, lr=lr, fused=True, **options), dtype, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "maximize": True},
        {"momentum": 0.9, "lr": torch.tensor(0.1)},
    ],
    ids=str,
)
def test_sgd_steps_agree_with_the_cpu_kernels(options: dict[str, Any], dtype: torch.dtype) -> None:
    options = {"lr": 0.1, **options}
    expected = f"aten._fused_sgd.{'tensor_lr' if isinstance(options['lr'], torch.Tensor) else 'default'}"
    assert_steps_agree(lambda p: torch.optim.SGD(p, fused=True, **options), dtype, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"lr_decay": 0.1, "weight_decay": 0.1}, {"maximize": True, "initial_accumulator_value": 1.0}]
)
def test_adagrad_steps_agree_with_the_cpu_kernel(options: dict[str, Any], dtype: torch.dtype) -> None:
    assert_steps_agree(lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True, **options), dtype, "aten._fused_adagrad.default")


def fused_calls() -> Iterator[Any]:
    """Every fused step, called directly: (overload, number of state lists, options)."""
    adam = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
    sgd = {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.1, "nesterov": False, "maximize": True, "is_first_step": False}
    adagrad = {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": True}
    aten = torch.ops.aten
    for name, lr in {"default": 0.1, "tensor_lr": torch.tensor(0.1)}.items():
        for amsgrad in (False, True):
            for packet in (aten._fused_adam_, aten._fused_adamw_):
                yield getattr(packet, name), 3 if amsgrad else 2, {**adam, "amsgrad": amsgrad, "lr": lr}
        yield getattr(aten._fused_sgd_, name), 1, {**sgd, "lr": lr}
        yield getattr(aten._fused_adagrad_, name), 1, {**adagrad, "lr": lr}


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("overload, states, options", list(fused_calls()))
def test_scaled_gradients_and_overflow_agree_with_the_cpu_kernels(
    overload: Any, states: int, options: dict[str, Any], found: float
) -> None:
    torch.manual_seed(0)
    lists = [[torch.randn(shape) for shape in SHAPES] for _ in range(2)]
    lists += [[torch.rand(shape) for shape in SHAPES] for _ in range(states)]
    if options.get("amsgrad") is False:
        lists.append([])
    steps = [] if "is_first_step" in options else [[torch.tensor(2.0) for _ in SHAPES]]
    scaler = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(found)}
    check = LoweringCheck()
    with check:
        overload(*lists, *steps, **options, **scaler)
    assert check.failures == []
    assert sum(check.checked.values()) == 1


def test_an_infinite_parameter_does_not_spoil_a_step_without_weight_decay() -> None:
    lists = [[torch.tensor([torch.inf, 1.0])], [torch.tensor([1.0, 1.0])], []]
    options = {"momentum": 0.0, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}
    with jax.enable_x64(True):
        new, grads, buffers = run_lowering(torch.ops.aten._fused_sgd.default, tuple(lists), {"weight_decay": 0.0, **options})
    assert np.asarray(new[0]).tolist() == pytest.approx([np.inf, 0.9])
    assert buffers == [] and np.asarray(grads[0]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [None, torch.inf, torch.nan])
def test_unscaling_agrees_with_the_cpu_kernel(bad: float | None, dtype: torch.dtype) -> None:
    grads = [torch.randn(shape).to(dtype) for shape in SHAPES]
    if bad is not None:
        grads[-1][2] = bad
    check, found_inf, inverse_scale = LoweringCheck(), torch.zeros(1), torch.tensor(0.25)
    with check:
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inverse_scale)
    assert check.failures == []
    assert sum(check.checked.values()) == 1


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("good_steps", [0, 1, 2])
@pytest.mark.parametrize("scale", [4.0, 3e38])
def test_the_scale_moves_as_on_cpu(scale: float, good_steps: int, found: float) -> None:
    state = torch.tensor([scale]), torch.tensor([good_steps], dtype=torch.int32), torch.tensor([found])
    with jax.enable_x64(True):
        got = run_lowering(torch.ops.aten._amp_update_scale.default, (*state, 2.0, 0.5, 2), {})
    expected = [x.clone() for x in state[:2]]
    torch._amp_update_scale_(*expected, state[2], 2.0, 0.5, 2)
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(to_torch(g, e.dtype), e)
