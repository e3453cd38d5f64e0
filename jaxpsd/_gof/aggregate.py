"""One test of several discrepancies: a mean of their p-values that the smallest rules, calibrated on replicates.

All discrepancies are computed on common replicates. Each replicate goes through the same as the draws: its p-values
among all columns, and their harmonic mean. So that of the draws is compared with what it is by chance, whatever the
dependence between the discrepancies.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from jaxpsd._core.checks import check_key
from jaxpsd._core.doubts import warn_of
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._discrepancies.ksd import LinearKSD
from jaxpsd._discrepancies.plans import Part
from jaxpsd._gof import pvalues
from jaxpsd._gof.bootstrap import Wanted
from jaxpsd._gof.dependence import Dependence, measure_dependence
from jaxpsd._gof.gof_test import resample, score_in_advance
from jaxpsd._gof.result import GofResult, result_of
from jaxpsd._gof.settings import Settings, check_bootstrap, check_discrepancy, check_several
from jaxpsd._stein.coordinates import fit


class Contribution(NamedTuple):
    """Parts of one discrepancy, each with what it is called and its share of the level.

    `caution` has a factor for the replicates of each part: above one where few draws make them too small.
    """

    discrepancy: Discrepancy
    parts: tuple[Part, ...]
    labels: tuple[str, ...]
    shares: tuple[float, ...]
    caution: tuple[float, ...]


def aggregate_test(
    rng_key: PRNGKeyArray,
    discrepancies: Sequence[Discrepancy] | Mapping[str, Discrepancy],
    target: Target,
    samples: PyTree,
    *,
    method: str = "auto",
    num_replicates: int = 1000,
    alpha: float = 0.05,
    weights: ArrayLike | None = None,
    flip_probability: float | None = None,
    block_length: int | None = None,
    chains: bool | None = None,
) -> GofResult:
    """Test whether the draws could come from the target, by whichever of several discrepancies shows most.

    Parameters
    ----------
    rng_key, target, samples, num_replicates, alpha, weights, flip_probability, block_length, chains
        As in `gof_test`.
    method
        Any bootstrap of `gof_test` but "gaussian", which has no replicates common to several.
    discrepancies
        What to test with, several of them: a sequence, or a mapping from labels.

    Returns
    -------
    GofResult
        `statistic` is −log₁₀ of the harmonic mean of several p-values, which the smallest rules; `p_value` is
        calibrated for that; and `parts` has each of the discrepancies with its own.

    Notes
    -----
    With kernel Stein discrepancies of several bandwidths this is the aggregated test of Schrab, Guedj and Gretton
    (2022, KSDAgg) with equal weights, but for the combination: there it is the smallest p-value, with a level found by
    bisection.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> samples = 1.2 * jax.random.normal(jax.random.key(0), (500, 3))
    >>> kernels = {f"bandwidth {h}": jaxpsd.KSD(jaxpsd.Gaussian(h)) for h in (0.5, 1.0, 2.0, 4.0)}
    >>> result = jaxpsd.aggregate_test(jax.random.key(1), kernels, logdensity, samples)
    >>> bool(result.reject), result.parts.labels[0]
    (True, 'bandwidth 0.5')
    """
    labelled = _check_discrepancies(discrepancies)
    check_key(rng_key)
    settings = check_bootstrap(method, num_replicates, alpha, flip_probability, block_length, weights)
    for _, discrepancy in labelled:
        if method == "multinomial":
            discrepancy._check_pairs("U-statistic, which this method tests,")
    given = check_input(target, samples, weights, chains)
    check_several(given.draws)
    contributions = [Contribution(each, (Part(),), (label,), (1.0,), (1.0,)) for label, each in labelled]
    result = aggregate(rng_key, contributions, score_in_advance(given), settings)
    warn_of(result.doubts)
    return result


def aggregate(
    rng_key: PRNGKeyArray,
    contributions: Sequence[Contribution],
    given: Given,
    settings: Settings,
    dependence: Dependence | None = None,
) -> GofResult:
    """The aggregated test of what has been checked; the dependence of the draws is measured unless it is known."""
    # Coordinates are fitted once for each discrepancy, and the dependence measured in all of them, for all.
    fitted = [each.discrepancy._with_rule_fitted(lambda rule: fit(rule, given)) for each in contributions]
    dependence = dependence or largest_dependence(fitted, given, settings)
    # The same key and the same dependence give the same multipliers.
    unbiased, by_signs = settings.method == "multinomial", len(contributions) > 1
    found = [
        resample(rng_key, discrepancy, given, settings, Wanted(each.parts, unbiased), dependence, by_signs=by_signs)
        for discrepancy, each in zip(fitted, contributions, strict=True)
    ]
    values, scheme = pvalues.join(rows for rows, _, _ in found), found[0][1]
    doubts = _joined(doubts for _, _, doubts in found)
    labels, shares, caution = (
        _joined(getattr(each, name) for each in contributions) for name in ("labels", "shares", "caution")
    )
    values = pvalues.with_larger_replicates(values, np.array(caution))
    parts = result_of(values, scheme, settings, labels)
    combined = pvalues.combine(values, np.array(shares))[None]
    return result_of(combined, scheme, settings, ("−log₁₀ of the mean p",), parts).doubted(doubts)


def largest_dependence(discrepancies: Iterable[Discrepancy], given: Given, settings: Settings) -> Dependence | None:
    """How dependent the draws are in what the discrepancies look at, where that has to be and can be measured."""
    if not settings.measures or not given.is_concrete or given.draws.num_draws <= given.draws.num_chains:
        return None
    plans = (each._plan(given, settings.num_replicates) for each in discrepancies)
    return max((measure_dependence(given, plan) for plan in plans), key=lambda found: (found.is_clear, found.time))


def _joined(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(each for part in parts for each in part)


def _check_discrepancies(discrepancies: object) -> list[tuple[str, Discrepancy]]:
    """Discrepancies, each with what it is called."""
    is_mapping = isinstance(discrepancies, Mapping)
    if not is_mapping and (not isinstance(discrepancies, Sequence) or isinstance(discrepancies, str)):
        found = type(discrepancies).__name__
        raise TypeError(f"`discrepancies` must be several, in a list or by label in a mapping; got {found}.")
    several = list(discrepancies.values()) if is_mapping else list(discrepancies)
    if not several:
        raise ValueError("`discrepancies` must be at least one; got none.")
    for each in several:
        check_discrepancy(each)
        if isinstance(each, LinearKSD):
            raise ValueError(f"{type(each).__name__} has no bootstrap to be aggregated on; use KSD.")
    if is_mapping:
        labels = [str(label) for label in discrepancies]
    else:
        labels = [_describe(each) for each in several]
        # Those that read alike are numbered.
        labels = [label if labels.count(label) == 1 else f"{label}, number {k}" for k, label in enumerate(labels, 1)]
    return list(zip(labels, several, strict=True))


def _describe(thing: Any) -> str:
    """A discrepancy, or its kernel, by what differs from the default: PSD(4, basis='hermite')."""
    said = []
    for k, field in enumerate(fields(thing)):
        value = getattr(thing, field.name)
        is_plain = value is None or isinstance(value, str | bool | int | float)
        if k > 0 and (not is_plain or (field.default is not MISSING and value == field.default)):
            continue
        text = _describe(value) if hasattr(value, "__dataclass_fields__") else repr(value) if is_plain else "…"
        said.append(text if k == 0 else f"{field.name}={text}")
    return f"{type(thing).__name__}({', '.join(said)})"
