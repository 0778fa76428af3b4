"""The fused cells that PyTorch picks for LSTM and GRU layers on a device that is not a CPU, and their gradients.

The matrix products are ordinary ops; a cell gets both of them, adds the biases, and does the elementwise rest. ``workspace``
carries what the gradient needs from the forward op to the backward one; only these two look into it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import Array

from .promotion import opmath
from .table import lowers

aten = torch.ops.aten


def _biased(gates: Array, bias: Array | None) -> Array:
    return opmath(gates) if bias is None else opmath(gates) + opmath(bias)


def _side_by_side(*parts: Array) -> Array:
    return jnp.concatenate(parts, axis=1)


@lowers(aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    input_gates: Array, hidden_gates: Array, cx: Array, input_bias: Array | None = None, hidden_bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """hy and cy (batch, hidden), and the four activated gates (batch, 4 * hidden)."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    into, forget, cell, out = jnp.split(gates, 4, axis=1)
    into, forget, out = (jax.nn.sigmoid(gate) for gate in (into, forget, out))
    cell = jnp.tanh(cell)
    cy = forget * opmath(cx) + into * cell
    return out * jnp.tanh(cy), cy, _side_by_side(into, forget, cell, out)


@lowers(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(
    grad_hy: Array | None, grad_cy: Array | None, cx: Array, cy: Array, workspace: Array, has_bias: bool
) -> tuple[Array | None, Array | None, Array | None]:
    """The gradients of the gates (both products have the same one), of cx, and of the biases."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    into, forget, cell, out = jnp.split(opmath(workspace), 4, axis=1)
    squashed = jnp.tanh(opmath(cy))
    through_hy = jnp.zeros_like(squashed) if grad_hy is None else opmath(grad_hy)
    through_cy = through_hy * out * (1 - squashed * squashed)
    if grad_cy is not None:
        through_cy = through_cy + opmath(grad_cy)
    grad_gates = _side_by_side(
        through_cy * cell * into * (1 - into),
        through_cy * opmath(cx) * forget * (1 - forget),
        through_cy * into * (1 - cell * cell),
        through_hy * squashed * out * (1 - out),
    )
    return grad_gates, through_cy * forget, jnp.sum(grad_gates, axis=0) if has_bias else None


@lowers(aten._thnn_fused_gru_cell.default)
def gru_cell(
    input_gates: Array, hidden_gates: Array, hx: Array, input_bias: Array | None = None, hidden_bias: Array | None = None
) -> tuple[Array, Array]:
    """hy (batch, hidden), and (batch, 5 * hidden): reset, update and new gates, hx, and the hidden half of the new gate."""
    reset_in, update_in, new_in = jnp.split(_biased(input_gates, input_bias), 3, axis=1)
    reset_hidden, update_hidden, new_hidden = jnp.split(_biased(hidden_gates, hidden_bias), 3, axis=1)
    reset = jax.nn.sigmoid(reset_in + reset_hidden)
    update = jax.nn.sigmoid(update_in + update_hidden)
    new = jnp.tanh(new_in + reset * new_hidden)
    hx = opmath(hx)
    return new + update * (hx - new), _side_by_side(reset, update, new, hx, new_hidden)


@lowers(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(grad_hy: Array, workspace: Array, has_bias: bool) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """The gradients of the input and hidden gates, of hx, and of the input and hidden biases."""
    grad = opmath(grad_hy)
    reset, update, new, hx, new_hidden = jnp.split(opmath(workspace), 5, axis=1)
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_update = grad * (hx - new) * update * (1 - update)
    grad_reset = grad_new * new_hidden * reset * (1 - reset)
    grad_input = _side_by_side(grad_reset, grad_update, grad_new)
    grad_hidden = _side_by_side(grad_reset, grad_update, grad_new * reset)
    biases = (jnp.sum(grad_input, axis=0), jnp.sum(grad_hidden, axis=0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad * update, *biases
