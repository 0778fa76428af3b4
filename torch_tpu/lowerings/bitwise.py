"""Bitwise connectives and shifts of integers and bools."""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import Array, lax

from .elementwise import binary
from .table import lowers

aten = torch.ops.aten

for _packet, _function in {
    aten.bitwise_and: jnp.bitwise_and,
    aten.bitwise_or: jnp.bitwise_or,
    aten.bitwise_xor: jnp.bitwise_xor,
}.items():
    lowers(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(binary(_function))


@lowers(aten.bitwise_not.default)
def bitwise_not(x: Array) -> Array:
    return ~x


# XLA and PyTorch agree on shifts by a negative amount or by the width and more: 0, and the sign to the right.
def shift_left(x: Array, amount: Array) -> Array:
    return lax.shift_left(*jnp.broadcast_arrays(x, amount))


def shift_right(x: Array, amount: Array) -> Array:
    x, amount = jnp.broadcast_arrays(x, amount)
    return lax.shift_right_logical(x, amount) if x.dtype.kind == "u" else lax.shift_right_arithmetic(x, amount)


for _named, _dunder, _shift in (
    (aten.bitwise_left_shift, aten.__lshift__, shift_left),
    (aten.bitwise_right_shift, aten.__rshift__, shift_right),
):
    _overloads = (_named.Tensor, _named.Tensor_Scalar, _named.Scalar_Tensor, _dunder.Tensor, _dunder.Scalar)
    lowers(*_overloads)(binary(_shift))
