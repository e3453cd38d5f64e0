"""Many sample sets at once: one program for all, in bounded memory.

Sets of different sizes are filled up to a few common ones with draws of weight zero, which change nothing, so that
sizes not met before seldom mean compiling again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.blocks import sets_at_once
from jaxpsd._core.checks import as_real, check_key, check_same_shapes, check_samples, is_concrete, shapes_of
from jaxpsd._core.doubts import Doubt, warn_of
from jaxpsd._core.filling import common_size
from jaxpsd._core.scores import Score, check_target
from jaxpsd._core.sharding import move_to_devices_of
from jaxpsd._core.tracing import Traced
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
        The discrepancy of each set, √V where it has one; NaN, with a warning, where samples or scores are not finite.

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
    return _over_sets(_Task(chains), discrepancy, None, target, sets)


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
        As in `gof_test`: one of its bootstraps and, for dependent draws, its parameter. Dependence is not measured,
        and only sets without a finite result are warned of.

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
    options = {"method": method, "num_replicates": num_replicates, "alpha": alpha, "orders": orders}
    options |= {"flip_probability": flip_probability, "block_length": block_length}
    result = _over_sets(_Task(chains, tuple(options.items())), discrepancy, rng_key, target, sets)
    if not isinstance(sets, list) or method in UNBIASED:
        return result
    # Draws of weight zero have signs too, but do not count.
    sizes = [len(jax.tree.leaves(each)[0]) for each in sets]
    floors = [max(1 / (1 + num_replicates), floor_of(method, settings.parameter, size, 1)) for size in sizes]
    return replace(result, p_value_floor=jnp.asarray(floors))


class _Task(NamedTuple):
    """What to compute for every set: its discrepancy, or a test with these options of `gof_test`."""

    chains: bool
    test_options: tuple[tuple[str, Any], ...] = ()

    def result_of(
        self, discrepancy: Discrepancy, key: PRNGKeyArray | None, target: Target, samples: PyTree, weights: Any
    ) -> Array | GofResult:
        """For one set."""
        if key is None:
            return discrepancy(target, samples, weights, chains=self.chains)
        options = dict(self.test_options)
        return gof_test(key, discrepancy, target, samples, weights=weights, chains=self.chains, **options)


def _over_sets(
    task: _Task, discrepancy: Discrepancy, rng_key: PRNGKeyArray | None, target: Target, sets: PyTree
) -> Any:
    is_list = isinstance(sets, list)
    if not is_list:
        sets = jax.tree.map(lambda leaf: as_real(leaf, "sets"), sets)
    count = _check_list(task, target, sets) if is_list else _check_stacked(sets)
    keys = None if rng_key is None else jax.random.split(rng_key, count)
    if is_list:
        results = _unequal_sets(task, discrepancy, keys, target, sets)
    else:
        results = _equal_sets(task, discrepancy, keys, target, sets, None)

    def alone(k: int) -> Any:
        """The result of one set by itself."""
        take = (lambda of: of[k]) if is_list else (lambda of: jax.tree.map(lambda leaf: leaf[k], of))
        own_target = target if callable(target) else take(target)
        return task.result_of(discrepancy, None if keys is None else keys[k], own_target, take(sets), None)

    return _check_results(results, alone)


def _check_list(task: _Task, target: Target, sets: list[PyTree]) -> int:
    if task.chains:
        raise ValueError("Sets of a list have no axis of chains; stack those of equal shape to an array.")
    targets = target if isinstance(target, list) else [target] * len(sets)
    if not sets or len(targets) != len(sets):
        raise ValueError(
            f"`sets` must be a list of sample sets, and scores another; got {len(sets)} and {len(targets)}."
        )
    for k, (each, scores) in enumerate(zip(sets, targets, strict=True)):
        check_samples(each, chains=False, name=f"sets[{k}]")
        if isinstance(target, list):
            check_same_shapes(scores, each, f"Scores must have the structure and shape of their set, number {k}")
    kinds = {(jax.tree.structure(each), *(np.shape(leaf)[1:] for leaf in jax.tree.leaves(each))) for each in sets}
    if len(kinds) > 1:
        found = f"{[shapes_of(each) for each in sets]!s:.100}"
        raise ValueError(f"The draws of all sets must have the same structure and shape; got {found}.")
    return len(sets)


def _check_stacked(sets: PyTree) -> int:
    leaves = jax.tree.leaves(sets)
    shapes = {leaf.shape[:1] for leaf in leaves}
    if len(shapes) != 1 or shapes == {()}:
        found = f"{[leaf.shape for leaf in leaves]!s:.100}"
        raise ValueError(f"`sets` must have an axis of sets that all leaves share; got shapes {found}.")
    ((count,),) = shapes
    if count == 0:
        raise ValueError("`sets` holds no sets.")
    if hasattr(sets, "ndim") and sets.ndim == 2:
        raise ValueError(f"`sets` must be (sets, draws, dim); got shape {sets.shape}. A single set goes into a list.")
    return count


def _unequal_sets(
    task: _Task, discrepancy: Discrepancy, keys: PRNGKeyArray | None, target: Target, sets: list[PyTree]
) -> Any:
    """Sets of a list, those of about one size together."""
    sizes = np.array([len(jax.tree.leaves(each)[0]) for each in sets])
    # The U-statistic has no weights, such as zero.
    has_weights = dict(task.test_options).get("method") not in UNBIASED
    may_fill = has_weights and not discrepancy._chooses_by_all_draws
    lengths = np.array([common_size(size) for size in sizes]) if may_fill else sizes
    results, places = [], []
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        own_keys = None if keys is None else keys[members]
        scores = _filled_up([target[k] for k in members], length) if isinstance(target, list) else target
        filled = _filled_up([sets[k] for k in members], length)
        # Equal weights of the draws that are there, zero for those that fill up.
        weights = (np.arange(length)[None] < sizes[members, None]).astype(np.float32) if may_fill else None
        results.append(_equal_sets(task, discrepancy, own_keys, scores, filled, weights))
        places.append(members)
    order = np.argsort(np.concatenate(places))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], *results)


def _equal_sets(
    task: _Task,
    discrepancy: Discrepancy,
    keys: PRNGKeyArray | None,
    target: Target,
    sets: PyTree,
    weights: Float[np.ndarray, "sets draws"] | None,
) -> Any:
    """Sets of one shape, so many of them in a call that memory does not grow with their number."""
    one = jax.tree.map(lambda leaf: leaf[0], sets)
    draws = check_samples(one, chains=task.chains, name="sets[0]")
    score = check_target(target, one, draws) if callable(target) else None
    if score is None:
        check_same_shapes(target, sets, "Scores must have the structure and shape of `sets`")
    count = len(jax.tree.leaves(sets)[0])
    at_a_time = max(1, _CALL_BYTES // (draws.num_draws * draws.dim * draws.dtype.itemsize))
    size = min(at_a_time, common_size(count)) if weights is not None or count > at_a_time else count
    num_replicates = dict(task.test_options).get("num_replicates", 0)
    columns = (discrepancy._num_features(draws) or draws.num_draws) + num_replicates
    together = sets_at_once(draws.num_draws * columns * draws.dtype.itemsize)
    given = keys, target if score is None else None, sets, weights
    shared = discrepancy, discrepancy._traced_function(draws), score
    shared, given = move_to_devices_of(sets, (shared, given))
    results = []
    for start in range(0, count, size):
        # The last call is filled up with sets that have been there before.
        chosen = np.minimum(np.arange(start, start + size), count - 1)
        part = given if size == count else jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], given)
        found = _results_of(task, together, *shared, part)
        results.append(jax.tree.map(lambda leaf, start=start: leaf[: count - start], found))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)


@partial(jax.jit, static_argnums=(0, 1))
def _results_of(
    task: _Task,
    together: int | None,
    discrepancy: Discrepancy,
    function: Traced | None,
    score: Score | None,
    given: Any,
) -> Any:
    """The results of all sets, whose log-density and whose discrepancy's own function are traced already."""
    if function is not None:
        discrepancy = discrepancy._with_function(function)

    def once(each: PyTree) -> Any:
        key, scores, samples, weights = each
        return task.result_of(discrepancy, key, scores if score is None else score, samples, weights)

    return jax.lax.map(once, given, batch_size=together)


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


def _check_results(results: Any, alone: Callable[[int], Any]) -> Any:
    """Say which sets have no result; `alone` computes that of one set, and says what is wrong with it."""
    if not is_concrete(results):
        return results
    if isinstance(results, GofResult):
        values = _rows(results.statistic)
        doubtful = ~(values.any(axis=1) | _rows(results.replicates).any(axis=1))
    else:
        values = _rows(results)
        doubtful = values[:, 0] <= np.sqrt(jnp.finfo(values.dtype).tiny)
    for k in np.flatnonzero(doubtful):
        try:
            alone(int(k))
        except FloatingPointError as error:
            raise FloatingPointError(f"Set {k} of {len(values)}: {error}") from error
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        some = ", ".join(map(str, bad[:5])) + ("…" if len(bad) > 5 else "")
        message = (
            f"{len(bad)} of {len(values)} sets (number {some}) have no finite result and stand as NaN: samples, scores "
            "or their products are not finite there."
        )
        warn_of([Doubt(RuntimeWarning, message)])
    return results


def _rows(values: Any) -> np.ndarray:
    return np.asarray(values).reshape(len(values), -1)
