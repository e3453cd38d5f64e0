"""Draws that are right, or wrong in known ways: the best Gaussians, changed exact draws, and Langevin chains.

What takes an optimisation or a long run, parameters of Gaussians and step sizes, is kept in `~/.cache/jaxpsd-zoo`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.stats

from benchmarks._zoo.known import KnownTarget, generator
from benchmarks._zoo.langevin import Langevin, choose_adjusted, choose_unadjusted, law_of
from benchmarks._zoo.posteriors import find_mode

CACHE = Path.home() / ".cache" / "jaxpsd-zoo"

# Base draws of the ELBO, in pairs z, −z.
_BASE_DRAWS = 4096


@dataclass(frozen=True, eq=False)
class Kind:
    """A way to draw: `kind(key, n)` gives draws (n, dim), or four chains (4, n / 4, dim).

    mean, covariance
        Those of the law of the draws: closed forms, but for ULA's on targets that are not Gaussian, which come from a
        run of two million steps.
    is_right
        Whether that law is the target.
    """

    draw: Callable[[jax.Array, int], jax.Array]
    mean: np.ndarray
    covariance: np.ndarray
    is_right: bool = False

    def __call__(self, key: jax.Array, n: int) -> jax.Array:
        return self.draw(key, n)


def kinds(target: KnownTarget) -> dict[str, Kind]:
    """All kinds of draws that the target has, by label; a Gaussian approximation that is the target itself is none."""
    fits, dim = fits_of(target), target.dim
    found = {
        "exact": Kind(target.exact, target.mean, target.covariance, is_right=True),
        "too wide ×1.2": _changed(target, np.zeros(dim), 1.2),
        "off 0.2 along a coordinate": _changed(target, 0.2 * target.sd * np.eye(dim)[0]),
    }
    if dim > 1:
        found["off 0.2 along the stiffest direction"] = _changed(target, 0.2 * stiffest(target))
    for label in ("mean field", "full rank", "Laplace"):
        if (fit := fits.get(label)) is not None:
            found[label] = _normal(fit[0], fit[1:])
    if target.name.startswith("bimodal"):
        found["one mode"] = _normal(np.zeros(dim), np.eye(dim))
    if (step := fits.get("MALA")) is not None:
        chains = Langevin(target, float(step), thin=5, adjusted=True)
        found["MALA"] = Kind(chains.draw, target.mean, target.covariance, is_right=True)
    if (step := fits.get("ULA")) is not None:
        chains = Langevin(target, float(step), thin=3, adjusted=False)
        found["ULA"] = Kind(chains.draw, fits["ULA mean"], fits["ULA covariance"])
    return found


def _changed(target: KnownTarget, shift: np.ndarray, stretch: float = 1.0) -> Kind:
    """Exact draws, stretched about the mean and moved."""

    def draw(key: jax.Array, n: int) -> jax.Array:
        x = target.mean + stretch * (target.draw(generator(key), n) - target.mean) + shift
        return jnp.asarray(x, jnp.float32)

    return Kind(draw, target.mean + shift, stretch**2 * target.covariance)


def _normal(mean: np.ndarray, factor: np.ndarray) -> Kind:
    """N(mean, factor·factorᵀ)."""

    def draw(key: jax.Array, n: int) -> jax.Array:
        return jnp.asarray(mean + generator(key).normal(size=(n, len(mean))) @ factor.T, jnp.float32)

    return Kind(draw, mean, factor @ factor.T)


def stiffest(target: KnownTarget) -> np.ndarray:
    """One standard deviation along the principal axis of least variance, of coordinates of unit variance."""
    variances, axes = np.linalg.eigh(target.covariance / np.outer(target.sd, target.sd))
    return target.sd * axes[:, 0] * variances[0] ** 0.5


# --- what is optimised or measured, once ------------------------------------------------------------------


def fits_of(target: KnownTarget) -> dict[str, Any]:
    """Gaussians (1 + dim, dim), a mean above a factor; and steps of Langevin chains. None of a label: it has none."""
    if target.is_gaussian:
        return _fits_of_gaussian(target)
    path = CACHE / (re.sub(r"[^a-z0-9.]+", "-", target.name.lower()) + ".npz")
    # Values at a few positions tell whether what was kept belongs to this density.
    with jax.enable_x64(True):
        places = target.mean + target.sd * np.random.default_rng(0).normal(size=(5, target.dim))
        prints = np.asarray(jax.vmap(target.logdensity)(jnp.asarray(places)))
    if path.exists():
        with np.load(path) as file:
            kept = dict(file)
        if np.allclose(kept.pop("prints"), prints, rtol=1e-9):
            return kept
    fits = _fit(target)
    CACHE.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, prints=prints, **fits)
    return fits


def _fits_of_gaussian(target: KnownTarget) -> dict[str, Any]:
    fits: dict[str, Any] = {}
    narrow = np.diag(np.linalg.inv(target.covariance)) ** -0.5
    if not np.allclose(narrow, target.sd):
        fits["mean field"] = np.vstack([target.mean, np.diag(narrow)])
    # In whitened coordinates ULA's variance is 1/(1 − step/4).
    step = 1.2
    fits |= {"ULA": step, "ULA mean": target.mean, "ULA covariance": target.covariance / (1 - step / 4)}
    return fits | {"MALA": 1.6 * target.dim ** (-1 / 3)}


def _fit(target: KnownTarget) -> dict[str, Any]:
    fits: dict[str, Any] = {"mean field": maximize_elbo(target, diagonal=True)}
    if target.dim > 1:
        fits["full rank"] = maximize_elbo(target, diagonal=False)
    if (found := find_mode(target.logdensity, target.mean)) is not None:
        mode, precision = found
        fits["Laplace"] = np.vstack([mode, np.linalg.cholesky(np.linalg.inv(precision))])
    fits["MALA"] = choose_adjusted(target)
    step = choose_unadjusted(target)
    while step is not None:
        mean, covariance = law_of(target, step)
        if np.isfinite(covariance).all():
            return fits | {"ULA": step, "ULA mean": mean, "ULA covariance": covariance}
        # A long run finds where a large step throws chains out; a smaller one may keep them.
        step = step / 2 if step > 0.05 else None
    return fits


def maximize_elbo(target: KnownTarget, *, diagonal: bool) -> np.ndarray:
    """The Gaussian with the largest ELBO, factorised or not, over fixed base draws whose first moments are exact."""
    dim = target.dim
    uniform = scipy.stats.qmc.Sobol(dim, rng=np.random.default_rng(0)).random(_BASE_DRAWS // 2)
    z = scipy.stats.norm.ppf(uniform.clip(1e-6, 1 - 1e-6))
    z = np.linalg.solve(np.linalg.cholesky(z.T @ z / len(z)), z.T).T
    z = np.concatenate([z, -z])
    below = np.tril_indices(dim, -1)

    def unpack(parameters: Any) -> tuple[Any, Any, Any]:
        """In units of the target's standard deviations: mean, logarithms of the factor's diagonal, factor."""
        mean, logs, rest = parameters[:dim], parameters[dim : 2 * dim], parameters[2 * dim :]
        factor = jnp.diag(jnp.exp(logs))
        return mean, logs, factor if diagonal else factor.at[below].set(rest)

    def loss(parameters: jax.Array) -> jax.Array:
        mean, logs, factor = unpack(parameters)
        x = target.mean[None] + target.sd[None] * (mean[None] + z @ factor.T)
        return -jax.vmap(target.logdensity)(x).mean() - logs.sum()

    start = np.zeros(2 * dim + (0 if diagonal else len(below[0])))
    # Off the middle, which is a saddle between two modes; and narrow, where any target is tame.
    start[:dim], start[dim : 2 * dim] = 0.1, -1
    with jax.enable_x64(True):
        value_and_grad = jax.jit(jax.value_and_grad(loss))
        found = scipy.optimize.minimize(
            value_and_grad, start, jac=True, method="BFGS", options={"gtol": 1e-6, "maxiter": 2000}
        )
        if np.abs(found.jac).max() > 1e-3:
            raise FloatingPointError(f"{target.name}: the ELBO's gradient is {np.abs(found.jac).max():.2g} at the end.")
        mean, _, factor = (np.asarray(part) for part in unpack(jnp.asarray(found.x)))
    return np.vstack([target.mean + target.sd * mean, target.sd[:, None] * factor])
