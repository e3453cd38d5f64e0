"""One posterior through NumPyro, BlackJAX and ArviZ; PyMC, nutpie and Stan have files of their own beside this one."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eight_schools import NAMES, SCHOOLS, logdensity, numpyro_model
from numpyro.infer import MCMC, NUTS

import jaxpsd

KEY = jax.random.key(0)

# All in one precision: JAX keeps some of what it has compiled for constants of the other.
pytestmark = pytest.mark.usefixtures("x64")


def by_numpyro(num_draws):
    mcmc = MCMC(
        NUTS(numpyro_model, target_accept_prob=0.95), num_warmup=num_draws, num_samples=num_draws, num_chains=2,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    mcmc.run(KEY)
    return jaxpsd.from_numpyro(mcmc)


def by_blackjax(num_draws):
    start = {"mu": jnp.zeros(2), "tau": jnp.zeros(2), "z": jnp.zeros((2, 8))}
    scale = jnp.array([12.0, 1.0, *[1.0] * 8])
    kernel = blackjax.nuts(logdensity, 0.25, scale)

    def step(states, key):
        states, infos = jax.vmap(kernel.step)(jax.random.split(key, 2), states)
        return states, (states, infos)

    keys = jax.random.split(KEY, 2 * num_draws)
    states, infos = jax.jit(lambda states: jax.lax.scan(step, states, keys)[1])(jax.vmap(kernel.init)(start))
    return jaxpsd.from_blackjax(*jax.tree.map(lambda leaf: leaf[num_draws:], (states, infos)))


def by_arviz(num_draws):
    target, samples = by_numpyro(num_draws)
    return jaxpsd.from_arviz({"posterior": samples.to_arviz()}, target)


DOORS = {"numpyro": by_numpyro, "blackjax": by_blackjax, "arviz": by_arviz}


@pytest.mark.parametrize("door", DOORS)
def test_scores_are_those_of_the_posterior(door):
    target, samples = DOORS[door](20)
    scores = jaxpsd.score(target, samples) if callable(target) else target
    expected = jaxpsd.score(logdensity, samples)
    assert set(samples) == {"mu", "tau", "z"}
    assert samples.num_chains == 2
    if door == "numpyro":
        assert samples.with_coords({"school": SCHOOLS}).names == NAMES
    for name in expected:
        np.testing.assert_allclose(scores[name], expected[name], rtol=1e-5, atol=1e-5)
    if callable(target):
        constant = jax.jit(jax.vmap(lambda position: target(position) - logdensity(position)))(samples.positions)
        assert np.ptp(constant) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_the_verdict_is_the_same(door):
    report = jaxpsd.diagnose(KEY, *DOORS[door](2000))
    assert not report.reject
    assert "log tau" in report.moments.names or door != "numpyro"
