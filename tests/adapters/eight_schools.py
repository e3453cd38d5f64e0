"""One posterior for all doors: eight schools, non-centred, in each library; and its density written by hand."""

import jax.numpy as jnp
import numpy as np

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SCHOOLS = (
    "Choate", "Deerfield", "Phillips Andover", "Phillips Exeter", "Hotchkiss", "Lawrenceville", "St. Paul's",
    "Mt. Hermon",
)  # fmt: skip

NAMES = ("mu", "log tau", *(f"z[{school}]" for school in SCHOOLS))

STAN = """
data { vector[8] y; vector[8] sigma; }
parameters { real mu; real<lower=0> tau; vector[8] z; }
transformed parameters { vector[8] theta = mu + tau * z; }
model { mu ~ normal(0, 5); tau ~ normal(0, 5); z ~ std_normal(); y ~ normal(theta, sigma); }
"""


def logdensity(position):
    """Of mu, of the logarithm of tau, and of z, up to a constant."""
    mu, log_tau, z = position["mu"], position["tau"], position["z"]
    tau = jnp.exp(log_tau)
    prior = -0.5 * ((mu / 5) ** 2 + (tau / 5) ** 2 + jnp.sum(z**2)) + log_tau
    return prior - 0.5 * jnp.sum(((jnp.asarray(EFFECTS) - mu - tau * z) / jnp.asarray(ERRORS)) ** 2)


def numpyro_model():
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(5))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + tau * z, ERRORS), obs=EFFECTS)


def pymc_model():
    import pymc

    with pymc.Model(coords={"school": SCHOOLS}) as model:
        mu = pymc.Normal("mu", 0, 5)
        tau = pymc.HalfNormal("tau", 5)
        z = pymc.Normal("z", 0, 1, dims="school")
        theta = pymc.Deterministic("theta", mu + tau * z, dims="school")
        pymc.Normal("y", theta, ERRORS, observed=EFFECTS, dims="school")
    return model
