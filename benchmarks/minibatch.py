"""Scores from mini-batches: what they save on large data, and why a sampler's own gradients will not do.

Saving: logistic regression with 10⁵ observations; scores of 2,000 draws from all data and from mini-batches, with the
standard error of a mean score. Bias: stochastic-gradient Langevin dynamics on a normal posterior, whose draws are
scored exactly, by fresh mini-batches, and by the gradients that the sampler took on its way. Run with
`python -m benchmarks.minibatch`.
"""

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpsd
from benchmarks._harness import best_time, main, table

DIM = 10


def log_prior(beta):
    return -0.5 * jnp.sum(beta**2) / 100


def log_likelihood(beta, batch):
    x, y = batch
    logits = x @ beta
    return jnp.sum(y * logits - jnp.logaddexp(0, logits))


def saving(num_observations: int, num_draws: int, batch_sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (num_observations, DIM))
    beta = jnp.linspace(-1, 1, DIM)
    y = (jax.random.uniform(keys[1], (num_observations,)) < jax.nn.sigmoid(x @ beta)).astype(jnp.float32)
    data = (x, y)
    # Draws of the normal approximation about the mode, by Newton's method: all but exact with so many data.
    exact = lambda at: log_prior(at) + log_likelihood(at, data)  # noqa: E731
    mode = beta
    for _ in range(10):
        mode = mode - jnp.linalg.solve(jax.hessian(exact)(mode), jax.grad(exact)(mode))
    factor = jnp.linalg.cholesky(jnp.linalg.inv(-jax.hessian(exact)(mode)))
    samples = mode[None] + jax.random.normal(keys[2], (num_draws, DIM)) @ factor.T
    wide = mode[None] + 1.3 * (samples - mode[None])
    psd = jaxpsd.PSD(2, transform="standardize")
    density = jax.tree_util.Partial(lambda data, at: log_prior(at) + log_likelihood(at, data), data)

    def row(name: str, score: Any) -> dict[str, Any]:
        seconds = best_time(lambda: score(samples), seconds=1.0)
        right, wrong = (
            float(jaxpsd.gof_test(keys[3], psd, score(draws), draws, method="rademacher").p_value)
            for draws in (samples, wide)
        )
        scores = jaxpsd.Affine.fit(samples, "standardize").scores(score(samples))
        return {
            "scores": name, "seconds": seconds, "p_right": right, "p_wide": wrong,
            "standard_error": float(np.std(scores, axis=0).max() / num_draws**0.5),
        }  # fmt: skip

    rows = [row("all data", partial(jaxpsd.score, density))]
    for size in batch_sizes:
        rows.append(
            row(
                f"{size:,} of {num_observations:,}",
                lambda draws, size=size: jaxpsd.minibatch_score(
                    keys[3], log_prior, log_likelihood, data, draws, batch_size=size
                ),
            )
        )
    for each in rows:
        each["faster"] = rows[0]["seconds"] / each["seconds"]
    return rows


# --- bias -------------------------------------------------------------------------------------------------


def normal_prior(mu):
    return -0.5 * jnp.sum(mu**2) / 100


def normal_likelihood(mu, batch):
    return -0.5 * jnp.sum((batch - mu[None]) ** 2)


@partial(jax.jit, static_argnames=("num_sweeps", "batch_size"))
def sgld(key: jax.Array, data: jax.Array, step_size: float, num_sweeps: int, batch_size: int):
    """Positions, and the gradients that were taken there; batches partition the data anew in every sweep."""
    num_batches = len(data) // batch_size

    def step(mu, given):
        batch, noise = given
        gradient = jax.grad(normal_prior)(mu) + num_batches * jax.grad(normal_likelihood)(mu, batch)
        return mu + 0.5 * step_size * gradient + jnp.sqrt(step_size) * noise, (mu, gradient)

    def sweep(mu, key):
        order, noise = jax.random.split(key)
        batches = jax.random.permutation(order, data).reshape(num_batches, batch_size, -1)
        return jax.lax.scan(step, mu, (batches, jax.random.normal(noise, (num_batches, data.shape[1]))))

    _, path = jax.lax.scan(sweep, data.mean(axis=0), jax.random.split(key, num_sweeps))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, data.shape[1]), path)


def bias(repeats: int, num_sweeps: int) -> list[dict[str, Any]]:
    data = jax.random.normal(jax.random.key(1), (100, 2))
    precision = 100 + 1 / 100
    affine = jaxpsd.Affine(data.sum(axis=0) / precision, jnp.full(2, precision**-0.5))
    psd = jaxpsd.PSD(2, transform=affine)
    # A tenth of the step at which the sampler would be visibly wide.
    step_size = 0.02 / precision
    found: dict[str, list[tuple[float, float]]] = {"exact": [], "fresh mini-batches": [], "the sampler's own": []}
    for key in jax.random.split(jax.random.key(2), repeats):
        positions, own = sgld(key, data, step_size, num_sweeps, 10)
        scores = {
            "exact": -(positions - affine.loc[None]) * precision,
            "fresh mini-batches": jaxpsd.minibatch_score(
                key, normal_prior, normal_likelihood, data, positions, batch_size=10
            ),
            "the sampler's own": own,
        }
        for name, each in scores.items():
            mean = psd.features(each, positions).mean(axis=0)
            square = psd.exponents(2).tolist().index([2, 0])
            test = jaxpsd.gof_test(key, psd, each, positions)
            found[name].append((float(mean[square]), float(test.p_value)))
    rows = []
    for name, pairs in found.items():
        means, p = np.array(pairs).T
        rows.append(
            {
                "scores": name, "repeats": repeats, "mean_feature": float(means.mean()),
                "standard_error": float(means.std() / len(means) ** 0.5), "rejected": float((p <= 0.05).mean()),
            }
        )  # fmt: skip
    return rows


def run(smoke: bool) -> dict[str, Any]:
    warnings.simplefilter("ignore", jaxpsd.DependentDrawsWarning)
    return {
        "saving": saving(2000, 100, (100,)) if smoke else saving(100_000, 2000, (100, 1000, 10_000)),
        "bias": bias(2, 20) if smoke else bias(100, 3000),
    }


def render(result: dict[str, Any]) -> str:
    return "\n".join(
        [
            "# Scores from mini-batches",
            "",
            "## What they save",
            "",
            "Logistic regression, 10 coefficients, 2,000 draws: right ones, and ones 1.3 times too wide. PSD of order "
            "2, standardised.",
            "",
            table(
                {
                    "scores": "scores from", "seconds": "seconds", "faster": "times faster",
                    "standard_error": "standard error of a mean score (in units of 1 / sd)",
                    "p_right": "p, right draws", "p_wide": "p, wide draws",
                },
                result["saving"],
            ),
            "## A sampler's own gradients are biased",
            "",
            "Stochastic-gradient Langevin dynamics with a small step on a normal posterior, ten of a hundred "
            "observations at a step, drawn without replacement within a sweep. The mean feature of x² is zero for "
            "right draws; all three rows are of the same draws.",
            "",
            table(
                {
                    "scores": "scores", "mean_feature": "mean feature of x²", "standard_error": "standard error",
                    "rejected": "rejected at 5%", "repeats": "repeats",
                },
                result["bias"],
            ),
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main("minibatch", run, render)
