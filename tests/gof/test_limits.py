"""The limiting distribution of the U-statistic, both ways to its weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.checks import check_samples
from jaxpsd._core.programs import Data
from jaxpsd._core.scores import Given
from jaxpsd._gof import chisquare
from jaxpsd._gof.limits import Null, null_matrix, simulate


def spectrum(x, s, *, from_features, centred=True, order=2):
    plan = jaxpsd.PSD(order)._plan(Given(check_samples(x)), 0)
    null = Null(from_features, centred)
    u, matrix, _ = jax.jit(lambda data, plan: null_matrix(data, plan, null))(Data(x, s, None, None), plan)
    return np.asarray(u), np.linalg.eigvalsh(matrix)


@pytest.mark.parametrize("centred", [True, False])
def test_features_and_gram_matrix_have_one_spectrum(x64, centred):
    x = jax.random.normal(jax.random.key(0), (60, 3))
    u, omega = spectrum(x, 0.2 - x, from_features=True, centred=centred)
    v, other = spectrum(x, 0.2 - x, from_features=False, centred=centred)
    np.testing.assert_allclose(np.sort(other)[-len(omega) :], np.sort(omega), rtol=1e-9, atol=1e-12)
    assert np.abs(np.sort(other)[: -len(omega)]).max() < 1e-9
    np.testing.assert_allclose([u, v], jaxpsd.PSD(2).u_statistic(0.2 - x, x), rtol=1e-9)


def test_the_spectrum_is_that_of_the_covariance(x64):
    x = jax.random.normal(jax.random.key(0), (500, 2))
    tau = np.asarray(jaxpsd.PSD(2).features(-x, x))
    _, omega = spectrum(x, -x, from_features=True)
    expected = np.linalg.eigvalsh(np.cov(tau.T, bias=True))
    np.testing.assert_allclose(omega / omega.sum(), expected / expected.sum(), rtol=1e-9)
    assert omega.sum() == pytest.approx(expected.sum(), rel=0.05)


@pytest.mark.parametrize("from_features", [True, False])
def test_the_variance_is_that_of_the_sum_over_different_draws(x64, from_features):
    x = jax.random.laplace(jax.random.key(0), (60, 3))
    tau = np.asarray(jaxpsd.PSD(2).features(-x, x))
    tau = tau - tau.mean(axis=0)
    gram = tau @ tau.T
    off_diagonal = (gram**2).sum() - (np.diag(gram) ** 2).sum()
    _, omega = spectrum(x, -x, from_features=from_features)
    assert (omega**2).sum() == pytest.approx(off_diagonal / (60 * 59), rel=1e-9)


def test_simulated_values_have_the_distribution_of_the_weighted_sum():
    omega = np.array([1.0, 0.5, 0.1])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    draws = np.asarray(simulate(jax.random.key(0), jnp.asarray(turn @ np.diag(omega) @ turn.T), 20_000))
    variance = 2 * float((omega**2).sum())
    assert abs(draws.mean()) < 4 * (variance / len(draws)) ** 0.5
    assert draws.var() == pytest.approx(variance, rel=0.1)
    # Four standard errors of a share: a right simulation fails here once in 5,000 seeds.
    for q in (1.0, 2.0, 4.0):
        p = chisquare.survival(q + omega.sum(), omega)
        assert (draws > q).mean() == pytest.approx(p, abs=4 * (p * (1 - p) / len(draws)) ** 0.5)


@pytest.mark.parametrize("dim", [2, 12])
def test_simulation_and_quadrature_agree(dim):
    x = jax.random.normal(jax.random.key(1), (80, dim))
    options = {"method": "asymptotic", "num_replicates": 20_000}
    simulated = jaxpsd.gof_test(jax.random.key(0), jaxpsd.PSD(2), -x, 1.05 * x, **options)
    exact = jaxpsd.gof_test(jax.random.key(0), jaxpsd.PSD(2), -x, 1.05 * x, **options, deterministic=True)
    p = float(exact.p_value)
    assert float(simulated.p_value) == pytest.approx(p, abs=4 * (p * (1 - p) / 20_000) ** 0.5 + 1e-4)
    assert float(simulated.threshold) == pytest.approx(float(exact.threshold), rel=0.1)
    assert len(exact.replicates) == 0


def test_tiny_p_values_keep_their_size():
    x = 1.4 * jax.random.normal(jax.random.key(1), (1000, 2))
    result = jaxpsd.gof_test(jax.random.key(0), jaxpsd.PSD(2), -x, x, method="asymptotic", deterministic=True)
    assert 0 < float(result.p_value) < 1e-10
    assert bool(result.reject)


def test_draws_of_the_target_give_the_null_distribution():
    x, null = jax.random.normal(jax.random.key(1), (2, 400, 3))
    wide = 2.0 * x
    own = jaxpsd.gof_test(jax.random.key(0), jaxpsd.PSD(2), lambda x: -0.5 * jnp.sum(x**2), wide, method="asymptotic")
    given = jaxpsd.gof_test(
        jax.random.key(0), jaxpsd.PSD(2), lambda x: -0.5 * jnp.sum(x**2), wide, method="asymptotic", null_samples=null
    )
    # Draws that are too wide make their own null distribution too wide.
    assert float(given.threshold) < 0.5 * float(own.threshold)


def test_the_null_distribution_is_taken_in_the_coordinates_of_the_draws_under_test():
    x, null = 3 + 2 * jax.random.normal(jax.random.key(0), (200, 2)), jax.random.normal(jax.random.key(1), (150, 2))
    primal, dual = (
        jaxpsd.gof_test(
            jax.random.key(2), jaxpsd.PSD(2, form=form, transform="standardize"), lambda x: -0.5 * jnp.sum(x**2), x,
            method="asymptotic", null_samples=null, deterministic=True,
        )
        for form in ("primal", "dual")
    )  # fmt: skip
    np.testing.assert_allclose(dual.threshold, primal.threshold, rtol=1e-3)
