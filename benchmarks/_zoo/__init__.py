"""Targets whose truth is known, and draws that are wrong in known ways: what printed statements are held to.

`targets(dim)` has the targets, `kinds(target)` the ways to draw from, or beside, one of them, and `true_errors(target,
x)` what a set of draws has wrong.
"""

from collections.abc import Callable
from functools import cache, partial

from benchmarks._zoo import closed_forms as closed
from benchmarks._zoo import posteriors as post
from benchmarks._zoo.approximations import Kind, kinds
from benchmarks._zoo.known import KnownTarget, TrueErrors, errors_of_law, true_errors

__all__ = ["DIMS", "Kind", "KnownTarget", "TrueErrors", "errors_of_law", "kinds", "targets", "true_errors", "zoo"]

# By dimension: what is compiled for one target of a dimension serves the next.
_MAKERS: dict[int, tuple[Callable[[], KnownTarget], ...]] = {
    1: (partial(closed.student, 1),),
    2: (
        *(partial(closed.gaussian, 2, condition) for condition in (1, 1e2, 1e4, 1e6)),
        closed.banana, partial(closed.bimodal, 3.0), partial(closed.bimodal, 8.0), closed.ring,
    ),
    3: (
        partial(closed.student, 3), partial(closed.log_gamma, 2.0), partial(closed.log_gamma, 0.5), closed.logistic,
        partial(closed.funnel, 3), post.correlated_pair, closed.gumbel, closed.skew_normal, closed.generalized_normal,
        closed.log_f, post.poisson_regression, post.probit_regression,
    ),
    4: (post.local_scales,),
    5: (
        *(partial(closed.gaussian, 5, condition) for condition in (1, 1e2, 1e4, 1e6)),
        partial(closed.banana, 5), partial(post.logistic_regression, 50), partial(post.logistic_regression, 1000),
    ),
    10: (
        partial(closed.funnel, 10),
        partial(post.eight_schools, centred=False), partial(post.eight_schools, centred=True),
    ),
    12: (post.varying_intercepts,),
    20: tuple(partial(closed.gaussian, 20, condition) for condition in (1, 1e2, 1e4, 1e6)),
    100: tuple(partial(closed.gaussian, 100, condition) for condition in (1, 1e2, 1e4, 1e6)),
}  # fmt: skip
DIMS = tuple(_MAKERS)


@cache
def targets(dim: int) -> dict[str, KnownTarget]:
    """Those of one dimension, by name."""
    made = [maker() for maker in _MAKERS[dim]]
    return {target.name: target for target in made}


def zoo() -> dict[str, KnownTarget]:
    """All of them."""
    return {name: target for dim in DIMS for name, target in targets(dim).items()}
