"""Ranks, and adjustments for several statistics, against their definitions written out."""

import jax
import numpy as np
import pytest

from jaxpsd._gof import pvalues

p_values, step_down = jax.jit(pvalues.p_values), jax.jit(pvalues.step_down)
threshold = jax.jit(pvalues.threshold, static_argnums=1)


@pytest.fixture
def values():
    values = np.array(jax.random.normal(jax.random.key(0), (3, 100)))
    values[:, 0] = [2.0, 0.5, -1.0]
    return values


def test_the_observed_column_has_the_bootstrap_p_value(values):
    replicates = values[:, 1:]
    expected = [(1 + (row >= row0).sum()) / 100 for row, row0 in zip(replicates, values[:, 0], strict=True)]
    np.testing.assert_allclose(np.asarray(p_values(values))[:, 0], expected, rtol=1e-6)


def test_ties_count_as_exceeded():
    assert p_values(np.array([[1.0, 1.0, 1.0, 0.0]], np.float32))[0, 0] == pytest.approx(0.75)


def test_step_down_follows_westfall_and_young(values):
    p = np.asarray(p_values(values))
    order = np.argsort(p[:, 0])
    expected, previous = np.zeros(3), 0.0
    for position, index in enumerate(order):
        smallest = p[order[position:]].min(axis=0)
        previous = max(previous, (smallest <= p[index, 0]).mean())
        expected[index] = previous
    np.testing.assert_allclose(step_down(p), expected, rtol=1e-6)


def test_adjusting_one_statistic_changes_nothing(values):
    p = p_values(values[:1])
    np.testing.assert_allclose(step_down(p), p[:, 0], rtol=1e-6)


def test_equal_statistics_cost_nothing():
    row = np.asarray(jax.random.normal(jax.random.key(0), (1, 200)))
    p = p_values(np.concatenate([row, row, row]))
    np.testing.assert_allclose(step_down(p), p[:, 0], rtol=1e-6)


def test_exceeding_the_threshold_is_rejecting():
    row = np.random.default_rng(1).permutation(np.arange(100, dtype=np.float32))[None]
    for observed in (93.5, 94.5, 95.5, 96.5):
        values = np.concatenate([np.array([[observed]], np.float32), row[:, 1:]], axis=1)
        rejected = float(np.asarray(p_values(values))[0, 0]) <= 0.05 + 1e-6
        assert rejected == (observed > float(np.asarray(threshold(values, 5))[0]))
