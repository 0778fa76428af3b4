"""Arrays in and out of a device: one copy each way, with no dtype change and no dependence on JAX's x64 switch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src.lib import xla_client

from .client import devices, sharding


def upload(host: np.ndarray, index: int) -> jax.Array:
    """A copy of ``host`` on device ``index``; ``host`` may change as soon as this returns."""
    aval = jax.core.ShapedArray(host.shape, host.dtype)
    return xla_client.batched_device_put(
        aval,
        sharding(index),
        [host],
        [devices()[index]],
        True,
        host_buffer_semantics=xla_client.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        enable_x64=True,
    )


def download(array: jax.Array) -> np.ndarray:
    """The values of ``array`` on the host, once it has been computed; read-only, and without a copy on the CPU platform."""
    wait(array)  # first: jaxlib aborts the process where it is to look into a buffer that could not be allocated
    return np.asarray(array)


def wait(array: jax.Array) -> None:
    """Wait until ``array`` has been computed; raises what failed, if its computation did."""
    try:
        array.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        raise _explained(error, array) from error


def _explained(error: Exception, array: jax.Array) -> Exception:
    from .failures import explain

    index = devices().index(next(iter(array.devices())))
    return explain(error, "an op whose result is waited for here (EagerMode.DEBUG shows which)", index)


def move(array: jax.Array, index: int) -> jax.Array:
    """A copy of ``array`` on device ``index``."""
    return jax.device_put(array, sharding(index), may_alias=False)


def memory_statistics(index: int) -> dict[str, Any]:
    """PJRT's own memory figures of device ``index`` in bytes; empty where the platform keeps none (XLA:CPU)."""
    return devices()[index].memory_stats() or {}
