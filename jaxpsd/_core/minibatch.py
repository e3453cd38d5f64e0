"""Scores from mini-batches of the data, where a pass over all of them for every draw is too much.

Stein features are linear in the score. With an unbiased estimate of it, whose noise is fresh for every draw, features
still have mean zero under the target, and discrepancies, tests and moments hold with the noise as part of the draws'.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from jaxpsd._core.blocks import block_length, map_over_blocks
from jaxpsd._core.checks import as_arrays, check_fits, check_key, check_positive_integer, check_samples
from jaxpsd._core.draws import one_position
from jaxpsd._core.functions import check_function, returning_number
from jaxpsd._core.scores import Given, guarded_score
from jaxpsd._core.sharding import move_to_devices_of
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import LogDensityFn, PyTree

# Arrays of the size of a batch that there are at a time, with what is computed from it and kept for its derivative.
_LIVE_BATCHES = 8


def minibatch_score(
    rng_key: PRNGKeyArray,
    log_prior: LogDensityFn,
    log_likelihood: Callable[[PyTree, PyTree], Any],
    data: PyTree,
    samples: PyTree,
    *,
    batch_size: int,
    chains: bool | None = None,
) -> PyTree:
    """Estimate ∇log p at every draw from a mini-batch of its own, without bias.

    The score is ∇log prior + (N / B) Σ ∇log likelihood over B of N observations, drawn anew and with replacement for
    every draw. What a sampler has computed on its way will not do instead: the noise of its gradients has driven the
    draws that follow, and batches of one sweep depend on each other, so that features no longer have mean zero.

    Parameters
    ----------
    rng_key
        A key of `jax.random`.
    log_prior
        The log-density of the prior, a function of one position.
    log_likelihood
        `log_likelihood(position, batch)`, the sum over a batch of observations.
    data
        A pytree of arrays whose first axis is that of the observations.
    samples
        Draws, as everywhere in the library.
    batch_size
        B.
    chains
        Whether the leaves of a pytree of samples have a chain axis before the draws.

    Returns
    -------
    PyTree
        Scores in the structure and shape of the samples, to be passed as a target.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> data = jax.random.normal(jax.random.key(0), (10_000,))
    >>> def log_prior(mu):
    ...     return -0.5 * jnp.sum(mu**2) / 100
    >>> def log_likelihood(mu, batch):
    ...     return -0.5 * jnp.sum((batch - mu) ** 2)
    >>> samples = data.mean() + jax.random.normal(jax.random.key(1), (2000, 1)) / 100
    >>> keys = jax.random.split(jax.random.key(2))
    >>> scores = jaxpsd.minibatch_score(keys[0], log_prior, log_likelihood, data, samples, batch_size=100)
    >>> psd = jaxpsd.PSD(2, transform="standardize")
    >>> bool(jaxpsd.gof_test(keys[1], psd, scores, samples).reject)
    False
    """
    check_key(rng_key)
    check_function(log_prior, "log_prior", "one position")
    check_function(log_likelihood, "log_likelihood", "one position and a batch of observations")
    batch_size = check_positive_integer(batch_size, "batch_size")
    draws = check_samples(samples, chains=chains)
    data = as_arrays(data, "data")
    leaves = jax.tree.leaves(data)
    if len({leaf.shape[:1] for leaf in leaves}) != 1 or leaves[0].ndim == 0:
        raise ValueError("`data` must be arrays whose first axis is that of the observations.")
    num_observations = len(leaves[0])
    if num_observations == 0:
        raise ValueError("`data` holds no observations.")

    observation = sum(leaf.itemsize * max(1, leaf.size // num_observations) for leaf in leaves)
    numbers = ceil(observation / draws.dtype.itemsize)
    what = "A mini-batch, and what is computed from it,"
    check_fits((_LIVE_BATCHES, batch_size, numbers), draws.dtype, what, "Lower `batch_size`.")
    length = block_length(draws.num_draws, _LIVE_BATCHES * batch_size * observation)
    position = one_position(draws.positions)
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((batch_size, *leaf.shape[1:]), leaf.dtype), data)
    prior = trace(returning_number(log_prior, "log_prior"), position)
    likelihood = trace(returning_number(log_likelihood, "log_likelihood"), position, batch)
    arguments = move_to_devices_of(draws.positions, (rng_key, prior, likelihood, data))
    given = Given(draws, _scores(*arguments, draws.positions, batch_size, length))
    given.check_finite()
    return replace(draws, positions=given.target).like(samples)


@partial(jax.jit, static_argnums=(5, 6))
def _scores(
    rng_key: PRNGKeyArray, prior: Traced, likelihood: Traced, data: PyTree, positions: PyTree, batch_size: int,
    length: int,
) -> PyTree:  # fmt: skip
    num_draws, num_observations = (len(jax.tree.leaves(arrays)[0]) for arrays in (positions, data))

    def score(key: PRNGKeyArray, position: PyTree) -> PyTree:
        chosen = jax.random.randint(key, (batch_size,), 0, num_observations)
        batch = jax.tree.map(lambda leaf: leaf[chosen], data)
        factor = num_observations / batch_size
        return guarded_score(lambda at: prior(at) + factor * likelihood(at, batch))(position)

    keys = jax.random.split(rng_key, num_draws)
    return map_over_blocks(lambda block: jax.vmap(score)(*block), (keys, positions), length)
