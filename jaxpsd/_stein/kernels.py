"""Base kernels k(x, y) of kernel Stein discrepancies, and the Stein kernels that belong to them.

With s and u the scores at x and y, the Langevin Stein kernel of k is

    k₀(x, y) = ∇ₓ·∇ᵧk + ∇ₓk·u + ∇ᵧk·s + k s·u.

For a radial kernel k = φ(ρ), ρ = ‖x − y‖², it is −2dφ′ − 4ρφ″ − 2φ′ (x − y)·(s − u) + φ s·u, made of three inner
products. A kernel that is tilted, m(x) m(y) b(x, y), has m(x) m(y) times the Stein kernel of b with the scores
s + ∇log m(x) and u + ∇log m(y).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import register_dataclass, register_static
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxpsd._core.blocks import corresponding, einsum
from jaxpsd._core.checks import as_real, check_choice, check_positive, check_positive_integer, is_concrete
from jaxpsd._core.draws import Draws, Structure, one_position
from jaxpsd._core.functions import returning_number, trace_held
from jaxpsd._core.tracing import Traced
from jaxpsd._core.types import Block, Choice, PyTree, Scalar, Vector, Weights, static
from jaxpsd._stein.coordinates import Affine, mean_of
from jaxpsd._stein.operators import first_order
from jaxpsd._stein.pairs import Tile, check_length, median_distance, pairs_of


class BaseKernel(ABC):  # noqa: B024
    """What a kernel Stein discrepancy is made of: a kernel k(x, y), by its Stein kernel."""

    def stein(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        """k₀ between two blocks of draws, with scores s and u, once the kernel is fitted to the draws."""
        raise NotImplementedError(f"{type(self).__name__} has to be fitted to draws first.")

    def stein_diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        """k₀(x, x) of each draw of a block."""
        return corresponding(self.stein, x, s, x, s)

    def fitted_to(self, draws: Draws, weights: Weights, transform: Affine | None) -> "BaseKernel":
        """The kernel with everything chosen that was left to the draws, in the coordinates of the transform."""
        return self


# --- radial kernels ---------------------------------------------------------------------------------------


class _Radial(BaseKernel):
    """A kernel φ(‖x − y‖²)."""

    @property
    @abstractmethod
    def length(self) -> float | Scalar:
        """The distance over which the kernel changes."""

    @abstractmethod
    def profile(self, squared: Array) -> tuple[Array, Array, Array]:
        """φ, φ′ and φ″ at squared distances."""

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        return self.profile(((x - y) ** 2).sum())[0]

    def stein(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        pairs = pairs_of(x, s, y, u, self.length)
        phi, first, second = self.profile(pairs.squared)
        return phi * pairs.product - 2 * first * (x.shape[1] + pairs.aligned) - 4 * second * pairs.squared

    def stein_diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        phi, first, _ = self.profile(jnp.zeros((), x.dtype))
        return phi * (s**2).sum(axis=1) - 2 * x.shape[1] * first


@register_dataclass
@dataclass(frozen=True)
class IMQ(_Radial):
    """The inverse multiquadric kernel k(x, y) = (c² + ‖x − y‖²)^β.

    Its discrepancy detects that draws do not converge to the target, which that of a Gaussian kernel does not in
    three dimensions and more (Gorham and Mackey, 2017).

    c
        The length over which it changes.
    beta
        The exponent, between −1 and 0.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> jaxpsd.IMQ(c=2.0)(jnp.zeros(3), jnp.zeros(3))
    Array(0.5, dtype=float32)
    """

    c: float | Scalar = 1.0
    beta: float = static(default=-0.5)

    def __post_init__(self) -> None:
        check_positive(self.c, "c")
        if not isinstance(self.beta, float | np.floating) or not -1 < self.beta < 0:
            raise ValueError(f"`beta` must be a float between -1 and 0; got {self.beta!r}.")
        object.__setattr__(self, "beta", float(self.beta))

    @property
    def length(self) -> float | Scalar:
        return self.c

    def fitted_to(self, draws: Draws, weights: Weights, transform: Affine | None) -> "IMQ":
        return IMQ(check_length(self.c, "c", draws.dtype), self.beta)

    def profile(self, squared: Array) -> tuple[Array, Array, Array]:
        base = self.c**2 + squared
        if self.beta == -0.5:
            # The exponent of almost everyone, without logarithms.
            phi = lax.rsqrt(base)
            inverse = phi * phi
        else:
            phi, inverse = base**self.beta, 1 / base
        first = self.beta * phi * inverse
        return phi, first, (self.beta - 1) * first * inverse


@register_static
class _ByDraws(Choice):
    """What of a kernel is left to the draws; static, so that it may stand where numbers may."""

    MEDIAN, MEAN = "median", "mean"


@register_dataclass
@dataclass(frozen=True)
class Gaussian(_Radial):
    """The Gaussian kernel k(x, y) = exp(−‖x − y‖² / (2σ²)).

    bandwidth
        σ, or "median" for the median distance between draws (at most 1000 of them), a constant to `grad`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> print(f"{jaxpsd.Gaussian(bandwidth=1.0)(jnp.zeros(2), jnp.ones(2)):.3f}")
    0.368
    """

    bandwidth: Any = _ByDraws.MEDIAN

    def __post_init__(self) -> None:
        if isinstance(self.bandwidth, str):
            object.__setattr__(self, "bandwidth", _ByDraws(check_choice(self.bandwidth, ["median"], "bandwidth")))
        else:
            check_positive(self.bandwidth, "bandwidth")

    @property
    def length(self) -> float | Scalar:
        if isinstance(self.bandwidth, _ByDraws):
            raise ValueError("bandwidth='median' is settled by draws; give a number to use the kernel by itself.")
        return self.bandwidth

    def profile(self, squared: Array) -> tuple[Array, Array, Array]:
        inverse = 1 / self.length**2
        phi = jnp.exp(-0.5 * inverse * squared)
        first = -0.5 * inverse * phi
        return phi, first, -0.5 * inverse * first

    def fitted_to(self, draws: Draws, weights: Weights, transform: Affine | None) -> "Gaussian":
        if isinstance(self.bandwidth, _ByDraws):
            return Gaussian(median_distance(draws, transform))
        return Gaussian(check_length(self.bandwidth, "bandwidth", draws.dtype))


# --- the kernel that controls moments ---------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True, eq=False)
class MomentKernel(BaseKernel):
    """The kernel of Kanagawa, Barp, Gretton and Mackey, whose discrepancy controls moments up to an order q.

    With ‖v‖²_Σ = vᵀΣ⁻¹v it is k(x, y) = m(x) m(y) [(1 + ‖x − y‖²_Σ)^{−½} + κ(x, y)], with the weight
    m(x) = (1 + ‖x − x⋆‖²_Σ)^{(q−1)/2} and κ(x, y) = (1 + (x − x⋆)ᵀΣ⁻¹(y − x⋆)) / √((1 + ‖x − x⋆‖²_Σ)(1 + ‖y − x⋆‖²_Σ)).

    order
        q, the order of the moments.
    location
        x⋆, a point in the midst of the target; "mean" takes the mean of the draws.
    covariance
        Σ, a matrix (dim, dim); None for the identity.

    Examples
    --------
    >>> import jax
    >>> import jaxpsd
    >>> samples = jax.random.normal(jax.random.key(0), (500, 2))
    >>> ksd = jaxpsd.KSD(jaxpsd.MomentKernel(order=2))
    >>> bool(ksd(-samples, samples) < ksd(-1.5 * samples, 1.5 * samples))
    True
    """

    order: int = static(default=2)
    location: Any = _ByDraws.MEAN
    covariance: ArrayLike | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", check_positive_integer(self.order, "order"))
        if isinstance(self.location, str):
            object.__setattr__(self, "location", _ByDraws(check_choice(self.location, ["mean"], "location")))
        for name in ("location", "covariance"):
            if isinstance(value := getattr(self, name), list | tuple):
                object.__setattr__(self, name, as_real(value, name))

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        if isinstance(self.location, _ByDraws):
            raise ValueError("location='mean' is settled by draws; give a point to use the kernel by itself.")
        x, y = jnp.asarray(x), jnp.asarray(y)
        return self._around(self.location, x.size, x.dtype)(x, y)

    def fitted_to(self, draws: Draws, weights: Weights, transform: Affine | None) -> BaseKernel:
        is_left = isinstance(self.location, _ByDraws)
        location = mean_of(draws, weights, transform) if is_left else self.location
        return self._around(location, draws.dim, draws.dtype)

    def _around(self, location: ArrayLike, dim: int, dtype: np.dtype) -> "_Moments":
        location = jnp.asarray(as_real(location, "location"), dtype)
        if location.shape != (dim,):
            raise ValueError(f"`location` must have one entry for each of {dim} coordinates; got {location.shape}.")
        if is_concrete(location) and not np.isfinite(np.square(location)).all():
            raise ValueError(f"`location` must be finite, also when squared in {dtype}.")
        if self.covariance is None:
            return _Moments(location, None, self.order)
        covariance = as_real(self.covariance, "covariance")
        if covariance.shape != (dim, dim):
            raise ValueError(f"`covariance` must be ({dim}, {dim}); got {covariance.shape}.")
        if is_concrete(covariance):
            matrix = np.asarray(covariance)
            is_symmetric = np.isfinite(matrix).all() and np.allclose(matrix, matrix.T, rtol=1e-4)
            if not (is_symmetric and np.linalg.eigvalsh(matrix).min() > 0):
                raise ValueError("`covariance` must be finite, symmetric and positive definite.")
        root = jnp.linalg.cholesky(jnp.asarray(covariance, dtype))
        return _Moments(location, jnp.linalg.inv(root), self.order)


@register_dataclass
@dataclass(frozen=True, eq=False)
class _Moments(BaseKernel):
    """The moment kernel, fitted to draws: W with WᵀW = Σ⁻¹ is its whitening, None for the identity."""

    location: Float[Array, " dim"]
    whitening: Float[Array, "dim dim"] | None
    order: int = static()

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        x, y = (self._whitened(position[None] - self.location[None])[0] for position in (x, y))
        norms = (1 + (x**2).sum()) * (1 + (y**2).sum())
        kappa = (1 + (x * y).sum()) / jnp.sqrt(norms)
        return norms ** ((self.order - 1) / 2) * (lax.rsqrt(1 + ((x - y) ** 2).sum()) + kappa)

    def stein(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        # Draws as the kernel sees them: x̂ = W(x − x⋆) and N = 1 + ‖x̂‖².
        x, y = (self._whitened(positions - self.location[None]) for positions in (x, y))
        norm_x, norm_y = (1 + (positions**2).sum(axis=1, keepdims=True) for positions in (x, y))

        def tilted(part: Callable[..., Tile], power: int) -> Tile:
            """m(x) m(y) b₀ with m = N^{power/2} and the scores s + ∇log m."""
            tilted_s = s + power * self._unwhitened(x) / norm_x
            tilted_u = u + power * self._unwhitened(y) / norm_y
            return (norm_x * norm_y.T) ** (power / 2) * part(x, tilted_s, y, tilted_u)

        # The summands are tilted by m and by m / √N, powers of N.
        return tilted(self._radial, self.order - 1) + tilted(self._linear, self.order - 2)

    def _radial(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        """k₀ of (1 + ‖x̂ − ŷ‖²)^{−½}."""
        pairs = pairs_of(x, self._whitened(s), y, self._whitened(u), 1.0)
        phi, first, second = IMQ().profile(pairs.squared)
        squared, product = pairs.squared, pairs.product
        if self.whitening is not None:
            # ‖Σ⁻¹(x − y)‖² and s·u are not those of whitened draws.
            back = self._unwhitened(x), s, self._unwhitened(y), u
            squared, _, product = pairs_of(*back, jnp.abs(self.whitening).max())
        return phi * product - 2 * first * (self._trace(x) + pairs.aligned) - 4 * second * squared

    def _linear(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        """k₀ of 1 + x̂·ŷ."""
        own = (x * self._whitened(s)).sum(axis=1)[:, None] + (y * self._whitened(u)).sum(axis=1)[None]
        return self._trace(x) + own + (1 + einsum("ik,jk->ij", x, y)) * einsum("ik,jk->ij", s, u)

    def _whitened(self, vectors: Block) -> Block:
        return vectors if self.whitening is None else einsum("ik,jk->ij", vectors, self.whitening)

    def _unwhitened(self, vectors: Block) -> Block:
        """Wᵀ times each vector, as gradients come back."""
        return vectors if self.whitening is None else einsum("ik,kj->ij", vectors, self.whitening)

    def _trace(self, x: Block) -> int | Scalar:
        """Trace of Σ⁻¹."""
        return x.shape[1] if self.whitening is None else (self.whitening**2).sum()


# --- kernels of the user's --------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class UserKernel(BaseKernel):
    """A kernel that is any function of two positions."""

    function: Callable[[PyTree, PyTree], Any] = static()

    def __call__(self, x: PyTree, y: PyTree) -> Scalar:
        return self.function(x, y)

    def traced(self, draws: Draws) -> Traced:
        """The function, traced for two positions like those of the draws."""
        one = one_position(draws.positions)
        return trace_held(self.function, returning_number, "kernel", one, one)

    def fitted_to(self, draws: Draws, weights: Weights, transform: Affine | None) -> BaseKernel:
        return _OperatedKernel(self.traced(draws), draws.structure)


@register_dataclass
@dataclass(frozen=True)
class _OperatedKernel(BaseKernel):
    """The Stein kernel of any function, by automatic differentiation."""

    function: Traced
    structure: Structure = static()

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        return self.function(self.structure.unravel(x), self.structure.unravel(y)).astype(x.dtype)

    def stein(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        return for_all_pairs(self._of_pair, (x, s), (y, u))

    def _of_pair(self, x: Vector, s: Vector, y: Vector, u: Vector) -> Scalar:
        """The Stein operator in x, applied to what the operator in y makes of k: ∇ᵧk + k u."""

        def field(x: Vector) -> Vector:
            value, gradient = jax.value_and_grad(self, argnums=1)(x, y)
            return gradient + value * u

        return first_order(field, x, s)


def for_all_pairs(fn: Callable[..., Scalar], left: tuple[Block, Block], right: tuple[Block, Block]) -> Tile:
    """A function of two draws and their scores, for all pairs of two blocks."""
    return jax.vmap(lambda x, s: jax.vmap(lambda y, u: fn(x, s, y, u))(*right))(*left)
