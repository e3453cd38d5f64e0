"""How good is a set of Monte Carlo draws? Stein discrepancies in JAX.

The modules, each importing only from those above it:

_types          aliases
_draws          draws with one leading axis, and names for their coordinates
_checks         what users may pass, and what they are told
_compile        programs compiled once for each log-density, and never used for another
_blocks         passes over many draws in constant memory
_score          a log-density, or given scores, to scores block by block
_operator       the Stein operators on any function, by automatic differentiation
_monomials      the Stein operator on monomials: features, moments and kernel in closed form
_transform      affine changes of coordinates that carry scores along
_discrepancy    what all discrepancies share: calls, V- and U-statistics, Gram matrices
_psd            the polynomial Stein discrepancy
_functions      the Stein discrepancy of functions that the user chooses
cli             the command line
"""

from jaxpsd._discrepancy import Discrepancy, HeavyTailsWarning
from jaxpsd._functions import SteinDiscrepancy
from jaxpsd._operator import stein_operator
from jaxpsd._psd import PSD
from jaxpsd._score import score
from jaxpsd._transform import Affine

__version__ = "0.1.0"

__all__ = [
    "PSD",
    "Affine",
    "Discrepancy",
    "HeavyTailsWarning",
    "SteinDiscrepancy",
    "score",
    "stein_operator",
]
