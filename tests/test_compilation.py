"""The library inside JAX's transformations, and what is compiled when."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.scores import Given

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
DISCREPANCIES = {
    "blocks": jaxpsd.PSD(3, form="primal", block_size=16),
    "dual": jaxpsd.PSD(3, form="dual", block_size=16),
    "marginal": jaxpsd.PSD(3, interactions=False),
    "l1 and penalty": jaxpsd.PSD(2, norm="l1", penalty=(1.0, 2.0)),
    "whiten": jaxpsd.PSD(2, transform="whiten"),
    "functions": jaxpsd.SteinDiscrepancy(lambda x: jnp.sin(x)),
    "kernel": jaxpsd.KSD(block_size=16),
}


def logdensity(x):
    return -0.25 * jnp.sum(x**4)


# One of each way to compute; the others run on a schedule.
_FEW = ("blocks", "dual", "kernel")


@pytest.fixture(params=[pytest.param(name, marks=() if name in _FEW else pytest.mark.slow) for name in DISCREPANCIES])
def discrepancy(request):
    return DISCREPANCIES[request.param]


def test_jit_changes_nothing(discrepancy):
    inside = jax.jit(lambda x: discrepancy(logdensity, x))
    np.testing.assert_allclose(inside(X), discrepancy(logdensity, X), rtol=1e-4)


def test_discrepancies_are_pytrees(discrepancy):
    value = jax.jit(lambda d, x: d(-x, x))(discrepancy, X)
    np.testing.assert_allclose(value, discrepancy(-X, X), rtol=1e-4)
    leaves, treedef = jax.tree.flatten(discrepancy)
    assert isinstance(jax.tree.unflatten(treedef, leaves), type(discrepancy))


def test_settings_compare_by_value():
    assert jaxpsd.PSD(2) == jaxpsd.PSD(2, transform=None)
    assert hash(jaxpsd.PSD(2)) == hash(jaxpsd.PSD(2))
    assert jaxpsd.PSD(2, transform="center") != jaxpsd.PSD(2)
    assert jaxpsd.PSD(2, transform="center").transform == "center"


def test_vmap_over_sample_sets(discrepancy):
    sets = np.stack([X, 2 * X, X - 1])
    together = jax.vmap(lambda x: discrepancy(logdensity, x))(sets)
    np.testing.assert_allclose(together, [discrepancy(logdensity, x) for x in sets], rtol=2e-4)


@pytest.mark.usefixtures("x64")
def test_gradient_with_respect_to_samples(discrepancy):
    x = X.astype(np.float64)
    value = lambda x: discrepancy(logdensity, x)  # noqa: E731
    gradient = jax.grad(value)(x)
    direction = np.random.default_rng(1).normal(size=x.shape)
    step = 1e-6
    difference = (value(x + step * direction) - value(x - step * direction)) / (2 * step)
    np.testing.assert_allclose(jnp.sum(gradient * direction), difference, rtol=1e-5)


@pytest.mark.usefixtures("x64")
def test_gradient_with_respect_to_parameters_of_the_log_density(discrepancy):
    x = X.astype(np.float64)
    value = lambda theta: discrepancy(lambda x: -jnp.sum(jnp.abs(x) ** theta), x)  # noqa: E731
    difference = (value(3.0 + 1e-6) - value(3.0 - 1e-6)) / 2e-6
    np.testing.assert_allclose(jax.grad(value)(3.0), difference, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(value))(3.0), difference, rtol=1e-5)


def test_the_gradient_at_zero_discrepancy_is_zero():
    x = jnp.array([[1.0], [-1.0]])
    assert jaxpsd.PSD(2)(-x, x) == 0
    assert (jax.grad(lambda x: jaxpsd.PSD(2)(-x, x))(x) == 0).all()


def test_one_trace_of_a_jitted_log_density_for_each_shape(discrepancy):
    chex.clear_trace_counter()
    # Positions have one shape, however many there are.
    traced = jax.jit(chex.assert_max_traces(lambda x: logdensity(x), n=1))
    for _ in range(3):
        discrepancy(traced, X)
    for _ in range(3):
        discrepancy(traced, X[:40])


def test_one_trace_inside_jit():
    chex.clear_trace_counter()
    traced = chex.assert_max_traces(lambda x: logdensity(x), n=1)
    jax.jit(lambda x: jaxpsd.PSD(3, block_size=7).u_statistic(traced, x))(X)


def test_one_compilation_for_each_shape():
    psd = jaxpsd.PSD(4)
    psd(-X, X)
    with jax.log_compiles(False), jax.no_tracing():
        psd(-X, X)


@pytest.mark.parametrize("discrepancy", [jaxpsd.PSD(1), jaxpsd.PSD(2, norm="l1")], ids=["squares", "maximum"])
def test_null_distributions_are_simulated_by_one_program(discrepancy):
    test = partial(jaxpsd.gof_test, discrepancy=discrepancy, target=-X, samples=X, method="asymptotic")
    test(jax.random.key(0))
    with jax.no_tracing():
        test(jax.random.key(1))


def test_no_tracer_leaks(discrepancy):
    with jax.checking_leaks():
        jax.jit(jax.grad(lambda x: discrepancy(logdensity, x)))(X)


def test_differentiating_keeps_no_block_in_memory():
    psd = jaxpsd.PSD(4, form="primal", block_size=100)
    x = jax.ShapeDtypeStruct((20_000, 10), jnp.float32)
    compiled = jax.jit(jax.grad(lambda x: psd.v_statistic(lambda x: -0.5 * jnp.sum(x**2), x))).lower(x).compile()
    # The monomials of all draws would be 20,000 × 286 numbers, 23 MB, several times over.
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5e7


def test_differentiating_keeps_no_scores_in_memory():
    data = jnp.linspace(-1, 1, 10_000)
    posterior = lambda theta: jnp.sum(jax.nn.log_sigmoid(theta[0] + theta[1] * data)) - theta @ theta  # noqa: E731
    x = jax.ShapeDtypeStruct((20_000, 2), jnp.float32)
    for form in ("primal", "dual"):
        gradient = jax.jit(jax.grad(lambda x, form=form: jaxpsd.PSD(2, form=form)(posterior, x)))
        # The data at all draws would be 20,000 × 10,000 numbers, 800 MB, several times over.
        assert gradient.lower(x).compile().memory_analysis().temp_size_in_bytes < 4e8


def test_programs_lower_for_accelerators(discrepancy):
    sets = jax.ShapeDtypeStruct((4, 60, 3), jnp.float32)
    program = jax.jit(jax.vmap(lambda x: discrepancy(logdensity, x)))
    exported = jax.export.export(program, platforms=("cuda", "tpu"))(sets)
    assert exported.platforms == ("cuda", "tpu")
    text = exported.mlir_module()
    # Matrix products say that they want all bits.
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert all("HIGHEST" in line for line in products)


def test_index_tables_are_arguments_of_the_compiled_program():
    from jaxpsd._core.checks import check_samples
    from jaxpsd._core.programs import Data
    from jaxpsd._discrepancies.base import _v

    draws = check_samples(jnp.zeros((50, 20)))
    psd = jaxpsd.PSD(4, form="primal")
    data = Data(draws.positions, draws.positions, None, None)
    text = jax.jit(_v).lower(data, psd._plan(Given(draws))).as_text()
    # The table for z̄ has 10,625 × 7 entries; as a literal it would be most of a megabyte of text.
    assert len(text) < 200_000


# --- tests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"method": "rademacher"}, {"method": "markov", "flip_probability": 0.1}])
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_tests_lower_for_accelerators(form, options):
    def test(key, x):
        psd = jaxpsd.PSD(3, form=form)
        return jaxpsd.gof_test(key, psd, logdensity, x, num_replicates=99, **options).p_value

    exported = jax.export.export(jax.jit(test), platforms=("cuda", "tpu"))(jax.random.key(0), jnp.zeros((500, 3)))
    assert exported.platforms == ("cuda", "tpu")


def test_a_test_traces_the_log_density_once_whatever_the_key_and_parameter():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def counted(x):
        return -0.5 * jnp.sum(x**2)

    x = jax.random.normal(jax.random.key(0), (300, 2))
    for seed, flip in enumerate((0.1, 0.02, 0.3)):
        jaxpsd.gof_test(
            jax.random.key(seed), jaxpsd.PSD(2), counted, x, method="markov", flip_probability=flip, num_replicates=99
        )
