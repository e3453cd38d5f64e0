"""How good is a set of Monte Carlo draws? Stein discrepancies in JAX.

The modules, each importing only from those above it:

_types          aliases
_warnings       what may make a result doubtful, and how users are told
_tables         results for people and programs
_draws          draws with one leading axis, and names for their coordinates
_shards         draws that are spread over devices
_checks         what users may pass, and what they are told
_functions      what users' functions are called with, and have to return
_compile        programs compiled once for each log-density, and never used for another
_blocks         passes over many draws in constant memory
_score          a log-density, or given scores, to scores block by block
_minibatch      scores from mini-batches of the data
_operator       the Stein operators on any function, by automatic differentiation
_monomials      the Stein operator on monomials: features, moments and kernel in closed form
_transform      affine changes of coordinates that carry scores along
_distances      pairs of draws, and the median distance
_form           how a discrepancy computes: sums over draws of features, or over pairs of a kernel
_discrepancy    what all discrepancies share: calls, V- and U-statistics, Gram matrices
_psd            the polynomial Stein discrepancy
_kernels        base kernels, and their Stein kernels
_ksd            kernel Stein discrepancies
_linear_ksd     the same in linear time
_fssd           the finite-set Stein discrepancy
_rfsd           random-feature Stein discrepancies
_custom         discrepancies of the user's own making
_signs          random multipliers of draws: signs packed into words, multinomial counts
_watch          what is seen on the way and may be worth a warning
_bootstrap      a statistic and all of its replicates, in one pass
_settings       what users choose about a test, checked
_autocorrelation  how dependent draws are
_resampling     which bootstrap suits them
_asymptotic     the limiting distribution of the U-statistic
_chisquare      weighted sums of χ² variables
_pvalues        from a statistic and its replicates to p-values
_gof_result     the result of a test
_gof            goodness-of-fit tests
_adaptive       one test that chooses its order
_regression     functions regressed on Stein features
_correction     expectations under the target, from biased draws
_implied_errors  what wrong moments amount to
_moments        which moments are wrong, and by how much
_grid           a sampler run over a grid of settings
_ranking        sample sets from the best to the worst
_rank           which sampler, or which setting of one, to use
_report         what is found about draws, for people and programs
_advice         what to say about it
_diagnose       everything at a glance
_sets           many sample sets at once
_stream         draws that come in batches
_out_of_core    draws that do not fit in memory
adapters        from other libraries' results to a target and draws: numpyro, arviz
plots           pictures, with matplotlib
_files          draws from files
_demo           a worked example
cli             the command line
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxpsd._adaptive import adaptive_test
from jaxpsd._correction import CorrectedExpectation, corrected_expectation
from jaxpsd._custom import FeatureDiscrepancy, KernelDiscrepancy, SteinDiscrepancy
from jaxpsd._diagnose import diagnose
from jaxpsd._discrepancy import Discrepancy
from jaxpsd._draws import Draws
from jaxpsd._fssd import FSSD, OptimizedFSSD
from jaxpsd._gof import gof_test
from jaxpsd._gof_result import GofResult
from jaxpsd._grid import sample_grid
from jaxpsd._implied_errors import ImpliedErrors
from jaxpsd._kernels import IMQ, Gaussian, MomentKernel
from jaxpsd._ksd import KSD
from jaxpsd._linear_ksd import LinearKSD
from jaxpsd._minibatch import minibatch_score
from jaxpsd._moments import MomentTable, moment_table
from jaxpsd._operator import stein_operator
from jaxpsd._out_of_core import load_state, save_state, stream_over
from jaxpsd._psd import PSD
from jaxpsd._rank import rank
from jaxpsd._ranking import Comparison, Ranking
from jaxpsd._report import DetectableErrors, Finding, Report
from jaxpsd._rfsd import RFSD
from jaxpsd._score import score
from jaxpsd._sets import discrepancies, gof_tests
from jaxpsd._shards import spread
from jaxpsd._stream import Stream, stream
from jaxpsd._transform import Affine
from jaxpsd._warnings import (
    CorrectionWarning,
    DependentDrawsWarning,
    HeavyTailsWarning,
    PrecisionWarning,
    ScalesWarning,
)

if TYPE_CHECKING:
    from jaxpsd.adapters.arviz import from_arviz
    from jaxpsd.adapters.numpyro import from_numpyro, from_numpyro_svi

__version__ = "0.1.0"

# Loaded when they are asked for, since they need what not everyone has.
_ADAPTERS = {"from_arviz": "arviz", "from_numpyro": "numpyro", "from_numpyro_svi": "numpyro"}


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        return getattr(import_module(f"jaxpsd.adapters.{_ADAPTERS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ADAPTERS})


__all__ = [
    "FSSD",
    "IMQ",
    "KSD",
    "PSD",
    "RFSD",
    "Affine",
    "Comparison",
    "CorrectedExpectation",
    "CorrectionWarning",
    "DependentDrawsWarning",
    "DetectableErrors",
    "Discrepancy",
    "Draws",
    "FeatureDiscrepancy",
    "Finding",
    "Gaussian",
    "GofResult",
    "HeavyTailsWarning",
    "ImpliedErrors",
    "KernelDiscrepancy",
    "LinearKSD",
    "MomentKernel",
    "MomentTable",
    "OptimizedFSSD",
    "PrecisionWarning",
    "Ranking",
    "Report",
    "ScalesWarning",
    "SteinDiscrepancy",
    "Stream",
    "adaptive_test",
    "corrected_expectation",
    "diagnose",
    "discrepancies",
    "from_arviz",
    "from_numpyro",
    "from_numpyro_svi",
    "gof_test",
    "gof_tests",
    "load_state",
    "minibatch_score",
    "moment_table",
    "rank",
    "sample_grid",
    "save_state",
    "score",
    "spread",
    "stein_operator",
    "stream",
    "stream_over",
]
