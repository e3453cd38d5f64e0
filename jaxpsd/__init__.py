from jaxpsd._discrepancy import Discrepancy, HeavyTailsWarning
from jaxpsd._operator import stein_operator
from jaxpsd._psd import PSD
from jaxpsd._score import score
from jaxpsd._transform import Affine
