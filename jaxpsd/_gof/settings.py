"""What users choose about a test, checked."""

from collections.abc import Sequence
from math import ceil, floor
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from jaxpsd._core.checks import check_choice, check_positive_integer
from jaxpsd._core.draws import Draws
from jaxpsd._discrepancies.base import Discrepancy
from jaxpsd._discrepancies.plans import Part
from jaxpsd._discrepancies.psd import PSD
from jaxpsd._gof.bootstrap import Wanted
from jaxpsd._gof.multipliers import LONGEST_CHAIN, representable

INDEPENDENT, DEPENDENT = ("rademacher", "gaussian", "multinomial"), ("markov", "block")
"""For independent draws, and for dependent ones."""

SIGNS = ("rademacher", *DEPENDENT)
"""Those that multiply draws by signs."""

BOOTSTRAPS = ("auto", *INDEPENDENT, *DEPENDENT)
METHODS = (*BOOTSTRAPS, "asymptotic")

UNBIASED = ("multinomial", "asymptotic")
"""Those that test the U-statistic, which has no weights."""


class Settings(NamedTuple):
    """What the user has chosen about the test."""

    method: str
    num_replicates: int
    alpha: float
    parameter: float | None

    @classmethod
    def checked(
        cls, method: str, num_replicates: int, alpha: float, flip_probability: float | None, block_length: int | None
    ) -> "Settings":
        """Refuse what makes no sense."""
        check_choice(method, METHODS, "method")
        num_replicates = check_positive_integer(num_replicates, "num_replicates")
        if not isinstance(alpha, float | np.floating) or not 0 < alpha < 1:
            raise ValueError(f"`alpha` is the level of the test, between 0 and 1; got {alpha!r}.")
        parameter = None
        if flip_probability is not None:
            check_belongs("flip_probability", "markov", method)
            if not isinstance(flip_probability, float | np.floating) or not 0 < flip_probability <= 0.5:
                raise ValueError(f"`flip_probability` must be a float above 0, at most ½; got {flip_probability!r}.")
            parameter = representable(float(flip_probability))
        if block_length is not None:
            check_belongs("block_length", "block", method)
            parameter = min(check_positive_integer(block_length, "block_length"), LONGEST_CHAIN)
        return cls(method, num_replicates, float(alpha), parameter)

    def check_attainable(self) -> None:
        """Refuse to test with fewer replicates than it takes to reject anything."""
        if self.num_rejected < 1:
            raise ValueError(
                f"With num_replicates={self.num_replicates} no p-value is below 1/{self.num_replicates + 1}, so that "
                f"nothing can be rejected at alpha={self.alpha:g}; it takes at least "
                f"{ceil(1 / self.alpha * (1 - 1e-9)) - 1}."
            )

    def check_signs(self, name: str, *, or_normal: bool = False) -> None:
        """Refuse what has no signs, where a function multiplies draws by them; or no replicates of mean features."""
        if self.method in UNBIASED or (self.method == "gaussian" and not or_normal):
            raise ValueError(f"`{name}` takes a sign bootstrap, such as method='auto'; got {self.method!r}.")

    @property
    def measures(self) -> bool:
        """Whether the dependence of the draws has to be measured."""
        return self.method == "auto" or (self.method in DEPENDENT and self.parameter is None)

    @property
    def num_rejected(self) -> int:
        """The observed column is rejected if it is among so many largest of all columns."""
        # Not one fewer because of rounding, where alpha is one of the attainable p-values.
        return floor(self.alpha * (1 + self.num_replicates) * (1 + 1e-9))


def check_discrepancy(discrepancy: Discrepancy) -> None:
    """Tell a discrepancy from other things, such as its class."""
    if not isinstance(discrepancy, Discrepancy):
        is_class = isinstance(discrepancy, type)
        found = f"the class {discrepancy.__name__}" if is_class else type(discrepancy).__name__
        if "discrepancy" in getattr(discrepancy, "_fields", ()):
            found += ". Pass the `discrepancy`, `target` and `samples` that this object holds"
        raise TypeError(f"`discrepancy` must be a discrepancy, such as PSD(order=2); got {found}.")


def check_bootstrap(
    method: str,
    num_replicates: int,
    alpha: float,
    flip_probability: float | None,
    block_length: int | None,
    weights: ArrayLike | None,
) -> Settings:
    """Settings of a test that goes by replicates alone: any bootstrap will do, but no limit."""
    check_choice(method, BOOTSTRAPS, "method")
    settings = Settings.checked(method, num_replicates, alpha, flip_probability, block_length)
    settings.check_attainable()
    check_weights_suit(method, weights)
    return settings


def check_belongs(option: str, owner: str, method: str) -> None:
    """An option of one method, given with another, would do nothing."""
    if method != owner:
        raise ValueError(f"`{option}` belongs to method={owner!r}; got method={method!r}.")


def check_weights_suit(method: str, weights: ArrayLike | None) -> None:
    """U-statistics have no weights."""
    if method in UNBIASED and weights is not None:
        raise ValueError(f"method={method!r} tests the U-statistic, which has no weights; use a sign bootstrap.")


def check_several(draws: Draws) -> None:
    """One draw has nothing to be compared with."""
    if draws.num_draws < 2:
        raise ValueError("A test needs at least two draws; got one.")


def check_orders(orders: Sequence[int] | None, discrepancy: Discrepancy) -> tuple[int, ...] | None:
    """Orders at which the discrepancy can be tested."""
    if orders is None:
        return None
    is_sequence = isinstance(orders, Sequence | np.ndarray | jax.Array) and getattr(orders, "ndim", 1) == 1
    if not is_sequence or isinstance(orders, str | bytes | bytearray | memoryview):
        raise TypeError(f"`orders` must be a sequence of integers, such as (1, 2); got {orders!r}.")
    if not isinstance(discrepancy, PSD):
        raise ValueError(f"`orders` needs features with degrees; {type(discrepancy).__name__} has none.")
    orders = tuple(check_positive_integer(order, "orders") for order in orders)
    if not orders or len(set(orders)) < len(orders):
        raise ValueError(f"`orders` must be different from each other, and at least one; got {orders!r}.")
    if max(orders) > discrepancy.order:
        raise ValueError(f"`orders` reach up to {max(orders)}, the discrepancy only to {discrepancy.order}.")
    return orders


def wanted_of(orders: Sequence[int] | None, *, unbiased: bool = False) -> Wanted:
    """The statistics that the user has asked for."""
    return Wanted((Part(),) if orders is None else tuple(map(Part.up_to, orders)), unbiased=unbiased)


def labels_of(wanted: Wanted) -> tuple[str, ...]:
    """A name for each statistic."""
    statistic = "U" if wanted.unbiased else "V"
    return tuple(
        statistic if part.degrees is None else f"{statistic} of order {part.degrees[-1]}" for part in wanted.parts
    )
