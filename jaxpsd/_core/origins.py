"""Where draws came from: what there is to do about wrong ones depends on it."""

from dataclasses import dataclass

import numpy as np
from jax.typing import ArrayLike

from jaxpsd._core.types import Choice


class Kind(Choice):
    """How draws were made."""

    MCMC = "mcmc"
    SG_MCMC = "sg-mcmc"
    VARIATIONAL = "variational"
    LAPLACE = "laplace"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Origin:
    """Where draws came from.

    kind
        "mcmc", chains with an accept step; "sg-mcmc", chains without one, such as SGLD or unadjusted Langevin;
        "variational" and "laplace", independent draws of an approximation; or "unknown".
    library
        Which library made them.
    divergences
        How many transitions after warm-up diverged, where that is known.
    acceptance
        The mean acceptance probability of transitions after warm-up, where that is known.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import jaxpsd
    >>> jaxpsd.Draws(jnp.zeros((200, 2)), origin=jaxpsd.Origin("mcmc", divergences=3)).origin.divergences
    3
    >>> jaxpsd.Draws(jnp.zeros((200, 2)), origin=jaxpsd.Origin("laplace")).origin.kind
    'laplace'
    """

    kind: str = Kind.UNKNOWN
    library: str | None = None
    divergences: int | None = None
    acceptance: float | None = None

    def __post_init__(self) -> None:
        kinds = [str(kind) for kind in Kind]
        if self.kind not in kinds:
            raise ValueError(f"`kind` must be one of {', '.join(map(repr, kinds))}; got {self.kind!r}.")
        object.__setattr__(self, "kind", Kind(self.kind))

    @classmethod
    def of_transitions(
        cls, kind: str, library: str | None, diverged: ArrayLike | None = None, acceptance: ArrayLike | None = None
    ) -> "Origin":
        """From what a sampler says of each transition: whether it diverged, and the probability of acceptance."""
        return cls(
            kind,
            library,
            None if diverged is None else int(np.sum(np.asarray(diverged))),
            None if acceptance is None else float(np.mean(np.asarray(acceptance))),
        )

    @property
    def is_approximation(self) -> bool:
        """Whether draws are independent ones of an approximation, so that there are no chains to run on."""
        return self.kind in (Kind.VARIATIONAL, Kind.LAPLACE)


UNKNOWN = Origin()
