"""PyTorch's operator database on the device: what it means for an op, a dtype and a kind of check to pass.

A *case* is one OpInfo, one dtype and one kind: ``forward``, ``backward``, ``out``, ``inplace``, ``noncontiguous`` or
``errors``. Its samples are made on the CPU from a fixed seed and copied, so that both sides get the same numbers.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .comparison import check_metadata, compare, differ, is_float, place, tolerance, widened

DEVICE = "tpu"
KINDS = ("forward", "backward", "errors", "out", "inplace", "noncontiguous")
DTYPES = (
    "float32", "int64", "bool", "bfloat16", "float64", "complex64", "float16", "int32", "uint8", "complex128", "int8", "int16",
    "uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip
# Their values are whatever the memory held.
UNINITIALIZED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_",
}  # fmt: skip
# Operators that take tensors of counts or positions on the host, whatever device they compute on.
HOST_ARGUMENTS = {"tensor_split"}
# Their statistics are in single precision for half inputs, as on CUDA and as PyTorch's meta functions say; on CPU they are not.
STATISTICS = {"native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"}
# Which of equal elements they name is left open by PyTorch; the position of ``dim`` among their arguments.
TIES = {"topk": 1, "kthvalue": 1, "sort": 0, "argsort": 0}


@dataclass(frozen=True)
class Case:
    """One line of the table. ``suite`` is ``op``, ``module`` or ``optimizer``; ``dtype`` is empty where it plays no part."""

    suite: str
    name: str
    dtype: str
    kind: str


@dataclass
class Outcome:
    """What came of a case. ``status``: passed, deviates (within PyTorch's tolerance across devices only), failed, or
    inapplicable (no sample has anything to check, or the CPU refuses them all)."""

    status: str
    cause: str = ""
    checked: int = 0
    overloads: list[str] = field(default_factory=list)


def formatted(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@functools.cache
def operators() -> dict[str, OpInfo]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {formatted(op): op for op in op_db}


def listed_dtypes(op: OpInfo, kind: str) -> list[str]:
    """The dtypes that PyTorch lists for ``op`` on CPU or CUDA (for its gradient, if that is the kind)."""
    if kind == "errors":
        return [""]
    if kind == "backward":
        if not op.supports_autograd:
            return []
        listed = set(op.supported_backward_dtypes("cpu")) | set(op.supported_backward_dtypes("cuda"))
    else:
        listed = set(op.supported_dtypes("cpu")) | set(op.supported_dtypes("cuda"))
    return [name for name in DTYPES if getattr(torch, name) in listed]


def operator_cases(op: OpInfo) -> list[Case]:
    """Every case of an operator."""
    kinds = ["forward", "noncontiguous"]
    kinds += ["backward"] if op.supports_autograd else []
    kinds += ["out"] if op.supports_out else []
    kinds += ["inplace"] if op.get_inplace() is not None else []
    kinds += ["errors"] if op.error_inputs_func is not None else []
    return [Case("op", formatted(op), dtype, kind) for kind in kinds for dtype in listed_dtypes(op, kind)]


def seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@contextlib.contextmanager
def other_seed() -> Iterator[None]:
    """Another seed than 0, also for the samples that seed by themselves."""
    plain = torch.manual_seed
    torch.manual_seed = lambda value: plain(value + 1)
    try:
        seed()
        yield
    finally:
        torch.manual_seed = plain


def run_operator_case(case: Case, most: int, smallest: bool = False) -> Outcome:
    """Check up to ``most`` samples of a case (0: all), spread over all there are; ``smallest``: the smallest that apply."""
    op = operators()[case.name]
    seed()
    warnings.simplefilter("ignore")
    if case.kind == "errors":
        return _check_errors(op)
    dtype = getattr(torch, case.dtype)
    with torch.no_grad():
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=case.kind == "backward"))
    check = {
        "forward": _check_forward,
        "backward": _check_backward,
        "out": _check_out,
        "inplace": _check_inplace,
        "noncontiguous": _check_noncontiguous,
    }[case.kind]
    outcome = Outcome("inapplicable")
    for sample in choose(samples, most, smallest):
        if smallest and outcome.checked == most:
            break
        try:
            deviation = check(op, dtype, sample)
        except Inapplicable as reason:
            outcome.cause = outcome.cause or str(reason)
            continue
        except Exception as error:
            return Outcome("failed", f"{described(error)} [{summary(sample)}]", outcome.checked)
        outcome.checked += 1
        if deviation is not None:
            outcome.status, outcome.cause = "deviates", f"{deviation} [{summary(sample)}]"
        elif outcome.status == "inapplicable":
            outcome.status, outcome.cause = "passed", ""
    if case.kind == "forward" and outcome.status != "inapplicable":
        outcome.overloads = _overloads(op, samples)
    return outcome


def choose(samples: Sequence[SampleInput], most: int, smallest: bool) -> list[SampleInput]:
    if smallest:
        return sorted(samples, key=_weight)
    if not most or len(samples) <= most:
        return list(samples)
    return [samples[i * len(samples) // most] for i in range(most)]


def _weight(sample: SampleInput) -> tuple[bool, int]:
    """Orders samples by size, those without elements last."""
    sizes = [x.numel() for x in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(x, torch.Tensor)]
    return (not sizes or min(sizes) == 0, sum(sizes))


class Inapplicable(Exception):
    """The sample has nothing to check for this kind: the CPU itself refuses it, or no gradient flows."""


def described(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    return re.sub(r"\s+", " ", text)[:400]


def summary(sample: SampleInput) -> str:
    def show(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, (list, tuple)):
            return f"[{', '.join(map(show, x))}]"
        return repr(x)

    parts = [show(sample.input), *map(show, sample.args), *(f"{k}={show(v)}" for k, v in sample.kwargs.items())]
    return ", ".join(parts)[:200]


# ---- the kinds


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, on one device."""

    input: Any
    args: Any
    kwargs: Any

    def call(self, function: Callable[..., Any], **more: Any) -> Any:
        return function(self.input, *self.args, **self.kwargs, **more)

    def leaves(self) -> list[torch.Tensor]:
        found = tree_leaves((self.input, self.args, self.kwargs))
        return [x for x in found if isinstance(x, torch.Tensor) and x.requires_grad]


def placed(op: OpInfo, sample: SampleInput, device: str) -> Arguments:
    arguments = place((sample.args, dict(sample.kwargs)), "cpu" if op.name in HOST_ARGUMENTS else device)
    return Arguments(place(sample.input, device), *arguments)


def wide(sample: SampleInput) -> Arguments:
    return Arguments(*widened((sample.input, sample.args, dict(sample.kwargs))))


def on_cpu(op: OpInfo, dtype: torch.dtype, function: Callable[[], Any], precise: Callable[[], Any]) -> Any:
    """What the CPU gives. A dtype that only CUDA lists is computed in double precision and rounded."""
    try:
        return function()
    except Exception as error:
        if dtype in op.supported_dtypes("cpu"):
            raise Inapplicable(f"CPU: {described(error)}") from error
    try:
        computed = precise()
    except Exception as error:
        raise Inapplicable(f"CPU, in double precision: {described(error)}") from error
    narrow = {torch.float64: dtype, torch.complex128: dtype}
    return torch.utils._pytree.tree_map(
        lambda x: x.to(narrow[x.dtype]) if isinstance(x, torch.Tensor) and x.dtype in narrow and is_float(dtype) else x, computed
    )


def _check_forward(op: OpInfo, dtype: torch.dtype, sample: SampleInput) -> str | None:
    return _compare_calls(op, dtype, sample, op.op, placed(op, sample, DEVICE))


def _check_noncontiguous(op: OpInfo, dtype: torch.dtype, sample: SampleInput) -> str | None:
    strided = sample.noncontiguous()
    return _compare_calls(op, dtype, sample, op.op, placed(op, strided, DEVICE))


def _compare_calls(
    op: OpInfo, dtype: torch.dtype, sample: SampleInput, function: Callable[..., Any], arguments: Arguments
) -> str | None:
    process = sample.output_process_fn_grad

    def precise() -> Any:
        return process(wide(sample).call(function))

    def run_cpu() -> Any:
        seed()
        return process(placed(op, sample, "cpu").call(function))

    expected = on_cpu(op, dtype, run_cpu, precise)
    seed()
    got = process(arguments.call(function))
    if op.name in UNINITIALIZED:
        return _same_kind(got, expected)
    if op.name in STATISTICS:
        got = [x.to(y.dtype) if x.dtype is torch.float32 else x for x, y in zip(got, expected)]
    try:
        return compare(got, expected, tolerance(dtype, op.decorators), precise)
    except AssertionError:
        if op.name in TIES and not sample.kwargs.get("stable"):
            return compare(_named(op, sample, got), _named(op, sample, expected), tolerance(dtype))
        if not _random(op, sample, function):
            raise
    # The op draws random numbers: the same seed must give the same result, another one another.
    _same_kind(got, expected)
    seed()
    again = process(placed(op, sample, DEVICE).call(function))
    compare(got, torch.utils._pytree.tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, again), tolerance(dtype))
    return None


