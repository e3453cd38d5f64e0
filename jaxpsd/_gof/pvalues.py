"""From a statistic and its replicates to p-values, also for several statistics at once.

Values come as a matrix with a row for each statistic; its first column is the observed one, the others are
replicates. Under the null hypothesis the columns are exchangeable, so that the p-value of the observed column
is its rank among all of them: (1 + #{replicates ≥ statistic}) / (1 + m).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Values = Float[Array, "statistics columns"]
"""A row for each statistic: the observed value first, then its replicates."""

# Values that differ by so many units of rounding are ties.
_ROUNDING = 16


def least_tie(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """What counts as equal: replicates whose signs all agree have the observed value, but for rounding."""
    return values - _ROUNDING * jnp.finfo(values.dtype).eps * jnp.abs(values)


def p_values(values: Values) -> Values:
    """The p-value of every column among all columns; the first is the observed one."""

    def ranked(row: Float[Array, " columns"]) -> Float[Array, " columns"]:
        smaller = jnp.searchsorted(jnp.sort(row), least_tie(row))
        return (len(row) - smaller).astype(row.dtype) / len(row)

    return jax.vmap(ranked)(values)


def step_down(p: Values) -> Float[Array, " statistics"]:
    """Adjust the observed p-values for their number, by the joint distribution of all (Westfall and Young, 1993).

    Any numbers will do that are comparable between statistics and small where the evidence is large.

    The smallest is compared with the smallest of each replicate, the second smallest with the smallest that
    leaves out the first statistic, and so on; none may undercut one before it.
    """
    order = jnp.argsort(p[:, 0])
    p = p[order]
    smallest_of_rest = jax.lax.cummin(p, axis=0, reverse=True)
    adjusted = jax.lax.cummax((smallest_of_rest <= p[:, :1]).mean(axis=1, dtype=p.dtype), axis=0)
    return jnp.zeros_like(adjusted).at[order].set(adjusted)


# Beyond the second of these quantiles a tail is taken to fall as it does from the first to the second.
_BODY, _TAIL = 0.8, 0.95


def _log_p_values(values: Values) -> Values:
    """Logarithms of p-values that go on below the smallest rank.

    Ranks end at one over the number of columns, and columns beyond all others would be told apart by nothing. A norm of
    many means has a tail that falls about exponentially: beyond the largest twentieth it is extrapolated.
    """
    columns = values.shape[1]
    ascending = jnp.sort(values, axis=1)
    body, tail = (ascending[:, int(share * columns), None] for share in (_BODY, _TAIL))
    rate = jnp.log((1 - _BODY) / (1 - _TAIL)) / jnp.where(tail > body, tail - body, jnp.inf)
    return jnp.where(values > tail, jnp.log1p(-_TAIL) - (values - tail) * rate, jnp.log(p_values(values)))


@jax.jit
def combine(values: Values, shares: Float[Array, " statistics"]) -> Float[Array, " columns"]:
    """−log₁₀ of the weighted harmonic mean of each column's p-values, 1 / Σ_k w_k / p_k.

    One statistic that is large when any of them is, and larger when several are: the smallest p-value rules it (Wilson,
    2019). All columns go through the same, the observed one too, so that its rank among them is a p-value whatever the
    dependence of the statistics.
    """
    logs = jax.nn.logsumexp(jnp.log(shares / shares.sum())[:, None] - _log_p_values(values), axis=0)
    # Ranks would hide that a statistic is not a number.
    return jnp.where(is_defined(values).all(), logs / jnp.log(10.0), jnp.nan)


@jax.jit
def with_larger_replicates(values: Values, factors: Float[Array, " statistics"]) -> Values:
    """All but the observed column times a factor for each statistic."""
    return jnp.concatenate([values[:, :1], values[:, 1:] * factors[:, None]], axis=1)


def threshold(values: Values, rejected: int) -> Float[Array, " statistics"]:
    """The value that must be exceeded to be among the `rejected` largest of all columns."""
    return -jnp.sort(-values[:, 1:], axis=1)[:, rejected - 1]


def is_defined(values: Values) -> Bool[Array, " statistics"]:
    """Whether there is a p-value: one that is not a number, compared with others, would seem significant."""
    return jnp.isfinite(values).all(axis=1)
