"""What Dynamo is told of our own Python code: eager ops run below its hook, and must not be compiled in their turn."""

from __future__ import annotations

from torch._dynamo import trace_rules
from torch._dynamo.decorators import substitute_in_graph

from .. import _C


def teach_dynamo() -> None:
    """Skip the frames of eager ops (and JAX's under them), and the note to the deferred trace that a step has ended; once."""
    for name in ("torch_tpu.eager", "torch_tpu.runtime", "torch_tpu.lowerings", "torch_tpu.compiler", "jax", "jaxlib"):
        trace_rules.add(name)

    @substitute_in_graph(_C.end_step, skip_signature_check=True)
    def end_step() -> None:
        pass
