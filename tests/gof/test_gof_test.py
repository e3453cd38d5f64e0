"""Goodness-of-fit tests as users call them."""

import warnings
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.doubts import warn_of
from jaxpsd._gof.symptoms import find_too_few

slow = pytest.mark.slow

KEY = jax.random.key(0)
OPTIONS = {
    "rademacher": {},
    "multinomial": {},
    "markov": {"flip_probability": 0.1},
    "block": {"block_length": 10},
    "asymptotic": {},
}


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.fixture(scope="module")
def good():
    return jax.random.normal(jax.random.key(1), (500, 3))


run_test = partial(jaxpsd.gof_test, KEY, jaxpsd.PSD(2))


# For independent draws "auto" does what "rademacher" does.
@pytest.mark.parametrize(
    "method",
    [
        "auto",
        "asymptotic",
        *(pytest.param(method, marks=slow) for method in ("rademacher", "multinomial", "markov", "block")),
    ],
)
def test_right_draws_pass_and_wrong_draws_do_not(good, method):
    options = {"method": method, **OPTIONS.get(method, {})}
    right, wrong = run_test(logdensity, good, **options), run_test(logdensity, 1.3 * good, **options)
    assert not right.reject
    assert wrong.reject
    assert float(wrong.p_value) == pytest.approx(1 / 501)
    for result in (right, wrong):
        assert bool(result.reject) == (float(result.statistic) > float(result.threshold))
        assert result.replicates.shape == (500,)
        expected = (1 + (result.replicates >= result.statistic).sum()) / 501
        # Replicates that differ from the statistic by rounding alone count as ties.
        assert float(result.p_value) == pytest.approx(float(expected), abs=1.1 / 501)


@pytest.mark.parametrize("method", ["rademacher", "asymptotic"])
def test_the_statistic_is_that_of_the_discrepancy(good, method):
    result = run_test(logdensity, good, method=method, **OPTIONS[method])
    psd = jaxpsd.PSD(2)
    statistic = psd.u_statistic if method in ("multinomial", "asymptotic") else psd.v_statistic
    np.testing.assert_allclose(result.statistic, statistic(logdensity, good), rtol=1e-4)


@pytest.mark.parametrize("method", ["rademacher", pytest.param("asymptotic", marks=slow)])
def test_scores_and_log_density_give_the_same_test(good, method):
    options = {"method": method, **OPTIONS[method]}
    np.testing.assert_allclose(
        run_test(logdensity, good, **options).replicates, run_test(-good, good, **options).replicates, rtol=1e-5
    )


def test_the_key_decides(good):
    again, other = run_test(-good, good), jaxpsd.gof_test(jax.random.key(1), jaxpsd.PSD(2), -good, good)
    np.testing.assert_array_equal(run_test(-good, good).replicates, again.replicates)
    assert (np.asarray(other.replicates) != np.asarray(again.replicates)).all()


def test_old_keys_are_keys(good):
    assert run_test(-good, good).p_value.shape == ()
    assert jaxpsd.gof_test(jax.random.PRNGKey(0), jaxpsd.PSD(2), -good, good, method="multinomial").p_value.shape == ()


def test_pytrees_and_chains(good):
    tree = {"a": good[:, 0].reshape(2, 250), "b": good[:, 1:].reshape(2, 250, 2)}
    result = run_test(lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2)), tree, method="rademacher", chains=True)
    plain = run_test(logdensity, good, method="rademacher")
    np.testing.assert_allclose(result.replicates, plain.replicates, rtol=1e-4)


def test_weighted_draws(good):
    # Importance weights from a wider to the right normal distribution.
    wide = 1.3 * good
    log_weights = jnp.sum(0.5 * (wide / 1.3) ** 2 - 0.5 * wide**2, axis=1)
    assert run_test(logdensity, wide).reject
    assert not run_test(logdensity, wide, weights=jnp.exp(log_weights)).reject


