from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import jaxpsd
from jaxpsd._core.origins import Kind
from jaxpsd._explain.remedies import about_divergences, remedy_for, remedy_for_divergences

KEY = jax.random.key(0)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("error", [-0.3, 0.3, None])
def test_only_chains_with_steps_are_told_to_take_smaller_ones(kind, error):
    said = remedy_for(jaxpsd.Origin(kind), error)
    if kind not in (Kind.SG_MCMC, Kind.UNKNOWN):
        assert "step size" not in said
        assert "mini-batch" not in said
    if kind in (Kind.VARIATIONAL, Kind.LAPLACE):
        assert "chains" not in said


def test_divergences_come_first_with_the_option_of_the_library():
    origin = jaxpsd.Origin("mcmc", "PyMC", divergences=69)
    assert about_divergences(origin, 4000).startswith("69 transitions of 4,000 diverged")
    assert about_divergences(replace(origin, divergences=1), 4000).startswith("1 transition of")
    assert about_divergences(replace(origin, divergences=0), 4000) is None
    assert about_divergences(jaxpsd.Origin(), 4000) is None
    assert "`target_accept=0.95`" in remedy_for_divergences(origin)
    assert "higher target acceptance" in remedy_for_divergences(jaxpsd.Origin("mcmc", divergences=1))


def test_a_report_says_what_fits_the_origin():
    x = 0.6 * jax.random.normal(KEY, (2000, 3))

    def report_on(origin):
        samples = jaxpsd.Draws(x, 4, origin=origin)
        return jaxpsd.diagnose(KEY, lambda x: -0.5 * jnp.sum(x**2), samples)

    report = report_on(jaxpsd.Origin("mcmc", "Stan", divergences=69))
    assert report.verdict.startswith("69 transitions of 2,000 diverged")
    assert "adapt_delta" in report.advice[0]
    assert report.to_dict()["origin"]["divergences"] == 69
    report = report_on(jaxpsd.Origin("laplace"))
    assert report.origin.kind == "laplace"
    assert report.verdict.startswith("These draws are not from the target")
    assert "curvature at the mode" in report.advice[0]
    assert not any("step" in line for line in report.advice)
