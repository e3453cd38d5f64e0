"""What is true, in either space: what is published, and a long NUTS run where nothing is or the run contradicts it.

Such runs are kept in `~/.cache/jaxpsd-zoo`.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._public.known import Moments, PublicModel
from benchmarks._public.samplers import CHAINS, Nuts
from benchmarks._zoo.approximations import CACHE

# A published mean is contradicted by a long run that is so many standard errors, and so many standard deviations, away.
_STANDARD_ERRORS, _LEAST_OFF = 6, 0.1


class Truth(NamedTuple):
    """What draws are held to.

    constrained, unconstrained
        Moments of parameters, and of the coordinates that are sampled.
    off
        The largest distance of a long run from a published mean, in standard deviations; NaN where there is no run.
    contradicted
        Whether that is too far, so that all moments are those of the run.
    """

    constrained: Moments
    unconstrained: Moments
    off: float
    contradicted: bool


def find_truth(key: jax.Array, model: PublicModel, nuts: Nuts, num: int, runs: int) -> Truth:
    """What is published of a model; where it does not tell of all coordinates, with a run of so many draws."""
    known, published = model.place >= 0, model.truth
    if known.all():
        return Truth(published, _each(published, lambda part: part[model.place]), np.nan, False)
    constrained, unconstrained = _of_long_run(key, model, nuts, num, runs)
    off = (constrained.mean - published.mean) / published.sd
    far = np.abs(off) > np.maximum(_STANDARD_ERRORS * np.hypot(constrained.mean_se, published.mean_se), _LEAST_OFF)
    if far.any():
        return Truth(constrained, unconstrained, float(np.abs(off).max()), True)
    parts = (
        np.where(known, there[model.place], own)
        for there, own in zip(vars(published).values(), vars(unconstrained).values(), strict=True)
    )
    return Truth(published, Moments(*parts), float(np.abs(off).max()), False)


def _of_long_run(key: jax.Array, model: PublicModel, nuts: Nuts, num: int, runs: int) -> tuple[Moments, Moments]:
    """Of parameters, and of unconstrained coordinates."""
    path = CACHE / ("public-" + re.sub(r"[^a-z0-9.]+", "-", model.name.lower()) + f"-{num}-{runs}.npz")
    # Values at a few positions tell whether what was kept belongs to this density.
    places = jax.random.normal(jax.random.key(0), (5, model.dim))
    prints = np.asarray(jax.vmap(model.logdensity)(places))
    if path.exists():
        with np.load(path) as file:
            if np.allclose(file["prints"], prints, rtol=1e-4):
                return Moments(*file["constrained"]), Moments(*file["unconstrained"])
    states, found = nuts.states, []
    for run_key in jax.random.split(key, runs):
        states, x = nuts.run(run_key, states, num)
        found.append(np.asarray(x, np.float64))
    # (runs · chains, num, dim), parts of chains that are long enough to be nearly independent.
    x = np.concatenate(found)
    theta = np.asarray(jax.lax.map(jax.vmap(model.constrained), jnp.asarray(x, jnp.float32)), np.float64)
    constrained, unconstrained = _moments(theta), _moments(x)
    CACHE.mkdir(parents=True, exist_ok=True)
    rows = {"constrained": constrained, "unconstrained": unconstrained}
    np.savez_compressed(path, prints=prints, **{name: np.array([*vars(each).values()]) for name, each in rows.items()})
    return constrained, unconstrained


def _each(moments: Moments, change: Callable[[np.ndarray], np.ndarray]) -> Moments:
    return Moments(*map(change, vars(moments).values()))


def _moments(x: np.ndarray) -> Moments:
    """Of parts of chains (parts, num, dim), with standard errors by how much parts differ."""
    mean, sd = x.mean(axis=(0, 1)), x.std(axis=(0, 1))
    squares = ((x - mean) ** 2).mean(axis=1) / sd**2
    count = max(len(x) - 1, CHAINS - 1)
    return Moments(mean, sd, x.mean(axis=1).std(axis=0) / sd / count**0.5, squares.std(axis=0) / 2 / count**0.5)