def _named(op: OpInfo, sample: SampleInput, result: Any) -> list[Any]:
    """``result`` with its indices replaced by the elements that they name, and how many different ones there are."""
    x, place = sample.input.detach(), TIES[op.name]
    dim = sample.kwargs.get("dim", sample.args[place] if len(sample.args) > place else -1)
    results = list(result) if isinstance(result, tuple) else [result]
    indices = results[-1].cpu()
    if x.dim() == indices.dim() + 1:
        indices = indices.unsqueeze(dim)
    ordered = indices.sort(dim=dim).values if indices.dim() else indices.reshape(1)
    repeated = (ordered.diff(dim=dim if indices.dim() else 0) == 0).any()
    return [*results[:-1], x.gather(dim, indices), repeated]


def _random(op: OpInfo, sample: SampleInput, function: Callable[..., Any]) -> bool:
    """Whether the CPU's result depends on the seed."""
    results = []
    for context in (contextlib.nullcontext(), other_seed()):
        with context:
            try:
                seed()
                results.append(placed(op, sample, "cpu").call(function))
            except NotImplementedError:  # a dtype that the CPU does not know
                seed()
                results.append(place_wide(sample).call(function))
    return differ(*results)


def _same_kind(got: Any, expected: Any) -> None:
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    assert len(ours) == len(theirs), f"{len(ours)} results, expected {len(theirs)}"
    for a, b in zip(ours, theirs):
        if isinstance(b, torch.Tensor):
            check_metadata(a, b)


