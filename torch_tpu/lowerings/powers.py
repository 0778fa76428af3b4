"""``pow``: small known exponents as products, integers by repeated squaring with PyTorch's rule for negative exponents."""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .elementwise import operands
from .promotion import Number
from .table import lowers

aten = torch.ops.aten

# Above this, the rounding of repeated products is worse than that of one pow.
_LARGEST_PRODUCT = 4


def integer_power(base: Array, exponent: Array) -> Array:
    """``base ** exponent`` modulo the integer range; for negative exponents 0 unless the base is 1 or -1."""
    base, exponent = jnp.broadcast_arrays(base, exponent)
    odd = (exponent & 1) != 0

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, square, left = state
        return jnp.where((left & 1) != 0, result * square, result), square * square, left >> 1

    start = (jnp.ones_like(base), base, jnp.maximum(exponent, 0))
    result, _, _ = lax.while_loop(lambda state: jnp.any(state[2] > 0), step, start)
    if base.dtype.kind == "u":
        return result
    reciprocal = jnp.where(base == 1, 1, jnp.where(base == -1, jnp.where(odd, -1, 1), 0)).astype(base.dtype)
    return jnp.where(exponent < 0, reciprocal, result)


def complex_power(base: Array, exponent: Array) -> Array:
    """As C's ``cpow``, and 1 where the exponent is 0."""
    return jnp.where(exponent == 0, 1, jnp.power(base, exponent))


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(base: ArrayLike, exponent: ArrayLike) -> Array:
    base, exponent = operands(base, exponent)
    if base.dtype.kind in "iu":
        return integer_power(base, exponent)
    if base.dtype.kind == "c":
        return complex_power(base, exponent)
    return jnp.power(base, exponent)


# The exponent is a part of the program: x ** 2 should be x * x, and few programs vary it.
@lowers(aten.pow.Tensor_Scalar, static=["exponent"])
def power_of_known_exponent(base: Array, exponent: ArrayLike) -> Array:
    (x, _) = operands(base, exponent)
    if isinstance(exponent, Number) and not isinstance(exponent, complex):
        if x.dtype.kind in "iu" and exponent >= 0:
            return lax.integer_pow(x, int(exponent))
        if x.dtype.kind in "fc":
            if exponent == 0.5:
                return jnp.sqrt(x)
            if exponent == -0.5:
                return lax.rsqrt(x)
            if exponent == int(exponent if abs(exponent) < 2**31 else 0) and 0 < abs(exponent) <= _LARGEST_PRODUCT:
                return lax.integer_pow(x, int(exponent))
    return power(base, exponent)
