"""The finite-set Stein discrepancy (Jitkrittum et al., 2017): a Gaussian kernel seen from a few test locations.

With test locations v_1 … v_J the Stein features are τ(x) = vec[s k(x, v_j) + ∇ₓk(x, v_j)] / √(dJ), and the
discrepancy is the length of their mean.
"""

from dataclasses import KW_ONLY, dataclass
from math import ceil
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxpsd._core.checks import (
    check_choice,
    check_finite,
    check_key,
    check_locations,
    check_positive,
    check_positive_integer,
    check_samples,
)
from jaxpsd._core.doubts import warn_of
from jaxpsd._core.draws import Draws, ravel
from jaxpsd._core.programs import Data, run
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.sharding import move_to_devices_of
from jaxpsd._core.types import Block, PyTree, Scalar, Target, static
from jaxpsd._discrepancies.base import QuadraticDiscrepancy
from jaxpsd._discrepancies.plans import FeaturePlan, Plan
from jaxpsd._stein.coordinates import Affine, Transform, check_streamable, in_coordinates, resolve
from jaxpsd._stein.locations import (
    LocationProblem,
    gaussian_locations,
    location_features,
    power_criterion,
    search_locations,
)
from jaxpsd._stein.pairs import check_length, median_distance


@register_dataclass
@dataclass(frozen=True, eq=False)
class FSSD(QuadraticDiscrepancy):
    """The finite-set Stein discrepancy, linear in the number of draws.

    With the Gaussian kernel k and τ(x) = vec[s k(x, v_j) + ∇ₓk(x, v_j)] / √(dJ) it is ‖τ̄‖. `FSSD.random` draws
    locations, `FSSD.optimized` looks for good ones.

    locations
        v_1 … v_J, an array (J, dim), in the coordinates of the transform.
    bandwidth
        σ of the Gaussian kernel exp(−‖x − y‖² / (2σ²)).
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
    >>> key = jax.random.key(0)
    >>> samples = 1.3 * jax.random.normal(key, (2000, 2))
    >>> fssd = jaxpsd.FSSD.random(key, samples)
    >>> bool(jaxpsd.gof_test(key, fssd, logdensity, samples, method="asymptotic").reject)
    True

    Locations chosen by some of the draws are tested on the others.

    >>> fssd, scores, held_out = jaxpsd.FSSD.optimized(key, logdensity, samples)
    >>> held_out.shape
    (1600, 2)
    >>> bool(jaxpsd.gof_test(key, fssd, scores, held_out, method="asymptotic").reject)
    True
    """

    locations: Float[Array | np.ndarray, "locations dim"]
    bandwidth: ArrayLike
    _: KW_ONLY
    transform: Transform | str = None
    block_size: int | None = static(default=None)

    def __post_init__(self) -> None:
        check_positive(self.bandwidth, "bandwidth")
        self._check_common()

    @classmethod
    def random(
        cls,
        rng_key: PRNGKeyArray,
        samples: PyTree,
        *,
        num_locations: int = 10,
        bandwidth: ArrayLike | str = "median",
        transform: Transform | str = None,
        block_size: int | None = None,
        chains: bool | None = None,
    ) -> "FSSD":
        """Draw test locations from a Gaussian with the mean and covariance of the draws.

        Parameters
        ----------
        rng_key
            A key of `jax.random`.
        samples
            Draws, as everywhere in the library. A test of the same draws keeps its level.
        num_locations
            J, how many locations to draw.
        bandwidth
            σ, or "median" for the median distance between draws.
        transform, block_size
            As in the constructor; a rule is fitted to these draws, once.
        chains
            Whether the leaves of a pytree have a chain axis.
        """
        check_key(rng_key)
        num_locations = check_positive_integer(num_locations, "num_locations")
        draws = check_samples(samples, chains=chains)
        check_finite(ravel(draws.positions), draws, "`samples`")
        affine = resolve(transform, Given(draws))
        if isinstance(bandwidth, str):
            check_choice(bandwidth, ("median",), "bandwidth")
            bandwidth = median_distance(draws, affine)
        x = in_coordinates(ravel(draws.positions), affine)
        locations = gaussian_locations(move_to_devices_of(x, rng_key), x, num_locations)
        return cls(locations, bandwidth, transform=affine, block_size=block_size)

    @classmethod
    def optimized(
        cls,
        rng_key: PRNGKeyArray,
        target: Target,
        samples: PyTree,
        *,
        num_locations: int = 10,
        train_fraction: float = 0.2,
        num_steps: int = 10,
        learning_rate: float = 0.05,
        regularization: float = 0.01,
        transform: Transform | str = None,
        block_size: int | None = None,
        chains: bool | None = None,
        progress: bool = False,
    ) -> "OptimizedFSSD":
        """Choose locations and bandwidth by the first draws of each chain, for a test of the others.

        Adam improves the power criterion U / √(σ² + γ), from locations drawn as in `random` and the best of a few
        bandwidths. Since the draws that chose them would show too small a p-value, the others are returned with the
        discrepancy.

        Parameters
        ----------
        rng_key
            A key of `jax.random`.
        target, samples, chains
            As in a call.
        num_locations
            J, how many locations to place.
        train_fraction
            What share of each chain, from its beginning, to choose by.
        num_steps, learning_rate
            Of the optimiser, in units of the draws' standard deviations. Few steps are meant: with many, locations fit
            the noise of the draws that are chosen by, and in ten dimensions and more the test loses power.
        regularization
            γ of the criterion.
        transform, block_size
            As in the constructor; a rule is fitted to the draws that are chosen by.
        progress
            Whether to show the criterion on the way.

        Returns
        -------
        OptimizedFSSD
            The discrepancy, and scores and draws to test it on.
        """
        check_key(rng_key)
        num_locations = check_positive_integer(num_locations, "num_locations")
        num_steps = check_positive_integer(num_steps, "num_steps")
        for name, value in (("learning_rate", learning_rate), ("regularization", regularization)):
            check_positive(value, name)
        if not isinstance(train_fraction, float | np.floating) or not 0 < train_fraction < 1:
            raise ValueError(f"`train_fraction` must be a float between 0 and 1; got {train_fraction!r}.")
        given = check_input(target, samples, None, chains)
        draws = given.draws
        per_chain = draws.num_draws // draws.num_chains
        cut = ceil(train_fraction * per_chain)
        if cut * draws.num_chains < 3 or per_chain - cut < 1 or (per_chain - cut) * draws.num_chains < 2:
            raise ValueError(
                f"Choosing by a share of {train_fraction:g} leaves {cut} of {per_chain} draws of each chain to choose "
                "by and the rest to test on; it takes at least three and two in all. Draw more."
            )
        given = given.with_scores()
        given.check_finite()
        scored = Draws(given.target, draws.num_chains)
        training = draws.between(0, cut)
        affine = resolve(transform, Given(training, scored.between(0, cut).positions))
        distance = median_distance(training, affine)
        x, s = (ravel(part.positions) for part in (training, scored.between(0, cut)))
        x, s = (x, s) if affine is None else affine.mapping()(x, s)
        scale = x.std(axis=0, keepdims=True)
        scale = jnp.where(scale > 0, scale, 1)
        problem = LocationProblem(x, s, x.mean(axis=0, keepdims=True), scale, distance, learning_rate, regularization)
        key = move_to_devices_of(x, rng_key)
        locations, sigma = search_locations(key, problem, num_locations, num_steps, show=progress)
        fssd = cls(locations, sigma, transform=affine, block_size=block_size)
        held_out = (part.between(cut, per_chain).like(samples) for part in (scored, draws))
        warn_of(given.doubts)
        return OptimizedFSSD(fssd, *held_out)

    def power_criterion(
        self, target: Target, samples: PyTree, *, regularization: float = 0.01, chains: bool | None = None
    ) -> Scalar:
        """U / √(σ² + γ), which the power of a test grows with; γ is the regularisation. Parameters as in a call."""
        check_positive(regularization, "regularization")
        given = check_input(target, samples, None, chains)
        plan = self._plan(given)
        result = run(_criterion_of_draws, given, plan, regularization, result="gathered")
        return self._returned(result, given, plan, "The power criterion")

    _remedy = (
        "Features are too large to be squared: use `transform='standardize'`, or float64 "
        "(`jax.config.update('jax_enable_x64', True)`)."
    )

    def _num_features(self, draws: Draws) -> int:
        return len(self.locations) * draws.dim

    def _plan(self, given: Given, num_replicates: int | None = None, num_statistics: int = 1) -> Plan:
        draws = given.draws
        locations = check_locations(self.locations, draws)
        transform = resolve(self.transform, given)
        bandwidth = check_length(self.bandwidth, "bandwidth", draws.dtype)
        return LocationsPlan(transform, locations, bandwidth, self.block_size)

    def _stream_plan(self, draws: Draws, num_replicates: int) -> FeaturePlan:
        check_streamable(self.transform)
        return super()._stream_plan(draws, num_replicates)


class OptimizedFSSD(NamedTuple):
    """A discrepancy whose locations were chosen by some draws, and what to test it on.

    discrepancy
        The `FSSD`.
    target
        Scores at the draws that were held out.
    samples
        Those draws, in the structure of the samples.
    """

    discrepancy: FSSD
    target: PyTree
    samples: PyTree


@register_dataclass
@dataclass(frozen=True)
class LocationsPlan(FeaturePlan):
    """Stein features at test locations."""

    transform: Affine | None
    locations: Float[Array, "locations dim"]
    bandwidth: Scalar
    block_size: int | None = static()

    def features(self, x: Block, s: Block) -> Float[Array, "block features"]:
        return location_features(x, s, self.locations, self.bandwidth)


def _criterion_of_draws(data: Data, plan: LocationsPlan, regularization: ArrayLike) -> Scalar:
    return power_criterion(plan.features(*plan.prepare(data).scored().rows), regularization)
