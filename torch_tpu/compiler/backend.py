"""The backend that Dynamo calls with each graph: AOTAutograd in front of ``CompiledGraph``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx import GraphModule

from ..lowerings import TABLE
from .compiled import CompiledGraph
from .graphs import device_of, prepare_random_states
from .settings import Options, check_mode, current_options
from .tracing import teach_dynamo

teach_dynamo()


def tpu(
    module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph for the tpu device that its tensors lie on; a graph with none there runs as PyTorch runs it."""
    check_mode(mode)
    chosen = current_options().changed(options or {})
    if device_of(module) is None and not any(_is_on_tpu(each) for each in inputs):
        return module.forward
    return autograd_backend(chosen)(module, inputs)


def _is_on_tpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's, for what has no lowering: what has one stays whole."""
    import torch._decomp
    import torch._refs

    table = {op: function for op, function in torch._decomp.decomposition_table.items() if op not in TABLE}
    for name in dir(torch.ops.prims):  # what PyTorch's reference implementations are made of
        packet = getattr(torch.ops.prims, name)
        if hasattr(packet, "impl_aten") and packet.default not in TABLE:
            table[packet.default] = packet.impl_aten
    return table


def autograd_backend(options: Options) -> Callable[..., Any]:
    """AOTAutograd with our compiler for the forward, the backward and inference graphs."""

    def compile_inference(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return CompiledGraph(module, options, name="inference")

    def compile_backward(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return CompiledGraph(module, options, name="backward")

    def compile_forward(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        # What is saved for the backward is kept in the order of its dimensions, whatever strides PyTorch would give it.
        metadata = TracingContext.get().fw_metadata
        compiled = CompiledGraph(module, options, metadata.num_forward_returns if metadata is not None else None, name="forward")
        _report_strides(compiled)
        return compiled

    return aot_autograd(
        fw_compiler=compile_forward,
        bw_compiler=compile_backward,
        inference_compiler=compile_inference,
        decompositions=decompositions(),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def _report_strides(compiled: CompiledGraph) -> None:
    """Tell AOTAutograd how the results lie in memory, which is how the backward's graph will see them."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.extend(compiled.output_strides)


def partition(joint: GraphModule, joint_inputs: Sequence[Any], **how: Any) -> tuple[GraphModule, GraphModule]:
    """Cut a joint graph where the fewest bytes are kept for the backward."""
    forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **how)
    prepare_random_states(forward)
    prepare_random_states(backward)
    return forward, backward
