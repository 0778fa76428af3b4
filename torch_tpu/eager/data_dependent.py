"""Ops whose result's shape depends on values: one host read for the count, and work buffers of bucketed sizes, so that a new
count does not make a new executable."""

from __future__ import annotations

import torch

from .programs import python_kernel
from .transfers import item

aten = torch.ops.aten


@python_kernel(aten._local_scalar_dense.default)
def local_scalar_dense(tensor: torch.Tensor) -> bool | int | float | complex:
    return item(tensor)
