"""The fused inference ops that ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` call when no gradient is needed.

PyTorch calls them on every out-of-tree backend; without lowerings, ``eval()`` would break modules that train.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .attention import default_scale, multiply, scores
from .matmul import contract
from .promotion import opmath
from .table import TABLE, lowers

aten = torch.ops.aten

SOURCE_MASK, PADDING_MASK = 0, 1


def linear(x: Array, weight: Array, bias: Array) -> Array:
    """``x @ weightᵀ + bias`` as a product of matrices, rounded to the dtype of ``x``."""
    rows = x.reshape(-1, x.shape[-1])
    product = contract(rows, weight, ([1], [1])) + opmath(bias)
    return product.astype(x.dtype).reshape(*x.shape[:-1], weight.shape[0])


def split_heads(x: Array, heads: int) -> Array:
    """[batch, length, features] as [batch, heads, length, head size]."""
    batch, length, features = x.shape
    return lax.transpose(x.reshape(batch, length, heads, features // heads), [0, 2, 1, 3])


def visible(mask: Array, mask_type: int | None) -> Array:
    """Where attention may look, out of a mask of where it may not, shaped to broadcast over [batch, heads, length, length]."""
    shown = mask == 0
    if mask_type == PADDING_MASK:
        return shown[:, None, None, :]
    return shown if mask_type != SOURCE_MASK or shown.ndim == 4 else shown[None, None]


def attend_with_weights(
    query: Array,
    key: Array,
    value: Array,
    heads: int,
    weights: tuple[Array, Array, Array, Array],
    mask: Array | None,
    mask_type: int | None,
) -> tuple[Array, Array]:
    """The projected attention output, and the attention weights by head."""
    qkv_weight, qkv_bias, proj_weight, proj_bias = weights
    if query is key and key is value:
        projected = jnp.split(linear(query, qkv_weight, qkv_bias), 3, axis=-1)
    else:
        thirds = zip((query, key, value), jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3))
        projected = [linear(x, w, b) for x, w, b in thirds]
    q, k, v = (split_heads(x, heads) for x in projected)
    shown = None if mask is None else visible(mask, mask_type)
    logits = scores(q, k, shown, False, default_scale(q, None))
    # A row that is masked out altogether is NaN here, as it is on CPU; only the fused attention ops have zeros there.
    attention = jax.nn.softmax(logits, axis=-1)
    context = multiply(attention.astype(v.dtype), v).astype(v.dtype)
    merged = lax.transpose(context, [0, 2, 1, 3]).reshape(query.shape)
    return linear(merged, proj_weight, proj_bias), attention


@lowers(aten._native_multi_head_attention.default)
def native_multi_head_attention(
    query: Array,
    keys: Array,
    value: Array,
    embed_dim: int,
    heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    mask: Array | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Array, Array | None]:
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    output, attention = attend_with_weights(query, keys, value, heads, weights, mask, mask_type)
    if not need_weights:
        return output, None
    return output, jnp.mean(attention, axis=1) if average_weights else attention


@lowers(aten._transformer_encoder_layer_fwd.default)
def transformer_encoder_layer(
    src: Array,
    embed_dim: int,
    heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Array,
    norm_bias_1: Array,
    norm_weight_2: Array,
    norm_bias_2: Array,
    ffn_weight_1: Array,
    ffn_bias_1: Array,
    ffn_weight_2: Array,
    ffn_bias_2: Array,
    mask: Array | None = None,
    mask_type: int | None = None,
) -> Array:
    def norm(x: Array, weight: Array, bias: Array) -> Array:
        layer_norm = TABLE[aten.native_layer_norm.default].function
        return layer_norm(x, [embed_dim], weight, bias, eps)[0].astype(x.dtype)

    def attend(x: Array) -> Array:
        return attend_with_weights(x, x, x, heads, (qkv_weight, qkv_bias, proj_weight, proj_bias), mask, mask_type)[0]

    def feed_forward(x: Array) -> Array:
        hidden = opmath(linear(x, ffn_weight_1, ffn_bias_1))
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else jnp.maximum(hidden, 0)
        return linear(hidden.astype(x.dtype), ffn_weight_2, ffn_bias_2)

    if norm_first:
        src = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return src + feed_forward(norm(src, norm_weight_2, norm_bias_2))
    src = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(src + feed_forward(src), norm_weight_2, norm_bias_2)


@lowers(aten._transform_bias_rescale_qkv.default)
def transform_bias_rescale_qkv(qkv: Array, bias: Array, heads: int) -> tuple[Array, Array, Array]:
    q, k, v = (split_heads(x, heads) for x in jnp.split(opmath(qkv) + opmath(bias), 3, axis=-1))
    return q / np.sqrt(q.shape[-1]).astype(q.dtype), k, v
