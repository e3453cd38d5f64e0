"""The random-feature Stein discrepancy of Huggins and Mackey (2018), with their L1 inverse multiquadric features.

With α = γ/3, ξ = 4α/(2 + α), λ = 1 − α/2, c′ = λc/2 and β′ = −(d + ν)/(2ξ), features f(x, z) = (c′² + ‖x − z‖²)^{β′}
are seen from locations z_j, drawn from a multivariate t distribution with ν degrees of freedom and density q around
the mean of the draws. With Ξ_{ikj} = s_ik f(x_i, z_j) + ∂f(x_i, z_j)/∂x_k and weights w_j = 1/(J q(z_j)),

    RFSD² = Σ_k (Σ_j w_j |mean_i Ξ_{ikj}|)².

The exponents are large, −35 in ten dimensions, so that features under- and overflow; they are kept in units of the
largest one, whose logarithm is kept beside them.
"""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.blocks import block_length, map_over_blocks
from jaxpsd._core.checks import (
    check_choice,
    check_key,
    check_locations,
    check_positive,
    check_positive_integer,
    is_concrete,
)
from jaxpsd._core.compiling import compile_by_work
from jaxpsd._core.doubts import Doubt
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.types import Block, PyTree, Scalar, Target, static
from jaxpsd._discrepancies.base import Program, QuadraticDiscrepancy, _v
from jaxpsd._discrepancies.plans import FeaturePlan, Plan
from jaxpsd._stein.coordinates import Affine, Transform, in_coordinates, mean_of, resolve
from jaxpsd._stein.pairs import median_distance

# What the authors use where the user leaves it open: for the value, and in a test, there in median distances.
_C, _C_IN_TESTS = 1.0, 4.0
_DF, _DF_IN_TESTS = 3.0, 0.5


