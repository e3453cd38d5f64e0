"""How dependent draws are: integrated autocorrelation times of their Stein features, and of the draws themselves.

The time τ = 1 + 2 Σ_t ρ_t is by how much the variance of a mean exceeds that of independent draws. It is the
same, in units of single draws, for a series of means over b successive draws, which is how long chains are
measured at bounded cost.
"""

from dataclasses import replace
from functools import partial
from math import ceil
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_static
from jaxtyping import Array, Float, Int

from jaxpsd._core.blocks import block_length, einsum, map_over_blocks, weighted
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import split_draws
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given
from jaxpsd._core.sharding import assemble_shares, shards_of, share_index, with_next_share
from jaxpsd._core.types import Block, PyTree, Scalar
from jaxpsd._discrepancies.plans import Plan

# Sokal's rule: sum correlations up to the first lag of at least this many autocorrelation times.
_WINDOW = 5

# Draws looked at to begin with, from the end of each chain, and points of the series made of them.
PILOT_DRAWS = 2**17
_POINTS = 2**13

# Bytes of a block of stretches.
_CACHE = 2**20

# Columns whose correlations are computed together.
_COLUMNS = 64

# A chain that is shorter than this many autocorrelation times does not tell them well.
_ENOUGH_TIMES = 50

# How often independent draws are mistaken for dependent ones.
_FALSE_ALARM = 1e-3


_Places = Int[np.ndarray, "shares stretches"]


class Dependence(NamedTuple):
    """What a set of chains looks like.

    time
        The largest integrated autocorrelation time of a feature, in draws.
    is_clear
        Whether it is more than independent draws would show by chance.
    """

    time: float
    is_clear: bool