def test_functions_of_the_users_own_can_be_tested(good):
    waves = jaxpsd.SteinDiscrepancy(lambda x: jnp.sin(x))
    assert not jaxpsd.gof_test(KEY, waves, logdensity, good).reject
    assert jaxpsd.gof_test(KEY, waves, logdensity, good + 0.5).reject


# --- several orders ---------------------------------------------------------------------------------------


def test_orders_come_from_one_pass(good):
    together = jaxpsd.gof_test(KEY, jaxpsd.PSD(4), logdensity, 1.1 * good, orders=(1, 2, 4), method="rademacher")
    assert together.statistic.shape == together.adjusted_p_value.shape == (3,)
    assert together.replicates.shape == (500, 3)
    for index, order in enumerate((1, 2, 4)):
        alone = jaxpsd.gof_test(KEY, jaxpsd.PSD(order), logdensity, 1.1 * good, method="rademacher")
        np.testing.assert_allclose(together.statistic[index], alone.statistic, rtol=1e-4)
        np.testing.assert_allclose(together.replicates[:, index], alone.replicates, rtol=1e-3)
    assert (together.adjusted_p_value >= together.p_value).all()


# --- dependent draws --------------------------------------------------------------------------------------


def test_auto_takes_independent_draws_for_what_they_are(good):
    result = run_test(logdensity, good)
    assert (result.method, result.parameter) == ("rademacher", None)
    assert result.autocorrelation_time < 1.6


def test_auto_measures_dependence_and_says_so(chain):
    result = run_test(logdensity, chain(0.9, (2, 4000, 3)))
    assert result.method == "markov"
    assert result.autocorrelation_time == pytest.approx(19, rel=0.4)
    assert result.parameter == pytest.approx(0.5 * 8000 ** (-1 / 3) * result.autocorrelation_time ** (-2 / 3), rel=0.02)
    assert not result.reject


def test_blocks_where_markov_signs_would_hardly_ever_flip(chain):
    x = chain(0.99, (1, 1000, 2))
    with pytest.warns(jaxpsd.DependentDrawsWarning, match="too few"):
        result = run_test(logdensity, x + 20)
    assert result.method == "block"
    assert result.reject
    assert result.p_value_floor < 0.05


def test_chains_that_cannot_be_rejected_bring_a_warning(good):
    with pytest.warns(jaxpsd.DependentDrawsWarning, match="nothing can be rejected"):
        result = run_test(logdensity, good, method="markov", flip_probability=0.001)
    assert result.p_value_floor == pytest.approx(0.999**499, rel=0.05)


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_replicates_without_a_flip_are_ties(form):
    x = 0.1 + jax.random.normal(KEY, (5000, 7))
    with pytest.warns(jaxpsd.DependentDrawsWarning):
        result = jaxpsd.gof_test(
            KEY, jaxpsd.PSD(2, form=form), -x, x, method="markov", flip_probability=1e-7, num_replicates=200
        )
    # One flip in 2²⁴ is the smallest probability: all but a few in 10⁴ replicates have none.
    assert result.p_value > 0.99


@pytest.mark.parametrize(
    "method", ["multinomial", *(pytest.param(method, marks=slow) for method in ("rademacher", "asymptotic"))]
)
def test_methods_for_independent_draws_warn_of_dependent_ones(chain, method):
    with pytest.warns(jaxpsd.DependentDrawsWarning, match="correlated") as caught:
        run_test(logdensity, chain(0.7, (1, 500, 2)), method=method)
    assert caught[0].filename == __file__


def test_the_adaptive_test_warns_where_it_was_called(chain):
    with pytest.warns(jaxpsd.DependentDrawsWarning, match="correlated") as caught:
        jaxpsd.adaptive_test(KEY, logdensity, chain(0.7, (1, 500, 2)), method="rademacher", num_replicates=99)
    assert caught[0].filename == __file__