@register_dataclass
@dataclass(frozen=True, eq=False)
class RFSD(QuadraticDiscrepancy):
    """The random-feature Stein discrepancy, linear in the number of draws.

    A sum over coordinates of squared weighted sums of |mean features| at random locations. It has neither a
    U-statistic nor a Gram matrix. Its size depends on dimension and settings by many orders of magnitude: `log_value`
    is always representable.

    num_features
        J, the number of locations.
    c
        The length of the features. None stands for 1, and for four times the median distance between draws in a test.
    gamma
        γ, between 0 and 1: how fast features decay, against how evenly locations have to cover the draws.
    df
        Degrees of freedom of the locations' distribution. None stands for 3, and for ½ in a test.
    location_scale
        "matched" draws locations with the scale c′/√df that their weights assume; "published" with unit scale, as the
        authors' code does. "auto" is "matched" for the value. In a test it is "published": with matched locations a few
        draws have nearly all the weight, and correct draws are rejected far too often.
    rng_key
        A key for the locations; None stands for `jax.random.key(0)`.
    locations
        The locations themselves, an array (J, dim), instead of random ones; in the coordinates of the transform.
    transform
        Coordinates in which to compute, as for `PSD`.
    block_size
        How many draws to work on at a time; None chooses by memory.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> def logdensity(x):
    ...     return -0.5 * jnp.sum(x**2)
    >>> samples = jax.random.normal(jax.random.key(0), (1000, 3))
    >>> rfsd = jaxpsd.RFSD(rng_key=jax.random.key(1))
    >>> bool(jnp.allclose(jnp.log(rfsd(logdensity, samples)), rfsd.log_value(logdensity, samples)))
    True
    >>> jaxpsd.gof_test(jax.random.key(2), rfsd, logdensity, 1.5 * samples, method="asymptotic").reject
    Array(True, dtype=bool)
    """

    num_features: int = static(default=10)
    _: KW_ONLY
    c: ArrayLike | None = None
    gamma: float = static(default=0.25)
    df: float | None = static(default=None)
    location_scale: str = static(default="auto")
    rng_key: PRNGKeyArray | None = None
    locations: Float[Array | np.ndarray, "locations dim"] | None = None
    transform: Transform | str = None
    block_size: int | None = static(default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_features", check_positive_integer(self.num_features, "num_features"))
        for name in ("c", "df"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name)
        if not isinstance(self.gamma, float | np.floating) or not 0 < self.gamma < 1:
            raise ValueError(f"`gamma` must be a float between 0 and 1; got {self.gamma!r}.")
        check_choice(self.location_scale, ("auto", "matched", "published"), "location_scale")
        if isinstance(self.rng_key, jax.Array | np.ndarray | int | float):
            check_key(self.rng_key)
        self._check_common()

    def log_value(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        """Logarithm of the discrepancy, where that itself may not be representable. Parameters as in a call."""
        return self._log_value(check_input(target, samples, weights, chains))

    def _log_value(self, given: Given) -> Scalar:
        plan = self._plan(given)
        return self._returned(run(_log_value, given, plan, result="gathered"), given, plan, "The logarithm")

    def _statistic(self, program: Program, given: Given) -> tuple[Scalar, tuple[Doubt, ...]]:
        # Users have been warned of the doubts with the logarithm.
        return _representable(self._log_value(given), 2 if program is _v else 1), ()

    def _check_pairs(self, what: str) -> None:
        raise ValueError(f"There is no {what} for the RFSD: a sum of absolute values is not a sum over pairs of draws.")

    _remedy = (
        "If the discrepancy is zero, it has no logarithm. Otherwise choose a length c nearer to the distances "
        "between draws, or float64 (`jax.config.update('jax_enable_x64', True)`)."
    )

    @property
    def _chooses_by_all_draws(self) -> bool:
        return True

    def _num_features(self, draws: Draws) -> int:
        return draws.dim * (self.num_features if self.locations is None else len(self.locations))

    def _stream_plan(self, draws: Draws, num_replicates: int) -> FeaturePlan:
        raise ValueError("RFSD looks at all draws before it computes, which a stream has not seen.")

    def _plan(self, given: Given, num_replicates: int | None = None, num_statistics: int = 1) -> Plan:
        draws, in_test = given.draws, num_replicates is not None
        transform = resolve(self.transform, given)
        centre = mean_of(draws, given.weights, transform)
        c = self.c
        if c is None:
            c = _C_IN_TESTS * median_distance(draws, transform) if in_test else _C
        df = self.df or (_DF_IN_TESTS if in_test else _DF)
        alpha = self.gamma / 3
        xi = 4 * alpha / (2 + alpha)
        length = jnp.asarray((1 - alpha / 2) * c / 2, draws.dtype)
        exponent = -(draws.dim + df) / (2 * xi)
        if self.locations is None:
            published = self.location_scale == "published" or (in_test and self.location_scale == "auto")
            scale = jnp.ones_like(length) if published else length / df**0.5
            key = random.key(0) if self.rng_key is None else self.rng_key
            locations = centre[None] + scale * _student(key, (self.num_features, draws.dim), df, draws.dtype)
        else:
            locations = check_locations(self.locations, draws)
        log_weights = -math.log(len(locations)) - _log_student(locations - centre[None], length, df)
        plan = WeightedFeaturesPlan(
            transform, locations, log_weights, length, jnp.zeros_like(length), exponent, self.block_size
        )
        return _in_units_of_the_largest(plan, draws)


def _representable(log_value: Scalar, power: int) -> Scalar:
    """The exponential of a logarithm; where that leaves the range of its type, an error that says so."""
    value = jnp.exp(power * log_value)
    if is_concrete(value) and not 0 < float(value) < math.inf:
        raise FloatingPointError(
            f"The discrepancy is e^{float(log_value):.4g}, which {'' if power == 1 else 'squared '}does not fit into "
            f"{value.dtype}; use `log_value`."
        )
    return value


# --- locations --------------------------------------------------------------------------------------------


def _student(rng_key: PRNGKeyArray, shape: tuple[int, int], df: float, dtype: Any) -> Float[Array, "locations dim"]:
    """Multivariate t variates of unit scale."""
    normal, chi_squared = random.split(rng_key)
    spread = random.chisquare(chi_squared, df, (shape[0], 1), dtype) / df
    # With few degrees of freedom the denominator can be too small for its type.
    return random.normal(normal, shape, dtype) / jnp.sqrt(jnp.maximum(spread, jnp.finfo(dtype).tiny))


def _log_student(apart: Float[Array, "locations dim"], length: Scalar, df: float) -> Float[Array, " locations"]:
    """Log-density of the multivariate t distribution with squared scale c′²/df."""
    dim = apart.shape[1]
    constant = math.lgamma((df + dim) / 2) - math.lgamma(df / 2) - 0.5 * dim * math.log(math.pi)
    tail = jnp.log1p((apart**2).sum(axis=1) / length**2)
    return constant - dim * jnp.log(length) - 0.5 * (df + dim) * tail


# --- features ---------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class WeightedFeaturesPlan(FeaturePlan):
    """w_j Ξ_j in units of e^{log_unit}."""

    transform: Affine | None
    locations: Float[Array, "locations dim"]
    log_weights: Float[Array, " locations"]
    length: Scalar
    log_unit: Scalar
    exponent: float = static()
    block_size: int | None = static()

    @property
    def is_quadratic(self) -> bool:
        return False

    def log_features(self, x: Block) -> tuple[Float[Array, "block locations"], Float[Array, "block locations dim"]]:
        """Logarithms of w_j f(x, z_j), in the unit; and their gradients."""
        apart = x[:, None] - self.locations[None]
        base = self.length**2 + (apart**2).sum(axis=2)
        values = self.exponent * jnp.log(base) + (self.log_weights - self.log_unit)[None]
        return values, 2 * self.exponent * apart / base[..., None]

    def features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        values, slope = self.log_features(x)
        return (jnp.exp(values)[..., None] * (s[:, None] + slope)).reshape(len(x), -1)

    def leading_features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        # The features themselves are large for very few draws, which would pass for dependence.
        return Plan.leading_features(self, x, s)

    def squared_norm(self, z: Float[Array, "features columns"]) -> Float[Array, " columns"]:
        by_location = jnp.abs(z).reshape(len(self.locations), -1, z.shape[1])
        return (by_location.sum(axis=0) ** 2).sum(axis=0)


@compile_by_work
def _in_units_of_the_largest(plan: WeightedFeaturesPlan, draws: Draws) -> WeightedFeaturesPlan:
    def largest(positions: PyTree) -> Float[Array, " block"]:
        values, _ = plan.log_features(in_coordinates(ravel(positions), plan.transform))
        return values.max(axis=1)

    working_bytes = 4 * plan.locations.size * draws.dtype.itemsize
    # The unit cancels from the discrepancy, and so from its derivative.
    positions = jax.lax.stop_gradient(draws.positions)
    peaks = map_over_blocks(largest, positions, block_length(draws.num_draws, working_bytes))
    return replace(plan, log_unit=jax.lax.stop_gradient(peaks.max()))


def _log_value(data: Data, plan: WeightedFeaturesPlan) -> Scalar:
    return plan.log_unit + 0.5 * jnp.log(plan.pair_sums(plan.prepare(data), diagonal=False).total)
