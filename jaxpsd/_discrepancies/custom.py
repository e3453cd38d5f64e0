"""Discrepancies of the user's own making: from functions, from Stein features, or from a Stein kernel."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar, Self

import jax
from jax.flatten_util import ravel_pytree
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from jaxpsd._core.draws import Draws, Structure, one_position
from jaxpsd._core.functions import check_function, returning_number, returning_numbers, trace_held
from jaxpsd._core.programs import working_bytes
from jaxpsd._core.scores import Given
from jaxpsd._core.tracing import Traced
from jaxpsd._core.types import Block, PyTree, Scalar, Vector, static
from jaxpsd._discrepancies.base import QuadraticDiscrepancy
from jaxpsd._discrepancies.ksd import PAIRWISE_REMEDY, SteinKernelPlan
from jaxpsd._discrepancies.plans import FeaturePlan, Plan
from jaxpsd._stein.kernels import BaseKernel, for_all_pairs
from jaxpsd._stein.operators import second_order
from jaxpsd._stein.pairs import Tile


class _OfFunction(QuadraticDiscrepancy):
    """What the discrepancies of a function of the user's share; the function is their first field."""

    block_size: int | None
    _arguments: ClassVar[str]
    _num_arguments: ClassVar[int]
    _held: ClassVar[Callable[..., Any]] = staticmethod(returning_numbers)

    def __post_init__(self) -> None:
        check_function(getattr(self, self._name), self._name, self._arguments)
        self._check_common()

    @property
    def _name(self) -> str:
        return fields(self)[0].name  # pyright: ignore[reportArgumentType]

    def _traced_function(self, draws: Draws) -> Traced:
        arguments = [one_position(draws.positions)] * self._num_arguments
        return trace_held(getattr(self, self._name), self._held, self._name, *arguments)

    def _with_function(self, function: Callable[..., Any]) -> Self:
        return replace(self, **{self._name: function})  # pyright: ignore[reportArgumentType]


@register_dataclass
@dataclass(frozen=True)
class SteinDiscrepancy(_OfFunction):
    """The Stein discrepancy of the span of given functions f_1 … f_J.

    As for the PSD, it is sup_{‖β‖ ≤ 1} |Σ_k β_k z̄_k| = √(Σ_k z̄_k²), with z̄_k the mean of A f_k over the
    draws; here A f_k comes from automatic differentiation.

    functions
        One position to a scalar, an array or a pytree of them; each entry is one f_k.
    block_size
        How many draws to work on at a time; None chooses by memory.

    Examples
    --------
    Bounded functions do not mind heavy tails.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> waves = jaxpsd.SteinDiscrepancy(lambda x: {"sin": jnp.sin(x), "cos": jnp.cos(x)})
    >>> samples = jax.random.normal(jax.random.key(0), (500, 2))
    >>> waves.features(-samples, samples).shape
    (500, 4)
    >>> bool(waves(-samples, samples) < 0.2)
    True
    """

    functions: Callable[[PyTree], Any] = static()
    _: KW_ONLY
    block_size: int | None = static(default=None)

    _arguments, _num_arguments = "one position", 1
    _remedy = "A function or one of its first two derivatives is not finite at a draw, or too large to be squared."

    def _num_features(self, draws: Draws) -> int:
        return self._traced_function(draws).size

    def _plan(self, given: Given, num_replicates: int | None = None, num_statistics: int = 1) -> Plan:
        draws = given.draws
        return OperatedPlan(self._traced_function(draws), draws.structure, self.block_size)


