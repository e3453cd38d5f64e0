"""The linear-time kernel Stein discrepancy (Liu, Lee and Jordan, 2016): a mean over successive pairs of draws."""

from dataclasses import dataclass
from functools import partial

from jax.tree_util import register_dataclass
from jax.typing import ArrayLike

from jaxpsd._core.scores import run
from jaxpsd._core.types import PyTree, Scalar, Target
from jaxpsd._discrepancies.ksd import KSD
from jaxpsd._discrepancies.plans import mean_over_pairs, safe_root


@partial(register_dataclass, data_fields=["kernel", "transform"], meta_fields=["block_size"])
@dataclass(frozen=True)
class LinearKSD(KSD):
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
    def _only_asymptotic(self) -> bool:
        return True

    @property
    def _chooses_by_all_draws(self) -> bool:
        return True

    def __call__(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        """Root of the mean over successive pairs; zero where that is negative, as it may be. Equal weights only."""
        if weights is not None:
            raise ValueError("LinearKSD has no weights; use KSD.")
        return safe_root(self.u_statistic(target, samples, chains=chains))

    def v_statistic(
        self, target: Target, samples: PyTree, weights: ArrayLike | None = None, *, chains: bool | None = None
    ) -> Scalar:
        """There is none: no draw is paired with itself."""
        raise ValueError("LinearKSD has no V-statistic: no draw is paired with itself. Use `u_statistic`, or KSD.")

    def u_statistic(self, target: Target, samples: PyTree, *, chains: bool | None = None) -> Scalar:
        """Squared discrepancy without bias, the mean over successive pairs. Parameters as in a call."""
        target, draws, _, form = self._prepare(target, samples, None, chains)
        if draws.num_draws < 2:
            raise ValueError("LinearKSD is a mean over pairs of draws; got a single draw.")
        result, _ = run(mean_over_pairs, target, draws, form, function=self._function)
        return self._finite(result, target, draws, "The statistic")
