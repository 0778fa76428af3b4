"""Arithmetic on two or three operands: sums, products, the divisions and their remainders, interpolation."""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .elementwise import Binary, binary, float_binary, float_operands, operands
from .promotion import Number, cast, is_half, result_type
from .table import lowers

aten = torch.ops.aten


def _scaled(alpha: ArrayLike, x: Array) -> Array:
    return x if isinstance(alpha, Number) and alpha == 1 else cast(alpha, x.dtype) * x


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(x: ArrayLike, y: ArrayLike, alpha: ArrayLike = 1) -> Array:
    x, y = operands(x, y)
    return x + _scaled(alpha, y)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: ArrayLike, y: ArrayLike, alpha: ArrayLike = 1) -> Array:
    x, y = operands(x, y)
    return x - _scaled(alpha, y)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(x: ArrayLike, y: ArrayLike, alpha: ArrayLike = 1) -> Array:
    return sub(y, x, alpha)


@lowers(aten.div.Tensor, aten.div.Scalar)
def true_divide(x: ArrayLike, y: ArrayLike) -> Array:
    x, y = float_operands(x, y)
    return x / y


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def divide(x: ArrayLike, y: ArrayLike, *, rounding_mode: str | None) -> Array:
    return _ROUNDED_DIVISIONS[rounding_mode](x, y)




def _floored(x: Array, y: Array) -> Array:
    if x.dtype.kind == "u":
        return lax.div(x, y)
    if x.dtype.kind == "i":
        quotient = lax.div(x, y)
        return quotient - ((lax.rem(x, y) != 0) & ((x < 0) != (y < 0)))
    # floor(x / y) would be off by one where the rounded quotient reaches an integer that the true one does not.
    modulus = lax.rem(x, y)
    quotient = (x - modulus) / y
    quotient = jnp.where((modulus != 0) & ((y < 0) != (modulus < 0)), quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient != 0, floor, jnp.copysign(jnp.zeros_like(x), x / y))
    return jnp.where(y == 0, x / y, floor)


def _remainder(x: Array, y: Array) -> Array:
    modulus = lax.rem(x, y)
    if x.dtype.kind == "u":
        return modulus
    return jnp.where((modulus != 0) & ((y < 0) != (modulus < 0)), modulus + y, modulus)


def _aligned(function: Binary) -> Binary:
    """``function`` on arrays of one shape, as ``lax`` primitives demand; bools count as the bytes that PyTorch keeps them in."""

    def rule(x: Array, y: Array) -> Array:
        x, y = jnp.broadcast_arrays(x, y)
        if x.dtype.kind == "b":
            x, y = x.astype(jnp.uint8), y.astype(jnp.uint8)
        return function(x, y)

    return rule


floored_divide = binary(_aligned(_floored))
_truncated_integers = binary(_aligned(lax.div))


def truncated_divide(x: ArrayLike, y: ArrayLike) -> Array:
    dtype = result_type(x, y)
    if dtype.kind in "biu":
        return _truncated_integers(x, y)
    quotient = true_divide(x, y)
    if is_half(dtype):
        # PyTorch truncates the quotient that the narrow dtype holds: 2.999 has become 3 by then.
        bits = jnp.finfo(dtype)
        quotient = lax.reduce_precision(quotient, bits.nexp, bits.nmant)
    return jnp.trunc(quotient)


_ROUNDED_DIVISIONS = {None: true_divide, "trunc": truncated_divide, "floor": floored_divide}

lowers(aten.floor_divide.default, aten.floor_divide.Scalar)(floored_divide)
lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)(binary(_aligned(_remainder)))
lowers(aten.fmod.Tensor, aten.fmod.Scalar)(binary(_aligned(lax.rem)))

for _overloads, _function in (
    ((aten.mul.Tensor, aten.mul.Scalar), jnp.multiply),
    ((aten.maximum.default,), jnp.maximum),
    ((aten.minimum.default,), jnp.minimum),
    ((aten.fmax.default,), jnp.fmax),
    ((aten.fmin.default,), jnp.fmin),
):
    lowers(*_overloads)(binary(_function))

