"""Location and scale of draws, and of the target as draws and scores imply them, each in a pass or two."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_static
from jaxtyping import Array, Bool, Float, Int

from jaxpsd._core.blocks import block_length, einsum, product_over_draws, sum_draws, sum_over_blocks, weighted
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import ravel
from jaxpsd._core.programs import Data
from jaxpsd._core.sharding import from_first_share, largest_of_shares, sum_of_shares
from jaxpsd._core.types import Block, Choice, PyTree, Weights


@register_static
class Rule(Choice):
    """How to choose a transform from the draws; static, so that it may stand where an `Affine` may."""

    CENTER = "center"
    STANDARDIZE = "standardize"
    WHITEN = "whiten"
    TARGET = "target"


def fit_to_draws(data: Data, rule: Rule) -> tuple[Array, Array]:
    """Location and scale of the draws."""
    (n, dim), dtype = data.x.shape, data.x.dtype
    length = block_length(n, 4 * dim * dtype.itemsize)

    def mean(fn: Callable[[Block], Block], *, product: bool = False) -> tuple[Array, Array]:
        """Mean of f(x), or of f(x) f(x)ᵀ, and the largest |f(x)| of each coordinate."""

        def on_block(block: PyTree, block_weights: Weights) -> tuple[Array, Array]:
            values = fn(ravel(block))
            counted = weighted(values, block_weights)
            summed = product_over_draws(counted, values) if product else sum_draws(counted)
            return summed, jnp.abs(values).max(axis=0)

        summed, largest = sum_over_blocks(on_block, data.positions, data.weights, length)
        largest = largest_of_shares(largest.max(axis=0))
        return summed / data.num_draws if data.weights is None else summed, largest

    # Deviations from a draw are exactly zero for a constant coordinate, and small numbers anyway.
    origin = from_first_share(ravel(data.first_row()[0]))
    shift, spread = mean(lambda x: x - origin)
    loc = origin[0] + shift
    if rule is Rule.CENTER:
        return loc, jnp.ones_like(loc)
    # Squares of numbers below one, so that no unit is too large or too small for them.
    spread = jnp.where(spread > 0, spread, jnp.nan)
    sd = spread * jnp.sqrt(mean(lambda x: ((x - loc[None]) / spread[None]) ** 2)[0])
    # Where all weight is on one value, rounding alone is left.
    sd = jnp.where(sd > 4 * jnp.finfo(dtype).eps * spread, sd, jnp.nan)
    if rule is Rule.STANDARDIZE:
        return loc, sd
    # The factor of the correlations, so that scales of different size cost no accuracy.
    factor = jnp.linalg.cholesky(mean(lambda x: (x - loc[None]) / sd[None], product=True)[0])
    independent = jnp.diag(factor) ** 2 > least_independent(dim, dtype)
    return loc, jnp.where(independent, sd, jnp.nan)[:, None] * factor


# Slopes of scores are positive, or negative, if they are so many standard errors from zero.
_CLEARLY = 3

# Scores that are not linear leave noise in a matrix that is fitted to them, which a test in its coordinates takes for
# evidence: the unexplained share of their variance, times coordinates over draws, may be at most this.
_MOST_NOISE = 0.02


class TargetFit(NamedTuple):
    """What draws and scores imply of the target.

    loc
        Its location.
    scale
        A root of its covariance that does not look at the draws: the symmetric one, but for the units.
    joint_axes
        Another one, M, in whose coordinates M⁻¹x the draws are uncorrelated too.
    fallback, joint_fallback
        In how many directions of each the draws' own scale had to do.
    linearity
        The share of the scores' variance that is linear in the draws, along the joint axis where it is least: one for a
        Gaussian target. Zero where there are too few different draws to tell.
    num_moves
        How many draws are not the same as the one before.
    """

    loc: Float[Array, " dim"]
    scale: Float[Array, "dim dim"]
    joint_axes: Float[Array, "dim dim"]
    fallback: Int[Array, ""]
    joint_fallback: Int[Array, ""]
    linearity: Float[Array, ""]
    num_moves: Float[Array, ""]


def fit_to_target(data: Data, centre: Array, sd: Array) -> TargetFit:
    """Regress scores on draws, and draws on scores.

    In coordinates in which the draws, standardised by their mean and standard deviations, are nearly white: however
    strongly they are correlated, no digits are lost.
    """
    scorer, x, dim = data.scorer(), data.x, data.x.shape[1]
    rough = _rough_factor(data, centre, sd)
    inverse = jax.scipy.linalg.solve_triangular(rough, jnp.eye(dim, dtype=x.dtype), lower=True)

    def whitened(rows: PyTree) -> Float[Array, "block twice_dim"]:
        x, s = scorer(rows)
        z = einsum("nj,ij->ni", (x - centre[None]) / sd[None], inverse)
        return jnp.concatenate([z, einsum("nj,ji->ni", s * sd[None], rough)], axis=1)

    # Scores that hardly vary about a large value keep their digits.
    offset = from_first_share(whitened(data.first_row()))

    def on_block(block: PyTree, block_weights: Weights) -> tuple[tuple[Array, Array], None]:
        values = whitened(block) - offset
        counted = weighted(values, block_weights)
        return (sum_draws(counted), product_over_draws(counted, values)), None

    length = block_length(len(x), 8 * dim * x.dtype.itemsize)
    (mean, product), _ = sum_over_blocks(on_block, data.rows, data.weights, length)
    n = data.num_draws
    if data.weights is None:
        mean, product = mean / n, product / n
    else:
        # As many draws of equal weight would say as much.
        n = 1 / sum_of_shares(sum_draws(data.weights**2))
    covariance = product - jnp.outer(mean, mean)
    mean = mean + offset[0]
    own, cross, of_scores = covariance[:dim, :dim], covariance[:dim, dim:], covariance[dim:, dim:]

    # In coordinates z = L⁻¹x, in which the draws are white, scores are Lᵀs and fitted by −Bz, Λ = L⁻ᵀ B L⁻¹.
    factor = jnp.linalg.cholesky(own)
    # Variances are those that the ridge of the rough factor leaves: far below one, they are rounding.
    is_regular = (jnp.diag(factor) ** 2 > least_independent(dim, x.dtype) ** 0.5).all()
    factor = jnp.where(is_regular, factor, inverse)
    slope = -jax.scipy.linalg.solve_triangular(factor, einsum("ij,jk->ik", cross, factor), lower=True).T
    scores = _Scores(slope, einsum("ji,jk,kl->il", factor, of_scores, factor), n, is_regular)
    joint_root, joint_fallback, linearity = _joint_root(scores)
    joint_axes = einsum("ij,jk,kl->il", rough, factor, joint_root)
    # Where a matrix would be too noisy for a test, each coordinate by itself.
    apart = _Scores(
        -jnp.diag(einsum("ij,jk,ki->i", rough, cross, inverse)),
        jnp.diag(einsum("ji,jk,ki->i", inverse, of_scores, inverse)),
        n,
        is_regular,
    )
    is_quiet = scores.unexplained() * dim / n <= _MOST_NOISE
    scores = jax.tree.map(lambda *either: jnp.where(is_quiet, *either), scores, apart)
    white = jnp.where(is_quiet, einsum("ij,jk->ik", rough, factor), jnp.eye(dim, dtype=x.dtype))
    of_white = jnp.where(is_quiet, factor, inverse)
    step, root, fallback = _root_for_tests(scores)
    moved = einsum("ij,j->i", rough, mean[:dim]) + einsum("ij,jk,lk,l->i", white, step, of_white, mean[dim:])
    num_moves = _num_moves(data)
    # NaN if a score was.
    spoiled = 0 * covariance.sum()
    return TargetFit(
        loc=centre + sd * moved,
        scale=sd[:, None] * symmetric_root(einsum("ij,jk->ik", white, root)) + spoiled,
        joint_axes=sd[:, None] * joint_axes + spoiled,
        fallback=fallback,
        joint_fallback=joint_fallback,
        linearity=jnp.where(num_moves > 2 * dim, linearity, 0),
        num_moves=num_moves,
    )


def _num_moves(data: Data) -> Float[Array, ""]:
    """Of a chain that stands still, all draws are one."""
    x = ravel(data.positions)
    moves = (x[1:] != x[:-1]).any(axis=1)
    return sum_of_shares(moves.sum(dtype=data.x.dtype))


class _Scores(NamedTuple):
    """How scores follow draws that are white: they are fitted by −Bz.

    slope
        B.
    covariance
        Of the scores, which is BBᵀ and what is left.
    num_draws
        Of how many draws, if all had the same weight.
    is_regular
        Whether draws could be made white.
    """

    slope: Float[Array, "dim dim"]
    covariance: Float[Array, "dim dim"]
    num_draws: int | Float[Array, ""]
    is_regular: Bool[Array, ""]

    def left(self) -> Float[Array, "dim dim"]:
        """The covariance of what the slope does not explain."""
        return self.covariance - einsum("ij,kj->ik", self.slope, self.slope)

    def linearity(self, axes: Float[Array, "dim dim"]) -> Float[Array, " dim"]:
        """The share of the scores' variance along each axis that is linear in the draws."""
        total, left = (
            jnp.maximum(einsum("ji,jk,ki->i", axes, matrix, axes), 0) for matrix in (self.covariance, self.left())
        )
        left = jnp.maximum(left - self.rounding(), 0)
        return 1 - left / jnp.where(total > 0, total, 1)

    def unexplained(self) -> Float[Array, ""]:
        """The share of the scores' variance that is not linear in the draws, whatever their number."""
        n, dim = self.num_draws, len(self.slope)
        share = jnp.trace(self.left()) / jnp.trace(self.covariance)
        return share * n / jnp.maximum(n - dim - 1, 1)

    def rounding(self) -> Float[Array, ""]:
        """What is left of a small score beside a large one may be rounding."""
        return least_independent(len(self.slope), self.slope.dtype) * jnp.linalg.norm(self.covariance)


