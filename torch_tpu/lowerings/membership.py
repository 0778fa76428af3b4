"""Whether values occur among others, and hashes of all values of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .promotion import promote
from .table import lowers

aten = torch.ops.aten

_FEW = 64  # test elements, up to which comparing with each is quicker than sorting them


@lowers(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(elements: ArrayLike, test_elements: ArrayLike, *, assume_unique: bool = False, invert: bool = False) -> Array:
    x, among = promote(elements, test_elements)
    among = among.reshape(-1)
    if among.size == 0:
        found = jnp.zeros(x.shape, np.bool_)
    elif among.size <= _FEW:
        found = jnp.any(x[..., None] == among, axis=-1)
    else:
        ordered = jnp.sort(among)
        place = jnp.minimum(jnp.searchsorted(ordered, x), among.size - 1)
        found = ordered[place] == x
    return ~found if invert else found


@lowers(aten.hash_tensor.default)
def hash_tensor(x: Array, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Array:
    """The exclusive or of the elements' bits, floats as doubles; integers as 64 bits."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        bits = lax.bitcast_convert_type(x.astype(np.float64), np.uint64)
    else:
        bits = x.astype(np.uint64)
    axes = tuple(d % x.ndim for d in dim) if x.ndim and dim else tuple(range(x.ndim))
    result = lax.reduce(bits, np.uint64(0), lax.bitwise_xor, axes)
    return jnp.expand_dims(result, axes) if keepdim else result
