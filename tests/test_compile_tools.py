"""``torch.tpu.compiler``: exporting to StableHLO, and explaining what was compiled."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests import models

compiler = torch.tpu.compiler


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    yield


def call(artifact, *inputs: torch.Tensor):
    import jax

    with jax.enable_x64(True):
        return artifact.exported.call(dict(artifact.weights), *(x.numpy() for x in inputs))


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_an_exported_model_gives_its_results_and_what_it_writes(device):
    model, inputs = models.SmallResNet.example()
    artifact = compiler.export_stablehlo(copy.deepcopy(model).to(device), tuple(x.to(device) for x in inputs))
    (loss,), updates = call(artifact, *inputs)
    np.testing.assert_allclose(loss, model(*inputs).detach(), rtol=1e-5)
    for name, buffer in model.named_buffers():
        np.testing.assert_allclose(updates[name], buffer, rtol=1e-4, atol=1e-5)


def test_the_forms_of_an_exported_program():
    model = nn.Linear(3, 2, dtype=torch.bfloat16).eval()
    artifact = compiler.export_stablehlo(torch.export.export(model, (torch.randn(4, 3, dtype=torch.bfloat16),)), platforms=["tpu", "cpu"])
    assert "stablehlo.dot_general" in artifact.text and artifact.bytecode.startswith(b"ML\xefR")
    assert artifact.exported.platforms == ("tpu", "cpu")
    assert {name: str(array.dtype) for name, array in artifact.weights.items()} == {"weight": "bfloat16", "bias": "bfloat16"}


def test_plain_jax_loads_an_exported_program():
    pytest.importorskip("flatbuffers")  # jax.export's own need
    import jax

    model, x = nn.Sequential(nn.Linear(3, 4), nn.GELU()).eval(), torch.randn(2, 3)
    artifact = compiler.export_stablehlo(model, (x,))
    (y,), updates = jax.export.deserialize(bytearray(artifact.serialize())).call(dict(artifact.weights), x.numpy())
    np.testing.assert_allclose(y, model(x).detach(), rtol=1e-5, atol=1e-6)
    assert updates == {}


def test_programs_that_cannot_be_exported():
    with pytest.raises(ValueError, match="draws random numbers"):
        compiler.export_stablehlo(nn.Dropout(0.5), (torch.ones(3),))
    sizes = ({0: torch.export.Dim("n")},)
    with pytest.raises(ValueError, match="symbolic sizes"):
        compiler.export_stablehlo(torch.export.export(nn.Linear(3, 2), (torch.ones(4, 3),), dynamic_shapes=sizes))


def test_an_explanation_has_the_graphs_the_breaks_and_the_executables():
    def forward(x):
        y = x @ x
        torch._dynamo.graph_break()
        return y.sin().sum()

    found = compiler.explain(forward, torch.randn(8, 8, device="tpu", requires_grad=True))
    assert found.graphs == 2 and len(found.breaks) == 1 and "test_compile_tools.py" in found.breaks[0].line
    assert [each.name for each in found.executables] == ["forward", "backward", "forward", "backward"]
    assert found.executables[0].flops >= 2 * 8**3 and found.executables[0].argument_bytes == 4 * 64
    assert found.compilations + found.disk_hits == 4
    assert str(found).startswith("2 graph(s), 1 break(s), 4 executable(s)")


def test_names_that_the_namespace_does_not_have():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        compiler.nothing  # noqa: B018
    assert {"explain", "export_stablehlo", "options"} <= set(dir(compiler))
