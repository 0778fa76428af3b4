"""Running an op on the CPU: only when asked for (``torch.tpu.cpu_fallback``), with a warning per op, and counted."""

from __future__ import annotations

import collections
import logging
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

log = logging.getLogger(__name__)

counts: collections.Counter[str] = collections.Counter()
_enabled = False


def enabled() -> bool:
    return _enabled


def set_enabled(on: bool) -> None:
    global _enabled
    _enabled = bool(on)


def run_on_cpu(overload: OpOverload, *args: Any) -> Any:
    """Copy the arguments to the host, run the CPU kernel, copy results and written arguments back."""
    name = str(overload)
    if not counts[name]:
        log.warning("tpu: %s runs on the CPU, with a copy of its arguments there and back each time", name)
    counts[name] += 1
    device = next((x.device for x in _tensors(args) if x.device.type == "tpu"), torch.device("tpu"))
    host: dict[int, torch.Tensor] = {}

    def to_host(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.device.type == "tpu":
            return host.setdefault(id(x), x.cpu())
        if isinstance(x, torch.device):
            return torch.device("cpu")
        return None if isinstance(x, torch.Generator) else x

    positional, keyword = [], {}
    for argument, value in zip(overload._schema.arguments, args):
        value = tree_map(to_host, value)
        if argument.kwarg_only or argument.is_out:
            keyword[argument.name] = value
        else:
            positional.append(value)
    results = overload(*positional, **keyword)
    originals = {}
    for argument, value in zip(overload._schema.arguments, args):
        for x in _tensors((value,)):
            if id(x) in host:
                originals[id(host[id(x)])] = x
        if argument.alias_info is not None and argument.alias_info.is_write:
            for x in _tensors((value,)):
                computed = host[id(x)]
                if x.shape != computed.shape:
                    x.resize_(computed.shape)
                x.copy_(computed)

    def to_device(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return originals[id(x)] if id(x) in originals else x.to(device)

    return tree_map(to_device, results)


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_flatten(args)[0] if isinstance(x, torch.Tensor)]
