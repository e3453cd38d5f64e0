"""From what users have, a kernel or an algorithm of BlackJAX, to programs that run many settings at once.

A kernel is traced for each group of settings that differ only in numbers (`_core/tracing`), and runs over arms
(settings) and chains by two `vmap`s inside one `lax.scan`. Keys belong to setting, chain and stretch of steps, so that
it changes nothing who runs beside whom, or whether a run was interrupted.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import register_static
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxpsd._choose.arms import Group
from jaxpsd._core.checks import check_positive_integer
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import Draws, one_position, ravel
from jaxpsd._core.functions import as_returned, check_function
from jaxpsd._core.states import positions_in
from jaxpsd._core.tracing import Traced, trace
from jaxpsd._core.types import PyTree

STRETCHES_AT_ONCE = 8
"""How many stretches of steps a call of the program runs at most."""


class Transition(NamedTuple):
    """A sampler, traced for a group of settings: `init(key, position, arrays)` and `step(key, state, arrays)`."""

    init: Traced
    step: Traced


class Minibatched(NamedTuple):
    """Data of which an algorithm gets a batch at each step, and how large that is unless the setting says so."""

    data: PyTree
    batch_size: int | None


@register_static
class Lengths(NamedTuple):
    """A stretch is so many draws that are looked at, so many steps apart."""

    draws: int
    thin: int

    @property
    def steps(self) -> int:
        """In a stretch."""
        return self.draws * self.thin


class Origin(NamedTuple):
    """Where positions are, roughly, and how far they reach: sums of their powers then keep their digits."""

    loc: Float[Array | np.ndarray, " dim"]
    scale: Float[Array | np.ndarray, " dim"]


class Path(NamedTuple):
    """What was seen of stretches, arms and chains, in this order of axes.

    positions
        A pytree, with an axis of draws beside.
    moments
        Means, over all steps of a stretch, of the coordinates in units of the origin, and then of their squares.
    """

    positions: PyTree
    moments: Float[Array, "stretches arms chains twice_dim"]


def trace_transition(
    kernel: Callable[..., Any],
    init: Callable[..., Any] | None,
    group: Group,
    starts: Draws,
    rng_key: PRNGKeyArray,
    minibatched: Minibatched | None,
) -> Transition:
    """Trace a sampler for the settings of a group; what it returns is held to what it takes."""
    begin, step = _functions(kernel, init, minibatched)
    position = one_position(starts.positions)
    setting = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in group.arrays]
    try:
        # Nothing differentiates through a sampler, so that rules for derivatives need not be compared.
        first = trace(lambda key, at, data: _of_arrays(begin(key, at, group.rebuild(data)), "The first state"),
                      rng_key, position, setting, is_gradient=True)  # fmt: skip
        state = jax.eval_shape(first, rng_key, position, setting)
        following = trace(lambda key, at, data: _pair_of_arrays(*step(key, at, group.rebuild(data))),
                          rng_key, state, setting, is_gradient=True)  # fmt: skip
    except Exception as error:
        error.add_note(f"jaxpsd: the sampler was called with one key, one chain and the setting {_shown(group)}.")
        if isinstance(error, jax.errors.JAXTypeError):
            error.add_note("jaxpsd: it could not be traced. It must be written with jax.numpy.")
        raise
    new_state, new_position = jax.eval_shape(following, rng_key, state, setting)
    _check_alike(new_state, state, "a state like the one that it takes")
    _check_alike(new_position, position, "a position like those in `positions`")
    return Transition(first, following)


def _shown(group: Group) -> str:
    return f"{group.rebuild([leaf[0] for leaf in group.arrays])!r:.200}"


def _check_alike(found: PyTree, wanted: PyTree, what: str) -> None:
    def kinds(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: f"{leaf.dtype} {leaf.shape}", tree)

    if jax.tree.flatten(kinds(found)) != jax.tree.flatten(kinds(wanted)):
        raise TypeError(f"`kernel` must return {what}: {kinds(wanted)!s:.200}; it returned {kinds(found)!s:.200}.")


def _of_arrays(returned: PyTree, what: str) -> PyTree:
    """What the sampler has returned, as arrays of JAX's."""
    leaves, treedef = jax.tree.flatten(returned)
    arrays = [as_returned(leaf) for leaf in leaves]
    if not arrays or any(array is None for array in arrays):
        found = next(
            (type(leaf).__name__ for leaf, array in zip(leaves, arrays, strict=True) if array is None), returned
        )
        raise TypeError(f"{what} must be an array, or a pytree of arrays, at least one; got {found!s:.100}.")
    return jax.tree.unflatten(treedef, arrays)


