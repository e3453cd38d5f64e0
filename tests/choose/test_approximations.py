import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._choose.approximations import _tail_shape

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2000, 2))

pytestmark = pytest.mark.filterwarnings("default:.*ArviZ:FutureWarning")


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def scaled(scale):
    return scale * X, jnp.sum(-0.5 * X**2, axis=1) - 2 * jnp.log(scale)


def test_the_tail_of_weights_stands_beside_the_discrepancy():
    given = {"narrow": scaled(0.4), "wide": scaled(1.3), "draws": X}
    table = jaxpsd.compare_approximations(KEY, logdensity, given, num_replicates=100)
    assert table.labels == ("draws", "wide", "narrow")
    assert table.good_enough == (True, False, False)
    assert np.isnan(table.pareto_k[0])
    # Wide draws have bounded weights; those of draws at 0.4 have no mean beyond 1 / (1 − 0.16) moments.
    assert table.pareto_k[1] < 0.5
    assert table.pareto_k[2] > 0.7
    assert "Pareto k̂" in repr(table)
    assert table.to_dict()["ranking"][0]["pareto_k"] is None


@pytest.mark.parametrize("k", [0.3, 0.9])
def test_the_shape_of_a_tail_is_that_of_pareto_weights(k):
    """By whichever of ArviZ and arviz-stats is installed, which differ in the sign of what they take."""
    uniform = np.random.default_rng(0).uniform(size=20_000)
    # Weights U⁻ᵏ have a Pareto tail of shape k; their inverses are bounded, and have a negative one. The standard error
    # of the estimate from m = 3√n tail weights is about (1 + k) / √m < 0.1.
    assert _tail_shape(-k * np.log(uniform)) == pytest.approx(k, abs=0.3)
    assert _tail_shape(k * np.log(uniform)) < 0.1


def test_without_densities_it_is_a_ranking():
    table = jaxpsd.compare_approximations(KEY, logdensity, {"a": X, "b": 1.3 * X}, num_replicates=100)
    assert table.pareto_k is None
    assert "Pareto" not in repr(table)


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="`approximations` must be a mapping"):
        jaxpsd.compare_approximations(KEY, logdensity, [X])
    with pytest.raises(TypeError, match="`logdensity_fn` must be a function"):
        jaxpsd.compare_approximations(KEY, -X, {"a": X})
    with pytest.raises(ValueError, match=r"log q for each draw of 'a': there are 2,000 draws, and 3"):
        jaxpsd.compare_approximations(KEY, logdensity, {"a": (X, jnp.zeros(3))}, num_replicates=100)
