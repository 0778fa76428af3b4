"""The same call on two devices: moving its arguments so that both sides see the same numbers, and comparing what comes out.

Tolerances are PyTorch's own: ``torch.testing``'s by dtype, or what an OpInfo overrides them with. A result that misses the
CPU's is held against the same computation in float64 before it counts as wrong, since the CPU rounds too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.utils._pytree import tree_leaves, tree_map

# PyTorch's comparison of CUDA with CPU over all of op_db (TestCommon.test_compare_cpu) allows this much, absolute and relative.
# Here it only tells a rounding difference, which is reported as a deviation, from a wrong result.
ACROSS_DEVICES = 1e-3

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


@dataclass(frozen=True)
class Tolerance:
    rtol: float
    atol: float


def is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def tolerance(dtype: torch.dtype, decorators: Iterable[Any] = ()) -> Tolerance:
    """PyTorch's tolerance for ``dtype``, given the decorators of an OpInfo or ModuleInfo.

    Overrides count if they are for tests of values on CPU or CUDA, not for the compilers' own (Inductor, JIT, AOTAutograd).
    """
    rtol, atol = default_tolerances(dtype)
    for decorated in decorators:
        if getattr(decorated, "cls_name", None) in _COMPILER_TESTS:
            continue
        if getattr(decorated, "device_type", None) not in (None, "cpu", "cuda"):
            continue
        for override in getattr(decorated, "decorators", [decorated]):
            if isinstance(override, toleranceOverride) and dtype in override.d:
                rtol, atol = max(rtol, override.d[dtype].rtol), max(atol, override.d[dtype].atol)
            elif isinstance(override, precisionOverride) and dtype in override.d:
                atol = max(atol, override.d[dtype])
    return Tolerance(rtol, atol)


_COMPILER_TESTS = {"TestInductorOpInfo", "TestNNCOpInfo", "TestJit", "TestEagerFusionOpInfo", "TestEagerFusionModuleInfo"}


# ---- moving


def place(x: Any, device: str) -> Any:
    """A copy on ``device`` of every tensor in ``x``, of the same geometry, aliasing aside; devices in ``x`` become ``device``."""
    return tree_map(lambda leaf: _place_leaf(leaf, device), x)


def _place_leaf(leaf: Any, device: str) -> Any:
    if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf in ("cpu", "tpu", "tpu:0")):
        return torch.device(device)
    if isinstance(leaf, torch.Generator):
        return torch.Generator(device).manual_seed(leaf.initial_seed())
    if not isinstance(leaf, torch.Tensor) or leaf.device.type == "meta":
        return leaf
    placed = _copy(leaf.detach(), device)
    if isinstance(leaf, torch.nn.Parameter):
        return torch.nn.Parameter(placed, leaf.requires_grad)
    return placed.requires_grad_(leaf.requires_grad)


def _copy(x: torch.Tensor, device: str) -> torch.Tensor:
    if x.layout is not torch.strided or x.is_nested:
        return x.to(device) if device != "cpu" else x.clone()
    if x.is_conj():
        return _copy(x.conj(), device).conj()
    if x.is_neg():
        return _copy(x._neg_view(), device)._neg_view()
    storage = x.untyped_storage()
    if x.numel() == 0 or (x.is_contiguous() and x.numel() * x.element_size() == storage.nbytes()):
        return x.to(device, copy=True)
    count = storage.nbytes() // x.element_size()
    flat = torch.empty(0, dtype=x.dtype, device=x.device).set_(storage, 0, (count,), (1,))
    return flat.to(device, copy=True).as_strided(x.size(), x.stride(), x.storage_offset())


def widened(x: Any) -> Any:
    """``x`` with its floats in double precision."""

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return WIDER.get(leaf, leaf)
        if isinstance(leaf, torch.Tensor) and leaf.dtype in WIDER:
            return leaf.detach().to(WIDER[leaf.dtype]).requires_grad_(leaf.requires_grad)
        return leaf

    return tree_map(widen, x)


# ---- comparing


def compare(got: Any, expected: Any, allowed: Tolerance, exact: Callable[[], Any] | None = None) -> str | None:
    """None if ``got`` (on the device) is ``expected`` (on the CPU).

    What deviates, if it is only within PyTorch's tolerance across devices; AssertionError if not even that. ``exact`` computes
    the expected values in double precision.
    """
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    assert len(ours) == len(theirs), f"{len(ours)} results, expected {len(theirs)}"
    precise: list[Any] | None = None
    deviation = None
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b), f"a result of type {type(a).__name__}, expected {type(b).__name__}"
            if isinstance(b, float):  # read from a tensor of the dtype at hand
                torch.testing.assert_close(a, b, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
            elif not isinstance(b, torch.device):
                torch.testing.assert_close(a, b, equal_nan=True)
            continue
        check_metadata(a, b)
        a = a.detach().cpu()
        b = b.detach()
        wide = Tolerance(max(allowed.rtol, default_tolerances(b.dtype)[0]), max(allowed.atol, default_tolerances(b.dtype)[1]))
        try:
            torch.testing.assert_close(a, b, rtol=wide.rtol, atol=wide.atol, equal_nan=True, check_stride=False)
            continue
        except AssertionError as error:
            failure = error
        if b.dtype not in WIDER or a.layout is not torch.strided:
            raise failure
        if exact is not None and precise is None:
            precise = _attempt(exact, len(theirs))
        if precise is not None and _as_good(a, b, precise[i].detach(), wide):
            continue
        try:
            torch.testing.assert_close(a, b, rtol=ACROSS_DEVICES, atol=ACROSS_DEVICES, equal_nan=True, check_stride=False)
        except AssertionError:
            raise failure from None
        deviation = _measured(a, b, precise[i].detach() if precise is not None else None)
    return deviation


def check_metadata(a: Any, b: torch.Tensor) -> None:
    assert isinstance(a, torch.Tensor), f"a result of type {type(a).__name__}, expected a tensor"
    assert a.shape == b.shape, f"shape {tuple(a.shape)}, expected {tuple(b.shape)}"
    assert a.dtype == b.dtype, f"dtype {a.dtype}, expected {b.dtype}"
    assert a.layout == b.layout, f"layout {a.layout}, expected {b.layout}"


def _attempt(exact: Callable[[], Any], count: int) -> list[Any] | None:
    try:
        values = tree_leaves(exact())
    except Exception:  # an op that knows no double precision, or whose dtype is an argument: no second opinion
        return None
    return values if len(values) == count else None


def _as_good(a: torch.Tensor, b: torch.Tensor, precise: Any, allowed: Tolerance) -> bool:
    """Whether ``a`` is as close to the exact values as allowed, or errs at most twice as far as the CPU at its worst."""
    if not isinstance(precise, torch.Tensor) or precise.shape != a.shape:
        return False
    rounded = precise.to(b.dtype).to(precise.dtype)
    a, b = a.to(precise.dtype), b.to(precise.dtype)
    close = torch.isclose(a, rounded, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
    ours, theirs = (a - precise).abs()[~close], (b - precise).abs()
    scale = precise.abs()
    absolute = ours.max() <= 2 * theirs.max() if ours.numel() else True
    relative = (ours / scale[~close]).max() <= 2 * (theirs / scale).max() if ours.numel() else True
    return bool(absolute) and bool(relative)


def _measured(a: torch.Tensor, b: torch.Tensor, precise: torch.Tensor | None) -> str:
    def worst(x: torch.Tensor, y: torch.Tensor) -> str:
        error = (x.to(y.dtype) - y).abs()
        return f"{error[error.isfinite()].max().item() if error.isfinite().any() else 0.0:.2g}"

    wide = WIDER[b.dtype]
    text = f"differs from CPU by {worst(a, b.to(wide))}"
    if isinstance(precise, torch.Tensor) and precise.shape == a.shape and precise.dtype == wide:
        text += f"; from float64 by {worst(a, precise)}, where CPU differs by {worst(b, precise)}"
    return text


def differ(a: Any, b: Any) -> bool:
    """Whether two runs of the same call on the CPU gave different values."""
    for x, y in zip(tree_leaves(a), tree_leaves(b)):
        if isinstance(x, torch.Tensor):
            same = x.shape == y.shape and torch.isclose(x.detach(), y.detach(), rtol=0, atol=0, equal_nan=True).all()
        else:
            same = x == y
        if not same:
            return True
    return False
