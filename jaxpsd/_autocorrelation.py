"""How dependent draws are: integrated autocorrelation times of their Stein features.

The time τ = 1 + 2 Σ_t ρ_t is by how much the variance of a mean exceeds that of independent draws. It is the
same, in units of single draws, for a series of means over b successive draws, which is how long chains are
measured at bounded cost.
"""

from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_static
from jaxtyping import Array, Float

from jaxpsd._blocks import block_length, map_over_blocks
from jaxpsd._draws import Draws
from jaxpsd._form import Form, in_coordinates_of
from jaxpsd._score import LogDensity, Scorer, run
from jaxpsd._types import PyTree

# Sokal's rule: sum correlations up to the first lag of at least this many autocorrelation times.
_WINDOW = 5

# Draws looked at to begin with, from the end of each chain, and points of the series made of them.
PILOT_DRAWS = 2**17
_POINTS = 2**13

# A chain that is shorter than this many autocorrelation times does not tell them well.
_ENOUGH_TIMES = 50

# How often independent draws are mistaken for dependent ones.
_FALSE_ALARM = 1e-3


class Dependence(NamedTuple):
    """What a set of chains looks like.

    time
        The largest integrated autocorrelation time of a feature, in draws.
    is_clear
        Whether it is more than independent draws would show by chance.
    """

    time: float
    is_clear: bool


def measure_dependence(target: PyTree, draws: Draws, form: Form, function: Callable[..., Any] | None) -> Dependence:
    """Measure the autocorrelation time in a pilot pass, over as many of the last draws as it takes."""
    chain = draws.num_draws // draws.num_chains
    length = min(chain, max(2, PILOT_DRAWS // draws.num_chains))
    while True:
        stride = max(1, length * draws.num_chains // _POINTS)
        stride = min(stride, max(1, length // 2))
        kept = length - length % stride
        ending = _last(target, draws, kept)
        shape = _Shape(draws.num_chains, stride)
        times, errors, lag_one = map(np.asarray, run(_pilot, *ending, form, shape, function=function))
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
    num_chains: int
    stride: int


def _last(target: PyTree, draws: Draws, kept: int) -> tuple[PyTree, Draws]:
    """The last draws of each chain, with their scores if those are given."""
    per_chain = draws.num_draws // draws.num_chains
    if kept == per_chain:
        return target, draws
    if not isinstance(target, LogDensity):
        target = Draws(target, draws.num_chains).between(per_chain - kept, per_chain).positions
    return target, draws.between(per_chain - kept, per_chain)


def _pilot(scorer: Scorer, arrays: PyTree, form: Form, shape: _Shape) -> tuple[Array, Array, Array]:
    """Autocorrelation times of the leading features, their errors if they were one, and lag-one correlations."""
    moved = in_coordinates_of(form, scorer)

    def summaries(block: PyTree) -> tuple[Array, Array, Array]:
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), block)
        tau = form.leading_features(*moved(flat))
        tau = tau.reshape(-1, shape.stride, tau.shape[1])
        mean = tau.mean(axis=1)
        within = tau - mean[:, None]
        return mean, (within**2).mean(axis=1), (within[:, 1:] * within[:, :-1]).sum(axis=1)

    grouped = jax.tree.map(lambda leaf: leaf.reshape(-1, shape.stride, *leaf.shape[1:]), arrays)
    points = jax.tree.leaves(grouped)[0].shape[0]
    x, _ = jax.eval_shape(moved, arrays)
    one = jax.ShapeDtypeStruct((1, x.shape[1]), x.dtype)
    count = jax.eval_shape(form.leading_features, one, one).shape[1]
    length = block_length(points, 4 * count * shape.stride * x.dtype.itemsize)
    means, squares, products = map_over_blocks(summaries, grouped, length)

    centre = means.mean(axis=0)
    series = (means - centre[None]).reshape(shape.num_chains, -1, means.shape[1])
    between = (series**2).mean(axis=(0, 1))
    variance = squares.mean(axis=0) + between
    # A feature that hardly varies, as seen in its digits, has no correlations to speak of.
    varies = variance > (jnp.finfo(means.dtype).eps * jnp.abs(centre)) ** 2
    variance = jnp.where(varies, variance, 1)
    times, window = _integrated_times(series)
    error = jnp.sqrt(2 * (2 * window + 1) / points)
    if shape.stride == 1:
        successive = (series[:, 1:] * series[:, :-1]).sum(axis=(0, 1)) / points
    else:
        successive = products.sum(axis=0) / (points * (shape.stride - 1)) + between
    times = jnp.where(varies, times * shape.stride * between / variance, 1)
    return times, error, jnp.where(varies, successive / variance, 0)


def times_by_chain(scores: PyTree, draws: Draws, form: Form) -> Float[np.ndarray, " chains"]:
    """Measure the autocorrelation time of every chain by itself."""
    chain = draws.num_draws // draws.num_chains
    stride = max(1, min(chain // _POINTS, chain // 2))
    kept = _last(scores, draws, chain - chain % stride)
    return np.maximum(run(_times_by_chain, *kept, form, _Shape(draws.num_chains, stride)), 1)


def _times_by_chain(scorer: Scorer, arrays: PyTree, form: Form, shape: _Shape) -> Float[Array, " chains"]:
    chains = jax.tree.map(lambda leaf: leaf.reshape(shape.num_chains, -1, *leaf.shape[1:]), arrays)
    return jax.lax.map(lambda each: _pilot(scorer, each, form, _Shape(1, shape.stride))[0].max(), chains)


@partial(jax.jit, static_argnums=1)
def variance_of_mean(values: Float[Array, "points columns"], num_chains: int) -> Float[Array, " columns"]:
    """Variance of the mean of each column over the points of all chains, which lie one after the other."""
    centred = values - values.mean(axis=0, keepdims=True)
    times, _ = _integrated_times(centred.reshape(num_chains, -1, values.shape[1]))
    # Anticorrelated chains may be worth more than independent draws, but that is not to be relied on.
    return (centred**2).mean(axis=0) * jnp.maximum(times, 1) / len(values)


def _integrated_times(
    series: Float[Array, "chains points features"],
) -> tuple[Float[Array, " features"], Float[Array, " features"]]:
    """1 + 2 Σ_{t ≤ M} ρ_t with Sokal's window M, for series with mean zero; and M."""
    length = series.shape[1]
    spectrum = jnp.fft.rfft(series, n=2 * length, axis=1)
    covariance = jnp.fft.irfft(jnp.abs(spectrum) ** 2, n=2 * length, axis=1)[:, :length].mean(axis=0)
    tiny = jnp.finfo(series.dtype).tiny
    correlation = covariance / jnp.maximum(covariance[:1], tiny)
    times = 2 * jnp.cumsum(correlation, axis=0) - 1
    lags = jnp.arange(length)[:, None]
    wide_enough = lags >= _WINDOW * times
    window = jnp.where(wide_enough.any(axis=0), jnp.argmax(wide_enough, axis=0), length - 1)
    time = jnp.take_along_axis(times, window[None], axis=0)[0]
    return jnp.maximum(time, 1 / length), window.astype(series.dtype)
