"""Affine changes of coordinates that carry the scores along (paper, appendix on linear transforms).

For y = W(x − loc) the scores become ∇_y log p̃(y) = W^{−ᵀ} ∇_x log p(x). `Affine` holds W⁻¹ as its scale,
so that x = loc + scale·y and the scores are simply scaleᵀ s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass, register_static
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._core.blocks import block_length, einsum, product_over_draws, sum_draws, sum_over_blocks, weighted
from jaxpsd._core.checks import as_real, check_choice, check_finite, check_samples, check_weights, is_concrete
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given
from jaxpsd._core.sharding import from_first_share, largest_of_shares
from jaxpsd._core.types import Block, Choice, PyTree, Weights


@register_static
class Rule(Choice):
    """How to choose a transform from the draws; static, so that it may stand where an `Affine` may."""

    CENTER = "center"
    STANDARDIZE = "standardize"
    WHITEN = "whiten"


@register_dataclass
@dataclass(frozen=True, eq=False)
class Affine:
    """The change of coordinates x = loc + scale·y.

    loc
        (dim,), the point that becomes the origin.
    scale
        (dim,), a factor other than zero for each coordinate, or an invertible matrix (dim, dim).

    Coordinates are those of one draw laid side by side, in the order of `jax.tree.leaves` for a pytree.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> samples = jnp.array([[0.0, 100.0], [2.0, 300.0]])
    >>> affine = jaxpsd.Affine.fit(samples, "standardize")
    >>> affine.forward(samples)
    Array([[-1., -1.],
           [ 1.,  1.]], dtype=float32)

    One fit serves several sample sets, which is the fair way to compare them.

    >>> psd = jaxpsd.PSD(order=2, transform=affine)
    """

    loc: Float[Array, " dim"]
    scale: Float[Array, " dim"] | Float[Array, "dim dim"]

    @classmethod
    def fit(
        cls, samples: PyTree, rule: str = "standardize", *, weights: ArrayLike | None = None, chains: bool | None = None
    ) -> "Affine":
        """Choose the transform that gives these draws mean zero and, by rule, unit scale.

        Parameters
        ----------
        samples
            Draws, as everywhere in the library.
        rule
            "center" subtracts the mean; "standardize" also divides by the standard deviations;
            "whiten" makes the covariance the identity, by its Cholesky factor.
        weights
            Weights of the draws.
        chains
            Whether the leaves of a pytree have a chain axis.
        """
        draws = check_samples(samples, chains=chains)
        return fit(Rule(check_choice(rule, Rule, "rule")), draws, check_weights(weights, draws))

    def __post_init__(self) -> None:
        for name in ("loc", "scale"):
            if isinstance(value := getattr(self, name), list | tuple | np.ndarray):
                object.__setattr__(self, name, jnp.asarray(as_real(value, name)))

    def forward(self, x: Float[Array, "*draws dim"]) -> Float[Array, "*draws dim"]:
        """Take positions x to the new coordinates y."""
        return self.mapping()(x, x)[0]

    def inverse(self, y: Float[Array, "*draws dim"]) -> Float[Array, "*draws dim"]:
        """Take y back to x."""
        y = self._checked(y, "y")
        return jnp.broadcast_to(self.loc, y.shape) + _times(y, self.scale)

    def scores(self, s: Float[Array, "*draws dim"]) -> Float[Array, "*draws dim"]:
        """Take scores with respect to x to scores with respect to y."""
        return _times(self._checked(s, "s"), self.scale.T)

    def mapping(self) -> Callable[[Array, Array], tuple[Array, Array]]:
        """Prepare to map many blocks of positions and scores: the scale is inverted once."""
        self._check_fields()
        inverse = jnp.linalg.inv(self.scale) if self.scale.ndim == 2 else 1 / self.scale

        def apply(x: Array, s: Array) -> tuple[Array, Array]:
            x = self._checked(x, "x")
            y = _times(x - jnp.broadcast_to(self.loc, x.shape), inverse)
            return y.astype(x.dtype), self.scores(s).astype(x.dtype)

        return apply

    def _check_fields(self) -> None:
        # Not when it is made: JAX puts all kinds of things where the arrays of a pytree were.
        shapes = [getattr(field, "shape", None) for field in (self.loc, self.scale)]
        if shapes[0] is None or len(shapes[0]) != 1 or shapes[1] not in (shapes[0], 2 * shapes[0]):
            fields = zip((self.loc, self.scale), shapes, strict=True)
            found = ", ".join(repr(field) if shape is None else f"shape {shape}" for field, shape in fields)
            raise ValueError(f"An Affine has loc (dim,) and scale (dim,) or (dim, dim); got {found}.")

    def _checked(self, x: ArrayLike, name: str) -> Array:
        self._check_fields()
        x = jnp.asarray(as_real(x, name))
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(self.loc.dtype)
        if x.shape[-1:] != self.loc.shape:
            raise ValueError(f"The last axis must have {len(self.loc)} coordinates; got shape {x.shape}.")
        return x


def _times(values: Float[Array, "*draws dim"], factor: Array) -> Float[Array, "*draws dim"]:
    """A matrix times each vector along the last axis; a vector stands for a diagonal matrix."""
    if factor.ndim == 1:
        return values * jnp.broadcast_to(factor, values.shape)
    return einsum("...j,ij->...i", values, factor)


Transform = Affine | Rule | None


def in_coordinates(x: Float[Array, "*draws dim"], transform: Affine | None) -> Float[Array, "*draws dim"]:
    """Positions in the coordinates of a transform, where there is one."""
    return x if transform is None else transform.forward(x)


def mean_of(draws: Draws, weights: Weights, transform: Affine | None) -> Float[Array, " dim"]:
    """The mean of the draws, in the coordinates of a transform."""
    return in_coordinates(fit(Rule.CENTER, draws, weights).loc, transform)


def check_transform(transform: object) -> Transform:
    """None, the name of a rule, or an `Affine`."""
    if isinstance(transform, str):
        return Rule(check_choice(transform, Rule, "transform"))
    if transform is None or isinstance(transform, Affine):
        return transform
    wanted = "None, 'center', 'standardize', 'whiten' or a jaxpsd.Affine"
    raise ValueError(f"`transform` must be {wanted}; got {transform!r}.")


def check_streamable(transform: object) -> None:
    """A rule needs all draws."""
    if isinstance(rule := check_transform(transform), Rule):
        raise ValueError(
            f"transform={rule!r} is chosen by all draws, which a stream has not seen; fit it to some of "
            "them, such as a warm-up, with `Affine.fit`."
        )


def resolve(transform: Transform, draws: Draws, weights: Weights) -> Affine | None:
    """The transform that a discrepancy with this setting uses for these draws."""
    if not isinstance(transform, Affine):
        return None if transform is None else fit(transform, draws, weights)
    dim = draws.dim
    loc, scale = (getattr(field, "shape", field) for field in (transform.loc, transform.scale))
    if loc != (dim,) or scale not in ((dim,), (dim, dim)):
        raise ValueError(
            f"The samples have {dim} coordinates, so the transform needs loc ({dim},) and scale ({dim},) or "
            f"({dim}, {dim}); got {loc} and {scale}."
        )
    if is_concrete(transform):
        scale = np.asarray(transform.scale)
        if scale.ndim == 2 and (lengths := np.linalg.norm(scale, axis=1)).all():
            # Whatever the coordinates' units.
            regular = np.linalg.matrix_rank(scale / lengths[:, None]) == dim
        else:
            regular = scale.ndim == 1 and (scale != 0).all()
        if not (np.isfinite(transform.loc).all() and np.isfinite(scale).all() and regular):
            raise ValueError("The transform must be finite and invertible; its loc or scale is not.")
    return transform


def fit(rule: Rule, draws: Draws, weights: Weights) -> Affine:
    """Fit a rule; what cannot be inverted is an error, or NaN where values cannot be looked at."""
    if rule is Rule.WHITEN and draws.num_draws <= draws.dim:
        raise ValueError(
            f"Whitening {draws.dim} coordinates needs more than {draws.dim} draws; got {draws.num_draws}. "
            "Use 'standardize', or more draws."
        )
    affine = run(_fit_to_draws, Given(draws, None, weights), rule)
    if is_concrete(affine):
        _raise_if_singular(rule, affine, draws, weighted=weights is not None)
    return affine


def common_transform(rule: Rule, sets: Sequence[Draws]) -> Affine:
    """One transform for several sample sets, of which some may have gone astray.

    Locations and scales are medians over the sets, correlations means. Sets that do not move tell nothing of scales.
    """
    fits, reasons = [], []
    for draws in sets:
        try:
            fits.append(fit(rule, draws, None))
        except (ValueError, FloatingPointError) as error:
            reasons.append(error)
    if not fits:
        raise reasons[0]
    loc = np.median([affine.loc for affine in fits], axis=0)
    scales = [np.asarray(affine.scale) for affine in fits]
    if rule is not Rule.WHITEN:
        return Affine(jnp.asarray(loc), jnp.asarray(np.median(scales, axis=0)))
    lengths = [np.linalg.norm(scale, axis=1) for scale in scales]
    factors = [scale / length[:, None] for scale, length in zip(scales, lengths, strict=True)]
    factor = np.linalg.cholesky(np.mean([factor @ factor.T for factor in factors], axis=0))
    return Affine(jnp.asarray(loc), jnp.asarray(np.median(lengths, axis=0)[:, None] * factor))


def _fit_to_draws(data: Data, rule: Rule) -> Affine:
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
        return Affine(loc, jnp.ones_like(loc))
    # Squares of numbers below one, so that no unit is too large or too small for them.
    spread = jnp.where(spread > 0, spread, jnp.nan)
    sd = spread * jnp.sqrt(mean(lambda x: ((x - loc[None]) / spread[None]) ** 2)[0])
    # Where all weight is on one value, rounding alone is left.
    sd = jnp.where(sd > 4 * jnp.finfo(dtype).eps * spread, sd, jnp.nan)
    if rule is Rule.STANDARDIZE:
        return Affine(loc, sd)
    # The factor of the correlations, so that scales of different size cost no accuracy.
    factor = jnp.linalg.cholesky(mean(lambda x: (x - loc[None]) / sd[None], product=True)[0])
    independent = jnp.diag(factor) ** 2 > _least_independent(dim, dtype)
    return Affine(loc, jnp.where(independent, sd, jnp.nan)[:, None] * factor)


def fit_to_target(given: Given, by_draws: Affine | None = None) -> Affine:
    """Location and scales of the target, as the draws and their scores imply them.

    For a Gaussian target x = μ − Σ s(x), so that regressing draws on scores gives its mean and variances without
    error, whatever the draws. A test in such coordinates is not disturbed by their estimation, as it is in
    coordinates standardised by few, or dependent, draws themselves. Where scores explain less than half of a
    coordinate the target is far from Gaussian, and the draws' own mean and standard deviation have to do.
    Those are fitted unless they are known.
    """
    by_draws = by_draws or fit(Rule.STANDARDIZE, given.draws, given.weights)
    if given.draws.num_draws <= 2 * given.draws.dim:
        return by_draws
    affine = run(_fit_to_target, given, by_draws)
    if is_concrete(affine) and not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(affine)):
        given.raise_for_value("The scale of the target", "Give a `transform` of your own.")
    return affine


def _fit_to_target(data: Data, by_draws: Affine) -> Affine:
    scorer, mapping = data.scorer(), by_draws.mapping()
    x, n, dim = data.x, data.num_draws, data.x.shape[1]
    # Scores that hardly vary about a large value keep their digits.
    offset = from_first_share(jnp.concatenate(mapping(*scorer(data.first_row())), axis=1))

    def on_block(block: PyTree, block_weights: Weights) -> tuple[tuple[Array, Array], None]:
        values = jnp.concatenate(mapping(*scorer(block)), axis=1) - offset
        counted = weighted(values, block_weights)
        return (sum_draws(counted), product_over_draws(counted, values)), None

    length = block_length(len(x), 8 * dim * x.dtype.itemsize)
    (mean, product), _ = sum_over_blocks(on_block, data.rows, data.weights, length)
    if data.weights is None:
        mean, product = mean / n, product / n
    covariance = product - jnp.outer(mean, mean)
    mean = mean + offset[0]
    among_scores, with_draws = covariance[dim:, dim:], covariance[dim:, :dim]
    # Where scores are, but for rounding, linear combinations of others.
    ridge = _least_independent(dim, x.dtype) * jnp.diag(jnp.diag(among_scores))
    slope = jnp.linalg.solve(among_scores + ridge, with_draws)
    explained = (slope * with_draws).sum(axis=0) / jnp.diag(covariance)[:dim]
    # Adjusted for how many scores there are to explain with.
    explained = 1 - (1 - explained) * (n - 1) / (n - dim - 1)
    variance = -jnp.diag(slope)
    to_trust = (explained > 0.5) & (variance > 0)
    loc = jnp.where(to_trust, mean[:dim] - einsum("i,ij->j", mean[dim:], slope), 0)
    scale = jnp.where(to_trust, jnp.sqrt(jnp.where(to_trust, variance, 1)), 1)
    # NaN if a score was.
    scale = scale + 0 * covariance.sum()
    return Affine(by_draws.loc + by_draws.scale * loc, by_draws.scale * scale)


def _least_independent(dim: int, dtype: np.dtype) -> float:
    """The least share of a coordinate's variance that others may leave unexplained: rounding beyond doubt."""
    return 10 * dim * float(jnp.finfo(dtype).eps)


