"""Every discrepancy is called, tested and traced in the same way."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._gof.scheme import signs_of

slow = pytest.mark.slow

KEY = jax.random.key(0)
GOOD = jax.random.normal(KEY, (300, 2))
EVERY = {
    "psd": jaxpsd.PSD(2),
    "imq": jaxpsd.KSD(),
    "gaussian": jaxpsd.KSD(jaxpsd.Gaussian()),
    "moments": jaxpsd.KSD(jaxpsd.MomentKernel(2)),
    "linear": jaxpsd.LinearKSD(),
    "fssd": jaxpsd.FSSD.random(KEY, GOOD),
    "rfsd": jaxpsd.RFSD(),
    "largest": jaxpsd.PSD(2, norm="l1"),
    "functions": jaxpsd.SteinDiscrepancy(lambda x: (jnp.sin(x), jnp.cos(x))),
    "features": jaxpsd.FeatureDiscrepancy(lambda x, s: (s, 1 + x * s)),
    "kernel": jaxpsd.KernelDiscrepancy(lambda x, s, y, u: s @ u + jnp.sum((1 + x * s) * (1 + y * u))),
}


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.mark.parametrize("name", EVERY)
def test_values_and_tests_tell_right_draws_from_wrong_ones(name):
    discrepancy = EVERY[name]
    wrong = 2 * GOOD
    assert discrepancy(logdensity, GOOD) < discrepancy(logdensity, wrong)
    result = jaxpsd.gof_test(KEY, discrepancy, logdensity, GOOD, num_replicates=199)
    # A right test is this far off once in a hundred.
    assert result.p_value > 0.01
    assert result.method == ("asymptotic" if name == "linear" else "rademacher")
    assert jaxpsd.gof_test(KEY, discrepancy, logdensity, wrong, num_replicates=199).reject


# Here and below, a sum over pairs and a sum of features in every run.
@pytest.mark.parametrize(
    "name", ["imq", "fssd", *(pytest.param(name, marks=slow) for name in ("linear", "rfsd", "largest", "kernel"))]
)
def test_asymptotic_tests_agree_with_bootstraps_and_can_be_traced(name):
    discrepancy, x = EVERY[name], 1.15 * GOOD

    def p_value(x, method):
        return jaxpsd.gof_test(KEY, discrepancy, -x, x, method=method, num_replicates=999).p_value

    together = jax.jit(jax.vmap(lambda x: p_value(x, "asymptotic")))(jnp.stack([x, GOOD]))
    np.testing.assert_allclose(together[0], p_value(x, "asymptotic"), atol=0.002)
    if name != "linear":
        # Two estimates of one probability.
        np.testing.assert_allclose(together[0], p_value(x, "rademacher"), atol=0.1)


@pytest.mark.parametrize("name", ["imq", "fssd", *(pytest.param(name, marks=slow) for name in ("moments", "rfsd"))])
def test_chains_take_signs_that_persist(name, chain):
    x = chain(0.9, (2, 400, 2), seed=3)
    result = jaxpsd.gof_test(KEY, EVERY[name], logdensity, x, num_replicates=199)
    assert result.method == "markov"
    assert result.p_value > 0.01
    assert 8 < result.autocorrelation_time < 40


@pytest.mark.parametrize(
    ("name", "options"),
    [("imq", {"method": "markov", "flip_probability": 0.1}), ("rfsd", {"method": "block", "block_length": 7})],
)
def test_replicates_do_not_depend_on_the_size_of_tiles_and_blocks(name, options):
    results = [
        jaxpsd.gof_test(KEY, replace(EVERY[name], block_size=size), -GOOD, GOOD, num_replicates=99, **options)
        for size in (None, 37)
    ]
    np.testing.assert_allclose(results[0].replicates, results[1].replicates, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_replicates_of_a_kernel_are_quadratic_forms_of_its_gram_matrix():
    x = GOOD[:50].astype(float)
    options = {"method": "markov", "flip_probability": 0.2, "num_replicates": 39}
    kernel = jaxpsd.gof_test(KEY, EVERY["imq"], -x, x, **options)
    gram = np.asarray(EVERY["imq"].gram(-x, x))
    signs = signs_of(KEY, "markov", kernel.parameter, 50, 39).prepared(50).rows(jnp.asarray(0), 50)
    expected = np.einsum("im,ij,jm->m", signs, gram, signs)[1:] / 50**2
    np.testing.assert_allclose(kernel.replicates, expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["imq", "fssd", "rfsd", "linear"])
def test_programs_lower_for_accelerators(name):
    def test(key, x):
        return jaxpsd.gof_test(key, EVERY[name], logdensity, x, method="asymptotic", num_replicates=99).p_value

    discrepancy = EVERY[name].log_value if name == "rfsd" else EVERY[name]
    for program, arguments in ((discrepancy, (-GOOD, GOOD)), (test, (KEY, GOOD))):
        exported = jax.export.export(jax.jit(program), platforms=("cuda", "tpu"))(*arguments)
        products = [line for line in exported.mlir_module().splitlines() if "stablehlo.dot_general" in line]
        assert all("HIGHEST" in line for line in products)
