"""The two operations behind ``torch.amp.GradScaler``: unscaling gradients in search of infinities, and moving the scale."""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import Array

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten


@lowers(aten._amp_foreach_non_finite_check_and_unscale.default)
def unscale_and_check(grads: list[Array], found_inf: Array, inverse_scale: Array) -> tuple[list[Array], Array]:
    """``grads`` times ``inverse_scale``, and ``found_inf`` set to 1 if an element was infinite or NaN before."""
    factor = inverse_scale.reshape(())
    for grad in grads:
        found_inf = jnp.where(jnp.all(jnp.isfinite(grad)), found_inf, jnp.ones_like(found_inf))
    return [opmath(grad) * factor.astype(opmath(grad).dtype) for grad in grads], found_inf


@lowers(aten._amp_update_scale.default)
def update_scale(
    scale: Array, growth_tracker: Array, found_inf: Array, growth_factor: float, backoff_factor: float, growth_interval: int
) -> tuple[Array, Array]:
    """The next scale and count of good steps: back off after an overflow, grow after ``growth_interval`` steps without."""
    overflown = found_inf.reshape(scale.shape) != 0
    good_steps = growth_tracker + 1
    grows = good_steps.reshape(scale.shape) == growth_interval
    grown = scale * growth_factor
    grown = jnp.where(jnp.isfinite(grown), grown, scale)
    new_scale = jnp.where(overflown, scale * backoff_factor, jnp.where(grows, grown, scale))
    restart = (overflown | grows).reshape(growth_tracker.shape)
    return new_scale, jnp.where(restart, jnp.zeros_like(good_steps), good_steps)
