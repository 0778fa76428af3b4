"""Sampling of images and volumes at the points of a grid, and the gradients for both.

The gradients are those that JAX derives of the functions here, which are written so that the derivative at the places where
a rule changes (the border, a fold of a reflection) is PyTorch's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def to_pixels(coordinate: Array, size: int, align_corners: bool) -> Array:
    """From [-1, 1] to pixels: the ends are the outer pixels' centres, or their outer edges."""
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def clip_to_image(coordinate: Array, size: int) -> Array:
    """Clipped to the pixels' centres, NaN to the first; the derivative is 0 from the outermost centres on."""
    clipped = jnp.where(coordinate >= size - 1, jnp.asarray(size - 1, coordinate.dtype), coordinate)
    return jnp.where(coordinate > 0, clipped, jnp.zeros((), coordinate.dtype))


def reflect_into_image(coordinate: Array, size: int, align_corners: bool) -> Array:
    low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
    if span == 0:
        return jnp.zeros_like(coordinate)
    distance = coordinate - low
    distance = jnp.where(distance < 0, -distance, distance)
    extra = lax.rem(distance, jnp.full_like(distance, span))
    is_folded = lax.rem(jnp.floor(distance / span), jnp.full_like(distance, 2)) != 0
    return jnp.where(is_folded, span - extra, extra) + low


def pad_coordinate(coordinate: Array, size: int, padding: int, align_corners: bool) -> Array:
    if padding == REFLECTION:
        coordinate = reflect_into_image(coordinate, size, align_corners)
    return coordinate if padding == ZEROS else clip_to_image(coordinate, size)


def read_pixels(image: Array, places: Sequence[Array]) -> Array:
    """image (pixels on *spatial axes, channels) at integral float ``places``, zero outside: (*points, channels)."""
    inside = jnp.ones(places[0].shape, np.bool_)
    indices = []
    for place, size in zip(places, image.shape):
        inside &= (place >= 0) & (place < size)
        indices.append(jnp.clip(jnp.nan_to_num(place), 0, size - 1).astype(np.int32))
    return jnp.where(inside[..., None], image[tuple(indices)], jnp.zeros((), image.dtype))


def cubic_weights(fraction: Array) -> list[Array]:
    """Keys' cubic kernel (a = -0.75) for the pixels at -1, 0, 1 and 2 from the one before the point."""
    a = -0.75

    def far(x: Array) -> Array:
        return (((x - 5) * x + 8) * x - 4) * a

    def near(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    return [far(fraction + 1), near(fraction), near(1 - fraction), far(2 - fraction)]


def _sample_image(image: Array, grid: Array, interpolation: int, padding: int, align_corners: bool) -> Array:
    """image (*spatial, channels), grid (*points, rank) with x first, to (*points, channels)."""
    sizes = image.shape[:-1]
    points = [to_pixels(grid[..., len(sizes) - 1 - axis], size, align_corners) for axis, size in enumerate(sizes)]
    if interpolation != BICUBIC:
        points = [pad_coordinate(point, size, padding, align_corners) for point, size in zip(points, sizes)]
    if interpolation == NEAREST:
        return read_pixels(image, [jnp.round(point) for point in points])
    firsts = [lax.stop_gradient(jnp.floor(point)) for point in points]
    fractions = [point - first for point, first in zip(points, firsts)]
    if interpolation == BILINEAR:
        taps = [[(first, 1 - fraction), (first + 1, fraction)] for first, fraction in zip(firsts, fractions)]
    else:
        taps = [
            [
                (pad_coordinate(first + offset, size, padding, align_corners), weight)
                for offset, weight in zip(range(-1, 3), cubic_weights(fraction))
            ]
            for first, fraction, size in zip(firsts, fractions, sizes)
        ]
    return _weighted_sum(image, taps)


def _weighted_sum(image: Array, taps: Sequence[Sequence[tuple[Array, Array]]]) -> Array:
    """The sum over all combinations of one (place, weight) for each axis."""
    total: Array | None = None
    for combination in itertools.product(*taps):
        weight = combination[0][1]
        for _, factor in combination[1:]:
            weight = weight * factor
        term = weight[..., None] * read_pixels(image, [place for place, _ in combination])
        total = term if total is None else total + term
    assert total is not None, "an image has axes"
    return total


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(x: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Array:
    """x (N, C, *spatial), grid (N, *points, rank) to (N, C, *points)."""
    if 0 in x.shape or 0 in grid.shape:
        return jnp.zeros((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    # With channels last a pixel is one contiguous read.
    images = jnp.moveaxis(opmath(x), 1, -1)
    sample = jax.vmap(lambda image, points: _sample_image(image, points, interpolation_mode, padding_mode, align_corners))
    return jnp.moveaxis(sample(images, opmath(grid)), -1, 1)


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    grad: Array,
    x: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None]:
    def forward(x: Array, grid: Array) -> Array:
        return grid_sampler(x, grid, interpolation_mode, padding_mode, align_corners)

    _, transpose = jax.vjp(forward, opmath(x), opmath(grid))
    grad_x, grad_grid = transpose(opmath(grad))
    return grad_x if output_mask[0] else None, grad_grid