def _root_for_tests(scores: _Scores) -> tuple[Array, Array, Int[Array, ""]]:
    """How the mean score moves the location, a root of the covariance, and in how many directions it is the draws' own.

    The precision |B| + R, of slope and rest, is that of a Gaussian target, whose rest is zero, whatever the draws are.
    For draws of another target, whose slope is the identity, it is the covariance BBᵀ + R of the scores: noise of
    scores that draws do not explain is then the same in all directions, where those between modes, say, would drown all
    others. The location is the mean of the draws with scores as control variates.
    """
    slope, dim = scores.slope, len(scores.slope)
    variances, vectors = jnp.linalg.eigh(scores.left())
    variances = jnp.maximum(variances - scores.rounding(), 0)
    rest = einsum("ij,j,kj->ik", vectors, variances, vectors)
    axes, values, _ = jnp.linalg.svd(slope)
    precision, axes = jnp.linalg.eigh(einsum("ij,j,kj->ik", axes, values, axes) + rest)
    # Not where scores do not vary, or clearly point away from the mean of the draws.
    error = jnp.sqrt(einsum("ji,jk,ki->i", axes, rest, axes) / jnp.maximum(scores.num_draws - dim - 1, 1))
    is_implied = einsum("ji,jk,ki->i", axes, slope, axes) > -_CLEARLY * error
    is_implied &= scores.is_regular & (precision > least_independent(dim, slope.dtype) * precision[-1])
    root = _root_of_inverse(jnp.where(is_implied, precision, 1), axes)
    # By both factors of BBᵀ + R, in which what is small has lost fewer digits.
    step = jnp.linalg.pinv(jnp.concatenate([slope, vectors * jnp.sqrt(variances)[None]], axis=1))[:dim]
    inside = axes * is_implied[None]
    return einsum("ij,kj,kl->il", inside, inside, step), root, dim - is_implied.sum()


