"""A posterior with its ground truth."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np


@dataclass(frozen=True, eq=False)
class Moments:
    """What is called true of some coordinates, in float64.

    mean, sd
        Means and standard deviations.
    mean_se, log_sd_se
        Standard errors of the means, in standard deviations, and of the logarithms of these; 0 for closed forms.
    """

    mean: np.ndarray
    sd: np.ndarray
    mean_se: np.ndarray
    log_sd_se: np.ndarray


@dataclass(frozen=True, eq=False)
class PublicModel:
    """A posterior with its ground truth.

    name
        What tables call it.
    logdensity
        Of an unconstrained position (dim,), up to a constant.
    constrained
        From an unconstrained position to the parameters (dim,) that the ground truth is of.
    names, constrained_names
        Coordinates of either space.
    truth
        The ground truth, in constrained space.
    place
        For each unconstrained coordinate which of the parameters it is; −1 where it is none of them, but for a map.
    """

    name: str
    logdensity: Callable[[jax.Array], jax.Array]
    constrained: Callable[[jax.Array], jax.Array]
    names: tuple[str, ...]
    constrained_names: tuple[str, ...]
    truth: Moments
    place: np.ndarray

    @property
    def dim(self) -> int:
        """How many coordinates, in either space."""
        return len(self.names)
