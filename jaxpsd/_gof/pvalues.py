"""From a statistic and its replicates to p-values, also for several statistics at once.

Values come as a matrix with a row for each statistic; its first column is the observed one, the others are
replicates. Under the null hypothesis the columns are exchangeable, so that the p-value of the observed column
is its rank among all of them: (1 + #{replicates ≥ statistic}) / (1 + m).
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxpsd._core.checks import is_concrete

Values = Float[Array, "statistics columns"]
"""A row for each statistic: the observed value first, then its replicates."""

AnyValues = Values | Float[np.ndarray, "statistics columns"]
"""The same, on a device or on the host."""

# Values that differ by so many units of rounding are ties.
_ROUNDING = 16


def on_host(values: AnyValues) -> AnyValues:
    """Where they are known: NumPy is done with some thousand numbers before a program for them is compiled."""
    return np.asarray(values) if is_concrete(values) else values


def join(several: Iterable[AnyValues]) -> AnyValues:
    """All statistics on common replicates."""
    rows = [on_host(values) for values in several]
    return _numpy_of(rows[0]).concatenate(rows)


def _numpy_of(values: AnyValues) -> ModuleType:
    return np if isinstance(values, np.ndarray) else jnp


def least_tie(values: AnyValues) -> AnyValues:
    """What counts as equal: replicates whose signs all agree have the observed value, but for rounding."""
    return values - _ROUNDING * jnp.finfo(values.dtype).eps * abs(values)


def with_ties(values: AnyValues) -> AnyValues:
    """The observed column no larger than what counts as equal to it."""
    xp = _numpy_of(values)
    return xp.concatenate([least_tie(values[:, :1]), values[:, 1:]], axis=1)


def p_values(values: AnyValues) -> AnyValues:
    """The p-value of every column among all columns; the first is the observed one."""
    columns, least, xp = values.shape[1], least_tie(values), _numpy_of(values)
    ascending = xp.sort(values, axis=1)
    if xp is np:
        smaller = np.stack([row.searchsorted(of) for row, of in zip(ascending, least, strict=True)])
    else:
        smaller = jax.vmap(jnp.searchsorted)(ascending, least)
    return (columns - smaller).astype(values.dtype) / columns


def step_down(p: AnyValues) -> Float[Array | np.ndarray, " statistics"]:
    """Adjust the observed p-values for their number, by the joint distribution of all (Westfall and Young, 1993).

    Any numbers will do that are comparable between statistics and small where the evidence is large.

    The smallest is compared with the smallest of each replicate, the second smallest with the smallest that
    leaves out the first statistic, and so on; none may undercut one before it.
    """
    xp = _numpy_of(p)
    order = xp.argsort(p[:, 0])
    p = p[order]
    smallest_of_rest = xp.minimum.accumulate(p[::-1], axis=0)[::-1]
    adjusted = xp.maximum.accumulate((smallest_of_rest <= p[:, :1]).mean(axis=1, dtype=p.dtype))
    return adjusted[xp.argsort(order)]


# Beyond the second of these quantiles a tail is taken to fall as it does from the first to the second.
_BODY, _TAIL = 0.8, 0.95


def _log_p_values(values: AnyValues) -> AnyValues:
    """Logarithms of p-values that go on below the smallest rank.

    Ranks end at one over the number of columns, and columns beyond all others would be told apart by nothing. A norm of
    many means has a tail that falls about exponentially: beyond the largest twentieth it is extrapolated.
    """
    columns, xp = values.shape[1], _numpy_of(values)
    ascending = xp.sort(values, axis=1)
    body, tail = (ascending[:, int(share * columns), None] for share in (_BODY, _TAIL))
    rate = np.log((1 - _BODY) / (1 - _TAIL)) / xp.where(tail > body, tail - body, np.inf)
    return xp.where(values > tail, np.log1p(-_TAIL) - (values - tail) * rate, xp.log(p_values(values)))


def combine(values: AnyValues, shares: Float[np.ndarray, " statistics"]) -> Float[Array | np.ndarray, " columns"]:
    """−log₁₀ of the weighted harmonic mean of each column's p-values, 1 / Σ_k w_k / p_k.

    One statistic that is large when any of them is, and larger when several are: the smallest p-value rules it (Wilson,
    2019). All columns go through the same, the observed one too, so that its rank among them is a p-value whatever the
    dependence of the statistics.
    """
    xp = _numpy_of(values)
    weights = np.log(shares / shares.sum()).astype(values.dtype)
    logs = xp.logaddexp.reduce(weights[:, None] - _log_p_values(values), axis=0)
    # Ranks would hide that a statistic is not a number.
    return xp.where(is_defined(values).all(), logs / np.log(10.0), np.nan).astype(values.dtype)


def with_larger_replicates(values: AnyValues, factors: Float[np.ndarray, " statistics"]) -> AnyValues:
    """All but the observed column times a factor for each statistic."""
    is_replicate = np.arange(values.shape[1]) > 0
    return values * np.where(is_replicate[None], factors[:, None], 1).astype(values.dtype)


def threshold(values: AnyValues, rejected: int) -> Float[Array | np.ndarray, " statistics"]:
    """The value that must be exceeded to be among the `rejected` largest of all columns."""
    return -_numpy_of(values).sort(-values[:, 1:], axis=1)[:, rejected - 1]


def is_defined(values: AnyValues) -> Bool[Array | np.ndarray, " statistics"]:
    """Whether there is a p-value: one that is not a number, compared with others, would seem significant."""
    return _numpy_of(values).isfinite(values).all(axis=1)


def where_defined(
    p: Float[Array | np.ndarray, " statistics"], is_defined: Bool[Array | np.ndarray, " statistics"]
) -> Any:
    """The p-values, or NaN."""
    return _numpy_of(p).where(is_defined, p, np.nan)
