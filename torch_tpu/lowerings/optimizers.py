"""Fused optimizer steps: a whole list of parameters advances in one executable.

Each step is written once for one parameter and mapped over the lists. Hyperparameters that schedules change are run-time
arguments. Following PyTorch's fused kernels, a step with ``found_inf`` set changes nothing, and gradients scaled for mixed
precision are written back unscaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

Number = float | Array
Arrays = list[Array]


@dataclass(frozen=True)
class MixedPrecision:
    """What a gradient scaler asks of a step: divide gradients by ``scale``, and do nothing if ``found_inf`` is 1."""

    scale: Array | None
    found_inf: Array | None

    def unscaled(self, grad: Array) -> Array:
        grad = opmath(grad)
        return grad if self.scale is None else grad / self.scale.reshape(()).astype(grad.dtype)

    def unless_overflown(self, old: Array, new: Array) -> Array:
        new = new.astype(old.dtype)
        return new if self.found_inf is None else jnp.where(self.found_inf.reshape(()) == 1, old, new)


def _map_step(
    step: Callable[..., tuple[Array, ...]], mixed: MixedPrecision, lists: Sequence[Arrays], read: Arrays
) -> list[Arrays]:
    """``step`` over each parameter's arrays; the new values of ``lists``, list by list.

    ``lists`` begin with parameters and gradients; a missing one is empty. ``read`` are arrays that the step only reads, one
    for each parameter, or none.
    """
    present = [arrays for arrays in lists if arrays]
    updated = []
    for i, old in enumerate(zip(*present, strict=True)):
        grad = mixed.unscaled(old[1])
        new = step(opmath(old[0]), grad, *(opmath(x) for x in old[2:]), *read[i : i + 1])
        updated.append([mixed.unless_overflown(o, n) for o, n in zip(old, (new[0], grad, *new[1:]), strict=True)])
    columns = iter([list(column) for column in zip(*updated, strict=True)])
    return [next(columns) if arrays else [] for arrays in lists]


def _wide(number: Number) -> Array:
    """``number`` in float64, in which PyTorch works out the scalars of a step."""
    return jnp.asarray(number).astype(np.float64)


def _with_decay(grad: Array, parameter: Array, weight_decay: Number, maximize: bool) -> Array:
    grad = -grad if maximize else grad
    # A selection and not a product with 0: a parameter that is infinite must not spoil the gradient.
    return jnp.where(weight_decay == 0, grad, grad + parameter * weight_decay)


def _adam(decoupled: bool) -> Callable[..., list[Arrays]]:
    def fused_adam(
        parameters: Arrays,
        grads: Arrays,
        averages: Arrays,
        square_averages: Arrays,
        max_square_averages: Arrays,
        steps: Arrays,
        *,
        lr: Number,
        beta1: Number,
        beta2: Number,
        weight_decay: Number,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Array | None = None,
        found_inf: Array | None = None,
    ) -> list[Arrays]:
        def step_one(parameter: Array, grad: Array, average: Array, squares: Array, *rest: Array) -> tuple[Array, ...]:
            dtype, step = parameter.dtype, _wide(rest[-1].reshape(()))
            correction1 = 1 - jnp.power(_wide(beta1), step)
            correction2_root = jnp.sqrt(1 - jnp.power(_wide(beta2), step)).astype(dtype)
            step_size = (_wide(lr) / correction1).astype(dtype)
            if decoupled:
                grad = -grad if maximize else grad
                shrink = (1 - _wide(lr) * _wide(weight_decay)).astype(dtype)
                parameter = jnp.where(weight_decay == 0, parameter, parameter * shrink)
            else:
                grad = _with_decay(grad, parameter, weight_decay, maximize)
            average = average + (1 - beta1) * (grad - average)
            squares = beta2 * squares + (1 - beta2) * grad * grad
            largest = jnp.maximum(rest[0], squares) if amsgrad else squares
            parameter = parameter - step_size * average / (jnp.sqrt(largest) / correction2_root + eps)
            return (parameter, average, squares, largest) if amsgrad else (parameter, average, squares)

        lists = [parameters, grads, averages, square_averages, max_square_averages]
        return _map_step(step_one, MixedPrecision(grad_scale, found_inf), lists, steps)

    return fused_adam


_ADAM_RUNTIME = ("beta1", "beta2", "weight_decay")
for _packet, _decoupled in {aten._fused_adam: False, aten._fused_adamw: True}.items():
    lowers(_packet.default, runtime=("lr", *_ADAM_RUNTIME))(_adam(_decoupled))
    lowers(_packet.tensor_lr, runtime=_ADAM_RUNTIME)(_adam(_decoupled))


@lowers(aten._fused_sgd.default, runtime=("lr", "momentum", "weight_decay"))
@lowers(aten._fused_sgd.tensor_lr, runtime=("momentum", "weight_decay"))
def fused_sgd(
    parameters: Arrays,
    grads: Arrays,
    momentum_buffers: Arrays,
    *,
    weight_decay: Number,
    momentum: Number,
    lr: Number,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> list[Arrays]:
    """PyTorch passes no buffers when the momentum is 0; buffers that are there nevertheless stay as they are then."""

    def step_one(parameter: Array, grad: Array, *buffer: Array) -> tuple[Array, ...]:
        direction = _with_decay(grad, parameter, weight_decay, maximize)
        new_buffer: tuple[Array, ...] = ()
        if buffer:
            moved = direction if is_first_step else momentum * buffer[0] + (1 - dampening) * direction
            new_buffer = (jnp.where(momentum == 0, buffer[0], moved),)
            with_momentum = direction + momentum * moved if nesterov else moved
            direction = jnp.where(momentum == 0, direction, with_momentum)
        return (parameter - _wide(lr).astype(parameter.dtype) * direction, *new_buffer)

    return _map_step(step_one, MixedPrecision(grad_scale, found_inf), [parameters, grads, momentum_buffers], [])


@lowers(aten._fused_adagrad.tensor_lr, runtime=("weight_decay",))
def fused_adagrad_tensor_lr(
    parameters: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    steps: Arrays,
    *,
    lr: Number,
    lr_decay: float,
    weight_decay: Number,
    eps: float,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> list[Arrays]:
    def step_one(parameter: Array, grad: Array, state_sum: Array, step: Array) -> tuple[Array, ...]:
        rate = _wide(lr) / (1 + (_wide(step.reshape(())) - 1) * lr_decay)
        grad = _with_decay(grad, parameter, weight_decay, maximize)
        state_sum = state_sum + grad * grad
        return parameter - rate.astype(parameter.dtype) * grad / (jnp.sqrt(state_sum) + eps), state_sum

    return _map_step(step_one, MixedPrecision(grad_scale, found_inf), [parameters, grads, state_sums], steps)


@lowers(aten._fused_adagrad.default, runtime=("lr", "weight_decay"))
def fused_adagrad(parameters: Arrays, grads: Arrays, state_sums: Arrays, steps: Arrays, **options: object) -> list[Arrays]:
    # This overload alone is said to write the step counts; its kernel leaves them as they are.
    return [*fused_adagrad_tensor_lr(parameters, grads, state_sums, steps, **options), steps]  # type: ignore[arg-type]
