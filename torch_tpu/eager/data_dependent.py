"""Ops whose result's shape depends on values, and questions to the host.

Each reads the host once, for a count. What it computes lies in buffers of bucketed lengths, so that a new count does not make a
new executable; the result is a view of the buffer's front.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from jax import Array

from ..lowerings import compaction
from .argument_errors import check_no_overlap
from .array_programs import bucket, launch, launch_arrays, prefix, read
from .programs import python_kernel
from .transfers import adopt, item

aten = torch.ops.aten


@python_kernel(aten._local_scalar_dense.default)
def local_scalar_dense(tensor: torch.Tensor) -> bool | int | float | complex:
    return item(tensor)


# ---- positions and selections


def _front(array: Array, length: int) -> list[Array]:
    return [array[:length]]


def _coordinates(positions: Array, shape: tuple[int, ...], length: int) -> list[Array]:
    return [compaction.coordinates(positions[:length], shape)]


def _picked(x: Array, positions: Array, shape: tuple[int, ...], length: int) -> list[Array]:
    return [jnp.broadcast_to(x, shape).reshape(-1)[positions[:length]]]


def _positions(mask: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    return compaction.true_positions(jnp.broadcast_to(mask, shape))


def _by_value(x: torch.Tensor) -> torch.Tensor:
    """``x`` in a dtype whose buffers hold values, not bits: −0 is no less zero than 0."""
    return x.to(torch.complex64) if x.dtype is torch.complex32 else x


@python_kernel(aten.nonzero.default)
def nonzero(x: torch.Tensor) -> torch.Tensor:
    if x.numel() == 0:
        return torch.empty((0, x.dim()), dtype=torch.int64, device=x.device)
    shape = tuple(x.shape)
    positions, number = launch(_positions, [_by_value(x)], shape)
    count = read(number)
    if count == 0 or not shape:
        return torch.empty((count, len(shape)), dtype=torch.int64, device=x.device)
    length = bucket(count, x.numel())
    (found,) = launch_arrays(_coordinates, [positions], x.device.index, shape, length)
    # One run of memory a dimension, as on CPU: unbind(1) gives contiguous indices.
    return adopt(found, torch.int64, x.device.index).as_strided((count, len(shape)), (1, length), 0)


@python_kernel(aten.nonzero.out)
def nonzero_out(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if out.dtype != torch.int64:
        raise RuntimeError(f"nonzero: Expected out tensor to have scalar type Long but got scalar type{_scalar_type(out.dtype)}")
    return _into(out, nonzero(x))


@python_kernel(aten.masked_select.default)
def masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    shape = tuple(torch._C._infer_size(mask.shape, x.shape))
    size = torch.Size(shape).numel()
    if size == 0:
        return torch.empty(0, dtype=x.dtype, device=x.device)
    positions, number = launch(_positions, [mask], shape)
    count = read(number)
    if count == 0:
        return torch.empty(0, dtype=x.dtype, device=x.device)
    index = adopt(positions, _torch_index(positions), x.device.index)
    (picked,) = launch(_picked, [x, index], shape, bucket(count, size))
    return prefix(picked, count, x.dtype, x.device.index)


@python_kernel(aten.masked_select.out)
def masked_select_out(x: torch.Tensor, mask: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if out.dtype != x.dtype:
        raise RuntimeError("masked_select(): self and result must have the same scalar type")
    return _into(out, masked_select(x, mask))


def _torch_index(positions: Array) -> torch.dtype:
    return torch.int32 if positions.dtype.itemsize == 4 else torch.int64


def _into(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    check_no_overlap(out)
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def _scalar_type(dtype: torch.dtype) -> str:
    """PyTorch's C++ name of a dtype, as its messages have it."""
    return _SCALAR_TYPES.get(dtype, str(dtype).removeprefix("torch.").capitalize())


_SCALAR_TYPES = {
    torch.uint8: "Byte",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.bfloat16: "BFloat16",
}


def _not_implemented(kernel: str, dtype: torch.dtype) -> NotImplementedError:
    return NotImplementedError(f"\"{kernel}\" not implemented for '{_scalar_type(dtype)}'")


# ---- counts


def _bounds(x: Array) -> list[Array]:
    return [compaction.bounds(x)]


def _counts(*arrays_and_length: Any) -> list[Array]:
    x, *weights, length = arrays_and_length
    return [compaction.counts_of(x, weights[0] if weights else None, length)]


def _integral(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


@python_kernel(aten.bincount.default)
def bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    if not _integral(x.dtype) or x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        raise _not_implemented("bincount_cpu", x.dtype)
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if x.dim() == 1 and x.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=x.device)
    if x.dim() != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    least, most = read(launch(_bounds, [x])[0])
    if least < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and (weights.dim() != 1 or weights.shape != x.shape):
        raise RuntimeError("weights should be 1-d and have the same length as input")
    length = max(most + 1, minlength)
    operands = [x]
    if weights is not None:
        operands.append(weights if weights.dtype is torch.float32 else weights.to(torch.float64))
    (counts,) = launch(_counts, operands, 1 << (length - 1).bit_length())
    return prefix(counts, length, torch.int64 if weights is None else operands[1].dtype, x.device.index)


def _total(repeats: Array) -> list[Array]:
    wide = repeats.astype(jnp.int64)
    return [jnp.stack([jnp.min(wide), jnp.sum(wide)])]


