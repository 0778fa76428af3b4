"""Check lowerings against PyTorch on CPU, with no device involved.

A dispatch mode watches an ordinary CPU program; for each ATen overload that the program reaches and that has a lowering,
the lowering is run on the same inputs and compared with what the CPU kernel returned. Driven by PyTorch's OpInfo samples:

    python -m tests.lowering_check softmax nn.functional.gelu --dtypes float32 bfloat16 --backward
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import traceback
import warnings
from typing import Any

import jax
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from torch_tpu.lowerings import TABLE, bind, functional_of
from torch_tpu.lowerings.dtypes import numpy_dtype

INTEGER_VIEW = {1: torch.uint8, 2: torch.int16}


def to_numpy(t: torch.Tensor) -> np.ndarray:
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    dtype = numpy_dtype(t.dtype)
    if dtype.kind == "V" or dtype.name.startswith(("bfloat", "float8")):
        return t.view(INTEGER_VIEW[t.element_size()]).numpy().view(dtype).copy()
    return t.numpy().copy()


def to_torch(a: Any, dtype: torch.dtype) -> torch.Tensor:
    a = np.array(a)
    wanted = numpy_dtype(dtype)
    if a.dtype != wanted:
        with np.errstate(all="ignore"):
            a = (a != 0) if wanted.kind == "b" else (a.real if a.dtype.kind == "c" and wanted.kind != "c" else a).astype(wanted)
    if wanted.kind == "V" or wanted.name.startswith(("bfloat", "float8")):
        return torch.from_numpy(a.view({1: np.uint8, 2: np.int16}[wanted.itemsize])).view(dtype)
    return torch.from_numpy(a)


class LoweringCheck(TorchDispatchMode):
    """Compares every lowered op that runs under it with the CPU's result; ``failures`` and ``checked`` tell the outcome."""

    def __init__(self, only: set[str] | None = None) -> None:
        super().__init__()
        self.only = only
        self.failures: list[str] = []
        self.checked: collections.Counter[str] = collections.Counter()
        self.missing: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        functional = functional_of(func)
        lowering = TABLE.get(functional) if functional is not None else None
        if lowering is None:
            self.missing[str(func)] += 1
            return func(*args, **kwargs)
        if lowering.random or (self.only and str(functional) not in self.only):
            return func(*args, **kwargs)
        # Inputs are copied before the op runs: it may write them.
        before_args, before_kwargs = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))
        result = func(*args, **kwargs)
        if torch._C._dispatch_keys is None:
            return result
        written = [
            args[i] if i < len(args) else kwargs.get(a.name)
            for i, a in enumerate(func._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        if func._schema.is_mutable:
            expected = written
        else:
            expected = list(result) if isinstance(result, (tuple, list)) else [result]
        if not func._schema.is_mutable and lowering.writes:  # e.g. running statistics
            names = [a.name for a in func._schema.arguments]
            expected = expected + [args[names.index(n)] if names.index(n) < len(args) else kwargs.get(n) for n in lowering.writes]
        expected = [x for x in tree_flatten(expected)[0] if isinstance(x, torch.Tensor)]
        label = f"{functional}({', '.join(describe(x) for x in tree_flatten((before_args, before_kwargs))[0])})"
        self.checked[str(functional)] += 1
        try:
            with jax.enable_x64(True):
                got = run_lowering(functional, before_args, before_kwargs)
            got = [x for x in tree_flatten(got)[0] if x is not None]
            assert len(got) == len(expected), f"{len(got)} results, expected {len(expected)}"
            for g, e in zip(got, expected):
                assert tuple(np.shape(g)) == tuple(e.shape), f"shape {np.shape(g)}, expected {tuple(e.shape)}"
                e = e.detach().resolve_conj().resolve_neg()
                tolerance = {torch.bfloat16: (1.6e-2, 1e-2), torch.float16: (2e-3, 2e-3), torch.float32: (1e-4, 2e-5)}.get(e.dtype)
                kw = {"rtol": tolerance[0], "atol": tolerance[1]} if tolerance else {}
                torch.testing.assert_close(to_torch(g, e.dtype), e, equal_nan=True, check_stride=False, **kw)
        except Exception as error:
            text = "".join(traceback.format_exception_only(error)).strip()
            self.failures.append(f"{label}: {text}")
        return result


def describe(x: Any) -> str:
    return f"{str(x.dtype)[6:]}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)


def run_lowering(functional: Any, args: Any, kwargs: Any) -> Any:
    """Run the lowering of ``functional`` under jit, as the device does: tensors and Scalars are run-time arguments."""
    lowering = TABLE[functional]
    schema = functional._schema
    arrays: list[Any] = []

    def runtime(x: Any, scalar: bool = False) -> Any:
        if isinstance(x, torch.Tensor):
            arrays.append(to_numpy(x))
        elif scalar and isinstance(x, (bool, int, float, complex)):
            arrays.append(x)
        else:
            return x
        return Slot(len(arrays) - 1)

    def convert(value: Any, argument: Any) -> Any:
        kind = str(argument.type)
        is_scalar = ("number" in kind or "Scalar" in kind) and argument.name not in lowering.static
        is_scalar = is_scalar or argument.name in lowering.runtime
        if is_scalar and argument.has_default_value() and value == argument.default_value:
            is_scalar = False
        return tree_map(lambda x: runtime(x, is_scalar), value)

    by_name = {a.name: a for a in schema.arguments}
    slots_args = tuple(convert(v, a) for v, a in zip(args, schema.arguments))
    slots_kwargs = {k: convert(v, by_name[k]) for k, v in kwargs.items() if k in by_name}
    positional, keyword = bind(functional, slots_args, slots_kwargs)

    def body(values: list[Any]) -> Any:
        fill = lambda x: values[x.index] if isinstance(x, Slot) else x  # noqa: E731
        p, k = tree_map(fill, (positional, keyword))
        return lowering.function(*p, **k)

    return jax.jit(body)(arrays)


class Slot:
    def __init__(self, index: int) -> None:
        self.index = index


def check_opinfo(op: Any, dtype: torch.dtype, check: LoweringCheck, backward: bool, most: int) -> None:
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=backward and dtype.is_floating_point | dtype.is_complex))
    step = max(1, len(samples) // most)
    for sample in samples[::step][:most]:
        with contextlib.suppress(NotImplementedError), check:
            out = op(sample.input, *sample.args, **sample.kwargs)
            outs = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
            if backward and outs:
                grads = [torch.randn_like(x) for x in outs]
                torch.autograd.backward(outs, grads)


def main() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="OpInfo names; none: all")
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--samples", type=int, default=8, help="samples an OpInfo and dtype, spread over all")
    parser.add_argument("--only", nargs="*", help="check just these overloads, e.g. aten.gelu.default")
    parser.add_argument("--missing", action="store_true", help="list overloads reached that have no lowering")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    check = LoweringCheck(set(options.only) if options.only else None)
    for op in op_db:
        if options.names and op.name not in options.names:
            continue
        for name in options.dtypes:
            dtype = getattr(torch, name)
            if dtype not in op.dtypes:
                continue
            try:
                check_opinfo(op, dtype, check, options.backward, options.samples)
            except Exception as error:  # the CPU program itself failed: report it, go on with the next
                print(f"{op.name} {name}: the sample failed on CPU: {error!r}"[:300])
    for failure in check.failures:
        print("FAIL", failure[:600])
    if options.missing:
        print("missing:", dict(check.missing.most_common()))
    print(f"{sum(check.checked.values())} checks of {len(check.checked)} overloads, {len(check.failures)} failures")


if __name__ == "__main__":
    main()
