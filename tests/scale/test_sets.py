"""Many sample sets at once: the results of each by itself, by few programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import jaxpsd
from jaxpsd._scale import sets as _sets

slow = pytest.mark.slow

KEY = jax.random.key(2)
DISCREPANCIES = {
    "PSD": jaxpsd.PSD(2),
    "dual": jaxpsd.PSD(2, form="dual"),
    "standardized": jaxpsd.PSD(2, transform="standardize"),
    "of the target": jaxpsd.PSD(2, basis="hermite", transform="target"),
    "KSD": jaxpsd.KSD(),
    "median distance": jaxpsd.KSD(jaxpsd.Gaussian()),
    "RFSD": jaxpsd.RFSD(),
    "own functions": jaxpsd.SteinDiscrepancy(lambda x: jnp.sin(x)),
}


def logdensity(x):
    return -0.5 * jnp.sum((x - 0.1) ** 2)


@pytest.fixture(scope="module")
def stacked():
    return jax.random.normal(jax.random.key(0), (4, 60, 2)) * jnp.array([1.0, 1.2, 0.8, 2.0])[:, None, None]


@pytest.fixture(scope="module")
def ragged(stacked):
    return [stacked[0], stacked[1][:57], stacked[2][:33], stacked[3]]


# Those for which every set has settings of its own: sums of moments, and sums over pairs.
_FEW = ("of the target", "median distance")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in _FEW else slow) for name in DISCREPANCIES])
def test_values_are_those_of_each_set(stacked, ragged, name):
    discrepancy = DISCREPANCIES[name]
    for sets in (stacked, ragged):
        expected = [discrepancy(logdensity, each) for each in sets]
        np.testing.assert_allclose(jaxpsd.discrepancies(discrepancy, logdensity, sets), expected, rtol=2e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"orders": (1, 2)},
        *(pytest.param(options, marks=slow) for options in ({}, {"method": "markov", "flip_probability": 0.2})),
    ],
    ids=str,
)
def test_tests_are_those_of_each_set(stacked, ragged, options):
    keys = jax.random.split(KEY, 4)
    options = {"num_replicates": 39, **options}
    for sets in (stacked, ragged):
        results = jaxpsd.gof_tests(KEY, jaxpsd.PSD(2), logdensity, sets, **options)
        for k, each in enumerate(sets):
            alone = jaxpsd.gof_test(keys[k], jaxpsd.PSD(2), logdensity, each, **{"method": "rademacher", **options})
            np.testing.assert_allclose(results.replicates[k], alone.replicates, rtol=2e-4, atol=1e-6)
            np.testing.assert_array_equal(results.p_value[k], alone.p_value)
            np.testing.assert_allclose(results.p_value_floor[k], alone.p_value_floor)


def test_u_statistics_are_not_filled_up(stacked):
    # As many draws as none of the common sizes has; the same program serves both.
    sets, options = stacked[:2, :57], {"method": "multinomial", "num_replicates": 39}
    expected, found = (jaxpsd.gof_tests(KEY, jaxpsd.PSD(1), logdensity, each, **options) for each in (sets, list(sets)))
    np.testing.assert_array_equal(found.replicates, expected.replicates)
    np.testing.assert_array_equal(found.p_value_floor, expected.p_value_floor)


def test_lists_can_be_traced(stacked):
    def total(x):
        return jaxpsd.discrepancies(jaxpsd.PSD(1), logdensity, [x[0], x[1][:33]]).sum()

    def expected(x):
        return jaxpsd.PSD(1)(logdensity, x[0]) + jaxpsd.PSD(1)(logdensity, x[1][:33])

    for found, wanted in zip(jax.value_and_grad(total)(stacked), jax.value_and_grad(expected)(stacked), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    shape = jax.eval_shape(lambda x: jaxpsd.gof_tests(KEY, jaxpsd.PSD(1), logdensity, [x[0], x[1][:33]]), stacked)
    assert shape.p_value.shape == (2,)


def test_sets_whose_squares_are_too_small_are_named(stacked):
    sets = [np.asarray(stacked[0]), np.asarray(stacked[1])]
    scores = [-sets[0], -1e-25 * sets[1]]
    with pytest.raises(FloatingPointError, match=r"Set 1 of 2: The scores are at most .* too small for float32"):
        jaxpsd.discrepancies(jaxpsd.PSD(1), scores, sets)
    with pytest.raises(FloatingPointError, match="Set 1 of 2: A statistic and all its replicates are zero"):
        jaxpsd.gof_tests(KEY, jaxpsd.PSD(1), np.stack(scores), np.stack(sets), num_replicates=39)


def test_scores_pytrees_and_chains(stacked):
    chains = stacked.reshape(4, 3, 20, 2)
    samples = {"a": chains[..., 0], "b": chains[..., 1:]}
    scores = jax.tree.map(jnp.negative, samples)
    values = jaxpsd.discrepancies(jaxpsd.PSD(2), scores, samples, chains=True)
    expected = jaxpsd.discrepancies(jaxpsd.PSD(2), -stacked, stacked)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    listed = [jax.tree.map(lambda leaf, k=k: leaf[k].reshape(60, *leaf.shape[3:]), samples) for k in range(4)]
    values = jaxpsd.discrepancies(jaxpsd.PSD(2), [jax.tree.map(jnp.negative, each) for each in listed], listed)
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_few_programs_serve_many_sizes():
    before = _sets._results_of._cache_size()
    for sizes in ([57, 58, 59], [60, 61, 62], [63, 64, 57], [58] * 3):
        sets = [np.asarray(jax.random.normal(KEY, (size, 2))) for size in sizes]
        jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, sets)
    assert _sets._results_of._cache_size() == before + 1


def test_memory_does_not_grow_with_the_number_of_sets(stacked, monkeypatch):
    expected = jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, jnp.tile(stacked, (5, 1, 1)))
    monkeypatch.setattr(_sets, "_CALL_BYTES", 3 * 60 * 2 * 4)
    values = jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, jnp.tile(stacked, (5, 1, 1)))
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert values.shape == (20,)


def test_data_may_change_without_compiling_again(stacked):
    def density(data, x):
        return -0.5 * jnp.sum((x - data) ** 2)

    for data in (0.0, 0.1):
        target = jax.tree_util.Partial(density, jnp.asarray(data))
        expected = [jaxpsd.PSD(2)(target, each) for each in stacked]
        np.testing.assert_allclose(jaxpsd.discrepancies(jaxpsd.PSD(2), target, stacked), expected, rtol=1e-5)


def test_a_set_that_is_not_finite_is_named(stacked):
    with pytest.warns(RuntimeWarning, match=r"1 of 4 sets \(number 2\)"):
        values = jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, stacked.at[2, 5, 1].set(jnp.nan))
    np.testing.assert_array_equal(np.isnan(values), [False, False, True, False])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, []), "list of sample sets"),
        (lambda: jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, jnp.zeros((0, 5, 2))), "no sets"),
        (lambda: jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, jnp.zeros((5, 2))), "goes into a list"),
        (lambda: jaxpsd.discrepancies(jaxpsd.PSD(2), jnp.zeros((4, 5, 3)), jnp.zeros((4, 5, 2))), "Scores must"),
        (lambda: jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, [jnp.zeros((5, 2)), 3]), r"sets\[1\]"),
        (lambda: jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, xarray.Dataset()), "`sets` must be real numbers"),
        (lambda: jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, None), "must have an axis of sets"),
        (lambda: jaxpsd.gof_tests(KEY, jaxpsd.PSD(2), logdensity, jnp.zeros((4, 5, 2)), method="auto"), "looks at"),
        (lambda: jaxpsd.gof_tests(KEY, jaxpsd.PSD(2), logdensity, jnp.zeros((4, 5, 2)), method="markov"), "looks at"),
        (
            lambda: jaxpsd.gof_tests(KEY, jaxpsd.PSD(2), logdensity, jnp.zeros((4, 5, 2)), method="asymptotic"),
            "looks at",
        ),
        (
            lambda: jaxpsd.gof_tests(KEY, jaxpsd.PSD(2), logdensity, jnp.zeros((4, 5, 2)), orders=memoryview(b"\1\2")),
            "`orders` must be a sequence of integers",
        ),
    ],
)
def test_sets_that_will_not_do(call, error):
    with pytest.raises((ValueError, TypeError), match=error):
        call()


def test_a_penalty_may_be_a_tuple(stacked):
    psd = jaxpsd.PSD(2, penalty=(1.0, 2.0))
    expected = [psd(logdensity, each) for each in stacked]
    np.testing.assert_allclose(jaxpsd.discrepancies(psd, logdensity, stacked), expected, rtol=1e-4)
