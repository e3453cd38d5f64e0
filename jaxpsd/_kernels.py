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
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import register_dataclass, register_static
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jaxpsd._blocks import corresponding, einsum
from jaxpsd._checks import check_choice, check_positive, check_positive_integer, is_concrete, with_note
from jaxpsd._draws import Draws, Structure, ravel
from jaxpsd._operator import stein_operator
from jaxpsd._score import NeedsFunction
from jaxpsd._transform import Affine, in_coordinates, mean_of
from jaxpsd._types import Block, PyTree, Scalar, Vector

Tile = Float[Array, "rows columns"]

# So many draws tell the median distance well enough, at a bounded cost.
_MEDIAN_DRAWS = 1000

# Squared distances from a tile's centre, in units of the kernel's own length, up to which matrix products lose no
# more than three digits of the distance between two draws.
_SAFE = 2.0**10


class BaseKernel(ABC):  # noqa: B024
    """What a kernel Stein discrepancy is made of: a kernel k(x, y), by its Stein kernel."""

    def stein(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        """k₀ between two blocks of draws, with scores s and u, once the kernel is settled."""
        raise NotImplementedError(f"{type(self).__name__} has to be settled first.")

    def stein_diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        """k₀(x, x) of each draw of a block."""
        return corresponding(self.stein, x, s, x, s)

    def settled(self, draws: Draws, weights: Float[Array, " draws"] | None, transform: Affine | None) -> "BaseKernel":
        """The kernel with everything chosen that was left to the draws, in the coordinates of the transform."""
        return self

    def bound_to(self, function: Callable[..., Any]) -> Self:
        """The kernel with the user's function that it is made of."""
        raise NotImplementedError(f"{type(self).__name__} needs no function.")


# --- pairs of draws ---------------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """What radial Stein kernels need to know of each pair of draws.

    squared
        ‖x − y‖².
    aligned
        (x − y)·(s − u).
    product
        s·u.
    """

    squared: Tile
    aligned: Tile
    product: Tile


def pairs_of(x: Block, s: Block, y: Block, u: Block, length: float | Scalar) -> Pairs:
    """All pairs of two blocks, by matrix products where those keep the digits that a kernel of this length sees.

    Products lose digits where two draws are much closer to each other than to the origin. The centre of the block is
    therefore made the origin, which is enough unless draws spread over many lengths of the kernel.
    """
    centre = lax.stop_gradient(x[:1] + (x - x[:1]).mean(axis=0, keepdims=True))
    x, y = x - centre, y - centre
    farthest = jnp.maximum((x**2).sum(axis=1).max(), (y**2).sum(axis=1).max())
    safe = _in_every_set(lax.stop_gradient(farthest <= _SAFE * length**2))
    return lax.cond(safe, _by_products, _by_differences, x, s, y, u)


def _by_products(x: Block, s: Block, y: Block, u: Block) -> Pairs:
    # What belongs to one draw alone goes into the products as well, which costs less than adding it to each pair:
    # ‖x − y‖² = −2x·y + ‖x‖² + ‖y‖², and (x − y)·(s − u) = −x·u − s·y + x·s + y·u.
    def with_own(*parts: Block, own: Float[Array, "block 1"], first: bool) -> Block:
        one = jnp.ones_like(own)
        return jnp.concatenate([*parts, *((own, one) if first else (one, own))], axis=1)

    def total(products: Block) -> Float[Array, "block 1"]:
        return products.sum(axis=1, keepdims=True)

    squared = einsum(
        "ik,jk->ij", with_own(-2 * x, own=total(x**2), first=True), with_own(y, own=total(y**2), first=False)
    )
    aligned = einsum(
        "ik,jk->ij", with_own(-x, -s, own=total(x * s), first=True), with_own(u, y, own=total(y * u), first=False)
    )
    return Pairs(jnp.maximum(squared, 0), aligned, einsum("ik,jk->ij", s, u))


def _by_differences(x: Block, s: Block, y: Block, u: Block) -> Pairs:
    def add(sums: tuple[Tile, Tile], coordinate: tuple[Array, Array, Array, Array]) -> tuple[tuple[Tile, Tile], None]:
        x, s, y, u = coordinate
        apart = x[:, None] - y[None]
        return (sums[0] + apart**2, sums[1] + apart * (s[:, None] - u[None])), None

    zeros = jnp.zeros((len(x), len(y)), x.dtype)
    (squared, aligned), _ = lax.scan(add, (zeros, zeros), (x.T, s.T, y.T, u.T))
    return Pairs(squared, aligned, einsum("ik,jk->ij", s, u))


@jax.custom_batching.custom_vmap
def _in_every_set(safe: Bool[Array, ""]) -> Bool[Array, ""]:
    """The same decision for all sample sets of a `vmap`, which would else compute both ways for each of them."""
    return safe


@_in_every_set.def_vmap
def _(axis_size: int, in_batched: list[bool], safe: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    return _in_every_set(safe.all(axis=0)), False


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


@partial(register_dataclass, data_fields=["c"], meta_fields=["beta"])
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
    beta: float = -0.5

    def __post_init__(self) -> None:
        check_positive(self.c, "c")
        if not isinstance(self.beta, float | np.floating) or not -1 < self.beta < 0:
            raise ValueError(f"`beta` must be a float between -1 and 0; got {self.beta!r}.")
        object.__setattr__(self, "beta", float(self.beta))

    @property
    def length(self) -> float | Scalar:
        return self.c

    def settled(self, draws: Draws, weights: Float[Array, " draws"] | None, transform: Affine | None) -> "IMQ":
        return IMQ(jnp.asarray(self.c, draws.dtype), self.beta)

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
class _Bandwidth(StrEnum):
    """How to choose a bandwidth from the draws; static, so that it may stand where a number may."""

    MEDIAN = "median"

    def __repr__(self) -> str:
        return repr(self.value)


@partial(register_dataclass, data_fields=["bandwidth"], meta_fields=[])
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

    bandwidth: Any = _Bandwidth.MEDIAN

    def __post_init__(self) -> None:
        if isinstance(self.bandwidth, str):
            rule = check_choice(self.bandwidth, [member.value for member in _Bandwidth], "bandwidth")
            object.__setattr__(self, "bandwidth", _Bandwidth(rule))
        else:
            check_positive(self.bandwidth, "bandwidth")

    @property
    def length(self) -> float | Scalar:
        if isinstance(self.bandwidth, _Bandwidth):
            raise ValueError("bandwidth='median' is settled by draws; give a number to use the kernel by itself.")
        return self.bandwidth

    def profile(self, squared: Array) -> tuple[Array, Array, Array]:
        inverse = 1 / self.length**2
        phi = jnp.exp(-0.5 * inverse * squared)
        first = -0.5 * inverse * phi
        return phi, first, -0.5 * inverse * first

    def settled(self, draws: Draws, weights: Float[Array, " draws"] | None, transform: Affine | None) -> "Gaussian":
        if isinstance(self.bandwidth, _Bandwidth):
            return Gaussian(checked_median_distance(draws, transform))
        return Gaussian(jnp.asarray(self.bandwidth, draws.dtype))


def checked_median_distance(draws: Draws, transform: Affine | None) -> Scalar:
    """Median distance between two draws, in the coordinates of the transform; zero is an error."""
    if draws.num_draws < 2:
        raise ValueError("The median distance needs at least two draws; got one. Give the bandwidth as a number.")
    chosen = np.linspace(0, draws.num_draws - 1, min(draws.num_draws, _MEDIAN_DRAWS)).round().astype(int)
    median = _median_distance(jax.tree.map(lambda leaf: leaf[chosen], draws.positions), transform)
    if is_concrete(median) and median == 0:
        raise ValueError("The median distance between draws is zero: more than half of the pairs are equal.")
    return median


@jax.jit
def _median_distance(positions: PyTree, transform: Affine | None) -> Scalar:
    """Median distance over all pairs of different draws; a constant to differentiation."""
    x = lax.stop_gradient(in_coordinates(ravel(positions), transform))
    squared = _by_differences(x, x, x, x).squared[np.triu_indices(len(x), 1)]
    middle = np.array([(len(squared) - 1) // 2, len(squared) // 2])
    return jnp.sqrt(_order_statistics(squared, middle)).mean()


def _order_statistics(values: Float[Array, " values"], ranks: Int[np.ndarray, " ranks"]) -> Float[Array, " ranks"]:
    """The values of given ranks, from 0, among others that are not negative.

    By bisection over their bits, which ascend as the values do: sorting takes many times as long.
    """
    integer = jnp.dtype(f"int{8 * values.dtype.itemsize}")
    bits = lax.bitcast_convert_type(values, integer)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = jax.vmap(lambda bound: (bits <= bound).sum())(middle) > ranks
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    bounds = jnp.zeros(len(ranks), integer), jnp.full(len(ranks), jnp.iinfo(integer).max, integer)
    low, _ = lax.fori_loop(0, 8 * values.dtype.itemsize - 1, halve, bounds)
    return lax.bitcast_convert_type(low, values.dtype)


# --- the kernel that controls moments ---------------------------------------------------------------------


@register_static
class _Location(StrEnum):
    MEAN = "mean"

    def __repr__(self) -> str:
        return repr(self.value)


@partial(register_dataclass, data_fields=["location", "covariance"], meta_fields=["order"])
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

    order: int = 2
    location: Any = _Location.MEAN
    covariance: ArrayLike | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", check_positive_integer(self.order, "order"))
        if isinstance(self.location, str):
            rule = check_choice(self.location, [member.value for member in _Location], "location")
            object.__setattr__(self, "location", _Location(rule))
        for name in ("location", "covariance"):
            if isinstance(value := getattr(self, name), list | tuple):
                object.__setattr__(self, name, np.asarray(value))

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        if isinstance(self.location, _Location):
            raise ValueError("location='mean' is settled by draws; give a point to use the kernel by itself.")
        return self._around(jnp.asarray(self.location))(x, y)

    def settled(self, draws: Draws, weights: Float[Array, " draws"] | None, transform: Affine | None) -> BaseKernel:
        location, dim = self.location, draws.dim
        if isinstance(location, _Location):
            location = mean_of(draws, weights, transform)
        location = jnp.asarray(location, draws.dtype)
        if location.shape != (dim,):
            raise ValueError(f"`location` must have one entry for each of {dim} coordinates; got {location.shape}.")
        if self.covariance is not None:
            if np.shape(self.covariance) != (dim, dim):
                raise ValueError(f"`covariance` must be ({dim}, {dim}); got {np.shape(self.covariance)}.")
            if is_concrete(self.covariance) and not _is_covariance(np.asarray(self.covariance)):
                raise ValueError("`covariance` must be finite, symmetric and positive definite.")
        return self._around(location)

    def _around(self, location: Float[Array, " dim"]) -> "_Moments":
        if self.covariance is None:
            return _Moments(location, None, self.order)
        root = jnp.linalg.cholesky(jnp.asarray(self.covariance, location.dtype))
        return _Moments(location, jnp.linalg.inv(root), self.order)


def _is_covariance(matrix: np.ndarray) -> bool:
    if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, rtol=1e-4):
        return False
    return bool(np.linalg.eigvalsh(matrix).min() > 0)


class _Reduced(NamedTuple):
    """Draws as the moment kernel sees them: x̂ = W(x − x⋆) and N = 1 + ‖x̂‖²."""

    position: Block
    norm: Float[Array, "block 1"]
    score: Block


@partial(register_dataclass, data_fields=["location", "whitening"], meta_fields=["order"])
@dataclass(frozen=True, eq=False)
class _Moments(BaseKernel):
    """The moment kernel, settled: W with WᵀW = Σ⁻¹ is its whitening, None for the identity."""

    location: Float[Array, " dim"]
    whitening: Float[Array, "dim dim"] | None
    order: int

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        x, y = (self._whitened(position[None] - self.location[None])[0] for position in (x, y))
        norms = (1 + (x**2).sum()) * (1 + (y**2).sum())
        kappa = (1 + (x * y).sum()) / jnp.sqrt(norms)
        return norms ** ((self.order - 1) / 2) * (lax.rsqrt(1 + ((x - y) ** 2).sum()) + kappa)

    def stein(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        left, right = self._reduced(x, s), self._reduced(y, u)
        # The summands are tilted by m and by m / √N, powers of N.
        return self._tilted_part(self._radial, left, right, self.order - 1) + self._tilted_part(
            self._linear, left, right, self.order - 2
        )

    def _tilted_part(self, part: Callable[..., Tile], left: _Reduced, right: _Reduced, power: int) -> Tile:
        """m(x) m(y) b₀ with m = N^{power/2} and the scores s + ∇log m."""
        s, u = (draws.score + power * self._unwhitened(draws.position) / draws.norm for draws in (left, right))
        return (left.norm * right.norm.T) ** (power / 2) * part(left.position, s, right.position, u)

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

    def _reduced(self, x: Block, s: Block) -> _Reduced:
        position = self._whitened(x - self.location[None])
        return _Reduced(position, 1 + (position**2).sum(axis=1, keepdims=True), s)

    def _whitened(self, vectors: Block) -> Block:
        return vectors if self.whitening is None else einsum("ik,jk->ij", vectors, self.whitening)

    def _unwhitened(self, vectors: Block) -> Block:
        """Wᵀ times each vector, as gradients come back."""
        return vectors if self.whitening is None else einsum("ik,kj->ij", vectors, self.whitening)

    def _trace(self, x: Block) -> int | Scalar:
        """Trace of Σ⁻¹."""
        return x.shape[1] if self.whitening is None else (self.whitening**2).sum()


# --- kernels of the user's --------------------------------------------------------------------------------


@partial(register_dataclass, data_fields=[], meta_fields=["function"])
@dataclass(frozen=True)
class UserKernel(BaseKernel):
    """A kernel that is any function of two positions."""

    function: Callable[[PyTree, PyTree], Any]

    def __call__(self, x: PyTree, y: PyTree) -> Scalar:
        return self.function(x, y)

    def settled(self, draws: Draws, weights: Float[Array, " draws"] | None, transform: Affine | None) -> BaseKernel:
        return _OperatedKernel(draws.structure)


@partial(register_dataclass, data_fields=[], meta_fields=["structure"])
@dataclass(frozen=True)
class _OperatedKernel(NeedsFunction, BaseKernel):
    """The Stein kernel of any function, by automatic differentiation; the function is bound in the program only."""

    structure: Structure

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        value = explained(self.function, "kernel")(self.structure.unravel(x), self.structure.unravel(y))
        return value.astype(x.dtype)

    def stein(self, x: Block, s: Block, y: Block, u: Block) -> Tile:
        one = lambda x, s: jax.vmap(lambda y, u: self._of_pair(x, s, y, u))(y, u)  # noqa: E731
        return jax.vmap(one)(x, s)

    def stein_diagonal(self, x: Block, s: Block) -> Float[Array, " block"]:
        return jax.vmap(lambda x, s: self._of_pair(x, s, x, s))(x, s)

    def _of_pair(self, x: Vector, s: Vector, y: Vector, u: Vector) -> Scalar:
        """The Stein operator in x, applied to what the operator in y makes of k: ∇ᵧk + k u."""

        def field(x: Vector) -> Vector:
            value, gradient = jax.value_and_grad(self, argnums=1)(x, y)
            return gradient + value * u

        return stein_operator(field, s, order=1)(x)


def explained(function: Callable[..., Any], name: str) -> Callable[..., Scalar]:
    """Say in our words what is wrong with a function of two draws, at the moment it is traced."""

    def checked(*arguments: PyTree) -> Scalar:
        value = with_note(function, name)(*arguments)
        found = getattr(value, "dtype", type(value).__name__)
        if jnp.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise TypeError(
                f"`{name}` must return one floating-point number for a pair of draws; it returned {found} of shape "
                f"{jnp.shape(value)}."
            )
        return jnp.asarray(value)

    return checked
