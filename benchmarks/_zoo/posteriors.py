"""Posteriors whose truth takes numerical integration.

Two families. Given one or two scale parameters h the others are Gaussian: the posterior of h is then known on a grid,
and all moments are sums over it. Others are near enough to Gaussian for importance sampling from a Student-t
distribution at the mode, with quasi-random points; draws are accepted or rejected, and so exact and independent.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.stats

from benchmarks._zoo.known import KnownTarget, numbered

LogDensity = Callable[[jax.Array], jax.Array]


def in_batches(fn: Callable[[jax.Array], Any], size: int = 2000) -> Callable[[np.ndarray], Any]:
    """A function of one position at many (n, …), in float64; one program serves any number of them."""
    batched = jax.jit(jax.vmap(fn))

    def at(x: np.ndarray) -> Any:
        parts = []
        with jax.enable_x64(True):
            for start in range(0, len(x), size):
                part = np.resize(x[start : start + size], (size, *x.shape[1:]))
                parts.append(jax.tree.map(np.asarray, batched(part)))
        return jax.tree.map(lambda *each: np.concatenate(each)[: len(x)], *parts)

    return at


# --- Gaussian, given few parameters -----------------------------------------------------------------------


def conditionally_gaussian(
    name: str, logdensity: LogDensity, names: Sequence[str], given: Sequence[int], grids: Sequence[np.ndarray], **more
) -> KnownTarget:
    """A target that is Gaussian in all coordinates but the `given` ones, for which there are evenly spaced grids."""
    dim, given_at = len(names), np.array(given)
    rest_at = np.setdiff1d(np.arange(dim), given_at)

    def conditional(h: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Mean and precision of the rest, and the log-density of h; from derivatives, since the rest is quadratic."""

        def of_rest(z: jax.Array) -> jax.Array:
            return logdensity(jnp.zeros(dim, h.dtype).at[given_at].set(h).at[rest_at].set(z))

        origin = jnp.zeros(len(rest_at), h.dtype)
        gradient, precision = jax.grad(of_rest)(origin), -jax.hessian(of_rest)(origin)
        mean = jnp.linalg.solve(precision, gradient)
        return mean, precision, of_rest(origin) + 0.5 * gradient @ mean - 0.5 * jnp.linalg.slogdet(precision)[1]

    batched = in_batches(conditional)

    points = np.stack([axis.ravel() for axis in np.meshgrid(*grids, indexing="ij")], axis=1)
    means, precisions, log_p = batched(points)
    weights = np.exp(log_p - log_p.max())
    weights /= weights.sum()
    values = np.empty((len(points), dim))
    values[:, given_at], values[:, rest_at] = points, means
    mean = weights @ values
    covariance = (weights[:, None] * (values - mean)).T @ (values - mean)
    covariance[np.ix_(rest_at, rest_at)] += np.tensordot(weights, np.linalg.inv(precisions), 1)
    spacing = np.array([axis[1] - axis[0] for axis in grids])

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        near = points[rng.choice(len(points), size=n, p=weights)]
        h = near + spacing * (rng.random((n, len(given_at))) - 0.5)
        means_at_h, precisions_at_h, _ = batched(h)
        # Precision = LLᵀ, so that L⁻ᵀz has its inverse as covariance.
        factor = np.swapaxes(np.linalg.cholesky(precisions_at_h), 1, 2)
        z = rng.normal(size=(n, len(rest_at), 1))
        x = np.empty((n, dim))
        x[:, given_at], x[:, rest_at] = h, means_at_h + np.linalg.solve(factor, z)[..., 0]
        return x

    # A density that is flat within a cell has a variance larger by spacing²/12.
    accuracy = float((spacing**2 / 24 / np.diag(covariance)[given_at]).max())
    return KnownTarget(name, logdensity, mean, covariance, draw, tuple(names), accuracy, **more)


EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def eight_schools(*, centred: bool) -> KnownTarget:
    """μ ~ N(0, 5²), τ ~ half-Cauchy(5), in log τ; the schools' effects as they are, or standardised."""

    def logdensity(position):
        mu, log_tau, effects = position[0], position[1], position[2:]
        tau = jnp.exp(log_tau)
        theta = effects if centred else mu + tau * effects
        prior = -0.5 * (mu / 5) ** 2 - jnp.log1p(tau**2 / 25) + log_tau
        prior -= 0.5 * jnp.sum(((effects - mu) / tau) ** 2) + 8 * log_tau if centred else 0.5 * jnp.sum(effects**2)
        y, errors = (jnp.asarray(each, position.dtype) for each in (EFFECTS, ERRORS))
        return prior - 0.5 * jnp.sum(((y - theta) / errors) ** 2)

    name = "eight schools, " + ("centred" if centred else "non-centred")
    names = ("mu", "log_tau", *numbered(8, "theta" if centred else "eta"))
    return conditionally_gaussian(name, logdensity, names, (1,), (np.linspace(-12, 6, 2001),))


