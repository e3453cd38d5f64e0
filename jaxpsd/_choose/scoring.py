"""How good arms are: their discrepancies in coordinates common to all, and errors of their means and deviations."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpsd._choose.evidence import Expected, MomentErrors, expect_square, in_batches, moment_errors, noise_of
from jaxpsd._choose.runner import Arm
from jaxpsd._choose.transitions import Origin
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import Draws, evenly_spaced
from jaxpsd._core.scores import Given
from jaxpsd._explain.errors import NORMAL_95, implied_errors
from jaxpsd._stein import hermite
from jaxpsd._stein.coordinates import Affine, canonical, common_transform, fit
from jaxpsd._stein.fitting import Rule
from jaxpsd._stein.polynomials import degrees, exponents, num_monomials

# With more polynomials than this, products of coordinates are left out.
_MOST_FEATURES = 600
# Stretches of chains whose features are computed together, and draws that errors are regressed with.
_ROWS, _POOLED = 128, 2000


class TargetMoments(NamedTuple):
    """Means and standard deviations of the target, as far as draws and scores tell.

    mean, sd
        The best guess.
    error
        How far errors of means, in standard deviations, and then those of deviations may be off for it, as a standard
        error; NaN where polynomials cannot tell, and the guess is as for a Gaussian target.
    """

    mean: Float[np.ndarray, " dim"]
    sd: Float[np.ndarray, " dim"]
    error: Float[np.ndarray, " twice_dim"]


class Scorer(NamedTuple):
    """What all arms are scored by."""

    affine: Affine
    order: int
    interactions: bool

    @property
    def dim(self) -> int:
        """Coordinates."""
        return len(self.affine.loc)

    @property
    def degree(self) -> Int[np.ndarray, " features"]:
        """Of each feature, less one."""
        return degrees(self.dim, self.order, interactions=self.interactions) - 1

    def feature_means(self, arm: Arm, used: int) -> Float[np.ndarray, "chains stretches features"]:
        """Of each chain and each of the last stretches that are used."""
        x, s = (np.stack(part[-used:], axis=1) for part in (arm.x, arm.s))
        chains, stretches, *rest = x.shape
        rows = [part.reshape(chains * stretches, *rest) for part in (x, s)]
        found = []
        for start in range(0, len(rows[0]), _ROWS):
            # Always as many, so that there is one program.
            places = np.minimum(np.arange(start, start + _ROWS), len(rows[0]) - 1)
            chunk = (part[places] for part in rows)
            found.append(np.asarray(_feature_means(*chunk, self.affine, self.order, self.interactions), np.float64))
        return np.concatenate(found)[: len(rows[0])].reshape(chains, stretches, -1)

    def moment_features(self, arm: Arm, used: int) -> Float[np.ndarray, "chains batches twice_dim"]:
        """What features of one coordinate each say of means and deviations, scaled such that squares sum to their mean.

        For a Gaussian target ψ₁ is the error of a mean, and ψ₂ that of a variance over √2, about √2 times that of a
        standard deviation.
        """
        exponent = exponents(self.dim, self.order, interactions=self.interactions)
        is_pure = (exponent > 0).sum(axis=1) == 1
        columns = [np.flatnonzero(is_pure & (exponent.sum(axis=1) == degree)) for degree in (1, 2)]
        batches = in_batches(self.feature_means(arm, used))
        scaled = batches[..., columns[0]], batches[..., columns[1]] / 2**0.5
        return np.concatenate(scaled, axis=-1) / (2 * self.dim) ** 0.5

    def discrepancy(self, rng: np.random.Generator, arm: Arm, used: int, share: float, num_replicates: int) -> Expected:
        """The squared PSD by degree, of a run of which this is a share."""
        batches = in_batches(self.feature_means(arm, used))
        return expect_square(rng, batches, self.degree, share, num_replicates)


@partial(compile_by_work, seldom=True, static_argnums=(3, 4))
def _feature_means(
    x: Float[Array, "rows draws dim"], s: Float[Array, "rows draws dim"], affine: Affine, order: int, interactions: bool
) -> Float[Array, "rows features"]:
    mapping = affine.mapping()

    def of_row(row: tuple[Array, Array]) -> Array:
        return hermite.stein_features(*mapping(*row), order, interactions=interactions).mean(axis=0)

    return lax.map(of_row, (x, s))


def make_scorer(arms: Sequence[Arm], order: int, draws_per_arm: int) -> Scorer:
    """Coordinates of the target by the later halves of all these arms, by their medians."""
    sets = [_given(*_some(arm, draws_per_arm)) for arm in arms]
    try:
        affine = common_transform(Rule.TARGET, sets)
    except (ValueError, FloatingPointError) as error:
        error.add_note("jaxpsd: no setting has draws that coordinates could be fitted to.")
        raise
    dim = sets[0].draws.dim
    return Scorer(affine, order, num_monomials(dim, order) <= _MOST_FEATURES)


def _some(arm: Arm, count: int) -> tuple[np.ndarray, np.ndarray]:
    """About so many draws of the later half, evenly spaced in each chain: (chains, draws, dim)."""
    x, s = arm.later_half()
    places = evenly_spaced(x.shape[1], max(1, count // len(x)))
    return x[:, places], s[:, places]


def _given(x: np.ndarray, s: np.ndarray) -> Given:
    rows = [jnp.asarray(part.reshape(-1, part.shape[-1])) for part in (x, s)]
    return Given(Draws(rows[0], len(x)), rows[1])


def target_moments(arms: Sequence[Arm], affine: Affine, effective: float) -> TargetMoments:
    """Regress moments of draws of all these arms on Stein features; what these cannot tell is guessed by the scores."""
    rough = rough_moments(affine)
    mean, sd, _ = rough
    halves = [arm.later_half() for arm in arms]
    x, s = (np.concatenate([part.reshape(-1, len(mean)) for part in parts]) for parts in zip(*halves, strict=True))
    places = evenly_spaced(len(x), _POOLED)
    given = _given(x[None, places], s[None, places])
    try:
        standardized = fit(Rule.STANDARDIZE, given)
        errors = implied_errors(given, canonical(given, standardized), standardized, min(effective, len(places)))
    except (ValueError, FloatingPointError):
        return rough
    if errors.sd_ratio is None or errors.sd_ratio_se is None or errors.sd_ratio_unseen is None:
        return rough
    off, off_se, off_unseen, ratio, ratio_se, ratio_unseen = (
        np.asarray(each, np.float64)
        for each in (errors.mean_off, errors.mean_off_se, errors.mean_off_unseen, errors.sd_ratio, errors.sd_ratio_se,
                     errors.sd_ratio_unseen)
    )  # fmt: skip
    own_mean, own_sd = (np.asarray(each, np.float64) for each in (standardized.loc, standardized.scale))
    found_sd = np.where(np.isnan(ratio), sd, own_sd / ratio)
    found_mean = np.where(np.isnan(off), mean, own_mean - off * found_sd)
    doubt = np.concatenate(
        [np.hypot(off_se, off_unseen / NORMAL_95), np.hypot(ratio_se / ratio, ratio_unseen / NORMAL_95)]
    )
    return TargetMoments(found_mean, found_sd, doubt + 0 * np.concatenate([off, ratio]))


def rough_moments(affine: Affine) -> TargetMoments:
    """Those of a Gaussian target of which these are the coordinates."""
    scale = np.asarray(affine.scale, np.float64)
    sd = np.linalg.norm(scale, axis=1) if scale.ndim == 2 else np.abs(scale)
    return TargetMoments(np.asarray(affine.loc, np.float64), sd, np.full(2 * len(sd), np.nan))


def errors_of_moments(arm: Arm, used: int, origin: Origin, moments: TargetMoments) -> MomentErrors:
    """Errors of means and deviations of an arm, all its steps counted."""
    batches = in_batches(np.stack(arm.moments[-used:], axis=1))
    loc, scale = (np.asarray(each, np.float64) for each in origin)
    return moment_errors(batches, (moments.mean - loc) / scale, moments.sd / scale)


class MomentSummary(NamedTuple):
    """Of one arm.

    off
        Errors of means, in standard deviations of the target, and then of deviations, as shares.
    error
        Monte Carlo standard errors of those.
    effective
        How many independent draws it is worth, by the mean that is known least.
    """

    off: Float[np.ndarray, " twice_dim"]
    error: Float[np.ndarray, " twice_dim"]
    effective: float


def parts_of_moments(dim: int) -> Int[np.ndarray, " twice_dim"]:
    """Means, and deviations."""
    return np.repeat([0, 1], dim)


def summarize(errors: MomentErrors) -> MomentSummary:
    """Errors with what chance makes of them."""
    dim = len(errors.off) // 2
    variance = noise_of(errors.batches, parts_of_moments(dim)).variance
    of_means, ratio = variance[:dim], 1 + errors.off[dim:]
    worth = np.where(of_means > 0, ratio**2 / np.where(of_means > 0, of_means, 1), 1.0)
    return MomentSummary(errors.off, np.sqrt(variance), max(1.0, float(worth.min())))
