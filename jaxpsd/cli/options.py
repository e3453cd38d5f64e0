"""What can be asked for, and how it is explained."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jaxpsd

Command = Callable[[argparse.Namespace], int]
"""From options to an exit code."""

# In which coordinates polynomials are formed; and which are taken unless another option says so.
TRANSFORMS = {"none": None} | {rule: rule for rule in ("center", "standardize", "whiten", "target")}
_TRANSFORM = "target"

# As the library has them, which is not imported for this.
_ORIGINS = ("mcmc", "sg-mcmc", "variational", "laplace")
_SIGNS = ("auto", "rademacher", "markov", "block")
_METHODS = (*_SIGNS, "gaussian")

_FILES = """
Files of draws
  .npy   an array (draws, dim) or (chains, draws, dim)
  .npz   arrays `samples` and, where known, `scores`, `weights`, `names`; or an array for each parameter, with its score
         in `score.` + its name
  .csv   a column for each parameter, named in the first line; scores in columns `score.` + name, the number of the
         chain in a column `chain`. A log-density gets a dictionary by name, with beta[0], beta[1], … as one array beta.
         Or CmdStan's diagnostic files, one for each chain, with or without its output files: jaxpsd diagnose out/*.csv
  .nc    an ArviZ file: the group `posterior`, with scores in a group `scores`; or as nutpie writes it, with
         store_unconstrained=True, store_gradient=True; or as PyMC does, with the model: --logdensity model.py:model
Without scores in the file, name the log-density: --logdensity model.py:logdensity, a JAX function of one draw.

Programs that JAX has compiled are kept in your cache directory for the next time, unless --no-cache or
JAX_COMPILATION_CACHE_DIR say otherwise.

Exit codes
  0  done; `test` and `diagnose`: not rejected; `diagnose --tolerance`: good enough
  1  `test` and `diagnose`: rejected; `diagnose --tolerance`: not good enough
  2  it could not be done
  3  `diagnose --tolerance`: it cannot be told whether the draws are good enough
`tune --tolerance` has those of `diagnose --tolerance`, for new draws of the setting that it has chosen.
"""


_QUESTIONS = """
In Python
  everything at a glance?                  jaxpsd.diagnose(rng_key, target, samples)
  how far off are these draws?             jaxpsd.PSD(order)(target, samples), and other discrepancies
  is that more than chance?                jaxpsd.adaptive_test(rng_key, target, samples)
  which moments are wrong?                 jaxpsd.moment_table(rng_key, target, samples)
  what is E[f] under the target?           jaxpsd.corrected_expectation(fn, target, samples)
  what changes when draws follow it?       jaxpsd.relax(rng_key, logdensity, samples)
  which setting, for a third of the price? jaxpsd.tune(rng_key, logdensity, kernel, settings, positions=…, num_steps=…)
  which sampler or step size?              jaxpsd.rank(rng_key, None, target, {label: samples, …})
  is my sampler right?                     jaxpsd.check(rng_key, target, sample=sampler)
  all of it                                help(jaxpsd)
