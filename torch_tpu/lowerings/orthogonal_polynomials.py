"""The orthogonal polynomials of ``torch.special``, by their three-term recurrences up to the largest degree asked for."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .elementwise import float_operands
from .table import lowers

aten = torch.ops.aten

# The next polynomial out of (k, x, P_k, P_{k-1}).
Step = Callable[[Array, Array, Array, Array], Array]


def polynomial(first: Callable[[Array], Array], step: Step, *, limited: bool = False) -> Callable[[ArrayLike, ArrayLike], Array]:
    """The rule of the family with P_0 = 1 and P_1 = ``first``; ``limited`` ones are NaN where the degree must overflow."""

    def rule(x: ArrayLike, degree: ArrayLike) -> Array:
        x, degree = jnp.broadcast_arrays(*float_operands(x, degree))
        n = jnp.trunc(degree).astype(jnp.int32)
        one = jnp.ones_like(x)

        def advance(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            k, current, previous, result = state
            following = step(k.astype(x.dtype), x, current, previous)
            return k + 1, following, current, jnp.where(n == k + 1, following, result)

        linear = first(x)
        result = jnp.where(n == 1, linear, jnp.where(n == 0, one, jnp.zeros_like(x)))
        highest = jnp.max(n, initial=0)
        state = (jnp.int32(1), linear, one, result)
        result = lax.while_loop(lambda state: state[0] < highest, advance, state)[3]
        if limited:
            result = jnp.where(n > (128 if x.dtype.itemsize == 4 else 512), math.nan, result)
        return result

    return rule


def _chebyshev(first: Callable[[Array], Array]) -> Callable[[ArrayLike, ArrayLike], Array]:
    return polynomial(first, lambda k, x, p, q: 2 * x * p - q)


def _shifted_chebyshev(first: Callable[[Array], Array]) -> Callable[[ArrayLike, ArrayLike], Array]:
    return polynomial(lambda x: first(2 * x - 1), lambda k, x, p, q: 2 * (2 * x - 1) * p - q)


_CHEBYSHEV = {"t": lambda x: x, "u": lambda x: 2 * x, "v": lambda x: 2 * x - 1, "w": lambda x: 2 * x + 1}

_FAMILIES = {f"chebyshev_polynomial_{kind}": _chebyshev(first) for kind, first in _CHEBYSHEV.items()}
_FAMILIES |= {f"shifted_chebyshev_polynomial_{kind}": _shifted_chebyshev(first) for kind, first in _CHEBYSHEV.items()}
_FAMILIES |= {
    "hermite_polynomial_h": polynomial(lambda x: 2 * x, lambda k, x, p, q: 2 * (x * p - k * q), limited=True),
    "hermite_polynomial_he": polynomial(lambda x: x, lambda k, x, p, q: x * p - k * q, limited=True),
    "laguerre_polynomial_l": polynomial(lambda x: 1 - x, lambda k, x, p, q: ((2 * k + (1 - x)) * p - k * q) / (k + 1)),
    "legendre_polynomial_p": polynomial(lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}

for _name, _function in _FAMILIES.items():
    _packet = getattr(aten, f"special_{_name}")
    lowers(_packet.default, _packet.n_scalar, _packet.x_scalar)(_function)
