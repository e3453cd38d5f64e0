"""Which bootstrap suits the draws at hand, and with which parameter.

Independent draws take independent signs. Dependent ones take signs that keep their value for a while, with the
autocorrelation time τ of the Stein features as the measure of how long (Chwialkowski et al., 2016).
"""

from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray

from jaxpsd._core.blocks import MEMORY_BUDGET
from jaxpsd._core.checks import readable_bytes
from jaxpsd._core.draws import Draws
from jaxpsd._core.scores import Given
from jaxpsd._discrepancies.plans import Plan
from jaxpsd._gof.dependence import Dependence, measure_dependence
from jaxpsd._gof.multipliers import Multinomial, Place, Signs, key_of_bits, number, representable
from jaxpsd._gof.normal import Normal, check_normal, suits
from jaxpsd._gof.settings import INDEPENDENT, Settings

# Measured: correct AR(1) chains are then rejected about as often as they should be.
_FLIPS = 0.5


class Scheme(NamedTuple):
    """A bootstrap, chosen.

    method
        "rademacher", "gaussian", "multinomial", "markov" or "block".
    multipliers
        What it multiplies draws with, or how it does without; None for a null distribution that is not resampled.
    parameter
        Flip probability of "markov", block length of "block".
    autocorrelation_time
        τ, where it was measured.
    floor
        No p-value is smaller than about this: the probability that all signs of a replicate agree.
    """

    method: str
    multipliers: Signs | Multinomial | Normal | None
    parameter: float | None
    autocorrelation_time: float | None
    floor: float


def choose_bootstrap(
    rng_key: PRNGKeyArray,
    settings: Settings,
    given: Given,
    plan: Plan,
    dependence: Dependence | None = None,
    *,
    by_signs: bool = False,
) -> Scheme:
    """Measure how dependent the draws are, unless that is known or need not be, and choose what was left open.

    `by_signs` where several replicates have to come from the same multipliers of draws.
    """
    draws = given.draws
    method, num_replicates, alpha, parameter = settings
    n, chains = draws.num_draws, draws.num_chains
    chain = n // chains
    if method not in INDEPENDENT and chain == 1:
        raise ValueError(
            f"Every chain has a single draw, so that their dependence cannot be seen. If the {n} draws are "
            "independent, say so by `samples[:, 0]`."
        )
    time = None
    if settings.measures:
        if not given.is_concrete:
            instead = {"markov": "give `flip_probability`", "block": "give `block_length`"}
            raise ValueError(
                f"method={method!r} measures the autocorrelation time of the draws, which needs their values; inside "
                f"`jit` or `vmap` {instead.get(method, 'choose a method')}."
            )
        time, is_dependent = dependence or measure_dependence(given, plan)
        if method == "auto":
            independent = "gaussian" if not by_signs and suits(given, plan, num_replicates) else "rademacher"
            method = "markov" if is_dependent else independent
            if is_dependent and floor_of("markov", _flip_probability(n, time), n, chains) > alpha:
                method = "block"
        if method == "markov":
            parameter = _flip_probability(n, time)
        elif method == "block":
            parameter = _block_length(n, chains, time, alpha)
    if method == "multinomial":
        if n * num_replicates > MEMORY_BUDGET:
            raise ValueError(
                f"Multinomial counts of {n:,} draws in {num_replicates:,} replicates take "
                f"{readable_bytes(n * num_replicates)}, more than the {readable_bytes(MEMORY_BUDGET)} that temporaries "
                "may take. Use method='rademacher', which takes memory for none, or fewer replicates."
            )
        return Scheme(method, Multinomial(rng_key, num_replicates), None, time, 0.0)
    if method == "gaussian":
        if by_signs:
            raise ValueError(
                "method='gaussian' replicates the features of one discrepancy, and several are compared on common "
                "replicates here; use method='rademacher'."
            )
        check_normal(given, plan)
        return Scheme(method, Normal(key_of_bits(rng_key), num_replicates), None, time, 0.0)
    signs = signs_of(rng_key, method, parameter, given.chain_length, num_replicates)
    return Scheme(method, signs, parameter, time, floor_of(method, parameter, n, chains))


def effective_draws(scheme: Scheme, draws: Draws) -> float:
    """How many independent draws these are worth, by what was measured of them."""
    if scheme.method in INDEPENDENT or scheme.autocorrelation_time is None:
        return float(draws.num_draws)
    return draws.num_draws / scheme.autocorrelation_time


def signs_of(rng_key: PRNGKeyArray, method: str, parameter: float | None, chain: int, num_replicates: int) -> Signs:
    """Signs by a method whose parameter is known, for chains of a given length."""
    return Signs(
        key=key_of_bits(rng_key),
        change=number(parameter if method == "markov" and parameter else 0.5, np.float32),
        block=number(parameter if method == "block" and parameter else 1, np.int32),
        chain=number(chain, np.int32),
        origin=Place.at(0),
        kind=method,
        num_replicates=num_replicates,
    )


def _flip_probability(num_draws: int, time: float) -> float:
    """The flip probability whose bias and variance balance: n^{−1/3} τ^{−2/3}, times what measurements suggest."""
    return representable(min(0.5, _FLIPS * num_draws ** (-1 / 3) * max(time, 1.0) ** (-2 / 3)))


def _block_length(num_draws: int, chains: int, time: float, alpha: float) -> int:
    """Blocks over which signs persist as long as Markov signs do, but enough of them to reject at all."""
    most_draws = num_draws // chains
    enough_blocks = ceil(log2(1 / alpha)) + 2
    longest = max(1, most_draws // ceil(enough_blocks / chains))
    return max(1, min(longest, round(1 / _flip_probability(num_draws, time))))


def floor_of(method: str, parameter: float | None, num_draws: Any, chains: Any) -> Any:
    """Probability that all draws of a replicate have one sign; it then equals the observed statistic."""
    if method == "rademacher" or parameter is None:
        return 2.0 ** (1 - num_draws)
    if method == "markov":
        return (1 - parameter) ** (num_draws - chains) * 2.0 ** (1 - chains)
    blocks = chains * -(-num_draws / chains // parameter)
    return 2.0 ** (1 - blocks)
