"""Special functions: error functions, the gamma family, the normal distribution, entropies."""

from __future__ import annotations

import math

import jax.numpy as jnp
import jax.scipy.special as jsp
import torch
from jax import Array, lax

from .elementwise import Binary, Unary, float_binary, float_operands, float_unary
from .table import lowers

aten = torch.ops.aten


def log_ndtr(x: Array) -> Array:
    # Two forms: the tail by erfcx, which does not underflow, the rest by log1p.
    scaled = x * math.sqrt(0.5)
    tail = jnp.log(jsp.erfcx(-jnp.minimum(scaled, 0)) / 2) - scaled * scaled
    return jnp.where(x < -1, tail, jnp.log1p(-lax.erfc(scaled) / 2))


def entropy(x: Array) -> Array:
    inside = -x * jnp.log(jnp.where(x > 0, x, 1))
    return jnp.where(x > 0, inside, jnp.where(x == 0, 0, jnp.where(x < 0, -math.inf, x)))


def digamma(x: Array) -> Array:
    pole = jnp.where(x == 0, jnp.copysign(jnp.full_like(x, math.inf), -x), math.nan)
    return jnp.where((x <= 0) & (x == jnp.floor(x)), pole, lax.digamma(x))


def hurwitz_zeta(s: Array, q: Array) -> Array:
    """Sum of ``(q + k) ** -s``; for a negative ``q``, where XLA is silent, by folding the terms below zero upwards."""
    s, q = jnp.broadcast_arrays(s, q)
    fraction = q - jnp.floor(q)
    sign = jnp.where(s % 2 == 0, 1, -1).astype(s.dtype)
    between = (q < 0) & (fraction != 0)
    start = jnp.where(between, fraction, jnp.where(q > 0, q, 1))
    sum_from_start = lax.zeta(s, start)
    folded = lax.zeta(s, jnp.where(between, 1 - fraction, 1)) - lax.zeta(s, jnp.where(between, 1 - q, 1))
    value = jnp.where(between, sum_from_start + sign * folded, sum_from_start)
    value = jnp.where(between & (s != jnp.floor(s)), math.nan, value)
    value = jnp.where((q <= 0) & (fraction == 0), math.inf, value)
    value = jnp.where(s == 1, math.inf, jnp.where(s < 1, math.nan, value))
    return jnp.where(jnp.isnan(s) | ~jnp.isfinite(q), math.nan, value)


def trigamma(x: Array) -> Array:
    # Reflection on the left, which keeps more digits than folding does.
    sine = jnp.sin(math.pi * x)
    two = jnp.full_like(x, 2)
    left = (math.pi / sine) ** 2 - lax.zeta(two, 1 - jnp.minimum(x, 0.5))
    return jnp.where(x < 0.5, left, lax.zeta(two, jnp.maximum(x, 0.5)))


for _overload, _function in {
    aten.erf.default: lax.erf,
    aten.erfc.default: lax.erfc,
    aten.erfinv.default: lax.erf_inv,
    aten.special_erfcx.default: jsp.erfcx,
    aten.special_ndtri.default: jsp.ndtri,
    aten.special_log_ndtr.default: log_ndtr,
    aten.special_entr.default: entropy,
    aten.lgamma.default: lax.lgamma,
    aten.digamma.default: digamma,
}.items():
    lowers(_overload)(float_unary(_function))


@lowers(aten.polygamma.default)
def polygamma(order: int, x: Array) -> Array:
    (x,) = float_operands(x)
    if order == 0:
        return digamma(x)
    if order == 1:
        return trigamma(x)
    return (-1) ** (order + 1) * math.gamma(order + 1) * hurwitz_zeta(jnp.full_like(x, order + 1), x)


@lowers(aten.mvlgamma.default)
def multivariate_lgamma(x: Array, p: int) -> Array:
    (x,) = float_operands(x)
    constant = p * (p - 1) / 4 * math.log(math.pi)
    return sum((lax.lgamma(x - j / 2) for j in range(p)), jnp.full_like(x, constant))


def _incomplete_gamma(lower: bool) -> Binary:
    start, end = (0.0, 1.0) if lower else (1.0, 0.0)

    def rule(a: Array, x: Array) -> Array:
        a, x = jnp.broadcast_arrays(a, x)
        inside = (a > 0) & (x > 0) & jnp.isfinite(a) & jnp.isfinite(x)
        function = lax.igamma if lower else lax.igammac
        value = function(jnp.where(inside, a, 1), jnp.where(inside, x, 1))
        # The limits, in the order in which PyTorch settles those that contradict each other.
        limits = jnp.where(jnp.isinf(x), end, jnp.where(x == 0, start, math.nan))
        limits = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(x), math.nan, start), limits)
        limits = jnp.where(a == 0, jnp.where(x > 0, end, math.nan), limits)
        limits = jnp.where((a < 0) | (x < 0) | jnp.isnan(a) | jnp.isnan(x), math.nan, limits)
        return jnp.where(inside, value, limits)

    return rule


def _times_log(log: Unary) -> Binary:
    """``x * log(y)``, 0 where ``x`` is 0, NaN where ``y`` is."""
    return lambda x, y: jnp.where(jnp.isnan(y), y, jnp.where(x == 0, 0, x * log(y)))


lowers(aten.igamma.default)(float_binary(_incomplete_gamma(True)))
lowers(aten.igammac.default)(float_binary(_incomplete_gamma(False)))
lowers(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)(float_binary(_times_log(jnp.log)))

_xlog1py = aten.special_xlog1py
lowers(_xlog1py.default, _xlog1py.self_scalar, _xlog1py.other_scalar)(float_binary(_times_log(jnp.log1p)))

_zeta = aten.special_zeta
lowers(_zeta.default, _zeta.self_scalar, _zeta.other_scalar)(float_binary(hurwitz_zeta))
