"""Elementwise functions of one tensor: rounding, roots, exponentials, logarithms, trigonometry, signs, parts of numbers."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .elementwise import broadcast_value, componentwise, float_operands, float_unary, operands, unless_integer
from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

for _overload, _function in {
    aten.sqrt.default: jnp.sqrt,
    aten.rsqrt.default: lax.rsqrt,
    aten.reciprocal.default: lambda x: 1 / x,
    aten.exp.default: jnp.exp,
    aten.exp2.default: jnp.exp2,
    aten.expm1.default: jnp.expm1,
    aten.log.default: jnp.log,
    aten.log2.default: jnp.log2,
    aten.log10.default: jnp.log10,
    aten.log1p.default: jnp.log1p,
    aten.sin.default: jnp.sin,
    aten.cos.default: jnp.cos,
    aten.tan.default: jnp.tan,
    aten.asin.default: jnp.arcsin,
    aten.acos.default: jnp.arccos,
    aten.atan.default: jnp.arctan,
    aten.sinh.default: jnp.sinh,
    aten.cosh.default: jnp.cosh,
    aten.tanh.default: jnp.tanh,
    aten.asinh.default: jnp.arcsinh,
    aten.acosh.default: jnp.arccosh,
    aten.atanh.default: jnp.arctanh,
    aten.sinc.default: jnp.sinc,
    aten.deg2rad.default: lambda x: x * (math.pi / 180),
    aten.rad2deg.default: lambda x: x * (180 / math.pi),
    aten.sigmoid.default: lax.logistic,
}.items():
    lowers(_overload)(float_unary(_function))

for _overload, _function in {
    aten.floor.default: jnp.floor,
    aten.ceil.default: jnp.ceil,
    aten.trunc.default: jnp.trunc,
    aten.round.default: jnp.round,
    aten.frac.default: lambda x: x - jnp.trunc(x),
}.items():
    lowers(_overload)(unless_integer(_function))


@lowers(aten.round.decimals)
def round_decimals(x: Array, *, decimals: int) -> Array:
    def rounded(x: Array) -> Array:
        power = 10.0 ** abs(decimals)
        return jnp.round(x * power) / power if decimals > 0 else jnp.round(x / power) * power

    return unless_integer(rounded)(x)


@lowers(aten.neg.default)
def neg(x: Array) -> Array:
    return -x


@lowers(aten.abs.default)
def absolute(x: Array) -> Array:
    return jnp.abs(x)


def _sign(x: Array) -> Array:
    if x.dtype.kind == "b":
        return x
    # Not jnp.sign: PyTorch's sign of a NaN is 0.
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


@lowers(aten.sign.default, aten.sgn.default)
def sign(x: Array) -> Array:
    if x.dtype.kind != "c":
        return _sign(x)
    magnitude = jnp.abs(x)
    return jnp.where(magnitude == 0, 0, x / magnitude)


@lowers(aten.signbit.default)
def signbit(x: Array) -> Array:
    return jnp.signbit(x) if jnp.issubdtype(x.dtype, jnp.floating) else x < 0


@lowers(aten._conj_physical.default, aten.conj_physical.default)
def conj(x: Array) -> Array:
    return jnp.conj(x) if x.dtype.kind == "c" else x


@lowers(aten.angle.default)
def angle(x: Array) -> Array:
    (x,) = float_operands(x)
    if x.dtype.kind == "c":
        return jnp.arctan2(x.imag, x.real)
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, math.pi, 0.0))


@lowers(aten.complex.default)
def complex_of_parts(real: Array, imag: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(opmath(real), opmath(imag)))


@lowers(aten.polar.default)
def polar(magnitude: Array, angle: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(magnitude * jnp.cos(angle), magnitude * jnp.sin(angle)))


@lowers(aten.frexp.Tensor)
def frexp(x: Array) -> tuple[Array, Array]:
    mantissa, exponent = jnp.frexp(opmath(x))
    return mantissa, exponent.astype(np.int32)


@lowers(aten.isnan.default)
def isnan(x: Array) -> Array:
    return x != x


@lowers(aten.isinf.default)
def isinf(x: Array) -> Array:
    return jnp.isinf(x)


@lowers(aten.isposinf.default)
def isposinf(x: Array) -> Array:
    return x == np.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(x.shape, bool)


@lowers(aten.isneginf.default)
def isneginf(x: Array) -> Array:
    return x == -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(x.shape, bool)


@lowers(aten.nan_to_num.default)
def nan_to_num(x: Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Array:
    if x.dtype.kind in "biu":
        return x
    bounds = jnp.finfo(x.dtype)
    high = float(bounds.max) if posinf is None else posinf
    low = float(bounds.min) if neginf is None else neginf

    def replaced(x: Array) -> Array:
        x = jnp.where(x != x, 0.0 if nan is None else nan, x)
        return jnp.where(x == np.inf, high, jnp.where(x == -np.inf, low, x))

    return componentwise(replaced)(opmath(x))


@lowers(aten.fill.Scalar, aten.fill.Tensor)
def fill(x: Array, value: ArrayLike) -> Array:
    return broadcast_value(value, x)


@lowers(aten.logit.default)
def logit(x: Array, eps: float | None = None) -> Array:
    (x,) = float_operands(x)
    if eps is not None:
        x = jnp.where(x < eps, eps, jnp.where(x > 1 - eps, 1 - eps, x))
    return jnp.log(x / (1 - x))


@lowers(aten.logit_backward.default)
def logit_backward(grad: Array, x: Array, eps: float | None = None) -> Array:
    grad, x = operands(grad, x)
    low, high, outside = (0.0, 1.0, np.nan) if eps is None or eps < 0 else (eps, 1 - eps, 0.0)
    return jnp.where((x < low) | (x > high), outside, grad / (x * (1 - x)))


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(grad: Array, output: Array) -> Array:
    grad, output = operands(grad, output)
    if output.dtype.kind == "c":
        return grad * jnp.conj((1 - output) * output)
    # In this order: the product of the last two alone may overflow.
    return grad * (1 - output) * output


@lowers(aten.tanh_backward.default)
def tanh_backward(grad: Array, output: Array) -> Array:
    grad, output = operands(grad, output)
    return grad * jnp.conj(1 - output * output)
