"""Whether draws have digits enough for what is computed of them."""

import math

import jax
import numpy as np

from jaxpsd._core.checks import is_concrete
from jaxpsd._core.doubts import Doubt, PrecisionWarning
from jaxpsd._core.draws import Draws

# Numbers that a floating-point type should have within a standard deviation of the draws; and how many values of a
# leaf are looked at to see how many it has.
_FEWEST_STEPS, _VALUES_LOOKED_AT = 100, 2**12


def find_coarse_draws(draws: Draws) -> tuple[Doubt, ...]:
    """Doubt draws of which rounding has left few different values: far from zero, numbers lie far apart."""
    if not is_concrete(draws.positions) or draws.num_draws == 1:
        return ()
    first = 0
    for leaf in jax.tree.leaves(draws.positions):
        # Some of what this process has will do; from the memory of a processor it is not copied.
        own, dim = leaf.addressable_data(0), math.prod(leaf.shape[1:])
        if dim == 0:
            continue
        every = slice(None, None, max(1, math.ceil(own.size / _VALUES_LOOKED_AT)))
        some = np.asarray(own)[every] if own.device.platform == "cpu" else np.asarray(own[every])
        # Values of a coordinate side by side, which takes half the time.
        x = np.ascontiguousarray(some.reshape(-1, dim).T)
        low, high = x.min(axis=1), x.max(axis=1)
        size = np.maximum(np.abs(low), np.abs(high))
        # What is not finite is for others to name.
        with np.errstate(all="ignore"):
            spacing = np.spacing(size)
            # Draws reach over several standard deviations; where those are far more steps, there is no doubt.
            in_doubt = (high - low < 10 * _FEWEST_STEPS * spacing).any()
        if in_doubt and np.isfinite(x).all():
            scale = x.astype(np.float64).std(axis=1)
            # All alike is not coarse: a constant has no standard deviation to be resolved.
            steps = np.where(scale > 0, scale / spacing, np.inf)
            worst = int(steps.argmin())
            if steps[worst] < _FEWEST_STEPS:
                message = (
                    f"{draws.coordinate(first + worst)} of the draws has standard deviation {scale[worst]:.2g} at "
                    f"values of {size[worst]:.2g}, where {own.dtype} has about {steps[worst]:.0f} numbers within a "
                    "standard deviation: digits of the draws are lost, and with them digits of the result. Subtract a "
                    "constant before the draws are rounded, or use float64 throughout "
                    "(`jax.config.update('jax_enable_x64', True)`)."
                )
                return (Doubt(PrecisionWarning, message),)
        first += dim
    return ()
