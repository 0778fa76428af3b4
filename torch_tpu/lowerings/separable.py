"""Linear maps along one axis whose pattern is known when the program is built: interpolation weights, pooling windows.

A map is a table of taps: which inputs each output reads, and with which weights. Only those inputs are ever multiplied, so an
Inf or NaN spreads exactly as far as in PyTorch, which a product with a dense matrix of weights would not respect. The
transposed map is a table of taps as well, so that gradients need no scatter.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

# Up to so many taps are summed one by one, each a strided slice where the pattern allows it; more are one gather and one sum.
MAX_UNROLLED_TAPS = 8
# Up to so many interleaved strided slices replace a gather.
MAX_PHASES = 8


@dataclass(frozen=True, eq=False)
class Taps:
    """``out[o] = sum(weight[o, t] * x[index[o, t]] for t where valid[o, t])``; the tables are (outputs, taps)."""

    index: np.ndarray
    weight: np.ndarray
    valid: np.ndarray
    inputs: int

    @classmethod
    def of(cls, index: np.ndarray, weight: np.ndarray, inputs: int, valid: np.ndarray | None = None) -> Taps:
        valid = np.ones(index.shape, np.bool_) if valid is None else valid
        return cls(np.clip(index, 0, max(inputs - 1, 0)), weight, valid, inputs)

    def transposed(self) -> Taps:
        """The taps of the gradient: for each input, the outputs that it went to."""
        outputs, taps = self.index.shape
        sources = np.broadcast_to(np.arange(outputs)[:, None], (outputs, taps))[self.valid]
        targets, weights = self.index[self.valid], self.weight[self.valid]
        order = np.argsort(targets, kind="stable")
        sources, targets, weights = sources[order], targets[order], weights[order]
        counts = np.bincount(targets, minlength=self.inputs)
        slot = np.arange(targets.size) - (np.cumsum(counts) - counts)[targets]
        shape = (self.inputs, max(int(counts.max(initial=0)), 1))
        index, weight, valid = np.zeros(shape, np.int64), np.zeros(shape, weights.dtype), np.zeros(shape, np.bool_)
        index[targets, slot], weight[targets, slot], valid[targets, slot] = sources, weights, True
        return Taps(index, weight, valid, outputs)


def along(values: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    """``values`` of one dimension, shaped to broadcast along ``axis`` of an array with ``ndim`` dimensions."""
    return values.reshape(tuple(-1 if i == axis else 1 for i in range(ndim)))


def apply_taps(x: Array, axis: int, taps: Taps) -> Array:
    """``x`` with ``axis`` replaced by the outputs of ``taps``, in the dtype of ``x``."""
    axis %= x.ndim
    outputs, count = taps.index.shape
    if count > MAX_UNROLLED_TAPS:
        return _apply_at_once(x, axis, taps)
    total = None
    for t in range(count):
        term = static_take(x, taps.index[:, t], axis)
        if not np.all(taps.weight[:, t] == 1):
            term = term * along(taps.weight[:, t], axis, x.ndim).astype(x.dtype)
        if not taps.valid[:, t].all():
            term = jnp.where(along(taps.valid[:, t], axis, x.ndim), term, jnp.zeros((), x.dtype))
        total = term if total is None else total + term
    assert total is not None, "a table of taps has at least one column"
    return total


def _apply_at_once(x: Array, axis: int, taps: Taps) -> Array:
    outputs, count = taps.index.shape
    gathered = gather_windows(x, taps.index, axis)
    shape = tuple(size if i in (axis, axis + 1) else 1 for i, size in enumerate(gathered.shape))
    terms = gathered * taps.weight.astype(x.dtype).reshape(shape)
    return jnp.sum(jnp.where(taps.valid.reshape(shape), terms, jnp.zeros((), x.dtype)), axis=axis + 1)


def gather_windows(x: Array, index: np.ndarray, axis: int) -> Array:
    """``x`` with ``axis`` replaced by the two axes of ``index``."""
    taken = jnp.take(x, index.reshape(-1), axis=axis, mode="clip")
    return taken.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def static_take(x: Array, index: np.ndarray, axis: int) -> Array:
    """``jnp.take(x, index, axis)`` for an index known now: slices where it is regular (strides, repetition), else a gather."""
    axis %= x.ndim
    size = x.shape[axis]
    if len(index) == size and np.array_equal(index, np.arange(size)):
        return x
    for phases in range(1, min(MAX_PHASES, len(index)) + 1):
        starts_and_step = _clipped_progressions(index, phases, size)
        if starts_and_step is not None:
            starts, step = starts_and_step
            count = -(-len(index) // phases)
            return _interleave([_clipped_slice(x, axis, start, step, count) for start in starts], axis, len(index))
    return jnp.take(x, index, axis=axis, mode="clip")


def _clipped_progressions(index: np.ndarray, phases: int, size: int) -> tuple[list[int], int] | None:
    """Starts and common step when every ``phases``-th entry of ``index`` is a progression, clipped to ``[0, size)``."""
    step = int(np.max(index[phases:] - index[:-phases], initial=0))
    if step < 0:
        return None
    starts = []
    for phase in range(phases):
        part = index[phase::phases]
        position = np.arange(len(part))
        candidates = np.unique(part - position * step)
        for start in candidates if len(candidates) <= 4 else (candidates[-1], candidates[0]):
            if np.array_equal(np.clip(start + position * step, 0, size - 1), part):
                starts.append(int(start))
                break
        else:
            return None
    return starts, step


def _clipped_slice(x: Array, axis: int, start: int, step: int, count: int) -> Array:
    """The ``count`` entries of ``x`` along ``axis`` at ``start + i * step``, clipped to the ends."""
    size = x.shape[axis]
    positions = start + np.arange(count) * step
    below, above = int(np.sum(positions < 0)), int(np.sum(positions >= size))
    if step == 0:
        only = min(max(start, 0), size - 1)
        return _repeated(lax.slice_in_dim(x, only, only + 1, axis=axis), axis, count)
    parts = []
    if below:
        parts.append(_repeated(lax.slice_in_dim(x, 0, 1, axis=axis), axis, below))
    inside = positions[below : count - above]
    if len(inside):
        parts.append(lax.slice_in_dim(x, int(inside[0]), int(inside[-1]) + 1, step, axis))
    if above:
        parts.append(_repeated(lax.slice_in_dim(x, size - 1, size, axis=axis), axis, above))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=axis)


def _repeated(edge: Array, axis: int, count: int) -> Array:
    return jnp.broadcast_to(edge, (*edge.shape[:axis], count, *edge.shape[axis + 1 :]))


def _interleave(parts: list[Array], axis: int, count: int) -> Array:
    """The parts' entries in turn along ``axis``, the first ``count`` of them."""
    if len(parts) == 1:
        return parts[0]
    shape = parts[0].shape
    merged = jnp.stack(parts, axis=axis + 1).reshape(*shape[:axis], shape[axis] * len(parts), *shape[axis + 1 :])
    return lax.slice_in_dim(merged, 0, count, axis=axis)