def _raise_if_singular(rule: Rule, affine: Affine, draws: Draws, *, weighted: bool) -> None:
    if not np.isfinite(affine.loc).all():
        check_finite(ravel(draws.positions), draws, "`samples`")
        raise FloatingPointError(f"The mean of `samples` overflows {draws.dtype}; use float64.")
    if np.isfinite(affine.scale).all():
        return
    x = np.asarray(ravel(draws.positions), np.float64)
    constant = (x == x[0]).all(axis=0)
    if constant.any():
        coordinate, reason = int(np.argmax(constant)), "has the same value in every draw"
    elif weighted and np.isnan(scale := np.asarray(affine.scale)).any(axis=-1).any():
        coordinate = int(np.argmax(np.isnan(scale if scale.ndim == 1 else scale.diagonal())))
        reason = "hardly varies among the draws that have weight"
    elif rule is Rule.WHITEN:
        # The part of each coordinate that those before it do not explain.
        centered = x - x.mean(axis=0)
        remaining = np.abs(np.diag(np.linalg.qr(centered / np.linalg.norm(centered, axis=0), mode="r")))
        coordinate, reason = int(np.argmin(remaining)), "is, but for rounding, a linear combination of others"
    else:
        raise FloatingPointError(f"The variances of `samples` overflow {draws.dtype}; use other units or float64.")
    raise ValueError(
        f"Cannot {rule} these draws: {draws.coordinate(coordinate)} {reason}. "
        "Leave it out, or use 'center' or an Affine of your own."
    )
