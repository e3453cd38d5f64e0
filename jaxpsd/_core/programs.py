"""What programs see, the data, and how they run: compiled once for each shape, on one device or on many."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import jax
from jax.core import ShapedArray
from jax.extend import core
from jax.sharding import NamedSharding
from jax.tree_util import register_dataclass
from jaxtyping import Array, Bool

from jaxpsd._core.blocks import block_length, map_over_blocks, num_draws
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.draws import one_position, ravel
from jaxpsd._core.sharding import CUT, WHOLE, Shards, as_local, move_to_devices_of, shards_of
from jaxpsd._core.types import Block, PyTree, Scalar, Weights, static

if TYPE_CHECKING:
    from jaxpsd._core.scores import Given, Score

Scorer = Callable[[PyTree], tuple[Block, Block]]
"""Rows of draws to coordinates x and scores s = ∇log p(x), both (block, dim)."""

# Scoring a block materialises a few arrays of the largest intermediate's size at a time.
_LIVE_INTERMEDIATES = 4
_SCORING_BYTES = 2**26

Result = Literal["sums", "draws", "gathered"]


def run(
    program: Callable[..., Any], given: "Given", *args: PyTree, result: Result = "sums", seldom: bool = False
) -> Any:
    """Call `program(data, *args)`, compiled, with the data of what is given.

    Where draws are spread over devices, every device runs it on the draws that it has, and on all of `args`. What it
    returns is the same for all devices ("sums"), or has an axis of draws and stays where they are ("draws"). A program
    that has to see all draws at once ("gathered") leaves it to the compiler what travels. One that runs `seldom` may
    take longer for being compiled sooner.
    """
    shards = shards_of(given.draws.positions)
    data, args = move_to_devices_of(given.draws.positions, (given.data, args))
    value = compiled(program, shards, result, seldom)(data, *args)
    return value if shards is None or result == "draws" else as_local(value)


@lru_cache(maxsize=1024)
def compiled(
    program: Callable[..., Any], shards: Shards | None, result: Result, seldom: bool = False
) -> Callable[..., Any]:
    """The program as devices run it."""
    compile_program = partial(compile_by_work, seldom=seldom)
    if shards is None:
        return compile_program(program)
    if result == "gathered":
        return compile_program(program, out_shardings=NamedSharding(shards.mesh, WHOLE))
    specs = (SPECS, WHOLE), CUT if result == "draws" else WHOLE
    on_shares = shards.on_shares(lambda data, args: program(data, *args), *specs)
    return compile_program(lambda data, *args: on_shares(data, args))


@register_dataclass
@dataclass(frozen=True)
class Data:
    """Draws as programs see them: of all, or of the share that a device has.

    positions, scores, weights
        Arrays with an axis of draws; scores and weights where there are some.
    score
        How to score positions, where scores are not there.
    transform
        Coordinates in which to score, where not in those of the positions; it has a `mapping` of positions and scores.
    shows_positions
        Whether a position that is not finite has to show in its score, for features that may not look at positions.
    count
        How many draws there are without those that chains are filled up with, which have weight zero; None if none is.
    """

    positions: PyTree
    scores: PyTree | None
    weights: Weights
    score: "Score | None"
    transform: Any = None
    shows_positions: bool = static(default=False)
    count: Scalar | None = None

    @property
    def rows(self) -> PyTree:
        """What is cut into blocks of draws to be scored."""
        return self.positions, self.scores

    @property
    def num_draws(self) -> int:
        """How many draws there are, on all devices."""
        return num_draws(self.positions)

    @property
    def num_real(self) -> int | Scalar:
        """The same without those that chains are filled up with."""
        return self.num_draws if self.count is None else self.count

    @property
    def is_real(self) -> Bool[Array, " draws"] | None:
        """Which draws are not there to fill up; None if all."""
        return None if self.count is None or self.weights is None else self.weights > 0

    @property
    def x(self) -> jax.ShapeDtypeStruct:
        """What the coordinates of all draws here look like."""
        return jax.eval_shape(ravel, self.positions)

    def first_row(self) -> PyTree:
        """Of the first draw here."""
        return jax.tree.map(lambda leaf: leaf[:1], self.rows)

    def scorer(self) -> Scorer:
        """Prepare to score rows of draws."""
        scores_of = None if self.score is None else block_scores(self.score, self.positions)
        mapping = None if self.transform is None else self.transform.mapping()

        def score_rows(rows: PyTree) -> tuple[Block, Block]:
            positions, scores = rows
            x, s = ravel(positions), ravel(scores if scores_of is None else scores_of(positions))
            if mapping is not None:
                x, s = mapping(x, s)
            return x, s + 0 * x if self.shows_positions else s

        return score_rows

    def scored(self) -> "Data":
        """The same with coordinates and scores of all draws, for what needs them more than once."""
        (n, dim), itemsize = self.x.shape, self.x.dtype.itemsize
        is_computed = self.score is not None or self.transform is not None or self.shows_positions
        length = block_length(n, 4 * dim * itemsize) if is_computed else n
        x, s = map_over_blocks(self.scorer(), self.rows, length)
        return Data(x, s, self.weights, None, count=self.count)


SPECS = Data(CUT, CUT, CUT, WHOLE, WHOLE)  # pyright: ignore[reportArgumentType]
"""What of the data is cut along the draws, and what every device has whole."""


def block_scores(score: "Score", positions: PyTree) -> Callable[[PyTree], PyTree]:
    """Scores of many positions, a block at a time; the score is traced once, here."""
    try:
        one = jax.make_jaxpr(score)(one_position(positions))
    except ValueError as error:
        if "everse-mode" in str(error):
            error.add_note("jaxpsd: pass scores from `jax.jacfwd` instead of the log-density.")
        raise
    flat_score, bytes_per_draw = jax.vmap(core.jaxpr_as_fun(one)), working_bytes(one.jaxpr)

    def scores_of(positions: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(positions)
        length = block_length(leaves[0].shape[0], bytes_per_draw, _SCORING_BYTES)
        return jax.tree.unflatten(treedef, map_over_blocks(lambda block: flat_score(*block), leaves, length))

    return scores_of


def working_bytes(jaxpr: core.Jaxpr) -> int:
    """Memory that a program for one draw needs while it runs: a few times its largest intermediate."""
    results = (variable.aval for equation in jaxpr.eqns for variable in equation.outvars)
    own = (aval.size * aval.dtype.itemsize for aval in results if isinstance(aval, ShapedArray))
    options = jax.tree.leaves([list(equation.params.values()) for equation in jaxpr.eqns])
    # The bodies of loops and branches, some of them with the constants that they refer to.
    inner = (getattr(option, "jaxpr", option) for option in options)
    bodies = (working_bytes(body) for body in inner if isinstance(body, core.Jaxpr))
    return max((_LIVE_INTERMEDIATES * max((1, *own)), *bodies))
