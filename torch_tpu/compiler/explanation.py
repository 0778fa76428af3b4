"""What compiling a function came to: its graphs, where it breaks and why, and what each executable costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from ..runtime.executables import Executable, stats
from .backend import tpu
from .compiled import CompiledGraph, compiled_graphs


@dataclass(frozen=True)
class ExecutableReport:
    """One executable. Bytes and operations are the compiler's own figures; ``seconds`` its estimate, None where it has none."""

    name: str
    nodes: int
    donated: bool
    flops: float
    bytes_accessed: float
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    seconds: float | None

    def __str__(self) -> str:
        estimate = f", estimated {1e3 * self.seconds:.3f} ms" if self.seconds is not None else ""
        return (
            f"{self.name}: {self.nodes} ops, {self.flops:.3g} FLOPs, {self.bytes_accessed:.3g} bytes accessed, "
            f"{self.argument_bytes} bytes in, {self.output_bytes} out, {self.temporary_bytes} temporary{estimate}"
        )


@dataclass(frozen=True)
class Break:
    """Where Dynamo ended a graph."""

    reason: str
    line: str

    def __str__(self) -> str:
        return f"{self.line}: {self.reason}" if self.line else self.reason


@dataclass
class Explanation:
    """What ``explain`` gives; print it."""

    graphs: int = 0
    breaks: list[Break] = field(default_factory=list)
    executables: list[ExecutableReport] = field(default_factory=list)
    compilations: int = 0
    compile_seconds: float = 0.0
    disk_hits: int = 0

    def __str__(self) -> str:
        lines = [
            f"{self.graphs} graph(s), {len(self.breaks)} break(s), {len(self.executables)} executable(s); "
            f"{self.compilations} compiled in {self.compile_seconds:.2f} s, {self.disk_hits} found on disk"
        ]
        lines += [f"  break at {each}" for each in self.breaks]
        lines += [f"  {each}" for each in self.executables]
        return "\n".join(lines)


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile ``fn`` anew, run it once on these arguments, and say what was compiled.

    All that Dynamo has compiled so far is forgotten (``torch.compiler.reset()``). The run is real: what the function writes
    is written. Of a function whose results require gradients, the backward is reported too.
    """
    found = Explanation()

    def collecting(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.graphs += 1
        reason = getattr(module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            frame = reason.user_stack[-1] if reason.user_stack else None
            line = f"{frame.filename}:{frame.lineno}" if frame is not None else ""
            found.breaks.append(Break(str(reason.reason).strip().splitlines()[0], line))
        return tpu(module, inputs)

    torch.compiler.reset()
    before = set(compiled_graphs)
    compilations, seconds, hits = stats.compilations, stats.compile_seconds, stats.disk_hits
    try:
        with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
            result = torch.compile(fn, backend=collecting)(*args, **kwargs)
        made = sorted(set(compiled_graphs) - before, key=lambda graph: graph.number)
        found.executables = [
            _report(graph, executable, donated)
            for graph in made
            for plan in graph.plans.values()
            for donated, executable in plan.executables.items()
        ]
        del result  # until here, for it keeps the backward's graphs alive
    finally:
        torch.compiler.reset()
    found.compilations = stats.compilations - compilations
    found.compile_seconds = stats.compile_seconds - seconds
    found.disk_hits = stats.disk_hits - hits
    return found


def _report(graph: CompiledGraph, executable: Executable, donated: bool) -> ExecutableReport:
    cost = executable.loaded.cost_analysis()
    memory = executable.loaded.get_compiled_memory_stats()
    seconds = cost.get("optimal_seconds", -1.0)  # negative totals mean that a part has no estimate
    return ExecutableReport(
        name=graph.name,
        nodes=sum(node.op == "call_function" for node in graph.graph.module.graph.nodes),
        donated=donated and bool(graph.graph.written),
        flops=cost.get("flops", 0.0),
        bytes_accessed=cost.get("bytes accessed", 0.0),
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        seconds=seconds if seconds > 0 else None,
    )
