"""The polynomial Stein discrepancy (paper, section 3)."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxpsd._core.blocks import MEMORY_BUDGET
from jaxpsd._core.checks import as_real, check_choice, check_fits, check_positive_integer, is_concrete, readable_bytes
from jaxpsd._core.draws import Draws
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.types import PyTree, Target, static
from jaxpsd._discrepancies.base import QuadraticDiscrepancy
from jaxpsd._discrepancies.plans import FeaturePlan, Part, Plan
from jaxpsd._discrepancies.psd_plans import BASES, KernelPlan, MomentPlan, PolynomialPlan, replicate_bytes
from jaxpsd._stein import polynomials
from jaxpsd._stein.coordinates import Apart, Transform, check_streamable, resolve

# Monomials of higher degrees leave the range of floating-point numbers, and their programs grow with the square.
_HIGHEST_ORDER = 20

_ABOUT = {1: "means", 2: "scales", 3: "skewness", 4: "tails"}


def name_of_degree(degree: int) -> str:
    """What the features of a degree are about."""
    return _ABOUT.get(degree, f"degree {degree}")


@register_dataclass
@dataclass(frozen=True)
class PSD(QuadraticDiscrepancy):
    """The polynomial Stein discrepancy of order r.

    With τ_α = A x^α the Stein operator applied to a monomial, and z̄_α the mean of τ_α over the draws,
    PSD = sup_{‖β‖ ≤ 1} |Σ_α β_α z̄_α| = √(Σ_α z̄_α²) over all multi-indices 1 ≤ |α| ≤ r. For a Gaussian
    target it is zero if and only if all moments up to order r are right.

    order
        The polynomial order r: 1 looks at means, 2 also at variances and correlations, 4 at tails.
    basis
        "monomial" for the paper's x^α. "hermite" for Hermite polynomials, orthonormal under a standard normal target:
        the features of a Gaussian target are then uncorrelated with variance one in the coordinates that
        `transform="target"` gives, no degree drowns another, and the value has a meaning (see Notes).
    interactions
        Whether to include products of different coordinates. Without them only marginal moments count,
        and the cost is linear in the dimension. A number, at least 2, is the highest degree of such products.
    transform
        Coordinates in which to compute: None for those of the draws, "center", "standardize" or "whiten"
        by the draws themselves, "target" to whiten by the target, as draws and scores imply it, or an `Affine`.
        Standardise when scales differ.
    norm
        The ball that β lies in: "l2", or "l1" for the largest |z̄_α| alone.
    penalty
        Positive W in βᵀWβ ≤ 1 (for "l1", in Σ_α W_α|β_α| ≤ 1), one for each degree or one for each
        monomial. A large W makes a monomial count less: PSD² = Σ_α z̄_α² / W_α.
    form
        "primal" sums features, linear in the number of draws; "dual" sums the Stein kernel over pairs of
        draws, whatever the number of monomials. Both are exact; "auto" takes the cheaper one.
    block_size
        How many draws to work on at a time; None chooses by memory.

    Notes
    -----
    `PSD(order, basis="hermite", transform="target")` has no units and does not change under affine maps of the
    coordinates. A value of 0.3 is as far as a mean that is off by 0.3 standard deviations. For a Gaussian target with
    mean μ and covariance Σ, and draws whose mean and covariance are off by m = Σ^{−½}(μ_Q − μ) and C = Σ^{−½}Σ_QΣ^{−½},
    its square is ‖m‖² at order 1, and ‖m‖² + ½‖C + mmᵀ − I‖² at order 2; in general it is the χ² divergence of what the
    draws come from, as far as polynomials of these degrees see it. `by_degree` has its parts: degree 1 is
    about means, 2 about scales and correlations, 3 about skewness, 4 about tails. By chance alone n independent draws
    have a square of about the number of features over n. All this is exact for Gaussian targets, and the less so the
    less scores are linear in the draws; if they are not, and draws are few for so many coordinates, each coordinate is
    scaled by itself.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> samples = jax.random.normal(jax.random.key(0), (1000, 3))
    >>> psd = jaxpsd.PSD(order=2)
    >>> bool(psd(logdensity, samples) < psd(logdensity, 1.3 * samples))
    True
    >>> psd.exponents(2)
    array([[1, 0],
           [0, 1],
           [2, 0],
           [1, 1],
           [0, 2]], dtype=int32)
    """

    order: int = static(default=2)
    _: KW_ONLY
    interactions: polynomials.Interactions = static(default=True)
    basis: Literal["monomial", "hermite"] = static(default="monomial")
    transform: Transform | Apart | str = None
    norm: Literal["l2", "l1"] = static(default="l2")
    penalty: ArrayLike | None = None
    form: Literal["auto", "primal", "dual"] = static(default="auto")
    block_size: int | None = static(default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", check_order(self.order))
        check_choice(self.norm, ("l2", "l1"), "norm")
        check_choice(self.form, ("auto", "primal", "dual"), "form")
        check_choice(self.basis, tuple(BASES), "basis")
        object.__setattr__(self, "interactions", check_interactions(self.interactions, self.order))
        self._check_common()
        # Products of coordinates that are apart would have two directions.
        assert not (isinstance(self.transform, Apart) and self.interactions)
        if isinstance(self.penalty, list):
            object.__setattr__(self, "penalty", tuple(self.penalty))
        if self.norm == "l1" and self.form == "dual":
            raise ValueError("The L1 norm needs each z̄_α, which the dual form does not have; use form='primal'.")

    def exponents(self, dim: int) -> Int[np.ndarray, "monomials dim"]:
        """Multi-indices α of the features' columns: degrees ascend, and within one the largest variable."""
        dim = check_positive_integer(dim, "dim")
        shape = (polynomials.num_monomials(dim, self.order, interactions=self.interactions), dim)
        check_fits(shape, np.dtype(np.int32), "The table of exponents", "Lower the order, or drop interactions.")
        return polynomials.exponents(dim, self.order, interactions=self.interactions).copy()

    def by_degree(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Float[Array, " order"]:
        """Parts of the squared discrepancy by degree, which sum to V. Parameters as in a call.

        Examples
        --------
        >>> import jax
        >>> import jaxpsd
        >>> x = 1.3 * jax.random.normal(jax.random.key(0), (2000, 3))
        >>> parts = jaxpsd.PSD(3, basis="hermite").by_degree(-x, x)
        >>> [f"{value:.2f}" for value in parts]
        ['0.01', '0.85', '0.05']
        """
        self._check_pairs("sum over degrees")
        given = check_input(target, samples, weights, chains)
        plan = self._plan(given)
        return self._returned(self._parts(given, plan), given, plan, "A part of the statistic")

    def _parts(self, given: Given, plan: Plan) -> Float[Array, " order"]:
        """V of each degree."""
        return run(_part_values, given, plan, tuple(Part((degree,)) for degree in range(1, self.order + 1)))

    def _check_pairs(self, what: str) -> None:
        if self.norm == "l1":
            raise ValueError(f"There is no {what} for the L1 norm: a maximum is not a sum over pairs of draws.")

    _remedy = (
        "Their products overflow: use `transform='standardize'`, a lower order, a larger penalty, or float64 "
        "(`jax.config.update('jax_enable_x64', True)`)."
    )

    def _num_features(self, draws: Draws) -> int:
        return polynomials.num_monomials(draws.dim, self.order, interactions=self.interactions)

    def _plan(self, given: Given, num_replicates: int | None = None, num_statistics: int = 1) -> Plan:
        draws, settings = given.draws, self._plan_settings(given)
        per_degree = settings["multiplier"].shape == (self.order,)
        if self._choose_form(draws, num_replicates, num_statistics, per_degree=per_degree) == "dual":
            return KernelPlan(**settings)
        if num_replicates is not None or self.interactions is not True:
            return PolynomialPlan(**settings, norm=self.norm)
        return MomentPlan(
            **settings, norm=self.norm, recipe=BASES[self.basis].feature_recipe(draws.dim, self.order, draws.dtype)
        )

    def _stream_plan(self, draws: Draws, num_replicates: int) -> FeaturePlan:
        check_streamable(self.transform)
        if self.form == "dual":
            raise ValueError("The dual form sums over pairs of draws, which cannot be streamed; use form='primal'.")
        size = replicate_bytes(self._num_features(draws), num_replicates, draws.dtype)
        if size > MEMORY_BUDGET:
            raise ValueError(
                f"A stream keeps the sums of all features in all replicates, here {readable_bytes(size)}, more than "
                f"{readable_bytes(MEMORY_BUDGET)}. Lower the order, drop interactions, or take fewer replicates."
            )
        return PolynomialPlan(**self._plan_settings(Given(draws)), norm=self.norm)

    def _plan_settings(self, given: Given) -> dict[str, Any]:
        return {
            "transform": self.transform if isinstance(self.transform, Apart) else resolve(self.transform, given),
            "multiplier": self._multiplier(given.draws),
            "order": self.order,
            "interactions": self.interactions,
            "basis": self.basis,
            "block_size": self.block_size,
        }

    def _multiplier(self, draws: Draws) -> Float[Array, " count"] | Float[np.ndarray, " count"]:
        """Turn the penalty into factors of the features, with which β is in the plain unit ball."""
        if self.penalty is None:
            return np.ones(self.order, draws.dtype)
        # Numbers in a tuple are traced one by one.
        is_traced = isinstance(self.penalty, tuple) and not is_concrete(self.penalty)
        penalty = as_real(jnp.stack(jax.tree.leaves(self.penalty)) if is_traced else self.penalty, "penalty")
        count = self._num_features(draws)
        if penalty.shape not in ((self.order,), (count,)):
            raise ValueError(
                f"`penalty` must have one entry for each degree, ({self.order},), or for each monomial, "
                f"({count},); got shape {penalty.shape}."
            )
        with np.errstate(over="ignore"):
            penalty = jnp.asarray(penalty, draws.dtype)
        if is_concrete(penalty) and not (np.isfinite(penalty) & (np.asarray(penalty) > 0)).all():
            raise ValueError(f"`penalty` must be finite and positive, also when rounded to {draws.dtype}.")
        return 1 / penalty if self.norm == "l1" else 1 / jnp.sqrt(penalty)

    def _choose_form(
        self, draws: Draws, num_replicates: int | None = None, num_statistics: int = 1, *, per_degree: bool = True
    ) -> str:
        """Primal or dual, for the value alone or for replicates of several statistics as well."""
        n, dim, count = draws.num_draws, draws.dim, self._num_features(draws)
        needs_features = self.norm == "l1" or not per_degree
        if self.form == "dual":
            if needs_features:
                raise ValueError(
                    "The dual form has one weight a degree and none a monomial; give `penalty` one entry for each "
                    f"of the {self.order} degrees, or use form='primal'."
                )
            return "dual"
        if self.interactions is not True and num_replicates is None:
            return "primal"
        needs_features = needs_features or self.interactions is not True
        dual = _dual_cost(n, dim, self.order)
        if num_replicates is None:
            size = _primal_bytes(dim, self.order, draws.dtype.itemsize)
            primal = _primal_cost(n, dim, self.order)
        else:
            size = replicate_bytes(count, num_replicates, draws.dtype)
            primal = n * count * (num_replicates + _FORMING)
            dual += n**2 / 2 * num_replicates * num_statistics
        fits = size <= MEMORY_BUDGET
        if self.form == "auto" and not needs_features:
            return "primal" if fits and primal <= dual else "dual"
        if not fits:
            ways = ["interactions=False"] if self.interactions else []
            ways += ["a lower order", *(["fewer replicates"] if num_replicates else [])]
            ways += [] if needs_features else ["form='dual'"]
            raise ValueError(
                f"The primal form needs {readable_bytes(size)} for {count:,} monomials of {dim} coordinates, more "
                f"than the {readable_bytes(MEMORY_BUDGET)} that temporaries may take. Use {' or '.join(ways)}."
            )
        return "primal"


def _part_values(data: Data, plan: Plan, parts: tuple[Part, ...]) -> Float[Array, " parts"]:
    return plan.part_values(plan.prepare(data), parts)


def check_order(order: int) -> int:
    """The degree of polynomials, as far as numbers reach."""
    order = check_positive_integer(order, "order", "2 is a good choice.")
    if order > _HIGHEST_ORDER:
        raise ValueError(
            f"`order` must be at most {_HIGHEST_ORDER}; got {order}. Tails show at 4, and higher moments are hardly "
            "ever known to any digit."
        )
    return order


def check_interactions(interactions: object, order: int) -> polynomials.Interactions:
    """True, False, or the highest degree of products of different coordinates."""
    if isinstance(interactions, bool | np.bool_):
        return bool(interactions)
    if not isinstance(interactions, int | np.integer) or interactions < 2:
        raise TypeError(
            "`interactions` must be True or False, or the highest degree of products of different coordinates, at "
            f"least 2; got {interactions!r}."
        )
    return True if interactions >= order else int(interactions)


def _primal_bytes(dim: int, order: int, itemsize: int) -> int:
    """Memory that the primal form takes beside a block of draws."""
    # M, its rounding errors and a block's part of it; the moments gathered for z̄, and where from.
    moments = 3 * polynomials.num_moment_rows(dim, order) * (dim + 1)
    gathered = 2 * polynomials.num_monomials(dim, order) * (2 * order - 1)
    return itemsize * (moments + gathered) + polynomials.feature_recipe_bytes(dim, order)


# Costs in multiply-adds of a matrix product, the rest converted at measured rates: forming a monomial,
# gathering a moment, and the work on each entry of a tile beside its inner products.
_FORMING, _GATHERING, _TILE_ENTRY = 20, 15, 15


def _primal_cost(n: int, dim: int, order: int) -> float:
    gathered = polynomials.num_monomials(dim, order) * (2 * order - 1)
    return n * polynomials.num_moment_rows(dim, order) * (dim + 1 + _FORMING) + _GATHERING * gathered


def _dual_cost(n: int, dim: int, order: int) -> float:
    return n**2 / 2 * order * (2.5 * dim + _TILE_ENTRY)
