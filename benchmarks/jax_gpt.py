"""The GPT of tests and benchmarks written by hand in JAX, as its users would: 2-D matmuls, jitted whole, state donated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from tests.models import GPT

Parameters = dict[str, Array]


def parameters_of(model: GPT) -> Parameters:
    """The PyTorch model's weights, by name; linear weights as (inputs, outputs)."""
    found = {}
    for name, value in model.state_dict().items():
        array = value.detach().cpu().numpy()
        linear = name.endswith("weight") and array.ndim == 2 and not name.startswith(("tokens", "places"))
        found[name] = jnp.asarray(np.ascontiguousarray(array.T) if linear else array)
    return found


def norm(x: Array, weight: Array, bias: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def loss_of(p: Parameters, tokens: Array, targets: Array, layers: int, heads: int) -> Array:
    batch, length = tokens.shape
    width = p["tokens.weight"].shape[1]
    x = (p["tokens.weight"][tokens] + p["places.weight"][:length]).reshape(batch * length, width)
    for layer in range(layers):
        at = f"blocks.{layer}."
        h = norm(x, p[at + "norm1.weight"], p[at + "norm1.bias"])
        qkv = h @ p[at + "qkv.weight"] + p[at + "qkv.bias"]
        q, k, v = qkv.reshape(batch, length, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        attended = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch * length, width)
        x = x + attended @ p[at + "out.weight"] + p[at + "out.bias"]
        h = norm(x, p[at + "norm2.weight"], p[at + "norm2.bias"])
        h = jax.nn.gelu(h @ p[at + "mlp.0.weight"] + p[at + "mlp.0.bias"], approximate=False)
        x = x + h @ p[at + "mlp.2.weight"] + p[at + "mlp.2.bias"]
    logits = norm(x, p["norm.weight"], p["norm.bias"]) @ p["head.weight"]
    picked = jnp.take_along_axis(logits, targets.reshape(-1, 1), 1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def adamw_step(layers: int, heads: int, rate: float = 1e-3) -> Any:
    """``(parameters, moments, squares, step, tokens, targets) → (parameters, moments, squares, step, loss)``, jitted and donated."""

    def step(p: Parameters, m: Parameters, v: Parameters, count: Array, tokens: Array, targets: Array) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(p, tokens, targets, layers, heads)
        count = count + 1
        m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
        v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, grads)

        def update(w: Array, a: Array, s: Array) -> Array:
            w = w * (1 - rate * 0.01)
            return w - rate / (1 - 0.9**count) * a / (jnp.sqrt(s) / jnp.sqrt(1 - 0.999**count) + 1e-8)

        return jax.tree.map(update, p, m, v), m, v, count, loss

    return jax.jit(step, donate_argnums=(0, 1, 2, 3))


class JaxTraining:
    """A training loop over one batch, as an object to call."""

    def __init__(self, model: GPT, tokens: torch.Tensor, targets: torch.Tensor) -> None:
        parameters = parameters_of(model)
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        self.state: Any = (parameters, zeros, jax.tree.map(jnp.zeros_like, parameters), jnp.zeros((), jnp.float32))
        self.batch = jnp.asarray(tokens.cpu().numpy(), jnp.int32), jnp.asarray(targets.cpu().numpy(), jnp.int32)
        self.step = adamw_step(len(model.blocks), model.blocks[0].heads)

    def __call__(self) -> float:
        *state, loss = self.step(*self.state, *self.batch)
        self.state = tuple(state)
        return float(loss)
