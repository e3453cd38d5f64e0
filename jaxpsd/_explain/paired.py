"""Draws before and after, in pairs: how much changed, how uncertain that is, and whether it is more than chance.

A reversible Markov kernel that leaves the target alone makes exchangeable pairs of its draws: (x, x′) is distributed as
(x′, x). Every difference f(x) − f(x′) may then have the other sign, and signs at random tell what chance does. For
independent pairs that is exact, whatever f is. Pairs that started from dependent draws keep together in blocks, which
have one sign each. All of it is arithmetic on a few hundred pairs, on the host.
"""

from math import ceil, log2
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Pairs = Float[np.ndarray, "pairs columns"]

# Blocks of dependent draws are about so many autocorrelation times long: the test of AR(1) chains then has its level.
_TIMES = 2

# Values that differ by so little are ties.
_ROUNDING = 1e-9


class Blocks(NamedTuple):
    """Which pairs belong together.

    of
        The block of each pair.
    number
        How many blocks there are.
    """

    of: Int[np.ndarray, " pairs"]
    number: int

    @classmethod
    def of_draws(cls, places: Int[np.ndarray, " pairs"], chain: int, time: float | None, alpha: float) -> "Blocks":
        """Blocks of pairs that started from these places among the draws, in chains of one length.

        Independent draws (`time` None) are blocks of their own, each with all pairs that started from it.
        """
        if time is None:
            per_chain = chain
        else:
            # Few blocks have few signs: not fewer than it takes to reject anything.
            num_chains = places.max() // chain + 1
            enough = ceil((ceil(log2(1 / alpha)) + 2) / num_chains)
            per_chain = min(chain, max(enough, round(chain / (_TIMES * time))))
        of_chain, within = np.divmod(places, chain)
        found, of = np.unique(of_chain * per_chain + within * per_chain // chain, return_inverse=True)
        return cls(of, len(found))

    def sums(self, values: Pairs) -> Float[np.ndarray, "blocks columns"]:
        """Sums over the pairs of each block."""
        sums = np.zeros((self.number, values.shape[1]))
        np.add.at(sums, self.of, values)
        return sums

    def standard_errors(self, values: Pairs) -> Float[np.ndarray, " columns"]:
        """Standard errors of the means of columns, from the sums of blocks."""
        sums = self.sums(values - values.mean(axis=0))
        return np.sqrt((sums**2).sum(axis=0) * self.number / max(self.number - 1, 1)) / len(values)


class Changes(NamedTuple):
    """How moments differ before and after, with standard errors.

    mean_off, mean_off_se
        Mean before less mean after, in standard deviations after.
    sd_ratio, sd_ratio_se
        Standard deviation before over that after.
    """

    mean_off: Float[np.ndarray, " dim"]
    mean_off_se: Float[np.ndarray, " dim"]
    sd_ratio: Float[np.ndarray, " dim"]
    sd_ratio_se: Float[np.ndarray, " dim"]


def changes_of(before: Pairs, after: Pairs, blocks: Blocks) -> Changes:
    """Changes of means and standard deviations; their errors by the delta method, from differences within pairs."""
    x, y = before - before.mean(axis=0), after - after.mean(axis=0)
    sd = x.std(axis=0), y.std(axis=0)
    off, ratio = (before - after).mean(axis=0) / sd[1], sd[0] / sd[1]
    # By how much each pair moves the logarithms of standard deviations.
    before_sd, after_sd = (((values / by) ** 2 - 1) / 2 for values, by in zip((x, y), sd, strict=True))
    off_se = blocks.standard_errors((x - y) / sd[1] - off * after_sd)
    return Changes(off, off_se, ratio, ratio * blocks.standard_errors(before_sd - after_sd))


def moment_differences(before: Pairs, after: Pairs) -> Pairs:
    """Differences of each coordinate, then of each squared deviation from the mean of all draws, before and after.

    That mean stays the same when before and after are swapped, so that differences of squares may change sign too.
    """
    centre = (before.mean(axis=0) + after.mean(axis=0)) / 2
    return np.concatenate([before - after, (before - centre) ** 2 - (after - centre) ** 2], axis=1)


def sign_flip_test(
    rng: np.random.Generator, differences: Pairs, blocks: Blocks, num_replicates: int
) -> Float[np.ndarray, " columns"]:
    """How often random signs of blocks give so large a mean difference of any column: step-down p-values.

    Each column is in units of √(Σ over blocks of its squared sum), which signs do not change. The largest is compared
    with the largest of each replicate, the second with the largest that leaves out the first, and so on (Westfall and
    Young, 1993).
    """
    sums = blocks.sums(differences)
    unit = np.sqrt((sums**2).sum(axis=0))
    sums = sums / np.where(unit > 0, unit, 1)
    observed = np.abs(sums.sum(axis=0))
    order = np.argsort(-observed, kind="stable")
    words = np.frombuffer(rng.bytes(num_replicates * ceil(blocks.number / 8)), np.uint8).reshape(num_replicates, -1)
    signs = 1.0 - 2.0 * np.unpackbits(words, axis=1, count=blocks.number)
    largest_of_rest = np.maximum.accumulate(np.abs(signs @ sums)[:, order[::-1]], axis=1)[:, ::-1]
    larger = (largest_of_rest >= observed[order] * (1 - _ROUNDING)).sum(axis=0)
    p = np.empty(len(order))
    p[order] = np.maximum.accumulate((1 + larger) / (1 + num_replicates))
    return p
