"""Settings and fixtures for all tests."""

import itertools
import os
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

DATA = Path(__file__).parent / "data"


# Most of the time goes into compiling programs that run once: they need not be fast. The scheduled workflow sets the
# variable to 0, and runs what users run.
fast_compilation = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") == "1"
jax.config.update("jax_disable_most_optimizations", fast_compilation)

# What one process has compiled, others need not: workers, notebooks, scripts, and the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

# For the tests of draws that are spread over devices; all others use the first.
jax.config.update("jax_num_cpu_devices", 8)


# Compiled programs are kept as long as the process lives, and the system maps only so many pieces of code.
_TESTS_BETWEEN_CLEARING = 100
_tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def _not_too_many_programs():
    yield
    if next(_tests_run) % _TESTS_BETWEEN_CLEARING == 0:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def _no_broadcasting_by_accident(request):
    """Broadcasting is an error, but where other libraries take part."""
    others = request.module.__name__.removeprefix("tests.") in ("test_numpyro", "test_blackjax")
    with jax.numpy_rank_promotion("allow" if others else "raise"):
        yield


@pytest.fixture
def x64():
    """Run in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=sorted(path.stem for path in DATA.glob("*.npz")))
def reference(request):
    """Samples, scores and values from the published NumPy implementation, one target each."""
    with np.load(DATA / f"{request.param}.npz") as file:
        return {"name": request.param, **file}


@pytest.fixture
def normal_draws():
    """Draws from a standard normal, with its scores."""
    x = jax.random.normal(jax.random.key(0), (200, 3))
    return x, -x


@pytest.fixture(scope="session")
def chain():
    """AR(1) chains (chains, draws, dim) with standard normal margins, by correlation, shape and seed."""

    def autoregressive(rho, shape, seed=0):
        noise = jax.random.normal(jax.random.key(seed), (shape[1], shape[0], shape[2]))
        step = lambda x, e: (rho * x + jnp.sqrt(1 - rho**2) * e,) * 2  # noqa: E731
        _, draws = jax.lax.scan(step, noise[0], noise)
        return jnp.swapaxes(draws, 0, 1)

    return autoregressive


# Each variant of these compiles programs of its own, which is what takes time. Every run tries the first; the
# scheduled one tries all.
_ONE_VARIANT = {
    "test_any_discrepancy_ranks_by_its_own_values",
    "test_asymptotic_tests_agree_with_bootstraps_and_can_be_traced",
    "test_batches_of_any_size_give_the_result_of_one_call",
    "test_chains_take_signs_that_persist",
    "test_dual_and_primal_agree_for_any_degree_weights",
    "test_every_bootstrap_will_do_and_can_be_traced",
    "test_implied_errors_are_exact_for_a_gaussian_target",
    "test_mean_features_from_moments_are_the_mean_of_the_features",
    "test_merging_is_associative_and_gives_the_result_of_one_call",
    "test_methods_for_independent_draws_warn_of_dependent_ones",
    "test_moments_features_and_gram_give_the_same_statistics",
    "test_psd_is_zero_if_and_only_if_the_moments_of_a_gaussian_match",
    "test_recurrence_matches_the_operator_by_autodiff",
    "test_replicates_do_not_depend_on_the_block_size",
    "test_replicates_do_not_depend_on_the_size_of_tiles_and_blocks",
    "test_right_draws_pass_and_wrong_draws_do_not",
    "test_sample_sets_can_be_tested_all_at_once",
    "test_scores_and_log_density_give_the_same_test",
    "test_several_orders_are_those_of_the_orders_alone",
    "test_signs_do_not_depend_on_the_block_length",
    "test_stein_kernels_are_those_of_a_double_loop_with_autodiff",
    "test_tests_are_those_of_each_set",
    "test_the_autocorrelation_time_is_that_of_one_device",
    "test_the_block_size_changes_nothing",
    "test_the_diagonal_is_the_squared_length_of_the_features",
    "test_v_statistics_are_quadratic_forms_of_the_gram_matrix",
    "test_values_are_those_of_each_set",
    "test_values_are_those_of_one_device",
    "test_values_in_single_precision",
    "test_work_goes_on_where_it_was_interrupted",
}


# These take long, and what they look at is also seen, in part, by others.
_ON_SCHEDULE = {
    "test_a_correlated_regression_is_told_from_its_mean_field",
    "test_a_hundred_parameters_stay_legible",
    "test_a_kill_at_any_time_changes_nothing",
    "test_a_report_goes_beside_a_summary",
    "test_a_report_is_printed",
    "test_a_set_gone_astray_does_not_set_the_scale",
    "test_a_target_far_from_gaussian_is_called_so",
    "test_a_transform_is_a_change_of_coordinates",
    "test_an_iterator_of_batches",
    "test_any_array_gives_a_finite_number_or_a_clear_error",
    "test_chains_are_known_to_be_dependent",
    "test_chains_get_larger_standard_errors",
    "test_chains_on_devices_of_their_own",
    "test_discrepancies_are_pytrees_and_work_inside_jit_and_vmap",
    "test_equal_samplers_are_told_apart_no_more_often_than_they_should_be",
    "test_everything_else_takes_them_too",
    "test_features_and_pairs_give_the_same_replicates",
    "test_heavy_tails_are_a_caveat",
    "test_moments_that_do_not_converge_are_seen_by_the_moment_kernel_and_not_by_imq",
    "test_names_come_from_the_pytree_or_the_user",
    "test_optimisation_shows_its_progress_on_request_and_can_be_traced",
    "test_programs_are_found_again_by_other_processes",
    "test_random_locations_look_like_the_draws",
    "test_replicates_of_a_kernel_are_quadratic_forms_of_its_gram_matrix",
    "test_replicates_of_other_runs_are_what_their_formula_says",
    "test_right_draws_pass_and_wrong_ones_fail",
    "test_scores_weights_and_pytrees_will_do",
    "test_sets_of_equal_length_are_computed_together_as_if_alone",
    "test_the_chosen_step_size_has_the_star",
    "test_the_gradient_is_that_of_the_definition",
    "test_the_median_chain_stands_for_a_run",
    "test_the_optimised_criterion_is_higher_and_the_rest_is_held_out",
    "test_the_report_says_what_rounding_does",
    "test_the_test_keeps_its_level_and_finds_errors",
    "test_two_processes_get_the_results_of_one",
}


# Of the published code's values, ten of each discrepancy.
_REFERENCE = "test_values_are_those_of_the_published_code"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what need not run every time."""
    seen = Counter()
    for item in items:
        name = getattr(item, "originalname", None)
        place = item.path, name
        seen[place] += 1
        is_one_of_many = (name in _ONE_VARIANT and seen[place] > 1) or (name == _REFERENCE and seen[place] > 10)
        if is_one_of_many or name in _ON_SCHEDULE:
            item.add_marker(pytest.mark.slow)
