"""Targets whose means and covariances are formulas."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats
from jax.scipy.special import log_ndtr

from benchmarks._zoo.known import KnownTarget, numbered


def orthogonal(rng: np.random.Generator, dim: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(dim, dim)))[0]


def gaussian(dim: int, condition: float) -> KnownTarget:
    """Axes at random; variances from one down to 1/condition, evenly on the log scale."""
    rng = np.random.default_rng((dim, int(np.log10(condition))))
    mean, axes, sd = rng.normal(size=dim), orthogonal(rng, dim), np.logspace(0, -np.log10(condition) / 2, dim)

    def logdensity(x):
        # Not by the precision matrix: squares of whitened coordinates keep their digits in float32.
        y = jnp.asarray((axes / sd).T, x.dtype) @ (x - jnp.asarray(mean, x.dtype))
        return -0.5 * jnp.sum(y**2)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return mean + rng.normal(size=(n, dim)) @ (axes * sd).T

    name = f"Gaussian, d = {dim}, condition {condition:g}"
    return KnownTarget(name, logdensity, mean, (axes * sd**2) @ axes.T, draw, numbered(dim))


def product(
    name: str,
    dim: int,
    logdensity: Callable[[jax.Array], jax.Array],
    mean: float,
    variance: float,
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray],
    *,
    held_out: bool = False,
) -> KnownTarget:
    """Independent coordinates of one law."""
    return KnownTarget(
        name=name,
        logdensity=lambda x: jnp.sum(logdensity(x)),
        mean=np.full(dim, float(mean)),
        covariance=np.eye(dim) * variance,
        draw=lambda rng, n: draw(rng, (n, dim)),
        names=numbered(dim),
        held_out=held_out,
    )


def student(dim: int) -> KnownTarget:
    name = f"Student-t, 5 degrees, d = {dim}"
    return product(name, dim, lambda x: -3 * jnp.log1p(x**2 / 5), 0, 5 / 3, lambda rng, shape: rng.standard_t(5, shape))


def log_gamma(shape: float, dim: int = 3) -> KnownTarget:
    """The logarithm of a Gamma variable."""

    def draw(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        # Gamma(k) is Gamma(k + 1) times a power of a uniform variable, whose logarithm does not underflow.
        return np.log(rng.gamma(shape + 1, size=size)) - rng.exponential(size=size) / shape

    mean, variance = scipy.special.digamma(shape), scipy.special.polygamma(1, shape)
    return product(f"log-gamma {shape:g}, d = {dim}", dim, lambda x: shape * x - jnp.exp(x), mean, variance, draw)


def logistic(dim: int = 3) -> KnownTarget:
    def logdensity(x):
        return -x - 2 * jax.nn.softplus(-x)

    return product(
        f"logistic, d = {dim}", dim, logdensity, 0, np.pi**2 / 3, lambda rng, shape: rng.logistic(size=shape)
    )


def gumbel(dim: int = 3) -> KnownTarget:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        return rng.gumbel(size=shape)

    return product(
        f"Gumbel, d = {dim}", dim, lambda x: -x - jnp.exp(-x), np.euler_gamma, np.pi**2 / 6, draw, held_out=True
    )


def skew_normal(alpha: float = 4.0, dim: int = 3) -> KnownTarget:
    delta = alpha / (1 + alpha**2) ** 0.5
    law = scipy.stats.skewnorm(alpha)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        return delta * np.abs(rng.normal(size=shape)) + (1 - delta**2) ** 0.5 * rng.normal(size=shape)

    def logdensity(x):
        return -0.5 * x**2 + log_ndtr(alpha * x)

    return product(f"skew-normal {alpha:g}, d = {dim}", dim, logdensity, law.mean(), law.var(), draw, held_out=True)


def generalized_normal(power: float = 1.5, dim: int = 3) -> KnownTarget:
    """exp(−|x|^power), between Laplace and normal."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        return rng.choice([-1.0, 1.0], size=shape) * rng.gamma(1 / power, size=shape) ** (1 / power)

    variance = scipy.special.gamma(3 / power) / scipy.special.gamma(1 / power)
    name = f"generalised normal {power:g}, d = {dim}"
    return product(name, dim, lambda x: -(jnp.abs(x) ** power), 0, variance, draw, held_out=True)


