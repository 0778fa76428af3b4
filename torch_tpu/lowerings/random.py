"""Random numbers: distributions that fill a tensor, factories, sampling from weights, and dropout.

Every draw is a pure function of ``key``, so what makes a program repeatable is decided outside of this file. The ranges are
those that PyTorch promises (half-open for ``uniform``, ``to`` excluded for ``random``), also after rounding to a narrow dtype.
Where PyTorch raises for values that only the device knows (negative weights, a probability above one), nothing is raised here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .promotion import cast, default_dtype, opmath
from .table import lowers

aten = torch.ops.aten

DType = np.dtype
Shape = tuple[int, ...] | list[int]


def drawn_dtype(dtype: DType) -> DType:
    """The real dtype in which numbers for a tensor of ``dtype`` are drawn: float32, float64 for the 64-bit floats."""
    return np.dtype(np.float64 if dtype in (np.float64, np.complex128) else np.float32)


def open_unit(key: Array, shape: Shape, dtype: DType) -> Array:
    """Uniform numbers strictly between 0 and 1, for formulas with a pole there: (n + 1/2) / 2^m never rounds to 0 or 1."""
    dtype = drawn_dtype(dtype)
    bits_dtype, width, mantissa = (np.uint64, 64, 52) if dtype == np.float64 else (np.uint32, 32, 23)
    bits = jax.random.bits(key, tuple(shape), bits_dtype) >> (width - mantissa)
    return (bits.astype(dtype) + 0.5) * 2.0**-mantissa


def standard_normal(key: Array, shape: Shape, dtype: DType) -> Array:
    """Normal numbers of variance 1; of a complex dtype, real and imaginary parts of variance 1/2."""
    if dtype.kind != "c":
        return jax.random.normal(key, tuple(shape), drawn_dtype(dtype))
    parts = jax.random.normal(key, (2, *shape), drawn_dtype(dtype)) * np.sqrt(0.5)
    return jax.lax.complex(parts[0], parts[1])


def uniform_numbers(key: Array, shape: Shape, low: float | Array, high: float | Array, dtype: DType) -> Array:
    """Uniform numbers in [low, high) of ``dtype``; of a complex dtype, both parts are."""
    if dtype.kind == "c":
        parts = uniform_numbers(key, (2, *shape), low, high, drawn_dtype(dtype))
        return jax.lax.complex(parts[0], parts[1])
    unit = jax.random.uniform(key, tuple(shape), drawn_dtype(dtype))
    numbers = (unit * (high - low) + low).astype(dtype)
    # Rounding can reach `high`. What is sent to `low` is the half cell that rounding took from it, so the mean stays right.
    return jnp.where(numbers >= cast(high, dtype), cast(low, dtype), numbers)


def integers(key: Array, shape: Shape, low: int, high: int) -> Array:
    """Uniform integers in [low, high], both included, of at most 64 bits; int64 unless 32 bits do or it takes uint64."""
    shape, span = tuple(shape), high - low + 1
    if span & (span - 1) == 0:
        bits = jax.random.bits(key, shape, np.uint64 if span > 2**32 else np.uint32)
        numbers = bits & np.array(span - 1, bits.dtype)
    elif span < 2**31:
        numbers = jax.random.randint(key, shape, 0, span, np.int32)
    else:
        # A remainder would favour small numbers, the more the nearer the span is to 2^64; a product spreads the excess.
        numbers = _high_word(jax.random.bits(key, shape, np.uint64), span)
    if high >= 2**63:
        return numbers.astype(np.uint64) + np.uint64(low)
    # Modulo 2^64, as the sum of an unsigned draw and a negative bound needs.
    return numbers.astype(np.int64) + np.int64(low) if low or numbers.dtype != np.int32 else numbers


def _high_word(bits: Array, factor: int) -> Array:
    """The upper 64 of the 128 bits of ``bits * factor``, out of products of 32-bit halves."""
    half, low_mask = np.uint64(32), np.uint64(2**32 - 1)
    upper, lower = bits >> half, bits & low_mask
    factor_upper, factor_lower = np.uint64(factor >> 32), np.uint64(factor) & low_mask
    middle = upper * factor_lower + (lower * factor_lower >> half)
    carry = lower * factor_upper + (middle & low_mask)
    return upper * factor_upper + (middle >> half) + (carry >> half)


def _digits(dtype: DType) -> int:
    return jnp.finfo(dtype).nmant + 1


def _largest(dtype: DType) -> int:
    """The largest number of ``random_`` without an upper bound: of a float dtype, the end of the integers it has without gap."""
    if jnp.issubdtype(dtype, jnp.floating):
        return 2 ** _digits(dtype)
    return 1 if dtype.kind == "b" else int(jnp.iinfo(dtype).max)


def _representable(value: int, dtype: DType, up: bool) -> int:
    """``value`` moved up or down to the nearest integer that ``dtype`` has, so that rounding cannot leave the range."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return value
    step = 2 ** max(0, abs(value).bit_length() - _digits(dtype))
    return -(-value // step) * step if up else value // step * step


@lowers(aten.uniform.default, runtime=("from", "to"))
def uniform(x: Array, low: float | Array = 0.0, high: float | Array = 1.0, *, key: Array) -> Array:
    return uniform_numbers(key, x.shape, low, high, x.dtype)


@lowers(aten.normal_functional.default, runtime=("mean", "std"))
def normal(x: Array, mean: float | Array = 0.0, std: float | Array = 1.0, *, key: Array) -> Array:
    numbers = standard_normal(key, x.shape, x.dtype) * std
    # PyTorch fills both parts of a complex tensor alike, so the mean lands in both.
    return numbers + (mean * (1 + 1j) if x.dtype.kind == "c" else mean)


@lowers(aten.normal.Tensor_float, runtime=("std",))
@lowers(aten.normal.Tensor_Tensor)
def normal_around(mean: Array, std: float | Array = 1.0, *, key: Array) -> Array:
    return standard_normal(key, jnp.broadcast_shapes(mean.shape, jnp.shape(std)), mean.dtype) * std + opmath(mean)


@lowers(aten.normal.float_Tensor, runtime=("mean",))
def normal_spread(mean: float | Array, std: Array, *, key: Array) -> Array:
    return standard_normal(key, std.shape, std.dtype) * opmath(std) + mean


@lowers(aten.normal.float_float, runtime=("mean", "std"))
def normal_sized(mean: float | Array, std: float | Array, size: Shape, *, dtype: DType | None = None, key: Array) -> Array:
    return standard_normal(key, size, dtype or default_dtype()) * std + mean


@lowers(aten.log_normal.default, runtime=("mean", "std"))
def log_normal(x: Array, mean: float | Array = 1.0, std: float | Array = 2.0, *, key: Array) -> Array:
    return jnp.exp(standard_normal(key, x.shape, x.dtype) * std + mean)


@lowers(aten.cauchy.default, runtime=("median", "sigma"))
def cauchy(x: Array, median: float | Array = 0.0, sigma: float | Array = 1.0, *, key: Array) -> Array:
    return median + sigma * jnp.tan(np.pi * (open_unit(key, x.shape, x.dtype) - 0.5))


@lowers(aten.exponential.default, runtime=("lambd",))
def exponential(x: Array, lambd: float | Array = 1.0, *, key: Array) -> Array:
    # Never 0, which callers that divide by the draw rely on.
    return -jnp.log(open_unit(key, x.shape, x.dtype)) / lambd


@lowers(aten.geometric.default, runtime=("p",))
def geometric(x: Array, p: float | Array, *, key: Array) -> Array:
    """The number of trials up to the first success, from 1."""
    unit = open_unit(key, x.shape, x.dtype)
    return jnp.maximum(jnp.ceil(jnp.log(unit) / jnp.log1p(-p).astype(unit.dtype)), 1)


@lowers(aten.random.default)
def random(x: Array, *, key: Array) -> Array:
    return integers(key, x.shape, 0, _largest(x.dtype))


@lowers(aten.random.to)
def random_below(x: Array, to: int, *, key: Array) -> Array:
    return random_between(x, 0, to, key=key)


@lowers(getattr(aten.random, "from"))
def random_between(x: Array, low: int, to: int | None, *, key: Array) -> Array:
    high = _largest(x.dtype) if to is None else to - 1
    return integers(key, x.shape, _representable(low, x.dtype, up=True), _representable(high, x.dtype, up=False))


@lowers(aten.bernoulli.default)
def bernoulli_of(p: Array, *, key: Array) -> Array:
    return bernoulli(p, p, key=key)


@lowers(aten.bernoulli.p, runtime=("p",))
@lowers(aten.bernoulli.Tensor)
def bernoulli(x: Array, p: float | Array = 0.5, *, key: Array) -> Array:
    # A draw lies in [0, 1), so that 0 never and 1 always succeeds.
    return jax.random.uniform(key, x.shape, drawn_dtype(getattr(p, "dtype", x.dtype))) < p


@lowers(aten.poisson.default)
def poisson(rate: Array, *, key: Array) -> Array:
    # JAX draws from this distribution with Threefry alone, so that any other kind of key seeds one.
    seed = jax.random.bits(key, (2,), np.uint32)
    return jax.random.poisson(jax.random.wrap_key_data(seed, impl="threefry2x32"), opmath(rate), dtype=np.int64)


@lowers(aten.binomial.default)
def binomial(count: Array, probability: Array, *, key: Array) -> Array:
    shape = jnp.broadcast_shapes(count.shape, probability.shape)
    return jax.random.binomial(key, opmath(count), opmath(probability), shape, drawn_dtype(count.dtype))


@lowers(aten._standard_gamma.default)
def standard_gamma(concentration: Array, *, key: Array) -> Array:
    numbers = jax.random.gamma(key, opmath(concentration), dtype=drawn_dtype(concentration.dtype))
    return jnp.maximum(numbers, jnp.finfo(concentration.dtype).tiny.astype(numbers.dtype))


@lowers(aten._sample_dirichlet.default)
def sample_dirichlet(concentration: Array, *, key: Array) -> Array:
    # In the logarithm, since for a small concentration most gamma draws underflow.
    logs = jax.random.loggamma(key, opmath(concentration), dtype=drawn_dtype(concentration.dtype))
    numbers = jax.nn.softmax(logs, axis=-1)
    return jnp.maximum(numbers, jnp.finfo(concentration.dtype).tiny.astype(numbers.dtype))


@lowers(aten.multinomial.default)
def multinomial(weights: Array, count: int, replacement: bool = False, *, key: Array) -> Array:
    weights = opmath(weights)
    if replacement and count > 1:
        return _sample_with_replacement(weights, count, key)
    # The largest of weight / Exp(1) is a draw from the weights, the largest `count` are draws without replacement.
    scores = weights / -jnp.log(open_unit(key, weights.shape, weights.dtype))
    if count == 1:
        return jnp.argmax(scores, axis=-1, keepdims=True)
    return jax.lax.top_k(scores, count)[1]


def _sample_with_replacement(weights: Array, count: int, key: Array) -> Array:
    rows = weights.reshape(-1, weights.shape[-1])
    # A category of weight 0 has the cumulative weight of the one before it exactly, however the sums were rounded.
    cumulative = jax.lax.cummax(jnp.where(rows > 0, jnp.cumsum(rows, axis=-1), 0), axis=1)
    targets = jax.random.uniform(key, (rows.shape[0], count), weights.dtype) * cumulative[:, -1:]
    chosen = jax.vmap(lambda sums, target: jnp.searchsorted(sums, target, side="right"))(cumulative, targets)
    return chosen.reshape(*weights.shape[:-1], count)


@lowers(aten.randperm.default, aten.randperm.generator)
def randperm(n: int, *, dtype: DType | int | None = None, key: Array) -> Array:
    return jax.random.permutation(key, jnp.arange(n, dtype=np.int32 if n < 2**31 else np.int64))


@lowers(aten.rand.default, aten.rand.generator)
def rand(size: Shape, *, dtype: DType | None = None, key: Array) -> Array:
    return uniform_numbers(key, size, 0.0, 1.0, dtype or default_dtype())


@lowers(aten.randn.default, aten.randn.generator)
def randn(size: Shape, *, dtype: DType | None = None, key: Array) -> Array:
    return standard_normal(key, size, dtype or default_dtype())


@lowers(aten.rand_like.default, aten.rand_like.generator)
def rand_like(x: Array, *, dtype: DType | None = None, key: Array) -> Array:
    return uniform_numbers(key, x.shape, 0.0, 1.0, dtype or x.dtype)


@lowers(aten.randn_like.default, aten.randn_like.generator)
def randn_like(x: Array, *, dtype: DType | None = None, key: Array) -> Array:
    return standard_normal(key, x.shape, dtype or x.dtype)


@lowers(aten.randint.low, aten.randint.low_generator)
def randint_between(low: int, high: int, size: Shape, *, dtype: DType | int | None = None, key: Array) -> Array:
    # The schema's own default, int64, arrives as the number of that ScalarType.
    dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(np.int64)
    return integers(key, size, _representable(low, dtype, up=True), _representable(high - 1, dtype, up=False))


@lowers(aten.randint.default, aten.randint.generator)
def randint(high: int, size: Shape, *, dtype: DType | int | None = None, key: Array) -> Array:
    return randint_between(0, high, size, dtype=dtype, key=key)


@lowers(aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype)
def randint_like_between(x: Array, low: int, high: int, *, dtype: DType | None = None, key: Array) -> Array:
    return randint_between(low, high, x.shape, dtype=dtype or x.dtype, key=key)


@lowers(aten.randint_like.default, aten.randint_like.generator)
@lowers(aten.randint_like.Tensor, aten.randint_like.Tensor_generator)
def randint_like(x: Array, high: int | Array, *, dtype: DType | None = None, key: Array) -> Array:
    if isinstance(high, int):
        return randint_like_between(x, 0, high, dtype=dtype, key=key)
    return jax.random.randint(key, x.shape, 0, high.astype(np.int64), np.int64)


@lowers(aten.native_dropout.default)
def native_dropout(x: Array, p: float, train: bool | None, *, key: Array) -> tuple[Array, Array]:
    if train is False or p == 0:
        return x, jnp.ones(x.shape, bool)
    kept = jax.random.uniform(key, x.shape) >= p
    return native_dropout_backward(x, kept, 0.0 if p == 1 else 1 / (1 - p)), kept


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Array, kept: Array, scale: float) -> Array:
    # Products, not a selection: a dropped infinity is NaN, as on every other device.
    grad = opmath(grad)
    return grad * kept.astype(grad.dtype) * scale


