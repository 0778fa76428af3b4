"""Errors in arguments, in the CPU's words.

PyTorch's meta functions find most of what is wrong with a call, but some say it otherwise than the CPU's kernels, and some find
less. So when a new signature fails, the CPU kernel is asked with zeros of the same geometry, and its error is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

_MOST_ELEMENTS = 1 << 26  # beyond, the error is left as it is


def on_cpu(overload: OpOverload, args: Sequence[Any], ours: Exception) -> Exception:
    """What the CPU kernel raises for zeros in the place of ``args``' tensors (in schema order); ``ours`` if it raises nothing."""
    if sum(x.numel() for x in tree_leaves(args) if isinstance(x, torch.Tensor)) > _MOST_ELEMENTS:
        return ours
    positional, keyword = [], {}
    on_host = functools.cache(_on_host)  # a tensor given twice is given twice
    for argument, value in zip(overload._schema.arguments, args):
        value = tree_map(lambda x: on_host(x) if isinstance(x, _OF_DEVICE) else x, value)
        if argument.kwarg_only or argument.is_out:
            keyword[argument.name] = value
        else:
            positional.append(value)
    try:
        with torch.no_grad():
            overload(*positional, **keyword)
    except Exception as error:
        return ours if "Could not run" in str(error) else error  # no kernel of the CPU's
    return ours


_OF_DEVICE = (torch.Tensor, torch.device, torch.Generator)


def _on_host(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        # A single element's value can be what is wrong, and is cheap to read.
        return x if x.device.type == "cpu" else x.cpu() if x.numel() == 1 and x.device.type != "meta" else _zeros(x)
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return None


def _zeros(x: torch.Tensor) -> torch.Tensor:
    """Zeros on the CPU of the geometry of ``x``, in a storage as large as its own."""
    count = x.untyped_storage().nbytes() // x.element_size()
    reached = x.storage_offset() + 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()) if size)
    return torch.zeros(max(count, reached), dtype=x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())


def check_written(overload: OpOverload, args: Sequence[Any]) -> None:
    """RuntimeError, as on CPU, if a tensor to be written has elements that share their memory."""
    for argument, value in zip(overload._schema.arguments, args):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        for x in tree_leaves(value):
            if isinstance(x, torch.Tensor):
                check_no_overlap(x)


def check_no_overlap(x: torch.Tensor) -> None:
    if x.numel() and any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride())):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def check_resized(overload: OpOverload, args: Sequence[Any], after: Sequence[Any]) -> None:
    """RuntimeError if an out tensor that would change its shape is among the tensors to read."""
    named = list(zip(overload._schema.arguments, args, after))
    read = [x for argument, value, _ in named if not argument.is_out for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
    for argument, out, meta in named:
        resized = argument.is_out and isinstance(meta, torch.Tensor) and meta.shape != out.shape
        if resized and any(x.device == out.device and x.untyped_storage()._cdata == out.untyped_storage()._cdata for x in read):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
                "location. Please clone() the tensor before performing the operation."
            )


def check_copy(source: torch.Tensor, destination: torch.Tensor) -> None:
    """RuntimeError, as on CPU, if ``source`` does not broadcast to the shape of ``destination``."""
    if source.shape != destination.shape:
        torch.empty(destination.shape, device="meta").copy_(torch.empty(source.shape, device="meta"))


# ---- what the meta functions let pass: signs of it, upon which the CPU kernel is asked


def check_suspicious(overload: OpOverload, args: Sequence[Any]) -> None:
    """Raise the CPU's error for arguments that PyTorch's meta function accepts and its CPU kernel does not."""
    suspect = _SIGNS.get(overload._schema.name.removesuffix("_"))
    if suspect is None:
        return
    named = {argument.name: value for argument, value in zip(overload._schema.arguments, args)}
    if suspect(named):
        accepted = ValueError()
        error = on_cpu(overload, args, accepted)
        if error is not accepted:
            raise error


Named = dict[str, Any]


def _complex_out(named: Named) -> bool:
    return "out" in named and named["out"].dtype != named["real"].dtype.to_complex()


def _index_add(named: Named) -> bool:
    target, source, dim = named["self"], named["source"], named["dim"]
    if target.dim() != source.dim() or target.dtype != source.dtype or named["index"].dtype not in (torch.int32, torch.int64):
        return True
    return any(a != b for d, (a, b) in enumerate(zip(target.shape, source.shape)) if d != dim % max(target.dim(), 1))


def _index_put(named: Named) -> bool:
    """Another dtype, too many indices, or values that do not broadcast to what is indexed."""
    target, values = named["self"], named["values"]
    indices = [x if x is None else torch.empty(x.shape, dtype=x.dtype, device="meta") for x in named["indices"]]
    if target.dtype != values.dtype:
        return True
    if any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices):
        return False  # how much a mask selects is not known here
    try:
        indexed = torch.ops.aten.index.Tensor(torch.empty(target.shape, device="meta"), indices)
        return torch.broadcast_shapes(indexed.shape, values.shape) != indexed.shape
    except (IndexError, RuntimeError):
        return True


