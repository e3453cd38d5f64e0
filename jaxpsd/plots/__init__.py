"""Pictures, with matplotlib: `pip install 'jaxpsd[plots]'`.

Each function draws on the axes `ax`, or on new ones, and returns them; `report` fills a figure. Colours suit
colour-blind readers too.
"""

from jaxpsd.plots._errors import errors, second_moments
from jaxpsd.plots._evidence import moment_errors, null_distribution
from jaxpsd.plots._positions import draws, marginal_scores
from jaxpsd.plots._report import report
from jaxpsd.plots._settings import step_sizes, trace
from jaxpsd.plots._tuning import tuning

__all__ = [
    "draws",
    "errors",
    "marginal_scores",
    "moment_errors",
    "null_distribution",
    "report",
    "second_moments",
    "step_sizes",
    "trace",
    "tuning",
]
