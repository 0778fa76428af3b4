"""The eager engine's start: hands the native dispatcher its callbacks' bodies, and registers every overload with a lowering.

Imported with the first tensor, never at ``import torch``: it is what imports JAX.
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._ops import OpOverload
from torch.optim.optimizer import register_optimizer_step_post_hook

from .. import _C
from ..lowerings import TABLE, functional_of
from ..lowerings.dtypes import numpy_dtype, storage_dtype
from ..runtime import arrays, client, events, failures, memory
from . import data_dependent, debug, fusion, fusion_report, programs, transfers  # noqa: F401  (data_dependent registers kernels)
from .views import plan_view

__all__ = ["CALLBACKS", "start"]


def make_scalar(dtype: torch.dtype, value: Any, device: int) -> jax.Array:
    """A number on the device, as a 0-d array."""
    host = numpy_dtype(dtype)
    if isinstance(value, int) and host.kind in "iu":
        value = np.array(value & (2 ** (8 * host.itemsize) - 1), f"u{host.itemsize}").view(host)
    return arrays.upload(np.asarray(value, host), device)


def make_zeros(shape: list[int], dtype: torch.dtype, device: int) -> jax.Array:
    return arrays.upload(np.zeros(shape, storage_dtype(dtype)), device)


def resize(base: jax.Array, count: int) -> jax.Array:
    """The first ``count`` elements of a base, with zeros behind where it was shorter."""
    try:
        with jax.enable_x64(True):
            flat = base.reshape(-1)[:count]
            return jax.device_put(jnp.pad(flat, (0, count - flat.size)), base.sharding)
    except jax.errors.JaxRuntimeError as error:
        index = client.devices().index(next(iter(base.devices())))
        raise failures.explain(error, f"resize_({base.dtype}[{base.size}] to {count} elements)", index) from error


CALLBACKS: dict[str, Callable[..., Any]] = {
    "describe": programs.describe,
    "miss": programs.miss,
    "prepare": programs.prepare,
    "fuse": fusion.fuse,
    "pack": fusion.pack,
    "flushed": fusion_report.flushed,
    "plan_view": plan_view,
    "make_scalar": make_scalar,
    "make_zeros": make_zeros,
    "resize": resize,
    "transfer": transfers.transfer,
    "failed": programs.failed,
    "before": debug.before,
    "after": debug.after,
    "synchronize": events.synchronize,
    "record_event": events.record,
    "query_event": events.query,
    "wait_event": events.wait,
    "elapsed": events.elapsed_milliseconds,
    "memory_info": memory.memory_info,
}


def start() -> None:
    """Start PJRT and register the kernels. RuntimeError where there is no such platform, or in a forked child."""
    client.check_not_forked()
    devices = client.devices()
    _C.set_device_count(len(devices))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that a composite kernel is overridden: that is the purpose
        for overload in direct_overloads():
            _C.register_overload(f"{overload._schema.name}.{overload._overloadname}".removesuffix(".default"))
    register_optimizer_step_post_hook(_after_optimizer_step)
    atexit.register(_C.begin_shutdown)
    _C.set_initialized()


def _after_optimizer_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    _C.end_step()


def direct_overloads() -> list[OpOverload]:
    """The overloads to register a kernel for, so that they skip PyTorch's composite ones: lowered ops and their variants.

    Composite-implicit ops are left to PyTorch, which differentiates them through their parts; views are native kernels.
    """
    chosen = []
    for name in {overload._schema.name for overload in TABLE} | {o._schema.name for o in programs.PYTHON_KERNELS}:
        namespace, base = name.split("::")
        if namespace != "aten":
            continue
        packets = {base, f"{base}_", base.removesuffix("_functional") + "_", base.removesuffix("functional")}
        for packet_name in sorted(packets):
            packet = getattr(torch.ops.aten, packet_name, None)
            for overload_name in packet.overloads() if packet is not None else ():
                overload = getattr(packet, overload_name)
                functional = functional_of(overload)
                known = functional in TABLE or functional in programs.PYTHON_KERNELS or overload in programs.PYTHON_KERNELS
                if known and _is_ours(overload) and not (functional is not None and _returns_view(functional)):
                    chosen.append(overload)
    return list(dict.fromkeys(chosen))


# Metadata kernels in csrc/kernels.cpp, and copies, which choose their way by the devices at both ends.
_NATIVE = {
    "aten::empty", "aten::empty_strided", "aten::resize_", "aten::set_", "aten::is_set_to", "aten::as_strided", "aten::view",
    "aten::_reshape_alias", "aten::unfold", "aten::view_as_real", "aten::view_as_complex", "aten::copy_", "aten::copy",
}  # fmt: skip


def _is_ours(overload: OpOverload) -> bool:
    schema = overload._schema
    name = f"{schema.name}.{overload._overloadname}".removesuffix(".default")
    if not torch._C._dispatch_has_kernel(name):
        return False  # a form that only TorchScript has
    if schema.name in _NATIVE or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return False
    if any(argument.name == "device" for argument in schema.arguments):
        return False  # PyTorch's kernels make the tensor where it is asked for, then fill it through us
    return not _returns_view(overload)


def _returns_view(overload: OpOverload) -> bool:
    """Whether an op only looks at its argument otherwise: its in-place form (``transpose_``) changes metadata, not values."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in overload._schema.returns)
