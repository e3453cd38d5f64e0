"""How the PSD computes: from explicit features, from moments, or from the Stein kernel of all polynomials."""

from dataclasses import dataclass, fields, replace
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Int

from jaxpsd._core.blocks import MEMORY_BUDGET
from jaxpsd._core.types import Block, Weights, static
from jaxpsd._discrepancies.plans import FeaturePlan, PairPlan, Part, Plan
from jaxpsd._stein import hermite, monomials, polynomials
from jaxpsd._stein.coordinates import Affine

BASES = {"monomial": monomials, "hermite": hermite}
"""The polynomials that features may be made of."""

# Up to so many polynomials, interactions are looked at too when the dependence of draws is measured.
_FEW = 128


@dataclass(frozen=True, kw_only=True)
class _Polynomials(Plan):
    """What the plans over polynomials share.

    multiplier
        Factors of the features, one a degree or one a polynomial.
    basis
        Which polynomials.
    """

    transform: Affine | None
    multiplier: Float[Array, " count"]
    order: int = static()
    interactions: polynomials.Interactions = static()
    basis: str = static()
    block_size: int | None = static()

    @property
    def polynomials(self) -> ModuleType:
        """The module of the basis."""
        return BASES[self.basis]

    @property
    def ignores_positions(self) -> bool:
        return self.order == 1

    @property
    def highest_degree(self) -> int:
        return self.order

    def leading_features(self, x: Block, s: Block) -> Float[Array, "block polynomials"]:
        """Those of degrees 1 and 2. High degrees decorrelate fast, and are the wrong ones to go by."""
        order, dim = min(self.order, 2), x.shape[1]
        few = polynomials.num_monomials(dim, order) <= _FEW
        return self.polynomials.stein_features(x, s, order, interactions=self.interactions if few else False)

    def extremeness(self, x: Block, s: Block) -> Float[Array, " block"]:
        """‖s‖² (1 + ‖x‖²)^{r−1}, what ‖τ‖² grows like, at the cost of two inner products."""
        return (s**2).sum(axis=1) * (1 + (x**2).sum(axis=1)) ** (self.order - 1)


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class PolynomialPlan(_Polynomials, FeaturePlan):
    """Explicit features, a block at a time: where they are few, or replicates of their mean are needed."""

    norm: str = static(default="l2")

    @property
    def is_quadratic(self) -> bool:
        return self.norm == "l2"

    @property
    def _has_closed_form(self) -> bool:
        return self.interactions is True and len(self.multiplier) == self.order

    def num_features(self, dim: int) -> int:
        return polynomials.num_monomials(dim, self.order, interactions=self.interactions)

    def features(self, x: Block, s: Block) -> Float[Array, "block polynomials"]:
        tau = self.polynomials.stein_features(x, s, self.order, interactions=self.interactions)
        return tau * self._feature_multiplier(x.shape[1])[None]

    def squared_norm(self, z: Float[Array, "polynomials columns"]) -> Float[Array, " columns"]:
        return (z**2).sum(axis=0) if self.norm == "l2" else jnp.max(jnp.abs(z), axis=0) ** 2

    def places(self, part: Part, dim: int) -> Int[np.ndarray, " some"]:
        exponents = polynomials.exponents(dim, self.order, interactions=self.interactions)
        belongs = np.isin(exponents.sum(axis=1), part.degrees or range(1, self.order + 1))
        if part.powers:
            belongs &= (exponents > 0).sum(axis=1) == 1
        return np.flatnonzero(belongs)

    def diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        if self._has_closed_form:
            return self.polynomials.stein_kernel_diagonal(x, s, self.multiplier**2)
        return super().diagonal(x, s)

    def gram(self, x: Block, s: Block) -> Float[Array, "draws draws"]:
        if self._has_closed_form:
            return KernelPlan(**{each.name: getattr(self, each.name) for each in fields(KernelPlan)}).gram(x, s)
        return super().gram(x, s)

    def _feature_multiplier(self, dim: int) -> Float[Array, " polynomials"]:
        if len(self.multiplier) != self.order:
            return self.multiplier
        return self.multiplier[polynomials.degrees(dim, self.order, interactions=self.interactions) - 1]


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class MomentPlan(PolynomialPlan):
    """The primal form: z̄ from M = Φᵀ[S, 1], which is accumulated over blocks of draws."""

    recipe: polynomials.FeatureRecipe

    def moments(self, x: Block, s: Block, weights: Weights) -> Float[Array, "rows columns"]:
        return self.polynomials.stein_moments(x, s, weights, self.order)

    def moment_bytes(self, x: jax.ShapeDtypeStruct, *, diagonal: bool) -> int:
        columns = polynomials.num_moment_rows(x.shape[1], self.order) + 2 * (x.shape[1] + 1)
        if diagonal and not self._has_closed_form:
            columns += 4 * len(self.multiplier)
        return columns * x.dtype.itemsize

    def mean_features(self, moments: Float[Array, "rows columns"], dim: int) -> Float[Array, " polynomials"]:
        return polynomials.mean_features(moments, self.recipe) * self._feature_multiplier(dim)


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class KernelPlan(_Polynomials, PairPlan):
    """The dual form: the Stein kernel summed over tiles of pairs."""

    def kernel(self, x: Block, s: Block, y: Block, u: Block) -> Float[Array, "rows columns"]:
        if self.interactions is True:
            return self.polynomials.stein_kernel(x, s, y, u, self.multiplier**2)
        return self.as_features().kernel(x, s, y, u)

    def diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        return self.as_features().diagonal(x, s)

    @property
    def matrices(self) -> int:
        return 6 * self.order

    def restricted(self, part: Part) -> "KernelPlan":
        degrees = part.degrees or range(1, self.order + 1)
        belongs = jnp.asarray(np.isin(np.arange(1, max(degrees) + 1), degrees), self.multiplier.dtype)
        return replace(self, order=max(degrees), multiplier=self.multiplier[: max(degrees)] * belongs)

    def needs_features(self, part: Part, num_draws: int, dim: int, num_replicates: int) -> bool:
        if part.powers or part.measure != "squares":
            return True
        order = max(part.degrees or (self.order,))
        if order == self.order:
            return False
        count = polynomials.num_monomials(dim, order, interactions=self.interactions)
        fits = replicate_bytes(count, num_replicates, self.multiplier.dtype) <= MEMORY_BUDGET
        # Half of all pairs are summed over, by symmetry.
        return fits and count <= num_draws / 2

    def as_features(self) -> PolynomialPlan:
        return PolynomialPlan(**vars(self))


def replicate_bytes(num_features: int, num_replicates: int, dtype: np.dtype) -> int:
    """Memory of the sums of all replicates, their rounding errors, a block's part of them and one more."""
    return 4 * dtype.itemsize * num_features * (1 + num_replicates)
