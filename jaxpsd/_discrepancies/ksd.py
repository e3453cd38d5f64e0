"""Kernel Stein discrepancies (paper, section 2.2): sums of a Stein kernel over all pairs of draws, or over some.

The linear-time statistic is the mean over successive pairs of Liu, Lee and Jordan (2016).
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._core.blocks import block_length, corresponding, sum_draws, sum_over_blocks, weighted
from jaxpsd._core.draws import Draws, join_draws, split_draws
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.tracing import Traced
from jaxpsd._core.types import Block, PyTree, Scalar, Target, Weights, static
from jaxpsd._discrepancies.base import Discrepancy, QuadraticDiscrepancy
from jaxpsd._discrepancies.plans import PairPlan, Plan, safe_root
from jaxpsd._stein.coordinates import Affine, Transform, resolve
from jaxpsd._stein.kernels import IMQ, BaseKernel, Gaussian, UserKernel
from jaxpsd._stein.pairs import Tile

PAIRWISE_REMEDY = (
    "The kernel or its derivatives are not finite for a pair of draws, or too large to be squared: use "
    "`transform='standardize'`, or float64 (`jax.config.update('jax_enable_x64', True)`). A kernel must be "
    "positive definite, and twice differentiable also where x = y."
)


@dataclass(frozen=True)
class _OfKernel(Discrepancy):
    """What the discrepancies of a base kernel share."""

    kernel: Any = field(default_factory=IMQ)
    _: KW_ONLY
    transform: Transform | str = None
    block_size: int | None = static(default=None)

    _remedy = PAIRWISE_REMEDY

    def __post_init__(self) -> None:
        kernel = self.kernel
        if isinstance(kernel, type):
            raise TypeError(f"`kernel` must be a kernel, not its class: {kernel.__name__}().")
        # What is not a function either is left to JAX, which puts all kinds of things in the place of a pytree's parts.
        if callable(kernel) and not isinstance(kernel, BaseKernel):
            object.__setattr__(self, "kernel", UserKernel(kernel))
        self._check_common()

    def _plan(self, given: Given, num_replicates: int | None = None, num_statistics: int = 1) -> Plan:
        if not isinstance(self.kernel, BaseKernel):
            raise TypeError(f"`kernel` must be IMQ(), another kernel or a function k(x, y); got {self.kernel!r:.100}.")
        transform = resolve(self.transform, given)
        return SteinKernelPlan(transform, self.kernel.fitted_to(given.draws, given.weights, transform), self.block_size)

    def _traced_function(self, draws: Draws) -> Traced | None:
        return self.kernel.traced(draws) if isinstance(self.kernel, UserKernel) else None

    def _with_function(self, function: Callable[..., Any]) -> Self:
        return replace(self, kernel=UserKernel(function))


@register_dataclass
@dataclass(frozen=True)
class KSD(_OfKernel, QuadraticDiscrepancy):
    """The kernel Stein discrepancy of a base kernel k.

    Its square is the mean of k₀(x, y) = ∇ₓ·∇ᵧk + ∇ₓk·u + ∇ᵧk·s + k s·u over all pairs of draws, with s and u the
    scores at x and y. The cost is quadratic in the number of draws; memory is not.

    kernel
        `IMQ()`, `Gaussian()`, `MomentKernel()`, or any function k(x, y) of two positions that is positive definite
        and twice differentiable, also where x = y.
    transform
        Coordinates in which to compute: None for those of the draws, "center", "standardize" or "whiten"
        by the draws themselves, or an `Affine`.
    block_size
        How many draws to have on each side of a tile of pairs; None chooses by memory.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> samples = jax.random.normal(jax.random.key(0), (1000, 3))
    >>> ksd = jaxpsd.KSD(jaxpsd.IMQ())
    >>> bool(ksd(logdensity, samples) < ksd(logdensity, 1.3 * samples))
    True

    Any kernel will do; its derivatives come from JAX.

    >>> ksd = jaxpsd.KSD(lambda x, y: 1 / (1 + jnp.sum((x - y) ** 2)))
    >>> bool(ksd(logdensity, samples[:100]) < 1)
    True
    """

    @property
    def _chooses_by_all_draws(self) -> bool:
        return isinstance(self.kernel, Gaussian) and isinstance(self.kernel.bandwidth, str)


@register_dataclass
@dataclass(frozen=True)
class LinearKSD(_OfKernel):
    """The mean of k₀(x₁, x₂), k₀(x₃, x₄), …: linear in the number of draws, and noisier than the `KSD`.

    The terms are independent if the draws are, so that their mean is tested by its standard error (a z-test). On
    dependent draws that test is refused.

    kernel, transform, block_size
        As for `KSD`.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> samples = 1.5 * jax.random.normal(jax.random.key(0), (10_000, 2))
    >>> result = jaxpsd.gof_test(jax.random.key(1), jaxpsd.LinearKSD(), logdensity, samples)
    >>> bool(result.reject), result.method
    (True, 'asymptotic')
    """

    @property
    def _chooses_by_all_draws(self) -> bool:
        return True

    def __call__(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        """Root of the mean over successive pairs; zero where that is negative, as it may be. Equal weights only."""
        given = check_input(target, samples, weights, chains)
        plan = self._plan(given)
        return self._returned(safe_root(self._mean_and_error(given, plan)[0]), given, plan, "The statistic")

    def u_statistic(self, target: Target, samples: PyTree, *, chains: bool | None = None) -> Scalar:
        """Squared discrepancy without bias, the mean over successive pairs. Parameters as in a call."""
        given = check_input(target, samples, None, chains)
        plan = self._plan(given)
        return self._returned(self._mean_and_error(given, plan)[0], given, plan, "The statistic")

    def _value(self, given: Given) -> Scalar:
        return safe_root(self._mean_and_error(given, self._plan(given))[0])

    def _mean_and_error(self, given: Given, plan: Plan) -> tuple[Scalar, Scalar]:
        """The mean over successive pairs, and its standard error."""
        if given.weights is not None:
            raise ValueError("LinearKSD has no weights; use KSD.")
        if given.draws.num_draws < 2:
            raise ValueError("LinearKSD is a mean over pairs of draws; got a single draw.")
        return run(_mean_over_pairs, given, plan, result="gathered")


@register_dataclass
@dataclass(frozen=True)
class SteinKernelPlan(PairPlan):
    """The Stein kernel of a base kernel that is fitted to the draws."""

    transform: Affine | None
    base: BaseKernel
    block_size: int | None = static()

    def kernel(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        return self.base.stein(x, s, y, u)

    def diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        return self.base.stein_diagonal(x, s)

    @property
    def matrices(self) -> int:
        return 10


def _mean_over_pairs(data: Data, plan: SteinKernelPlan) -> tuple[Scalar, Scalar]:
    """Mean of Δ(x₁, x₂), Δ(x₃, x₄), …, a last draw without a partner left out; and its standard error."""
    scorer, count = plan.prepare(data).scorer(), data.num_draws // 2
    pairs = split_draws(jax.tree.map(lambda leaf: leaf[: 2 * count], data.rows), count)

    def on_block(block: PyTree, fresh: Weights) -> tuple[tuple[Array, Array], None]:
        x, s = scorer(join_draws(block))
        terms = corresponding(plan.kernel, x[::2], s[::2], x[1::2], s[1::2])
        return (sum_draws(weighted(terms, fresh)), sum_draws(weighted(terms**2, fresh))), None

    length = block_length(count, 32 * data.x.shape[1] * data.x.dtype.itemsize, given=plan.block_size)
    (total, squares), _ = sum_over_blocks(on_block, pairs, None, length)
    mean = total / count
    variance = jnp.maximum(squares - count * mean**2, 0) / max(count - 1, 1)
    return mean, jnp.sqrt(variance / count)
