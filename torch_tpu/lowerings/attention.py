"""Scaled dot-product attention and its gradient, in plain matrix products and a float32 softmax.

Queries, keys and values are [..., heads, length, head size]. Fewer key than query heads mean grouped queries: each key head
serves a run of query heads. The gradient recomputes the probabilities from the saved log-sum-exp, and regenerates the dropout
mask from the saved seed and offset, so neither is kept from forward to backward.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .matmul import contract
from .promotion import opmath
from .table import lowers

aten = torch.ops.aten


def default_scale(query: Array, scale: float | None) -> float:
    return max(query.shape[-1], 1) ** -0.5 if scale is None else scale


def grouped(x: Array, key_heads: int) -> Array:
    """Query-side ``x`` with the query heads that share a key head side by side along the length: one matrix a key head."""
    *batch, heads, length, size = x.shape
    return x.reshape(*batch, key_heads, heads // key_heads * length, size)


def multiply(a: Array, b: Array) -> Array:
    """Batched ``a @ b``; the leading dimensions are the same."""
    batch = list(range(a.ndim - 2))
    return contract(a, b, ([a.ndim - 1], [b.ndim - 2]), (batch, batch))


def multiply_transposed(a: Array, b: Array) -> Array:
    """Batched ``a @ bᵀ``."""
    batch = list(range(a.ndim - 2))
    return contract(a, b, ([a.ndim - 1], [b.ndim - 1]), (batch, batch))


def transposed_multiply(a: Array, b: Array) -> Array:
    """Batched ``aᵀ @ b``."""
    batch = list(range(a.ndim - 2))
    return contract(a, b, ([a.ndim - 2], [b.ndim - 2]), (batch, batch))


def scores(query: Array, key: Array, bias: Array | None, causal: bool, scale: float) -> Array:
    """What the softmax is taken of, in float32: [..., query heads, query length, key length]."""
    key_heads = key.shape[-3]
    raw = multiply_transposed(grouped(query, key_heads), key) * scale
    raw = raw.reshape(*query.shape[:-1], key.shape[-2])
    if bias is not None and bias.dtype == np.bool_:
        raw = jnp.where(bias, raw, -np.inf)
    elif bias is not None:
        raw = raw + bias.astype(raw.dtype)
    if causal:
        rows, columns = (lax.broadcasted_iota(np.int32, raw.shape[-2:], d) for d in (0, 1))
        raw = jnp.where(columns <= rows, raw, -np.inf)
    return raw


def log_sum_exp(x: Array) -> Array:
    """Over the last dimension; a row of nothing but -inf (all masked out) gives -inf, not NaN."""
    peak = jnp.max(x, axis=-1, keepdims=True, initial=-np.inf)
    peak = jnp.where(peak == -np.inf, 0, peak)
    return (jnp.log(jnp.sum(jnp.exp(x - peak), axis=-1, keepdims=True)) + peak)[..., 0]


def probabilities(x: Array, lse: Array) -> Array:
    """exp(x - lse), with zeros in the rows that are masked out altogether."""
    return jnp.exp(x - jnp.where(lse == -np.inf, 0, lse)[..., None])


def dropout_factors(seed: Array, offset: Array, p: float, shape: Sequence[int], dtype: np.dtype) -> Array:
    """What dropout multiplies the probabilities by; always the same for the same seed and offset."""
    if p >= 1:
        return jnp.zeros(shape, dtype)
    key = jax.random.fold_in(jax.random.key(seed), offset.astype(np.uint32))
    return jax.random.bernoulli(key, 1 - p, shape).astype(dtype) / (1 - p)


def attend(
    query: Array, key: Array, value: Array, bias: Array | None, causal: bool, scale: float, factors: Array | None = None
) -> tuple[Array, Array]:
    """The attention output and the log-sum-exp of the scores."""
    logits = scores(query, key, bias, causal, scale)
    lse = log_sum_exp(logits)
    weights = probabilities(logits, lse)
    if factors is not None:
        weights = weights * factors
    output = multiply(grouped(weights, key.shape[-3]).astype(value.dtype), value)
    return output.reshape(*query.shape[:-1], value.shape[-1]), lse


def attend_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    output: Array,
    lse: Array,
    causal: bool,
    scale: float,
    factors: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Gradients for the query, the key, the value and the scores."""
    key_heads = key.shape[-3]
    logits = scores(query, key, bias, causal, scale)
    weights = probabilities(logits, lse.reshape(logits.shape[:-1]).astype(logits.dtype))
    dropped = weights if factors is None else weights * factors
    grad_value = transposed_multiply(grouped(dropped, key_heads).astype(value.dtype), grouped(grad, key_heads))
    grad_weights = multiply_transposed(grouped(grad, key_heads), value).reshape(logits.shape)
    if factors is not None:
        grad_weights = grad_weights * factors
    # Σ_k weights·grad_weights equals Σ_d grad·output, which is smaller.
    mean = jnp.sum(opmath(grad) * opmath(output), axis=-1, keepdims=True)
    grad_scores = weights * (grad_weights - mean)
    narrow = grouped(grad_scores, key_heads).astype(query.dtype)
    grad_query = (multiply(narrow, key) * scale).reshape(query.shape)
    grad_key = transposed_multiply(narrow, grouped(query, key_heads)) * scale
    return grad_query, grad_key, grad_value, grad_scores


def summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` summed over the dimensions along which an array of ``shape`` was broadcast."""
    x = jnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    return jnp.sum(x, axis=tuple(d for d, n in enumerate(shape) if n == 1 != x.shape[d]), keepdims=True)


@lowers(aten._scaled_dot_product_fused_attention_overrideable.default)
def fused_attention(
    query: Array,
    keys: Array,
    value: Array,
    bias: Array | None = None,
    dropout_p: float = 0.0,
    causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    key: Array,
) -> tuple[Array, Array, None, None, int, int, Array, Array, None]:
    # The op defines no debug mask: its meta function gives none, whatever ``return_debug_mask`` says.
    seed = lax.bitcast_convert_type(jax.random.bits(key, (), np.uint64), np.int64)
    offset = jnp.zeros((), np.int64)
    factors = None
    if dropout_p > 0:
        shape = (*query.shape[:-1], keys.shape[-2])
        factors = dropout_factors(seed, offset, dropout_p, shape, opmath(query).dtype)
    output, lse = attend(query, keys, value, bias, causal, default_scale(query, scale), factors)
    # The log-sum-exp always has a batch dimension, even where the query has none.
    lse = lse.reshape(-1, *lse.shape[-2:]) if query.ndim == 3 else lse
    return output, lse, None, None, query.shape[-2], keys.shape[-2], seed, offset, None


@lowers(aten._scaled_dot_product_fused_attention_overrideable_backward.default)
def fused_attention_backward(
    grad: Array,
    query: Array,
    keys: Array,
    value: Array,
    bias: Array | None,
    needed: Sequence[bool],
    output: Array,
    lse: Array,
    cum_seq_q: Array | None,
    cum_seq_k: Array | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    causal: bool,
    seed: Array,
    offset: Array,
    *,
    scale: float | None = None,
) -> tuple[Array, Array, Array, Array | None]:
    factors = None
    if dropout_p > 0:
        shape = (*query.shape[:-1], keys.shape[-2])
        factors = dropout_factors(seed, offset, dropout_p, shape, opmath(query).dtype)
    *grads, grad_scores = attend_backward(
        grad, query, keys, value, bias, output, lse, causal, default_scale(query, scale), factors
    )
    inputs = [query, keys, value]
    if bias is not None:
        grads.append(summed_to(grad_scores, bias.shape))
        inputs.append(bias)
    # A gradient that nobody needs is zeros, for which XLA drops the work.
    kept = [g if wanted else jnp.zeros_like(x) for g, wanted, x in zip(grads, needed, inputs)]
    return kept[0], kept[1], kept[2], kept[3] if bias is not None else None


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention(
    query: Array,
    keys: Array,
    value: Array,
    dropout_p: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    # Graphs captured on CPU contain this op; it is defined for a dropout of zero only.
    return attend(query, keys, value, attn_mask, causal, default_scale(query, scale))


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_backward(
    grad: Array,
    query: Array,
    keys: Array,
    value: Array,
    output: Array,
    lse: Array,
    dropout_p: float,
    causal: bool,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    scale = default_scale(query, scale)
    return attend_backward(grad, query, keys, value, attn_mask, output, lse, causal, scale)[:3]
