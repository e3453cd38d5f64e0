"""Scores from mini-batches of the data, where a pass over all of them for every draw is too much.

Stein features are linear in the score. With an unbiased estimate of it, whose noise is fresh for every draw, features
still have mean zero under the target, and discrepancies, tests and moments hold with the noise as part of the draws'.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from jaxpsd._core.blocks import block_length, map_over_blocks
from jaxpsd._core.checks import (
    as_arrays,
    as_floats,
    check_fits,
    check_key,
    check_positive_integer,
    check_same_shapes,
    check_samples,
)
from jaxpsd._core.draws import Draws, one_position
from jaxpsd._core.functions import check_function, returning_number
from jaxpsd._core.scores import Given, guarded_score
from jaxpsd._core.sharding import move_to_devices_of
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import LogDensityFn, PyTree

# Arrays of the size of a batch that there are at a time, with what is computed from it and kept for its derivative.
_LIVE_BATCHES = 8


def check_data(data: PyTree) -> PyTree:
    """Arrays of observations, along their first axis."""
    arrays = as_arrays(data, "data")
    leaves = jax.tree.leaves(arrays)
    if not leaves or len({leaf.shape[:1] for leaf in leaves}) != 1 or leaves[0].ndim == 0:
        raise ValueError("`data` must be arrays whose first axis is that of the observations.")
    if len(leaves[0]) == 0:
        raise ValueError("`data` holds no observations.")
    return arrays


@dataclass(frozen=True, eq=False)
class Minibatches:
    """A posterior that is scored by mini-batches of its data: a target for `tune`.

    log_prior
        The log-density of the prior, a function of one position.
    log_likelihood
        `log_likelihood(position, batch)`, the sum over a batch of observations.
    data
        A pytree of arrays whose first axis is that of the observations.
    batch_size
        How many observations to draw, anew and with replacement, for every draw that is scored.
    control_variate
        A position near the mode, in the structure of one draw. The score there is computed from all data, once, and
        mini-batches estimate differences to it only: ∇log prior(θ) + ∇log L(θ₀) + (N / B) Σ [∇ℓ(θ) − ∇ℓ(θ₀)] over B of
        N observations. It has the same mean, and far less noise where draws are near the mode, as with many data.

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
    >>> posterior = jaxpsd.Minibatches(log_prior, log_likelihood, data, batch_size=100)
    """

    log_prior: LogDensityFn
    log_likelihood: Callable[[PyTree, PyTree], Any]
    data: PyTree
    _: KW_ONLY
    batch_size: int
    control_variate: PyTree = None
    # The score of the likelihood of all data at the control variate.
    _fixed: PyTree = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        check_function(self.log_prior, "log_prior", "one position")
        check_function(self.log_likelihood, "log_likelihood", "one position and a batch of observations")
        data = check_data(self.data)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "batch_size", check_positive_integer(self.batch_size, "batch_size"))
        if self.control_variate is not None:
            mode = as_floats(self.control_variate, "control_variate")
            object.__setattr__(self, "control_variate", mode)
            fixed = jax.grad(returning_number(self.log_likelihood, "log_likelihood"))(mode, data)
            object.__setattr__(self, "_fixed", fixed)

    @property
    def num_observations(self) -> int:
        """N."""
        return len(jax.tree.leaves(self.data)[0])

    def scores(self, rng_key: PRNGKeyArray, draws: Draws) -> PyTree:
        """An estimate of ∇log p at every draw, from a mini-batch of its own."""
        leaves, draw = jax.tree.leaves(self.data), one_position(draws.positions)
        observation = sum(leaf.itemsize * max(1, leaf.size // self.num_observations) for leaf in leaves)
        numbers = ceil(observation / draws.dtype.itemsize)
        what = "A mini-batch, and what is computed from it,"
        check_fits((_LIVE_BATCHES, self.batch_size, numbers), draws.dtype, what, "Lower `batch_size`.")
        length = block_length(draws.num_draws, _LIVE_BATCHES * self.batch_size * observation)
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.batch_size, *leaf.shape[1:]), leaf.dtype), self.data
        )
        prior = trace(returning_number(self.log_prior, "log_prior"), draw)
        likelihood = trace(returning_number(self.log_likelihood, "log_likelihood"), draw, batch)
        fixed = None if self.control_variate is None else (self._mode_like(draw), self._fixed)
        arguments = move_to_devices_of(draws.positions, (rng_key, prior, likelihood, self.data, fixed))
        return _scores(*arguments, draws.positions, self.batch_size, length)

    def _mode_like(self, draw: PyTree) -> PyTree:
        """The control variate, held to the structure of the draws."""
        expected = "`control_variate` must be one position, with the structure and shape of a draw"
        check_same_shapes(self.control_variate, draw, expected, what="draws of ")
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), self.control_variate, draw)


def minibatch_score(
    rng_key: PRNGKeyArray,
    log_prior: LogDensityFn,
    log_likelihood: Callable[[PyTree, PyTree], Any],
    data: PyTree,
    samples: PyTree,
    *,
    batch_size: int,
    control_variate: PyTree = None,
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
    control_variate
        A position near the mode. The score there is computed from all data, once, and mini-batches estimate differences
        to it only, with less noise: see `Minibatches`.
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
    minibatches = Minibatches(log_prior, log_likelihood, data, batch_size=batch_size, control_variate=control_variate)
    draws = check_samples(samples, chains=chains)
    given = Given(draws, minibatches.scores(rng_key, draws))
    given.check_finite()
    return replace(draws, positions=given.target).like(samples)


@partial(jax.jit, static_argnums=(6, 7))
def _scores(
    rng_key: PRNGKeyArray, prior: Traced, likelihood: Traced, data: PyTree, fixed: tuple[PyTree, PyTree] | None,
    positions: PyTree, batch_size: int, length: int,
) -> PyTree:  # fmt: skip
    num_draws, num_observations = (len(jax.tree.leaves(arrays)[0]) for arrays in (positions, data))
    factor = num_observations / batch_size

    def score(key: PRNGKeyArray, position: PyTree) -> PyTree:
        chosen = jax.random.randint(key, (batch_size,), 0, num_observations)
        batch = jax.tree.map(lambda leaf: leaf[chosen], data)
        scores = guarded_score(lambda at: prior(at) + factor * likelihood(at, batch))(position)
        if fixed is None:
            return scores
        mode, of_all = fixed
        of_batch = jax.grad(lambda at: factor * likelihood(at, batch))(mode)
        return jax.tree.map(lambda s, a, b: s + (a - b), scores, of_all, of_batch)

    keys = jax.random.split(rng_key, num_draws)
    return map_over_blocks(lambda block: jax.vmap(score)(*block), (keys, positions), length)
