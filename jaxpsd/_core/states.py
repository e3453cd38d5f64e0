"""What samplers hand out: states with positions in them, chains in their layout, and what is no draws at all."""

from typing import Any

from jaxpsd._core.doubts import ChainsWarning, Doubt
from jaxpsd._core.types import PyTree


def positions_in(samples: PyTree, name: str = "samples") -> PyTree:
    """The positions in the state of a sampler, such as those of BlackJAX; anything else as it is.

    What is known to be no draws is refused.
    """
    fields = _fields(samples)
    if not fields:
        if type(samples) is tuple and len(samples) == 2 and _is_report(samples[1]) and _fields(samples[0]):
            kinds = " and ".join(type(each).__name__ for each in samples)
            raise TypeError(
                f"`{name}` is a tuple of {kinds}; pass the states alone, or `from_blackjax(states, infos)`."
            )
        return samples
    kind = type(samples).__name__
    if "elbo" in fields or ("opt_state" in fields and "particles" not in fields):
        raise TypeError(
            f"`{name}` is a {kind}, the state of a variational approximation, and no draws. Draw from it, by `sample` "
            "of the algorithm that it is from: with log q in a tuple, draws come first."
        )
    if _is_report(samples):
        raise TypeError(
            f"`{name}` is a {kind}, which says how transitions went; pass the states, which have positions."
        )
    for field in ("position", "particles"):
        if field in fields:
            return getattr(samples, field)
    return samples


def _fields(value: Any) -> tuple[str, ...]:
    """Of a named tuple; none of anything else."""
    return getattr(value, "_fields", ()) if isinstance(value, tuple) else ()


def _is_report(value: Any) -> bool:
    return bool(_fields(value)) and type(value).__name__.endswith("Info")


def doubt_layout(num_chains: int, num_draws: int) -> tuple[Doubt, ...]:
    """Doubt that there are more chains than draws in each: a scan over steps of many chains has draws first."""
    if num_chains <= num_draws:
        return ()
    message = (
        f"There are {num_chains:,} chains of {num_draws:,} draws each. Where the axis of draws comes first, as after a "
        "`lax.scan` over steps of several chains, pass `jnp.swapaxes(x, 0, 1)`; chains that really are so short say "
        "little of how dependent draws are."
    )
    return (Doubt(ChainsWarning, message),)
