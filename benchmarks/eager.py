"""Eager mode against raw JAX and against PyTorch on the CPU: ``python -m benchmarks.eager [--check]``."""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import torch
from torch import nn

from .timing import Row, best, microseconds, print_table

DEVICE = torch.device("tpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure is not reached")
    parser.add_argument("--new-signatures", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.new_signatures:
        print(time_new_signatures())
        return
    print(f"torch_tpu on {torch.tpu.get_device_name()}; ratios of minima over interleaved repeats")
    rows = [row for benchmark in BENCHMARKS for row in benchmark()]
    print_table(rows)
    if options.check and not all(row.reached for row in rows):
        raise SystemExit(1)


def small_add() -> Iterator[Row]:
    """A cached 8×8 add, against the same add as a bare ``jax.jit`` call and as the executable call that jit ends in."""
    from torch_tpu.runtime.executables import ArrayType, compile_program

    a, b = torch.rand(8, 8), torch.rand(8, 8)
    x, y = a.to(DEVICE), b.to(DEVICE)
    raw_x, raw_y = torch.tpu.to_jax(x), torch.tpu.to_jax(y)
    add = jax.jit(lambda p, q: p + q)
    kind = ArrayType(raw_x.shape, raw_x.dtype)
    executable = compile_program(lambda p, q: (p + q,), [kind, kind], device=0)
    seconds = best(
        {
            "tpu": lambda: x + y,
            "jit": lambda: add(raw_x, raw_y),
            "jaxlib": lambda: executable([raw_x, raw_y]),
            "cpu": lambda: a + b,
        },
        calls=200,
        repeats=200,
        between=lambda: (torch.tpu.synchronize(), add(raw_x, raw_y).block_until_ready()),
    )
    tpu, jit, jaxlib = seconds["tpu"], seconds["jit"], seconds["jaxlib"]
    detail = f"{microseconds(tpu)}; jit {microseconds(jit)}, torch CPU {microseconds(seconds['cpu'])}"
    yield Row("cached 8×8 add, strict / jax.jit call", tpu / jit, 1.6, detail)
    own = tpu - jaxlib
    detail = f"{microseconds(own)}; jaxlib's call {microseconds(jaxlib)}"
    yield Row("  our own share of it / jax.jit call", own / jit, 0.5, detail)


def views_and_empty() -> Iterator[Row]:
    """Metadata-only work, against the same on the CPU."""
    on_cpu = torch.rand(64, 64)
    on_tpu = on_cpu.to(DEVICE)
    pairs: dict[str, tuple[float, Callable[[], object], Callable[[], object]]] = {
        "slice": (1.5, lambda: on_tpu[8:24], lambda: on_cpu[8:24]),
        "transpose": (1.5, lambda: on_tpu.transpose(0, 1), lambda: on_cpu.transpose(0, 1)),
        "torch.empty": (2.0, lambda: torch.empty(8, 8, device=DEVICE), lambda: torch.empty(8, 8, device="cpu")),
    }
    for name, (bound, tpu, cpu) in pairs.items():
        seconds = best({"tpu": tpu, "cpu": cpu}, calls=500, repeats=200, between=torch.tpu.synchronize)
        detail = f"{microseconds(seconds['tpu'])}; torch CPU {microseconds(seconds['cpu'])}"
        yield Row(f"{name} / torch CPU", seconds["tpu"] / seconds["cpu"], bound, detail)


def partial_write() -> Iterator[Row]:
    """Adding to a part of a 64 MB tensor, at another place each time; each call is waited for.

    Rows lie together, so they are compared with the same op on a tensor of just those rows. A column is spread over all of
    the tensor's memory, so it is compared with PyTorch on the CPU, which walks the same way.
    """
    whole, on_cpu = torch.zeros(4096, 4096, device=DEVICE), torch.zeros(4096, 4096)
    rows = torch.zeros(64, 4096, device=DEVICE)

    def at_changing_places(write: Callable[[int], object], step: int) -> Callable[[], None]:
        places = itertools.cycle(range(0, 4096, step))

        def program() -> None:
            write(next(places))
            torch.tpu.synchronize()

        return program

    programs = {
        "rows": at_changing_places(lambda i: whole[i : i + 64].add_(1), 64),
        "rows alone": at_changing_places(lambda i: rows.add_(1), 64),
        "column": at_changing_places(lambda i: whole[:, i].add_(1), 1),
        "column on the CPU": at_changing_places(lambda i: on_cpu[:, i].add_(1), 1),
    }
    seconds = best(programs, calls=20, repeats=100, between=torch.tpu.synchronize)
    for part, other in (("rows", "rows alone"), ("column", "column on the CPU")):
        detail = f"{microseconds(seconds[part])}; {other} {microseconds(seconds[other])}"
        what = {"rows": "64 rows", "column": "a column"}[part]
        yield Row(f"write to {what} of a 64 MB tensor / {other}", seconds[part] / seconds[other], 2.0, detail)


def training_memory() -> Iterator[Row]:
    """Live buffers and resident memory after 600 training steps, against those after 100."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.rand(32, 64, device=DEVICE), torch.randint(10, (32,), device=DEVICE)

    def train(steps: int) -> tuple[int, int]:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.tpu.synchronize()
        return torch.tpu.memory_allocated(), resident_bytes()

    live_early, resident_early = train(100)
    live_late, resident_late = train(500)
    yield Row("600 training steps: live bytes / those after 100", live_late / live_early, 1.0, f"{live_late:,} bytes")
    ratio = resident_late / resident_early
    yield Row("600 training steps: resident memory / that after 100", ratio, 1.02, f"{resident_late / 2**20:.0f} MiB")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def disk_cache() -> Iterator[Row]:
    """The first call of each of a few dozen signatures in a fresh process: compiled, and out of the disk cache."""
    compiled = warm = float("inf")
    for _ in range(3):
        with tempfile.TemporaryDirectory() as directory:
            compiled = min(compiled, in_fresh_process(directory))
            warm = min(warm, in_fresh_process(directory))
    detail = f"{1e3 * warm:.1f} ms a signature; compiling {1e3 * compiled:.1f} ms"
    yield Row("new signature: compiling / warm disk cache", compiled / warm, 5.0, detail, at_least=True)


def in_fresh_process(cache: str) -> float:
    command = [sys.executable, "-m", "benchmarks.eager", "--new-signatures"]
    result = subprocess.run(command, env=os.environ | {"TORCH_TPU_CACHE_DIR": cache}, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr}")
    return float(result.stdout)


def time_new_signatures() -> float:
    """Seconds a signature, over operators and shapes that this process has not met."""
    operations: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x + x,
        lambda x: x @ x.T,
        lambda x: torch.softmax(x, -1),
        lambda x: nn.functional.gelu(x),
        lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
        lambda x: x.sum(0),
    ]
    inputs = [torch.rand(rows, 16).to(DEVICE) for rows in (5, 6, 7, 9)]
    (inputs[0] * 2).cpu()  # starts PJRT and imports JAX, outside the time
    start = time.perf_counter()
    for x in inputs:
        for operation in operations:
            operation(x)
    torch.tpu.synchronize()
    return (time.perf_counter() - start) / (len(inputs) * len(operations))


BENCHMARKS: list[Callable[[], Iterator[Row]]] = [small_add, views_and_empty, partial_write, training_memory, disk_cache]

if __name__ == "__main__":
    main()
