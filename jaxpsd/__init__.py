"""How good is a set of Monte Carlo draws? Stein discrepancies in JAX.

Everything at a glance, and is it good enough?   diagnose
How far off are these draws?                     PSD, KSD, LinearKSD, FSSD, RFSD, SteinDiscrepancy
Is that more than chance?                        adaptive_test, gof_test, aggregate_test
Which moments are wrong, and by how much?        moment_table
What is E[f] under the target, then?             corrected_expectation
What changes when draws follow the target?       relax
Is my variational posterior any good?            diagnose, compare_approximations
Which setting, for a third of the grid's price?  tune
Which sampler or step size?                      rank, sample_grid
Is my sampler right, in its test suite?          check
Many sample sets at once?                        discrepancies, gof_tests
Many devices or hosts?                           spread
Draws in batches, or on disk?                    stream, stream_over, save_state, load_state
Draws of another library, mini-batches of data?  from_numpyro, from_numpyro_svi, from_pymc, from_pymc_vi, from_nutpie,
                                                 from_stan, from_blackjax, from_arviz, minibatch_score,
                                                 Minibatches
A discrepancy of my own, and its parts?          SteinDiscrepancy, FeatureDiscrepancy, KernelDiscrepancy, score,
                                                 stein_operator, Affine, IMQ, Gaussian, MomentKernel
Draws with chains, names and an origin?          Draws, Origin
Pictures?                                        plots.report, plots.errors, plots.tuning, plots.draws and others

Key first, data next, options by keyword: diagnose(rng_key, target, samples). The target is a log-density, a function of
one position, or the scores at the samples; samples are (draws, dim) or (chains, draws, dim), or a pytree of such.

The rooms of the library, in the order in which data flows; each uses those above it and none below:

_core           draws in, programs run: checks, doubts, blocks, devices, scores
_stein          the mathematics: operators, polynomials, kernels, coordinates
_discrepancies  what is computed: PSD, KSD, FSSD, RFSD and the user's own
_gof            whether it is more than chance: bootstraps, limits, tests
_explain        what is wrong, and by how much: moments, corrected expectations, reports
_choose         which sampler or setting to use
_scale          many sets, streams, draws that do not fit in memory
adapters        draws of other libraries, and from files
plots, demo, cli
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxpsd._choose.approximations import compare_approximations
    from jaxpsd._choose.grid import sample_grid
    from jaxpsd._choose.rank import rank
    from jaxpsd._choose.ranking import Comparison, Ranking
    from jaxpsd._choose.tune import tune
    from jaxpsd._choose.tuning import Tuning
    from jaxpsd._core.doubts import (
        ChainsWarning,
        CoordinatesWarning,
        CorrectionWarning,
        DependentDrawsWarning,
        HeavyTailsWarning,
        PrecisionWarning,
        ScalesWarning,
    )
    from jaxpsd._core.draws import Draws
    from jaxpsd._core.minibatch import Minibatches, minibatch_score
    from jaxpsd._core.origins import Origin
    from jaxpsd._core.scores import score
    from jaxpsd._core.sharding import spread
    from jaxpsd._discrepancies.base import Discrepancy
    from jaxpsd._discrepancies.custom import FeatureDiscrepancy, KernelDiscrepancy, SteinDiscrepancy
    from jaxpsd._discrepancies.fssd import FSSD, OptimizedFSSD
    from jaxpsd._discrepancies.ksd import KSD, LinearKSD
    from jaxpsd._discrepancies.psd import PSD
    from jaxpsd._discrepancies.rfsd import RFSD
    from jaxpsd._explain.check import CannotTell, check
    from jaxpsd._explain.diagnose import diagnose
    from jaxpsd._explain.errors import ImpliedErrors
    from jaxpsd._explain.expectations import CorrectedExpectation, corrected_expectation
    from jaxpsd._explain.findings import Finding
    from jaxpsd._explain.moments import MomentTable, moment_table
    from jaxpsd._explain.relax import relax
    from jaxpsd._explain.relaxation import FunctionChange, Relaxation
    from jaxpsd._explain.report import DetectableErrors, Report
    from jaxpsd._gof.adaptive import adaptive_test
    from jaxpsd._gof.aggregate import aggregate_test
    from jaxpsd._gof.gof_test import gof_test
    from jaxpsd._gof.result import GofResult
    from jaxpsd._scale.out_of_core import load_state, save_state, stream_over
    from jaxpsd._scale.sets import discrepancies, gof_tests
    from jaxpsd._scale.stream import Stream, stream
    from jaxpsd._stein.coordinates import Affine
    from jaxpsd._stein.kernels import IMQ, Gaussian, MomentKernel
    from jaxpsd._stein.operators import stein_operator
    from jaxpsd.adapters.arviz import from_arviz
    from jaxpsd.adapters.blackjax import from_blackjax
    from jaxpsd.adapters.numpyro import from_numpyro, from_numpyro_svi
    from jaxpsd.adapters.nutpie import from_nutpie
    from jaxpsd.adapters.pymc import from_pymc, from_pymc_vi
    from jaxpsd.adapters.stan import from_stan

__version__ = "0.2.0"

# Where public names are from. They are loaded when they are asked for: some need what not everyone has, and the command
# line answers before JAX is there.
_HOMES = {
    "_choose.approximations": ("compare_approximations",),
    "_choose.grid": ("sample_grid",),
    "_choose.rank": ("rank",),
    "_choose.ranking": ("Comparison", "Ranking"),
    "_choose.tune": ("tune",),
    "_choose.tuning": ("Tuning",),
    "_core.doubts": (
        "ChainsWarning",
        "CoordinatesWarning",
        "CorrectionWarning",
        "DependentDrawsWarning",
        "HeavyTailsWarning",
        "PrecisionWarning",
        "ScalesWarning",
    ),
    "_core.draws": ("Draws",),
    "_core.minibatch": ("Minibatches", "minibatch_score"),
    "_core.origins": ("Origin",),
    "_core.scores": ("score",),
    "_core.sharding": ("spread",),
    "_discrepancies.base": ("Discrepancy",),
    "_discrepancies.custom": ("FeatureDiscrepancy", "KernelDiscrepancy", "SteinDiscrepancy"),
    "_discrepancies.fssd": ("FSSD", "OptimizedFSSD"),
    "_discrepancies.ksd": ("KSD", "LinearKSD"),
    "_discrepancies.psd": ("PSD",),
    "_discrepancies.rfsd": ("RFSD",),
    "_explain.check": ("CannotTell", "check"),
    "_explain.diagnose": ("diagnose",),
    "_explain.errors": ("ImpliedErrors",),
    "_explain.expectations": ("CorrectedExpectation", "corrected_expectation"),
    "_explain.findings": ("Finding",),
    "_explain.moments": ("MomentTable", "moment_table"),
    "_explain.relax": ("relax",),
    "_explain.relaxation": ("FunctionChange", "Relaxation"),
    "_explain.report": ("DetectableErrors", "Report"),
    "_gof.adaptive": ("adaptive_test",),
    "_gof.aggregate": ("aggregate_test",),
    "_gof.gof_test": ("gof_test",),
    "_gof.result": ("GofResult",),
    "_scale.out_of_core": ("load_state", "save_state", "stream_over"),
    "_scale.sets": ("discrepancies", "gof_tests"),
    "_scale.stream": ("Stream", "stream"),
    "_stein.coordinates": ("Affine",),
    "_stein.kernels": ("IMQ", "Gaussian", "MomentKernel"),
    "_stein.operators": ("stein_operator",),
    "adapters.arviz": ("from_arviz",),
    "adapters.blackjax": ("from_blackjax",),
    "adapters.numpyro": ("from_numpyro", "from_numpyro_svi"),
    "adapters.nutpie": ("from_nutpie",),
    "adapters.pymc": ("from_pymc", "from_pymc_vi"),
    "adapters.stan": ("from_stan",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "plots":
        return import_module(f"{__name__}.plots")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})


__all__ = [
    "FSSD",
    "IMQ",
    "KSD",
    "PSD",
    "RFSD",
    "Affine",
    "CannotTell",
    "ChainsWarning",
    "Comparison",
    "CoordinatesWarning",
    "CorrectedExpectation",
    "CorrectionWarning",
    "DependentDrawsWarning",
    "DetectableErrors",
    "Discrepancy",
    "Draws",
    "FeatureDiscrepancy",
    "Finding",
    "FunctionChange",
    "Gaussian",
    "GofResult",
    "HeavyTailsWarning",
    "ImpliedErrors",
    "KernelDiscrepancy",
    "LinearKSD",
    "Minibatches",
    "MomentKernel",
    "MomentTable",
    "OptimizedFSSD",
    "Origin",
    "PrecisionWarning",
    "Ranking",
    "Relaxation",
    "Report",
    "ScalesWarning",
    "SteinDiscrepancy",
    "Stream",
    "Tuning",
    "adaptive_test",
    "aggregate_test",
    "check",
    "compare_approximations",
    "corrected_expectation",
    "diagnose",
    "discrepancies",
    "from_arviz",
    "from_blackjax",
    "from_numpyro",
    "from_numpyro_svi",
    "from_nutpie",
    "from_pymc",
    "from_pymc_vi",
    "from_stan",
    "gof_test",
    "gof_tests",
    "load_state",
    "minibatch_score",
    "moment_table",
    "rank",
    "relax",
    "sample_grid",
    "save_state",
    "score",
    "spread",
    "stein_operator",
    "stream",
    "stream_over",
    "tune",
]
