"""Draws filled up to common numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core import scores as _scores
from jaxpsd._core.filling import common_size, fill_chains, shorten_chains
from jaxpsd._core.scores import check_input

KEY = jax.random.key(0)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def skewed(x):
    return jnp.sum(x - jnp.exp(x))


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 100, 1000, 1025, 10**6 + 1])
def test_common_sizes_are_few_and_not_much_larger(size):
    assert size <= common_size(size) <= 1.25 * size
    assert {common_size(size) for size in range(513, 1025)} == {640, 768, 896, 1024}


def test_what_fills_up_is_taken_away_again():
    arrays = {"a": np.arange(12.0).reshape(6, 2), "b": np.arange(6)}
    filled = fill_chains(arrays, 2, 5)
    np.testing.assert_array_equal(filled["b"], [0, 1, 2, 2, 2, 3, 4, 5, 5, 5])
    jax.tree.map(np.testing.assert_array_equal, shorten_chains(filled, 2, 3), arrays)


@pytest.mark.parametrize("target", [logdensity, skewed])
@pytest.mark.parametrize(("rho", "shape"), [(0.0, (1, 460, 2)), (0.6, (4, 460, 2))])
def test_reports_do_not_depend_on_it(chain, monkeypatch, target, rho, shape):
    samples = 1.2 * chain(rho, shape)
    filled = jaxpsd.diagnose(KEY, target, samples, second_opinion=False)
    monkeypatch.setattr(_scores, "_MOST_FILLED", 0)
    plain = jaxpsd.diagnose(KEY, target, samples, second_opinion=False)
    for name in ("autocorrelation_time", "effective_draws", "r_hat"):
        np.testing.assert_allclose(getattr(filled, name), getattr(plain, name), rtol=1e-4)
    assert (filled.test.method, filled.caveats) == (plain.test.method, plain.caveats)
    np.testing.assert_allclose(filled.test.parts.statistic, plain.test.parts.statistic, rtol=1e-3)
    for ours, theirs in zip(jax.tree.leaves(filled.moments.errors), jax.tree.leaves(plain.moments.errors), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)
    if shape[0] == 1:
        # No draw has another place among all, so that signs are the same.
        np.testing.assert_allclose(filled.test.p_value, plain.test.p_value, atol=2e-3)


def test_other_numbers_of_draws_take_no_other_programs(compilations):
    samples = np.asarray(jax.random.normal(KEY, (2, 512, 2)))
    jaxpsd.diagnose(KEY, logdensity, samples)
    before = compilations.count
    jaxpsd.diagnose(KEY, logdensity, samples[:, :470])
    # What puts the draws of all chains together, and looks for one that is not finite.
    assert compilations.count - before <= 3


def test_draws_that_are_many_weighted_or_traced_stay_as_they_are():
    few, many = np.zeros((100, 2), np.float32), np.zeros((2**14, 2), np.float32)
    weights = np.arange(1.0, 101.0)
    assert check_input(logdensity, few).filled_up().data.num_draws == 112
    for given in (check_input(logdensity, many), check_input(logdensity, few, weights)):
        assert given.filled_up() is given
    jax.make_jaxpr(lambda x: check_input(logdensity, x).filled_up().data.positions)(few)
