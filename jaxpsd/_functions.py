"""A Stein discrepancy of functions that the user chooses."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from jaxpsd._checks import check_positive_integer
from jaxpsd._discrepancy import Discrepancy, Form, PairSums, feature_pair_sums
from jaxpsd._draws import Draws, Structure, one_of
from jaxpsd._operator import stein_operator
from jaxpsd._score import Scorer, working_bytes
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

    @property
    def _remedy(self) -> str:
        return "A function or one of its first two derivatives is not finite at a draw, or too large to be squared."

    def _num_features(self, draws: Draws) -> int:
        values = jax.eval_shape(_explained(self.functions), one_of(draws.positions))
        return sum(leaf.size for leaf in jax.tree.leaves(values))

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
        return jax.vmap(self._operated)(x, s)

    def _operated(self, x: Float[Array, " dim"], s: Float[Array, " dim"]) -> Float[Array, " features"]:
        functions = _explained(self.function)
        values = stein_operator(lambda flat: functions(self.structure.unravel(flat)), s)(x)
        return ravel_pytree(values)[0].astype(x.dtype)

    def working_bytes(self, x: jax.ShapeDtypeStruct) -> int:
        one = one_of(x)
        return working_bytes(jax.make_jaxpr(self._operated)(one, one))

    def pair_sums(
        self, scorer: Scorer, arrays: PyTree, weights: Float[Array, " draws"] | None, *, diagonal: bool
    ) -> PairSums:
        return feature_pair_sums(self, scorer, arrays, weights, block_size=self.block_size, diagonal=diagonal)


def _explained(functions: Callable[[PyTree], Any]) -> Callable[[PyTree], Any]:
    """Say in our words what is wrong with the functions, at the moment they are traced."""

    def explained(position: PyTree) -> Any:
        try:
            values = functions(position)
        except Exception as error:
            shapes = jax.tree.map(jnp.shape, position)
            error.add_note(f"jaxpsd: `functions` was called with one position, of shape {shapes}.")
            raise
        leaves = jax.tree.leaves(values)
        if not leaves or not all(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves):
            found = ", ".join(str(jnp.result_type(leaf)) for leaf in leaves) or "nothing"
            raise TypeError(f"`functions` must return floating-point numbers or arrays; it returned {found}.")
        return values

    return explained