def test_scales_that_differ_bring_a_warning_unless_standardised(good):
    x = good * jnp.array([[1.0, 100.0, 1.0]])
    scores = -good / jnp.array([[1.0, 100.0, 1.0]])
    with pytest.warns(jaxpsd.ScalesWarning, match="coordinate 1 has standard deviation"):
        run_test(scores, x)
    jaxpsd.gof_test(KEY, jaxpsd.PSD(2, transform="standardize"), scores, x)


def test_heavy_tails_bring_a_warning(good):
    with pytest.warns(jaxpsd.HeavyTailsWarning):
        run_test(logdensity, good.at[7].set(60.0))


# --- tracing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["markov", *(pytest.param(method, marks=slow) for method in ("rademacher", "asymptotic"))]
)
def test_sample_sets_can_be_tested_all_at_once(good, method):
    options = {"method": method, "num_replicates": 99, **OPTIONS[method]}
    keys, sets = jax.random.split(KEY, 4), good[:480].reshape(4, 120, 3)
    one = lambda key, x: jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, x, **options)  # noqa: E731
    together = jax.jit(jax.vmap(one))(keys, sets)
    assert together.p_value.shape == (4,)
    np.testing.assert_allclose(together.replicates[2], one(keys[2], sets[2]).replicates, rtol=2e-3, atol=1e-5)
    assert "shape (4,)" in repr(together)


def test_results_are_pytrees(good):
    result = run_test(logdensity, good)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, result)
    assert doubled.method == result.method
    assert float(doubled.statistic) == pytest.approx(2 * float(result.statistic))


def test_a_draw_that_is_not_finite_is_an_error_or_no_p_value(good):
    bad = good.at[17, 1].set(jnp.nan)
    with pytest.raises(ValueError, match="draw 17, coordinate 1"):
        run_test(logdensity, bad)
    traced = jax.jit(lambda x: run_test(logdensity, x, method="rademacher"))(bad)
    assert np.isnan(traced.statistic)
    assert np.isnan(traced.p_value)
    assert not traced.reject


@pytest.mark.parametrize("method", ["auto", "markov", "block"])
def test_what_has_to_be_measured_cannot_be_traced(good, method):
    with pytest.raises(ValueError, match="autocorrelation time"):
        jax.jit(lambda x: run_test(logdensity, x, method=method))(good)


# --- errors and words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "bootstrap"}, "'rademacher'"),
        ({"alpha": 0.0}, "between 0 and 1"),
        ({"alpha": 1.5}, "between 0 and 1"),
        ({"alpha": 0.05, "num_replicates": 18}, "at least 19"),
        ({"alpha": 0.001, "num_replicates": 500}, "at least 999"),
        ({"num_replicates": 0}, "num_replicates"),
        ({"flip_probability": 0.1}, "belongs to method='markov'"),
        ({"block_length": 10, "method": "markov"}, "belongs to method='block'"),
        ({"flip_probability": 0.7, "method": "markov"}, "at most ½"),
        ({"block_length": 0, "method": "block"}, "at least 1"),
        ({"deterministic": True}, "belongs to method='asymptotic'"),
        ({"null_samples": np.zeros((5, 3))}, "belongs to method='asymptotic'"),
        ({"method": "multinomial", "weights": np.ones(500)}, "no weights"),
        ({"orders": (1, 3)}, "only to 2"),
        ({"orders": ()}, "at least one"),
        ({"orders": (1, 1)}, "different"),
        ({"orders": (1, 2), "method": "asymptotic"}, "common replicates"),
    ],
)
def test_options_that_make_no_sense(good, options, message):
    with pytest.raises(ValueError, match=message):
        run_test(logdensity, good, **options)


def test_nineteen_replicates_are_enough(good):
    assert run_test(logdensity, 2 * good, num_replicates=19).reject


def test_one_draw_is_not_enough(good):
    with pytest.raises(ValueError, match="at least two draws"):
        run_test(logdensity, good[:1])


