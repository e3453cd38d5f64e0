"""Kernel Stein discrepancies (paper, section 2.2): sums of a Stein kernel over all pairs of draws."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Self

from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from jaxpsd._core.draws import Draws
from jaxpsd._core.types import Block
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._discrepancies.plans import Form, score_features, tile_side
from jaxpsd._stein.coordinates import Affine, Transform, check_transform, resolve
from jaxpsd._stein.kernels import IMQ, BaseKernel, Gaussian, UserKernel
from jaxpsd._stein.pairs import Tile


class PairwiseDiscrepancy(Discrepancy):
    """What discrepancies share that have a Stein kernel and no features."""

    def _num_features(self, draws: Draws) -> None:
        return None

    @property
    def _remedy(self) -> str:
        return (
            "The kernel or its derivatives are not finite for a pair of draws, or too large to be squared: use "
            "`transform='standardize'`, or float64 (`jax.config.update('jax_enable_x64', True)`). A kernel must be "
            "positive definite, and twice differentiable also where x = y."
        )


@partial(register_dataclass, data_fields=["kernel", "transform"], meta_fields=["block_size"])
@dataclass(frozen=True)
class KSD(PairwiseDiscrepancy):
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

    kernel: Any = field(default_factory=IMQ)
    _: KW_ONLY
    transform: Transform | str = None
    block_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", as_kernel(self.kernel))
        self._check_common()

    @property
    def _function(self) -> Callable[..., Any] | None:
        return self.kernel.function if isinstance(self.kernel, UserKernel) else None

    @property
    def _chooses_by_all_draws(self) -> bool:
        return isinstance(self.kernel, Gaussian) and isinstance(self.kernel.bandwidth, str)

    def _form(self, draws: Draws, weights: Float[Array, " draws"] | None) -> "SteinKernelForm":
        if not isinstance(self.kernel, BaseKernel):
            raise TypeError(f"`kernel` must be IMQ(), another kernel or a function k(x, y); got {self.kernel!r}.")
        transform = resolve(check_transform(self.transform), draws, weights)
        return SteinKernelForm(transform, self.kernel.settled(draws, weights, transform), self.block_size)


def as_kernel(kernel: Any) -> Any:
    """A base kernel, or a function wrapped as one."""
    if isinstance(kernel, type):
        raise TypeError(f"`kernel` must be a kernel, not its class: {kernel.__name__}().")
    # What is not a function either is left to JAX, which puts all kinds of things in the place of a pytree's parts.
    return UserKernel(kernel) if callable(kernel) and not isinstance(kernel, BaseKernel) else kernel


@partial(register_dataclass, data_fields=["transform", "base"], meta_fields=["block_size"])
@dataclass(frozen=True)
class SteinKernelForm(Form):
    """The Stein kernel of a settled base kernel, summed over tiles of pairs."""

    transform: Affine | None
    base: BaseKernel
    block_size: int | None

    @property
    def is_pairwise(self) -> bool:
        return True

    @property
    def depends_on_scales(self) -> bool:
        return True

    def bound_to(self, function: Callable[..., Any]) -> Self:
        return replace(self, base=self.base.bound_to(function))

    def kernel(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        return self.base.stein(x, s, y, u)

    def diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        return self.base.stein_diagonal(x, s)

    def leading_features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        return score_features(s)

    def tile_length(self, num_draws: int, dim: int, itemsize: int) -> int:
        return tile_side(num_draws, dim, itemsize, matrices=10, given=self.block_size)