def _pair_of_arrays(state: PyTree, position: PyTree) -> tuple[PyTree, PyTree]:
    return _of_arrays(state, "The state that follows"), _of_arrays(position, "The position that follows")


def _functions(
    kernel: Callable[..., Any], init: Callable[..., Any] | None, minibatched: Minibatched | None
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """How to begin and how to move on, whichever way the user has said it."""
    check_function(kernel, "kernel", "a key, a state and a setting; or of a setting, to an algorithm of BlackJAX")
    if _takes_one(kernel):
        if init is not None:
            raise ValueError("`init` belongs to a kernel of a key, a state and a setting; algorithms have their own.")
        return partial(_begin_algorithm, kernel), partial(_step_algorithm, kernel, minibatched)
    if minibatched is not None:
        raise ValueError("`data` are for algorithms whose step takes a mini-batch; a kernel draws its own.")
    if init is not None:
        check_function(init, "init", "one position")

    def begin(_: PRNGKeyArray, position: PyTree, __: PyTree) -> PyTree:
        return position if init is None else init(position)

    def step(key: PRNGKeyArray, state: PyTree, setting: PyTree) -> tuple[PyTree, PyTree]:
        returned = kernel(key, state, setting)
        if type(returned) is not tuple or len(returned) != 2:
            raise TypeError(f"`kernel` must return a pair, the state and the position; got {type(returned).__name__}.")
        state, position = returned
        return state, positions_in(position, "position")

    return begin, step


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with one argument, and not with three."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False

    def takes(count: int) -> bool:
        try:
            signature.bind(*range(count))
        except TypeError:
            return False
        return True

    return takes(1) and not takes(3)


def _algorithm(build: Callable[..., Any], setting: PyTree) -> Any:
    algorithm = build(setting)
    if not (callable(getattr(algorithm, "init", None)) and callable(getattr(algorithm, "step", None))):
        raise TypeError(
            "`kernel` takes one argument, a setting, and must return an algorithm with `init` and `step`, as those of "
            f"BlackJAX; it returned {type(algorithm).__name__}. A kernel of your own takes a key, a state and a "
            "setting."
        )
    return algorithm


def _begin_algorithm(build: Callable[..., Any], key: PRNGKeyArray, position: PyTree, setting: PyTree) -> PyTree:
    init = _algorithm(build, setting).init
    return init(position, rng_key=key) if "rng_key" in inspect.signature(init).parameters else init(position)


def _step_algorithm(
    build: Callable[..., Any], minibatched: Minibatched | None, key: PRNGKeyArray, state: PyTree, setting: PyTree
) -> tuple[PyTree, PyTree]:
    step = _algorithm(build, setting).step
    if "minibatch" in inspect.signature(step).parameters:
        batch_key, key = jax.random.split(key)
        batch = _draw_batch(batch_key, minibatched, setting)
        returned = step(key, state, batch, _step_size(setting))
    else:
        returned = step(key, state)
    if jax.tree.structure(returned) != jax.tree.structure(state):
        # The state, and what the algorithm has to say of the transition.
        returned = returned[0]
    return returned, positions_in(returned, "state")


def _draw_batch(key: PRNGKeyArray, minibatched: Minibatched | None, setting: PyTree) -> PyTree:
    if minibatched is None:
        raise ValueError("The algorithm takes a mini-batch at each step: pass all `data`.")
    size = setting.get("batch_size", minibatched.batch_size) if isinstance(setting, Mapping) else minibatched.batch_size
    if not isinstance(size, int):
        raise ValueError(
            "The size of mini-batches must be known: pass `batch_size`, or put an integer `batch_size` in each "
            f"setting of a list; got {size!r:.100}."
        )
    size = check_positive_integer(size, "batch_size")
    chosen = jax.random.randint(key, (size,), 0, len(jax.tree.leaves(minibatched.data)[0]))
    return jax.tree.map(lambda leaf: leaf[chosen], minibatched.data)


def _step_size(setting: PyTree) -> Any:
    if isinstance(setting, Mapping):
        if "step_size" not in setting:
            raise ValueError(f"A setting of this algorithm needs a `step_size`; it has {', '.join(map(str, setting))}.")
        return setting["step_size"]
    return setting


# --- programs ---------------------------------------------------------------------------------------------


@partial(compile_by_work, seldom=True)
def begin_chains(
    rng_key: PRNGKeyArray, transition: Transition, starts: PyTree, arrays: list[Array], arms: Int[Array, " arms"]
) -> PyTree:
    """The states of all chains of all arms, with both axes."""

    def one(key: PRNGKeyArray, position: PyTree, setting: list[Array]) -> PyTree:
        return transition.init(key, position, setting)

    count = len(jax.tree.leaves(starts)[0])
    keys = _keys(rng_key, arms, count)
    return jax.vmap(jax.vmap(one, in_axes=(0, 0, None)), in_axes=(0, None, 0))(keys, starts, arrays)


@partial(compile_by_work, seldom=True)
def run_chains(
    rng_key: PRNGKeyArray,
    transition: Transition,
    states: PyTree,
    arrays: list[Array],
    arms: Int[Array, " arms"],
    origin: Origin,
    first: Int[Array, ""],
    count: Int[Array, ""],
    lengths: Lengths,
) -> tuple[PyTree, Path]:
    """Some stretches of all arms; of the path, only the first `count` entries mean something."""
    num_chains = jax.tree.leaves(states)[0].shape[1]
    keys = _keys(rng_key, arms, num_chains)

    def stretch(key: PRNGKeyArray, state: PyTree, setting: list[Array]) -> tuple[PyTree, tuple[PyTree, Array]]:
        def step(carry: tuple[PyTree, PyTree, Array], key: PRNGKeyArray) -> tuple[Any, None]:
            state, _, sums = carry
            state, position = transition.step(key, state, setting)
            y = (ravel(jax.tree.map(lambda leaf: leaf[None], position))[0] - origin.loc) / origin.scale
            return (state, position, sums + jnp.concatenate([y, y**2])), None

        def draw(carry: tuple[PyTree, Array], key: PRNGKeyArray) -> tuple[Any, PyTree]:
            state, total = carry
            _, position = jax.eval_shape(transition.step, key, state, setting)
            nowhere = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), position)
            # Sums of sums: a long running one would lose digits.
            begin = (state, nowhere, jnp.zeros_like(total))
            (state, position, sums), _ = lax.scan(step, begin, jax.random.split(key, lengths.thin))
            return (state, total + sums), position

        zeros = jnp.zeros(2 * len(origin.loc), origin.loc.dtype)
        (state, total), positions = lax.scan(draw, (state, zeros), jax.random.split(key, lengths.draws))
        return state, (positions, total / lengths.steps)

    over_chains = jax.vmap(stretch, in_axes=(0, 0, None))
    over_arms = jax.vmap(over_chains)

    def run(states: PyTree, number: Array) -> tuple[PyTree, tuple[PyTree, Array]]:
        of_stretch = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, number)))(keys)
        return over_arms(of_stretch, states, arrays)

    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(run, states, first)[1])

    def one(states: PyTree, number: Array) -> tuple[PyTree, tuple[PyTree, Array]]:
        # How many there are to run is no part of the program, which is compiled once for all rounds.
        return lax.cond(number < first + count, run, lambda states, _: (states, empty), states, number)

    states, (positions, moments) = lax.scan(one, states, first + jnp.arange(STRETCHES_AT_ONCE))
    return states, Path(positions, moments)


def _keys(rng_key: PRNGKeyArray, arms: Int[Array, " arms"], num_chains: int) -> PRNGKeyArray:
    """A key for each chain of each arm."""

    def of_arm(arm: Array) -> PRNGKeyArray:
        key = jax.random.fold_in(rng_key, arm)
        return jax.vmap(lambda chain: jax.random.fold_in(key, chain))(jnp.arange(num_chains))

    return jax.vmap(of_arm)(arms)