def _repeated(repeats: Array, length: int) -> list[Array]:
    return [compaction.repeated(repeats, length)]


@python_kernel(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise _not_implemented("repeat_interleave_cpu", repeats.dtype)
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    total = output_size
    if total is None:
        least, total = read(launch(_total, [repeats])[0])
        if least < 0:
            raise RuntimeError("repeats can not be negative")
    if total == 0:
        return torch.empty(0, dtype=repeats.dtype, device=repeats.device)
    (indices,) = launch(_repeated, [repeats], 1 << (total - 1).bit_length())
    return prefix(indices, total, repeats.dtype, repeats.device.index)


# ---- groups of equal elements

Unique = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _groups(x: Array, dim: int | None, sort: bool) -> tuple[Array, Array, Array, Array]:
    rows = x.reshape(-1, 1) if dim is None else jnp.moveaxis(x, dim, 0).reshape(x.shape[dim], -1)
    return compaction.groups(rows, sort)


def _slices(rows: Array, shape: tuple[int, ...], dim: int, length: int) -> list[Array]:
    """The first ``length`` rows as slices along ``dim`` of a tensor of ``shape``."""
    others = shape[:dim] + shape[dim + 1 :]
    return [jnp.moveaxis(rows[:length].reshape(length, *others), 0, dim)]


def _unique(x: torch.Tensor, dim: int | None, sort: bool, inverse: bool, counts: bool) -> Unique:
    if x.dtype.is_complex:
        raise _not_implemented("unique", x.dtype)
    device = x.device.index
    absent = torch.empty(0, dtype=torch.int64, device=x.device)
    if x.numel() == 0:
        return torch.empty(0, dtype=x.dtype, device=x.device), (absent.reshape(x.shape) if inverse else absent), absent
    distinct, group, sizes, number = launch(_groups, [x], dim, sort)
    count: int = read(number)
    length = bucket(count, distinct.shape[0])
    if dim is None:
        (front,) = launch_arrays(_front, [distinct.reshape(-1)], device, length)
        values = prefix(front, count, x.dtype, device)
    else:
        (front,) = launch_arrays(_slices, [distinct], device, tuple(x.shape), dim, length)
        values = adopt(front, x.dtype, device)
        values = values if length == count else values.narrow(dim, 0, count).contiguous()
    group_shape = tuple(x.shape) if dim is None else (x.shape[dim],)
    return (
        values,
        adopt(group, torch.int64, device).view(group_shape) if inverse else absent,
        prefix(launch_arrays(_front, [sizes], device, length)[0], count, torch.int64, device) if counts else absent,
    )


def _unique_slices(x: torch.Tensor, dim: int, sort: bool) -> Unique:
    empty = sum(size == 0 for size in x.shape)
    if empty > 1:
        raise RuntimeError("Number of zero sized dimensions is more than one, so unique cannot be applied ")
    if x.dim() == 0:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    dim = torch._prims_common.canonicalize_dim(x.dim(), dim)
    if empty:
        if x.shape[dim] != 0:
            raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
        absent = torch.empty(0, dtype=torch.int64, device=x.device)
        return torch.empty_like(x), absent, absent.clone()
    return _unique(x, dim, sort, inverse=True, counts=True)  # CPU gives both whether asked or not


@python_kernel(aten._unique.default)
def unique(x: torch.Tensor, sort: bool = True, return_inverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return _unique(x, None, True, return_inverse, False)[:2]


@python_kernel(aten._unique2.default)
def unique2(x: torch.Tensor, sort: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Unique:
    return _unique(x, None, True, return_inverse, return_counts)


@python_kernel(aten.unique_consecutive.default)
def unique_consecutive(
    x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Unique:
    if dim is not None:
        return _unique_slices(x, dim, False)
    return _unique(x, None, False, return_inverse, return_counts)


@python_kernel(aten.unique_dim.default)
def unique_dim(x: torch.Tensor, dim: int, sort: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Unique:
    return _unique_slices(x, dim, True)


@python_kernel(aten.unique_dim_consecutive.default)
def unique_dim_consecutive(x: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False) -> Unique:
    return _unique_slices(x, dim, False)


# ---- questions to the host


def _all_equal(a: Array, b: Array) -> list[Array]:
    return [jnp.all(a == b)]


@python_kernel(aten.equal.default)
def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.device != b.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {a.device} and {b.device}!"
        )
    if a.shape != b.shape:
        return False
    return a.numel() == 0 or bool(read(launch(_all_equal, [_by_value(a), _by_value(b)])[0]))


@python_kernel(aten._assert_async.default)
def assert_async(condition: torch.Tensor) -> None:
    assert_async_message(condition, "Expected Tensor with single nonzero value, but got zero")


@python_kernel(aten._assert_async.msg)
def assert_async_message(condition: torch.Tensor, message: str) -> None:
    if condition.numel() != 1:
        amount = "no values" if condition.numel() == 0 else "more than one value"
        raise RuntimeError(f"Boolean value of Tensor with {amount} is ambiguous")
    if not item(condition):
        raise RuntimeError(message)


@python_kernel(aten._functional_assert_async.msg)
def functional_assert_async(condition: torch.Tensor, message: str, token: torch.Tensor) -> torch.Tensor:
    assert_async_message(condition, message)
    return token.clone()
