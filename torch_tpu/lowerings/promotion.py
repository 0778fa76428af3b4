"""PyTorch's type promotion, on JAX arrays.

PyTorch ranks operands in three categories: arrays with dimensions, 0-d arrays, and Python numbers. A lower category changes
the dtype only when its *kind* (bool < integer < float < complex) is higher. A Python number that reaches a lowering at run
time is a weakly typed 0-d array, one known at trace time is a plain Python number; both count as numbers here.
Rule: ``at::native::result_type`` (ATen/native/TypeProperties.cpp).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jax.typing import ArrayLike

from .dtypes import numpy_dtype, torch_dtype

Number = bool | int | float | complex


def is_number(x: object) -> bool:
    """Whether ``x`` stands for a Python number: one itself, or a weakly typed 0-d array."""
    return isinstance(x, Number) or (getattr(x, "weak_type", False) and jnp.ndim(x) == 0)  # type: ignore[arg-type]


def default_dtype() -> np.dtype:
    """The NumPy dtype of ``torch.get_default_dtype()``; a part of every signature, so reading it in a trace is sound."""
    return numpy_dtype(torch.get_default_dtype())


def _number_dtype(x: object) -> torch.dtype:
    kind = np.result_type(x).kind if isinstance(x, Number) else x.dtype.kind  # type: ignore[attr-defined]
    if kind == "b":
        return torch.bool
    if kind in "iu":
        return torch.int64
    if kind == "c":
        return torch.get_default_dtype().to_complex()
    return torch.get_default_dtype()


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def result_type(*operands: object) -> np.dtype:
    """The dtype that PyTorch computes ``operands`` (arrays or numbers) in; the same as ``torch.result_type``."""
    ranked: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        if x is None:
            continue
        category = 2 if is_number(x) else 1 if jnp.ndim(x) == 0 else 0  # type: ignore[arg-type]
        dtype = _number_dtype(x) if category == 2 else torch_dtype(x.dtype)  # type: ignore[attr-defined]
        seen = ranked[category]
        ranked[category] = dtype if seen is None else torch.promote_types(seen, dtype)
    result = _combine(_combine(ranked[0], ranked[1]), ranked[2])
    assert result is not None, "result_type() needs an operand"
    return numpy_dtype(result)


def promote(*operands: ArrayLike) -> tuple[Array, ...]:
    """``operands`` cast to their common dtype (not broadcast)."""
    dtype = result_type(*operands)
    return tuple(cast(x, dtype) for x in operands)


def promote_to_float(*operands: ArrayLike) -> tuple[Array, ...]:
    """As ``promote``, but integers and bools become the default float dtype (``sin``, ``true_divide``, ``mean`` …)."""
    dtype = result_type(*operands)
    if dtype.kind in "biu":
        dtype = default_dtype()
    return tuple(cast(x, dtype) for x in operands)


def cast(x: ArrayLike, dtype: np.dtype | type) -> Array:
    """``x`` as an array of ``dtype`` with a strong type; complex to real drops the imaginary part, as PyTorch does."""
    dtype = np.dtype(dtype)
    x = jnp.asarray(x)
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = (x != 0) if dtype.kind == "b" else x.real
    return jnp.asarray(x, dtype)


def is_half(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is a float of 16 bits or fewer, for which PyTorch accumulates in float32."""
    return dtype.kind in "fV" and dtype.itemsize <= 2


def opmath(x: Array) -> Array:
    """``x`` in the dtype that PyTorch does intermediate arithmetic in: float32 for the 16-bit and 8-bit floats."""
    return x.astype(np.float32) if is_half(x.dtype) else x


def accumulation_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which PyTorch sums ``dtype``: int64 for integers and bools, itself otherwise."""
    return np.dtype(np.int64) if dtype.kind in "biu" else dtype
