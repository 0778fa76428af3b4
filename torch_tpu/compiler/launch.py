"""Running an executable on tensors.

A tensor that fills its storage enters as its base buffer, any other as a contiguous copy. An input that the graph writes gets
the new buffer as its base, made in the old one's memory (donation) where nobody else holds that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jax import Array

from .. import _C
from ..eager.modes import EagerMode
from ..eager.transfers import adopt, array_of, host_view, upload
from ..lowerings.dtypes import storage_dtype
from ..runtime import arrays
from ..runtime.failures import explain
from .layouts import Layout
from .plans import Input, Output, Plan

if TYPE_CHECKING:
    from .compiled import CompiledGraph

# References to an array that only its storage, the list of arguments here and the question itself hold.
_UNSHARED = 3


def run(graph: CompiledGraph, plan: Plan, arguments: list[Any]) -> list[Any]:
    """The results of a graph for ``arguments``, which fit ``plan``; empties the list."""
    base_of, is_whole = _C.base, _C.is_whole
    given = []
    for argument, shape, each in plan.reads:
        tensor = arguments[argument]
        base = base_of(tensor) if shape is not None else None
        if base is None or base.aval.shape != shape or not is_whole(tensor):
            base = _base(tensor, each, plan.device)
        given.append(base)
    base = None  # or it would count as shared
    donate = graph.options.donate and all(sys.getrefcount(given[position]) <= _UNSHARED for position in plan.written)
    whole = [not plan.inputs[p].host and given[p] is base_of(arguments[plan.inputs[p].argument]) for p in plan.written]
    executable = plan.executables.get(donate) or graph.executable(plan, donate)
    given.extend(graph.constants.values())
    if plan.draws:
        state = [_C.next_random(None, plan.device) for _ in range(plan.draws)][0]
        if plan.seeded:
            given.append(arrays.upload(np.array(state, np.int64), plan.device))
    try:
        results = executable.execute(given).consume_with_handlers(executable.handlers)
    except Exception as error:
        raise explain(error, f"the compiled {plan.name}", plan.device) from error
    del given
    if _C.effective_mode() == EagerMode.DEBUG.value:
        for result in results:
            arrays.wait(result)
    set_base = _C.set_base
    for position, is_base, new in zip(plan.written, whole, results[plan.fresh :]):
        each = plan.inputs[position]
        if is_base:
            set_base(arguments[each.argument], new, each.layout.dtype, each.layout.base_shape)
        else:
            _write(arguments[each.argument], each, new, plan.device)
    outputs = _outputs(plan, arguments, results)
    arguments.clear()
    return outputs


def _base(tensor: torch.Tensor, each: Input, device: int) -> Array:
    """The array that an argument enters as."""
    if each.host:
        return upload(tensor, device)
    layout = each.layout
    base = _C.base(tensor)
    if base is not None and base.shape == layout.base_shape and _fills_storage(tensor, base, each):
        return base
    array = array_of(tensor.detach())
    if _C.is_whole(tensor) and not (each.lazy and (tensor.is_conj() or tensor.is_neg())):
        # Its base has another shape: from now on this one, so that the next call finds it.
        _C.set_base(tensor, array, layout.dtype, tuple(array.shape))
    return array if layout.plain else array_of(adopt(array, layout.dtype, device).permute(layout.order))


def _fills_storage(tensor: torch.Tensor, base: Array | None, each: Input) -> bool:
    """Whether a tensor is all of its base, in the order that its layout says."""
    if each.lazy and (tensor.is_conj() or tensor.is_neg()):
        return False
    if each.layout.plain:
        return _C.is_whole(tensor)
    layout = each.layout
    return (
        base is not None
        and base.shape == layout.base_shape
        and tensor.storage_offset() == 0
        and base.dtype == storage_dtype(layout.dtype)
        and all(stride == own for stride, own, n in zip(tensor.stride(), layout.strides, layout.sizes) if n > 1)
    )


def _write(tensor: torch.Tensor, each: Input, base: Array, device: int) -> None:
    """Give an argument that entered as a copy its new value."""
    layout = each.layout
    tensor.detach().copy_(_on_host(base, layout) if each.host else _tensor(None if layout.empty else base, layout, device))


def _outputs(plan: Plan, arguments: list[Any], results: list[Array]) -> list[Any]:
    new_tensor, set_base, device = _C.new_tensor, _C.set_base, plan.device
    outputs: list[Any] = []
    for slot, sizes, strides, dtype, base_shape, each in plan.makes:
        if slot >= 0:
            tensor = new_tensor(sizes, strides, dtype, device)
            set_base(tensor, results[slot], dtype, base_shape)
            outputs.append(tensor)
        else:
            outputs.append(_other_output(each, plan, arguments, results, outputs))
    return outputs


def _other_output(each: Output, plan: Plan, arguments: list[Any], results: list[Array], outputs: list[Any]) -> Any:
    """A result that is no new tensor on the device: given back, constant, on the CPU, without elements, or made already."""
    if each.layout is None:
        return arguments[each.argument] if each.argument >= 0 else each.constant
    for earlier, output in zip(plan.outputs, outputs):
        if earlier.slot == each.slot >= 0:
            return output
    base = results[each.slot] if each.slot >= 0 else None
    return _on_host(base, each.layout) if each.host else _tensor(base, each.layout, plan.device)


def _tensor(base: Array | None, layout: Layout, device: int) -> torch.Tensor:
    tensor = _C.new_tensor(layout.sizes, layout.strides, layout.dtype, device)
    if base is not None:
        _C.set_base(tensor, base, layout.dtype, layout.base_shape)
    return tensor


def _on_host(base: Array | None, layout: Layout) -> torch.Tensor:
    tensor = torch.empty(layout.base_shape, dtype=layout.dtype)
    if base is not None:
        np.copyto(host_view(tensor), arrays.download(base), casting="no")
    return tensor.as_strided(layout.sizes, layout.strides)
