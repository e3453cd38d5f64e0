"""A Stein discrepancy of functions that the user chooses."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.flatten_util import ravel_pytree
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from jaxpsd._blocks import einsum
from jaxpsd._checks import check_positive_integer
from jaxpsd._discrepancy import Discrepancy, Form, PairSums, feature_pair_sums
from jaxpsd._draws import Draws, Structure
from jaxpsd._operator import stein_operator
from jaxpsd._score import Scorer
from jaxpsd._types import Block, PyTree


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
        if not callable(self.functions):
            raise TypeError(f"`functions` must be a function of one position; got {type(self.functions).__name__}.")
        if self.block_size is not None:
            object.__setattr__(self, "block_size", check_positive_integer(self.block_size, "block_size"))

    @property
    def _function(self) -> Callable[..., Any]:
        return self.functions

    def _num_features(self, draws: Draws) -> int:
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), draws.positions)
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.functions, one)))

    def _form(self, draws: Draws, weights: Float[Array, " draws"] | None) -> Form:
        return _OperatedFunctions(draws.structure, self.block_size)


def _not_bound(position: PyTree) -> Any:
    raise RuntimeError("The functions are bound when the form is used.")


@partial(register_dataclass, data_fields=[], meta_fields=["structure", "block_size"], drop_fields=["function"])
@dataclass(frozen=True)
class _OperatedFunctions(Form):
    """Features by the Stein operator. The function is bound inside the compiled program only."""

    structure: Structure
    block_size: int | None
    function: Callable[[PyTree], Any] = _not_bound

    transform = None

    def bound_to(self, function: Callable[[PyTree], Any]) -> "_OperatedFunctions":
        return replace(self, function=function)

    def features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        def operated(position: Float[Array, " dim"], score: Float[Array, " dim"]) -> Float[Array, " features"]:
            values = stein_operator(lambda flat: self.function(self.structure.unravel(flat)), score)(position)
            return ravel_pytree(values)[0].astype(x.dtype)

        return jax.vmap(operated)(x, s)

    def kernel(self, x: Block, s: Block, y: Block, u: Block) -> Float[Array, "rows columns"]:
        return einsum("ik,jk->ij", self.features(x, s), self.features(y, u))

    def pair_sums(
        self, scorer: Scorer, arrays: PyTree, weights: Float[Array, " draws"] | None, *, diagonal: bool
    ) -> PairSums:
        return feature_pair_sums(
            self, lambda z: (z**2).sum(), scorer, arrays, weights, block_size=self.block_size, diagonal=diagonal
        )
