"""Random lowerings by what they promise: range, moments, distribution, and the same numbers for the same key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import Array

from torch_tpu.lowerings import TABLE, bind
from torch_tpu.lowerings.dtypes import numpy_dtype

aten = torch.ops.aten
COUNT = 40_000
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def draw(overload: Any, *args: Any, seed: int = 0, cast_to: torch.dtype | None = None, **kwargs: Any) -> Any:
    """The results of a random lowering under jit, cast to ``cast_to`` as the runner does."""

    def body(key: Array) -> Any:
        positional, keyword = bind(overload, args, kwargs)
        return TABLE[overload].function(*positional, **keyword, key=key)

    with jax.enable_x64(True):
        result = jax.jit(body)(jax.random.key(seed))
        if cast_to is not None:
            result = result.astype(numpy_dtype(cast_to))
        return tuple(map(np.asarray, result)) if isinstance(result, tuple) else np.asarray(result)


def blank(dtype: torch.dtype, *shape: int) -> Array:
    with jax.enable_x64(True):
        return jnp.zeros(shape or (COUNT,), numpy_dtype(dtype))


def filled(value: float, dtype: torch.dtype) -> Array:
    with jax.enable_x64(True):
        return jnp.full(COUNT, value, numpy_dtype(dtype))


def wide(sample: np.ndarray) -> np.ndarray:
    return sample.astype(np.float64)


def assert_mean(sample: np.ndarray, mean: float, std: float, rounding: float = 0.0) -> None:
    assert abs(wide(sample).mean() - mean) < 5 * std / math.sqrt(sample.size) + rounding


def assert_distribution(sample: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray], rounding: float = 0.0) -> None:
    """Kolmogorov-Smirnov: the largest gap between the two distribution functions, at a level of about 1e-6."""
    ordered = np.sort(wide(sample).ravel())
    expected, n = cdf(ordered), ordered.size
    gap = max(np.max(np.arange(1, n + 1) / n - expected), np.max(expected - np.arange(n) / n))
    assert gap < 2.7 / math.sqrt(n) + rounding


def assert_frequencies(counts: np.ndarray, probabilities: np.ndarray) -> None:
    n, expected = counts.sum(), np.asarray(probabilities) / np.sum(probabilities)
    assert np.all(np.abs(counts / n - expected) <= 5 * np.sqrt(expected * (1 - expected) / n))


RELATIVE = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-24, torch.float64: 2**-53}
erf = np.vectorize(math.erf)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("low, high", [(0.0, 1.0), (-2.0, 2.0), (1.0, 2.0), (0.1, 0.3), (3.0, 3.0)])
def test_uniform_is_half_open_and_uniform(low: float, high: float, dtype: torch.dtype) -> None:
    sample = draw(aten.uniform.default, blank(dtype), low, high)
    assert sample.dtype == numpy_dtype(dtype)
    low, high = (float(torch.tensor(x, dtype=dtype)) for x in (low, high))
    assert wide(sample).min() >= low
    assert wide(sample).max() < high or low == high == wide(sample).max()
    if low < high:
        # A coarse dtype has only so many numbers in the range: one step of it is allowed.
        step = max(abs(low), abs(high)) * RELATIVE[dtype] * 2
        assert_mean(sample, (low + high) / 2, (high - low) / math.sqrt(12), step)
        assert_distribution(sample, lambda x: (x - low) / (high - low), step / (high - low))


def test_uniform_of_a_complex_dtype_fills_both_parts() -> None:
    sample = draw(aten.uniform.default, blank(torch.complex64), 1.0, 2.0)
    for part in (sample.real, sample.imag):
        assert part.min() >= 1 and part.max() < 2
        assert_mean(part, 1.5, 12**-0.5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal_has_its_mean_deviation_and_shape(dtype: torch.dtype) -> None:
    sample = draw(aten.normal_functional.default, blank(dtype), 1.0, 2.0, cast_to=dtype)
    assert_mean(sample, 1.0, 2.0, RELATIVE[dtype])
    assert abs(wide(sample).std() - 2.0) < 5 * 2 / math.sqrt(2 * COUNT)
    assert_distribution(sample, lambda x: (1 + erf((x - 1) / 2 / math.sqrt(2))) / 2, 4 * RELATIVE[dtype])


def test_complex_normal_has_unit_variance_shared_by_its_parts() -> None:
    sample = draw(aten.randn.default, [COUNT], dtype=torch.complex128)
    assert sample.dtype == np.complex128
    assert abs(sample.real.var() - 0.5) < 0.02 and abs(sample.imag.var() - 0.5) < 0.02
    assert abs((sample.real * sample.imag).mean()) < 0.02


@pytest.mark.parametrize(
    "overload, mean, std",
    [
        (aten.normal.Tensor_float, np.full((2, 1, COUNT), 3, np.float32), 2.0),
        (aten.normal.float_Tensor, 3.0, np.full((2, 1, COUNT), 2, np.float32)),
        (aten.normal.Tensor_Tensor, np.full((2, 1, 1), 3, np.float32), np.full((COUNT,), 2, np.float32)),
    ],
    ids=str,
)
def test_normal_of_tensors_broadcasts_them(overload: Any, mean: Any, std: Any) -> None:
    as_array = lambda x: x if isinstance(x, float) else jnp.asarray(x)
    sample = draw(overload, as_array(mean), as_array(std))
    assert sample.shape == (2, 1, COUNT) and sample.dtype == np.float32
    assert_mean(sample, 3.0, 2.0)
    assert abs(sample.std() - 2.0) < 0.05


CONTINUOUS = {
    "exponential": (aten.exponential.default, (2.0,), lambda x: 1 - np.exp(-2 * x)),
    "cauchy": (aten.cauchy.default, (1.0, 2.0), lambda x: 0.5 + np.arctan((x - 1) / 2) / np.pi),
    "log_normal": (aten.log_normal.default, (0.5, 1.0), lambda x: (1 + erf((np.log(x) - 0.5) / math.sqrt(2))) / 2),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name: str, dtype: torch.dtype) -> None:
    overload, parameters, cdf = CONTINUOUS[name]
    sample = draw(overload, blank(dtype), *parameters, cast_to=dtype)
    assert_distribution(sample[np.isfinite(wide(sample))], cdf, 2 * RELATIVE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exponential_draws_are_positive_and_finite(dtype: torch.dtype) -> None:
    sample = draw(aten.exponential.default, blank(dtype, 4_000_000))
    assert sample.min() > 0 and np.isfinite(sample).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_geometric_counts_trials_from_one(dtype: torch.dtype) -> None:
    sample = wide(draw(aten.geometric.default, blank(dtype), 0.25, cast_to=dtype))
    assert sample.min() == 1 and np.all(sample == np.round(sample))
    assert_frequencies(np.bincount(sample.astype(int), minlength=6)[1:6], 0.25 * 0.75 ** np.arange(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int64], ids=str)
def test_bernoulli_draws_ones_with_probability_p(dtype: torch.dtype) -> None:
    for p in (0.0, 0.3, 1.0):
        sample = wide(draw(aten.bernoulli.p, blank(dtype), p, cast_to=dtype))
        assert set(np.unique(sample)) <= {0, 1}
        assert_mean(sample, p, math.sqrt(p * (1 - p)), 1e-12)


@pytest.mark.parametrize("overload", [aten.bernoulli.default, aten.bernoulli.Tensor])
def test_bernoulli_with_a_probability_for_each_element(overload: Any) -> None:
    p = jnp.tile(jnp.asarray([0.0, 0.2, 1.0], np.float32), (COUNT, 1))
    args = (p,) if overload is aten.bernoulli.default else (blank(torch.float32, COUNT, 3), p[0])
    ones = draw(overload, *args).mean(axis=0)
    assert ones[0] == 0 and ones[2] == 1 and abs(ones[1] - 0.2) < 0.01


RANDOM_RANGES = {
    torch.bool: 1,
    torch.uint8: 2**8 - 1,
    torch.int8: 2**7 - 1,
    torch.int16: 2**15 - 1,
    torch.int32: 2**31 - 1,
    torch.int64: 2**63 - 1,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.float32: 2**24,
    torch.float64: 2**53,
}


@pytest.mark.parametrize("dtype", RANDOM_RANGES, ids=str)
def test_random_covers_the_whole_range_of_the_dtype(dtype: torch.dtype) -> None:
    largest = RANDOM_RANGES[dtype]
    sample = wide(draw(aten.random.default, blank(dtype), cast_to=dtype))
    assert sample.min() >= 0 and sample.max() <= largest
    assert_mean(sample, largest / 2, largest / math.sqrt(12) if largest > 1 else 0.5)
    if largest < 2**12:
        assert sample.min() == 0 and sample.max() == largest


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_random_to_excludes_its_bound_and_is_even(dtype: torch.dtype) -> None:
    sample = draw(aten.random.to, blank(dtype), 6, cast_to=dtype)
    assert_frequencies(np.bincount(wide(sample).astype(int), minlength=6), np.ones(6))


@pytest.mark.parametrize(
    "dtype, low, to, smallest, largest",
    [
        (torch.int64, -(2**63), None, -(2**63), 2**63 - 1),
        (torch.int64, -(2**62), 2**63 - 1, -(2**62), 2**63 - 2),
        (torch.int32, -(2**31), None, -(2**31), 2**31 - 1),
        (torch.int32, -5, 2**31 - 1, -5, 2**31 - 2),
        (torch.int8, -128, 128, -128, 127),
        (torch.float32, -(2**24) - 1, 2**24 + 4, -(2**24), 2**24 + 2),
        (torch.float16, 0, 65504, 0, 65472),
        (torch.bfloat16, 250, 300, 250, 298),
    ],
)
def test_random_stays_in_wide_and_coarse_ranges(
    dtype: torch.dtype, low: int, to: int | None, smallest: int, largest: int
) -> None:
    sample = wide(draw(getattr(aten.random, "from"), blank(dtype), low, to, cast_to=dtype))
    assert sample.min() >= smallest and sample.max() <= largest
    assert_mean(sample, (smallest + largest) / 2, (largest - smallest) / math.sqrt(12), 2 if largest < 2**10 else 0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.bfloat16], ids=str)
def test_randint_factories_exclude_their_upper_bound(dtype: torch.dtype) -> None:
    options = {"dtype": dtype}
    for sample in (
        draw(aten.randint.low, 3, 7, [COUNT], **options),
        draw(aten.randint.default, 4, [COUNT], **options) + 3,
        draw(aten.randint_like.low_dtype, blank(dtype), 3, 7) + 0,
        draw(aten.randint_like.default, blank(dtype), 4) + 3,
        draw(aten.randint_like.Tensor, blank(dtype), jnp.asarray(4)) + 3,
    ):
        assert_frequencies(np.bincount(wide(sample).astype(int) - 3, minlength=4), np.ones(4))


@pytest.mark.parametrize("overload, args", [(aten.rand.default, ([COUNT],)), (aten.randn.default, ([COUNT],))], ids=str)
def test_factories_use_the_default_dtype(overload: Any, args: Any) -> None:
    assert draw(overload, *args).dtype == np.float32
    assert draw(overload, *args, dtype=torch.float64).dtype == np.float64


@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_randperm_is_a_permutation(n: int) -> None:
    assert sorted(draw(aten.randperm.default, n)) == list(range(n))


def test_randperm_moves_every_element_everywhere() -> None:
    orders = np.stack([draw(aten.randperm.default, 4, seed=seed) for seed in range(300)])
    for place in range(4):
        assert_frequencies(np.bincount(orders[:, place], minlength=4), np.ones(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rate", [0.0, 0.5, 3.0, 50.0])
def test_poisson_has_equal_mean_and_variance(rate: float, dtype: torch.dtype) -> None:
    sample = wide(draw(aten.poisson.default, filled(rate, dtype), cast_to=dtype))
    assert_mean(sample, rate, math.sqrt(rate), 1e-9)
    assert abs(sample.var() - rate) < 0.05 * rate + 1e-9
    assert np.all(sample == np.round(sample))


def test_poisson_takes_every_kind_of_key() -> None:
    with jax.enable_x64(True):
        key = jax.random.key(0, impl="rbg")
        sample = TABLE[aten.poisson.default].function(jnp.full(COUNT, 3, np.float32), key=key)
    assert_mean(np.asarray(sample), 3.0, math.sqrt(3))


@pytest.mark.parametrize("n, p", [(0, 0.5), (10, 0.0), (10, 1.0), (10, 0.3), (1000, 0.7), (1000, 0.001)])
def test_binomial_has_its_mean_and_variance(n: float, p: float) -> None:
    count = filled(n, torch.float32)
    sample = draw(aten.binomial.default, count, jnp.float32(p))
    assert sample.min() >= 0 and sample.max() <= n
    assert_mean(sample, n * p, math.sqrt(n * p * (1 - p)), 1e-3)
    assert abs(wide(sample).var() - n * p * (1 - p)) < 0.05 * n * p * (1 - p) + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("concentration", [0.3, 1.0, 5.0])
def test_gamma_has_equal_mean_and_variance(concentration: float, dtype: torch.dtype) -> None:
    sample = draw(aten._standard_gamma.default, filled(concentration, dtype))
    assert sample.min() > 0
    assert_mean(sample, concentration, math.sqrt(concentration))
    assert abs(sample.var() - concentration) < 0.1 * concentration


def test_dirichlet_lies_on_the_simplex() -> None:
    concentration = np.array([0.5, 1.0, 2.5], np.float32)
    sample = draw(aten._sample_dirichlet.default, jnp.tile(concentration, (COUNT, 1)))
    assert sample.min() > 0
    np.testing.assert_allclose(sample.sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(sample.mean(axis=0), concentration / 4, atol=0.01)


def test_gradients_of_gamma_draws_agree_with_the_cpu_approximation() -> None:
    concentration = torch.rand(1000) * 10 + 0.1
    draws = torch._standard_gamma(concentration)
    got = draw_nothing(aten._standard_gamma_grad.default, jnp.asarray(concentration.numpy()), jnp.asarray(draws.numpy()))
    np.testing.assert_allclose(got, torch._standard_gamma_grad(concentration, draws), rtol=2e-3)


@pytest.mark.parametrize("a", [0.01, 0.5, 1.0, 30.0])
@pytest.mark.parametrize("b", [0.02, 1.0, 4.0, 1000.0])
def test_gradients_of_beta_draws(a: float, b: float) -> None:
    concentration = torch.full((500,), a, dtype=torch.float64)
    draws = torch.distributions.Beta(concentration, torch.full_like(concentration, b)).sample().clamp(1e-12, 1 - 1e-9)
    arguments = [x.numpy() for x in (draws, concentration, concentration + b)]
    got = draw_nothing(aten._dirichlet_grad.default, *arguments)
    np.testing.assert_allclose(got, torch._dirichlet_grad(*map(torch.from_numpy, arguments)), rtol=1e-2, atol=1e-9)
    if b == 1:
        # The distribution function is x^a, so that x = u^(1/a) at the quantile u.
        x = arguments[0]
        np.testing.assert_allclose(got, -x * np.log(x) / a / (1 - x), rtol=1e-7)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("count, replacement", [(1, False), (1, True), (50, True)])
def test_multinomial_follows_the_weights(count: int, replacement: bool, dtype: torch.dtype) -> None:
    weights = np.array([1, 0, 2, 5, 0], numpy_dtype(dtype))
    chosen = draw(aten.multinomial.default, jnp.tile(weights, (COUNT // count, 1)), count, replacement)
    assert chosen.shape == (COUNT // count, count)
    counts = np.bincount(chosen.ravel(), minlength=5)
    assert counts[1] == counts[4] == 0
    assert_frequencies(counts, wide(weights))


def test_multinomial_without_replacement_repeats_nothing_and_takes_positive_weights_first() -> None:
    weights = jnp.tile(jnp.asarray([1, 0, 2, 5, 0, 1], np.float32), (COUNT, 1))
    chosen = draw(aten.multinomial.default, weights, 4, False)
    assert np.all(np.sort(chosen, axis=1) == [0, 2, 3, 5])
    assert_frequencies(np.bincount(chosen[:, 0], minlength=6), [1, 0, 2, 5, 0, 1])
    # The second choice is drawn from what the first one left.
    after_three = chosen[chosen[:, 0] == 3][:, 1]
    assert_frequencies(np.bincount(after_three, minlength=6), [1, 0, 2, 0, 0, 1])


def test_multinomial_of_one_row_and_many_categories_skips_weight_zero() -> None:
    weights = np.random.default_rng(0).random(5000).astype(np.float32)
    weights[::2] = 0
    chosen = draw(aten.multinomial.default, jnp.asarray(weights), 20_000, True)
    assert np.all(weights[chosen] > 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_keeps_the_mean_and_tells_what_it_kept(dtype: torch.dtype) -> None:
    ones = filled(1, dtype)
    out, kept = draw(aten.native_dropout.default, ones, 0.25, True)
    assert kept.dtype == bool
    assert_mean(kept, 0.75, math.sqrt(0.75 * 0.25))
    np.testing.assert_allclose(wide(out), kept / 0.75, rtol=1e-3)
    back = draw_nothing(aten.native_dropout_backward.default, ones, jnp.asarray(kept), 1 / 0.75)
    np.testing.assert_allclose(wide(back), wide(out), rtol=1e-6)


def draw_nothing(overload: Any, *args: Any) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(TABLE[overload].function(*args))


@pytest.mark.parametrize("p, train, value", [(0.5, False, 1), (0.0, True, 1), (1.0, True, 0)])
def test_dropout_at_its_limits(p: float, train: bool, value: int) -> None:
    out, kept = draw(aten.native_dropout.default, filled(1, torch.float32), p, train)
    assert np.all(out == value) and np.all(kept == bool(value))


def test_fused_dropout_takes_the_probability_to_keep() -> None:
    out, kept = draw(aten._fused_dropout.default, filled(1, torch.float32), 0.75)
    assert_mean(kept, 0.75, math.sqrt(0.75 * 0.25))
    np.testing.assert_allclose(out, kept / 0.75, rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rrelu_draws_a_slope_for_negative_elements_only(dtype: torch.dtype) -> None:
    with jax.enable_x64(True):
        x = jnp.tile(jnp.asarray([-2.0, 3.0], numpy_dtype(dtype)), (COUNT, 1))
    out, noise = draw(aten.rrelu_with_noise_functional.default, x, x, 0.25, 0.5, True)
    assert np.all(wide(out)[:, 1] == 3) and np.all(wide(noise)[:, 1] == 1)
    slopes = wide(noise)[:, 0]
    assert slopes.min() >= 0.25 and slopes.max() < 0.5
    assert_mean(slopes, 0.375, 0.25 / math.sqrt(12), 2 * RELATIVE[dtype])
    np.testing.assert_allclose(wide(out)[:, 0], -2 * slopes, rtol=1e-2)


def test_rrelu_in_evaluation_is_a_leaky_relu_that_leaves_the_noise() -> None:
    x = jnp.asarray([-2.0, 0.0, 3.0, np.nan], np.float32)
    out, noise = draw(aten.rrelu_with_noise_functional.default, x, x + 1, 0.25, 0.75, False)
    np.testing.assert_array_equal(out, [-1, 0, 3, np.nan])
    np.testing.assert_array_equal(noise, x + 1)


@pytest.mark.parametrize(
    "overload, args",
    [
        (aten.uniform.default, (0.0, 1.0)),
        (aten.normal_functional.default, (0.0, 1.0)),
        (aten.exponential.default, (1.0,)),
        (aten.random.default, ()),
        (aten.bernoulli.p, (0.5,)),
        (aten.geometric.default, (0.01,)),
    ],
    ids=str,
)
def test_the_same_key_draws_the_same_numbers_and_another_key_others(overload: Any, args: tuple[float, ...]) -> None:
    first, again, other = (draw(overload, blank(torch.float32, 1000), *args, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.mean(first == other) < 0.6


@pytest.mark.parametrize("overload, args", [(aten.uniform.default, (0.0, 1.0)), (aten.random.default, ())], ids=str)
@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_empty_tensors_draw_nothing(shape: tuple[int, ...], overload: Any, args: Any) -> None:
    with jax.enable_x64(True):
        assert draw(overload, jnp.zeros(shape, np.float32), *args).shape == shape
