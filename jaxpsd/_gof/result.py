"""From statistics and their replicates to the result of a test."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Bool, Float

from jaxpsd._core.checks import is_concrete
from jaxpsd._core.compiling import as_arrays_together
from jaxpsd._core.doubts import Doubt
from jaxpsd._core.tables import plain
from jaxpsd._core.types import static
from jaxpsd._gof import pvalues
from jaxpsd._gof.scheme import Scheme
from jaxpsd._gof.settings import Settings


@register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class GofResult:
    """A goodness-of-fit test; where several statistics were tested, arrays with an entry for each.

    statistic
        The observed statistic: V, or U for the methods "multinomial" and "asymptotic" where there is one.
    p_value
        (1 + #{replicates ≥ statistic}) / (1 + num_replicates), never zero; or, for a deterministic asymptotic
        test, the probability itself.
    adjusted_p_value
        The p-value adjusted for testing several statistics at once (Westfall and Young's step-down minimum of
        p-values); the same as `p_value` for one.
    threshold
        The statistic is significant, by its own p-value, where it is larger than this.
    reject
        Whether the adjusted p-value is at most `alpha`.
    replicates
        The statistic under the null hypothesis, (num_replicates,) or (num_replicates, statistics).
    parameter
        Flip probability of the method "markov", block length of "block", else None.
    autocorrelation_time
        Integrated autocorrelation time of the Stein features, in draws; None where it was not measured.
    p_value_floor
        The smallest p-value that these draws and this method allow.
    parts
        The statistics of which this one is the most significant, in an aggregated test; else None.
    method
        The method used: what "auto" has chosen.
    alpha
        The level of the test.
    labels
        What each statistic is.
    left_out
        Parts of the adaptive test that these draws cannot carry, each with the reason.
    """

    statistic: Float[Array | np.ndarray, "*statistics"]
    p_value: Float[Array | np.ndarray, "*statistics"]
    adjusted_p_value: Float[Array | np.ndarray, "*statistics"]
    threshold: Float[Array | np.ndarray, "*statistics"]
    reject: Bool[Array | np.ndarray, "*statistics"]
    replicates: Float[Array | np.ndarray, "replicates *statistics"]
    parameter: Any
    autocorrelation_time: Any
    p_value_floor: Any
    parts: "GofResult | None" = None
    method: str = static()
    alpha: float = static()
    labels: tuple[str, ...] = static()
    left_out: tuple[str, ...] = static(default=())

    def to_dict(self) -> dict[str, Any]:
        """Everything but the replicates as plain numbers, for JSON."""
        arrays = {field.name for field in fields(self) if not field.metadata} - {"replicates", "parts"}
        return {
            "labels": list(self.labels),
            **{name: plain(value) for name, value in vars(self).items() if name in arrays},
            "method": self.method,
            "alpha": self.alpha,
            "num_replicates": len(self.replicates),
            "left_out": list(self.left_out),
            "parts": None if self.parts is None else self.parts.to_dict(),
            "doubts": [doubt.message for doubt in self.doubts],
        }

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """What makes the result doubtful, of which users are warned; `jit` and `vmap` leave it out."""
        return vars(self).get("_doubts", ())

    def doubted(self, doubts: Iterable[Doubt]) -> "GofResult":
        """The same result, with what makes it doubtful, each reason once."""
        object.__setattr__(self, "_doubts", tuple(dict.fromkeys(doubts)))
        return self

    def __repr__(self) -> str:
        several = len(self.labels) > 1
        has_values = is_concrete(self.statistic) and isinstance(self.statistic, jax.Array | np.ndarray)
        if not has_values or self.statistic.ndim > several:
            shape = getattr(self.statistic, "shape", None)
            return f"GofResult({', '.join(self.labels)}; shape {shape}, {self.method})"
        columns = (self.statistic, self.p_value, self.adjusted_p_value, self.reject)
        tests = [
            f"{label} = {statistic:.3g}, p = {p:.3g}"
            + (f" (adjusted {adjusted:.3g})" if several else "")
            + (f", rejected at {self.alpha:g}" if reject else "")
            for label, statistic, p, adjusted, reject in zip(self.labels, *map(np.atleast_1d, columns), strict=True)
        ]
        names = {"markov": "flip probability", "block": "block length"}
        how = [self.method, f"{len(self.replicates)} replicates" if len(self.replicates) else "deterministic"]
        if self.parameter is not None:
            how.append(f"{names[self.method]} {self.parameter:.3g}")
        if self.autocorrelation_time is not None:
            how.append(f"autocorrelation time {self.autocorrelation_time:.3g}")
        return f"GofResult({'; '.join(tests)}; {', '.join(how)})"


def _verdict(values: pvalues.AnyValues, num_rejected: int) -> dict[str, Any]:
    """The fields of a result that follow from the values alone, statistics along the last axis."""
    p, is_defined = pvalues.p_values(values), pvalues.is_defined(values)
    adjusted = pvalues.step_down(p)
    return {
        "statistic": values[:, 0],
        "p_value": pvalues.where_defined(p[:, 0], is_defined),
        "adjusted_p_value": pvalues.where_defined(adjusted, is_defined),
        "threshold": pvalues.threshold(values, num_rejected),
        # In ranks, which are exact.
        "reject": ((adjusted * values.shape[1]).round() <= num_rejected) & is_defined,
        "replicates": values[:, 1:].T,
    }


def result_of(
    values: pvalues.AnyValues,
    scheme: Scheme,
    settings: Settings,
    labels: tuple[str, ...],
    parts: GofResult | None = None,
) -> GofResult:
    """From a statistic, or several, and their replicates to a result."""
    verdict = _verdict(pvalues.on_host(values), settings.num_rejected)
    if len(labels) == 1:
        verdict = jax.tree.map(lambda leaf: leaf[..., 0], verdict)
    least = 1 / values.shape[1]
    floor = max(scheme.floor, least) if is_concrete(scheme.floor) else jnp.maximum(scheme.floor, least)
    return GofResult(
        **as_arrays_together({**verdict, "p_value_floor": floor}),
        parameter=scheme.parameter,
        autocorrelation_time=scheme.autocorrelation_time,
        parts=parts,
        method=scheme.method,
        alpha=settings.alpha,
        labels=labels,
    )


def without_replicates(u: Array, p: Any, threshold: Any, settings: Settings) -> GofResult:
    """The result of a test whose p-value is a probability."""
    return GofResult(
        statistic=u,
        p_value=p,
        adjusted_p_value=p,
        threshold=threshold,
        reject=p <= settings.alpha,
        replicates=p[None][:0],
        parameter=None,
        autocorrelation_time=None,
        p_value_floor=0 * p,
        method="asymptotic",
        alpha=settings.alpha,
        labels=("U",),
    )
