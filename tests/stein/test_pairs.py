import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.draws import Draws
from jaxpsd._stein import pairs as _distances


@pytest.mark.parametrize("length", [1e-4, 1e4], ids=["by differences", "by products"])
def test_pairs_are_the_same_both_ways(length):
    x, s, y, u = np.asarray(jax.random.normal(jax.random.key(1), (4, 6, 3)))
    pairs = jax.jit(_distances.pairs_of)(x, s, y, u, length)
    apart = x[:, None] - y[None]
    np.testing.assert_allclose(pairs.squared, (apart**2).sum(2), rtol=1e-5)
    np.testing.assert_allclose(pairs.aligned, (apart * (s[:, None] - u[None])).sum(2), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pairs.product, s @ u.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e4], ids=["at the origin", "far from it"])
@pytest.mark.parametrize("spread", [1.0, 300.0], ids=["compact", "spread out"])
def test_nearby_draws_keep_their_digits_in_single_precision(offset, spread):
    # Pairs of draws about 0.1 apart, the pairs themselves anywhere.
    keys = jax.random.split(jax.random.key(2), 3)
    centres = jnp.repeat(spread * jax.random.normal(keys[0], (100, 4)), 2, axis=0)
    x = np.asarray(offset + centres + 0.1 * jax.random.normal(keys[1], (200, 4)), np.float32)
    s = np.asarray(jax.random.normal(keys[2], (200, 4)), np.float32)
    single = jaxpsd.KSD().gram(s, x)
    with jax.enable_x64(True):
        double = np.asarray(jaxpsd.KSD().gram(s.astype(np.float64), x.astype(np.float64)))
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-4 * np.abs(double).mean())


def test_many_sets_at_once_take_the_safe_way_for_all_if_one_needs_it():
    sets = jax.random.normal(jax.random.key(3), (2, 60, 2)) * jnp.array([1.0, 1000.0])[:, None, None]
    ksd = jaxpsd.KSD()
    value = lambda x: ksd(-x, x)  # noqa: E731
    np.testing.assert_allclose(jax.vmap(value)(sets), [value(x) for x in sets], rtol=1e-5)
    batched = jax.make_jaxpr(jax.vmap(value))(sets)
    assert "cond" in str(batched), "one decision for all sets, not both ways for each of them"


def test_the_median_distance_is_that_of_the_published_code(reference):
    x = reference["samples"]
    median = _distances.median_distance(Draws(jnp.asarray(x, jnp.float32)), None)
    np.testing.assert_allclose(median, reference["median_distance"], rtol=1e-5)


@pytest.mark.parametrize("count", [2, 3, 10, 33])
def test_order_statistics_are_those_of_a_sorted_array(count):
    values = jnp.abs(jax.random.normal(jax.random.key(count), (count,))).at[0].set(0.0)
    ranks = np.arange(count)
    np.testing.assert_array_equal(_distances._order_statistics(values, ranks), jnp.sort(values))


def test_of_many_draws_some_tell_the_median_distance():
    x = jax.random.normal(jax.random.key(4), (5000, 2))
    median = float(_distances.median_distance(Draws(x), None))
    # ‖x − y‖² / 2 is χ² with two degrees of freedom, whose median is 2 log 2.
    assert abs(median / (4 * np.log(2)) ** 0.5 - 1) < 0.05
