"""Affine changes of coordinates that carry the scores along (paper, appendix on linear transforms).

For y = W(x − loc) the scores become ∇_y log p̃(y) = W^{−ᵀ} ∇_x log p(x). `Affine` holds W⁻¹ as its scale,
so that x = loc + scale·y and the scores are simply scaleᵀ s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxpsd._core.blocks import einsum
from jaxpsd._core.checks import as_real, check_choice, check_finite, check_samples, check_weights, is_concrete
from jaxpsd._core.compiling import as_array
from jaxpsd._core.doubts import CoordinatesWarning, Doubt
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.programs import run
from jaxpsd._core.scores import Given, check_target
from jaxpsd._core.types import PyTree, Target, Weights
from jaxpsd._stein.fitting import Rule, fit_to_draws, fit_to_target, symmetric_root


@register_dataclass
@dataclass(frozen=True, eq=False)
class Affine:
    """The change of coordinates x = loc + scale·y.

    loc
        (dim,), the point that becomes the origin.
    scale
        (dim,), a factor other than zero for each coordinate, or an invertible matrix (dim, dim).
    fallback
        Where it was fitted to a target, in how many directions the draws' own location and scale had to do, because
        scores imply none; else None.

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
    fallback: Int[Array, ""] | None = None

    @classmethod
    def fit(
        cls,
        samples: PyTree,
        rule: str = "standardize",
        *,
        target: Target | None = None,
        weights: ArrayLike | None = None,
        chains: bool | None = None,
    ) -> "Affine":
        """Choose the transform that gives these draws, or their target, mean zero and, by rule, unit scale.

        Parameters
        ----------
        samples
            Draws, as everywhere in the library.
        rule
            "center" subtracts the mean; "standardize" also divides by the standard deviations;
            "whiten" makes the covariance the identity, by its Cholesky factor. "target" does so for the covariance
            of the target, by its symmetric root, as far as draws and scores imply it: exactly if it is Gaussian,
            whatever the draws are; of other targets, it is the scores that get unit scale.
        target
            The log-density, or the scores at the samples, for the rule "target".
        weights
            Weights of the draws.
        chains
            Whether the leaves of a pytree have a chain axis.
        """
        draws, rule = check_samples(samples, chains=chains), Rule(check_choice(rule, Rule, "rule"))
        if (target is None) == (rule is Rule.TARGET):
            raise ValueError(
                f"`target` belongs to the rule 'target', which needs it; got {rule!r} and {target!r:.100}."
            )
        scored = None if target is None else check_target(target, samples, draws, chains=chains)
        return fit(rule, Given(draws, scored, check_weights(weights, draws)))

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


@register_dataclass
@dataclass(frozen=True)
class Apart:
    """Each coordinate by itself, and scores along the direction in which it takes the others with it.

    root
        The location of the target, and a root of its covariance Σ as the scale.

    y_i = (x_i − loc_i)/σ_i, and its score is vᵀs with v = Σe_i/σ_i, along which y_i grows by one: f'' + f' vᵀs has mean
    zero under the target for any f(y_i). If that is Gaussian, vᵀs = −y_i, however strongly coordinates are correlated:
    powers of y_i are then explained by as many features, with no need for products.
    """

    root: Affine

    @property
    def fallback(self) -> Int[Array, ""] | None:
        """That of the root."""
        return self.root.fallback

    def mapping(self) -> Callable[[Array, Array], tuple[Array, Array]]:
        """As of an `Affine`."""
        loc, scale = self.root.loc, self.root.scale
        lengths = jnp.linalg.norm(scale, axis=1) if scale.ndim == 2 else scale

        def apply(x: Array, s: Array) -> tuple[Array, Array]:
            along = _times(self.root.scores(s), scale) / lengths[None]
            return ((x - loc[None]) / lengths[None]).astype(x.dtype), along.astype(x.dtype)

        return apply


Transform = Affine | Rule | None


def in_coordinates(x: Float[Array, "*draws dim"], transform: Affine | None) -> Float[Array, "*draws dim"]:
    """Positions in the coordinates of a transform, where there is one."""
    return x if transform is None else transform.forward(x)


def mean_of(draws: Draws, weights: Weights, transform: Affine | None) -> Float[Array, " dim"]:
    """The mean of the draws, in the coordinates of a transform."""
    return in_coordinates(fit(Rule.CENTER, Given(draws, None, weights)).loc, transform)


def check_transform(transform: object) -> Transform:
    """None, the name of a rule, or an `Affine`."""
    if isinstance(transform, str):
        return Rule(check_choice(transform, Rule, "transform"))
    if transform is None or isinstance(transform, Affine):
        return transform
    wanted = "None, 'center', 'standardize', 'whiten', 'target' or a jaxpsd.Affine"
    raise ValueError(f"`transform` must be {wanted}; got {transform!r}.")


def check_streamable(transform: object) -> None:
    """A rule needs all draws."""
    if isinstance(rule := check_transform(transform), Rule):
        raise ValueError(
            f"transform={rule!r} is chosen by all draws, which a stream has not seen; fit it to some of "
            "them, such as a warm-up, with `Affine.fit`."
        )


def resolve(transform: Transform | str, given: Given) -> Affine | None:
    """The transform that a discrepancy with this setting uses for these draws."""
    transform = check_transform(transform)
    if not isinstance(transform, Affine):
        return None if transform is None else fit(transform, given)
    dim = given.draws.dim
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


