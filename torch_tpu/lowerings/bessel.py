"""Bessel and Airy functions, which XLA lacks: Chebyshev series for what is smooth, times what is not in closed form.

Near the origin the smooth part is a series in the square of the argument, far from it the slowly varying amplitudes of the
asymptotic expansions (DLMF 10.17, 10.40 and 9.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import torch
from jax import Array, lax

from . import bessel_tables as tables
from .elementwise import float_unary
from .table import lowers

aten = torch.ops.aten

_QUARTER_PI = math.pi / 4


def chebyshev_series(coefficients: Sequence[float], t: Array) -> Array:
    """Sum of ``coefficients[k] * T_k(t)`` by Clenshaw's recurrence, without the terms that the dtype cannot feel."""
    least = float(jnp.finfo(t.dtype).eps) / 16 * max(map(abs, coefficients))
    kept = max(k for k, c in enumerate(coefficients) if abs(c) >= least) + 1
    after, current = jnp.zeros_like(t), jnp.zeros_like(t)
    for c in reversed(coefficients[1:kept]):
        after, current = current, 2 * t * current - after + c
    return t * current - after + coefficients[0]


def _near(coefficients: Sequence[float], x: Array) -> Array:
    return chebyshev_series(coefficients, x * x / 32 - 1)


def _far_waves(order: int, x: Array) -> tuple[Array, Array]:
    """J and Y of ``order`` 0 or 1 for ``x`` >= 8."""
    z = 8 / x
    t = 2 * z * z - 1
    even, odd = ((tables.P0_FAR, tables.Q0_FAR), (tables.P1_FAR, tables.Q1_FAR))[order]
    p, q = chebyshev_series(even, t), z * chebyshev_series(odd, t)
    # The phase by the addition theorem: x - pi / 4 would lose the last digits of a large x.
    cos, sin = (jnp.cos(x) + jnp.sin(x)) * math.sqrt(0.5), (jnp.sin(x) - jnp.cos(x)) * math.sqrt(0.5)
    if order == 1:
        cos, sin = sin, -cos
    amplitude = jnp.sqrt(2 / (math.pi * x))
    return amplitude * (p * cos - q * sin), amplitude * (p * sin + q * cos)


def bessel_j0(x: Array) -> Array:
    x = jnp.abs(x)
    return jnp.where(x > 8, _far_waves(0, jnp.maximum(x, 8))[0], _near(tables.J0_NEAR, jnp.minimum(x, 8)))


def bessel_j1(x: Array) -> Array:
    distance = jnp.abs(x)
    far = jnp.where(x < 0, -1, 1) * _far_waves(1, jnp.maximum(distance, 8))[0]
    return jnp.where(distance > 8, far, x * _near(tables.J1_NEAR, jnp.minimum(distance, 8)))


def bessel_y0(x: Array) -> Array:
    small = jnp.minimum(x, 8)
    near = _near(tables.Y0_NEAR, small) + 2 / math.pi * jnp.log(small) * bessel_j0(small)
    return jnp.where(x > 8, _far_waves(0, jnp.maximum(x, 8))[1], near)


def bessel_y1(x: Array) -> Array:
    small = jnp.minimum(x, 8)
    near = small * _near(tables.Y1_NEAR, small) + 2 / math.pi * (jnp.log(small) * bessel_j1(small) - 1 / small)
    near = jnp.where(x == 0, -math.inf, jnp.where(x < 0, math.nan, near))
    return jnp.where(x > 8, _far_waves(1, jnp.maximum(x, 8))[1], near)


def modified_i0(x: Array) -> Array:
    return jnp.exp(jnp.abs(x)) * lax.bessel_i0e(x)


def modified_i1(x: Array) -> Array:
    return jnp.exp(jnp.abs(x)) * lax.bessel_i1e(x)


def scaled_modified_k0(x: Array) -> Array:
    """``exp(x) * K0(x)``."""
    small, large = jnp.minimum(x, 2), jnp.maximum(x, 2)
    near = chebyshev_series(tables.K0_NEAR, small * small / 2 - 1) - jnp.log(small / 2) * modified_i0(small)
    return jnp.where(x <= 2, near * jnp.exp(small), chebyshev_series(tables.K0_FAR, 4 / large - 1) / jnp.sqrt(large))


def scaled_modified_k1(x: Array) -> Array:
    """``exp(x) * K1(x)``."""
    small, large = jnp.minimum(x, 2), jnp.maximum(x, 2)
    regular = small * chebyshev_series(tables.K1_NEAR, small * small / 2 - 1)
    near = jnp.where(x == 0, math.inf, regular + jnp.log(small / 2) * modified_i1(small) + 1 / small)
    return jnp.where(x <= 2, near * jnp.exp(small), chebyshev_series(tables.K1_FAR, 4 / large - 1) / jnp.sqrt(large))


def _unscaled(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: jnp.where(jnp.isposinf(x), 0, function(x) * jnp.exp(-x))


def spherical_j0(x: Array) -> Array:
    return jnp.where(jnp.isinf(x), 0, jnp.where(x == 0, 1, jnp.sin(x) / jnp.where(x == 0, 1, x)))


_ZETA_RIGHT, _ZETA_LEFT = 2 / 3 * 2**1.5, 2 / 3 * 5**1.5


def airy_ai(x: Array) -> Array:
    middle = chebyshev_series(tables.AIRY_MIDDLE, (2 * jnp.clip(x, -5, 2) + 3) / 7)
    right = jnp.maximum(x, 2)
    zeta = 2 / 3 * right * jnp.sqrt(right)
    decay = jnp.exp(-zeta) / (2 * math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(right)))
    decay = decay * chebyshev_series(tables.AIRY_RIGHT, 2 * _ZETA_RIGHT / zeta - 1)
    left = jnp.maximum(-x, 5)
    zeta = 2 / 3 * left * jnp.sqrt(left)
    u = _ZETA_LEFT / zeta
    p = chebyshev_series(tables.AIRY_LEFT_P, 2 * u * u - 1)
    q = u * chebyshev_series(tables.AIRY_LEFT_Q, 2 * u * u - 1)
    wave = (jnp.sin(zeta + _QUARTER_PI) * p - jnp.cos(zeta + _QUARTER_PI) * q) / jnp.sqrt(math.pi * jnp.sqrt(left))
    return jnp.where(jnp.isinf(x), math.nan, jnp.where(x > 2, decay, jnp.where(x < -5, wave, middle)))


for _overload, _function in {
    aten.special_bessel_j0.default: bessel_j0,
    aten.special_bessel_j1.default: bessel_j1,
    aten.special_bessel_y0.default: bessel_y0,
    aten.special_bessel_y1.default: bessel_y1,
    aten.i0.default: modified_i0,
    aten.special_i0e.default: lax.bessel_i0e,
    aten.special_i1.default: modified_i1,
    aten.special_i1e.default: lax.bessel_i1e,
    aten.special_modified_bessel_i0.default: modified_i0,
    aten.special_modified_bessel_i1.default: modified_i1,
    aten.special_modified_bessel_k0.default: _unscaled(scaled_modified_k0),
    aten.special_modified_bessel_k1.default: _unscaled(scaled_modified_k1),
    aten.special_scaled_modified_bessel_k0.default: scaled_modified_k0,
    aten.special_scaled_modified_bessel_k1.default: scaled_modified_k1,
    aten.special_spherical_bessel_j0.default: spherical_j0,
    aten.special_airy_ai.default: airy_ai,
}.items():
    lowers(_overload)(float_unary(_function))