for _overloads, _function in (
    ((aten.atan2.default,), jnp.arctan2),
    ((aten.hypot.default,), jnp.hypot),
    ((aten.logaddexp2.default,), jnp.logaddexp2),
    ((aten.copysign.Tensor, aten.copysign.Scalar), jnp.copysign),
):
    lowers(*_overloads)(float_binary(_function))


def _gcd(x: Array, y: Array) -> Array:
    # Not jnp.gcd: it never ends for the least integer, whose absolute value is negative.
    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        divisor, value = state
        ended = divisor == 0
        remainder = lax.rem(value, jnp.where(ended, 1, divisor))
        return jnp.where(ended, 0, remainder), jnp.where(ended, value, divisor)

    return lax.while_loop(lambda state: jnp.any(state[0] != 0), step, (jnp.abs(x), jnp.abs(y)))[1]


def _lcm(x: Array, y: Array) -> Array:
    divisor = _gcd(x, y)
    if x.dtype.itemsize < 4:
        # C computes narrow products in int, so that the absolute value is that of the whole product.
        x, y, divisor = (value.astype(jnp.int32) for value in (x, y, divisor))
    return jnp.where(divisor == 0, 0, jnp.abs(lax.div(x, jnp.where(divisor == 0, 1, divisor)) * y))


lowers(aten.gcd.default)(binary(_aligned(_gcd)))
lowers(aten.lcm.default)(binary(_aligned(_lcm)))


@lowers(aten.nextafter.default)
def nextafter(x: Array, y: Array) -> Array:
    # The neighbour in the tensor's own dtype: no wider arithmetic here.
    return jnp.nextafter(x, y.astype(x.dtype))


@lowers(aten.ldexp.Tensor)
def ldexp(x: Array, exponent: Array) -> Array:
    (power,) = float_operands(exponent)
    x, power = operands(x, jnp.exp2(power).astype(power.dtype))
    return x * power


@lowers(aten.heaviside.default)
def heaviside(x: Array, at_zero: Array) -> Array:
    x, at_zero = operands(x, at_zero)
    return jnp.where(x == 0, at_zero, (x > 0).astype(x.dtype))


@lowers(aten.logaddexp.default)
def logaddexp(x: Array, y: Array) -> Array:
    x, y = float_operands(x, y)
    if x.dtype.kind != "c":
        return jnp.logaddexp(x, y)
    larger, smaller = jnp.where(x.real >= y.real, x, y), jnp.where(x.real >= y.real, y, x)
    both_vanish = jnp.isneginf(x.real) & jnp.isneginf(y.real)
    return jnp.where(both_vanish, x, larger + jnp.log1p(jnp.exp(smaller - larger)))


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(start: Array, end: Array, weight: ArrayLike) -> Array:
    start, end = operands(start, end)
    weight = cast(weight, start.dtype)
    # From the nearer end, so that a weight of exactly 1 gives exactly ``end``.
    return jnp.where(abs(weight) < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


@lowers(aten.addcmul.default)
def addcmul(x: Array, first: Array, second: Array, *, value: ArrayLike = 1) -> Array:
    x, first, second = operands(x, first, second)
    return x + _scaled(value, first) * second


@lowers(aten.addcdiv.default)
def addcdiv(x: Array, numerator: Array, denominator: Array, *, value: ArrayLike = 1) -> Array:
    x, numerator, denominator = float_operands(x, numerator, denominator)
    return x + _scaled(value, numerator) / denominator


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(x: Array, low: ArrayLike | None = None, high: ArrayLike | None = None) -> Array:
    x, low, high = operands(x, low, high)
    # maximum and minimum hand on a NaN of the tensor and of a bound alike, as PyTorch does.
    x = x if low is None else jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(x: Array, low: ArrayLike) -> Array:
    return clamp(x, low)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(x: Array, high: ArrayLike) -> Array:
    return clamp(x, None, high)


@lowers(aten.where.self)
def where(condition: Array, x: ArrayLike, y: ArrayLike) -> Array:
    x, y = operands(x, y)
    return jnp.where(condition != 0, x, y)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(x: Array, mask: Array, value: ArrayLike) -> Array:
    return jnp.where(mask != 0, cast(value, x.dtype), x)
