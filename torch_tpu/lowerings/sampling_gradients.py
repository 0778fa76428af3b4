"""How gamma and Dirichlet draws move with their parameters: implicit reparameterization gradients.

A draw x is held at its quantile, so that dx/da = -(dF/da) / (dF/dx) for the distribution function F (M. Figurnov, S. Mohamed
and A. Mnih, "Implicit reparameterization gradients", 2018). PyTorch approximates these to about three digits; here they are
exact to rounding.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from jax.scipy.special import digamma

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

# The exp-sinh rule for integrals from 0 to infinity (H. Takahasi and M. Mori, "Double exponential formulas for numerical
# integration", 1974): it resolves integrands however fast they decay.
_STEP = 0.0625
_GRID = np.arange(-4.0, 4.0 + _STEP, _STEP)
_NODES = np.exp(np.pi / 2 * np.sinh(_GRID))
_WEIGHTS = _STEP * np.pi / 2 * np.cosh(_GRID) * _NODES


@lowers(aten._standard_gamma_grad.default)
def standard_gamma_grad(concentration: Array, draw: Array) -> Array:
    return lax.random_gamma_grad(opmath(concentration), opmath(draw))


@lowers(aten._dirichlet_grad.default)
def dirichlet_grad(draw: Array, concentration: Array, total: Array) -> Array:
    """-(dF/da) / (dF/dx) / (1 - x) for x = ``draw`` from the Beta(a, b) distribution with a + b = ``total``."""
    x, a, total = (v.astype(np.float64)[..., None] for v in (draw, concentration, total))
    b = total - a
    # dF/da is an integral of (log t - E log t) times the density from 0 to x, or minus the one from x to 1. The shorter side
    # is taken, from its end at x outwards: at distance s the variable of that side, t or 1 - t, has fallen by exp(-s).
    lower = x * total <= a
    end = jnp.where(lower, x, 1 - x)
    rate, other = jnp.where(lower, a, b), jnp.where(lower, b, a)
    # The rule is sharpest for integrands that decay like exp(-s), a slow decay is brought to that.
    stretch = 1 / jnp.minimum(rate, 1)
    distance = _NODES * stretch
    rest = jnp.log1p(-end * jnp.exp(-distance))
    density = jnp.exp(-rate * distance + (other - 1) * (rest - jnp.log1p(-end)))
    deviation = jnp.where(lower, jnp.log(x) - distance, rest) - (digamma(a) - digamma(total))
    integral = jnp.sum(_WEIGHTS * stretch * deviation * density, axis=-1)
    return jnp.where(lower[..., 0], -x[..., 0] / (1 - x[..., 0]), 1) * integral
