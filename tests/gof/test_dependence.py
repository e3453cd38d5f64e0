"""Autocorrelation times of chains for which they are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.checks import check_samples
from jaxpsd._core.scores import Given
from jaxpsd._gof import dependence as autocorrelation


def measured(x, order=1):
    draws = check_samples(x)
    plan = jaxpsd.PSD(order)._plan(Given(draws), 99)
    return autocorrelation.measure_dependence(Given(draws, -draws.positions), plan)


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_the_time_of_an_autoregressive_chain(chain, rho):
    assert measured(chain(rho, (1, 100_000, 1))).time == pytest.approx((1 + rho) / (1 - rho), rel=0.15)


def test_several_chains_are_measured_together(chain):
    assert measured(chain(0.9, (8, 10_000, 1))).time == pytest.approx(19, rel=0.15)


def test_means_over_successive_draws_have_the_same_time(chain, monkeypatch):
    x = chain(0.9, (2, 8000, 1))
    single = measured(x).time
    monkeypatch.setattr(autocorrelation, "_POINTS", 2**10)
    assert measured(x).time == pytest.approx(single, rel=0.2)


def test_a_short_pilot_of_a_slow_chain_is_made_longer(chain, monkeypatch):
    monkeypatch.setattr(autocorrelation, "PILOT_DRAWS", 500)
    assert measured(chain(0.97, (1, 50_000, 1))).time == pytest.approx(65.7, rel=0.35)


def test_the_slowest_feature_counts(chain):
    x = jnp.concatenate([chain(0.0, (1, 20_000, 3)), chain(0.8, (1, 20_000, 1), seed=1)], axis=2)
    assert measured(x, order=4).time == pytest.approx(9, rel=0.3)


def test_a_wrong_mean_is_not_dependence(chain):
    x = chain(0.0, (4, 1000, 3)) + 2
    dependence = measured(x, order=2)
    assert not dependence.is_clear
    assert dependence.time < 1.5


def test_independent_draws_are_seldom_mistaken_for_dependent_ones(chain):
    alarms = sum(measured(chain(0.0, (1, 500, 4), seed=seed), order=2).is_clear for seed in range(40))
    # At a rate of 1% more than 4 alarms in 40 happen once in 10⁴ runs; the rate aimed at is lower.
    assert alarms <= 4


@pytest.mark.parametrize("rho", [0.3, 0.9])
def test_dependent_draws_are_noticed(chain, rho):
    assert all(measured(chain(rho, (1, 1000, 3), seed=seed), order=2).is_clear for seed in range(10))


def test_antithetic_chains_are_not_called_dependent(chain):
    dependence = measured(chain(-0.5, (1, 5000, 1)))
    assert not dependence.is_clear
    assert dependence.time < 1


def test_constant_features_do_no_harm():
    x = jnp.stack([jnp.ones(100), jax.random.normal(jax.random.key(0), (100,))], axis=1)
    assert np.isfinite(measured(x[None], order=2).time)
