"""PyTorch's databases of operators, modules and optimizers, in full: ``python -m tests.sweep``.

Works through every case in worker processes and writes docs/operators.json and docs/operators.md. A sweep that is stopped goes
on where it was: each outcome is a line of the state file. A worker that crashes or hangs costs its case alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / "build" / "sweep.jsonl"
MOST_BYTES = 3 << 30  # of memory, after which a worker is replaced: compiled programs are kept as long as a process lives
SUITES = ("op", "module", "optimizer")

Line = dict[str, Any]
Identity = tuple[str, str, str, str]


def identity(line: Line) -> Identity:
    return line["suite"], line["name"], line["dtype"], line["kind"]


# ---- what there is to do


def all_cases(suites: Sequence[str]) -> list[Line]:
    """Every case, the most telling first: float32 before other dtypes, forward before the rest."""
    from . import module_cases, opinfo

    cases = []
    if "module" in suites:
        cases += [case for info in module_cases.modules().values() for case in module_cases.module_cases(info)]
    if "optimizer" in suites:
        cases += [case for info in module_cases.optimizers().values() for case in module_cases.optimizer_cases(info)]
    if "op" in suites:
        cases += [case for op in opinfo.operators().values() for case in opinfo.operator_cases(op)]
    order = {dtype: i for i, dtype in enumerate(("", *opinfo.DTYPES))}
    kinds = {kind: i for i, kind in enumerate(opinfo.KINDS)}
    cases.sort(key=lambda case: (order[case.dtype], kinds.get(case.kind, 0)))
    return [dataclasses.asdict(case) for case in cases]


def chosen(cases: Iterable[Line], options: argparse.Namespace) -> list[Line]:
    def wanted(case: Line) -> bool:
        name = case["name"]
        return (
            (not options.ops or name in options.ops or name.split(".")[0] in options.ops)
            and (not options.dtypes or case["dtype"] in ("", *options.dtypes))
            and (not options.kinds or case["kind"] in options.kinds)
        )

    return [case for case in cases if wanted(case)]


def read_state(path: Path) -> dict[Identity, Line]:
    """The latest outcome of each case; a line cut short by a kill is left out."""
    outcomes = {}
    if path.exists():
        for text in path.read_text().splitlines():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            outcomes[identity(line)] = line
    return outcomes


# ---- workers


def work(connection: multiprocessing.connection.Connection, samples: int) -> None:
    """Run the cases that arrive, one at a time, until None or too much memory is held."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    if not hasattr(torch, "tpu"):
        import torch_tpu

        torch_tpu._autoload()
    from . import module_cases, opinfo

    runners = {
        "op": lambda case: opinfo.run_operator_case(case, samples),
        "module": lambda case: module_cases.run_module_case(case, samples),
        "optimizer": lambda case: module_cases.run_optimizer_case(case, samples),
    }
    connection.send(None)
    while (line := connection.recv()) is not None:
        started = time.perf_counter()
        try:
            outcome = runners[line["suite"]](opinfo.Case(**line))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            outcome = opinfo.Outcome("failed", f"{opinfo.described(error)} ({Path(place.filename).name}:{place.lineno})")
        tired = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_BYTES
        seconds = round(time.perf_counter() - started, 2)
        connection.send({**line, **dataclasses.asdict(outcome), "seconds": seconds, "tired": tired})


