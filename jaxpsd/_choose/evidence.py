"""From means over stretches of chains to what a longer run would have: squared errors, with what is not known of them.

A vector of means, such as those of Stein features, has the square Σ ψ̄² = bias² + noise. Means of batches of each
chain say how large the noise is, and means of chains whether batches are independent: noise = κ Σ var(batch means) / n,
where κ ≥ 1 is the ratio of what chains say to what batches say. What is left is bias² = max(0, Σ ψ̄² − noise), and a
run that is longer by a factor 1/f has the square θ = bias² + f^γ · noise, with γ = 1 for chains that mix, and zero for
those that stand still, κ being the number of batches; where the bias cannot be told from noise, that is all of it.

How well θ is known is seen from replicates: batch means about their mean with normal weights, and the noise times a χ².
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

# More batches of a chain than this are joined: long ones depend less on each other.
_MOST_BATCHES = 16


class Expected(NamedTuple):
    """θ; its parts, whose sum it is; and replicates of it."""

    square: float
    parts: Float[np.ndarray, " parts"]
    replicates: Float[np.ndarray, " replicates"]


class Noise(NamedTuple):
    """How much means vary from run to run.

    variance
        Of the mean of each column.
    inflation
        κ, of each part, by which those of batches were multiplied.
    exponent
        γ, of each part.
    """

    variance: Float[np.ndarray, " columns"]
    inflation: Float[np.ndarray, " parts"]
    exponent: Float[np.ndarray, " parts"]


def in_batches(stretches: Float[np.ndarray, "chains stretches columns"]) -> Float[np.ndarray, "chains batches columns"]:
    """Means of stretches joined to fewer and longer ones; the oldest are left out where they do not fit in."""
    chains, count, columns = stretches.shape
    width = -(-count // _MOST_BATCHES)
    kept = stretches[:, count % width :]
    return kept.reshape(chains, -1, width, columns).mean(axis=2)


def noise_of(batches: Float[np.ndarray, "chains batches columns"], parts: Int[np.ndarray, " columns"]) -> Noise:
    """By batches, or by chains where these differ more than their batches let expect."""
    chains, per_chain, _ = batches.shape
    flat = batches.reshape(chains * per_chain, -1)
    by_batches = flat.var(axis=0, ddof=1) / len(flat)
    count = parts.max() + 1
    inflation = np.ones(count)
    variance = by_batches.copy()
    if chains > 1:
        by_chains = batches.mean(axis=1).var(axis=0, ddof=1) / chains
        for part in range(count):
            own = parts == part
            inner, outer = by_batches[own].sum(), by_chains[own].sum()
            if inner > 0:
                inflation[part] = max(1.0, outer / inner)
                variance[own] *= inflation[part]
            elif outer > 0:
                # Chains that stand still, each elsewhere.
                inflation[part] = per_chain
                variance[own] = by_chains[own]
    exponent = np.clip(1 - np.log(inflation) / np.log(max(per_chain, 2)), 0, 1)
    return Noise(variance, inflation, exponent)


def expect_square(
    rng: np.random.Generator,
    batches: Float[np.ndarray, "chains batches columns"],
    parts: Int[np.ndarray, " columns"],
    share: float,
    num_replicates: int,
) -> Expected:
    """θ for a run of which these batches are a share, the square of the means of all columns, part by part."""
    chains, _, columns = batches.shape
    centre = batches.mean(axis=(0, 1))
    noise = noise_of(batches, parts)
    deviations = batches.reshape(-1, columns) - centre
    n = len(deviations)
    weights = rng.standard_normal((num_replicates, n)) / (n * (n - 1)) ** 0.5
    still = deviations.std(axis=0) == 0
    moved = weights @ deviations * np.sqrt(noise.inflation[parts])
    moved[:, still] = rng.standard_normal((num_replicates, still.sum())) * np.sqrt(noise.variance[still])
    square, total = [], np.zeros(num_replicates)
    for part in range(parts.max() + 1):
        own = parts == part
        v, variances = (centre[own] ** 2).sum(), noise.variance[own]
        by_chance, factor = variances.sum(), share ** noise.exponent[part]
        bias = max(0.0, v - by_chance)
        square.append(bias + factor * by_chance)
        again = ((np.sqrt(bias / v if v > 0 else 0) * centre[own] + moved[:, own]) ** 2).sum(axis=1)
        noise_again = by_chance * _relative_chi_square(rng, variances, noise.inflation[part], chains, n, num_replicates)
        total += np.maximum(again - noise_again, 0) + factor * noise_again
    return Expected(float(sum(square)), np.array(square), total)


def _relative_chi_square(
    rng: np.random.Generator, variances: np.ndarray, inflation: float, chains: int, batches: int, count: int
) -> np.ndarray:
    """How far off an estimated sum of variances may be, as a factor, for so many columns and batches, or chains."""
    total = variances.sum()
    if total == 0:
        return np.ones(count)
    columns = total**2 / (variances**2).sum()
    freedom = columns * ((batches if inflation == 1 else chains) - 1)
    return rng.gamma(freedom / 2, 2 / freedom, count)


class MomentErrors(NamedTuple):
    """Errors of means, in standard deviations of the target, and of standard deviations, as shares.

    off
        The errors of all means, and then those of all standard deviations.
    batches
        The same of batches, linearised, so that their mean is `off`.
    """

    off: Float[np.ndarray, " twice_dim"]
    batches: Float[np.ndarray, "chains batches twice_dim"]


def moment_errors(
    batches: Float[np.ndarray, "chains batches twice_dim"],
    mean: Float[np.ndarray, " dim"],
    sd: Float[np.ndarray, " dim"],
) -> MomentErrors:
    """From means of coordinates and of their squares, and what these are under the target."""
    first, second = np.split(batches, 2, axis=-1)
    # About the target's mean, in units of its standard deviation.
    second = (second - 2 * mean * first + mean**2) / sd**2
    first = (first - mean) / sd
    m, square = first.mean(axis=(0, 1)), second.mean(axis=(0, 1))
    scale = np.sqrt(np.maximum(square - m**2, 0))
    # What a batch moves the standard deviation by; chains that stand still have none to divide by.
    slope = np.where(scale > 0, 0.5 / np.where(scale > 0, scale, 1), 0)
    moved = slope * ((second - square) - 2 * m * (first - m))
    return MomentErrors(np.concatenate([m, scale - 1]), np.concatenate([first, scale - 1 + moved], axis=-1))
