"""Many sample sets at once: one program for all, in bounded memory.

Sets of different sizes are filled up to a few common ones with draws of weight zero, which change nothing, so that
sizes not met before seldom mean compiling again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, log2
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.blocks import sets_at_once
from jaxpsd._core.checks import as_real, check_key, check_samples, is_concrete, shapes_of
from jaxpsd._core.doubts import warn_user
from jaxpsd._core.programs import compiled
from jaxpsd._core.scores import LogDensity, check_target
from jaxpsd._core.sharding import beside
from jaxpsd._core.types import PyTree, Target
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._gof.gof_test import gof_test
from jaxpsd._gof.result import GofResult
from jaxpsd._gof.scheme import floor_of
from jaxpsd._gof.settings import BOOTSTRAPS, UNBIASED, Settings, check_discrepancy, check_orders

# Bytes of positions that are handed to a device at a time.
_CALL_BYTES = 2**28


def discrepancies(
    discrepancy: Discrepancy, target: Target, sets: PyTree, *, chains: bool = False
) -> Float[Array, " sets"]:
    """The discrepancy of every one of many sample sets.

    Parameters
    ----------
    discrepancy
        What to compute: `PSD(order)` or any other.
    target
        The log-density; or the scores, in the form of `sets`.
    sets
        An array (sets, draws, dim), or a pytree of arrays with those leading axes. Or a list of sample sets, arrays
        (draws, dim) or pytrees, which may have different numbers of draws.
    chains
        Whether sets have an axis of chains before their draws; not those of a list.

    Returns
    -------
    Array
        √V of each set; NaN, with a warning, where samples or scores are not finite.

    Notes
    -----
    Sets of a list are filled up to common sizes, so that a few programs serve all. Where a discrepancy chooses
    something by all draws alike, such as a median distance, only sets of equal size share a program. Inside `jit` or
    `grad` the list is stacked as it is traced.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> draws = jax.random.normal(jax.random.key(0), (2, 400, 3))
    >>> values = jaxpsd.discrepancies(jaxpsd.PSD(2), logdensity, [draws[0], 1.5 * draws[1, :250]])
    >>> bool(values[0] < values[1])
    True
    """
    check_discrepancy(discrepancy)
    return _over_sets(_value, (), discrepancy, None, target, sets, chains)


def gof_tests(
    rng_key: PRNGKeyArray,
    discrepancy: Discrepancy,
    target: Target,
    sets: PyTree,
    *,
    method: str = "rademacher",
    num_replicates: int = 500,
    alpha: float = 0.05,
    orders: Sequence[int] | None = None,
    flip_probability: float | None = None,
    block_length: int | None = None,
    chains: bool = False,
) -> GofResult:
    """Test every one of many sample sets, each by itself.

    Parameters
    ----------
    rng_key
        A key of `jax.random`; set k is tested with number k of `jax.random.split(rng_key, sets)`.
    discrepancy, target, sets, chains
        As in `discrepancies`.
    method, num_replicates, alpha, orders, flip_probability, block_length
        As in `gof_test`: one of its bootstraps and, for dependent draws, its parameter. Nothing is measured and
        nothing warned of.

    Returns
    -------
    GofResult
        With a first axis of sets in every field.

    Notes
    -----
    The U-statistic, which method="multinomial" tests, has no weights, so that no set of a list is filled up: only sets
    of equal size share a program.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> draws = jax.random.normal(jax.random.key(0), (2, 400, 3)) * jnp.array([1.0, 1.5])[:, None, None]
    >>> jaxpsd.gof_tests(jax.random.key(1), jaxpsd.PSD(2), logdensity, draws).reject
    Array([False,  True], dtype=bool)
    """
    check_discrepancy(discrepancy)
    check_key(rng_key)
    settings = Settings.checked(method, num_replicates, alpha, flip_probability, block_length)
    settings.check_attainable()
    orders = check_orders(orders, discrepancy)
    if settings.measures or method not in BOOTSTRAPS:
        raise ValueError(
            f"method={method!r} looks at the draws of each set; choose 'rademacher' for independent draws, or 'markov' "
            "with `flip_probability` or 'block' with `block_length` for dependent ones."
        )
    options = (
        ("method", method), ("num_replicates", num_replicates), ("alpha", alpha), ("orders", orders),
        ("flip_probability", flip_probability), ("block_length", block_length),
    )  # fmt: skip
    result = _over_sets(_test, options, discrepancy, rng_key, target, sets, chains)
    if not isinstance(sets, list) or method in UNBIASED:
        return result
    # Draws of weight zero have signs too, but do not count.
    sizes = [len(jax.tree.leaves(each)[0]) for each in sets]
    floors = [max(1 / (1 + num_replicates), floor_of(method, settings.parameter, size, 1)) for size in sizes]
    return replace(result, p_value_floor=jnp.asarray(floors))


# --- one set ----------------------------------------------------------------------------------------------

Of = Callable[..., Any]
"""`of_one(options, discrepancy, key, target, samples, weights, chains)`."""


def _value(
    options: Any, discrepancy: Discrepancy, key: Any, target: Any, samples: PyTree, weights: Any, chains: bool
) -> Array:
    return discrepancy(target, samples, weights, chains=chains)


def _test(
    options: Any, discrepancy: Discrepancy, key: Any, target: Any, samples: PyTree, weights: Any, chains: bool
) -> GofResult:
    return gof_test(key, discrepancy, target, samples, weights=weights, chains=chains, **dict(options))


# --- all of them ------------------------------------------------------------------------------------------


def _over_sets(
    of_one: Of,
    options: Any,
    discrepancy: Discrepancy,
    rng_key: PRNGKeyArray | None,
    target: Target,
    sets: PyTree,
    chains: bool,
) -> Any:
    if not isinstance(sets, list):
        sets = jax.tree.map(lambda leaf: as_real(leaf, "sets"), sets)
        count = _check_stacked(sets, chains)
        keys = None if rng_key is None else jax.random.split(rng_key, count)
        results = _equal_sets(of_one, options, discrepancy, keys, target, sets, None, chains)

        def stacked(k: int) -> Any:
            key, scores, samples = jax.tree.map(
                lambda leaf: leaf[k], (keys, None if callable(target) else target, sets)
            )
            return of_one(options, discrepancy, key, target if scores is None else scores, samples, None, chains)

        return _checked(results, stacked)
    if chains:
        raise ValueError("Sets of a list have no axis of chains; stack those of equal shape to an array.")
    scores = target if isinstance(target, list) else [target] * len(sets)
    if not sets or len(scores) != len(sets):
        raise ValueError(
            f"`sets` must be a list of sample sets, and scores another; got {len(sets)} and {len(scores)}."
        )
    sizes = np.array([check_samples(each, chains=False, name=f"sets[{k}]").num_draws for k, each in enumerate(sets)])
    if isinstance(target, list):
        for k, (each, given) in enumerate(zip(sets, scores, strict=True)):
            if shapes_of(each) != shapes_of(given):
                raise ValueError(
                    f"Scores must have the structure and shape of their set; number {k} has {shapes_of(given)} for "
                    f"samples of {shapes_of(each)}."
                )
    if len({jax.tree.structure(each) for each in sets}) > 1 or len({_of_one(each) for each in sets}) > 1:
        raise ValueError(f"All sets must have draws of one kind; got shapes {[shapes_of(each) for each in sets[:5]]}.")
    keys = None if rng_key is None else jax.random.split(rng_key, len(sets))
    may_fill = not discrepancy._chooses_by_all_draws and dict(options).get("method") not in UNBIASED
    lengths = np.array([_common_size(size) for size in sizes]) if may_fill else sizes
    results, places = [], []
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        results.append(
            _equal_sets(
                of_one, options, discrepancy, None if keys is None else keys[members],
                _filled_up([scores[k] for k in members], length) if isinstance(target, list) else target,
                _filled_up([sets[k] for k in members], length),
                _weights(sizes[members], length) if may_fill else None, chains,
            )
        )  # fmt: skip
        places.append(members)
    order = np.argsort(np.concatenate(places))
    together = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], *results)

    def listed(k: int) -> Any:
        return of_one(options, discrepancy, None if keys is None else keys[k], scores[k], sets[k], None, chains)

    return _checked(together, listed)


def _of_one(tree: PyTree) -> tuple[tuple[int, ...], ...]:
    """The shapes of one draw."""
    return tuple(np.shape(leaf)[1:] for leaf in jax.tree.leaves(tree))


def _check_stacked(sets: PyTree, chains: bool) -> int:
    leaves = jax.tree.leaves(sets)
    shapes = {np.shape(leaf)[:1] for leaf in leaves}
    if len(shapes) != 1 or shapes == {()}:
        raise ValueError(
            f"`sets` must have an axis of sets that all leaves share; got shapes {[np.shape(leaf) for leaf in leaves]}."
        )
    ((count,),) = shapes
    if count == 0:
        raise ValueError("`sets` holds no sets.")
    if hasattr(sets, "ndim") and sets.ndim == 2:
        raise ValueError(f"`sets` must be (sets, draws, dim); got shape {sets.shape}. A single set goes into a list.")
    one = jax.tree.map(lambda leaf: leaf[0], sets)
    check_samples(one, chains=chains, name="sets[0]")
    return count


def _equal_sets(
    of_one: Of,
    options: Any,
    discrepancy: Discrepancy,
    keys: PRNGKeyArray | None,
    target: Target,
    sets: PyTree,
    weights: Float[np.ndarray, "sets draws"] | None,
    chains: bool,
) -> Any:
    """Sets of one shape, so many of them in a call that memory does not grow with their number."""
    one = jax.tree.map(lambda leaf: leaf[0], sets)
    draws = check_samples(one, chains=chains, name="sets[0]")
    is_density = callable(target)
    if is_density:
        target = check_target(target, one, draws)
    elif shapes_of(target) != shapes_of(sets):
        raise ValueError(
            f"Scores must have the structure and shape of `sets`; got {shapes_of(target)} for {shapes_of(sets)}."
        )
    count = len(jax.tree.leaves(sets)[0])
    at_a_time = max(1, _CALL_BYTES // (draws.num_draws * draws.dim * draws.dtype.itemsize))
    size = min(at_a_time, _common_size(count)) if weights is not None or count > at_a_time else count
    columns = (discrepancy._num_features(draws) or draws.num_draws) + dict(options).get("num_replicates", 0)
    together = sets_at_once(draws.num_draws * columns * draws.dtype.itemsize)
    function, arguments = (target.function, target.arguments) if isinstance(target, LogDensity) else (None, None)
    program = compiled(
        partial(_build, of_one, options, chains, together), of_one, function, discrepancy._function,
        variant=(options, chains, together),
    )  # fmt: skip
    given = keys, None if is_density else target, sets, weights
    arguments, discrepancy, given = beside(sets, (arguments, discrepancy, given))
    results = []
    for start in range(0, count, size):
        # The last call is filled up with sets that have been there before.
        chosen = np.minimum(np.arange(start, start + size), count - 1)
        part = given if size == count else jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], given)
        found = program(arguments, discrepancy, part)
        results.append(jax.tree.map(lambda leaf, start=start: leaf[: count - start], found))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)


def _build(
    of_one: Of,
    options: Any,
    chains: bool,
    together: int | None,
    logdensity: Callable[..., Any] | None,
    function: Callable[..., Any] | None,
) -> Callable[..., Any]:
    def called(*arguments: Any, **keywords: Any) -> Any:
        assert logdensity is not None
        return logdensity(*arguments, **keywords)

    def program(arguments: PyTree, discrepancy: Discrepancy, given: PyTree) -> Any:
        def once(each: PyTree) -> Any:
            key, scores, samples, weights = each
            target = scores if logdensity is None else Partial(called, *arguments[0], **arguments[1])
            return of_one(options, discrepancy, key, target, samples, weights, chains)

        return jax.lax.map(once, given, batch_size=together)

    return program


def _common_size(size: int) -> int:
    """At least this, and one of four sizes for each power of two: at most a quarter too many."""
    unit = 2 ** max(0, ceil(log2(size)) - 3)
    return ceil(size / unit) * unit


def _filled_up(sets: Sequence[PyTree], length: int) -> PyTree:
    """Sets along an axis of their own, the first draw of each repeated until there are enough."""

    def stack(*given: Any) -> Any:
        # On the host, but where values are being traced.
        on: Any = np if is_concrete(given) else jnp
        return on.stack([
            on.concatenate([leaf, on.broadcast_to(leaf[:1], (length - len(leaf), *leaf.shape[1:]))])
            for leaf in map(on.asarray, given)
        ])  # fmt: skip

    return jax.tree.map(stack, *sets)


def _weights(sizes: np.ndarray, length: int) -> Float[np.ndarray, "sets draws"]:
    """Equal weights of the draws that are there, zero for those that fill up."""
    return (np.arange(length)[None] < sizes[:, None]).astype(np.float32)


def _checked(results: Any, alone: Callable[[int], Any]) -> Any:
    """Say which sets have no result; `alone` computes that of one set, and says what is wrong with it."""
    if not is_concrete(results):
        return results
    if isinstance(results, GofResult):
        values = np.asarray(results.statistic)
        doubtful = ~(_rows(results.statistic).any(axis=1) | _rows(results.replicates).any(axis=1))
    else:
        values = np.asarray(results)
        doubtful = values <= np.sqrt(jnp.finfo(values.dtype).tiny)
    for k in np.flatnonzero(doubtful):
        try:
            alone(int(k))
        except FloatingPointError as error:
            raise FloatingPointError(f"Set {k} of {len(values)}: {error}") from error
    bad = np.flatnonzero(~np.isfinite(_rows(values)).all(axis=1))
    if len(bad):
        some = ", ".join(map(str, bad[:5])) + ("…" if len(bad) > 5 else "")
        warn_user(
            f"{len(bad)} of {len(values)} sets (number {some}) have no finite result and stand as NaN: samples, scores "
            "or their products are not finite there.",
            RuntimeWarning,
        )
    return results


def _rows(values: Any) -> np.ndarray:
    return np.asarray(values).reshape(len(values), -1)
