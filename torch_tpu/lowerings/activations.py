"""Activations and their gradients.

Gradients test the same inequality as the forward formula, so that they agree with PyTorch at the kinks and for NaN.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .elementwise import broadcast_value, float_unary, operands
from .promotion import cast, opmath
from .table import lowers

aten = torch.ops.aten

_SQRT_HALF = math.sqrt(0.5)
_GELU_SLOPE, _GELU_CUBIC = math.sqrt(2 / math.pi), 0.044715


@lowers(aten.relu.default)
def relu(x: Array) -> Array:
    return jnp.where(x < 0, jnp.zeros_like(x), x)


@lowers(aten.threshold.default)
def threshold(x: Array, bound: ArrayLike, value: ArrayLike) -> Array:
    return jnp.where(x <= cast(bound, x.dtype), broadcast_value(value, x), x)


@lowers(aten.threshold_backward.default)
def threshold_backward(grad: Array, x: Array, bound: ArrayLike) -> Array:
    grad, x = operands(grad, x)
    return jnp.where(x <= cast(bound, x.dtype), 0, grad)


@lowers(aten.leaky_relu.default)
def leaky_relu(x: Array, slope: ArrayLike = 0.01) -> Array:
    x = opmath(x)
    return jnp.where(x > 0, x, x * slope)


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad: Array, x: Array, slope: ArrayLike, self_is_result: bool = False) -> Array:
    # The sign of the result is that of the input, so either will do.
    grad, x = operands(grad, x)
    return jnp.where(x > 0, grad, grad * slope)


@lowers(aten._prelu_kernel.default)
def prelu(x: Array, weight: Array) -> Array:
    x, weight = operands(x, weight)
    return jnp.where(x > 0, x, weight * x)


@lowers(aten._prelu_kernel_backward.default)
def prelu_backward(grad: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    grad, x, weight = operands(grad, x, weight)
    return jnp.where(x > 0, grad, weight * grad), jnp.where(x > 0, 0, x * grad)


@lowers(aten.elu.default)
def elu(x: Array, alpha: ArrayLike = 1, scale: ArrayLike = 1, input_scale: ArrayLike = 1) -> Array:
    x = opmath(x)
    return jnp.where(x < 0, jnp.expm1(x * input_scale) * (alpha * scale), x * scale)


@lowers(aten.elu_backward.default)
def elu_backward(
    grad: Array, alpha: ArrayLike, scale: ArrayLike, input_scale: ArrayLike, is_result: bool, self_or_result: Array
) -> Array:
    grad, x = operands(grad, self_or_result)
    negative = input_scale * (x + alpha * scale) if is_result else (input_scale * alpha * scale) * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, grad * negative, grad * scale)


@lowers(aten.celu.default)
def celu(x: Array, alpha: ArrayLike = 1.0) -> Array:
    return elu(x, alpha, 1, 1 / alpha)


@lowers(aten.gelu.default)
def gelu(x: Array, *, approximate: str = "none") -> Array:
    x = opmath(x)
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_GELU_SLOPE * (x + _GELU_CUBIC * (x * x * x))))
    return x * (0.5 * (1 + lax.erf(x * _SQRT_HALF)))


@lowers(aten.gelu_backward.default)
def gelu_backward(grad: Array, x: Array, *, approximate: str = "none") -> Array:
    grad, x = operands(grad, x)
    if approximate == "tanh":
        tanh = jnp.tanh(_GELU_SLOPE * (x + _GELU_CUBIC * (x * x * x)))
        inner = _GELU_SLOPE * (1 + 3 * _GELU_CUBIC * (x * x))
        return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner)
    cdf = 0.5 * (1 + lax.erf(x * _SQRT_HALF))
    density = jnp.exp(-0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))
    return grad * (cdf + x * density)


@lowers(aten.silu.default)
def silu(x: Array) -> Array:
    x = opmath(x)
    return x * lax.logistic(x)


@lowers(aten.silu_backward.default)
def silu_backward(grad: Array, x: Array) -> Array:
    grad, x = operands(grad, x)
    sigmoid = lax.logistic(x)
    derivative = sigmoid * (1 + x * (1 - sigmoid))
    return grad * (jnp.conj(derivative) if x.dtype.kind == "c" else derivative)


@lowers(aten.mish.default)
def mish(x: Array) -> Array:
    x = opmath(x)
    return x * jnp.tanh(jnp.log1p(jnp.exp(x)))


@lowers(aten.mish_backward.default)
def mish_backward(grad: Array, x: Array) -> Array:
    grad, x = operands(grad, x)
    sigmoid = lax.logistic(x)
    tanh = jnp.tanh(jnp.log1p(jnp.exp(x)))
    return grad * (tanh + x * sigmoid * (1 - tanh * tanh))


@lowers(aten.hardtanh.default)
def hardtanh(x: Array, low: ArrayLike = -1, high: ArrayLike = 1) -> Array:
    (y,) = operands(x)
    return jnp.minimum(jnp.maximum(y, cast(low, y.dtype)), cast(high, y.dtype))


@lowers(aten.hardtanh_backward.default)
def hardtanh_backward(grad: Array, x: Array, low: ArrayLike, high: ArrayLike) -> Array:
    grad, x = operands(grad, x)
    return jnp.where((x <= low) | (x >= high), 0, grad)


def _ramp(x: Array) -> Array:
    """``x + 3`` between 0 and 6; PyTorch's piecewise linear stand-in for six sigmoids."""
    return jnp.minimum(jnp.maximum(x + 3, 0), 6)


