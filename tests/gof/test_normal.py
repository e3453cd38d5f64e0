"""Normal replicates against the covariance written out, and where they are chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd
from jaxpsd._core.checks import check_samples
from jaxpsd._core.scores import Given
from jaxpsd._discrepancies.plans import Part
from jaxpsd._gof.bootstrap import Wanted, accumulate_all
from jaxpsd._gof.normal import Normal

KEY, REPLICATES = jax.random.key(3), 20_000


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def draws(n, dim=2):
    return jax.random.normal(jax.random.key(1), (n, dim))


def columns(psd, s, x, weights=None, num_replicates=REPLICATES):
    """Sums of features, of the draws and of replicates."""
    given = Given(check_samples(x), s, weights)
    plan = psd._plan(given, num_replicates)
    sums, _ = accumulate_all(plan.prepare(given.data), plan, Normal(KEY, num_replicates), Wanted((Part(),)))
    return np.asarray(sums.z, np.float64)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_replicates_have_the_covariance_of_sums_with_signs(x64, is_weighted):
    x = draws(333)
    s, psd = 0.3 - 2 * x, jaxpsd.PSD(3, block_size=100)
    w = np.asarray(jax.random.uniform(jax.random.key(2), (333,))) if is_weighted else np.ones(333)
    tau = w[:, None] * np.asarray(psd.features(s, x))
    found = columns(psd, s, x, jnp.asarray(w) if is_weighted else None)
    np.testing.assert_allclose(found[:, 0], tau.sum(axis=0), rtol=1e-10)
    covariance = tau.T @ tau
    variance = np.diag(covariance)
    # Entries of a sample covariance; a correct one fails this once in 10⁴ runs.
    bound = scipy.stats.norm.isf(0.5e-4 / covariance.size)
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / REPLICATES)
    replicates = found[:, 1:]
    assert (np.abs(replicates @ replicates.T / REPLICATES - covariance) < bound * error).all()
    assert (np.abs(replicates.mean(axis=1)) < bound * np.sqrt(variance / REPLICATES)).all()
    _, p = scipy.stats.kstest((replicates / np.sqrt(variance)[:, None])[0], "norm")
    assert p > 1e-4


@pytest.mark.parametrize(
    "covariance",
    [
        np.ones((3, 3)),
        np.outer([1e-8, 1.0, 1e8], [1e-8, 1.0, 1e8]),
        np.diag([0.0, 2.0, 1e-12]),
        np.outer(np.arange(200) - 99.5, np.arange(200) - 99.5),
    ],
)
def test_single_precision_has_a_root_of_what_has_no_full_rank(covariance):
    found = np.asarray(Normal(KEY, 4000).columns(jnp.asarray(covariance, jnp.float32)), np.float64)
    variance = np.diag(covariance)
    assert (found[variance == 0] == 0).all()
    # The same normal number in every row: variances share their error, of which 6 are once in 10⁸ runs.
    share = (found**2).mean(axis=1)[variance > 0] / variance[variance > 0]
    assert (np.abs(share - 1) < 6 * np.sqrt(2 / 4000)).all()


def test_single_precision_agrees_with_double_about_the_draws():
    x = 10 + draws(5000, 5)
    s = 10 - x
    single = jaxpsd.gof_test(KEY, jaxpsd.PSD(3), s, x, method="gaussian", orders=(1, 2, 3)).statistic
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(each), np.float64) for each in (s, x)]
        double = jaxpsd.gof_test(KEY, jaxpsd.PSD(3), *wide, method="gaussian", orders=(1, 2, 3)).statistic
    np.testing.assert_allclose(single, double, rtol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1.1])
def test_p_values_are_those_of_signs(scale):
    x, options = scale * draws(4000, 3), {"num_replicates": 4000, "orders": (1, 2, 3)}
    signs = jaxpsd.gof_test(KEY, jaxpsd.PSD(3), -x, x, method="rademacher", **options)
    normal = jaxpsd.gof_test(KEY, jaxpsd.PSD(3), -x, x, method="gaussian", **options)
    assert normal.method == "gaussian"
    np.testing.assert_allclose(normal.statistic, signs.statistic, rtol=1e-4)
    # Two shares of 4000 replicates: five standard errors of their difference, once in 10⁶.
    assert (np.abs(normal.p_value - signs.p_value) < 5 * np.sqrt(2 * 0.25 / 4000)).all()


def test_traced_tests_are_those_of_a_call():
    x, options = draws(200), {"method": "gaussian", "num_replicates": 99}
    keys = jax.random.split(KEY, 3)
    alone = [jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, x, **options) for key in keys]
    together = jax.jit(jax.vmap(lambda key: jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, x, **options)))(keys)
    for k, result in enumerate(alone):
        np.testing.assert_allclose(together.replicates[k], result.replicates, rtol=1e-4)
    several = jaxpsd.gof_tests(KEY, jaxpsd.PSD(2), logdensity, x[None], **options)
    np.testing.assert_allclose(several.statistic[0], alone[0].statistic, rtol=1e-4)


def test_blocks_change_nothing_but_rounding():
    x = draws(1000)
    of = [
        jaxpsd.gof_test(KEY, jaxpsd.PSD(2, block_size=size), -x, x, method="gaussian", num_replicates=50).replicates
        for size in (None, 77)
    ]
    np.testing.assert_allclose(*of, rtol=1e-3)


def test_many_independent_draws_with_few_features_get_them():
    x = draws(10_000)

    def method_of(psd=None, x=x, **options):
        psd = psd or jaxpsd.PSD(2)
        return jaxpsd.gof_test(KEY, psd, logdensity, x, num_replicates=100, **options).method

    assert method_of() == "gaussian"
    assert method_of(jaxpsd.PSD(2, norm="l1")) == "gaussian"
    assert method_of(x=x[:-1]) == "rademacher"
    assert method_of(weights=jnp.ones(10_000)) == "rademacher"
    assert method_of(jaxpsd.PSD(9)) == "rademacher"
    assert jaxpsd.adaptive_test(KEY, logdensity, x, num_replicates=100).method == "gaussian"
    assert jaxpsd.moment_table(KEY, logdensity, x, num_replicates=100).method == "gaussian"
    several = [jaxpsd.PSD(1), jaxpsd.PSD(2)]
    assert jaxpsd.aggregate_test(KEY, several, logdensity, x, num_replicates=100).method == "rademacher"


def test_dependent_draws_do_not_get_them():
    slow = jnp.repeat(draws(1000), 10, axis=0)
    assert jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, slow, num_replicates=100).method == "markov"
    with pytest.warns(jaxpsd.DependentDrawsWarning, match="'gaussian'"):
        jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, slow, method="gaussian", num_replicates=100)


@pytest.mark.parametrize("discrepancy", [jaxpsd.KSD(), jaxpsd.PSD(2, form="dual")])
def test_sums_over_pairs_have_none(discrepancy):
    x = draws(50)
    with pytest.raises(ValueError, match="summed over pairs"):
        jaxpsd.gof_test(KEY, discrepancy, -x, x, method="gaussian")


def test_several_discrepancies_have_none_in_common():
    x = draws(50)
    with pytest.raises(ValueError, match="common replicates"):
        jaxpsd.aggregate_test(KEY, [jaxpsd.PSD(1), jaxpsd.PSD(2)], -x, x, method="gaussian")
    with pytest.raises(ValueError, match="sign bootstrap"):
        jaxpsd.rank(KEY, None, logdensity, {"a": x, "b": x}, method="gaussian")


def test_too_many_features_are_refused():
    x = draws(300, 200)
    with pytest.raises(ValueError, match="covariance"):
        jaxpsd.gof_test(KEY, jaxpsd.PSD(2, form="primal"), -x, x, method="gaussian", num_replicates=19)
