"""Histograms over one or more dimensions, by counts of bins or by given edges, with weights and as densities.

A bin holds what is not less than its left edge and less than its right; the last one holds its right edge too. What lies
outside, and NaN, is counted nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .creation import evenly_spaced
from .promotion import opmath
from .table import lowers

aten = torch.ops.aten


def edges_between(x: Array, bins: int, limits: Sequence[float] | None) -> Array:
    """``bins + 1`` even edges between ``limits``, or between the extremes of ``x``; around them where they are one point."""
    if limits is not None:
        low, high = (jnp.asarray(limit, x.dtype) for limit in limits)
    elif x.size:
        low, high = jnp.min(x), jnp.max(x)
    else:
        low, high = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    point = low == high
    half = jnp.asarray(0.5, x.dtype)
    return evenly_spaced(jnp.where(point, low - half, low), jnp.where(point, high + half, high), bins + 1, x.dtype)


def count_in(points: Array, edges: Sequence[Array], weight: Array | None, density: bool) -> Array:
    """The weight of the ``points`` (one row a point, one column a dimension) in each cell of the grid of ``edges``."""
    shape = [edge.shape[0] - 1 for edge in edges]
    cell = jnp.zeros(points.shape[0], np.int64)
    inside = jnp.ones(points.shape[0], np.bool_)
    for d, edge in enumerate(edges):
        x = points[:, d]
        bin_ = jnp.clip(jnp.searchsorted(edge, x, side="right") - 1, 0, shape[d] - 1)
        inside &= (x >= edge[0]) & (x <= edge[-1])
        cell = cell * shape[d] + bin_
    total = math.prod(shape)
    weights = jnp.ones(points.shape[0], points.dtype) if weight is None else weight.reshape(-1).astype(points.dtype)
    counts = jnp.zeros(total, points.dtype).at[jnp.where(inside, cell, total)].add(weights, mode="drop").reshape(shape)
    if not density:
        return counts
    counts = counts / jnp.sum(counts)
    for d, edge in enumerate(edges):
        widths = jnp.diff(edge)
        counts = counts / jnp.expand_dims(widths, [k for k in range(len(edges)) if k != d])
    return counts


@lowers(aten.histogram.bins_tensor)
def histogram(
    x: Array, bins: Array, *, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    return count_in(opmath(x).reshape(-1, 1), [opmath(bins)], weight, density), bins


@lowers(aten.histogram.bin_ct)
def histogram_of_count(
    x: Array, bins: int = 100, *, range: Sequence[float] | None = None, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    edges = edges_between(opmath(x), bins, range)
    return count_in(opmath(x).reshape(-1, 1), [edges], weight, density), edges


@lowers(aten._histogramdd_bin_edges.default)
def bin_edges(
    x: Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> list[Array]:
    points = opmath(x).reshape(-1, x.shape[-1])
    limits = [None if range is None else range[2 * d : 2 * d + 2] for d, _ in enumerate(bins)]
    return [edges_between(points[:, d], count, limit) for d, (count, limit) in enumerate(zip(bins, limits))]


@lowers(aten._histogramdd_from_bin_cts.default)
def histogram_of_counts(
    x: Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    edges = bin_edges(x, bins, range=range)
    return count_in(opmath(x).reshape(-1, x.shape[-1]), edges, weight, density)


@lowers(aten._histogramdd_from_bin_tensors.default)
def histogram_of_edges(x: Array, bins: Sequence[Array], *, weight: Array | None = None, density: bool = False) -> Array:
    return count_in(opmath(x).reshape(-1, x.shape[-1]), [opmath(edge) for edge in bins], weight, density)
