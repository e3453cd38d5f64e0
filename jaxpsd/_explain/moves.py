"""How draws are moved: a few transitions of Hamiltonian Monte Carlo from each, by BlackJAX.

Trajectories have random lengths, the same for all draws and in an order that reads the same forwards and backwards:
such a sequence of reversible transitions is reversible as a whole, and has no negative eigenvalues, so that motion to
and fro is not taken for a change.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxpsd._core.blocks import block_length, einsum, map_over_blocks
from jaxpsd._core.checks import check_positive_integer
from jaxpsd._core.draws import Draws, evenly_spaced, one_position, ravel
from jaxpsd._core.programs import Data, run, working_bytes
from jaxpsd._core.scores import Given
from jaxpsd._core.types import Vector
from jaxpsd._stein.coordinates import Affine

# However dependent the draws are, so many are started from, if there are.
_FEWEST = 16

# Step sizes to try, in coordinates in which a Gaussian target has unit scale. Not one, with which three steps turn it
# by half a circle, so that trajectories of many lengths would end where they began, or opposite.
_STEP_SIZES = 0.9 * 2.0 ** (-np.arange(16) / 2)

# Memory that log-densities of all draws that move at once may take.
_WORKING_BYTES = 2**26


@dataclass(frozen=True)
class Moves:
    """How draws are to be moved, as in `relax`."""

    num_draws: int = 500
    num_transitions: int = 10
    num_steps: int = 8
    target_acceptance: float = 0.8

    def check(self) -> None:
        """Refuse what makes no sense."""
        check_positive_integer(self.num_steps, "num_steps")
        for name in ("num_draws", "num_transitions"):
            if check_positive_integer(getattr(self, name), name) < 2:
                raise ValueError(f"`{name}` must be at least 2; got {getattr(self, name)}.")
        if self.num_transitions % 2:
            raise ValueError(
                "`num_transitions` must be even, so that motion to and fro is not taken for a change; got "
                f"{self.num_transitions}."
            )
        acceptance: Any = self.target_acceptance
        if not isinstance(acceptance, float | np.floating) or not 0 < acceptance < 1:
            raise ValueError(f"`target_acceptance` must be a float between 0 and 1; got {acceptance!r}.")


def require_blackjax() -> None:
    """Say how to install what moves the draws, where it is missing."""
    try:
        import blackjax  # noqa: F401
    except ImportError as error:
        error.add_note("`relax` needs BlackJAX: pip install 'jaxpsd[blackjax]'.")
        raise


def choose_starts(rng: np.random.Generator, given: Given, most: int, time: float | None) -> Int[np.ndarray, " starts"]:
    """Places among all draws to start from, in order: evenly spaced, or by systematic resampling of weighted draws.

    They are an autocorrelation time apart where draws are dependent. More would do harm: moved draws are less dependent
    than those that they started from, so that squared deviations of many before and after are not exchangeable.
    """
    n = given.draws.num_draws
    count = min(n, most, n if time is None else max(_FEWEST, int(n / time)))
    if given.weights is None:
        return evenly_spaced(n, count)
    cumulated = np.cumsum(np.asarray(given.weights, np.float64))
    levels = (rng.random() + np.arange(count)) / count * cumulated[-1]
    return np.minimum(np.searchsorted(cumulated, levels, side="right"), n - 1)


def choose_step_size(
    rng: np.random.Generator, given: Given, coordinates: Affine, places: Int[np.ndarray, " starts"], moves: Moves
) -> float:
    """The largest step size up to which trial transitions are accepted as often as they should be."""
    # Every draw tries another step size in every transition.
    tried = np.add.outer(np.arange(len(places)), np.arange(moves.num_transitions)) % len(_STEP_SIZES)
    acceptance = moved_draws(rng, given, coordinates, places, moves, _STEP_SIZES[tried])[2]
    counts = np.bincount(tried.ravel(), minlength=len(_STEP_SIZES))
    sums = np.bincount(tried.ravel(), acceptance.ravel(), minlength=len(_STEP_SIZES))
    seen = np.flatnonzero(counts)
    rates, sizes = (sums[seen] / counts[seen])[::-1], _STEP_SIZES[seen][::-1]
    too_low = np.flatnonzero(rates < moves.target_acceptance)
    if len(too_low) == 0:
        return float(sizes[-1])
    if (first := too_low[0]) == 0:
        return float(sizes[0])
    # Between the last that will do and the first that will not.
    share = (rates[first - 1] - moves.target_acceptance) / (rates[first - 1] - rates[first])
    return float(sizes[first - 1] * (sizes[first] / sizes[first - 1]) ** share)


def _choose_lengths(rng: np.random.Generator, num_transitions: int, num_steps: int) -> Int[np.ndarray, " transitions"]:
    """Leapfrog steps of each transition, 1 … 2·num_steps − 1, short ones and long ones, the same read backwards."""
    half = num_transitions // 2
    longest = 2 * num_steps - 1
    lengths = 1 + ((np.arange(half) + rng.random(half)) / half * longest).astype(np.int32)
    lengths = np.minimum(lengths, longest)
    return np.concatenate([lengths, lengths[::-1]])


# --- moves ------------------------------------------------------------------------------------------------


def moved_draws(
    rng: np.random.Generator,
    given: Given,
    coordinates: Affine,
    places: Int[np.ndarray, " starts"],
    moves: Moves,
    step_sizes: float | Float[np.ndarray, "starts transitions"],
) -> tuple[Float[np.ndarray, "starts dim"], Float[np.ndarray, "starts dim"], Float[np.ndarray, "starts transitions"]]:
    """Draws before and after all transitions, and how likely each proposal was to be accepted."""
    lengths = _choose_lengths(rng, moves.num_transitions, moves.num_steps)
    step_sizes = np.broadcast_to(step_sizes, (len(places), moves.num_transitions)).astype(given.draws.dtype)
    bits = rng.integers(2**32, size=4, dtype=np.uint32)
    # Programs are compiled for few numbers of starts, and what is too many forgotten.
    padded = min(given.draws.num_draws, moves.num_draws)
    while padded // 2 >= len(places):
        padded //= 2
    repeated = np.arange(padded) % len(places)
    arrays = _MoveArrays(bits, coordinates.scale, places[repeated].astype(np.int32), step_sizes[repeated], lengths)
    results = run(_move, given, arrays, result="gathered")
    before, after, acceptance = (np.asarray(result, np.float64)[: len(places)] for result in results)
    return before, after, acceptance


@register_dataclass
@dataclass(frozen=True)
class _MoveArrays:
    """What the program that moves draws is given.

    bits
        Of a random key.
    scale
        M, so that log p(x + Mz) has about unit scale in z.
    places
        The draws to start from.
    step_sizes
        Of each, for each transition.
    lengths
        Leapfrog steps of each transition.
    """

    bits: Any
    scale: Float[Array, " dim"] | Float[Array, "dim dim"]
    places: Int[Array | np.ndarray, " starts"]
    step_sizes: Float[Array | np.ndarray, "starts transitions"]
    lengths: Int[Array | np.ndarray, " transitions"]


def _move(data: Data, arrays: _MoveArrays) -> tuple[Array, Array, Array]:
    """Transitions of Hamiltonian Monte Carlo from each start x, in z with positions x + Mz.

    Displacements, and not coordinates of the whole: draws that never move stay what they are to the last digit.
    """
    from blackjax.mcmc import hmc

    assert data.score is not None
    logdensity, structure = data.score.function, Draws(data.positions).structure
    x = ravel(data.positions)[arrays.places]
    (count, dim), kernel = x.shape, hmc.build_kernel()

    def displaced(start: Vector, z: Vector) -> Vector:
        return start + (arrays.scale * z if arrays.scale.ndim == 1 else einsum("ij,j->i", arrays.scale, z))

    def chain(start: Vector, keys: PRNGKeyArray, step_sizes: Array) -> tuple[Vector, Array]:
        def density(z: Any) -> Array:
            return logdensity(structure.unravel(displaced(start, z)))

        def transition(state: Any, inputs: Any) -> tuple[Any, Any]:
            key, step_size, length = inputs
            state, info = kernel(key, state, density, step_size, jnp.ones(dim, x.dtype), length)
            return state, info.acceptance_rate

        state: Any = hmc.init(jnp.zeros(dim, x.dtype), density)
        state, acceptance = jax.lax.scan(transition, state, (keys, step_sizes, arrays.lengths))
        return displaced(start, state.position), acceptance

    # Of the kinds of random numbers, the one whose programs compile soonest.
    key = jax.random.wrap_key_data(arrays.bits, impl="unsafe_rbg")
    keys = jax.random.split(key, (count, len(arrays.lengths)))
    # As many at once as there is memory for, should the log-density look at much data.
    gradient = jax.make_jaxpr(jax.value_and_grad(logdensity))(one_position(data.positions))
    length = block_length(count, working_bytes(gradient.jaxpr), _WORKING_BYTES)
    after, acceptance = map_over_blocks(lambda block: jax.vmap(chain)(*block), (x, keys, arrays.step_sizes), length)
    return x, after, acceptance
