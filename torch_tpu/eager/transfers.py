"""Copies between the host and a device, and between devices: one copy each way, and the cast on the side that is cheaper."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (NumPy learns its dtypes)
import numpy as np
import torch
from jax import Array

from .. import _C
from ..lowerings.dtypes import storage_dtype
from ..runtime import arrays
from .argument_errors import check_copy

# torch gives no NumPy view of these dtypes: look at them as integers of their width.
_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def host_view(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous CPU tensor as a NumPy array, not a copy."""
    dtype = storage_dtype(tensor.dtype)
    tensor = tensor.detach()
    if dtype.isbuiltin != 1 or tensor.dtype is torch.complex32:
        return tensor.view(_AS_INTEGERS[tensor.element_size()]).numpy().view(dtype)
    return tensor.numpy()


def upload(tensor: torch.Tensor, index: int) -> Array:
    """A CPU tensor's values on device ``index``."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return arrays.upload(host_view(tensor), index)


def adopt(array: Array, dtype: torch.dtype, device: int) -> torch.Tensor:
    """A tensor of device ``device`` whose storage is ``array`` itself."""
    shape = tuple(array.shape)
    strides = torch._prims_common.make_contiguous_strides_for(shape)
    tensor = _C.new_tensor(shape, strides, dtype, device)
    if array.size:
        _C.set_base(tensor, array, dtype, shape)
    return tensor


def array_of(tensor: torch.Tensor) -> Array:
    """The tensor's values as a ``jax.Array`` of its shape; the storage's own buffer where the tensor is all of it."""
    if tensor.numel() == 0:
        return arrays.upload(np.zeros(tuple(tensor.shape), storage_dtype(tensor.dtype)), tensor.device.index)
    plain = not (tensor.is_conj() or tensor.is_neg())
    if plain and _C.is_whole(tensor):
        base = _C.base(tensor)
        if base is not None and base.shape == tuple(tensor.shape):
            return base
    copy = tensor.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    base = _C.base(copy)
    if base is None:
        base = _C.base(copy.zero_())
    assert base is not None
    return base


def download(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's values on the host, of its own shape; read-only."""
    cut = _cut_on_host(tensor)
    return arrays.download(array_of(tensor)) if cut is None else cut


_SMALL_BYTES = 1 << 16
_MOST_DIMENSIONS = 64  # of a NumPy array


def _cut_on_host(tensor: torch.Tensor) -> np.ndarray | None:
    """A view cut out of its whole base on the host, which needs no program; None where too much would cross for it."""
    if tensor.numel() == 0 or tensor.is_conj() or tensor.is_neg():
        return None
    base = _C.base(tensor)
    if base is None or base.ndim > _MOST_DIMENSIONS:
        return None
    if base.dtype != storage_dtype(tensor.dtype) or base.nbytes > max(2 * tensor.nbytes, _SMALL_BYTES):
        return None
    elements = arrays.download(base).reshape(-1)[tensor.storage_offset() :]
    strides = [stride * elements.itemsize for stride in tensor.stride()]
    plain = elements if elements.dtype.isbuiltin == 1 else elements.view(f"u{elements.itemsize}")
    return np.lib.stride_tricks.as_strided(plain, tuple(tensor.shape), strides, writeable=False).view(elements.dtype)


def transfer(source: torch.Tensor, destination: torch.Tensor, non_blocking: bool = False) -> None:
    """``destination.copy_(source)`` for tensors on different devices; shapes broadcast, dtypes cast."""
    with torch._C.DisableTorchFunctionSubclass():
        # As plain tensors: subclasses such as lazy modules' uninitialized parameters refuse to tell their shape.
        source, destination = source.detach(), destination.detach()
    check_copy(source, destination)
    if source.numel() == 0 and destination.numel() == 0:
        return
    if max(source.dim(), destination.dim()) > _MOST_DIMENSIONS and source.shape == destination.shape:
        source, destination = source.reshape(-1), destination.view(-1)
    if destination.device.type == "cpu":
        _to_host(source, destination)
    elif source.device.type == "cpu":
        _to_device(source, destination)
    elif source.device.type == destination.device.type:
        moved = arrays.move(array_of(source), destination.device.index)
        destination.copy_(adopt(moved, source.dtype, destination.device.index))
    else:
        raise NotImplementedError(f"tpu: cannot copy from {source.device} to {destination.device}; copy through the CPU")


def _to_host(source: torch.Tensor, destination: torch.Tensor) -> None:
    values = download(source)
    if source.dtype == destination.dtype and destination.is_contiguous() and not destination.is_conj() and not destination.is_neg():
        if source.shape == destination.shape:
            np.copyto(host_view(destination), values, casting="no")
            return
    host = torch.empty(tuple(source.shape), dtype=source.dtype)
    np.copyto(host_view(host), values, casting="no")
    destination.copy_(host)


def _to_device(source: torch.Tensor, destination: torch.Tensor) -> None:
    index = destination.device.index
    plain = not (destination.is_conj() or destination.is_neg())
    if plain and source.shape == destination.shape and _C.is_whole(destination):
        if source.dtype.itemsize > destination.dtype.itemsize or source.dtype == destination.dtype:
            array = upload(source.to(destination.dtype), index)  # cast before the copy: fewer bytes cross
            _C.set_base(destination, array, destination.dtype, tuple(destination.shape))
            return
    destination.copy_(adopt(upload(source, index), source.dtype, index))


def item(tensor: torch.Tensor) -> bool | int | float | complex:
    """The one value of a tensor as a Python number."""
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    if tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    value = download(tensor.reshape(()) if tensor.dim() else tensor).reshape(())
    if tensor.dtype.is_complex:
        return complex(value)
    if tensor.dtype.is_floating_point:
        return float(value)
    return bool(value) if tensor.dtype is torch.bool else int(value)
