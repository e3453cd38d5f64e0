"""A target whose mean and covariance are known, and what a set of draws has wrong in truth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Independent draws (n, dim), so many of them."""


@dataclass(frozen=True, eq=False)
class KnownTarget:
    """A target with its truth.

    name
        What tables call it.
    logdensity
        Of one position (dim,), up to a constant.
    mean, covariance
        The truth, in float64.
    draw
        Independent exact draws, by NumPy: nothing is compiled for another number of them.
    names
        The coordinates.
    accuracy
        Standard error of the stated means and standard deviations, in standard deviations; 0 for a closed form.
    held_out
        Whether no recipe has been chosen by looking at it.
    """

    name: str
    logdensity: Callable[[jax.Array], jax.Array]
    mean: np.ndarray
    covariance: np.ndarray
    draw: Draw
    names: tuple[str, ...]
    accuracy: float = 0.0
    held_out: bool = False

    @property
    def dim(self) -> int:
        """How many coordinates."""
        return len(self.mean)

    @property
    def sd(self) -> np.ndarray:
        """Standard deviations of the coordinates."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def is_gaussian(self) -> bool:
        """Whether the best Gaussian is the target itself."""
        return self.name.startswith("Gaussian")

    def exact(self, key: jax.Array, n: int) -> jax.Array:
        """Independent exact draws (n, dim)."""
        return jnp.asarray(self.draw(generator(key), n), jnp.float32)


def generator(key: jax.Array) -> np.random.Generator:
    """NumPy's, from a key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def numbered(dim: int, letter: str = "x") -> tuple[str, ...]:
    return tuple(f"{letter}{k}" for k in range(dim))


class TrueErrors(NamedTuple):
    """Errors in units of the target, those of the implied errors that the library states.

    mean_off
        Error of each mean, in standard deviations.
    log_sd_ratio
        Logarithm of each standard deviation over the right one.
    correlation
        Errors of the correlations (dim, dim).
    """

    mean_off: np.ndarray
    log_sd_ratio: np.ndarray
    correlation: np.ndarray


def true_errors(target: KnownTarget, x: jax.Array | np.ndarray) -> TrueErrors:
    """Of these very draws, (…, dim): what chance has made of them is part of it."""
    x = np.asarray(x, np.float64).reshape(-1, target.dim)
    return errors_of_law(target, x.mean(axis=0), np.atleast_2d(np.cov(x, rowvar=False, ddof=0)))


def errors_of_law(target: KnownTarget, mean: np.ndarray, covariance: np.ndarray) -> TrueErrors:
    """Of a law with that mean and covariance."""
    sd = np.sqrt(np.diag(covariance))
    own, right = covariance / np.outer(sd, sd), target.covariance / np.outer(target.sd, target.sd)
    return TrueErrors((mean - target.mean) / target.sd, np.log(sd / target.sd), own - right)