"""


def build_parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser of all commands, each by its name with what it does."""
    parser = argparse.ArgumentParser(
        prog="jaxpsd",
        description="How good is a set of Monte Carlo draws?",
        epilog=_QUESTIONS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jaxpsd {jaxpsd.__version__}")
    added_to = parser.add_subparsers(dest="command", required=True, title="questions", metavar="command")
    seed, positive, many = _integer_from(0, 2**32 - 1), _integer_from(1, sys.maxsize), _integer_from(100, 10**9)

    def command(name: str, question: str, summary: str) -> argparse.ArgumentParser:
        added = added_to.add_parser(
            name,
            help=question,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=None if name == "demo" else _FILES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=commands[name])
        added.add_argument("--seed", type=seed, default=0, help="seed of the random numbers (%(default)s)")
        added.add_argument("--json", action="store_true", help="print the result as JSON")
        added.add_argument("--float64", action="store_true", help="compute in double precision")
        added.add_argument("--no-cache", action="store_true", help="keep no compiled programs for the next time")
        return added

    demo = command(
        "demo",
        "what does it look like? A step size is chosen, and drawn",
        "choose the step size of a stochastic-gradient sampler, and draw what it looks like",
    )
    demo.add_argument("--draws", type=many, default=10_000, help="steps of each chain after burn-in (%(default)s)")
    demo.add_argument("--order", type=int, choices=range(1, 5), default=2, help="polynomial order (%(default)s)")
    demo.add_argument("--folder", type=Path, default=Path("jaxpsd-demo"), help="where figures go (%(default)s)")

    diagnose = command(
        "diagnose",
        "how good are these draws, is that good enough, and what to do?",
        "report on a file of draws: what is wrong, and what to do",
    )
    test = command(
        "test",
        "could these draws come from the target, or is it more than chance?",
        "test whether the draws in a file could come from the target",
    )
    moments = command(
        "moments",
        "which moments are wrong, and by how much?",
        "say which moments of the draws in a file are wrong, and by how much",
    )
    ranked = command("rank", "which sampler, step size or guide is best?", "rank files of draws by their discrepancy")
    tuned = command(
        "tune",
        "which setting of a sampler, for a third of what it costs to run them all?",
        "choose a setting of a sampler by running all of them, and the better ones longer",
    )
    of_kernel = "a JAX function of a key, a state and a setting, to the next state and its position"
    tuned.add_argument("kernel", metavar="MODULE_OR_FILE.py:FUNCTION", help=of_kernel)
    tuned.add_argument(
        "settings", nargs="+", type=_parse_setting, help="numbers, or dictionaries such as '{\"step_size\": 0.1}'"
    )
    tuned.add_argument("--logdensity", required=True, metavar="MODULE_OR_FILE.py:FUNCTION", help="of the target")
    tuned.add_argument("--positions", type=Path, required=True, help="a file with a starting position for each chain")
    tuned.add_argument("--steps", dest="num_steps", type=many, required=True, help="of each chain in a full run")
    tuned.add_argument(
        "--objective", choices=("error", "bias"), default="error", help="what is to be small (%(default)s)"
    )
    tuned.add_argument("--checkpoint", type=Path, help="a file for progress, to go on from after an interruption")
    for added in (diagnose, test, moments):
        added.add_argument("file", type=Path, nargs="+", help="the draws; of CmdStan, one file for each chain")
        added.add_argument("--scores", type=Path, help="a file with the scores at the draws")
    good = "what is good enough: standard deviations for means, a share for standard deviations; sets the exit code"
    for added in (diagnose, tuned):
        added.add_argument("--tolerance", type=float, help=good)
    made = "how the draws were made, where the file does not say: advice depends on it"
    diagnose.add_argument("--origin", choices=_ORIGINS, help=made)
    moved = "do not let draws follow the target to see what changes"
    diagnose.add_argument("--no-second-opinion", action="store_true", help=moved)
    ranked.add_argument("files", nargs="+", metavar="[LABEL=]FILE", help="the draws of each sampler")
    ranked.add_argument("--per-chain", action="store_true", help="score chains one by one and take the median")
    for added in (diagnose, test, moments, ranked):
        added.add_argument("--logdensity", metavar="MODULE_OR_FILE.py:FUNCTION", help="the log-density of the target")
        added.add_argument("--replicates", type=positive, default=1000, help="bootstrap replicates (%(default)s)")
    for added in (test, moments, ranked):
        order = "the adaptive test, which needs none" if added is test else "2"
        added.add_argument("--order", type=positive, help=f"polynomial order of the PSD (default: {order})")
        coordinates = "coordinates in which polynomials are formed (%(default)s: as draws and scores imply them)"
        added.add_argument("--transform", choices=TRANSFORMS, default=_TRANSFORM, help=coordinates)
        methods = _SIGNS if added is ranked else _METHODS
        added.add_argument("--method", choices=methods, default="auto", help="bootstrap (%(default)s)")
    for added in (test, ranked):
        basis = "polynomials of the PSD (%(default)s, orthonormal; monomial: as in the paper)"
        added.add_argument("--basis", choices=("hermite", "monomial"), default="hermite", help=basis)
    for added in (diagnose, test, ranked):
        added.add_argument("--alpha", type=float, default=0.05, help="level (%(default)s)")
    return parser


def _integer_from(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"must be an integer from {lowest} to {highest}, not {text!r}")
        return value

    return parse


def _parse_setting(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise argparse.ArgumentTypeError(f"must be a number, or a dictionary in JSON, not {text!r}") from None
