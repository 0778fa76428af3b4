"""Discrete Fourier transforms over any dimensions: PyTorch's three primitives, out of which ``torch.fft`` is composed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from jax import Array

from .table import lowers

aten = torch.ops.aten

MOST_DIMS = 3  # what one XLA Fft instruction can transform at once

# PyTorch's numbers for how a transform of n points is scaled.
EXPONENTS = {0: 0.0, 1: -0.5, 2: -1.0}


def _normalized(x: Array, points: int, normalization: int, already: float = 0.0) -> Array:
    """``x`` scaled by ``points`` to the power that ``normalization`` names, less the power ``already`` applied."""
    exponent = EXPONENTS[normalization] - already
    return x * points**exponent if exponent else x


def _complex_transform(x: Array, dims: Sequence[int], forward: bool) -> Array:
    """The transform of complex ``x`` over ``dims``: unscaled forward, scaled by 1 / n backward, as XLA has it."""
    kind = jax.lax.FftType.FFT if forward else jax.lax.FftType.IFFT
    for start in range(0, len(dims), MOST_DIMS):
        x = _over_last(x, dims[start : start + MOST_DIMS], kind)
    return x


def _over_last(x: Array, dims: Sequence[int], kind: jax.lax.FftType, last_size: int | None = None) -> Array:
    """One XLA transform over ``dims``; ``last_size`` is the size of the last one where ``x`` holds only half of it."""
    last = tuple(range(-len(dims), 0))
    moved = jnp.moveaxis(x, tuple(dims), last)
    sizes = moved.shape[-len(dims) :] if last_size is None else (*moved.shape[-len(dims) : -1], last_size)
    return jnp.moveaxis(jax.lax.fft(moved, kind, sizes), last, tuple(dims))


@lowers(aten._fft_c2c.default)
def fft_complex(x: Array, dims: Sequence[int], normalization: int, forward: bool) -> Array:
    points = math.prod(x.shape[d] for d in dims)
    return _normalized(_complex_transform(x, dims, forward), points, normalization, 0.0 if forward else -1.0)


@lowers(aten._fft_r2c.default)
def fft_of_real(x: Array, dims: Sequence[int], normalization: int, onesided: bool) -> Array:
    """Forward, of a real signal; ``onesided`` keeps the half of the last of ``dims`` that determines the rest."""
    points = math.prod(x.shape[d] for d in dims)
    if not onesided:
        wide = jax.lax.complex(x, jnp.zeros_like(x))
        return _normalized(_complex_transform(wide, dims, forward=True), points, normalization)
    half = _over_last(x, dims[-1:], jax.lax.FftType.RFFT)
    return _normalized(_complex_transform(half, dims[:-1], forward=True), points, normalization)


@lowers(aten._fft_c2r.default)
def fft_to_real(x: Array, dims: Sequence[int], normalization: int, last_size: int) -> Array:
    """Backward, to a real signal of ``last_size`` points in the last of ``dims``, of which ``x`` holds one half."""
    points = math.prod(x.shape[d] for d in dims[:-1]) * last_size
    half = _complex_transform(x, dims[:-1], forward=False)
    return _normalized(_over_last(half, dims[-1:], jax.lax.FftType.IRFFT, last_size), points, normalization, -1.0)