def _gradients(op: OpInfo, sample: SampleInput, arguments: Arguments, device: str, dtype: torch.dtype | None = None) -> list[Any]:
    seed()
    result = sample.output_process_fn_grad(arguments.call(op.op))
    outputs = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    inputs = arguments.leaves()
    if not outputs or not inputs:
        raise Inapplicable("no gradient flows")
    generator = torch.Generator().manual_seed(1)
    cotangents = []
    for x in outputs:
        value = torch.randn(x.shape, generator=generator, dtype=torch.complex128 if x.dtype.is_complex else torch.float64)
        cotangents.append(value.to(dtype or x.dtype).to(x.dtype).to(device))
    return list(torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True))


def _check_backward(op: OpInfo, dtype: torch.dtype, sample: SampleInput) -> str | None:
    def precise() -> list[Any]:
        return _gradients(op, sample, wide(sample), "cpu", dtype)

    expected = on_cpu(op, dtype, lambda: _gradients(op, sample, placed(op, sample, "cpu"), "cpu"), precise)
    got = _gradients(op, sample, placed(op, sample, DEVICE), DEVICE)
    try:
        return compare(got, expected, tolerance(dtype, op.decorators), precise)
    except AssertionError:
        if not _random(op, sample, op.op):
            raise
    _same_kind(got, expected)
    return None