def correlated_pair() -> KnownTarget:
    """A line through points far from the origin: intercept and slope are correlated −0.998; and log σ."""
    rng = np.random.default_rng(1)
    x = rng.normal(16, 1, size=60)
    y = 1 + 0.5 * x + rng.normal(size=60)

    def logdensity(position):
        a, b, log_sigma = position
        z = (jnp.asarray(y, position.dtype) - a - b * jnp.asarray(x, position.dtype)) * jnp.exp(-log_sigma)
        return -0.5 * jnp.sum(z**2) - 60 * log_sigma - 0.5 * ((a / 20) ** 2 + (b / 20) ** 2 + log_sigma**2)

    names = ("intercept", "slope", "log_sigma")
    return conditionally_gaussian("correlated pair", logdensity, names, (2,), (np.linspace(-0.8, 1.2, 2001),))


def varying_intercepts() -> KnownTarget:
    """Eight groups of one to six observations and a common slope, radon-like; τ and σ on the log scale."""
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(8), [1, 2, 2, 3, 3, 4, 5, 6])
    member = np.eye(8)[group]
    x = rng.integers(0, 2, size=len(group)).astype(float)
    y = (1.4 + 0.4 * rng.normal(size=8))[group] - 0.7 * x + 0.7 * rng.normal(size=len(group))

    def logdensity(position):
        mu, slope, log_tau, log_sigma, alpha = (*(position[k] for k in range(4)), position[4:])
        fitted = jnp.asarray(member, position.dtype) @ alpha + slope * jnp.asarray(x, position.dtype)
        z = (jnp.asarray(y, position.dtype) - fitted) * jnp.exp(-log_sigma)
        groups = -0.5 * jnp.sum(((alpha - mu) * jnp.exp(-log_tau)) ** 2) - 8 * log_tau
        # τ and σ are half-normal with scale 1.
        prior = -0.5 * ((mu / 5) ** 2 + (slope / 5) ** 2 + jnp.exp(2 * log_tau) + jnp.exp(2 * log_sigma))
        return groups + prior + log_tau + log_sigma - 0.5 * jnp.sum(z**2) - len(group) * log_sigma

    names = ("mu", "slope", "log_tau", "log_sigma", *numbered(8, "alpha"))
    grids = (np.linspace(-10, 2, 241), np.linspace(-1.3, 0.8, 85))
    return conditionally_gaussian("varying intercepts", logdensity, names, (2, 3), grids)


def local_scales() -> KnownTarget:
    """Two effects with half-Cauchy scales λ, horseshoe-like: y ~ N(λz, 1), z ~ N(0, 1)."""
    y = np.array([0.5, 3.0])

    def logdensity(position):
        log_scale, z = position[:2], position[2:]
        prior = jnp.sum(log_scale - jnp.log1p(jnp.exp(2 * log_scale)) - 0.5 * z**2)
        return prior - 0.5 * jnp.sum((jnp.asarray(y, position.dtype) - jnp.exp(log_scale) * z) ** 2)

    names = (*numbered(2, "log_lambda"), *numbered(2, "z"))
    grid = np.linspace(-13, 13, 313)
    return conditionally_gaussian("local scales", logdensity, names, (0, 1), (grid, grid), held_out=True)


# --- near to Gaussian -------------------------------------------------------------------------------------

FREEDOM, POINTS, SHIFTS = 7, 2**14, 8