class Worker:
    """A process that runs one case at a time."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.case: Line | None = None
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.samples), daemon=True)
        self.process.start()
        theirs.close()
        self.since = time.monotonic()
        self.ready = False

    def give(self, case: Line) -> None:
        self.case, self.since = case, time.monotonic()
        self.connection.send(case)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def replace(self) -> None:
        self.stop()
        self.case = None
        self.start()

    def failed(self, cause: str) -> Line:
        """Replace a dead or stuck process; the outcome of the case it was at."""
        case = self.case or {}
        self.replace()
        return {**case, "status": "failed", "cause": cause, "checked": 0, "overloads": [], "seconds": 0.0}


def run(cases: list[Line], options: argparse.Namespace, record: Callable[[Line], None]) -> None:
    """Run ``cases`` in ``options.workers`` processes until done or out of time; each outcome goes to ``record``."""
    deadline = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    waiting = list(reversed(cases))
    workers = [Worker(options.samples) for _ in range(min(options.workers, max(len(cases), 1)))]
    progress = Progress(len(cases))
    try:
        while (waiting or any(w.case for w in workers)) and time.monotonic() < deadline:
            for connection in multiprocessing.connection.wait([w.connection for w in workers], timeout=1.0):
                worker = next(w for w in workers if w.connection is connection)
                try:
                    line = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    worker.process.join(5)
                    if worker.case is None:
                        raise SystemExit("a worker cannot start; its error is above") from None
                    line = worker.failed(f"the process died with exit code {worker.process.exitcode}")
                    progress.step(line)
                    record(line)
                    continue
                worker.ready = True
                if line is not None:
                    worker.case = None
                    tired = line.pop("tired")
                    progress.step(line)
                    record(line)
                    if tired:
                        worker.replace()
            for worker in workers:
                if worker.case and time.monotonic() - worker.since > options.timeout:
                    line = worker.failed(f"took longer than {options.timeout:.0f} s")
                    progress.step(line)
                    record(line)
                elif worker.ready and worker.case is None and waiting:
                    worker.give(waiting.pop())
    finally:
        for worker in workers:
            worker.stop()
        progress.close()


class Progress:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.counts = total, 0, Counter[str]()
        self.started = self.shown = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def step(self, line: Line) -> None:
        self.done += 1
        self.counts[line["status"]] += 1
        now = time.monotonic()
        if now - self.shown > (0.1 if self.terminal else 30):
            self.shown = now
            self.show(f"{line['name']} {line['dtype']} {line['kind']}")

    def show(self, at: str) -> None:
        seconds = time.monotonic() - self.started
        left = seconds / self.done * (self.total - self.done) if self.done else 0.0
        filled = 30 * self.done // max(self.total, 1)
        counts = ", ".join(f"{n} {status}" for status, n in sorted(self.counts.items()))
        text = f"[{'#' * filled}{'.' * (30 - filled)}] {self.done}/{self.total} {counts}; {left / 60:.0f} min left; {at}"
        sys.stderr.write(f"\r\x1b[K{text[:160]}" if self.terminal else text + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        self.show("")
        if self.terminal:
            sys.stderr.write("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="*", help="names of operators, modules or optimizers; without: all")
    parser.add_argument("--dtypes", nargs="*")
    parser.add_argument("--kinds", nargs="*", help="forward, backward, out, …; or an optimizer's way to run")
    parser.add_argument("--suites", nargs="*", default=SUITES, choices=SUITES)
    parser.add_argument("--samples", type=int, default=0, help="samples a case, spread over all there are (0: all)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=0, help="stop after this long; the next sweep goes on from there")
    parser.add_argument("--timeout", type=float, default=240, help="seconds after which a case counts as hung")
    parser.add_argument("--again", choices=("failed", "all"), help="run cases again that have an outcome")
    parser.add_argument("--state", type=Path, default=STATE)
    options = parser.parse_args()

    from . import operator_table

    cases = chosen(all_cases(options.suites), options)
    outcomes = {**operator_table.read(), **read_state(options.state)}
    if options.again != "all":
        finished = {key for key, line in outcomes.items() if options.again != "failed" or line["status"] != "failed"}
        cases = [case for case in cases if identity(case) not in finished]
    options.state.parent.mkdir(parents=True, exist_ok=True)
    with options.state.open("a") as state:

        def record(line: Line) -> None:
            outcomes[identity(line)] = line
            state.write(json.dumps(line) + "\n")
            state.flush()

        run(cases, options, record)
    operator_table.write(outcomes)


if __name__ == "__main__":
    main()