def _check_out(op: OpInfo, dtype: torch.dtype, sample: SampleInput) -> str | None:
    expected = on_cpu(op, dtype, lambda: placed(op, sample, "cpu").call(op.op), lambda: wide(sample).call(op.op))
    several = isinstance(expected, (tuple, list))
    results = list(expected) if several else [expected]
    if not all(isinstance(x, torch.Tensor) for x in results):
        raise Inapplicable("its results are not tensors")
    deviation = None
    for shaped in (True, False):  # the second time they must be resized
        buffers = [torch.empty_like(x if shaped else x.flatten()[:0], device=DEVICE) for x in results]
        pointers = [x.data_ptr() for x in buffers]
        seed()
        out = (type(expected) if type(expected) is list else tuple)(buffers) if several else buffers[0]
        returned = placed(op, sample, DEVICE).call(op.op, out=out)
        for buffer, back in zip(buffers, returned if several else [returned]):
            assert back is buffer, "out= returned another tensor"
        if shaped:
            assert [x.data_ptr() for x in buffers] == pointers, "out= moved a buffer of the right shape"
        if op.name in UNINITIALIZED:
            continue
        try:
            deviation = compare(buffers, results, tolerance(dtype, op.decorators), lambda: wide(sample).call(op.op)) or deviation
        except AssertionError:
            if not _random(op, sample, op.op):
                raise
    return deviation


def _check_inplace(op: OpInfo, dtype: torch.dtype, sample: SampleInput) -> str | None:
    inplace = op.get_inplace()
    if sample.broadcasts_input:
        raise Inapplicable("the result is larger than the input")

    def run(arguments: Arguments) -> Any:
        seed()
        returned = arguments.call(inplace)
        assert returned is arguments.input, "the in-place form returned another tensor"
        return returned

    expected = on_cpu(op, dtype, lambda: run(placed(op, sample, "cpu")), lambda: run(place_wide(sample)))
    got = run(placed(op, sample, DEVICE))
    try:
        return compare(got, expected, tolerance(dtype, op.decorators), lambda: run(place_wide(sample)))
    except AssertionError:
        if not _random(op, sample, inplace):
            raise
    _same_kind(got, expected)
    return None


def place_wide(sample: SampleInput) -> Arguments:
    precise = wide(sample)
    return Arguments(*place((precise.input, precise.args, precise.kwargs), "cpu"))


def _check_errors(op: OpInfo) -> Outcome:
    """Each error input must raise the CPU's type and text on the device, or at least what OpInfo demands of every device."""
    outcome = Outcome("inapplicable")
    for error_input in op.error_inputs(DEVICE):  # made there: OpInfo has more for the CPU, which checks values at once
        sample = error_input.sample_input
        cpu = _raised(placed(op, sample, "cpu"), op)
        if cpu is None:
            continue
        ours = _raised(placed(op, sample, DEVICE), op)
        outcome.checked += 1
        same = ours is not None and type(ours) is type(cpu) and _text(ours) == _text(cpu)
        kinds = error_input.error_type if isinstance(error_input.error_type, tuple) else (error_input.error_type,)
        demanded = ours is not None and isinstance(ours, kinds) and re.search(error_input.error_regex, str(ours)) is not None
        if same or demanded:
            outcome.status = "passed" if outcome.status == "inapplicable" else outcome.status
        elif outcome.status != "failed":
            got = "nothing" if ours is None else described(ours)
            outcome.status, outcome.cause = "failed", f"raised {got[:200]}; CPU: {described(cpu)[:200]} [{summary(sample)}]"
    return outcome


def _raised(arguments: Arguments, op: OpInfo) -> Exception | None:
    try:
        result = arguments.call(op.op)
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.device.type == DEVICE:
                x.cpu()
    except Exception as error:
        return error
    return None


def _text(error: Exception) -> str:
    """The first line, with devices' names taken out."""
    lines = str(error).splitlines()
    return re.sub(r"\b(cpu|tpu:0|tpu)\b", "device", lines[0] if lines else "")


# ---- how an op is computed


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] = None
        return func(*args, **(kwargs or {}))


def _overloads(op: OpInfo, samples: list[SampleInput]) -> list[str]:
    """The ATen overloads that the first sample which the CPU accepts comes down to."""
    for sample in samples:
        arguments = placed(op, sample, "cpu")
        try:
            with _Watch() as watch:
                arguments.call(op.op)
        except Exception:
            continue
        return list(watch.seen)
    return []
