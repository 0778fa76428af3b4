"""Debug mode: every op is waited for, indices are checked against their bounds, and NaNs can be caught where they are made."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jax import Array

from ..runtime.failures import explain
from .programs import Program, overload_named

_check_nans = False
# The folders of PyTorch and of this package: a line there is not the user's.
_NOT_USER = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/", "<frozen")


def set_debug_nans(on: bool) -> None:
    """Whether debug mode stops at the op that makes the first NaN or infinity."""
    global _check_nans
    _check_nans = bool(on)


def debug_nans_enabled() -> bool:
    return _check_nans


# Op, without a trailing underscore → (argument with the indices, argument indexed, argument with the dimension; None: dimension 0).
_ALONG_DIMENSION = (
    "gather", "index_select", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_reduce",
)  # fmt: skip
_INDEXED = {name: ("index", "self", "dim") for name in _ALONG_DIMENSION} | {
    "embedding": ("indices", "weight", None),
    "_embedding_bag": ("indices", "weight", None),
    "_embedding_bag_forward_only": ("indices", "weight", None),
}
# A list of indices, one a dimension, and one index into all elements; negative ones count from the end.
_INDEXED_BY_LIST = {"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"}
_INDEXED_FLAT = {"take", "put"}
_CLASSES = {"nll_loss_forward", "nll_loss2d_forward"}


def before(name: str, overload_name: str, args: tuple[Any, ...]) -> None:
    """Check the indices of an op that is about to run; IndexError names the value, its place and the bound."""
    overload = overload_named(name, overload_name)
    named = {argument.name: value for argument, value in zip(overload._schema.arguments, args)}
    name = name.split("::")[1].removesuffix("_")
    if name in _INDEXED:
        index_key, indexed_key, dim_key = _INDEXED[name]
        indexed, dim = named[indexed_key], named[dim_key] if dim_key is not None else 0
        rank = max(indexed.dim(), 1)
        if not -rank <= dim < rank:
            return  # the op itself says so
        size = indexed.shape[dim] if indexed.dim() else 1
        _check_bounds(name, named[index_key], size, dim % rank, 0)
    elif name in _INDEXED_BY_LIST:
        for dim, index in enumerate(named["indices"][: named["self"].dim()]):
            if isinstance(index, torch.Tensor) and index.dtype not in (torch.bool, torch.uint8):
                size = named["self"].shape[dim]
                _check_bounds(name, index, size, dim, -size)
    elif name in _INDEXED_FLAT:
        size = named["self"].numel()
        _check_bounds(name, named["index"], size, None, -size)
    elif name in _CLASSES:
        scores = named["self"]
        classes = scores.shape[1 if scores.dim() > 1 else 0]
        _check_bounds(name, named["target"], classes, None, 0, ignored=named["ignore_index"])


def _check_bounds(name: str, index: torch.Tensor, size: int, dim: int | None, lowest: int, ignored: int | None = None) -> None:
    from .transfers import download

    values = download(index) if index.device.type == "tpu" else index.numpy()
    wrong = (values < lowest) | (values >= size)
    if ignored is not None:
        wrong &= values != ignored
    if not wrong.any():
        return
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    op = name.removeprefix("_").removesuffix("_impl").removesuffix("_only").removesuffix("_forward")
    what = "classes" if name in _CLASSES else "elements"
    where = f"for dimension {dim} with size {size}" if dim is not None else f"for {size} {what}"
    raise IndexError(f"tpu: {op}(): index {int(values[place])} at position {place} is out of range {where}{_user_line()}")


def after(name: str, overload_name: str, program: Program, results: list[Array]) -> None:
    """Wait for an op's results, and look for NaNs in them if asked to."""
    for array in results:
        try:
            array.block_until_ready()
        except RuntimeError as error:
            raise explain(error, f"{program}{_user_line()}", program.device) from error
    if not _check_nans:
        return
    for array in results:
        if np.dtype(array.dtype).kind not in "fcV":
            continue
        values = np.asarray(array)
        values = values.astype(np.float32) if values.dtype.kind == "V" else values
        if not np.isfinite(values).all():
            kind = "NaN" if np.isnan(values).any() else "infinity"
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise FloatingPointError(f"tpu: {program} made the first {kind}, at position {place}{_user_line()}")


def _user_line() -> str:
    """Where in the user's code the op was called, if Python is on the stack."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_NOT_USER):
            return f"\n  at {frame.filename}:{frame.lineno}: {frame.line}"
    return ""


__all__ = ["after", "before", "debug_nans_enabled", "set_debug_nans"]
