"""Approximations of one posterior in one table: how far off they are, and whether weights could repair them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from jaxpsd._choose.rank import rank
from jaxpsd._choose.ranking import Ranking
from jaxpsd._core.checks import as_real, check_samples
from jaxpsd._core.functions import check_function
from jaxpsd._core.types import LogDensityFn, PyTree
from jaxpsd._discrepancies.base import Discrepancy


def compare_approximations(
    rng_key: PRNGKeyArray,
    logdensity_fn: LogDensityFn,
    approximations: Mapping[Any, PyTree],
    *,
    discrepancy: Discrepancy | None = None,
    tolerance: float = 0.1,
    num_replicates: int = 500,
    chains: bool | None = None,
) -> Ranking:
    """Rank approximations of a posterior by their draws, with Pareto k̂ where the density of one is known.

    k̂ (Vehtari et al., 2024) is the shape of the tail of the importance weights p/q: below 0.7, weights can turn draws
    of the approximation into estimates under the target; above, they cannot. It says nothing of which moments are
    wrong, and needs log q; the discrepancy needs draws alone, so that draws of MCMC may stand beside approximations.

    Parameters
    ----------
    rng_key, num_replicates, chains
        As in `rank`.
    logdensity_fn
        The log-density of the target.
    approximations
        A mapping from labels to draws, or to pairs (draws, log q) with the log-density of the approximation at each
        draw: as `from_numpyro_svi(…, return_log_q=True)` and BlackJAX's Pathfinder give them, in the same coordinates
        as the draws.
    discrepancy, tolerance
        As in `rank`: by default, the orthonormal PSD of order 2, and a tenth of a standard deviation.

    Returns
    -------
    Ranking
        As by `rank`, with `pareto_k`.

    Notes
    -----
    k̂ is computed by ArviZ (extra `arviz`).

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> key = jax.random.key(0)
    >>> x = jax.random.normal(key, (2000, 2))
    >>> narrow = 0.4 * x, jnp.sum(-0.5 * x**2 - jnp.log(0.4), axis=1)
    >>> wide = 1.2 * x, jnp.sum(-0.5 * x**2 - jnp.log(1.2), axis=1)
    >>> table = jaxpsd.compare_approximations(key, logdensity, {"narrow": narrow, "wide": wide, "exact": x})
    >>> table.labels
    ('exact', 'wide', 'narrow')
    >>> bool(table.pareto_k[1] < 0.7 < table.pareto_k[2])
    True
    """
    check_function(logdensity_fn, "logdensity_fn", "one position")
    if not isinstance(approximations, Mapping):
        raise TypeError(
            f"`approximations` must be a mapping from labels to draws, or to pairs (draws, log q); got "
            f"{type(approximations).__name__}."
        )
    samples, log_q = {}, {}
    for label, given in approximations.items():
        if type(given) is tuple and len(given) == 2:
            samples[label], log_q[label] = given
        else:
            samples[label] = given
    ranking = rank(
        rng_key, discrepancy, logdensity_fn, samples, tolerance=tolerance, num_replicates=num_replicates, chains=chains
    )
    if not log_q:
        return ranking
    known = {label: _pareto_k(logdensity_fn, samples[label], values, label, chains) for label, values in log_q.items()}
    return replace(ranking, pareto_k=np.array([known.get(label, np.nan) for label in ranking.labels]))


def _pareto_k(logdensity: LogDensityFn, samples: PyTree, log_q: ArrayLike, label: Any, chains: bool | None) -> float:
    draws = check_samples(samples, chains=chains)
    q = np.asarray(as_real(log_q, "log q"), np.float64).reshape(-1)
    if len(q) != draws.num_draws:
        raise ValueError(
            f"There must be a log q for each draw of {label!r}: there are {draws.num_draws:,} draws, and {len(q):,}."
        )
    p = jax.jit(jax.vmap(cast(Any, logdensity)))(draws.positions)
    return _tail_shape(np.asarray(p, np.float64) - q)


def _tail_shape(log_weights: Float[np.ndarray, " draws"]) -> float:
    """By arviz-stats, or by ArviZ before it was a package of its own."""
    try:
        from arviz_stats.base import array_stats  # pyright: ignore[reportMissingImports]

        # It takes log-likelihoods, whose negatives are the log-weights of leave-one-out; ArviZ 0.x takes weights.
        return float(array_stats.psislw(-log_weights)[1])
    except ImportError:
        pass
    try:
        from arviz import psislw
    except ImportError as error:
        error.add_note("Pareto k̂ needs ArviZ: pip install 'jaxpsd[arviz]'.")
        raise
    return float(psislw(log_weights)[1])
