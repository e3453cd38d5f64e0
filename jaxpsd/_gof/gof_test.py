"""Goodness-of-fit tests: whether a discrepancy is larger than chance allows (paper, section 3.2).

The bootstrap compares the statistic with replicates in which each draw's features are multiplied by random
numbers of mean zero: what the statistic would look like if the features had mean zero, as they have under the
target. The asymptotic test compares it with its limiting distribution. Nothing here knows which discrepancy it
is: a `Plan` has features, or a Stein kernel.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.checks import check_fits, check_key, check_samples, check_underflow, is_concrete
from jaxpsd._core.doubts import Doubt, warn_of
from jaxpsd._core.programs import run
from jaxpsd._core.scores import Given, Score, check_input, check_target
from jaxpsd._core.sharding import move_to_devices_of
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.base import Discrepancy, largest_score
from jaxpsd._discrepancies.ksd import LinearKSD
from jaxpsd._discrepancies.plans import FeaturePlan, PairPlan, Plan
from jaxpsd._gof import chisquare
from jaxpsd._gof.bootstrap import Wanted, bootstrap
from jaxpsd._gof.dependence import PILOT_DRAWS, Dependence, measure_dependence
from jaxpsd._gof.limits import Null, null_matrix, null_root, simulate
from jaxpsd._gof.pvalues import Values
from jaxpsd._gof.result import GofResult, result_of, without_replicates
from jaxpsd._gof.scheme import Scheme, choose_bootstrap, effective_draws
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
from jaxpsd._gof.symptoms import Symptoms, find_doubts, find_too_few
from jaxpsd._stein.coordinates import find_fallback


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
        "rademacher" multiplies draws by independent signs, "gaussian" has normal replicates with the covariance of
        those, and "multinomial" draws them again with replacement (for the U-statistic): for independent draws.
        "markov" lets signs persist, flipping them now and then, and "block" keeps them for a block: for the
        autocorrelated draws of MCMC. "asymptotic" compares the U-statistic (V for the L1 norm and the RFSD, which have
        no U) with its limit for independent draws. "auto" measures the autocorrelation of the Stein features and takes
        "markov", or "block" where Markov signs would flip too rarely to reject anything, for dependent draws; else
        "gaussian" where that is faster and draws are many, as in Notes, or "rademacher".
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

    Mean features of many independent draws are normal. "gaussian" draws them so: one product of the features with
    themselves does for all replicates, where signs take a product with each. It takes features, and so no sum over
    pairs of draws. "auto" chooses it from 10,000 draws of equal weight on, for at most half as many features as
    replicates: `benchmarks/results/level_gaussian.md` has levels there, beside those with signs.

    At 5%, orders 1 to 3 reject correct draws in at most 9% of cases, for all targets and chains of
    `benchmarks/results/level.md` and `calibration.md`. Monomials of order 4 have heavy tails, of which few draws have
    seen little: in one dimension they reject 27% of sets of fifty draws, and 9% of sets of a thousand; in three, up to
    10% of sets of a thousand from a target with heavy tails. Hermite polynomials in coordinates of the target reject at
    most 8%, of any order.

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
    if isinstance(discrepancy, LinearKSD) and method == "auto":
        settings = settings._replace(method="asymptotic")
    if not deterministic:
        settings.check_attainable()
    orders = check_orders(orders, discrepancy)
    check_weights_suit(settings.method, weights)
    options = {"null_samples": null_samples, "null_target": null_target, "deterministic": deterministic or None}
    chosen = [option for option, value in options.items() if value is not None]
    _check_combination(settings.method, discrepancy, orders, chosen)
    given = check_input(target, samples, weights, chains)
    check_several(given.draws)
    if settings.method == "asymptotic":
        null = _check_null(null_samples, null_target, given, chains)
        if isinstance(discrepancy, LinearKSD):
            result = _normal_test(discrepancy, given, settings)
        else:
            result = _limit_test(rng_key, discrepancy, given, null, settings, deterministic=deterministic)
    else:
        wanted = wanted_of(orders, unbiased=settings.method == "multinomial")
        values, scheme, doubts = resample(rng_key, discrepancy, given, settings, wanted)
        result = result_of(values, scheme, settings, labels_of(wanted)).doubted(doubts)
    warn_of(result.doubts)
    return result


def _check_combination(
    method: str, discrepancy: Discrepancy, orders: Sequence[int] | None, chosen: Sequence[str]
) -> None:
    """What goes with which method, and with which discrepancy; options of the asymptotic test were `chosen`."""
    name = type(discrepancy).__name__
    if method == "multinomial" or (method == "asymptotic" and "deterministic" in chosen):
        discrepancy._check_pairs("U-statistic, which this method tests,")
    if isinstance(discrepancy, LinearKSD):
        if method != "asymptotic":
            raise ValueError(f"{name} is a mean of independent terms, tested by method='asymptotic'; got {method!r}.")
        if "deterministic" in chosen or "null_samples" in chosen:
            raise ValueError(f"The test of {name} is a z-test; it needs neither `null_samples` nor `deterministic`.")
    for option in chosen:
        check_belongs(option, "asymptotic", method)
    if "null_target" in chosen and "null_samples" not in chosen:
        raise ValueError("`null_target` are the scores at `null_samples`, which are missing.")
    if orders is not None and method == "asymptotic":
        raise ValueError("`orders` are compared on common replicates; use a bootstrap, such as method='auto'.")


# --- bootstraps -------------------------------------------------------------------------------------------


def score_in_advance(given: Given) -> Given:
    """With scores, where more than one pass needs them and they are few enough to be kept."""
    return given.with_scores() if given.draws.num_draws <= PILOT_DRAWS else given


def resample(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy,
    given: Given,
    settings: Settings,
    wanted: Wanted,
    dependence: Dependence | None = None,
    *,
    by_signs: bool = False,
) -> tuple[Values, Scheme, tuple[Doubt, ...]]:
    """The wanted statistics and their replicates, by the method that suits the draws; and doubts."""
    plan = discrepancy._plan(given, settings.num_replicates, len(wanted.parts))
    if settings.measures:
        given = score_in_advance(given)
    scheme = choose_bootstrap(rng_key, settings, given, plan, dependence, by_signs=by_signs)
    rows = plan.tile_length(given.data.x) if isinstance(plan, PairPlan) else 1
    check_fits((rows, 1 + settings.num_replicates), given.draws.dtype, "The replicates", "Take fewer of them.")
    values, seen = run(bootstrap, given, plan, scheme.multipliers, wanted)
    check_values(values, discrepancy, given, "A statistic or one of its replicates")
    return values, scheme, (*given.doubts, *doubts_of(seen, scheme, given, plan, settings))


def doubts_of(
    seen: Symptoms, scheme: Scheme, given: Given, plan: Plan, settings: Settings, degree: int | None = None
) -> tuple[Doubt, ...]:
    """What makes a bootstrap of these draws doubtful, of features up to a degree or all there are."""
    independent = scheme.method in INDEPENDENT
    effective = None if independent else effective_draws(scheme, given.draws)
    too_few = find_too_few(scheme.floor, settings.alpha, effective, degree or plan.highest_degree)
    found = find_doubts(seen, given.draws, plan, scheme.method, independent=independent)
    return (*find_fallback(plan.transform, given.draws), *found, *too_few)


def check_values(values: Float[Array | np.ndarray, "..."], discrepancy: Discrepancy, given: Given, what: str) -> None:
    """Refuse to compare what is not finite, and zeros with each other, in any row."""
    discrepancy._check_value(values, given, what)
    check_underflow(values, lambda: largest_score(given), "The scores")


# --- the asymptotic test ----------------------------------------------------------------------------------


def _check_null(
    null_samples: PyTree | None, null_target: Target | None, given: Given, chains: bool | None
) -> Given | None:
    """Draws of the target, and how to score them."""
    if null_samples is None:
        return None
    draws, target = check_samples(null_samples, chains=chains, name="null_samples"), given.target
    if null_target is not None:
        target = check_target(null_target, null_samples, draws, chains=chains)
    elif not isinstance(target, Score):
        raise ValueError("`target` are scores at `samples`; those at `null_samples` are needed as `null_target`.")
    check_several(draws)
    if draws.structure != given.draws.structure:
        raise ValueError("`null_samples` must have the structure, shape and dtype of `samples`, but for their number.")
    return Given(draws, target)


def _limit_test(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy,
    given: Given,
    null: Given | None,
    settings: Settings,
    *,
    deterministic: bool,
) -> GofResult:
    """Compare U with its limit, given by a matrix; or V, where the norm is not a sum of squares, by a root of one."""
    plan, n = discrepancy._plan(given, 0), given.draws.num_draws
    is_quadratic = not isinstance(plan, FeaturePlan) or plan.is_quadratic

    def limit_of(given: Given, what: str, *, centred: bool) -> tuple[Array, Array, Symptoms]:
        """The statistic, the matrix of its null distribution, and what was seen of the draws."""
        draws, count = given.draws, discrepancy._num_features(given.draws)
        side = draws.num_draws if count is None else min(count, draws.num_draws) if is_quadratic else count
        check_fits((side, side), draws.dtype, "The matrix of the null distribution", "Use a bootstrap, or fewer draws.")
        if is_quadratic:
            kind = Null(from_features=side == count, centred=centred)
            suited = plan.as_features() if kind.from_features else plan
            # The n × n matrix is made on one device.
            found = run(null_matrix, given, suited, kind, result="sums" if kind.from_features else "gathered")
        else:
            found = run(null_root, given, plan)
        discrepancy._check_value(jnp.append(jnp.abs(found[1]).max(), found[0]), given, what)
        return found

    check_fits((1, 1 + settings.num_replicates), given.draws.dtype, "The replicates", "Take fewer of them.")
    statistic, matrix, seen = limit_of(given, "The statistic or its null distribution", centred=True)
    check_underflow(jnp.append(jnp.abs(matrix).max(), statistic), lambda: largest_score(given), "The scores")
    if null is not None:
        matrix = move_to_devices_of(statistic, limit_of(null, "The null distribution", centred=False)[1])
    found = find_doubts(seen, given.draws, plan, "asymptotic", independent=True)
    doubts = (*given.doubts, *find_fallback(plan.transform, given.draws), *found)
    if deterministic:
        return _deterministic(statistic, matrix, n, settings).doubted(doubts)
    key = move_to_devices_of(matrix, rng_key)
    replicates = simulate(key, matrix, settings.num_replicates, None if is_quadratic else plan)
    values = jnp.append(statistic, replicates / n)[None]
    scheme, label = Scheme("asymptotic", None, None, None, 0.0), "U" if is_quadratic else "V"
    return result_of(values, scheme, settings, (label,)).doubted(doubts)


def _deterministic(u: Array, matrix: Array, num_draws: int, settings: Settings) -> GofResult:
    """The p-value as a probability, computed on the host."""
    if not is_concrete(u, matrix):
        raise ValueError("`deterministic=True` computes on the host and cannot be traced; simulate inside `jit`.")
    # Not negative but for rounding.
    weights = np.maximum(np.linalg.eigvalsh(np.asarray(matrix, np.float64)), 0)
    mean = float(weights.sum())
    # In double precision: single precision has no numbers for the smallest p-values.
    p = np.asarray(chisquare.survival(num_draws * float(u) + mean, weights))
    threshold = np.asarray((chisquare.critical_value(settings.alpha, weights) - mean) / num_draws)
    return without_replicates(u, p, threshold, settings)


def _normal_test(discrepancy: LinearKSD, given: Given, settings: Settings) -> GofResult:
    """For a mean of independent terms."""
    draws, plan = given.draws, discrepancy._plan(given)
    if draws.num_draws < 4:
        raise ValueError(f"A z-test of means over pairs takes at least two pairs; got {draws.num_draws} draws.")
    if given.is_concrete and draws.num_draws > draws.num_chains:
        given = score_in_advance(given)
        time, is_dependent = measure_dependence(given, plan)
        if is_dependent:
            raise ValueError(
                f"{type(discrepancy).__name__} takes pairs of successive draws as independent, but these are "
                f"correlated over about {time:.2g} draws. Thin them by more than that, or use KSD."
            )
    u, error = discrepancy._mean_and_error(given, plan)
    discrepancy._check_value(jnp.append(u, error), given, "The statistic or its standard error")
    if is_concrete(error) and error == 0:
        raise FloatingPointError(
            f"All pairs of draws give {type(discrepancy).__name__} the same value, so that its standard error is zero "
            "and no p-value is right. Are the draws all alike?"
        )
    p = jax.scipy.stats.norm.sf(u / error)
    threshold = error * jax.scipy.stats.norm.isf(settings.alpha)
    doubts = (*given.doubts, *find_fallback(plan.transform, draws))
    return without_replicates(u, p, threshold, settings).doubted(doubts)
