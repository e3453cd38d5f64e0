"""What to do about draws that are wrong, by where they came from."""

from jaxpsd._core.origins import Kind, Origin

# What the target acceptance rate of NUTS is called.
_TARGET_ACCEPTANCE = {
    "NumPyro": "`NUTS(…, target_accept_prob=0.95)`",
    "PyMC": "`target_accept=0.95`",
    "nutpie": "`target_accept=0.95`",
    "Stan": "`adapt_delta=0.95`",
}

_BIASED = "Use a sampler without bias, or less of it, such as a smaller step size, or a richer approximation."
_NARROW = "Draws are too narrow: a richer approximation, or chains that move farther."
_WIDE = "Draws are too wide: a smaller step size, larger mini-batches, or an accept step."
_UNBIASED = "Chains with an accept step have no other bias, if this log-density is the one that they were run on."
_OTHER_THAN_LAPLACE = "parameters in which the target is closer to a Gaussian, a variational approximation, or MCMC."

# For wrong scales that are too narrow, too wide, and for anything else.
_REMEDIES = {
    Kind.UNKNOWN: (_NARROW, _WIDE, _BIASED),
    Kind.MCMC: (
        f"Draws are too narrow: more steps, and chains that move farther. {_UNBIASED}",
        f"Draws are too wide: a longer warm-up. {_UNBIASED}",
        f"Run a longer warm-up and more steps. {_UNBIASED}",
    ),
    Kind.SG_MCMC: (
        "Draws are too narrow: chains that move farther, by more steps rather than larger ones.",
        "Draws are too wide, as the noise of gradients makes them: a smaller step size, larger mini-batches, control "
        "variates, or an accept step.",
        "Use a smaller step size, larger mini-batches, or a sampler with an accept step.",
    ),
    Kind.VARIATIONAL: (
        "The approximation is too narrow: one with correlations (full rank, low rank), a normalizing flow, or MCMC.",
        "The approximation is too wide: fit it longer, with more draws for each gradient; or use MCMC.",
        "Fit a richer approximation (full rank, a normalizing flow), or fit it longer; or use MCMC.",
    ),
    Kind.LAPLACE: (
        f"The curvature at the mode makes the approximation too narrow: {_OTHER_THAN_LAPLACE}",
        f"The curvature at the mode makes the approximation too wide: {_OTHER_THAN_LAPLACE}",
        f"The target is not the Gaussian that its mode suggests: {_OTHER_THAN_LAPLACE}",
    ),
}


def remedy_for(origin: Origin, scale_error: float | None) -> str:
    """What to do about draws whose worst error of a scale is such a share of it; None if scales are right."""
    narrow, wide, other = _REMEDIES[Kind(origin.kind)]
    return other if scale_error is None else narrow if scale_error < 0 else wide


def about_divergences(origin: Origin, num_draws: int) -> str | None:
    """What divergent transitions mean, if there were any."""
    if not origin.divergences:
        return None
    count = "1 transition" if origin.divergences == 1 else f"{origin.divergences:,} transitions"
    return f"{count} of {num_draws:,} diverged, so that draws may be missing where the sampler could not go."


def remedy_for_divergences(origin: Origin) -> str:
    """What to do about them."""
    option = _TARGET_ACCEPTANCE.get(origin.library or "", "a higher target acceptance rate, so smaller steps")
    return (
        "Get rid of divergent transitions first: a reparameterisation, such as the non-centred form of a hierarchy, or "
        f"{option}; see where they are with a pair plot."
    )
