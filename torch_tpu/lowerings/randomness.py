"""From a generator's state to a JAX key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def random_key(seed: Array, offset: Array) -> Array:
    """The key of the op that drew ``offset`` from a generator seeded with ``seed`` (both int64, taken as 64 bits).

    Threefry is counter based: distinct (seed, offset) pairs give independent streams, on every platform the same.
    """

    def words(x: Array) -> tuple[Array, Array]:
        bits = lax.bitcast_convert_type(jnp.asarray(x, np.int64), np.uint32)
        return bits[0], bits[1]

    low, high = words(seed)
    key = jax.random.wrap_key_data(jnp.stack([high, low]), impl="threefry2x32")
    for word in words(offset):
        key = jax.random.fold_in(key, word)
    return key
