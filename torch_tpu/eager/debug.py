"""Debug mode: every op is waited for, indices are checked against their bounds, and NaNs can be caught where they are made."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import torch
from jax import Array


from .programs import Program, overload_named

_check_nans = False


def set_debug_nans(on: bool) -> None:
    """Whether debug mode stops at the op that makes the first NaN or infinity."""
    global _check_nans
    _check_nans = bool(on)


def debug_nans_enabled() -> bool:
    return _check_nans


# Overload name → (argument with the indices, argument indexed, argument with the dimension; None: dimension 0).
_INDEXED = {
    "aten::gather": ("index", "self", "dim"),
    "aten::index_select": ("index", "self", "dim"),
    "aten::embedding": ("indices", "weight", None),
    "aten::scatter": ("index", "self", "dim"),
    "aten::scatter_": ("index", "self", "dim"),
    "aten::scatter_add": ("index", "self", "dim"),
    "aten::scatter_add_": ("index", "self", "dim"),
    "aten::scatter_reduce": ("index", "self", "dim"),
    "aten::scatter_reduce_": ("index", "self", "dim"),
    "aten::index_add": ("index", "self", "dim"),
    "aten::index_add_": ("index", "self", "dim"),
    "aten::index_copy": ("index", "self", "dim"),
    "aten::index_copy_": ("index", "self", "dim"),
    "aten::index_fill": ("index", "self", "dim"),
    "aten::index_fill_": ("index", "self", "dim"),
}
_NEGATIVE_ALLOWED = {"aten::index", "aten::_index_put_impl_"}


def before(name: str, overload_name: str, args: tuple[Any, ...]) -> None:
    """Check the indices of an op that is about to run; IndexError names the value, its place and the bound."""
    overload = overload_named(name, overload_name)
    named = {argument.name: value for argument, value in zip(overload._schema.arguments, args)}
    if name in _INDEXED:
        index, indexed, dim = (named.get(key) if key is not None else 0 for key in _INDEXED[name])
        size = indexed.shape[dim] if indexed.dim() else 1  # type: ignore[union-attr,index]
        _check_bounds(name, index, size, dim, 0)  # type: ignore[arg-type]
    elif name in _NEGATIVE_ALLOWED:
        for dim, index in enumerate(named["indices"]):
            if isinstance(index, torch.Tensor) and not index.dtype == torch.bool:
                size = named["self"].shape[dim]
                _check_bounds(name, index, size, dim, -size)
    elif name in ("aten::nll_loss_forward", "aten::nll_loss2d_forward"):
        scores = named["self"]
        classes = scores.shape[1 if scores.dim() > 1 else 0]
        _check_bounds(name, named["target"], classes, None, 0, ignored=named["ignore_index"])


def _check_bounds(name: str, index: torch.Tensor, size: int, dim: int | None, lowest: int, ignored: int | None = None) -> None:
    from .transfers import download

    values = download(index)
    wrong = (values < lowest) | (values >= size)
    if ignored is not None:
        wrong &= values != ignored
    if not wrong.any():
        return
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    op = name.split("::")[1].strip("_").removesuffix("_forward")
    where = f"for dimension {dim} with size {size}" if dim is not None else f"for {size} classes"
    raise IndexError(f"tpu: {op}(): index {int(values[place])} at position {place} is out of range {where}{_user_line()}")


def after(name: str, overload_name: str, program: Program, results: list[Array]) -> None:
    """Wait for an op's results, and look for NaNs in them if asked to."""
    for array in results:
        array.block_until_ready()
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
        if "/torch/" not in frame.filename and "/torch_tpu/" not in frame.filename and not frame.filename.startswith("<"):
            return f"\n  at {frame.filename}:{frame.lineno}: {frame.line}"
    return ""


__all__ = ["after", "before", "debug_nans_enabled", "set_debug_nans"]