@pytest.mark.parametrize("method", ["auto", "markov", "block"])
def test_chains_of_one_draw_say_nothing_of_dependence(good, method):
    with pytest.raises(ValueError, match="a single draw"):
        run_test(logdensity, good[:, None], method=method)


def test_a_class_is_not_a_discrepancy(good):
    with pytest.raises(TypeError, match="PSD"):
        jaxpsd.gof_test(KEY, jaxpsd.PSD, logdensity, good)


def test_methods_that_the_discrepancy_cannot_do(good):
    largest = jaxpsd.PSD(2, norm="l1")
    assert jaxpsd.gof_test(KEY, largest, logdensity, good, method="rademacher").p_value > 0
    with pytest.raises(ValueError, match="U-statistic"):
        jaxpsd.gof_test(KEY, largest, logdensity, good, method="multinomial")
    with pytest.raises(ValueError, match="degrees"):
        jaxpsd.gof_test(KEY, jaxpsd.SteinDiscrepancy(jnp.sin), logdensity, good, orders=(1,))


def test_null_samples_need_their_own_scores(good):
    with pytest.raises(ValueError, match="null_target"):
        run_test(-good, good, method="asymptotic", null_samples=good)
    assert run_test(-good, good, method="asymptotic", null_samples=good, null_target=-good).p_value > 0
    with pytest.raises(ValueError, match="structure"):
        run_test(logdensity, good, method="asymptotic", null_samples=good[:, :2])


def test_counts_that_would_not_fit(good):
    with pytest.raises(ValueError, match="'rademacher'"):
        run_test(logdensity, good, method="multinomial", num_replicates=10**8)


def test_replicates_that_would_not_fit(good):
    with pytest.raises(ValueError, match="fewer replicates"):
        jaxpsd.gof_test(KEY, jaxpsd.PSD(2, form="primal"), logdensity, good, num_replicates=10**8)


def test_results_read_well(chain, good):
    result = run_test(logdensity, 1.3 * good)
    assert repr(result).startswith("GofResult(V = ")
    assert "p = 0.002, rejected at 0.05; rademacher, 500 replicates, autocorrelation time" in repr(result)
    several = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, good, orders=(1, 2))
    assert "V of order 1 = " in repr(several)
    assert "adjusted" in repr(several)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "flip probability" in repr(run_test(logdensity, chain(0.8, (1, 2000, 2))))


@pytest.mark.parametrize("key", [0, jax.random.split(KEY, 3), np.zeros(2)])
def test_keys_that_are_none(good, key):
    with pytest.raises(TypeError, match="rng_key"):
        jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, good)
    with pytest.raises(TypeError, match="rng_key"):
        jaxpsd.adaptive_test(key, logdensity, good)


@pytest.mark.parametrize("orders", [2, "12", iter((1, 2))])
def test_orders_that_are_none(good, orders):
    with pytest.raises(TypeError, match="orders"):
        run_test(logdensity, good, orders=orders)


def test_both_parameters_cannot_be_meant(good):
    with pytest.raises(ValueError, match="block_length"):
        run_test(logdensity, good, method="markov", flip_probability=0.1, block_length=7)


def test_a_deterministic_test_needs_no_replicates(good):
    result = run_test(logdensity, good, method="asymptotic", deterministic=True, alpha=1e-6, num_replicates=1)
    assert not result.reject


def test_null_samples_are_looked_at(good):
    with pytest.raises(ValueError, match="draw 7, coordinate 0"):
        run_test(logdensity, good, method="asymptotic", null_samples=good.at[7, 0].set(jnp.nan))
    with pytest.raises(ValueError, match="two draws"):
        run_test(logdensity, good, method="asymptotic", null_samples=good[:1])


def test_features_too_small_to_be_squared_are_an_error(good):
    with pytest.raises(FloatingPointError, match="too small"):
        jaxpsd.gof_test(KEY, jaxpsd.PSD(1), -1e-30 * good, 1e20 * good)


