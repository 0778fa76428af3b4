"""The table of lowerings: which function gives an ATen overload its meaning.

A lowering is a plain function from JAX arrays to JAX arrays. It is registered beside its definition with ``@lowers`` and
run by every mode alike (strict, debug, fused, compiled, preflight). What a lowering may rely on:

* It gets every argument of the schema in order, keyword-only ones by keyword, except those that only place or lay out the
  result (``device``, ``layout``, ``pin_memory``, ``memory_format``, ``non_blocking``, ``generator``).
* Tensors are arrays (``None`` where an optional one is absent), tensor lists are lists of arrays, ``ScalarType`` arguments
  are NumPy dtypes, symbolic ints are ints.
* A ``Scalar`` argument is a Python number when it has its default value or is named in ``static``, and otherwise a weakly
  typed 0-d array, so that a new value never makes a new executable. A ``float`` argument is a Python float unless it is
  named in ``runtime``.
* A keyword-only parameter ``key`` asks for a fresh JAX random key (the overload draws random numbers).
* A keyword-only parameter ``contiguous`` asks whether the first tensor is contiguous, for the few ops whose backward goes by that.
* It returns the schema's results that are not aliases of arguments, then the new value of each written argument in schema
  order (a list of them for a tensor list). The runner casts results to the dtypes that PyTorch's meta function gives.
* In-place and ``out=`` overloads need no lowering of their own: they run their functional overload's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload

from .dtypes import numpy_dtype

Function = TypeVar("Function", bound=Callable[..., Any])

PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"})


@dataclass(frozen=True)
class Lowering:
    """One row of the table."""

    overload: OpOverload
    function: Callable[..., Any]
    static: frozenset[str]  # Scalar arguments whose value shapes the program
    runtime: frozenset[str]  # float arguments that are nevertheless passed at run time
    writes: tuple[str, ...]  # arguments that the overload writes, whether or not its schema says so
    random: bool  # whether ``function`` takes ``key``
    layout: bool  # whether ``function`` takes ``contiguous``


TABLE: dict[OpOverload, Lowering] = {}


def written_arguments(overload: OpOverload) -> tuple[str, ...]:
    """The names of the arguments that the schema of ``overload`` marks as written, in schema order."""
    return tuple(a.name for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


def lowers(
    *overloads: OpOverload, static: Iterable[str] = (), runtime: Iterable[str] = (), writes: Iterable[str] = ()
) -> Callable[[Function], Function]:
    """Register the decorated function as the lowering of ``overloads``.

    ``static`` names Scalar arguments that must be known when the program is built, ``runtime`` names ``float`` arguments
    that change from call to call, ``writes`` names arguments that are written although the schema is silent about it.
    ValueError if an overload has a lowering already or an argument of that name does not exist.
    """

    def register(function: Function) -> Function:
        asked = {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
        for overload in overloads:
            if overload in TABLE:
                raise ValueError(f"{overload} has two lowerings: {TABLE[overload].function} and {function}")
            names = {a.name for a in overload._schema.arguments}
            unknown = (set(static) | set(runtime) | set(writes)) - names
            if unknown:
                raise ValueError(f"{overload} has no argument {', '.join(sorted(unknown))}; it has {sorted(names)}")
            written = written_arguments(overload)
            TABLE[overload] = Lowering(
                overload,
                function,
                frozenset(static),
                frozenset(runtime),
                written + tuple(name for name in writes if name not in written),
                "key" in asked,
                "contiguous" in asked,
            )
        return function

    return register


def bind(overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments for the lowering of ``overload``, out of those of a call of the overload.

    Defaults are filled in, placement arguments dropped, and dtypes turned into NumPy's.
    """
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for i, argument in enumerate(overload._schema.arguments):
        if argument.name in PLACEMENT or argument.is_out:
            continue
        value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
        if isinstance(value, torch.dtype):
            value = numpy_dtype(value)
        if argument.kwarg_only:
            keyword[argument.name] = value
        else:
            positional.append(value)
    return positional, keyword


def _same_arguments(functional: OpOverload, variant: OpOverload) -> bool:
    def kept(overload: OpOverload) -> list[str]:
        return [a.name for a in overload._schema.arguments if not a.is_out and a.name not in PLACEMENT and a.name != "dtype"]

    return kept(functional) == kept(variant)


@functools.cache
def functional_of(overload: OpOverload) -> OpOverload | None:
    """The functional overload with the meaning of an in-place or ``out=`` one; itself if it writes nothing; None if none.

    ``add_.Tensor`` → ``add.Tensor``; ``add.out`` → ``add.Tensor``; ``normal_.default`` → ``normal_functional.default``.
    """
    if not overload._schema.is_mutable or overload in TABLE:
        return overload
    namespace, name = overload._schema.name.split("::")
    has_out = any(a.is_out for a in overload._schema.arguments)
    candidates = [name] if has_out else [name.rstrip("_"), name.rstrip("_") + "_functional", name + "functional"]
    for candidate in candidates:
        packet = getattr(getattr(torch.ops, namespace), candidate, None)
        if packet is None:
            continue
        overloads = [getattr(packet, o) for o in packet.overloads()]
        overloads.sort(key=lambda o: o._overloadname != overload._overloadname)
        for functional in overloads:
            if not functional._schema.is_mutable and _same_arguments(functional, overload):
                return functional
    return None
