"""A discrepancy, or a test, of draws that come in batches, in memory that does not grow with their number."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Int, PRNGKeyArray

from jaxpsd._core.blocks import compensated_add
from jaxpsd._core.checks import check_choice, check_key, check_samples, check_underflow, is_concrete
from jaxpsd._core.compiling import as_arrays_together
from jaxpsd._core.doubts import warn_of
from jaxpsd._core.draws import Structure
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import check_input
from jaxpsd._core.types import PyTree, Scalar, Target, static
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._discrepancies.plans import FeaturePlan, safe_root
from jaxpsd._gof.bootstrap import Sums, Wanted, accumulate, statistics
from jaxpsd._gof.multipliers import LONGEST_CHAIN, WORD, Parity, Place, Signs
from jaxpsd._gof.result import GofResult, result_of
from jaxpsd._gof.scheme import Scheme, floor_of, signs_of
from jaxpsd._gof.settings import SIGNS, Settings, check_discrepancy, check_orders, labels_of, wanted_of
from jaxpsd._gof.symptoms import find_too_few


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class StreamState:
    """Sums of features times signs over the draws seen so far, with what rounding has added to them too much.

    `begin` and `end` are the places of the first draw and of the next to come; `last` has the sign of the last draw in
    each replicate. `chains` have begun, and `made_by` tells the settings of the stream in words.
    """

    sums: Sums
    excess: Sums
    count: Place
    chains: Int[Array, ""]
    begin: Place
    end: Place
    signs: Signs
    last: Parity
    plan: FeaturePlan
    structure: Structure = static()
    made_by: str = static()


class Stream(NamedTuple):
    """Functions that carry a state along, like those of an optax transformation.

    init(rng_key, position, start=0, chain_start=None)
        The state before any draw. `position` is one position, for its structure. Draws are numbered from `start`;
        a piece of a chain that began earlier has `chain_start` below `start`.
    update(state, target, samples)
        The state after a batch of draws, an array (draws, dim) or a pytree with a leading axis.
    merge(first, second)
        The state of both pieces together; the second starts where the first ends, or later.
    result(state)
        √V for a stream without replicates, else a `GofResult`.
    """

    init: Callable[..., StreamState]
    update: Callable[[StreamState, Target, PyTree], StreamState]
    merge: Callable[[StreamState, StreamState], StreamState]
    result: Callable[[StreamState], Scalar | GofResult]


def stream(
    discrepancy: Discrepancy,
    num_replicates: int = 0,
    *,
    method: str = "rademacher",
    alpha: float = 0.05,
    orders: Sequence[int] | None = None,
    flip_probability: float | None = None,
    block_length: int | None = None,
) -> Stream:
    """Compute a discrepancy, or a test, while draws are still coming.

    The state has the size of the features times the replicates, whatever the number of draws. Batches of any size,
    pieces merged in any grouping, and all draws in one call of `gof_test` with the same key give the same result,
    up to rounding.

    Parameters
    ----------
    discrepancy
        What to compute. Its transform is None or an `Affine`: others need all draws first.
    num_replicates
        Replicates for a test; none for the value alone.
    method
        "rademacher" for independent draws; "markov" or "block", with its parameter, for dependent ones.
    alpha, orders, flip_probability, block_length
        As in `gof_test`.

    Returns
    -------
    Stream
        The functions `init`, `update`, `merge` and `result`.

    Examples
    --------
    Inside a sampler's own loop, so that no draw is kept:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> init, update, merge, result = jaxpsd.stream(jaxpsd.PSD(2), num_replicates=200)
    >>> key = jax.random.key(1)
    >>> def step(state, key):
    ...     draw = jax.random.normal(key, (1, 3))
    ...     return update(state, logdensity, draw), None
    >>> state, _ = jax.lax.scan(step, init(key, jnp.zeros(3)), jax.random.split(key, 1000))
    >>> bool(result(state).reject)
    False
    """
    check_discrepancy(discrepancy)
    check_choice(method, SIGNS, "method")
    wanted = wanted_of(check_orders(orders, discrepancy))
    if isinstance(num_replicates, int | np.integer) and num_replicates == 0 and num_replicates is not False:
        settings = Settings("rademacher", 0, alpha, None)
        given = {"orders": orders, "flip_probability": flip_probability, "block_length": block_length}
        for option, value in given.items():
            if value is not None:
                raise ValueError(f"`{option}` belongs to replicates, and a stream of the value alone has none.")
    else:
        settings = Settings.checked(method, num_replicates, alpha, flip_probability, block_length)
        settings.check_attainable()
        if settings.measures:
            raise ValueError(
                f"A stream cannot measure the autocorrelation time of draws it has not seen; method={method!r} needs "
                f"{'`flip_probability`' if method == 'markov' else '`block_length`'}."
            )

    functions = _StreamFunctions(discrepancy, settings, wanted, f"{discrepancy!r}, {settings}, {wanted.parts}")
    return Stream(functions.init, functions.update, _merge, functions.result)


@dataclass(frozen=True)
class _StreamFunctions:
    """The functions of a stream, and what it was made of, also in words. As methods they can be pickled."""

    discrepancy: Discrepancy
    settings: Settings
    wanted: Wanted
    made_by: str

    def check_state(self, state: StreamState) -> None:
        if not isinstance(state, StreamState):
            raise TypeError(f"`state` must come from `init` or `update` of this stream; got {type(state).__name__}.")
        if state.made_by != self.made_by:
            raise ValueError(f"This state is that of another stream: of {state.made_by}, and not of {self.made_by}.")

    def init(
        self, rng_key: PRNGKeyArray, position: PyTree, start: int = 0, chain_start: int | None = None
    ) -> StreamState:
        """The state before any draw."""
        check_key(rng_key)
        try:
            start = operator.index(start)
            chain_start = start if chain_start is None else operator.index(chain_start)
        except TypeError as error:
            message = f"`start` and `chain_start` must be integers; got {start!r} and {chain_start!r}."
            raise TypeError(message) from error
        # What a place can number.
        if not 0 <= chain_start <= start < WORD * 2**32:
            raise ValueError(
                "`start` is the number of the first draw to come, counted from 0, and `chain_start` that of its "
                f"chain's first; got {start} and {chain_start}."
            )
        # What is no array is named when it is checked.
        batch = jax.tree.map(lambda leaf: (leaf if isinstance(leaf, jax.Array) else np.asarray(leaf))[None], position)
        one = check_samples(batch, chains=False, name="position")
        method, num_replicates, _, parameter = self.settings
        plan = self.discrepancy._stream_plan(one, num_replicates)
        # A multiple of the block length, so that blocks go on where the numbers start again.
        block = int(parameter) if method == "block" and parameter else 1
        endless = LONGEST_CHAIN // block * block
        signs = signs_of(rng_key, method, parameter, endless, num_replicates)
        zeros = Sums(jnp.zeros((self.discrepancy._num_features(one), 1 + num_replicates), one.dtype), None)
        # States are arrays throughout, to be carried through loops and kept.
        signs, begin, count = as_arrays_together((signs, Place.at(start, (start - chain_start) % endless), Place.at(0)))
        return StreamState(
            sums=zeros,
            excess=zeros,
            count=count,
            chains=jnp.asarray(int(chain_start == start), jnp.int32),
            begin=begin,
            end=begin,
            signs=signs,
            last=signs.start(),
            plan=plan,
            structure=one.structure,
            made_by=self.made_by,
        )

    def update(self, state: StreamState, target: Target, samples: PyTree) -> StreamState:
        """The state after a batch of draws."""
        self.check_state(state)
        given = check_input(target, samples, None, False)
        if given.draws.structure != state.structure:
            raise ValueError("`samples` must be a batch of positions like the one given to `init`.")
        plan, function = state.plan, self.discrepancy._traced_function(given.draws)
        if function is not None:
            # The user's own, which may have changed since the state was made; it is traced already.
            plan = self.discrepancy._with_function(function)._stream_plan(given.draws, 0)
        signs = replace(state.signs, origin=state.end)
        added, last = run(_batch, given, plan, signs, state.last, self.wanted, result="gathered")
        self.discrepancy._check_value(added.z, given, "A sum of Stein features")
        warn_of(given.doubts)
        n = given.draws.num_draws
        sums, excess = compensated_add((state.sums, state.excess), added)
        end, count = state.end.after(n, state.signs.chain), state.count.after(n, state.signs.chain)
        return replace(state, sums=sums, excess=excess, count=count, end=end, last=last)

    def result(self, state: StreamState) -> Scalar | GofResult:
        """√V, or the test."""
        self.check_state(state)
        method, num_replicates, alpha, parameter = self.settings
        n = state.count.word.astype(state.sums.z.dtype) * WORD + state.count.bit
        if is_concrete(n) and n == 0:
            raise ValueError("This stream has seen no draws.")
        values = statistics(state.plan, self.wanted, state.sums, n, state.structure.dim)
        if is_concrete(values) and not np.isfinite(values).all():
            raise FloatingPointError(f"The statistic of this stream is not finite. {self.discrepancy._remedy}")
        check_underflow(values, lambda: float(np.abs(state.sums.z).max()), "Sums of Stein features")
        if not num_replicates:
            return safe_root(values[0, 0])
        floor = floor_of(method, parameter, n, jnp.maximum(state.chains, 1))
        doubts = find_too_few(float(floor), alpha, None) if is_concrete(floor) else ()
        warn_of(doubts)
        scheme = Scheme(method, state.signs, parameter, None, floor)
        return result_of(values, scheme, self.settings, labels_of(self.wanted)).doubted(doubts)


def _batch(data: Data, plan: FeaturePlan, signs: Signs, before: Parity, wanted: Wanted) -> tuple[Sums, Parity]:
    """What a batch adds, and the signs of its last draw."""
    sums, _, last = accumulate(plan.prepare(data), plan, signs, wanted, before)
    return sums, last


def _merge(first: StreamState, second: StreamState) -> StreamState:
    """The state of two pieces together."""
    if not all(isinstance(state, StreamState) for state in (first, second)):
        raise TypeError(f"Two states of a stream are merged; got {type(first).__name__} and {type(second).__name__}.")
    if not is_one_stream(first, second):
        raise ValueError(
            "Only states of one stream can be merged: with the same key, discrepancy, method and positions. Pieces are "
            "told apart by their `start`."
        )
    if is_concrete(first, second):
        begin, end = second.begin.number, first.end.number
        # Draws that share a sign would count as dependent.
        if begin < end:
            raise ValueError(
                f"The second piece starts at draw {begin:,}, before the first one ends, at {end:,}: they would share "
                "signs. Merge in the order of draws, and give each piece its own `start`."
            )
        if begin > end and int(second.begin.phase) > 0:
            raise ValueError(
                f"The second piece continues a chain from draw {begin:,}, but the first one ends at {end:,}: merge the "
                "pieces of a chain one after the other, without gaps."
            )
    moved, excess = (part.continuing(first.last) for part in (second.sums, second.excess))
    total = compensated_add((first.sums, first.excess), moved)
    total = compensated_add(total, jax.tree.map(jnp.negative, excess))
    count, last, chains = first.count.plus(second.count), first.last ^ second.last, first.chains + second.chains
    return replace(first, sums=total[0], excess=total[1], count=count, chains=chains, end=second.end, last=last)


def is_one_stream(first: StreamState, second: StreamState) -> bool:
    """Whether both states have the same settings."""
    if jax.tree.structure(first) != jax.tree.structure(second):
        return False
    if not is_concrete(first, second):
        return True
    # Also inside `jit`, where operations on known values would be traced.
    with jax.ensure_compile_time_eval():
        settings = [
            jax.tree.leaves((state.plan, jax.random.key_data(state.signs.key), state.signs.change, state.signs.block))
            for state in (first, second)
        ]
    return all(map(np.array_equal, *settings))
