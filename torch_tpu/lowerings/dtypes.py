"""The one correspondence between PyTorch's dtypes and the NumPy dtypes that JAX uses."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

NUMPY_OF_TORCH: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(np.bool_),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
    # Two 4-bit floats in a byte: stored as the byte, as PyTorch's own element size says.
    torch.float4_e2m1fn_x2: np.dtype(np.uint8),
    # XLA has no complex number of two half floats: computed in single precision, and stored as bits (``storage_dtype``).
    torch.complex32: np.dtype(np.complex64),
}

TORCH_OF_NUMPY: dict[np.dtype, torch.dtype] = {
    numpy_dtype: torch_dtype
    for torch_dtype, numpy_dtype in NUMPY_OF_TORCH.items()
    if torch_dtype not in (torch.float4_e2m1fn_x2, torch.complex32)
}


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The NumPy dtype that ``dtype`` is computed in; TypeError for one that XLA has no counterpart of (quantized)."""
    try:
        return NUMPY_OF_TORCH[dtype]
    except KeyError:
        raise TypeError(f"tpu: dtype {dtype} has no XLA counterpart; convert the tensor to another dtype first") from None


def storage_dtype(dtype: torch.dtype) -> np.dtype:
    """The NumPy dtype of the buffers that hold ``dtype``: the one it is computed in, but for complex32."""
    return np.dtype(np.uint32) if dtype is torch.complex32 else numpy_dtype(dtype)


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The PyTorch dtype of arrays of NumPy ``dtype``; TypeError where PyTorch has none."""
    try:
        return TORCH_OF_NUMPY[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"tpu: arrays of dtype {dtype} have no PyTorch counterpart") from None
