"""DEFER_AND_FUSE against strict, PyTorch on the CPU and JAX by hand: ``python -m benchmarks.deferred [--check]``."""

from __future__ import annotations

import argparse
import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.models import GPT

from .jax_gpt import JaxTraining
from .timing import Row, best, microseconds, print_table

DEVICE = torch.device("tpu")
STRICT, FUSED = torch.tpu.EagerMode.STRICT, torch.tpu.EagerMode.DEFER_AND_FUSE
Step = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure is not reached")
    options = parser.parse_args()
    print(f"torch_tpu on {torch.tpu.get_device_name()}; ratios of minima over interleaved repeats")
    rows = [row for benchmark in (chain, training, large_gpt) for row in benchmark()]
    print_table(rows)
    if options.check and not all(row.reached for row in rows):
        raise SystemExit(1)


def chain() -> Iterator[Row]:
    """A hundred dependent adds on 8×8, recorded and run."""
    x, y = torch.rand(8, 8).to(DEVICE), torch.rand(8, 8).to(DEVICE)
    a, b = x.cpu(), y.cpu()

    def adds(p: torch.Tensor, q: torch.Tensor) -> Step:
        def run() -> None:
            z = p
            for _ in range(100):
                z = z + q
            if z.device == DEVICE or z.device.type == "tpu":
                torch.tpu.mark_step()

        return run

    with torch.no_grad():
        seconds = best(
            {"fused": in_mode(FUSED, adds(x, y)), "strict": in_mode(STRICT, adds(x, y)), "cpu": adds(a, b)},
            calls=5,
            repeats=100,
            between=torch.tpu.synchronize,
        )
    fused = seconds["fused"] / 100
    detail = f"strict {microseconds(seconds['strict'] / 100)}, torch CPU {microseconds(seconds['cpu'] / 100)}"
    yield Row("100-op chain on 8×8: µs an op", fused * 1e6, 2.0, detail)


def in_mode(mode: torch.tpu.EagerMode, step: Step) -> Step:
    def run() -> Any:
        with torch.tpu.set_eager_mode(mode):
            return step()

    return run


# ---- training steps


class MLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(super().forward(x), y)


