import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd

KEY = jax.random.key(0)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.fixture(scope="module")
def wide():
    """The first standard deviation too large by 1.3, the rest right."""
    return jax.random.normal(jax.random.key(1), (2000, 3)) * jnp.array([[1.3, 1.0, 1.0]])


def test_rows_are_mean_features_sorted_by_evidence(wide):
    table = jaxpsd.moment_table(KEY, logdensity, wide, transform=None)
    psd = jaxpsd.PSD(2, basis="hermite")
    means = np.asarray(psd.features(logdensity, wide).mean(axis=0))
    column = {tuple(map(int, alpha)): k for k, alpha in enumerate(psd.exponents(3))}
    np.testing.assert_allclose(table.mean, [means[column[alpha]] for alpha in table.exponents], rtol=1e-4, atol=1e-5)
    assert table.labels[0] == "x[0]²"
    assert sorted(table.exponents) == sorted(column)
    assert np.all(np.diff(np.abs(table.score)) <= 0)
    np.testing.assert_allclose(table.score, table.mean / table.standard_error, rtol=1e-5)
    # Of independent draws, the standard error of a mean.
    first = psd.features(logdensity, wide)[:, column[table.exponents[0]]]
    np.testing.assert_allclose(table.standard_error[0], jnp.sqrt((first**2).mean() / 2000), rtol=0.1)
    assert table.adjusted_p_value[0] < 0.005
    assert np.all(table.adjusted_p_value >= table.p_value - 1e-6)
    assert np.all(np.diff(table.adjusted_p_value) >= 0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("transform", ["whiten", pytest.param(None, marks=pytest.mark.slow)])
def test_implied_errors_are_exact_for_a_gaussian_target(transform):
    mean, covariance = np.array([2.0, -1.0]), np.array([[4.0, 1.2], [1.2, 1.0]])
    precision = np.linalg.inv(covariance)
    x = np.random.default_rng(0).normal(size=(400, 2)) * [1.0, 2.0] + [3.0, -1.0]
    table = jaxpsd.moment_table(KEY, -(x - mean) @ precision, x, transform=transform, num_replicates=99)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(table.errors.mean, (x.mean(axis=0) - mean) / sd, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(table.errors.scale, x.std(axis=0) / sd, rtol=1e-3)
    np.testing.assert_allclose(table.errors.correlation, np.corrcoef(x.T), atol=1e-6)
    np.testing.assert_allclose(table.errors.true_correlation[0, 1], 0.6, atol=1e-3)
    np.testing.assert_allclose(table.linearity, 1, atol=1e-4)
    np.testing.assert_allclose(table.errors.explained, 1, atol=1e-6)


@pytest.mark.slow
def test_standard_errors_of_implied_errors_hold_for_a_target_that_is_not_gaussian(chain):
    """Correct draws: what a mean is off by is known, and lies within two standard errors most of the time."""
    target = lambda x: jnp.sum(-x - 2 * jnp.log1p(jnp.exp(-x)))  # noqa: E731
    within = 0
    for seed in range(25):
        # Logistic draws, by the probability transform of a correct chain.
        x = jnp.log(jax.scipy.stats.norm.cdf(chain(0.5, (1, 1000, 2), seed=seed)[0]))
        x = x - jnp.log1p(-jnp.exp(x))
        errors = jaxpsd.moment_table(KEY, target, x, num_replicates=99).errors
        truth = x.mean(axis=0) / (np.pi / 3**0.5)
        within += np.sum(np.abs(errors.mean - truth) < 2 * errors.mean_error)
    # 50 independent numbers; 90% coverage fails this once in 10⁴ runs.
    assert within >= scipy.stats.binom.ppf(1e-4, 50, 0.9)


def test_adjusted_p_values_keep_their_level():
    """The smallest of them is at most 5% in about 5% of correct sample sets."""
    sets = jax.random.normal(jax.random.key(2), (100, 400, 3))
    keys = jax.random.split(jax.random.key(3), 100)

    def smallest(key, x):
        table = jaxpsd.moment_table(key, -x, x, transform=None, method="rademacher", num_replicates=199)
        return table.adjusted_p_value.min()

    rejections = int((jax.lax.map(lambda pair: smallest(*pair), (keys, sets)) <= 0.05).sum())
    assert rejections <= scipy.stats.binom.isf(1e-4, 100, 0.07)


@pytest.mark.slow
def test_names_come_from_the_pytree_or_the_user(wide):
    tree = {"mu": wide[:, 0], "beta": wide[:, 1:]}
    target = lambda p: -0.5 * (p["mu"] ** 2 + jnp.sum(p["beta"] ** 2))  # noqa: E731
    table = jaxpsd.moment_table(KEY, target, tree, num_replicates=99)
    assert table.names == ("beta[0]", "beta[1]", "mu")
    assert {"mu²", "beta[0]·mu", "beta[1]"} <= set(table.labels)
    table = jaxpsd.moment_table(KEY, logdensity, wide, names=("a", "b", "c"), order=3, num_replicates=99)
    assert {"a³", "a²·b", "a·b·c"} <= set(table.labels)
    with pytest.raises(ValueError, match="one for each of 3 coordinates"):
        jaxpsd.moment_table(KEY, logdensity, wide, names=("a", "b"))


@pytest.mark.slow
def test_chains_get_larger_standard_errors(chain):
    x = chain(0.9, (2, 1000, 2))
    table = jaxpsd.moment_table(KEY, logdensity, x, order=1, transform=None)
    assert table.method == "markov"
    assert 8 < table.autocorrelation_time < 40
    # √(19 / 2000), up to the bootstrap's own error.
    np.testing.assert_allclose(table.standard_error, (19 / 2000) ** 0.5, rtol=0.4)
    # Whatever the polynomials that are looked at, errors come from those that tell most.
    np.testing.assert_allclose(table.errors.sd_ratio, x.reshape(-1, 2).std(axis=0), rtol=1e-3)


def test_tables_that_are_cut_say_how_much_is_left_out():
    x = jax.random.normal(KEY, (500, 13)) * jnp.linspace(1, 1.5, 13)[None]
    columns = jaxpsd.moment_table(KEY, logdensity, x, order=1, num_replicates=99).coordinate_table()
    assert columns["coordinate"][0] == "x[12]"
    assert columns["coordinate"][-1] == "+ 3 more"
    assert {len(cells) for cells in columns.values()} == {11}
    assert columns["sd / true sd"][-1] == ""


def test_tables_are_made_of_traced_draws_too(wide):
    make = lambda x: jaxpsd.moment_table(KEY, logdensity, x, method="rademacher", num_replicates=99)  # noqa: E731
    plain, traced = make(wide), jax.jit(make)(wide)
    np.testing.assert_allclose(traced.errors.sd_ratio, plain.errors.sd_ratio, rtol=1e-4)
    np.testing.assert_allclose(traced.errors.mean_off, plain.errors.mean_off, atol=1e-4)


def test_tables_read_well_and_go_into_json(wide):
    table = jaxpsd.moment_table(KEY, logdensity, wide)
    text = repr(table)
    assert "x[0]²" in text
    assert "sd / true sd" in text
    assert "1.3" in text
    assert max(map(len, text.splitlines())) <= 120
    assert table._repr_html_().count("<table>") == 2
    assert json.loads(json.dumps(table.to_dict()))["moments"][0]["monomial"] == "x[0]²"


@pytest.mark.slow
def test_a_target_far_from_gaussian_is_called_so():
    x = jax.random.normal(KEY, (500, 2))
    x = x.at[:, 1].add(3 * x[:, 0] ** 2)
    table = jaxpsd.moment_table(KEY, lambda x: -0.5 * (x[0] ** 2 + (x[1] - 3 * x[0] ** 2) ** 2), x)
    assert table.linearity.min() < 0.8
    assert "because polynomials tell too little" in repr(table)


@pytest.mark.parametrize("method", ["multinomial", "asymptotic"])
def test_only_sign_bootstraps_will_do(wide, method):
    with pytest.raises(ValueError, match="sign bootstrap"):
        jaxpsd.moment_table(KEY, logdensity, wide, method=method)


def test_methods_for_independent_draws_warn_of_chains(chain):
    with pytest.warns(jaxpsd.DependentDrawsWarning):
        jaxpsd.moment_table(KEY, logdensity, chain(0.9, (1, 2000, 3)), method="rademacher", num_replicates=99)


@pytest.mark.parametrize(
    "names",
    [3, ("a", "b"), ("a", "a", "b"), {"a", "b", "c"}, (1, 2, 3), [None, "b", "c"]],
    ids=["a number", "too few", "twice the same", "without order", "numbers", "one missing"],
)
def test_names_are_strings_that_differ(names, wide):
    with pytest.raises(ValueError, match="`names` must be strings in order, a different one for each of 3"):
        jaxpsd.moment_table(KEY, logdensity, wide, names=names)


def test_features_too_small_to_be_squared_are_refused(wide):
    with pytest.raises(FloatingPointError, match="all its replicates are zero"):
        jaxpsd.moment_table(KEY, -1e-25 * wide, wide, order=1, transform=None, num_replicates=99)


def test_scores_that_hardly_vary_about_a_large_value_keep_their_digits():
    # Draws of N(0.4, 0.01²), where the target is N(20, 1).
    x = 0.4 + 0.01 * jax.random.normal(KEY, (2000, 2))
    table = jaxpsd.moment_table(KEY, 20 - x, x, order=1, num_replicates=99)
    np.testing.assert_allclose(table.linearity, 1, atol=1e-3)
    # Single precision does not carry the variance of a target that is 2,000 standard deviations of the draws away.
    assert np.isnan(table.errors.mean_off).all()


@pytest.mark.usefixtures("x64")
def test_draws_far_from_the_target_have_errors_in_its_units():
    x = 0.4 + 0.01 * np.random.default_rng(0).normal(size=(2000, 2))
    errors = jaxpsd.moment_table(KEY, 20 - x, x, order=1, num_replicates=99).errors
    # So far off, a number is stated only where the ridge takes away little enough of it.
    for (low, high), right in (
        (errors.mean_off_interval(), x.mean(axis=0) - 20),
        (errors.sd_ratio_interval(), x.std(axis=0)),
    ):
        is_known = np.isfinite(low)
        assert ((low < right) & (right < high))[is_known].all()
        np.testing.assert_allclose(0.5 * (low + high)[is_known], right[is_known], rtol=0.02)
