"""The linear combinations of coordinates that are worst off.

Errors may be spread over coordinates such that none of them stands out: where parameters are strongly correlated, a
combination that the target holds tight can be far off in its own units although every coordinate is nearly right. In
the coordinates y of the target, mean features of degree 1 point in the direction in which the mean is farthest off, and
those of degree 2 make a matrix whose largest eigenvalue belongs to the direction whose scale is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from jaxpsd._core.draws import ravel
from jaxpsd._core.scores import Given
from jaxpsd._core.types import Block
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._explain.errors import NORMAL_95, ImpliedErrors, errors_of
from jaxpsd._explain.findings import Finding
from jaxpsd._explain.least_squares import Functions
from jaxpsd._explain.moments import MomentTable
from jaxpsd._explain.phrases import mean_error, sd_error
from jaxpsd._explain.regression import regress
from jaxpsd._stein.coordinates import Affine

# Coordinates that a combination is made of; of those that matter less than this share of the first, none.
_MOST_TERMS, _LEAST_SHARE = 4, 0.1

# Digits that change a combination by more than this share of its standard deviation are printed.
_ROUNDING = 0.05

# How often draws that are right would have a direction that stands out so much.
_FALSE_ALARM = 1e-3


def worst_directions(psd: PSD, given: Given, table: MomentTable, effective: float) -> tuple[Finding, ...]:
    """Errors of the means and scales of combinations, where they are more than chance makes of the worst direction."""
    # Not `scipy.stats`, which takes long to import.
    from scipy.special import chdtri

    assert isinstance(psd.transform, Affine)
    dim, found = given.draws.dim, []
    mean, second = _mean_features(table, dim)
    directions = {"mean": mean}
    if second is not None:
        eigenvalues, vectors = np.linalg.eigh(second)
        directions["standard deviation"] = vectors[:, np.abs(eigenvalues).argmax()]
    scale = np.asarray(psd.transform.scale, np.float64)
    scale = np.diag(scale) if scale.ndim == 1 else scale
    sd = np.linalg.norm(scale, axis=1)
    for quantity, direction in directions.items():
        coefficients = _as_printed(_few_terms(np.linalg.solve(scale.T, direction), sd), scale)
        errors = _errors_along(coefficients, psd, given, effective)
        combination = _written(coefficients, table.names)
        # As the largest over all directions, the squared score is at most χ² with as many degrees of freedom.
        freedom = dim if quantity == "mean" else dim * (dim + 1) / 2
        if quantity == "mean":
            error, ends = float(errors.mean_off[0]), errors.mean_off_interval()[:, 0]
            uncertainty = (effective**-0.5, errors.mean_off_se[0], errors.mean_off_unseen[0] / NORMAL_95)
            text, off = mean_error(combination, error, ends), error
        elif errors.sd_ratio is not None and (intervals := errors.sd_ratio_interval()) is not None:
            ratio, ends = float(errors.sd_ratio[0]), intervals[:, 0]
            unseen = errors.sd_ratio_unseen[0] / NORMAL_95  # pyright: ignore[reportOptionalSubscript]
            uncertainty = ((2 * effective) ** -0.5, errors.sd_ratio_se[0] / ratio, unseen)  # pyright: ignore[reportOptionalSubscript]
            text, off, error, ends = sd_error(combination, ratio, ends), np.log(ratio), ratio - 1, ends - 1
        else:
            continue
        score = abs(off) / float(np.linalg.norm(uncertainty))
        if np.isfinite(score) and score**2 > chdtri(freedom, _FALSE_ALARM):
            found.append(Finding(text, score, quantity, error, (float(ends[0]), float(ends[1]))))
    return tuple(sorted(found, key=lambda finding: -finding.score))


def _mean_features(table: MomentTable, dim: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Mean features of degree 1 as a vector, and of degree 2 as a symmetric matrix, where products are there."""
    first, second, count = np.zeros(dim), np.zeros((dim, dim)), 0
    for alpha, mean in zip(table.exponents, np.asarray(table.mean, np.float64), strict=True):
        variables = np.repeat(np.arange(dim), alpha)
        if len(variables) == 1:
            first[variables] = mean
        elif len(variables) == 2:
            i, j = variables
            # ψ = (y² − 1)/√2 on the diagonal, and the product of two coordinates, twice in the matrix, elsewhere.
            second[i, j] = second[j, i] = mean * (2**0.5 if i == j else 1)
            count += 1
    return first, second if count == dim * (dim + 1) // 2 else None


def _few_terms(coefficients: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """The terms that matter most, in units of the coordinates' own scales; of length one, the first positive."""
    weight = np.abs(coefficients) * sd
    kept = np.argsort(-weight, kind="stable")[:_MOST_TERMS]
    kept = kept[weight[kept] >= _LEAST_SHARE * weight[kept[0]]]
    few = np.zeros_like(coefficients)
    few[kept] = coefficients[kept] * np.sign(coefficients[kept.min()])
    return few / np.linalg.norm(few)


def _as_printed(coefficients: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Rounded to as few digits as leave the combination what it is, by its standard deviation under the target."""
    right = np.linalg.norm(coefficients @ scale)
    for digits in range(2, 16):
        rounded = np.array([float(f"{value:.{digits}g}") for value in coefficients])
        if np.linalg.norm((rounded - coefficients) @ scale) <= _ROUNDING * right:
            return rounded
    return coefficients


def _written(coefficients: np.ndarray, names: Sequence[str]) -> str:
    """0.71·a − 0.7·b."""
    terms = [(c, f"{abs(c):.15g}·{name}") for c, name in zip(coefficients, names, strict=True) if c]
    (_, first), *others = terms
    return first + "".join(f" {'+' if value > 0 else '−'} {term}" for value, term in others)


@register_dataclass
@dataclass(frozen=True)
class _Combination(Functions):
    """A linear combination of coordinates, less a constant for the sake of digits, and its square."""

    coefficients: Float[Array, " dim"]
    centre: Float[Array, ""]
    scale: Float[Array, ""]

    def values(self, x: Block) -> Float[Array, "block 2"]:
        u = ((x * self.coefficients[None]).sum(axis=1) - self.centre) / self.scale
        return jnp.stack([u, u**2], axis=1)


def _errors_along(coefficients: np.ndarray, psd: PSD, given: Given, effective: float) -> ImpliedErrors:
    """Errors of the mean and the standard deviation of a combination, by regression on the features."""
    x = np.asarray(ravel(given.draws.positions), np.float64)
    u, dtype = x @ coefficients, given.draws.dtype
    functions = _Combination(*(jnp.asarray(part, dtype) for part in (coefficients, u.mean(), u.std())))
    regression = regress(functions, [psd], given, effective)
    return errors_of(regression, np.full(1, np.nan, dtype), 1, False)