def log_f(first: float = 3, second: float = 8, dim: int = 3) -> KnownTarget:
    """The logarithm of an F variable: skewed, with exponential tails."""
    a, b = first / 2, second / 2

    def logdensity(x):
        return a * x - (a + b) * jax.nn.softplus(x + np.log(a / b))

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        return np.log(rng.gamma(a, size=shape) / a) - np.log(rng.gamma(b, size=shape) / b)

    mean = scipy.special.digamma(a) - scipy.special.digamma(b) + np.log(b / a)
    variance = scipy.special.polygamma(1, a) + scipy.special.polygamma(1, b)
    return product(f"log F({first:g}, {second:g}), d = {dim}", dim, logdensity, mean, variance, draw, held_out=True)


def banana(dim: int = 2, curvature: float = 1.0, width: float = 0.5) -> KnownTarget:
    """y₀ ~ N(0, 1), y₁ ~ N(curvature·(y₀² − 1), width²); beyond two dimensions with normal y₂, …, and turned."""
    rng = np.random.default_rng(dim)
    mixing = np.eye(2) if dim == 2 else orthogonal(rng, dim) * np.linspace(1, 2, dim)
    unmixing = np.linalg.inv(mixing)

    def logdensity(x):
        y = jnp.asarray(unmixing, x.dtype) @ x
        bend = (y[1] - curvature * (y[0] ** 2 - 1)) / width
        return -0.5 * (y[0] ** 2 + bend**2 + jnp.sum(y[2:] ** 2))

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        y = rng.normal(size=(n, dim))
        y[:, 1] = width * y[:, 1] + curvature * (y[:, 0] ** 2 - 1)
        return y @ mixing.T

    variances = np.ones(dim)
    variances[1] = width**2 + 2 * curvature**2
    name = "banana" if dim == 2 else f"banana, twisted, d = {dim}"
    return KnownTarget(name, logdensity, np.zeros(dim), (mixing * variances) @ mixing.T, draw, numbered(dim))


def funnel(dim: int, sd: float = 1.5) -> KnownTarget:
    """Neal's: v ~ N(0, sd²), the others N(0, exp v)."""

    def logdensity(x):
        v, rest = x[0], x[1:]
        return -0.5 * (v / sd) ** 2 - 0.5 * jnp.exp(-v) * jnp.sum(rest**2) - 0.5 * (dim - 1) * v

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        v = sd * rng.normal(size=(n, 1))
        return np.hstack([v, np.exp(v / 2) * rng.normal(size=(n, dim - 1))])

    variances = np.array([sd**2] + [np.exp(sd**2 / 2)] * (dim - 1))
    names = ("v", *numbered(dim - 1))
    return KnownTarget(f"funnel, d = {dim}", logdensity, np.zeros(dim), np.diag(variances), draw, names)


def bimodal(distance: float, share: float = 0.4) -> KnownTarget:
    """Two normal modes of unit covariance, so far apart."""
    away = distance * np.array([2.0, 1.0]) / 5**0.5

    def logdensity(x):
        parts = jnp.stack([-0.5 * jnp.sum(x**2), -0.5 * jnp.sum((x - jnp.asarray(away, x.dtype)) ** 2)])
        return jax.scipy.special.logsumexp(parts + jnp.log(jnp.asarray([1 - share, share], x.dtype)))

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.normal(size=(n, 2)) + (rng.random((n, 1)) < share) * away

    covariance = np.eye(2) + share * (1 - share) * np.outer(away, away)
    return KnownTarget(f"bimodal, distance {distance:g}", logdensity, share * away, covariance, draw, numbered(2))


def ring(radius: float = 2.0, width: float = 1.5) -> KnownTarget:
    """exp(−(r² − radius²)²/(2 width²)): r² is a truncated normal variable."""
    square = scipy.stats.truncnorm(-(radius**2) / width, np.inf, loc=radius**2, scale=width)

    def logdensity(x):
        return -0.5 * ((jnp.sum(x**2) - radius**2) / width) ** 2

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        angle, r = rng.uniform(0, 2 * np.pi, n), np.sqrt(square.rvs(n, random_state=rng))
        return r[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)

    covariance = np.eye(2) * square.mean() / 2
    return KnownTarget("ring", logdensity, np.zeros(2), covariance, draw, numbered(2), held_out=True)
