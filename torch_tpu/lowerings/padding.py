"""Padding with a constant, by reflection and by replication, and its gradients.

Each dimension is padded by joining slices, never by gathering. A gradient is the linear transpose of its padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import torch
from jax import Array, lax
from jax.typing import ArrayLike

from .promotion import cast, opmath
from .table import lowers
from .views import adjoint

aten = torch.ops.aten


def pairs(padding: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    """Padding before and after each dimension; PyTorch lists the last dimension first and leaves out leading ones."""
    last_first = list(zip(padding[::2], padding[1::2]))
    return [(0, 0)] * (ndim - len(last_first)) + last_first[::-1]


@lowers(aten.constant_pad_nd.default)
def constant_pad(x: Array, padding: Sequence[int], value: ArrayLike = 0) -> Array:
    return lax.pad(x, cast(value, x.dtype), [(low, high, 0) for low, high in pairs(padding, x.ndim)])


def cropped(x: Array, dim: int, low: int, high: int) -> Array:
    """``x`` without what negative padding takes away."""
    return lax.slice_in_dim(x, max(-low, 0), x.shape[dim] - max(-high, 0), axis=dim)


def reflect(x: Array, dim: int, low: int, high: int) -> list[Array]:
    size = x.shape[dim]
    before = lax.rev(lax.slice_in_dim(x, 1, 1 + max(low, 0), axis=dim), [dim])
    after = lax.rev(lax.slice_in_dim(x, size - 1 - max(high, 0), size - 1, axis=dim), [dim])
    return [before, cropped(x, dim, low, high), after]


def replicate(x: Array, dim: int, low: int, high: int) -> list[Array]:
    size = x.shape[dim]

    def edge(index: int, count: int) -> Array:
        shape = (*x.shape[:dim], max(count, 0), *x.shape[dim + 1 :])
        return jnp.broadcast_to(lax.slice_in_dim(x, index, index + 1, axis=dim), shape)

    return [edge(0, low), cropped(x, dim, low, high), edge(size - 1, high)]


def padded(parts: Callable[[Array, int, int, int], list[Array]]) -> Callable[[Array, Sequence[int]], Array]:
    """The padding op that puts ``parts`` before and after each dimension in turn."""

    def pad(x: Array, padding: Sequence[int]) -> Array:
        for dim, (low, high) in enumerate(pairs(padding, x.ndim)):
            if low or high:
                x = lax.concatenate(parts(x, dim, low, high), dim)
        return x

    return pad


def padded_backward(pad: Callable[[Array, Sequence[int]], Array]) -> Callable[[Array, Array, Sequence[int]], Array]:
    """The gradient of ``pad``."""

    def backward(grad: Array, x: Array, padding: Sequence[int]) -> Array:
        return adjoint(lambda y: pad(y, padding), x.shape)(opmath(grad))

    return backward


_OPS = {
    padded(reflect): [
        (aten.reflection_pad1d, aten.reflection_pad1d_backward),
        (aten.reflection_pad2d, aten.reflection_pad2d_backward),
        (aten.reflection_pad3d, aten.reflection_pad3d_backward),
    ],
    padded(replicate): [
        (aten.replication_pad1d, aten.replication_pad1d_backward),
        (aten.replication_pad2d, aten.replication_pad2d_backward),
        (aten.replication_pad3d, aten.replication_pad3d_backward),
    ],
}
for _pad, _packets in _OPS.items():
    for _forward, _backward in _packets:
        lowers(_forward.default)(_pad)
        lowers(_backward.default)(padded_backward(_pad))