@lowers(aten._fused_dropout.default)
def fused_dropout(x: Array, keep: float, *, key: Array) -> tuple[Array, Array]:
    kept = jax.random.uniform(key, x.shape) < keep
    return native_dropout_backward(x, kept, 1 / keep), kept


def _leaky(x: Array, lower: float | Array, upper: float | Array) -> Array:
    slope = jnp.asarray((lower + upper) / 2, x.dtype)
    return jnp.where(x > 0, jnp.ones_like(x), slope)


@lowers(aten.rrelu_with_noise_functional.default)
def rrelu_with_noise(
    x: Array, noise: Array, lower: float | Array = 1 / 8, upper: float | Array = 1 / 3, training: bool = False, *, key: Array
) -> tuple[Array, Array]:
    """A leaky ReLU whose slope is drawn anew for every negative element, and those slopes (1 where not negative)."""
    wide = opmath(x)
    if not training:
        return wide * _leaky(wide, lower, upper), noise
    slopes = jnp.where(wide <= 0, uniform_numbers(key, x.shape, lower, upper, x.dtype).astype(wide.dtype), 1)
    return wide * slopes, slopes


@lowers(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    grad: Array, x: Array, noise: Array, lower: float | Array, upper: float | Array, training: bool, self_is_result: bool
) -> Array:
    grad, x, noise = opmath(grad), opmath(x), opmath(noise)
    mean_slope = grad * _leaky(x, lower, upper)
    # With lower = upper the noise is not kept, and the mean slope is exact.
    return jnp.where(upper - lower > 1e-6, grad * noise, mean_slope) if training else mean_slope
