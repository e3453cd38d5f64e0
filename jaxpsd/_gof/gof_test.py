"""Goodness-of-fit tests: whether a discrepancy is larger than chance allows (paper, section 3.2).

The bootstrap compares the statistic with replicates in which each draw's features are multiplied by random
numbers of mean zero: what the statistic would look like if the features had mean zero, as they have under the
target. The asymptotic test compares it with its limiting distribution. Nothing here knows which discrepancy it
is: a `Form` offers features, or a Stein kernel.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.checks import check_fits, check_key, check_samples, is_concrete
from jaxpsd._core.draws import Draws
from jaxpsd._core.scores import LogDensity, check_target, run, run_on_shares, scores_of
from jaxpsd._core.sharding import beside
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.base import Discrepancy, check_input
from jaxpsd._discrepancies.plans import Form, mean_over_pairs
from jaxpsd._gof import chisquare
from jaxpsd._gof.bootstrap import Wanted, bootstrap
from jaxpsd._gof.dependence import PILOT_DRAWS, measure_dependence
from jaxpsd._gof.limits import Null, null_matrix, null_root, simulate, simulate_norms
from jaxpsd._gof.result import GofResult, result_of, without_replicates
from jaxpsd._gof.scheme import Scheme, effective_draws, settle
from jaxpsd._gof.settings import (
    INDEPENDENT,
    Settings,
    check_belongs,
    check_discrepancy,
    check_orders,
    check_several,
    check_weights_suit,
    labels_of,
    wanted_of,
)
from jaxpsd._gof.symptoms import Watched, warn, warn_of_few


def gof_test(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy,
    target: Target,
    samples: PyTree,
    *,
    method: str = "auto",
    num_replicates: int = 500,
    alpha: float = 0.05,
    weights: ArrayLike | None = None,
    orders: Sequence[int] | None = None,
    flip_probability: float | None = None,
    block_length: int | None = None,
    null_samples: PyTree | None = None,
    null_target: Target | None = None,
    deterministic: bool = False,
    chains: bool | None = None,
) -> GofResult:
    """Test whether the draws could come from the target.

    Parameters
    ----------
    rng_key
        A key of `jax.random`. The same key gives the same replicates, whatever the size of blocks.
    discrepancy
        What to test with: `PSD(order)` or any other.
    target
        The log-density, a function of one position, or the scores ∇log p at the samples.
    samples
        An array (draws, dim) or (chains, draws, dim), or a pytree of arrays with those leading axes.
    method
        "rademacher" multiplies draws by independent signs, and "multinomial" draws them again with replacement
        (for the U-statistic): for independent draws. "markov" lets signs persist, flipping them now and then, and
        "block" keeps them for a block: for the autocorrelated draws of MCMC. "asymptotic" compares the U-statistic
        (V for the L1 norm and the RFSD, which have no U) with its limit for independent draws. "auto" measures the
        autocorrelation of the Stein features and takes "rademacher" or "markov", or "block" where Markov signs would
        flip too rarely to reject anything.
    num_replicates
        How many replicates to compute. A p-value is a multiple of 1 / (1 + num_replicates).
    alpha
        The level: how often correct draws may be rejected.
    weights
        Weights of the draws, one each; with the sign bootstraps.
    orders
        Test the discrepancy at each of these polynomial orders, up to its own, from the same pass over the draws.
    flip_probability, block_length
        The parameter of "markov" or "block"; measured if not given, which needs values and so cannot be traced.
    null_samples, null_target
        Draws of the target itself, where there are some, from which "asymptotic" takes the null distribution; and
        the scores there, if `target` are scores. Otherwise the draws under test serve.
    deterministic
        Whether "asymptotic" computes its p-value numerically instead of simulating, on the host.
    chains
        Whether the leaves of a pytree have a chain axis before the draws.

    Returns
    -------
    GofResult
        The statistic with its p-value, threshold and replicates, and how they came about.

    Notes
    -----
    With an explicit method and, for dependent draws, its parameter, the test can be traced: `jit` it, or `vmap` it
    over sample sets and keys. Warnings and "auto" need values.

    Orders 1 and 2 keep their level, or nearly, for all targets and chains of `benchmarks/results/calibration.md`: at 5%
    they reject at most 10% of correct draws, those of MALA on a funnel-like posterior. Orders 3 and 4 reject too many
    where their features have heavy tails that the draws have hardly seen: about 9% in one dimension, and for
    heavy-tailed targets in coordinates standardised by the draws; up to 20% for chains worth fewer than a hundred
    independent draws, of which a `DependentDrawsWarning` tells.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> key, draw = jax.random.split(jax.random.key(0))
    >>> samples = jax.random.normal(draw, (1000, 3))
    >>> bool(jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, samples).reject)
    False
    >>> result = jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, 1.2 * samples)
    >>> bool(result.reject), result.method
    (True, 'rademacher')
    """
    check_discrepancy(discrepancy)
    check_key(rng_key)
    settings = Settings.checked(method, num_replicates, alpha, flip_probability, block_length)
    if discrepancy._only_asymptotic and method == "auto":
        settings = settings._replace(method="asymptotic")
    if not deterministic:
        settings.check_attainable()
    orders = check_orders(orders, discrepancy)
    _check_combination(settings, discrepancy, weights, orders, null_samples, null_target, deterministic)
    target, draws, weights = check_input(target, samples, weights, chains)
    check_several(draws)
    if settings.method == "asymptotic":
        form = discrepancy._test_form(draws, weights, 0)
        null = _checked_null(null_samples, null_target, target, draws, chains)
        if discrepancy._only_asymptotic:
            return _normal_test(discrepancy, form, target, draws, settings)
        if not form.is_quadratic:
            return _norm_test(rng_key, discrepancy, form, target, draws, null, settings)
        return _asymptotic_test(rng_key, discrepancy, form, target, draws, null, settings, deterministic=deterministic)
    wanted = wanted_of(orders, unbiased=settings.method == "multinomial")
    form = discrepancy._test_form(draws, weights, num_replicates, len(wanted.orders))
    values, scheme = resampled(rng_key, discrepancy, form, target, draws, weights, settings, wanted)
    return result_of(values, scheme, settings, labels_of(wanted))


def _check_combination(
    settings: Settings,
    discrepancy: Discrepancy,
    weights: ArrayLike | None,
    orders: Sequence[int] | None,
    null_samples: PyTree | None,
    null_target: Target | None,
    deterministic: bool,
) -> None:
    """What goes with which method, and with which discrepancy."""
    method, name = settings.method, type(discrepancy).__name__
    check_weights_suit(method, weights)
    if method == "multinomial" or (method == "asymptotic" and deterministic):
        discrepancy._check_pairs("U-statistic, which this method tests,")
    if discrepancy._only_asymptotic:
        if method != "asymptotic":
            raise ValueError(f"{name} is a mean of independent terms, tested by method='asymptotic'; got {method!r}.")
        if deterministic or null_samples is not None:
            raise ValueError(f"The test of {name} is a z-test; it needs neither `null_samples` nor `deterministic`.")
    if method != "asymptotic":
        given = {"null_samples": null_samples, "null_target": null_target, "deterministic": deterministic or None}
        for option, value in given.items():
            if value is not None:
                check_belongs(option, "asymptotic", method)
    if null_target is not None and null_samples is None:
        raise ValueError("`null_target` are the scores at `null_samples`, which are missing.")
    if orders is not None and method == "asymptotic":
        raise ValueError("`orders` are compared on common replicates; use a bootstrap, such as method='auto'.")


# --- bootstraps -------------------------------------------------------------------------------------------


def scored_in_advance(target: PyTree, draws: Draws) -> PyTree:
    """The scores, where more than one pass needs them and they are few enough to be kept."""
    return scores_of(target, draws) if draws.num_draws <= PILOT_DRAWS else target


def resampled(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy,
    form: Form,
    target: PyTree,
    draws: Draws,
    weights: Float[Array, " draws"] | None,
    settings: Settings,
    wanted: Wanted,
) -> tuple[Float[Array, "statistics columns"], Scheme]:
    """The wanted statistics and their replicates, by the method that suits the draws; warnings where due."""
    function = discrepancy._function
    if settings.measures:
        target = scored_in_advance(target, draws)
    scheme = settle(rng_key, settings, target, draws, form, function)
    rows = form.tile_length(draws.num_draws, draws.dim, draws.dtype.itemsize) if form.is_pairwise else 1
    _check_replicates_fit(settings.num_replicates, rows, draws)
    values, seen = run_on_shares(bootstrap, target, draws, form, weights, scheme.multipliers, wanted, function=function)
    discrepancy._finite(values, target, draws, "A statistic or one of its replicates")
    check_varies(values, draws, discrepancy)
    warn_of_doubts(seen, scheme, draws, form, settings)
    return values, scheme


def warn_of_doubts(seen: Watched, scheme: Scheme, draws: Draws, form: Form, settings: Settings) -> None:
    """Warn of what makes a bootstrap of these draws doubtful."""
    independent = scheme.method in INDEPENDENT
    warn(seen, draws, form, method=scheme.method, assumes_independence=independent)
    effective = None if independent else effective_draws(scheme, draws)
    warn_of_few(scheme.floor, settings.alpha, effective, form.highest_degree)


def _check_replicates_fit(num_replicates: int, rows: int, draws: Draws) -> None:
    check_fits((rows, 1 + num_replicates), draws.dtype, "The replicates", "Take fewer of them.")


def check_varies(values: Float[Array, "..."], draws: Draws, discrepancy: Discrepancy) -> None:
    """Refuse to compare zeros with each other, in any row."""
    if is_concrete(values) and not np.any(values, axis=-1).all():
        raise FloatingPointError(
            f"A statistic and all its replicates are zero in {draws.dtype}: all Stein features of "
            f"{type(discrepancy).__name__} are, or their squares are too small for it. Nothing can be compared. "
            "Are the scores zero? Otherwise use other units, `transform='standardize'`, or float64."
        )


# --- the asymptotic test ----------------------------------------------------------------------------------


def _checked_null(
    null_samples: PyTree | None, null_target: Target | None, target: PyTree, draws: Draws, chains: bool | None
) -> tuple[PyTree, Draws] | None:
    """Draws of the target, and how to score them."""
    if null_samples is None:
        return None
    null_draws = check_samples(null_samples, chains=chains, name="null_samples")
    if null_target is not None:
        target = check_target(null_target, null_samples, null_draws, chains=chains)
    elif not isinstance(target, LogDensity):
        raise ValueError("`target` are scores at `samples`; those at `null_samples` are needed as `null_target`.")
    check_several(null_draws)
    if null_draws.structure != draws.structure:
        raise ValueError("`null_samples` must have the structure, shape and dtype of `samples`, but for their number.")
    return target, null_draws


def _asymptotic_test(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy,
    form: Form,
    target: PyTree,
    draws: Draws,
    null: tuple[PyTree, Draws] | None,
    settings: Settings,
    *,
    deterministic: bool,
) -> GofResult:
    n, function = draws.num_draws, discrepancy._function

    def null_of(target: PyTree, draws: Draws, what: str, *, centred: bool) -> Any:
        count = discrepancy._num_features(draws)
        side = draws.num_draws if count is None else min(count, draws.num_draws)
        kind = Null(from_features=side == count, centred=centred)
        check_fits((side, side), draws.dtype, "The matrix of the null distribution", "Use a bootstrap, or fewer draws.")
        # The n × n matrix is made on one device.
        where = run_on_shares if kind.from_features else run
        u, matrix, seen = where(null_matrix, target, draws, form, kind, function=function)
        discrepancy._finite(jnp.append(jnp.abs(matrix).max(), u), target, draws, what)
        return u, matrix, seen

    _check_replicates_fit(settings.num_replicates, 1, draws)
    u, matrix, seen = null_of(target, draws, "The statistic or its null distribution", centred=True)
    check_varies(jnp.append(jnp.abs(matrix).max(), u), draws, discrepancy)
    if null is not None:
        _, matrix, _ = null_of(*null, "The null distribution", centred=False)
        matrix = beside(u, matrix)
    warn(seen, draws, form, method="asymptotic", assumes_independence=True)
    if not deterministic:
        values = jnp.append(u, simulate(beside(matrix, rng_key), matrix, settings.num_replicates) / n)
        return result_of(values[None], _ASYMPTOTIC, settings, ("U",))
    if not is_concrete(u, matrix):
        raise ValueError("`deterministic=True` computes on the host and cannot be traced; simulate inside `jit`.")
    # Not negative but for rounding.
    weights = np.maximum(np.linalg.eigvalsh(np.asarray(matrix, np.float64)), 0)
    mean = float(weights.sum())
    # In double precision: single precision has no numbers for the smallest p-values.
    p = np.asarray(chisquare.survival(n * float(u) + mean, weights))
    threshold = np.asarray((chisquare.critical_value(settings.alpha, weights) - mean) / n)
    return without_replicates(u, p, threshold, settings)


_ASYMPTOTIC = Scheme("asymptotic", None, None, None, 0.0)


def _norm_test(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy,
    form: Form,
    target: PyTree,
    draws: Draws,
    null: tuple[PyTree, Draws] | None,
    settings: Settings,
) -> GofResult:
    """For a norm that is not a sum of squares."""
    count = discrepancy._num_features(draws)
    _check_replicates_fit(settings.num_replicates, 1, draws)
    if count is None:
        raise TypeError(f"{type(discrepancy).__name__} has neither a sum over pairs of draws nor features.")
    check_fits((count, count), draws.dtype, "The covariance of the features", "Use a bootstrap, or fewer features.")
    function = discrepancy._function
    v, root, seen = run_on_shares(null_root, target, draws, form, function=function)
    discrepancy._finite(jnp.append(root, v), target, draws, "The statistic or its null distribution")
    check_varies(jnp.append(root, v), draws, discrepancy)
    if null is not None:
        _, root, _ = run_on_shares(null_root, *null, form, function=function)
        root = beside(v, root)
        discrepancy._finite(root, *null, "The null distribution")
    warn(seen, draws, form, method="asymptotic", assumes_independence=True)
    values = jnp.append(v, simulate_norms(beside(root, rng_key), form, root, settings.num_replicates) / draws.num_draws)
    return result_of(values[None], _ASYMPTOTIC, settings, ("V",))


def _normal_test(discrepancy: Discrepancy, form: Form, target: PyTree, draws: Draws, settings: Settings) -> GofResult:
    """For a mean of independent terms."""
    if draws.num_draws < 4:
        raise ValueError(f"A z-test of means over pairs takes at least two pairs; got {draws.num_draws} draws.")
    function = discrepancy._function
    if is_concrete(draws, target) and draws.num_draws > draws.num_chains:
        target = scored_in_advance(target, draws)
        time, is_dependent = measure_dependence(target, draws, form, function)
        if is_dependent:
            raise ValueError(
                f"{type(discrepancy).__name__} takes pairs of successive draws as independent, but these are "
                f"correlated over about {time:.2g} draws. Thin them by more than that, or use KSD."
            )
    u, error = run(mean_over_pairs, target, draws, form, function=function)
    discrepancy._finite(jnp.append(u, error), target, draws, "The statistic or its standard error")
    if is_concrete(error) and error == 0:
        raise FloatingPointError(
            f"All pairs of draws give {type(discrepancy).__name__} the same value, so that its standard error is zero "
            "and no p-value is right. Are the draws all alike?"
        )
    p = jax.scipy.stats.norm.sf(u / error)
    return without_replicates(u, p, error * jax.scipy.stats.norm.isf(settings.alpha), settings)
