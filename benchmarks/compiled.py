"""Compiled graphs and whole training steps against JAX by hand and strict eager: ``python -m benchmarks.compiled [--check]``."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch

from tests.models import GPT

from .jax_gpt import JaxTraining
from .timing import Row, best, microseconds, print_table

DEVICE = torch.device("tpu")
Step = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure is not reached")
    options = parser.parse_args()
    print(f"torch_tpu on {torch.tpu.get_device_name()}; ratios of minima over interleaved repeats")
    rows = [row for benchmark in (call_overhead, launch_bound_training, large_training) for row in benchmark()]
    print_table(rows)
    if options.check and not all(row.reached for row in rows):
        raise SystemExit(1)


def call_overhead() -> Iterator[Row]:
    """What a call of a compiled function costs beside its work, for few and for many arguments."""
    for count in (1, 50):
        tensors = [torch.randn(4, 4).to(DEVICE) for _ in range(count)]
        arrays = [torch.tpu.to_jax(each) for each in tensors]

        def add(*xs: Any) -> list[Any]:
            return [x + 1 for x in xs]

        compiled, jitted = torch.compile(add, backend="tpu", fullgraph=True, dynamic=False), jax.jit(add)
        with torch.no_grad():
            programs: dict[str, Step] = {
                "ours": lambda f=compiled, xs=tensors: f(*xs),  # type: ignore[misc]
                "jax": lambda f=jitted, xs=arrays: f(*xs),  # type: ignore[misc]
            }
            seconds = best(programs, calls=20, repeats=60, between=torch.tpu.synchronize)
        detail = f"{microseconds(seconds['ours'])} against {microseconds(seconds['jax'])}"
        yield Row(f"call of {count} argument(s): ours / jax.jit", seconds["ours"] / seconds["jax"], 2.0, detail)


def gpt(layers: int, width: int, length: int, batch: int) -> tuple[GPT, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    words = 1000
    model = GPT(words, width, max(2, width // 64), layers, length)
    return model, (torch.randint(words, (batch, length)), torch.randint(words, (batch, length)))


def whole_step(model: GPT, inputs: tuple[torch.Tensor, ...]) -> Step:
    model = copy.deepcopy(model).to(DEVICE)
    on_device = [x.to(DEVICE) for x in inputs]
    step = torch.tpu.compiler.train_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    return finished(lambda: step(*on_device))


def by_parts(model: GPT, inputs: tuple[torch.Tensor, ...], compiled: bool) -> Step:
    """Forward and backward compiled (or not), and the optimizer eagerly."""
    model = copy.deepcopy(model).to(DEVICE)
    on_device = [x.to(DEVICE) for x in inputs]
    forward = torch.compile(model, backend="tpu", fullgraph=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        forward(*on_device).backward()
        optimizer.step()

    return finished(step)


def finished(step: Step) -> Step:
    """With the wait for all that was launched, which reading the loss is not: the update comes after it."""

    def run() -> None:
        step()
        torch.tpu.synchronize()

    return run


def launch_bound_training() -> Iterator[Row]:
    model, inputs = gpt(2, 64, 32, 2)
    steps = {
        "whole step": whole_step(model, inputs),
        "strict": by_parts(model, inputs, False),
        "jax": JaxTraining(model, *inputs),
    }
    seconds = best(steps, calls=1, repeats=40, between=torch.tpu.synchronize)
    detail = ", ".join(f"{name} {microseconds(value)}" for name, value in seconds.items())
    yield Row("GPT step, 2 layers, d 64: strict eager / whole step", seconds["strict"] / seconds["whole step"], 10.0, detail, at_least=True)


def large_training() -> Iterator[Row]:
    model, inputs = gpt(4, 256, 128, 8)
    steps = {
        "whole step": whole_step(model, inputs),
        "torch.compile": by_parts(model, inputs, True),
        "jax": JaxTraining(model, *inputs),
    }
    seconds = best(steps, calls=1, repeats=8, between=torch.tpu.synchronize)
    detail = ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in seconds.items())
    what = "GPT step, 4 layers, d 256, T 128, B 8: JAX by hand / whole step"
    yield Row(what, seconds["jax"] / seconds["whole step"], 0.97, detail, at_least=True)


if __name__ == "__main__":
    main()
