"""Ranks, and adjustments for several statistics, against their definitions written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpsd._gof import pvalues


@pytest.fixture
def values():
    return jax.random.normal(jax.random.key(0), (3, 100)).at[:, 0].set(jnp.array([2.0, 0.5, -1.0]))


def test_the_observed_column_has_the_bootstrap_p_value(values):
    replicates = np.asarray(values[:, 1:])
    expected = [(1 + (row >= row0).sum()) / 100 for row, row0 in zip(replicates, np.asarray(values[:, 0]), strict=True)]
    np.testing.assert_allclose(pvalues.p_values(values)[:, 0], expected, rtol=1e-6)


def test_ties_count_as_exceeded():
    assert pvalues.p_values(jnp.array([[1.0, 1.0, 1.0, 0.0]]))[0, 0] == pytest.approx(0.75)


def test_step_down_follows_westfall_and_young(values):
    p = np.asarray(pvalues.p_values(values))
    order = np.argsort(p[:, 0])
    expected, previous = np.zeros(3), 0.0
    for position, index in enumerate(order):
        smallest = p[order[position:]].min(axis=0)
        previous = max(previous, (smallest <= p[index, 0]).mean())
        expected[index] = previous
    np.testing.assert_allclose(pvalues.step_down(jnp.asarray(p)), expected, rtol=1e-6)


def test_adjusting_one_statistic_changes_nothing(values):
    p = pvalues.p_values(values[:1])
    np.testing.assert_allclose(pvalues.step_down(p), p[:, 0], rtol=1e-6)


def test_equal_statistics_cost_nothing():
    row = jax.random.normal(jax.random.key(0), (1, 200))
    p = pvalues.p_values(jnp.concatenate([row, row, row]))
    np.testing.assert_allclose(pvalues.step_down(p), p[:, 0], rtol=1e-6)


def test_exceeding_the_threshold_is_rejecting():
    row = jax.random.permutation(jax.random.key(1), jnp.arange(100.0))[None]
    for observed in (93.5, 94.5, 95.5, 96.5):
        values = jnp.concatenate([jnp.array([[observed]]), row[:, 1:]], axis=1)
        rejected = float(pvalues.p_values(values)[0, 0]) <= 0.05 + 1e-6
        assert rejected == (observed > float(pvalues.threshold(values, 5)[0]))