@register_dataclass
@dataclass(frozen=True)
class FeatureDiscrepancy(_OfFunction):
    """The discrepancy √(Σ_k z̄_k²) of any features τ_k(x, s) that have mean zero under the target.

    For Stein operators other than Langevin's, such as those for bounded domains.

    features_of
        One position x and its score s = ∇log p(x) to a scalar, an array or a pytree of them, the features.
    block_size
        How many draws to work on at a time; None chooses by memory.

    Examples
    --------
    On the positive half-line, the operator g ↦ x (g s + g′) + g needs no boundary terms.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> discrepancy = jaxpsd.FeatureDiscrepancy(lambda x, s: jnp.concatenate([x * s + 1, x**2 * s + 2 * x]))
    >>> samples = jax.random.exponential(jax.random.key(0), (1000, 1))
    >>> bool(discrepancy(lambda x: -jnp.sum(x), samples) < 0.2)
    True
    >>> jaxpsd.gof_test(jax.random.key(1), discrepancy, lambda x: -jnp.sum(x), 1.3 * samples).reject
    Array(True, dtype=bool)
    """

    features_of: Callable[[PyTree, PyTree], Any] = static()
    _: KW_ONLY
    block_size: int | None = static(default=None)

    _arguments, _num_arguments = "one position and its score", 2
    _remedy = "A feature is not finite at a draw, or too large to be squared."

    def _num_features(self, draws: Draws) -> int:
        return self._traced_function(draws).size

    def _plan(self, given: Given, num_replicates: int | None = None, num_statistics: int = 1) -> Plan:
        draws = given.draws
        return GivenFeaturesPlan(self._traced_function(draws), draws.structure, self.block_size)


@register_dataclass
@dataclass(frozen=True)
class KernelDiscrepancy(_OfFunction):
    """The discrepancy of any Stein kernel Δ(x, s, y, u), positive definite and with mean zero under the target.

    For a base kernel k(x, y) with Langevin's operator, use `KSD`.

    stein_kernel
        Two draws, x with its score s and y with its score u, to a scalar.
    block_size
        How many draws to have on each side of a tile of pairs; None chooses by memory.

    Examples
    --------
    The score itself is a feature, and its inner product a Stein kernel.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> discrepancy = jaxpsd.KernelDiscrepancy(lambda x, s, y, u: jnp.sum(s * u))
    >>> samples = jax.random.normal(jax.random.key(0), (300, 2))
    >>> jnp.allclose(discrepancy(-samples, samples), jaxpsd.PSD(order=1)(-samples, samples))
    Array(True, dtype=bool)
    """

    stein_kernel: Callable[[PyTree, PyTree, PyTree, PyTree], Any] = static()
    _: KW_ONLY
    block_size: int | None = static(default=None)

    _arguments, _num_arguments = "two draws and their scores, (x, s, y, u)", 4
    _held = staticmethod(returning_number)
    _remedy = PAIRWISE_REMEDY

    def _plan(self, given: Given, num_replicates: int | None = None, num_statistics: int = 1) -> Plan:
        draws = given.draws
        return SteinKernelPlan(None, _GivenSteinKernel(self._traced_function(draws), draws.structure), self.block_size)


# --- plans ------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class GivenFeaturesPlan(FeaturePlan):
    """Features as the user computes them, from a position and its score."""

    function: Traced
    structure: Structure = static()
    block_size: int | None = static()

    transform = None
    depends_on_scales = False

    def values(self, x: Vector, s: Vector) -> PyTree:
        """The features of one draw, in any structure."""
        return self.function(*map(self.structure.unravel, (x, s)))

    def features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        return jax.vmap(self._of_draw)(x, s)

    def _of_draw(self, x: Vector, s: Vector) -> Float[Array, " features"]:
        return ravel_pytree(self.values(x, s))[0].astype(x.dtype)

    def working_bytes(self, x: jax.ShapeDtypeStruct) -> int:
        one = one_position(x)
        return working_bytes(jax.make_jaxpr(self._of_draw)(one, one).jaxpr)


@register_dataclass
@dataclass(frozen=True)
class OperatedPlan(GivenFeaturesPlan):
    """Features by the Stein operator, from functions of a position."""

    def values(self, x: Vector, s: Vector) -> PyTree:
        return second_order(lambda flat: self.function(self.structure.unravel(flat)), x, s)


@register_dataclass
@dataclass(frozen=True)
class _GivenSteinKernel(BaseKernel):
    """A Stein kernel as the user computes it."""

    function: Traced
    structure: Structure = static()

    def stein(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        return for_all_pairs(self._of_pair, (x, s), (y, u))

    def _of_pair(self, *draws: Vector) -> Scalar:
        return self.function(*map(self.structure.unravel, draws)).astype(draws[0].dtype)
