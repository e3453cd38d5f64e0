"""Replicates of several sample sets, of draws that were right and of other runs; those of equal shape together."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_static
from jaxtyping import Array, Bool, Float

from jaxpsd._choose.candidates import Candidate, shape_of
from jaxpsd._choose.worth import Worth
from jaxpsd._core.blocks import sets_at_once
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import Draws, split_draws
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given
from jaxpsd._core.sharding import move_to_devices_of
from jaxpsd._core.types import PyTree
from jaxpsd._discrepancies.plans import Part, Plan
from jaxpsd._gof.bootstrap import Wanted, bootstrap
from jaxpsd._gof.multipliers import Signs
from jaxpsd._gof.scheme import Scheme
from jaxpsd._gof.symptoms import Symptoms


class Replicates(NamedTuple):
    """V and its replicates, of draws that were right and, where wanted, of other runs; what was seen of the draws.

    A row for each part of the discrepancy that is ranked by, or one of them.
    """

    under_null: Float[Array, "*parts columns"]
    of_reruns: Float[Array, "*parts columns"] | None
    seen: Symptoms

    def of(self, part: int) -> "Replicates":
        """Those of one part."""
        return self._replace(
            under_null=self.under_null[part], of_reruns=None if self.of_reruns is None else self.of_reruns[part]
        )


@register_static
class _Sets(NamedTuple):
    """Of how many sets, one after the other, which statistics are wanted, and whether to replicate other runs."""

    num_sets: int
    wanted: Wanted
    reruns: bool


def replicate_all(
    candidates: Sequence[Candidate],
    schemes: Sequence[Scheme],
    worths: Sequence[Worth],
    plan: Plan,
    wanted: Wanted,
    reruns: bool,
) -> list[Replicates]:
    """Replicates of all sets, those of equal shape in one program."""
    found: dict[int, Replicates] = {}
    groups = defaultdict(list)
    for k, (candidate, scheme) in enumerate(zip(candidates, schemes, strict=True)):
        groups[shape_of(candidate.given.draws), scheme.method].append(k)
    for members in groups.values():
        given = [candidates[k].given for k in members]
        draws = Draws(_join(jnp.concatenate, (each.draws.positions for each in given)))
        scores = _join(jnp.concatenate, (each.target for each in given))
        signs = _join(jnp.stack, (schemes[k].multipliers for k in members))
        # Of draws that are all the same only the bias is left.
        all_noise = np.array([worths[k].moved and not worths[k].enough for k in members])
        sets = _Sets(len(members), wanted, reruns)
        together = run(_replicates_of_sets, Given(draws, scores), plan, signs, all_noise, sets, result="gathered")
        for place, k in enumerate(members):
            found[k] = jax.tree.map(lambda leaf, place=place: np.asarray(leaf)[place], together)
    return [found[k] for k in range(len(candidates))]


def _map_sets(fn: Callable[..., Any], data: Data, count: int, *others: PyTree) -> Any:
    """A function of the data of each set, and of others with an axis of sets; of many at once where there is room."""
    positions, scores = split_draws(data.rows, count)
    num_draws, dim = data.x.shape
    together = sets_at_once(num_draws // count * 16 * dim * data.x.dtype.itemsize)
    split = replace(data, positions=positions, scores=scores)
    return jax.lax.map(lambda each: fn(*each), (split, *others), batch_size=together)


def _replicates_of_sets(
    data: Data, plan: Plan, signs: Signs, all_noise: Bool[Array, " sets"], sets: _Sets
) -> Replicates:
    return _map_sets(lambda *each: _replicates(plan, sets, *each), data, sets.num_sets, signs, all_noise)


def chain_values(given: Given, plan: Plan, wanted: Wanted) -> Float[np.ndarray, "chains parts"]:
    """V of every chain by itself."""
    sets = _Sets(given.draws.num_chains, wanted, reruns=False)
    return np.asarray(run(_values_of_sets, given, plan, sets, result="gathered"), np.float64)


def _values_of_sets(data: Data, plan: Plan, sets: _Sets) -> Float[Array, "sets parts"]:
    def values(each: Data) -> Float[Array, " parts"]:
        if sets.wanted == Wanted():
            return plan.pair_sums(plan.prepare(each), diagonal=False).total[None]
        return plan.part_values(plan.prepare(each), sets.wanted.parts)

    return _map_sets(values, data, sets.num_sets)


def _replicates(plan: Plan, sets: _Sets, data: Data, signs: Signs, all_noise: Bool[Array, ""]) -> Replicates:
    under_null, seen = bootstrap(data, plan, signs, sets.wanted)
    if not sets.reruns:
        return Replicates(under_null, None, seen)

    def of_reruns(part: Part, values: Float[Array, " columns"]) -> Float[Array, " columns"]:
        v, noise = values[0], values[1:].mean()
        not_noise = jnp.where(all_noise, 0, jnp.sqrt(jnp.maximum(1 - noise / jnp.where(v > 0, v, 1), 0)))
        multipliers, variance = signs.about(not_noise, data.num_draws)
        (again,), _ = bootstrap(data, plan, multipliers, Wanted((part,)))
        differ = variance > 0
        return _filled(again / jnp.where(differ, variance, 1), differ)

    rows = zip(sets.wanted.parts, under_null, strict=True)
    return Replicates(under_null, jnp.stack([of_reruns(part, values) for part, values in rows]), seen)


def _filled(values: Float[Array, " columns"], usable: Bool[Array, " columns"]) -> Float[Array, " columns"]:
    """With the last usable value before it in the place of each that is not; the first is that of the draws."""
    places = jnp.where(usable, jnp.arange(len(values)), 0)
    # Before the first usable one, the last of all: in a circle.
    last = jax.lax.cummax(places)
    return values[jnp.where(last > 0, last, last[-1])].at[0].set(values[0])


@partial(compile_by_work, static_argnums=0)
def _joined(join: Callable[..., Array], parts: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: join(leaves), *parts)


def _join(join: Callable[..., Array], parts: Iterable[PyTree]) -> PyTree:
    """Parts joined leaf by leaf, where the first of them is."""
    parts = list(parts)
    return _joined(join, move_to_devices_of(parts[0], parts))
