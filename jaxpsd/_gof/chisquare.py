"""The distribution of a weighted sum of χ² variables, Q = Σ_i ω_i Z_i² with ω_i ≥ 0, on the host.

With K(t) = −½ Σ_i log(1 − 2ω_i t) the cumulant generating function,

    P(Q > q) = (1/2πi) ∫ exp(K(t) − qt) / t dt

along any path that crosses the real axis between 0 and 1/(2ω_max), and minus P(Q ≤ q) if it crosses below 0. A
path that crosses where the integrand is smallest on the real axis, and bends as the path of steepest descent
does, makes it fall off fast and without oscillating: the trapezoidal rule then converges geometrically, and
tiny probabilities keep their digits.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Points = Float[np.ndarray, " points"]
Weights = Float[np.ndarray, " terms"]

# Weights below this share of the largest change no digit that is kept, however many they are.
_NEGLIGIBLE = 1e-16
_TOLERANCE = 1e-11
_MOST_HALVINGS = 12


def survival(q: float, weights: Weights) -> float:
    """P(Σ_i ω_i Z_i² > q) for weights ω_i ≥ 0."""
    omega = np.asarray(weights, np.float64)
    omega = omega[omega > _NEGLIGIBLE * omega.max(initial=0)]
    if len(omega) == 0 or q <= 0:
        return float(q < 0 or (q == 0 and len(omega) > 0))
    # In units of the largest weight the singularities of K begin at ½.
    omega, q = omega / omega.max(), q / omega.max()
    if q > omega.sum():
        return min(1.0, _integral(q, omega, _crossing(q, omega, 0.0, 0.5)))
    return max(0.0, 1 + _integral(q, omega, _crossing(q, omega, -0.5 * (len(omega) + 2) / q, 0.0)))


def critical_value(alpha: float, weights: Weights) -> float:
    """The q with P(Σ_i ω_i Z_i² > q) = alpha."""
    high = float(np.sum(weights))
    while survival(high, weights) > alpha:
        high *= 2
    return _root(lambda q: survival(q, weights) - alpha, 0.0, high)


def _crossing(q: float, omega: Weights, low: float, high: float) -> float:
    """Where K(t) − qt − log|t|, convex between `low` and `high`, is smallest."""
    # The slope is infinite at both ends, of opposite signs.
    inside = 1e-12 * (high - low)
    return _root(lambda t: (omega / (1 - 2 * omega * t)).sum() - q - 1 / t, low + inside, high - inside)


def _root(fn: Callable[[float], float], low: float, high: float) -> float:
    # Not imported with the module: it takes a while, and few need it.
    from scipy.optimize import brentq

    return brentq(fn, low, high, xtol=1e-300, rtol=1e-12)  # pyright: ignore


def _integral(q: float, omega: Weights, crossing: float) -> float:
    ratio = 2 * omega / (1 - 2 * omega * crossing)
    second, third = (ratio**2).sum() / 2, (ratio**3).sum()
    bend = third / (6 * second)

    def curve(v: Points) -> Points:
        t = crossing + 1j * v + bend * v**2
        log_value = -0.5 * np.log1p(-2 * np.outer(t, omega)).sum(axis=1) - q * t
        # dt = (i + 2 bend v) dv; the other half of the path is the complex conjugate.
        return (np.exp(log_value) / t * (1 - 2j * bend * v)).real / np.pi

    # The integrand varies as fast as a Gaussian of K's width, and as the pole at zero is near.
    step = 0.5 / np.sqrt(second + crossing**-2)
    value = _trapezoid(curve, step)
    for _ in range(_MOST_HALVINGS):
        step, previous = step / 2, value
        value = _trapezoid(curve, step)
        if abs(value - previous) <= _TOLERANCE * abs(value):
            break
    return value


def _trapezoid(curve: Callable[[Points], Points], step: float) -> float:
    """∫_0^∞ of a curve that is even and falls off."""
    total, start, points = 0.0, 0, 64
    while True:
        values = curve(step * np.arange(start, start + points))
        total += values.sum() - (values[0] / 2 if start == 0 else 0)
        if np.abs(values[-8:]).max() <= 1e-14 * abs(total):
            return float(step * total)
        start += points
