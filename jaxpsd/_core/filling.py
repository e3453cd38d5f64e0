"""Draws filled up to one of a few numbers, so that programs that were compiled for some draws serve others."""

from math import ceil, log2

import jax
import numpy as np

from jaxpsd._core.draws import join_draws, split_draws
from jaxpsd._core.types import PyTree


def common_size(size: int) -> int:
    """At least this, and one of four sizes for each power of two: at most a quarter too many."""
    unit = 2 ** max(0, ceil(log2(size)) - 3)
    return ceil(size / unit) * unit


def fill_chains(arrays: PyTree, num_chains: int, length: int) -> PyTree:
    """Chains of so many draws: the last one of each is repeated, as if the chain stood still."""

    def fill(chains: np.ndarray) -> np.ndarray:
        missing = length - chains.shape[1]
        last = np.broadcast_to(chains[:, -1:], (num_chains, missing, *chains.shape[2:]))
        return np.concatenate([chains, last], axis=1)

    return join_draws(jax.tree.map(fill, split_draws(jax.tree.map(np.asarray, arrays), num_chains)))


def shorten_chains(arrays: PyTree, num_chains: int, length: int) -> PyTree:
    """The first draws of each chain, so many."""
    chains = split_draws(jax.tree.map(np.asarray, arrays), num_chains)
    return join_draws(jax.tree.map(lambda leaf: leaf[:, :length], chains))
