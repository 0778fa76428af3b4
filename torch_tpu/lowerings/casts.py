"""Copies and conversions: the value stays, the dtype may change."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .promotion import cast
from .table import lowers

aten = torch.ops.aten


def convert(x: Array, dtype: np.dtype) -> Array:
    """``x`` in ``dtype``; floats outside the range of a narrow integer wrap round in it rather than stop at its ends."""
    narrow = dtype.kind in "iu" and dtype.itemsize < 4
    if narrow and (jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.kind == "c"):
        x = cast(x, np.int32)
    return cast(x, dtype)


@lowers(aten._to_copy.default)
def to_copy(x: Array, *, dtype: np.dtype | None = None) -> Array:
    return x if dtype is None else convert(x, dtype)


@lowers(aten.copy.default)
def copy(x: Array, source: Array) -> Array:
    return jnp.broadcast_to(convert(source, x.dtype), x.shape)


@lowers(aten._copy_from.default, writes=("dst",))
def copy_from(source: Array, destination: Array) -> Array:
    """What ``copy_`` within a device comes down to; the schema names the operands the other way round."""
    return copy(destination, source)


@lowers(aten.clone.default)
def clone(x: Array) -> Array:
    return x
