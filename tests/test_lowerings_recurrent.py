"""The fused recurrent cells, which PyTorch has no CPU kernels for, against its LSTMCell and GRUCell and their gradients."""

from __future__ import annotations

import jax
import pytest
import torch

from tests.lowering_check import run_lowering, to_torch

aten = torch.ops.aten

BATCH, HIDDEN = 3, 5


def run(overload: torch._ops.OpOverload, *args: object) -> list[torch.Tensor | None]:
    with jax.enable_x64(True):
        results = run_lowering(overload, args, {})
    return [None if r is None else to_torch(r, torch.float64) for r in results]


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def cell_operands(gates: int, bias: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The products that a fused cell gets, and its biases."""
    torch.manual_seed(0)
    biases = (leaf(gates * HIDDEN), leaf(gates * HIDDEN)) if bias else (None, None)
    return leaf(BATCH, gates * HIDDEN), leaf(BATCH, gates * HIDDEN), *biases


def identity_cell(cell: type[torch.nn.RNNCellBase], gates: int) -> torch.nn.RNNCellBase:
    """A PyTorch cell without biases whose products are the input and the hidden state themselves, repeated for each gate."""
    made = cell(HIDDEN, HIDDEN, bias=False, dtype=torch.float64)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.eye(HIDDEN, dtype=torch.float64).repeat(gates, 1) * torch.arange(1, gates * HIDDEN + 1)[:, None])
    return made


def reference_lstm(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, *biases: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.lstm_cell's own formula."""
    gates = sum((b for b in biases if b is not None), input_gates + hidden_gates)
    into, forget, cell, out = gates.chunk(4, 1)
    cy = forget.sigmoid() * cx + into.sigmoid() * cell.tanh()
    return out.sigmoid() * cy.tanh(), cy


def reference_gru(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *biases: torch.Tensor | None
) -> torch.Tensor:
    """torch.gru_cell's own formula."""
    if biases[0] is not None:
        input_gates, hidden_gates = input_gates + biases[0], hidden_gates + biases[1]
    reset_in, update_in, new_in = input_gates.chunk(3, 1)
    reset_hidden, update_hidden, new_hidden = hidden_gates.chunk(3, 1)
    reset, update = (reset_in + reset_hidden).sigmoid(), (update_in + update_hidden).sigmoid()
    new = (new_in + reset * new_hidden).tanh()
    return (1 - update) * new + update * hx


def test_an_lstm_cell_is_torchs() -> None:
    cell = identity_cell(torch.nn.LSTMCell, 4)
    x, hx, cx = (torch.randn(BATCH, HIDDEN, dtype=torch.float64) for _ in range(3))
    expected = cell(x, (hx, cx))
    hy, cy, _ = run(aten._thnn_fused_lstm_cell.default, x @ cell.weight_ih.T, hx @ cell.weight_hh.T, cx, None, None)
    torch.testing.assert_close((hy, cy), tuple(e.detach() for e in expected))


def test_a_gru_cell_is_torchs() -> None:
    cell = identity_cell(torch.nn.GRUCell, 3)
    x, hx = (torch.randn(BATCH, HIDDEN, dtype=torch.float64) for _ in range(2))
    hy, _ = run(aten._thnn_fused_gru_cell.default, x @ cell.weight_ih.T, hx @ cell.weight_hh.T, hx, None, None)
    torch.testing.assert_close(hy, cell(x, hx).detach())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("used", ["hy", "cy", "both"])
def test_lstm_gradients_agree_with_autograd(bias: bool, used: str) -> None:
    input_gates, hidden_gates, *biases = cell_operands(4, bias)
    cx = leaf(BATCH, HIDDEN)
    expected_hy, expected_cy = reference_lstm(input_gates, hidden_gates, cx, *biases)
    hy, cy, workspace = run(aten._thnn_fused_lstm_cell.default, input_gates, hidden_gates, cx, *biases)
    torch.testing.assert_close((hy, cy), (expected_hy.detach(), expected_cy.detach()))

    grad_hy = torch.randn_like(hy) if used != "cy" else None
    grad_cy = torch.randn_like(cy) if used != "hy" else None
    pairs = [(o, g) for o, g in ((expected_hy, grad_hy), (expected_cy, grad_cy)) if g is not None]
    wanted = [input_gates, cx, *(biases[:1] if bias else ())]
    expected = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs])
    grad_gates, grad_cx, grad_bias = run(
        aten._thnn_fused_lstm_cell_backward_impl.default, grad_hy, grad_cy, cx, cy, workspace, bias
    )
    assert (grad_bias is not None) == bias
    torch.testing.assert_close([grad_gates, grad_cx, *([grad_bias] if bias else [])], list(expected))


@pytest.mark.parametrize("bias", [True, False])
def test_gru_gradients_agree_with_autograd(bias: bool) -> None:
    input_gates, hidden_gates, *biases = cell_operands(3, bias)
    hx = leaf(BATCH, HIDDEN)
    expected_hy = reference_gru(input_gates, hidden_gates, hx, *biases)
    hy, workspace = run(aten._thnn_fused_gru_cell.default, input_gates, hidden_gates, hx, *biases)
    torch.testing.assert_close(hy, expected_hy.detach())

    grad_hy = torch.randn_like(hy)
    wanted = [input_gates, hidden_gates, hx, *(biases if bias else ())]
    expected = torch.autograd.grad(expected_hy, wanted, grad_hy)
    actual = run(aten._thnn_fused_gru_cell_backward.default, grad_hy, workspace, bias)
    torch.testing.assert_close([a for a in actual if a is not None], list(expected))


def test_the_lstm_workspace_has_the_shape_that_the_meta_function_says() -> None:
    input_gates, hidden_gates, *biases = cell_operands(4, True)
    cx = leaf(BATCH, HIDDEN)
    results = run(aten._thnn_fused_lstm_cell.default, input_gates, hidden_gates, cx, *biases)
    meta = aten._thnn_fused_lstm_cell(*(t.to("meta") for t in (input_gates, hidden_gates, cx, *biases)))
    assert [r.shape for r in results] == [m.shape for m in meta]