def fit(rule: Rule, given: Given) -> Affine:
    """Fit a rule; what cannot be inverted is an error, or NaN where values cannot be looked at."""
    if rule is Rule.TARGET:
        return canonical(given).for_tests
    draws = given.draws
    if rule is Rule.WHITEN and draws.num_draws <= draws.dim:
        raise ValueError(
            f"Whitening {draws.dim} coordinates needs more than {draws.dim} draws; got {draws.num_draws}. "
            "Use 'standardize', or more draws."
        )
    affine = Affine(*run(fit_to_draws, given._replace(target=None), rule))
    if is_concrete(affine):
        _raise_if_singular(rule, affine, draws, weighted=given.weights is not None)
    return affine


class Canonical(NamedTuple):
    """Coordinates in which the target has mean zero and the identity as covariance, as draws and scores imply them.

    for_tests
        By a root of the covariance that does not look at the draws: axes that do turn towards whatever is most extreme
        in them by chance.
    for_regression
        Rotated such that the draws are uncorrelated too: there their features are nearly so.
    linearity
        The share of the scores' variance that is linear in the draws, along the axis where it is least: one for a
        Gaussian target. Zero where there are too few different draws to tell.
    num_moves
        How many draws are not the same as the one before.
    """

    for_tests: Affine
    for_regression: Affine
    linearity: Float[Array, ""]
    num_moves: Float[Array, ""]


def canonical(given: Given, by_draws: Affine | None = None) -> Canonical:
    """Location and covariance of the target, as draws and scores imply them.

    A Gaussian target has scores s = −Λ(x − μ). Regressing scores on draws gives Λ and μ without error, whatever the
    draws are, and a test in coordinates in which Λ is the identity is not disturbed by fitting them. For other targets,
    coordinates for tests are between that and those in which scores have the identity as covariance, the nearer to
    these the less scores are linear; and where draws are few for so many coordinates, each is scaled by itself. Those
    for regressions go by the symmetric least-squares fit of Λ. Where scores clearly point away from the draws, as they
    do between modes, or draws are fewer than coordinates, the draws' own scale has to do in those directions;
    `fallback` counts them. Draws are standardised first, for the sake of digits: `by_draws`, where that is known.
    """
    if given.target is None:
        raise ValueError("transform='target' needs scores, which are not at hand here; use `Affine.fit` with `target`.")
    by_draws = by_draws or fit(Rule.STANDARDIZE, given)
    dim = given.draws.dim
    if given.draws.num_draws <= dim + 1:
        own = replace(by_draws, fallback=as_array(dim))
        return Canonical(own, own, as_array(0.0), as_array(float(given.draws.num_draws)))
    # Coordinates are chosen, not differentiated through: those of a Gaussian target do not depend on the draws.
    found = jax.lax.stop_gradient(run(fit_to_target, given, by_draws.loc, by_draws.scale))
    if is_concrete(found) and not all(np.isfinite(leaf).all() for leaf in found):
        given.raise_for_value("The scale of the target", "Give a `transform` of your own.")
    for_tests = Affine(found.loc, found.scale, found.fallback)
    for_regression = Affine(found.loc, found.joint_axes, found.joint_fallback)
    return Canonical(for_tests, for_regression, found.linearity, found.num_moves)


def common_transform(rule: Rule, sets: Sequence[Given]) -> Affine:
    """One transform for several sample sets, of which some may have gone astray.

    Locations and scales are medians over the sets, correlations means. Sets that do not move tell nothing of scales,
    nor of the target's do those whose scores imply none, unless that holds for all.
    """
    fits, reasons = [], []
    for given in sets:
        try:
            fits.append(fit(rule, given))
        except (ValueError, FloatingPointError) as error:
            reasons.append(error)
    if not fits:
        raise reasons[0]
    fallback = None
    if rule is Rule.TARGET:
        dim = sets[0].draws.dim
        fits = [affine for affine in fits if affine.fallback is not None and int(affine.fallback) < dim] or fits
        fallback = as_array(int(np.median([affine.fallback for affine in fits])))
    loc = np.median([affine.loc for affine in fits], axis=0)
    scales = [np.asarray(affine.scale) for affine in fits]
    if any(scale.ndim == 1 for scale in scales):
        lengths = [scale if scale.ndim == 1 else np.linalg.norm(scale, axis=1) for scale in scales]
        return Affine(as_array(loc), as_array(np.median(lengths, axis=0)), fallback)
    lengths = [np.linalg.norm(scale, axis=1) for scale in scales]
    factors = [scale / length[:, None] for scale, length in zip(scales, lengths, strict=True)]
    # FFᵀ is the mean of the sets' correlations.
    factor = np.concatenate(factors, axis=1) / len(factors) ** 0.5
    root = np.asarray(symmetric_root(factor)) if rule is Rule.TARGET else np.linalg.cholesky(factor @ factor.T)
    return Affine(as_array(loc), as_array(np.median(lengths, axis=0)[:, None] * root), fallback)


def find_fallback(transform: Affine | Apart | None, draws: Draws) -> tuple[Doubt, ...]:
    """Doubt coordinates that were to be the target's, and are partly the draws' own."""
    count = None if transform is None else transform.fallback
    if count is None or not is_concrete(count) or int(count) == 0:
        return ()
    message = (
        f"The scores imply no scale of the target in {int(count)} of {draws.dim} directions, because draws are few or "
        "between modes, or scores have the wrong sign; the draws' own scale is used there, so that a wrong one may not "
        "show."
    )
    return (Doubt(CoordinatesWarning, message),)


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
