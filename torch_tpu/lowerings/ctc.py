"""Connectionist temporal classification: the loss by the forward recurrence over time, its gradient by the backward one.

The alphabet of a row is its targets with blanks between and around them; the rows run in step, shorter ones masked.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .elementwise import operands
from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

Lengths = Sequence[int] | Array


def _longest(targets: Array, lengths: Lengths) -> int:
    """The length of the longest row; lengths known only at run time leave as much as there is room for."""
    return targets.shape[-1] if isinstance(lengths, Array) else max(lengths, default=0)


def _padded(targets: Array, lengths: Lengths, longest: int) -> Array:
    """``targets`` as (batch, longest), out of that form or of all rows one after the other."""
    if targets.ndim > 1:
        return targets[:, :longest]
    lengths = jnp.asarray(lengths, jnp.int32)
    if targets.size == 0:
        return jnp.zeros((lengths.size, longest), targets.dtype)
    starts = jnp.cumsum(lengths) - lengths
    return targets[jnp.minimum(starts[:, None] + jnp.arange(longest), targets.size - 1)]


def _with_blanks(targets: Array, blank: int) -> Array:
    batch, longest = targets.shape
    return jnp.full((batch, 2 * longest + 1), blank, targets.dtype).at[:, 1::2].set(targets)


def _may_skip(symbols: Array, blank: int) -> Array:
    """Where a path may come from two symbols before: at a target that differs from the one before it."""
    two_before = jnp.pad(symbols, ((0, 0), (2, 0)), constant_values=blank)[:, : symbols.shape[1]]
    return (symbols != blank) & (symbols != two_before)


def _later(values: Array, by: int) -> Array:
    """``values`` moved ``by`` symbols towards the end, with log 0 before them."""
    return jnp.pad(values, ((0, 0), (by, 0)), constant_values=-np.inf)[:, : values.shape[1]]


def _earlier(values: Array, by: int) -> Array:
    return jnp.pad(values, ((0, 0), (0, by)), constant_values=-np.inf)[:, by:]


def _log_sum(*terms: Array) -> Array:
    """The logarithm of the sum of exponentials, log 0 where every term is."""
    largest = jnp.maximum(jnp.maximum(terms[0], terms[1]), terms[2])
    shift = jnp.where(jnp.isneginf(largest), 0, largest)
    return jnp.log(sum(jnp.exp(term - shift) for term in terms)) + shift


def _emissions(log_probs: Array, symbols: Array) -> Array:
    """The log-probability of each symbol at each time: (time, batch, symbol)."""
    return jnp.take_along_axis(log_probs, jnp.broadcast_to(symbols, log_probs.shape[:1] + symbols.shape), axis=2)


@lowers(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def ctc_loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:
    log_probs = opmath(log_probs)
    symbols = _with_blanks(_padded(targets, target_lengths, _longest(targets, target_lengths)), blank)
    batch, width = symbols.shape
    may_skip = _may_skip(symbols, blank)
    emissions = _emissions(log_probs, symbols)
    ends = 2 * jnp.asarray(target_lengths, jnp.int32)[:, None]
    places = jnp.arange(width)

    def step(alpha: Array, emission: Array) -> tuple[Array, Array]:
        skipped = jnp.where(may_skip, _later(alpha, 2), -np.inf)
        alpha = _log_sum(alpha, _later(alpha, 1), skipped) + emission
        return alpha, alpha

    # A path begins at the first blank or at the first target.
    start = jnp.where((places < 2) & (places <= ends), emissions[0], -np.inf)
    _, rest = lax.scan(step, start, emissions[1:])
    log_alpha = jnp.swapaxes(jnp.concatenate([start[None], rest]), 0, 1)
    inputs = jnp.asarray(input_lengths, jnp.int32)
    last = log_alpha[jnp.arange(batch), jnp.maximum(inputs - 1, 0)]
    final = jnp.where((places == ends) | (places == ends - 1), last, -np.inf)
    likelihood = jax.nn.logsumexp(final, axis=1)
    # With no time at all only the empty target is certain.
    likelihood = jnp.where(inputs == 0, jnp.where(ends[:, 0] == 0, 0.0, -np.inf), likelihood)
    return -likelihood, log_alpha


@lowers(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: Array,
    log_alpha: Array,
    blank: int,
    zero_infinity: bool = False,
) -> Array:
    grad, log_probs, losses, log_alpha = operands(grad, log_probs, neg_log_likelihood, log_alpha)
    symbols = _with_blanks(_padded(targets, target_lengths, log_alpha.shape[2] // 2), blank)
    times, (batch, width) = log_probs.shape[0], symbols.shape
    next_may_skip = jnp.pad(_may_skip(symbols, blank)[:, 2:], ((0, 0), (0, min(width, 2))))
    emissions = _emissions(log_probs, symbols)
    ends = 2 * jnp.asarray(target_lengths, jnp.int32)[:, None]
    inputs = jnp.asarray(input_lengths, jnp.int32)
    places = jnp.arange(width)
    is_final = (places == ends) | (places == ends - 1)

    def step(beta: Array, at_time: tuple[Array, Array]) -> tuple[Array, Array]:
        emission, time = at_time
        skipped = jnp.where(next_may_skip, _earlier(beta, 2), -np.inf)
        going_on = _log_sum(beta, _earlier(beta, 1), skipped) + emission
        ending = jnp.where(is_final, emission, -np.inf)
        beta = jnp.where((time == inputs - 1)[:, None], ending, jnp.where((time < inputs)[:, None], going_on, -np.inf))
        return beta, beta

    _, log_beta = lax.scan(step, jnp.full((batch, width), -np.inf, log_probs.dtype), (emissions, jnp.arange(times)), reverse=True)
    joint = jnp.swapaxes(log_alpha, 0, 1) + log_beta
    # The share of all paths that passes through each symbol at each time; alpha and beta both count the emission there.
    impossible = jnp.isneginf(joint) | (places > ends)
    shares = jnp.where(impossible, 0, jnp.exp(joint - emissions + losses[:, None]))
    rows = jnp.arange(batch)[:, None]
    expected = jnp.zeros_like(log_probs).at[:, rows, symbols].add(shares)
    result = (jnp.exp(log_probs) - expected) * grad[:, None]
    # Where no path fits the time, the gradient is undefined, unless asked to be nothing.
    result = jnp.where(jnp.isposinf(losses)[:, None], 0 if zero_infinity else jnp.nan, result)
    return jnp.where((jnp.arange(times)[:, None] < inputs)[:, :, None], result, 0)
