"""How a tensor lies in its storage, for tensors that fill theirs: the order of dimensions from the slowest to the quickest."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jax import Array, lax

Shape = tuple[int, ...]


def row_major(sizes: Sequence[int]) -> Shape:
    """The strides of a contiguous tensor."""
    strides = [1] * len(sizes)
    for d in range(len(sizes) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(sizes[d + 1], 1)
    return tuple(strides)


@dataclass(frozen=True)
class Layout:
    """Sizes, strides and dtype of a tensor whose storage holds exactly its elements. Any other is read as a contiguous copy."""

    sizes: Shape
    strides: Shape
    dtype: torch.dtype

    @classmethod
    def contiguous(cls, sizes: Sequence[int], dtype: torch.dtype) -> Layout:
        return cls(tuple(sizes), row_major(sizes), dtype)

    @classmethod
    def nearest(cls, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Layout:
        """The layout of those strides if they leave no gaps and overlap nowhere, else the contiguous one."""
        asked = cls(tuple(sizes), tuple(strides), dtype)
        expected = 1
        for d in reversed(asked.order):
            if sizes[d] > 1 and strides[d] != expected:
                return cls.contiguous(sizes, dtype)
            expected *= max(sizes[d], 1)
        return asked

    @classmethod
    def ordered(cls, sizes: Sequence[int], order: Sequence[int], dtype: torch.dtype) -> Layout:
        """The layout of those sizes whose dimensions go from the slowest to the quickest in ``order``."""
        strides = dict(zip(order, row_major([sizes[d] for d in order])))
        return cls(tuple(sizes), tuple(strides[d] for d in range(len(sizes))), dtype)

    @functools.cached_property
    def order(self) -> Shape:
        """The dimensions from the slowest to the quickest."""
        return tuple(sorted(range(len(self.sizes)), key=lambda d: (-self.strides[d], d)))

    @functools.cached_property
    def base_shape(self) -> Shape:
        return tuple(self.sizes[d] for d in self.order)

    @functools.cached_property
    def plain(self) -> bool:
        """Whether the base has the shape of the tensor."""
        return self.order == tuple(range(len(self.sizes)))

    @property
    def empty(self) -> bool:
        return math.prod(self.sizes) == 0

    def to_base(self, value: Array) -> Array:
        return value if self.plain else lax.transpose(value, self.order)

    def from_base(self, base: Array) -> Array:
        return base if self.plain else lax.transpose(base, [self.order.index(d) for d in range(len(self.order))])
