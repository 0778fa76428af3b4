"""Reductions over segments of a dimension, given by lengths or offsets, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten

_START = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}


class Segments:
    """Where the elements of ``data`` (seen as leading × axis × trailing) belong, given lengths or offsets along ``axis``."""

    def __init__(self, data: Array, lengths: Array | None, offsets: Array | None, axis: int) -> None:
        leading, size = math.prod(data.shape[:axis]), data.shape[axis]
        self.shape = (leading, size, math.prod(data.shape[axis + 1 :]))
        if offsets is None:
            assert lengths is not None, "segment_reduce needs lengths or offsets"
            counts = lengths.reshape(leading, -1).astype(np.int64)
            starts = jnp.concatenate([jnp.zeros((leading, 1), np.int64), jnp.cumsum(counts, axis=1)], axis=1)
        else:
            starts = offsets.reshape(leading, -1).astype(np.int64)
        self.lengths = jnp.diff(starts, axis=1)
        self.count = self.lengths.shape[1]
        place = lax.iota(np.int64, size)
        segment = jax.vmap(lambda edges: jnp.searchsorted(edges, place, side="right"))(starts) - 1
        inside = (segment >= 0) & (segment < self.count)
        first = lax.broadcasted_iota(np.int64, (leading, 1), 0) * self.count
        self.index = jnp.where(inside, first + segment, leading * self.count).reshape(-1)
        self.result = (*data.shape[:axis], self.count, *data.shape[axis + 1 :])

    def rows(self, data: Array) -> Array:
        return data.reshape(self.shape[0] * self.shape[1], self.shape[2])

    def filled(self, value: Any, dtype: np.dtype) -> Array:
        return jnp.full((self.shape[0] * self.count, self.shape[2]), value, dtype)

    def per_segment(self, values: Array) -> Array:
        return values.reshape(-1, 1)

    def spread(self, values: Array) -> Array:
        """The value of each element's segment; zero for elements of none."""
        return values.at[self.index].get(mode="fill", fill_value=0)


@lowers(aten.segment_reduce.default, static=("initial",))
def segment_reduce(
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Array:
    segments = Segments(data, lengths, offsets, axis)
    values = opmath(segments.rows(data))
    start = segments.filled(_START[reduce] if initial is None else initial, values.dtype)
    update = start.at[segments.index]
    combine = {"sum": "add", "mean": "add", "max": "max", "min": "min", "prod": "multiply"}[reduce]
    reduced: Array = getattr(update, combine)(values, mode="drop")
    if reduce == "mean":
        counts = segments.per_segment(segments.lengths)
        empty = jnp.nan if initial is None else reduced
        reduced = jnp.where(counts == 0, empty, reduced / jnp.maximum(counts, 1).astype(reduced.dtype))
    return reduced.reshape(segments.result)


@lowers(aten._segment_reduce_backward.default, static=("initial",))
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Array:
    segments = Segments(data, lengths, offsets, axis)
    values = opmath(segments.rows(data))
    per_segment = (segments.shape[0] * segments.count, segments.shape[2])
    grads = opmath(grad).reshape(per_segment)
    results = opmath(output).reshape(per_segment)
    zeros = segments.filled(0, values.dtype)
    if reduce in ("sum", "mean"):
        counts = jnp.maximum(segments.per_segment(segments.lengths), 1).astype(values.dtype)
        found = segments.spread(grads / counts if reduce == "mean" else grads)
    elif reduce in ("max", "min"):
        reached = jnp.isnan(values) | (values == segments.spread(results))
        shares = zeros.at[segments.index].add(reached.astype(values.dtype), mode="drop")
        found = jnp.where(reached, segments.spread(grads) / jnp.maximum(segments.spread(shares), 1), 0)
    else:
        zero = values == 0
        nils = zeros.at[segments.index].add(zero.astype(values.dtype), mode="drop")
        start = segments.filled(1.0 if initial is None else initial, values.dtype)
        others = start.at[segments.index].multiply(jnp.where(zero, 1, values), mode="drop")
        nils, others = segments.spread(nils), segments.spread(others)
        # The product of a segment's other elements: without a zero among them, all but this one.
        product = jnp.where(nils == 0, others / jnp.where(zero, 1, values), jnp.where((nils == 1) & zero, others, 0))
        found = segments.spread(grads) * product
    return found.reshape(data.shape)