def _convolution(named: Named) -> bool:
    weight, bias = named["weight"], named["bias"]
    channels = weight.shape[1] * named["groups"] if named["transposed"] else weight.shape[0]
    if bias is not None and tuple(bias.shape) != (channels,):
        return True
    if named["transposed"] and max(named["output_padding"], default=0) >= max(min(named["stride"]), min(named["dilation"])):
        return True
    return min((*named["padding"], *(s - 1 for s in named["stride"])), default=0) < 0


def _sort(named: Named) -> bool:
    wrong_out = "values" in named and (named["values"].dtype != named["self"].dtype or named["indices"].dtype != torch.int64)
    return wrong_out or _any_complex(named) or _sorted_dimension(named)


def _any_complex(named: Named) -> bool:
    return any(x.dtype.is_complex for x in named.values() if isinstance(x, torch.Tensor))


def _any_float(named: Named) -> bool:
    return any(x.dtype.is_floating_point for x in named.values() if isinstance(x, torch.Tensor))


def _complex_or_truth(named: Named) -> bool:
    return named["self"].dtype.is_complex or named["self"].dtype is torch.bool


def _not_floating(named: Named) -> bool:
    return not named["self"].dtype.is_floating_point


def _integer_power(named: Named) -> bool:
    base, exponent = named["self"], named["exponent"]
    return type(exponent) is int and exponent < 0 and isinstance(base, torch.Tensor) and not _any_float(named)


def _random(named: Named) -> bool:
    """A range that is empty or that the dtype does not hold."""
    low, high = named.get("from", 0), named.get("to")
    if high is None:
        return False
    limits = None if named["self"].dtype in (torch.bool, torch.int64) or _any_float(named) else torch.iinfo(named["self"].dtype)
    return low >= high or limits is None or low < limits.min or high - 1 > limits.max


def _outside(named: Named) -> bool:
    reach = sum((size - 1) * stride for size, stride in zip(named["size"], named["stride"]))
    return (named["storage_offset"] or 0) + reach >= named["self"].numel()


def _aminmax_out(named: Named) -> bool:
    return any(named[name].dtype != named["self"].dtype for name in ("min", "max") if name in named)


def _multinomial(named: Named) -> bool:
    wrong_out = "out" in named and named["out"].dtype is not torch.int64
    return wrong_out or not named["self"].dtype.is_floating_point or not 0 < named["num_samples"] or (
        named["self"].dim() > 0 and named["self"].shape[-1] > _MOST_CATEGORIES
    )


def _bins(named: Named) -> bool:
    return len(named["bins"]) != named["self"].shape[-1]


def _mixed_dtypes(named: Named) -> bool:
    return len({x.dtype for x in named.values() if isinstance(x, torch.Tensor)}) > 1


def _targets(named: Named) -> bool:
    return named["target"].dtype not in (torch.int64, torch.uint8)


def _sorted_dimension(named: Named) -> bool:
    count = max(named["self"].dim(), 1)
    return not -count <= named.get("dim", 0) < count


_MOST_CATEGORIES = 1 << 24
_ORDERED = [
    f"aten::{name}"
    for name in (
        "amax", "amin", "aminmax", "clamp", "clamp_max", "clamp_min", "cummax", "cummin", "fmax", "fmin", "ge", "gt", "kthvalue",
        "le", "lt", "max", "maximum", "median", "min", "minimum", "nanmedian", "topk",
    )
]  # fmt: skip


_SIGNS = {
    "aten::_histogramdd_bin_edges": _bins,
    "aten::_histogramdd_from_bin_cts": _bins,
    "aten::_histogramdd_from_bin_tensors": _bins,
    "aten::addmm": _mixed_dtypes,
    "aten::addmv": _mixed_dtypes,
    "aten::binary_cross_entropy": _mixed_dtypes,
    "aten::aminmax": _aminmax_out,
    "aten::as_strided_scatter": _outside,
    "aten::complex": _complex_out,
    "aten::convolution": _convolution,
    "aten::index_add": _index_add,
    "aten::index_copy": lambda named: named["self"].dtype != named["source"].dtype,
    "aten::index_fill": lambda named: named["index"].dtype is not torch.int64,
    "aten::_index_put_impl": _index_put,
    "aten::index_put": _index_put,
    "aten::index_select": lambda named: named["index"].dim() > 1,
    "aten::masked_scatter": lambda named: named["mask"].dtype is not torch.bool,
    "aten::mm": _mixed_dtypes,
    "aten::multinomial": _multinomial,
    "aten::mv": _mixed_dtypes,
    "aten::nll_loss2d_forward": _targets,
    "aten::nll_loss_forward": _targets,
    "aten::pow": _integer_power,
    "aten::put": lambda named: named["index"].numel() != named["source"].numel(),
    "aten::random": _random,
    "aten::sort": _sort,
    "aten::uniform": lambda named: _not_floating(named) or named["from"] > named["to"],
    # Order, divisors and probabilities of what has none.
    "aten::_log_softmax": _not_floating,
    "aten::_softmax": _not_floating,
    "aten::argmax": _complex_or_truth,
    "aten::argmin": _complex_or_truth,
    "aten::fake_quantize_per_tensor_affine_cachemask": lambda n: not n["quant_min"] <= n["zero_point"] <= n["quant_max"],
    "aten::gcd": _any_float,
    "aten::lcm": _any_float,
    **dict.fromkeys(_ORDERED, _any_complex),
}
