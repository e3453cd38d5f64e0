"""From a target, a log-density function or given scores, to scores block by block.

A *scorer* turns a block of draws into coordinates x and scores s = ∇log p(x), both (block, dim); it is
what every computation of the library starts from, and `run` runs such a computation.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend import core
from jax.tree_util import Partial

from jaxpsd._core.blocks import block_length, map_over_blocks
from jaxpsd._core.checks import check_finite, check_samples, check_scores
from jaxpsd._core.draws import Draws, one_of, ravel
from jaxpsd._core.functions import as_returned, check_function
from jaxpsd._core.programs import compiled
from jaxpsd._core.sharding import Everywhere, at_hand, beside, shards_of
from jaxpsd._core.types import Block, LogDensityFn, PyTree, Target

Scorer = Callable[[PyTree], tuple[Block, Block]]
Kernel = Callable[..., Any]
"""`kernel(scorer, arrays, *args)`, where blocks of `arrays` are what the scorer takes.

Weights of draws, where a kernel takes some, are the second of its arguments."""

# Scoring a block materialises a few arrays of the largest intermediate's size at a time.
_LIVE_INTERMEDIATES = 4
_SCORING_BYTES = 2**26


@dataclass(frozen=True)
class LogDensity:
    """A log-density function, and leading arguments that may change without compiling again."""

    function: Callable[..., Any]
    arguments: PyTree = ((), {})


def check_target(target: Target, samples: PyTree, draws: Draws, *, chains: bool | None = None) -> PyTree:
    """Tell a log-density from scores, and hold the scores against the samples."""
    if isinstance(target, Partial) and all(
        isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(target)
    ):
        return LogDensity(target.func, (target.args, target.keywords))
    if callable(target):
        return LogDensity(target)
    return check_scores(target, samples, draws, chains=chains)


def score(logdensity_fn: LogDensityFn, samples: PyTree, *, chains: bool | None = None) -> PyTree:
    """Evaluate the score s(x) = ∇log p(x) at every draw, by automatic differentiation.

    Draws are scored in blocks, so that memory does not grow with the number of draws times the size
    of the data that the log-density looks at.

    Parameters
    ----------
    logdensity_fn
        The log of the unnormalised target density: one unbatched position to a scalar.
    samples
        An array (draws, dim) or (chains, draws, dim), or a pytree of arrays with those leading axes.
    chains
        Whether the leaves of a pytree have a chain axis before the draws; for an array the number of
        axes tells.

    Returns
    -------
    PyTree
        The scores, in the structure and shape of `samples`.

    Notes
    -----
    A function is compiled once for each shape, and again when something that it refers to has changed.
    Methods and callable objects may change unseen and are compiled at every call, unless `jax.jit` around
    them says that they will not. `jax.tree_util.Partial(fn, arrays)` is compiled once for all arrays.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> jaxpsd.score(lambda x: -0.5 * jnp.sum(x**2), jnp.array([[1.0, -2.0], [0.5, 0.0]]))
    Array([[-1. ,  2. ],
           [-0.5, -0. ]], dtype=float32)
    """
    check_function(logdensity_fn, "logdensity_fn", "one position")
    draws = check_samples(samples, chains=chains)
    scores = scores_of(check_target(logdensity_fn, samples, draws), draws)
    check_finite_draws(draws, scores)
    return Draws(scores, draws.num_chains, draws.labels).like(samples)


def _scores(scorer: "_AutodiffScorer", arrays: PyTree) -> PyTree:
    return scorer.scores(arrays)


class _AutodiffScorer:
    """Scores of a log-density, which is traced once, here."""

    def __init__(self, logdensity: Callable[..., Any], positions: PyTree):
        try:
            jaxpr = jax.make_jaxpr(guarded_score(as_logdensity(logdensity)))(one_of(positions))
        except ValueError as error:
            if "everse-mode" in str(error):
                error.add_note("jaxpsd: pass scores from `jax.jacfwd` instead of the log-density.")
            raise
        self._flat_score = jax.vmap(core.jaxpr_as_fun(jaxpr))
        self._bytes_per_draw = working_bytes(jaxpr)

    def scores(self, positions: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(positions)
        length = block_length(leaves[0].shape[0], self._bytes_per_draw, _SCORING_BYTES)
        scores = map_over_blocks(lambda block: self._flat_score(*block), leaves, length)
        return jax.tree.unflatten(treedef, scores)

    def __call__(self, positions: PyTree) -> tuple[Block, Block]:
        return ravel(positions), ravel(self.scores(positions))


def guarded_score(logdensity: Callable[..., Any]) -> Callable[..., PyTree]:
    """∇log p; NaN outside the support, where a gradient may well be finite."""

    def score(position: PyTree) -> PyTree:
        value, scores = jax.value_and_grad(logdensity)(position)
        return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(value), leaf, jnp.nan), scores)

    return score


def _given_scores(block: tuple[PyTree, PyTree]) -> tuple[Block, Block]:
    positions, scores = block
    return ravel(positions), ravel(scores)


def as_logdensity(logdensity: Callable[..., Any]) -> Callable[..., Any]:
    """Say in our words what is wrong with a log-density, at the moment it is traced."""

    def checked(position: PyTree) -> jax.Array:
        try:
            value = logdensity(position)
        except jax.errors.JAXTypeError as error:
            error.add_note(
                "jaxpsd: the log-density could not be traced. It must be written with jax.numpy; "
                "for any other, pass the scores at the draws instead of the function."
            )
            raise
        except Exception as error:
            shapes = jax.tree.map(jnp.shape, position)
            error.add_note(f"jaxpsd: the log-density was called with one position, of shape {shapes}.")
            raise
        array = as_returned(value)
        if array is None or array.shape != ():
            found = type(value).__name__ if array is None else f"shape {array.shape}"
            raise TypeError(
                f"The log-density must return a scalar for one position; it returned {found}. "
                "It is called with one draw at a time; if it returns one term a coordinate, sum them."
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"The log-density must return a floating-point number; it returned {array.dtype}.")
        return array

    return checked


def working_bytes(program: core.ClosedJaxpr) -> int:
    """Memory that a program for one draw needs while it runs: a few times its largest intermediate."""
    return _LIVE_INTERMEDIATES * _largest_intermediate(program.jaxpr)


def _largest_intermediate(jaxpr: core.Jaxpr) -> int:
    largest = 1
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            if isinstance(variable.aval, ShapedArray):
                largest = max(largest, variable.aval.size * variable.aval.dtype.itemsize)
        for inner in _programs_in(list(equation.params.values())):
            largest = max(largest, _largest_intermediate(inner))
    return largest


def _programs_in(value: object) -> Iterator[core.Jaxpr]:
    """The bodies of loops and branches, among the parameters of an equation."""
    if isinstance(value, core.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _programs_in(part)


class NeedsFunction:
    """What holds a function of the user's once `run` has bound it, inside the compiled program only.

    The function is no field of the dataclasses that inherit this: programs are kept by their fields, and must not be
    kept by a function that may change.
    """

    def bound_to(self, function: Callable[..., Any]) -> Self:
        """The same with the function."""
        bound = copy(self)
        object.__setattr__(bound, "_function", function)
        return bound

    @property
    def function(self) -> Callable[..., Any]:
        """The function that was bound."""
        return vars(self)["_function"]


def run(kernel: Kernel, target: PyTree, draws: Draws, *args: PyTree, function: Callable[..., Any] | None = None) -> Any:
    """Call `kernel(scorer, arrays, *args)`, compiled once for each kernel, log-density and shape.

    A second `function` of the user's, where there is one, is bound to the first of the arguments, a form.

    Where draws are spread over devices, the compiler decides what travels between them.
    """
    shards = shards_of(draws.positions)
    if shards is None:
        return _run(None, kernel, target, draws, args, function)
    return at_hand(_run(shards.gathering, kernel, target, draws, args, function))


def run_on_shares(
    kernel: Kernel,
    target: PyTree,
    draws: Draws,
    *args: PyTree,
    function: Callable[..., Any] | None = None,
    per_draw: bool = False,
) -> Any:
    """As `run`, for a kernel that knows how to put shares together; each device works on the draws that it has.

    What the kernel returns is the same for all devices and comes as arrays of this process; or, if it has an axis
    of draws, stays where the draws are.
    """
    shards = shards_of(draws.positions)
    if shards is None:
        return _run(None, kernel, target, draws, args, function)
    if per_draw:
        return _run(shards.keeping_draws, kernel, target, draws, args, function)
    return at_hand(_run(shards.keeping_sums, kernel, target, draws, args, function))


def _run(
    everywhere: Everywhere | None,
    kernel: Kernel,
    target: PyTree,
    draws: Draws,
    args: tuple[PyTree, ...],
    function: Callable[..., Any] | None,
) -> Any:
    if isinstance(target, LogDensity):
        logdensity, arguments, arrays = target.function, target.arguments, draws.positions
    else:
        logdensity, arguments, arrays = None, None, (draws.positions, target)
    program = compiled(partial(_build, kernel, everywhere), kernel, logdensity, function, variant=everywhere)
    arguments, args = beside(draws.positions, (arguments, args))
    return program(arguments, arrays, *args)


def _build(
    kernel: Kernel,
    everywhere: Everywhere | None,
    logdensity: Callable[..., Any] | None,
    function: Callable[..., Any] | None,
) -> Callable[..., Any]:
    def program(arguments: PyTree, arrays: PyTree, *args: Any) -> Any:
        scorer = _given_scores if logdensity is None else _AutodiffScorer(_applied(logdensity, arguments), arrays)
        if function is not None:
            args = (args[0].bound_to(function), *args[1:])
        return kernel(scorer, arrays, *args)

    if everywhere is None:
        return program

    def on_all_devices(arguments: PyTree, arrays: PyTree, *args: Any) -> Any:
        cut = (False, True, *(k == 1 for k in range(len(args))))
        return everywhere(program, cut)(arguments, arrays, *args)

    return on_all_devices


def _applied(function: Callable[..., Any], arguments: PyTree) -> Callable[..., Any]:
    positional, keywords = arguments
    return lambda position: function(*positional, position, **keywords)


def scores_of(target: PyTree, draws: Draws) -> PyTree:
    """Scores of all draws, evaluated unless they are given."""
    return run_on_shares(_scores, target, draws, per_draw=True) if isinstance(target, LogDensity) else target


def check_finite_draws(draws: Draws, scores: PyTree) -> None:
    """Samples and scores, once both are known."""
    check_finite(ravel(draws.positions), draws, "`samples`", "A sampler that diverged has no moments.")
    check_finite(
        ravel(scores), draws, "The score ∇log p", "Is the draw outside the support, or does the log-density overflow?"
    )


def raise_for_value(target: PyTree, draws: Draws, what: str, remedy: str) -> NoReturn:
    """Find out why `what` is not finite, and say so."""
    check_finite_draws(draws, scores_of(target, draws))
    raise FloatingPointError(f"{what} is not finite in {draws.dtype}, although samples and scores are. {remedy}")