def test_overflow_inside_jit_has_no_p_value(good):
    traced = jax.jit(lambda x: jaxpsd.gof_test(KEY, jaxpsd.PSD(4), logdensity, x, method="rademacher"))(3e5 * good)
    assert np.isnan(traced.p_value)
    assert not traced.reject


def test_far_from_the_target_draws_are_still_seen_to_be_independent(good):
    for shift in (3e3, 1e4):
        result = run_test(logdensity, good + shift)
        assert result.method == "rademacher"
        assert result.autocorrelation_time < 2


def test_chains_worth_few_draws_bring_a_warning(chain):
    with pytest.warns(jaxpsd.DependentDrawsWarning, match="independent draws, too few"):
        run_test(logdensity, chain(0.995, (1, 1000, 2)))


def test_p_values_are_exact_ranks_in_double_precision(x64):
    x = jax.random.normal(KEY, (100, 2))
    result = run_test(-x, x, num_replicates=499)
    assert float(result.p_value) * 500 == pytest.approx(round(float(result.p_value) * 500), abs=1e-10)


def test_results_without_values_have_a_word_too(good):
    shapes = jax.eval_shape(lambda x: run_test(logdensity, x, method="rademacher"), good)
    assert "shape ()" in repr(shapes)


def test_an_order_whose_statistic_is_too_small_for_its_dtype_is_refused(normal_draws):
    x, _ = normal_draws
    with pytest.raises(FloatingPointError, match="A statistic and all its replicates are zero"):
        jaxpsd.gof_test(jax.random.key(0), jaxpsd.PSD(2), -1e-25 * x, x, orders=(1, 2), num_replicates=39)


def test_a_kernel_that_is_not_positive_definite_is_refused(normal_draws):
    x, s = normal_draws
    indefinite = jaxpsd.KernelDiscrepancy(lambda x, s, y, u: -jnp.sum(s * u))
    with pytest.raises(FloatingPointError, match="positive definite"):
        jaxpsd.gof_test(jax.random.key(0), indefinite, 0.5 + s, x, num_replicates=39)


def test_orders_beyond_two_warn_of_chains_worth_few_draws():
    with pytest.warns(jaxpsd.DependentDrawsWarning, match="worth about 60 independent draws, too few for order 4"):
        warn_of(find_too_few(0.001, 0.05, 60.4, 4))
    # Nothing to say: these would be errors.
    warn_of(find_too_few(0.001, 0.05, 60.4, 2))
    warn_of(find_too_few(0.001, 0.05, 120.0, 4))
    warn_of(find_too_few(0.001, 0.05, None, 4))


def test_doubts_travel_with_the_result_and_users_are_warned():
    x = jax.random.normal(KEY, (600, 2)).at[0].set(100.0)
    with pytest.warns(jaxpsd.HeavyTailsWarning) as caught:
        result = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), -x, x, num_replicates=50)
    assert [doubt.message for doubt in result.doubts] == [str(warning.message) for warning in caught]
    assert result.to_dict()["doubts"] == [doubt.message for doubt in result.doubts]
    # Doubts do not keep results from being stacked.
    good = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), -x[1:], x[1:], num_replicates=50)
    assert good.doubts == ()
    both = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(replace(r, autocorrelation_time=0.0) for r in (result, good))
    )
    assert both.p_value.shape == (2,)


def test_what_is_no_discrepancy_is_named_and_not_printed():
    x = jax.random.normal(KEY, (100, 2))
    optimized = jaxpsd.FSSD.optimized(KEY, -x, x)
    with pytest.raises(TypeError, match=r"got OptimizedFSSD\. Pass the `discrepancy`, `target` and") as caught:
        jaxpsd.gof_test(KEY, optimized, -x, x)
    assert len(str(caught.value)) < 200
    with pytest.raises(TypeError, match="got the class PSD"):
        jaxpsd.gof_test(KEY, jaxpsd.PSD, -x, x)
