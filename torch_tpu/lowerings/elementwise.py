"""Makers of elementwise rules: what nearly every pointwise lowering does to its operands before the formula proper.

Operands go straight to the dtype that PyTorch computes in, so that a Python number beside a bfloat16 tensor keeps float32
precision; the runner rounds the result once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from .promotion import cast, default_dtype, is_half, result_type

Unary = Callable[[Array], Array]
Binary = Callable[[Array, Array], Array]


def opmath_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype that PyTorch does intermediate arithmetic on ``dtype`` in."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def operands(*values: ArrayLike | None) -> tuple[Array, ...]:
    """``values`` in the dtype that their common dtype is computed in; an absent operand stays None."""
    dtype = opmath_dtype(result_type(*values))
    return tuple(value if value is None else cast(value, dtype) for value in values)  # type: ignore[misc]


def float_operands(*values: ArrayLike | None) -> tuple[Array, ...]:
    """As ``operands``, but integers and bools become the default float dtype."""
    dtype = result_type(*values)
    dtype = opmath_dtype(default_dtype() if dtype.kind in "biu" else dtype)
    return tuple(value if value is None else cast(value, dtype) for value in values)  # type: ignore[misc]


def float_unary(function: Unary) -> Unary:
    """The rule of an op that gives floats whatever it gets (``sin``, ``sqrt``, ``erf`` …)."""

    def rule(x: Array) -> Array:
        (x,) = float_operands(x)
        return function(x)

    return rule


def unless_integer(function: Unary) -> Unary:
    """The rule of an op that leaves integers and bools as they are (``floor``, ``round`` …)."""

    def rule(x: Array) -> Array:
        (x,) = operands(x)
        return x if x.dtype.kind in "biu" else function(x)

    return rule


def binary(function: Binary) -> Callable[[ArrayLike, ArrayLike], Array]:
    """The rule of an op on two operands of one dtype (``maximum``, ``fmod`` …)."""

    def rule(x: ArrayLike, y: ArrayLike) -> Array:
        return function(*operands(x, y))

    return rule


def float_binary(function: Binary) -> Callable[[ArrayLike, ArrayLike], Array]:
    """As ``binary``, for an op that gives floats whatever it gets (``atan2``, ``xlogy`` …)."""

    def rule(x: ArrayLike, y: ArrayLike) -> Array:
        return function(*float_operands(x, y))

    return rule


def componentwise(function: Unary) -> Unary:
    """The rule that applies a real function to the real and imaginary parts of complex numbers separately."""

    def rule(x: Array) -> Array:
        return function(x.real) + 1j * function(x.imag) if x.dtype.kind == "c" else function(x)

    return rule


def broadcast_value(value: ArrayLike, like: Array) -> Array:
    """``value`` in the dtype and shape of ``like``."""
    return jnp.broadcast_to(cast(value, like.dtype), like.shape)