def _joint_root(scores: _Scores) -> tuple[Array, Int[Array, ""], Float[Array, ""]]:
    """A root of the covariance along whose axes draws are uncorrelated too, and how linear scores are at least.

    By the symmetric part of B, or the draws' own where that is not clearly positive: in how many directions, comes
    second.
    """
    slope, n, dim = scores.slope, scores.num_draws, len(scores.slope)
    precision, axes = jnp.linalg.eigh((slope + slope.T) / 2)
    left = jnp.maximum(einsum("ji,jk,ki->i", axes, scores.left(), axes), 0) * n / jnp.maximum(n - dim - 1, 1)
    is_implied = scores.is_regular & (precision > _CLEARLY * jnp.sqrt(left / n))
    root = _root_of_inverse(jnp.where(is_implied, precision, 1), axes)
    return root, dim - is_implied.sum(), scores.linearity(axes).min()


def _root_of_inverse(precision: Float[Array, " dim"], axes: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """A root that can be inverted: one extreme score makes a target look as if it had no extent along it."""
    most = precision.min() / (10 * least_independent(len(axes), axes.dtype)) ** 2
    return axes / jnp.sqrt(jnp.minimum(precision, most))[None]


def _rough_factor(data: Data, centre: Array, sd: Array) -> Float[Array, "dim dim"]:
    """The Cholesky factor of the draws' correlations, with a little ridge that keeps it regular.

    It need not be exact: what it leaves of correlations is found in a second look.
    """

    def on_block(block: PyTree, block_weights: Weights) -> tuple[Array, None]:
        values = (ravel(block) - centre[None]) / sd[None]
        return product_over_draws(weighted(values, block_weights), values), None

    dim, dtype = data.x.shape[1], data.x.dtype
    length = block_length(len(data.x), 4 * dim * dtype.itemsize)
    correlation, _ = sum_over_blocks(on_block, data.positions, data.weights, length)
    if data.weights is None:
        correlation = correlation / data.num_draws
    ridge = least_independent(dim, dtype)
    return jnp.linalg.cholesky((correlation + ridge * jnp.eye(dim, dtype=dtype)) / (1 + ridge))


def score_linearity(data: Data) -> Float[Array, " dim"]:
    """For each coordinate, the share of its score's variance that is linear in the draws: one for a Gaussian target."""
    scorer, dim = data.scorer(), data.x.shape[1]
    # Scores that hardly vary about a large value keep their digits, and so do draws.
    offset = from_first_share(jnp.concatenate(scorer(data.first_row()), axis=1))

    def on_block(rows: PyTree, weights: Weights) -> tuple[Array, None]:
        values = jnp.concatenate(scorer(rows), axis=1) - offset
        both = jnp.concatenate([jnp.ones_like(values[:, :1]), values], axis=1)
        return einsum("ni,nj->ij", weighted(both, weights), both), None

    length = block_length(len(data.x), 8 * dim * data.x.dtype.itemsize)
    products, _ = sum_over_blocks(on_block, data.rows, data.weights, length)
    products = products / products[0, 0]
    covariance = products[1:, 1:] - jnp.outer(products[0, 1:], products[0, 1:])
    own, cross, of_scores = covariance[:dim, :dim], covariance[:dim, dim:], jnp.diag(covariance)[dim:]
    # A little ridge, so that coordinates that move together do no harm.
    own = own + 1e-5 * jnp.diag(jnp.diag(own))
    fitted = (cross * jnp.linalg.solve(own, cross)).sum(axis=0)
    return jnp.clip(fitted / jnp.where(of_scores > 0, of_scores, 1), 0, 1)


@compile_by_work
def symmetric_root(factor: Float[Array, "dim columns"]) -> Float[Array, "dim dim"]:
    """M with MMᵀ = FFᵀ that is symmetric but for the units: axes stay as near to the coordinates as they can.

    Axes that the draws choose, such as principal ones, turn towards whatever is most extreme in them by chance.
    """
    sd = jnp.linalg.norm(factor, axis=1)
    # Not from FFᵀ, in which what is small loses twice as many digits.
    axes, values, _ = jnp.linalg.svd(factor / sd[:, None], full_matrices=False)
    return sd[:, None] * einsum("ij,j,kj->ik", axes, values, axes)


def least_independent(dim: int, dtype: np.dtype) -> float:
    """The least share of a coordinate's variance that others may leave unexplained: rounding beyond doubt."""
    return 10 * dim * float(jnp.finfo(dtype).eps)