def find_mode(logdensity: LogDensity, start: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The mode and minus the Hessian there; None where the search does not end at a proper one."""
    with jax.enable_x64(True):
        loss = jax.jit(jax.value_and_grad(lambda x: -logdensity(x)))
        hessian = jax.jit(jax.hessian(lambda x: -logdensity(x)))
        mode = scipy.optimize.minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-6}).x
        # A step of Newton's from where the search ends, and another to see that it is the end.
        for step in range(2):
            precision = np.asarray(hessian(mode))
            scale = np.sqrt(np.abs(np.diag(precision)))
            if not np.isfinite(precision).all() or np.linalg.eigvalsh(precision / np.outer(scale, scale)).min() < 1e-6:
                return None
            move = np.linalg.solve(precision, np.asarray(loss(mode)[1]))
            if step and np.abs(move * scale).max() < 1e-4:
                return mode, precision
            mode = mode - move
    return None


def near_gaussian(name: str, logdensity: LogDensity, names: Sequence[str], **more) -> KnownTarget:
    """A log-concave posterior of few parameters, by importance sampling."""
    dim = len(names)
    found = find_mode(logdensity, np.zeros(dim))
    if found is None:
        raise ValueError(f"{name}: the posterior has no proper mode to start from.")
    mode, precision = found
    covariance = 1.2 * np.linalg.inv(precision)
    factor, precision = np.linalg.cholesky(covariance), np.linalg.inv(covariance)

    def log_ratio(x: jax.Array) -> jax.Array:
        away = x - jnp.asarray(mode, x.dtype)
        square = away @ jnp.asarray(precision, x.dtype) @ away
        return logdensity(x) + 0.5 * (FREEDOM + dim) * jnp.log1p(square / FREEDOM)

    log_weight = in_batches(log_ratio, POINTS)

    def proposed(u: np.ndarray) -> np.ndarray:
        """From uniform variables (n, dim + 1)."""
        z = scipy.stats.norm.ppf(u[:, :dim])
        return mode + z @ factor.T * np.sqrt(FREEDOM / scipy.stats.chi2.ppf(u[:, dim:], FREEDOM))

    # Points shifted at random, several times, say how accurate the integrals are.
    moments, highest = [], []
    for shift in range(SHIFTS):
        u = scipy.stats.qmc.Sobol(dim + 1, rng=np.random.default_rng(shift)).random(POINTS)
        x = proposed(u.clip(1e-12, 1 - 1e-12))
        log_w = log_weight(x)
        w = np.exp(log_w - log_w.max())
        mean = w @ x / w.sum()
        moments.append((mean, (w[:, None] * (x - mean)).T @ (x - mean) / w.sum()))
        highest.append(x[log_w.argmax()])
    means, covariances = (np.array(each) for each in zip(*moments, strict=True))
    mean, covariance = means.mean(axis=0), covariances.mean(axis=0)
    sd = np.sqrt(np.diag(covariance))
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    spread = np.maximum(means.std(axis=0) / sd, variances.std(axis=0) / (2 * sd**2)).max()
    # The weights are bounded, since the proposal's tails are the heavier ones.
    with jax.enable_x64(True):
        descend = jax.jit(jax.value_and_grad(lambda x: -log_ratio(x)))
        bound = (
            -scipy.optimize.minimize(descend, highest[np.argmax(log_weight(np.array(highest)))], jac=True).fun + 1e-6
        )

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        kept, count = [], 0
        while count < n:
            x = proposed(rng.random((POINTS, dim + 1)))
            x = x[np.log(rng.random(POINTS)) < log_weight(x) - bound]
            kept.append(x)
            count += len(x)
        return np.concatenate(kept)[:n]

    accuracy = float(spread / SHIFTS**0.5)
    return KnownTarget(name, logdensity, mean, covariance, draw, tuple(names), accuracy, **more)


def logistic_regression(n: int, dim: int = 5) -> KnownTarget:
    """Made data, an intercept and correlated covariates; coefficients have the prior N(0, 2²)."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, dim)) + 0.7 * rng.normal(size=(n, 1))
    x[:, 0] = 1
    truth = np.array([-1.0, 1, -1, 0.5, 0])
    signs = np.where(rng.random(n) < 1 / (1 + np.exp(-x @ truth)), 1.0, -1.0)

    def logdensity(beta):
        margins = jnp.asarray(signs[:, None] * x, beta.dtype) @ beta
        return -jnp.sum(jax.nn.softplus(-margins)) - 0.125 * jnp.sum(beta**2)

    return near_gaussian(f"logistic regression, n = {n}", logdensity, numbered(dim, "beta"))


def poisson_regression() -> KnownTarget:
    """Fifteen small counts, most of them zero; coefficients have the prior N(0, 2²)."""
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(15), rng.normal(size=(15, 2))])
    y = rng.poisson(np.exp(x @ np.array([-1.2, 0.6, 0.0]))).astype(float)

    def logdensity(beta):
        eta = jnp.asarray(x, beta.dtype) @ beta
        return jnp.sum(jnp.asarray(y, beta.dtype) * eta - jnp.exp(eta)) - 0.125 * jnp.sum(beta**2)

    return near_gaussian("Poisson regression, few counts", logdensity, numbered(3, "beta"), held_out=True)


def probit_regression() -> KnownTarget:
    """Twelve observations; coefficients have the prior N(0, 3²)."""
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(12), rng.normal(size=(12, 2))])
    signs = np.where(x @ np.array([0.5, 1.5, 0.0]) + rng.normal(size=12) > 0, 1.0, -1.0)

    def logdensity(beta):
        margins = jnp.asarray(signs[:, None] * x, beta.dtype) @ beta
        return jnp.sum(jax.scipy.special.log_ndtr(margins)) - jnp.sum(beta**2) / 18

    return near_gaussian("probit regression, n = 12", logdensity, numbered(3, "beta"), held_out=True)
