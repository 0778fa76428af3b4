"""Comparisons and logic: results are bools, operands meet in their common dtype."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import torch
from jax import Array
from jax.typing import ArrayLike

from .promotion import promote
from .table import lowers

aten = torch.ops.aten


def comparison(function: Callable[[Array, Array], Array]) -> Callable[[ArrayLike, ArrayLike], Array]:
    """The rule that compares in the common dtype: a Python number is first rounded to it, as in PyTorch."""

    def rule(x: ArrayLike, y: ArrayLike) -> Array:
        return function(*promote(x, y))

    return rule


for _packet, _function in {
    aten.eq: jnp.equal,
    aten.ne: jnp.not_equal,
    aten.lt: jnp.less,
    aten.le: jnp.less_equal,
    aten.gt: jnp.greater,
    aten.ge: jnp.greater_equal,
}.items():
    lowers(_packet.Tensor, _packet.Scalar)(comparison(_function))


def logical(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The rule of a connective: any value but zero is true, NaN too; operands keep their own dtypes."""

    def rule(x: Array, y: Array) -> Array:
        return function(jnp.asarray(x) != 0, jnp.asarray(y) != 0)

    return rule


for _overload, _function in {
    aten.logical_and.default: jnp.logical_and,
    aten.logical_or.default: jnp.logical_or,
    aten.logical_xor.default: jnp.logical_xor,
}.items():
    lowers(_overload)(logical(_function))


@lowers(aten.logical_not.default)
def logical_not(x: Array) -> Array:
    return x == 0
