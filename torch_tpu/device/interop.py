"""Tensors and other libraries' arrays: JAX without a copy, and DLPack."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import dlpack

__all__ = ["from_jax", "to_jax"]


def from_jax(array: Any) -> torch.Tensor:
    """A tensor on the device of a ``jax.Array``, without a copy. The array stays valid, whatever happens to the tensor.

    The array must lie on one device of the same client: ValueError otherwise. Move it with ``jax.device_put`` first.
    """
    from . import devices

    devices.init()
    import jax

    from ..eager.transfers import adopt
    from ..lowerings.dtypes import torch_dtype
    from ..runtime import client

    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        raise TypeError(f"from_jax() takes a jax.Array with values, got {type(array).__name__}")
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(f"from_jax(): PyTorch has no dtype for {array.dtype}; for random keys, convert jax.random.key_data(key)")
    dtype = torch_dtype(array.dtype)
    ours = client.devices()
    on = array.devices()
    if len(on) != 1 or next(iter(on)) not in ours:
        names = ", ".join(map(str, ours))
        raise ValueError(f"from_jax(): the array lies on {on}, not on one of the tpu devices ({names}); use jax.device_put first")
    return adopt(array, dtype, ours.index(next(iter(on))))


def to_jax(tensor: torch.Tensor) -> Any:
    """The values of a tpu tensor as a ``jax.Array``, without a copy where the tensor is all of its storage.

    The array never changes: writing to the tensor in place afterwards makes a new buffer for the tensor.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "tpu":
        what = f"one on {tensor.device}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(f"to_jax() takes a tpu tensor, got {what}")
    if tensor.requires_grad:
        raise RuntimeError("Can't call to_jax() on a tensor that requires grad. Use torch.tpu.to_jax(tensor.detach()) instead.")
    from . import devices

    devices.init()
    from ..eager.transfers import array_of

    return array_of(tensor)


def _dlpack_source(tensor: torch.Tensor, copy: bool | None = None) -> Any:
    """The array to export: a copy, for DLPack's readers may write, and buffers do not change under JAX."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if copy is False:
        raise BufferError("tpu: a tensor cannot be exported without a copy, because its memory may move; torch.tpu.to_jax() can")
    array = to_jax(tensor)
    _check_exportable(array)
    return array.copy()


def _check_exportable(array: Any) -> None:
    if next(iter(array.devices())).platform not in ("cpu", "cuda", "gpu", "rocm"):
        raise BufferError("tpu: DLPack cannot describe TPU memory; use Tensor.cpu(), or torch.tpu.to_jax()")


def install() -> None:
    """Have PyTorch's DLPack functions export a tpu tensor's values: they would export the address, which is no memory."""
    export, export_device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__
    to_capsule, from_dlpack = dlpack.to_dlpack, dlpack.from_dlpack

    @functools.wraps(export)
    def __dlpack__(self: torch.Tensor, *, stream: Any = -1, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        if self.device.type != "tpu":
            return export(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        return _dlpack_source(self, copy).__dlpack__(max_version=max_version, dl_device=dl_device)

    @functools.wraps(export_device)
    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type != "tpu":
            return export_device(self)
        array = to_jax(self.detach())
        _check_exportable(array)
        return array.__dlpack_device__()

    @functools.wraps(to_capsule)
    def to_dlpack(tensor: torch.Tensor) -> Any:
        return to_capsule(tensor) if tensor.device.type != "tpu" else tensor.__dlpack__()

    @functools.wraps(from_dlpack)
    def from_any_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> torch.Tensor:
        if not isinstance(ext_tensor, torch.Tensor) or ext_tensor.device.type != "tpu":
            return from_dlpack(ext_tensor, device=device, copy=copy)
        moved = ext_tensor.detach() if device is None else ext_tensor.detach().to(device)
        if copy is False and moved.data_ptr() != ext_tensor.data_ptr():
            raise ValueError(f"cannot move a tensor from {ext_tensor.device} to {device} without copying. Set copy=None or copy=True.")
        return moved.clone() if copy and moved.data_ptr() == ext_tensor.data_ptr() else moved

    torch.Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]
    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]
    torch.to_dlpack = dlpack.to_dlpack = to_dlpack  # type: ignore[assignment]
    torch.from_dlpack = dlpack.from_dlpack = from_any_dlpack