class CellLoop(nn.Module):
    """An LSTM cell called in a Python loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[1], 32, device=x.device)
        for each in x:
            h, c = self.cell(each, (h, c))
        return h.square().mean()


def trainer(model: nn.Module, inputs: tuple[torch.Tensor, ...], optimizer: str, read: bool = True) -> Step:
    chosen = torch.optim.AdamW(model.parameters(), lr=1e-3) if optimizer == "adamw" else torch.optim.SGD(model.parameters(), lr=1e-2)

    def step() -> float | None:
        loss = model(*inputs)
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        return loss.item() if read else None

    return step


def gpt(layers: int, width: int, length: int, batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    words = 1000
    model = GPT(words, width, max(2, width // 64), layers, length)
    return model, (torch.randint(words, (batch, length)), torch.randint(words, (batch, length)))


def workloads() -> dict[str, tuple[float, nn.Module, tuple[torch.Tensor, ...], str]]:
    torch.manual_seed(0)
    return {
        "GPT step, 2 layers, d 64, T 32, B 2, AdamW": (3.0, *gpt(2, 64, 32, 2), "adamw"),
        "MLP step, 3 layers, 64 wide, batch 32": (2.0, MLP(), (torch.randn(32, 64), torch.randn(32, 64)), "sgd"),
        "LSTM cell loop, 64 steps": (3.0, CellLoop(), (torch.randn(64, 4, 32),), "sgd"),
    }


def training() -> Iterator[Row]:
    for name, (bound, model, inputs, optimizer) in workloads().items():
        on_device = tuple(x.to(DEVICE) for x in inputs)
        steps = {
            "fused": in_mode(FUSED, trainer(copy.deepcopy(model).to(DEVICE), on_device, optimizer)),
            "strict": in_mode(STRICT, trainer(copy.deepcopy(model).to(DEVICE), on_device, optimizer)),
            "cpu": trainer(copy.deepcopy(model), inputs, optimizer),
        }
        for step in steps.values():
            for _ in range(4):
                step()
        seconds = best(steps, calls=1, repeats=60, between=torch.tpu.synchronize)
        detail = f"{microseconds(seconds['fused'])}; strict {microseconds(seconds['strict'])}, torch CPU {microseconds(seconds['cpu'])}"
        yield Row(f"{name}: strict / fused", seconds["strict"] / seconds["fused"], bound, detail, at_least=True)
        for read in (True, False):
            late = compilations_after_third_step(copy.deepcopy(model).to(DEVICE), on_device, optimizer, read)
            reading = "with loss.item()" if read else "without"
            yield Row(f"  compilations after step 3, {reading}", late, 0, "9 more steps")


def compilations_after_third_step(model: nn.Module, inputs: tuple[torch.Tensor, ...], optimizer: str, read: bool) -> int:
    step = trainer(model, inputs, optimizer, read)
    with torch.tpu.set_eager_mode(FUSED), torch.tpu.fusion_report() as report:
        for _ in range(3):
            step()
        before = report.compilations
        for _ in range(9):
            step()
        return report.compilations - before


def large_gpt() -> Iterator[Row]:
    """Bound by arithmetic: how much of the way from strict to the step written whole in JAX is gone; bytes; live memory."""
    torch.manual_seed(0)
    model, inputs = gpt(4, 256, 128, 8)
    on_device = tuple(x.to(DEVICE) for x in inputs)
    fused_model, strict_model = copy.deepcopy(model).to(DEVICE), copy.deepcopy(model).to(DEVICE)
    steps: dict[str, Step] = {
        "fused": in_mode(FUSED, trainer(fused_model, on_device, "adamw")),
        "strict": in_mode(STRICT, trainer(strict_model, on_device, "adamw")),
        "jax": JaxTraining(model, *inputs),
        "cpu": trainer(copy.deepcopy(model), inputs, "adamw"),
    }
    for step in steps.values():
        for _ in range(4):
            step()
    seconds = best(steps, calls=1, repeats=8, between=torch.tpu.synchronize)
    gap = seconds["strict"] - seconds["jax"]
    # Where strict is quicker than JAX there is no gap to close, and the row is not reached.
    closed = (seconds["strict"] - seconds["fused"]) / gap if gap > 0 else float("nan")
    detail = ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in seconds.items())
    yield Row("GPT step, 4 layers, d 256, T 128, B 8: share of the gap strict → JAX that is closed", closed, 0.8, detail, at_least=True)
    fused_bytes, strict_bytes = bytes_accessed(fused_model, on_device)
    yield Row("  bytes accessed by a step's executables: fused / strict", fused_bytes / strict_bytes, 0.67, f"{fused_bytes / 1e6:.0f} MB")
    peaks = {}
    for name, step in (("strict", steps["strict"]), ("fused", steps["fused"])):
        gc.collect()
        torch.tpu.reset_peak_memory_stats()
        start = torch.tpu.memory_allocated()
        step()
        peaks[name] = torch.tpu.max_memory_allocated() - start
    yield Row("  peak live bytes: fused / strict", peaks["fused"] / peaks["strict"], 1.0, f"{peaks['fused'] / 1e6:.1f} MB")


def bytes_accessed(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[float, float]:
    """XLA's own count for one step: its fused executables, and the same ops' executables one by one."""
    from torch_tpu import _C
    from torch_tpu.eager import engine, fusion, programs

    fused = strict = 0.0

    def counting(nodes: list[Any], leaves: list[Any], live: list[int], donated: list[int], device: int) -> Any:
        nonlocal fused, strict
        entry = fusion.fuse(nodes, leaves, live, donated, device)
        fused += cost(entry[1])
        strict += sum(cost(programs.prepare(node[0])[0]) for node in nodes)
        return entry

    _C.clear_entries()
    callbacks = engine.CALLBACKS | {"initialize": lambda: None}
    _C.setup(torch.tpu.device_count(), callbacks | {"fuse": counting})
    try:
        step = in_mode(FUSED, trainer(model, inputs, "adamw"))
        for _ in range(3):
            step()
    finally:
        _C.setup(torch.tpu.device_count(), callbacks)
    return fused, strict


def cost(execute: Any) -> float:
    return float(execute.__self__.cost_analysis()["bytes accessed"])


if __name__ == "__main__":
    main()
