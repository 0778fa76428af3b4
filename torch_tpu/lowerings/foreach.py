"""Ops on lists of tensors: what the single-tensor op gives for each, in one program.

Optimizers call these on all parameters at once. A list op has no meaning of its own, so its rule is made from the lowering of
the single op, which it looks up in the table when traced: families may be imported in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch
from jax import Array
from torch._ops import OpOverload

from .promotion import opmath
from .table import TABLE, lowers

aten = torch.ops.aten
Rule = Callable[..., list[Array]]


def for_each(single: OpOverload) -> Rule:
    """The rule that runs ``single`` once for every position of the list arguments, and passes on the other arguments."""
    parameters = single._schema.arguments

    def rule(*arguments: Any, **keywords: Any) -> list[Array]:
        count = len(next(a for a in arguments if isinstance(a, (list, tuple))))
        return [at(i, arguments, keywords) for i in range(count)]

    def at(i: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Array:
        values = [a[i] if isinstance(a, (list, tuple)) else a for a in arguments]
        positional = [v for v, p in zip(values, parameters) if not p.kwarg_only]
        # A list op takes by position some of what the single op takes by name, such as ``value`` of addcmul.
        named = {p.name: v for v, p in zip(values, parameters) if p.kwarg_only}
        return TABLE[single].function(*positional, **named, **keywords)

    return rule


_UNARY = (
    "abs acos asin atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 max neg reciprocal "
    "round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero"
)
for _name in _UNARY.split():
    lowers(getattr(aten, f"_foreach_{_name}").default)(for_each(getattr(aten, _name).default))

# List op → the single ops for a tensor and for a number on the right. As in PyTorch, maximum and minimum are clamps.
_BINARY = {
    "add": (aten.add.Tensor, aten.add.Scalar),
    "sub": (aten.sub.Tensor, aten.sub.Scalar),
    "mul": (aten.mul.Tensor, aten.mul.Scalar),
    "div": (aten.div.Tensor, aten.div.Scalar),
    "clamp_max": (aten.clamp_max.Tensor, aten.clamp_max.default),
    "clamp_min": (aten.clamp_min.Tensor, aten.clamp_min.default),
    "maximum": (aten.clamp_min.Tensor, aten.clamp_min.default),
    "minimum": (aten.clamp_max.Tensor, aten.clamp_max.default),
    "pow": (aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar),
    "lerp": (aten.lerp.Tensor, aten.lerp.Scalar),
    "addcmul": (None, aten.addcmul.default),
    "addcdiv": (None, aten.addcdiv.default),
}
_RIGHT_HAND_SIDES = {"List": 0, "Tensor": 0, "Scalar": 1, "ScalarList": 1}
for _name, _singles in _BINARY.items():
    _packet = getattr(aten, f"_foreach_{_name}")
    for _kind in set(_packet.overloads()) & set(_RIGHT_HAND_SIDES):
        _single = _singles[_RIGHT_HAND_SIDES[_kind]]
        if _single is not None:
            # A known exponent makes a product of few factors.
            _static = ["exponent"] if _single is aten.pow.Tensor_Scalar else []
            lowers(getattr(_packet, _kind), static=_static)(for_each(_single))

lowers(aten._foreach_pow.ScalarAndTensor)(for_each(aten.pow.Scalar))
lowers(aten._foreach_mm.default)(for_each(aten.mm.default))
lowers(aten._foreach_copy.default)(for_each(aten.copy.default))


def with_factors(single: OpOverload) -> Rule:
    """As ``for_each``, where the factors are the elements of one tensor, to be taken as numbers and not to promote."""

    def rule(xs: list[Array], ys: list[Array], zs: list[Array], factors: Array) -> list[Array]:
        values = [factors[i].astype(opmath(x).dtype) for i, x in enumerate(xs)]
        return for_each(single)(xs, ys, zs, values)

    return rule


lowers(aten._foreach_addcmul.Tensor)(with_factors(aten.addcmul.default))
lowers(aten._foreach_addcdiv.Tensor)(with_factors(aten.addcdiv.default))


@lowers(aten._foreach_norm.Scalar, static=["ord"])
def norm(xs: list[Array], ord: float = 2, dtype: Any = None) -> list[Array]:
    vector_norm = TABLE[aten.linalg_vector_norm.default].function
    return [vector_norm(x, ord, None, False, dtype=dtype) for x in xs]


@lowers(aten._foreach_powsum.Scalar, static=["ord"])
def powsum(xs: list[Array], ord: float = 2, dtype: Any = None) -> list[Array]:
    """Sums of the ``ord``-th powers of magnitudes: norms before the root."""

    def total(x: Array) -> Array:
        x = opmath(x if dtype is None else x.astype(dtype))
        return jnp.sum(jnp.abs(x) ** ord)

    return [total(x) for x in xs]
