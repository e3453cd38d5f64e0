"""Discrepancies of the user's own making: from functions, from Stein features, or from a Stein kernel."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import jax
from jax.flatten_util import ravel_pytree
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from jaxpsd._core.draws import Draws, Structure, one_of
from jaxpsd._core.functions import check_function, returning_number, returning_numbers
from jaxpsd._core.scores import NeedsFunction, working_bytes
from jaxpsd._core.types import Block, PyTree, Scalar, Vector
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._discrepancies.ksd import PairwiseDiscrepancy, SteinKernelForm
from jaxpsd._discrepancies.plans import Form
from jaxpsd._stein.kernels import BaseKernel, Tile
from jaxpsd._stein.operators import second_order


@partial(register_dataclass, data_fields=[], meta_fields=["functions", "block_size"])
@dataclass(frozen=True)
class SteinDiscrepancy(Discrepancy):
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

    functions: Callable[[PyTree], Any]
    _: KW_ONLY
    block_size: int | None = None

    def __post_init__(self) -> None:
        check_function(self.functions, "functions", "one position")
        self._check_common()

    @property
    def _function(self) -> Callable[..., Any]:
        return self.functions

    @property
    def _remedy(self) -> str:
        return "A function or one of its first two derivatives is not finite at a draw, or too large to be squared."

    def _num_features(self, draws: Draws) -> int:
        return _size(returning_numbers(self.functions, "functions"), one_of(draws.positions))

    def _form(self, draws: Draws, weights: Float[Array, " draws"] | None) -> Form:
        return _OperatedFunctions(draws.structure, self.block_size)


@partial(register_dataclass, data_fields=[], meta_fields=["features_of", "block_size"])
@dataclass(frozen=True)
class FeatureDiscrepancy(Discrepancy):
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

    features_of: Callable[[PyTree, PyTree], Any]
    _: KW_ONLY
    block_size: int | None = None

    def __post_init__(self) -> None:
        check_function(self.features_of, "features_of", "one position and its score")
        self._check_common()

    @property
    def _function(self) -> Callable[..., Any]:
        return self.features_of

    @property
    def _remedy(self) -> str:
        return "A feature is not finite at a draw, or too large to be squared."

    def _num_features(self, draws: Draws) -> int:
        one = one_of(draws.positions)
        return _size(returning_numbers(self.features_of, "features_of"), one, one)

    def _form(self, draws: Draws, weights: Float[Array, " draws"] | None) -> Form:
        return _GivenFeatures(draws.structure, self.block_size)


@partial(register_dataclass, data_fields=[], meta_fields=["stein_kernel", "block_size"])
@dataclass(frozen=True)
class KernelDiscrepancy(PairwiseDiscrepancy):
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

    stein_kernel: Callable[[PyTree, PyTree, PyTree, PyTree], Any]
    _: KW_ONLY
    block_size: int | None = None

    def __post_init__(self) -> None:
        check_function(self.stein_kernel, "stein_kernel", "two draws and their scores, (x, s, y, u)")
        self._check_common()

    @property
    def _function(self) -> Callable[..., Any]:
        return self.stein_kernel

    def _form(self, draws: Draws, weights: Float[Array, " draws"] | None) -> Form:
        return SteinKernelForm(None, _GivenSteinKernel(draws.structure), self.block_size)


# --- forms: the user's function is bound inside the compiled program only -------------------------------------


@dataclass(frozen=True)
class _OwnFeatures(NeedsFunction, Form):
    structure: Structure
    block_size: int | None

    transform = None

    @abstractmethod
    def values(self, x: Vector, s: Vector) -> PyTree:
        """The features of one draw, in any structure."""

    def features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        return jax.vmap(self._of_draw)(x, s)

    def _of_draw(self, x: Vector, s: Vector) -> Float[Array, " features"]:
        return ravel_pytree(self.values(x, s))[0].astype(x.dtype)

    def working_bytes(self, x: jax.ShapeDtypeStruct) -> int:
        one = one_of(x)
        return working_bytes(jax.make_jaxpr(self._of_draw)(one, one))


@partial(register_dataclass, data_fields=[], meta_fields=["structure", "block_size"])
@dataclass(frozen=True)
class _OperatedFunctions(_OwnFeatures):
    """Features by the Stein operator."""

    def values(self, x: Vector, s: Vector) -> PyTree:
        functions = returning_numbers(self.function, "functions")
        return second_order(lambda flat: functions(self.structure.unravel(flat)), x, s)


@partial(register_dataclass, data_fields=[], meta_fields=["structure", "block_size"])
@dataclass(frozen=True)
class _GivenFeatures(_OwnFeatures):
    """Features as the user computes them."""

    def values(self, x: Vector, s: Vector) -> PyTree:
        return returning_numbers(self.function, "features_of")(*map(self.structure.unravel, (x, s)))


@partial(register_dataclass, data_fields=[], meta_fields=["structure"])
@dataclass(frozen=True)
class _GivenSteinKernel(NeedsFunction, BaseKernel):
    """A Stein kernel as the user computes it."""

    structure: Structure

    def stein(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        return jax.vmap(lambda x, s: jax.vmap(lambda y, u: self._of_pair(x, s, y, u))(y, u))(x, s)

    def _of_pair(self, *draws: Vector) -> Scalar:
        value = returning_number(self.function, "stein_kernel")(*map(self.structure.unravel, draws))
        return value.astype(draws[0].dtype)


def _size(function: Callable[..., Any], *arguments: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(function, *arguments)))