lowers(aten.hardsigmoid.default)(float_unary(lambda x: _ramp(x) / 6))
lowers(aten.hardswish.default)(float_unary(lambda x: x * _ramp(x) / 6))


@lowers(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(grad: Array, x: Array) -> Array:
    grad, x = operands(grad, x)
    return jnp.where((x > -3) & (x < 3), grad / 6, 0)


@lowers(aten.hardswish_backward.default)
def hardswish_backward(grad: Array, x: Array) -> Array:
    grad, x = operands(grad, x)
    return jnp.where(x <= -3, 0, jnp.where(x >= 3, grad, grad * (x / 3 + 0.5)))


@lowers(aten.hardshrink.default)
def hardshrink(x: Array, lambd: ArrayLike = 0.5) -> Array:
    x = opmath(x)
    return jnp.where((x >= jnp.negative(lambd)) & (x <= lambd), 0, x)


@lowers(aten.softshrink.default)
def softshrink(x: Array, lambd: ArrayLike = 0.5) -> Array:
    x = opmath(x)
    # Times zero rather than zero: a NaN stays one.
    return jnp.where(x > lambd, x - lambd, jnp.where(x < jnp.negative(lambd), x + lambd, x * 0))


@lowers(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(grad: Array, x: Array, lambd: ArrayLike) -> Array:
    grad, x = operands(grad, x)
    return jnp.where((x >= jnp.negative(lambd)) & (x <= lambd), 0, grad)


@lowers(aten.softplus.default)
def softplus(x: Array, beta: ArrayLike = 1, threshold: ArrayLike = 20) -> Array:
    x = opmath(x)
    return jnp.where(x * beta > threshold, x, jnp.log1p(jnp.exp(x * beta)) / beta)


@lowers(aten.softplus_backward.default)
def softplus_backward(grad: Array, x: Array, beta: ArrayLike, threshold: ArrayLike) -> Array:
    grad, x = operands(grad, x)
    return jnp.where(x * beta > threshold, grad, grad * lax.logistic(x * beta))


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid(x: Array) -> tuple[Array, Array]:
    x = opmath(x)
    small = jnp.exp(-jnp.abs(x))
    return jnp.minimum(x, 0) - jnp.log1p(small), small


@lowers(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad: Array, x: Array, buffer: Array) -> Array:
    # The buffer spares an exponential that costs nothing beside the reading of a third array.
    grad, x = operands(grad, x)
    return grad * lax.logistic(-x)


def _halves(x: Array, dim: int) -> tuple[Array, Array]:
    first, second = jnp.split(x, 2, axis=dim)
    return first, second


@lowers(aten.glu.default)
def glu(x: Array, dim: int = -1) -> Array:
    value, gate = _halves(opmath(x), dim)
    return value * lax.logistic(gate)


@lowers(aten.glu_backward.default)
def glu_backward(grad: Array, x: Array, dim: int) -> Array:
    grad, x = operands(grad, x)
    value, gate = _halves(x, dim)
    sigmoid = lax.logistic(gate)
    return jnp.concatenate([grad * sigmoid, grad * value * sigmoid * (1 - sigmoid)], axis=dim)


@lowers(aten.glu_jvp.default)
def glu_jvp(output: Array, x: Array, tangent: Array, dim: int) -> Array:
    output, x, tangent = operands(output, x, tangent)
    sigmoid = lax.logistic(_halves(x, dim)[1])
    value_tangent, gate_tangent = _halves(tangent, dim)
    return value_tangent * sigmoid + output * (1 - sigmoid) * gate_tangent


@lowers(aten.glu_backward_jvp.default)
def glu_backward_jvp(grad_x: Array, grad: Array, x: Array, grad_tangent: Array, tangent: Array, dim: int) -> Array:
    grad, x, grad_tangent, tangent = operands(grad, x, grad_tangent, tangent)
    value, gate = _halves(x, dim)
    value_tangent, gate_tangent = _halves(tangent, dim)
    sigmoid = lax.logistic(gate)
    slope = sigmoid * (1 - sigmoid)
    to_value = grad_tangent * sigmoid + grad * slope * gate_tangent
    to_gate = slope * (grad_tangent * value + grad * value_tangent + grad * value * (1 - 2 * sigmoid) * gate_tangent)
    return jnp.concatenate([to_value, to_gate], axis=dim)