def measure_dependence(given: Given, plan: Plan) -> Dependence:
    """Measure the autocorrelation time in a pilot pass, over as many of the last draws as it takes."""
    draws = given.draws
    chain = draws.num_draws // draws.num_chains
    # What chains are filled up with is at their ends, too.
    more = given.chain_length - chain
    length = min(chain, max(2, PILOT_DRAWS // draws.num_chains))
    while True:
        stride = max(1, min(length * draws.num_chains // _POINTS, length // 2))
        kept = length - length % stride
        shape = _Shape(draws.num_chains, (kept + more) // stride, stride)
        found = run(_pilot, given, plan, _stretches(given, kept + more, stride), shape)
        times, errors, lag_one = map(np.asarray, found)
        time = float(times.max())
        if length == chain or time * _ENOUGH_TIMES < length:
            break
        length = min(chain, 8 * length)
    # Independent draws have τ = 1 and ρ_1 = 0, up to normal errors.
    quantile = NormalDist().inv_cdf(1 - _FALSE_ALARM / (2 * len(times)))
    points = kept * draws.num_chains
    is_clear = np.max((times - 1) / errors) > quantile or lag_one.max() * points**0.5 > quantile
    return Dependence(max(time, 1.0) if is_clear else time, bool(is_clear))


@register_static
class _Shape(NamedTuple):
    """How many chains there are, and of how many stretches of how many draws the end of each consists."""

    num_chains: int
    per_chain: int
    stride: int


def _stretches(given: Given, kept: int, stride: int) -> tuple[_Places, _Places]:
    """The last draws of each chain, in stretches of successive draws, a row for those that begin in each share.

    Which draw of the share each begins with; and which of all stretches it is, chain by chain: one too many where a
    share has fewer than others.
    """
    shards, num_chains, per_chain = shards_of(given.draws.positions), given.draws.num_chains, given.chain_length
    shares = 1 if shards is None else shards.count
    per_share = num_chains * per_chain // shares
    if stride > per_share:
        raise ValueError(f"{given.draws.num_draws:,} draws are too few for {shares:,} devices; use fewer.")
    within = np.arange(per_chain - kept, per_chain, stride)
    first = (per_chain * np.arange(num_chains)[:, None] + within[None]).ravel()
    share = first // per_share
    start = np.zeros((shares, np.bincount(share).max()), np.int32)
    number = np.full_like(start, len(first))
    for k in range(shares):
        mine = np.flatnonzero(share == k)
        start[k, : len(mine)], number[k, : len(mine)] = first[mine] % per_share, mine
    return start, number


def _pilot(data: Data, plan: Plan, stretches: tuple[_Places, _Places], shape: _Shape) -> tuple[Array, Array, Array]:
    """Autocorrelation times of the leading features, their errors if they were one, and lag-one correlations."""
    scorer, x = plan.prepare(data).scorer(), data.x

    def looked_at(x: Block, s: Block) -> Block:
        """Features, and positions: a score that is ruled by what is quick may hide that a chain moves slowly."""
        return jnp.concatenate([plan.leading_features(x, s), x], axis=1)

    # A stretch may end among the draws of the next share.
    reachable = with_next_share(data.rows, shape.stride - 1)

    def summaries(start: Int[Array, " stretches"]) -> tuple[Array, Array, Array]:
        # The first draws of all stretches, then the second: sums over a stretch are products with a row of ones.
        rows = (jnp.arange(shape.stride)[:, None] + start[None]).ravel()
        tau = looked_at(*scorer(jax.tree.map(lambda leaf: leaf[rows], reachable)))
        count = tau.shape[1]
        tau = tau.reshape(shape.stride, -1)

        def total(values: Float[Array, "some stretches_by_features"]) -> Float[Array, "stretches features"]:
            return einsum("t,tk->k", jnp.ones_like(values[:, 0]), values).reshape(-1, count)

        mean = total(tau) / shape.stride
        within = tau - mean.ravel()[None]
        return mean, total(within**2) / shape.stride, total(within[1:] * within[:-1])

    rows = shape.num_chains * shape.per_chain
    one = jax.ShapeDtypeStruct((1, x.shape[1]), x.dtype)
    count = jax.eval_shape(looked_at, one, one).shape[1]
    start, number = (jnp.asarray(part)[share_index()] for part in stretches)
    # Features of a stretch are gone through three times, which takes long unless they are in cache.
    length = block_length(len(start), 4 * count * shape.stride * x.dtype.itemsize, _CACHE)
    of_share = map_over_blocks(summaries, start, length)
    means, squares, products = (assemble_shares(part, number, rows) for part in of_share)

    # Chains that are filled up are so short that each stretch is a single draw.
    points = rows if data.count is None else data.count
    seen = None if data.is_real is None else data.is_real.astype(x.dtype)
    centre = weighted(means, seen).sum(axis=0) / points
    series = weighted(means - centre[None], seen).reshape(shape.num_chains, -1, means.shape[1])
    between = (series**2).sum(axis=(0, 1)) / points
    variance = weighted(squares, seen).sum(axis=0) / points + between
    # A feature that hardly varies, as seen in its digits, has no correlations to speak of.
    varies = variance > (jnp.finfo(means.dtype).eps * jnp.abs(centre)) ** 2
    variance = jnp.where(varies, variance, 1)
    times, window = _integrated_times(series)
    error = jnp.sqrt(2 * (2 * window + 1) / points)
    if shape.stride == 1:
        successive = (series[:, 1:] * series[:, :-1]).sum(axis=(0, 1)) / points
    else:
        successive = products.sum(axis=0) / (rows * (shape.stride - 1)) + between
    times = jnp.where(varies, times * shape.stride * between / variance, 1)
    return times, error, jnp.where(varies, successive / variance, 0)


def times_by_chain(given: Given, plan: Plan) -> Float[np.ndarray, " chains"]:
    """Measure the autocorrelation time of every chain by itself."""
    count = given.draws.num_chains
    chain = given.draws.num_draws // count
    stride = max(1, min(chain // _POINTS, chain // 2))
    shape = _Shape(count, given.chain_length // stride, stride)
    return np.maximum(run(_times_by_chain, given, plan, shape, result="gathered"), 1)


def _times_by_chain(data: Data, plan: Plan, shape: _Shape) -> Float[Array, " chains"]:
    length = len(data.x) // shape.num_chains
    start = length - shape.stride * np.arange(shape.per_chain, 0, -1)
    stretches = start[None], np.arange(shape.per_chain)[None]
    alone = shape._replace(num_chains=1)

    count = None if data.count is None else data.count / shape.num_chains

    def time(chain: PyTree) -> Scalar:
        (positions, scores), weights = chain
        alone_data = replace(data, positions=positions, scores=scores, weights=weights, count=count)
        return _pilot(alone_data, plan, stretches, alone)[0].max()

    return jax.lax.map(time, split_draws((data.rows, data.weights), shape.num_chains))


@partial(compile_by_work, static_argnums=1)
def variance_of_mean(values: Float[Array, "points columns"], num_chains: int) -> Float[Array, " columns"]:
    """Variance of the mean of each column over the points of all chains, which lie one after the other."""

    def of_column(column: Float[Array, " points"]) -> Scalar:
        centred = column - column.mean()
        times, _ = _integrated_times(centred.reshape(num_chains, -1, 1))
        # Anticorrelated chains may be worth more than independent draws, but that is not to be relied on.
        return (centred**2).mean() * jnp.maximum(times[0], 1) / len(column)

    # Transforms of all columns at once would take several times the memory of the values, if these are many.
    if values.shape[1] <= _COLUMNS:
        return jax.vmap(of_column)(values.T)
    return jax.lax.map(of_column, values.T, batch_size=_COLUMNS)


def _integrated_times(
    series: Float[Array, "chains points features"],
) -> tuple[Float[Array, " features"], Float[Array, " features"]]:
    """1 + 2 Σ_{t ≤ M} ρ_t with Sokal's window M, for series with mean zero; and M."""
    length = series.shape[1]
    padded = _quick_length(2 * length)
    spectrum = jnp.fft.rfft(series, n=padded, axis=1)
    covariance = jnp.fft.irfft(jnp.abs(spectrum) ** 2, n=padded, axis=1)[:, :length].mean(axis=0)
    correlation = covariance / jnp.maximum(covariance[:1], jnp.finfo(series.dtype).tiny)
    times = 2 * jnp.cumsum(correlation, axis=0) - 1
    wide_enough = jnp.arange(length)[:, None] >= _WINDOW * times
    window = jnp.where(wide_enough.any(axis=0), jnp.argmax(wide_enough, axis=0), length - 1)
    time = jnp.take_along_axis(times, window[None], axis=0)[0]
    return jnp.maximum(time, 1 / length), window.astype(series.dtype)


def _quick_length(length: int) -> int:
    """At least this, and a product of small numbers, of which Fourier transforms take half the time."""
    return min(odd * 2 ** (ceil(length / odd) - 1).bit_length() for odd in (1, 3, 5, 9, 15))
