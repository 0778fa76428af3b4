"""Views over immutable base buffers: how to read a strided view out of its base, and how to write one back.

A storage holds one base array in row-major order; a view is sizes, strides and an offset in elements. ``plan_view`` turns a
view's geometry into slice / transpose / broadcast over the base, or into a gather where nothing else expresses it. A plan is
found once for a geometry: the offset enters only as the start on each axis, a run-time argument, so that ``x[i]`` in a loop
compiles once. The native dispatcher computes those starts from ``dims`` (row-major division of the offset) and uses a plan
wherever every ``start + extent`` stays inside its axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from ..lowerings.dtypes import numpy_dtype, storage_dtype
from ..lowerings.promotion import cast

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Where a view's elements lie in its storage: element ``i`` at ``offset + sum(i[d] * strides[d])``."""

    sizes: Shape
    strides: Shape

    @property
    def live(self) -> list[int]:
        """The dimensions that move through the storage: longer than one, and not broadcast."""
        return [d for d, (size, stride) in enumerate(zip(self.sizes, self.strides)) if size > 1 and stride != 0]

    @property
    def span(self) -> int:
        """The number of storage elements from the first to the last that the view touches."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides))


@dataclass(frozen=True)
class ViewPlan:
    """How to reach a view of ``geometry``, of dtype ``dtype``, in a base of ``base_shape`` and ``base_dtype``.

    The base is reshaped to ``dims``; the view lies in the window of ``extents`` elements an axis. With ``gather`` the window
    is one-dimensional and indexed element by element; without, live view dimension ``k`` (in view order) walks along axis
    ``axes[k]`` in steps of ``steps[axis]``.
    """

    base_shape: Shape
    base_dtype: torch.dtype
    dtype: torch.dtype
    geometry: Geometry
    dims: Shape
    extents: Shape
    steps: Shape = ()
    axes: Shape = ()
    gather: bool = False

    @property
    def moving(self) -> list[int]:
        """The axes whose start is a run-time argument, in order."""
        return [axis for axis, (dim, extent) in enumerate(zip(self.dims, self.extents)) if extent < dim]


def row_major_strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return strides


def plan_view(
    base_shape: Sequence[int],
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> tuple[ViewPlan, Shape, Shape]:
    """The plan for a view at ``offset`` (in elements of ``dtype``), with its ``dims`` and ``extents`` for the dispatcher."""
    geometry = Geometry(tuple(sizes), tuple(strides))
    seen = _elements_seen(tuple(base_shape), base_dtype, dtype)
    for dims in _groupings(seen, geometry):
        found = _slice_plan(dims, geometry, offset)
        if found is not None:
            extents, steps, axes = found
            plan = ViewPlan(tuple(base_shape), base_dtype, dtype, geometry, dims, extents, steps, axes)
            return plan, dims, extents
    dims, extents = (math.prod(seen),), (geometry.span,)
    plan = ViewPlan(tuple(base_shape), base_dtype, dtype, geometry, dims, extents, gather=True)
    return plan, dims, extents


def _elements_seen(base_shape: Shape, base_dtype: torch.dtype, dtype: torch.dtype) -> Shape:
    """The base's shape when it is looked at as elements of ``dtype``."""
    held, wanted = base_dtype.itemsize, dtype.itemsize
    if held == wanted:
        return base_shape
    if held > wanted:
        return (*base_shape, held // wanted)
    if base_shape and base_shape[-1] % (wanted // held) == 0:
        return (*base_shape[:-1], base_shape[-1] * held // wanted)
    return (math.prod(base_shape) * held // wanted,)


def _groupings(shape: Shape, geometry: Geometry) -> list[Shape]:
    """Shapes to look at the base in: its own, its own cut at the view's strides, and the view's strides alone."""
    total = math.prod(shape)
    live = {geometry.strides[d] for d in geometry.live}
    shapes = [shape]
    for cuts in ({1, *row_major_strides(shape), *live}, {1, *live}):
        ordered = sorted((c for c in cuts if 0 < c <= total), reverse=True)
        if total and all(a % b == 0 for a, b in zip(ordered, ordered[1:])) and total % ordered[0] == 0:
            shapes.append((total // ordered[0], *(a // b for a, b in zip(ordered, ordered[1:]))))
    return shapes


def _slice_plan(dims: Shape, geometry: Geometry, offset: int) -> tuple[Shape, Shape, Shape] | None:
    """Extents, steps and axes if every live dimension walks along an axis of its own without leaving it; else None."""
    strides = row_major_strides(dims)
    starts = []
    for axis, (dim, stride) in enumerate(zip(dims, strides)):
        starts.append(offset // stride if axis == 0 else offset // stride % dim)
    walked: dict[int, int] = {}
    extents, steps = [1] * len(dims), [1] * len(dims)
    for d in sorted(geometry.live, key=lambda d: -geometry.strides[d]):
        for axis in range(len(dims)):
            if axis in walked.values() or dims[axis] == 1 or geometry.strides[d] % strides[axis]:
                continue
            step = geometry.strides[d] // strides[axis]
            extent = (geometry.sizes[d] - 1) * step + 1
            if starts[axis] + extent <= dims[axis]:
                walked[d], extents[axis], steps[axis] = axis, extent, step
                break
        else:
            return None
    if any(start + extent > dim for start, extent, dim in zip(starts, extents, dims)):
        return None
    return tuple(extents), tuple(steps), tuple(walked[d] for d in geometry.live)


# ---- reading and writing, traced into the consumer's program


def read_view(plan: ViewPlan, base: Array, starts: Sequence[Array]) -> Array:
    """The view's value, of shape ``plan.geometry.sizes``; ``starts`` holds the start on each moving axis."""
    elements = as_elements(base, plan.dtype).reshape(plan.dims)
    if plan.gather:
        return elements[_gather_indices(plan, starts)]
    window = _window(plan, elements, starts)
    window = lax.slice(window, (0,) * window.ndim, window.shape, plan.steps)
    return _spread(plan, window)


def write_view(plan: ViewPlan, base: Array, starts: Sequence[Array], value: Array) -> Array:
    """The base with the view replaced by ``value`` (of the view's shape and dtype)."""
    elements = as_elements(base, plan.dtype).reshape(plan.dims)
    if plan.gather:
        flat = elements.at[_gather_indices(plan, starts)].set(value)
        return from_elements(flat, plan)
    stepped = tuple(-(-extent // step) for extent, step in zip(plan.extents, plan.steps))
    live = plan.geometry.live
    value = value[tuple(slice(None) if d in live else 0 for d in range(value.ndim))]
    order = sorted(range(len(plan.axes)), key=lambda k: plan.axes[k])
    value = lax.transpose(value, order).reshape(stepped)
    if any(step > 1 for step in plan.steps):
        # Between the steps the old elements stay: select rather than scatter, which is slow on every backend.
        padding = [(0, extent - 1 - (size - 1) * step, step - 1) for size, extent, step in zip(stepped, plan.extents, plan.steps)]
        written = lax.pad(jnp.ones(stepped, np.bool_), np.False_, padding)
        value = jnp.where(written, lax.pad(value, jnp.zeros((), value.dtype), padding), _window(plan, elements, starts))
    return from_elements(lax.dynamic_update_slice(elements, value, _all_starts(plan, starts)), plan)


def _all_starts(plan: ViewPlan, starts: Sequence[Array]) -> list[Array | np.int64]:
    moving = dict(zip(plan.moving, starts))
    return [moving[axis] if axis in moving else np.int64(0) for axis in range(len(plan.dims))]


def _window(plan: ViewPlan, elements: Array, starts: Sequence[Array]) -> Array:
    if not plan.moving:
        return elements
    return lax.dynamic_slice(elements, _all_starts(plan, starts), plan.extents)


def _spread(plan: ViewPlan, window: Array) -> Array:
    """From the window's axes to the view's dimensions: drop, permute, broadcast."""
    order = sorted(plan.axes)
    values = lax.squeeze(window, [axis for axis in range(window.ndim) if axis not in plan.axes])
    values = lax.transpose(values, [order.index(axis) for axis in plan.axes])
    return lax.broadcast_in_dim(values, plan.geometry.sizes, plan.geometry.live)


def _gather_indices(plan: ViewPlan, starts: Sequence[Array]) -> Array:
    index_dtype = np.int64 if plan.dims[0] > np.iinfo(np.int32).max else np.int32
    start = cast(starts[0], index_dtype) if plan.moving else index_dtype(0)
    index = jnp.full(plan.geometry.sizes, start, index_dtype)
    for d, stride in enumerate(plan.geometry.strides):
        index = index + lax.broadcasted_iota(index_dtype, plan.geometry.sizes, d) * index_dtype(stride)
    return index


def loaded(elements: Array, dtype: torch.dtype) -> Array:
    """The values that elements of ``dtype`` in a buffer mean."""
    if dtype is not torch.complex32:
        return elements
    parts = lax.bitcast_convert_type(elements, np.float16).astype(np.float32)
    return lax.complex(parts[..., 0], parts[..., 1])


def stored(values: Array, dtype: torch.dtype) -> Array:
    """``values`` as a buffer of ``dtype`` holds them."""
    if dtype is not torch.complex32:
        return cast(values, numpy_dtype(dtype))
    values = cast(values, np.complex64)
    return lax.bitcast_convert_type(jnp.stack([values.real, values.imag], axis=-1).astype(np.float16), np.uint32)


def as_elements(base: Array, dtype: torch.dtype) -> Array:
    """The bits of ``base`` as elements of ``dtype``, in row-major order; the last axis absorbs a change of width."""
    wanted = storage_dtype(dtype)
    if base.dtype == wanted:
        return base
    if base.dtype.kind == "c":
        real = np.float32 if base.dtype.itemsize == 8 else np.float64
        base = jnp.stack([base.real.astype(real), base.imag.astype(real)], axis=-1).reshape(*base.shape[:-1], -1)
        base = base if base.ndim else base.reshape(2)
        return as_elements(base, dtype)
    if wanted.kind == "c":
        part = torch.float32 if wanted.itemsize == 8 else torch.float64
        parts = as_elements(base, part).reshape(-1, 2)
        return lax.complex(parts[:, 0], parts[:, 1])
    if base.dtype.kind == "b":
        base = base.astype(np.uint8)
    if wanted.kind == "b":
        return as_elements(base, torch.uint8) != 0
    if base.dtype.itemsize < wanted.itemsize:
        base = base.reshape(-1)
        ratio = wanted.itemsize // base.dtype.itemsize
        base = base[: base.size // ratio * ratio].reshape(-1, ratio)
    return lax.bitcast_convert_type(base, wanted)


def from_elements(elements: Array, plan: ViewPlan) -> Array:
    """The inverse of ``as_elements``: a base of the plan's shape and dtype again."""
    return as_elements(elements.reshape(-1), plan.base_dtype).reshape(plan.base_shape)
