"""Matmul precision: ``torch.get_float32_matmul_precision()`` decides, with PyTorch's default of true float32."""

from __future__ import annotations

import jax
import torch

_PRECISIONS = {"highest": jax.lax.Precision.HIGHEST, "high": jax.lax.Precision.HIGH, "medium": jax.lax.Precision.DEFAULT}


def matmul_precision() -> jax.lax.Precision:
    """The precision for dots and convolutions; a part of every signature, so reading it in a trace is sound."""
    return _PRECISIONS[torch.get_float32_matmul_precision()]
