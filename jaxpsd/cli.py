"""The command line: `jaxpsd demo | diagnose | test | moments | rank | tune`."""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import jaxpsd
from jaxpsd._core.checks import shapes_of
from jaxpsd._core.origins import Kind
from jaxpsd._core.types import PyTree
from jaxpsd._gof.settings import SIGNS
from jaxpsd.adapters.files import Sampled, read, read_all, with_origin
from jaxpsd.adapters.user_code import fit_target, is_pymc_model, load_target

# For scripts: nothing was found, something was, it could not be done, or not be told. A user or a reader that has had
# enough is none of these.
_SOUND, _REJECTED, _MISTAKE, _UNKNOWN, _INTERRUPTED, _NO_READER = 0, 1, 2, 3, 130, 141
_CODES = {True: _SOUND, False: _REJECTED, None: _UNKNOWN}

# In which coordinates polynomials are formed; and which are taken unless another option says so.
_TRANSFORMS = {"none": None} | {rule: rule for rule in ("center", "standardize", "whiten", "target")}
_TRANSFORM = "target"

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

Exit codes
  0  done; `test` and `diagnose`: not rejected; `diagnose --tolerance`: good enough
  1  `test` and `diagnose`: rejected; `diagnose --tolerance`: not good enough
  2  it could not be done
  3  `diagnose --tolerance`: it cannot be told whether the draws are good enough
"""


_QUESTIONS = """
In Python
  everything at a glance?                  jaxpsd.diagnose(rng_key, target, samples)
  how far off are these draws?             jaxpsd.PSD(order)(target, samples), and other discrepancies
  is that more than chance?                jaxpsd.adaptive_test(rng_key, target, samples)
  which moments are wrong?                 jaxpsd.moment_table(rng_key, target, samples)
  what is E[f] under the target?           jaxpsd.corrected_expectation(fn, target, samples)
  which sampler or setting?                jaxpsd.rank(rng_key, None, target, {label: samples, …})
  which step size, for a third?            jaxpsd.tune(rng_key, logdensity, kernel, settings, positions=…, num_steps=…)
  is my sampler right?                     jaxpsd.check(rng_key, target, sample=sampler)
  all of it                                help(jaxpsd)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit code."""
    options = _build_parser().parse_args(arguments)
    with jax.enable_x64(options.float64 or jax.config.read("jax_enable_x64")), warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_: print(f"jaxpsd: warning: {message}", file=sys.stderr)
        try:
            code = options.run(options)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read the output has seen enough. Python must not try to flush the rest at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _NO_READER
        except KeyboardInterrupt:
            print("jaxpsd: interrupted", file=sys.stderr)
            return _INTERRUPTED
        except (Exception, SystemExit) as error:
            # A log-density of the user's can raise anything, and Python's own exit code would say "rejected".
            print(*_explain(error), sep="\n", file=sys.stderr)
            return _MISTAKE
    return code


def _explain(error: BaseException) -> list[str]:
    """An error in words, with the notes that are for users."""
    speaks = isinstance(error, TypeError | ValueError | OSError | ImportError | FloatingPointError)
    message = str(error) if speaks else f"{type(error).__name__}: {error}"
    notes = [note for note in getattr(error, "__notes__", ()) if "JAX has removed its internal frames" not in note]
    return [f"jaxpsd: error: {message}", *notes]


# --- commands ---------------------------------------------------------------------------------------------


def _test(options: argparse.Namespace) -> int:
    key, target, sampled, common = _read_input(options)
    common |= {"method": options.method, "alpha": options.alpha}
    if options.order is None:
        result = jaxpsd.adaptive_test(key, target, sampled.samples, transform=_TRANSFORMS[options.transform], **common)
    else:
        result = jaxpsd.gof_test(key, _psd(options, options.order), target, sampled.samples, **common)
    verdict = "rejected" if result.reject else "not rejected"
    lines = [f"{verdict} at {options.alpha:g}: p = {result.p_value:.3g}"]
    if result.parts is not None:
        parts = zip(result.parts.labels, result.parts.p_value, strict=True)
        lines += [f"  {label}: p = {p:.3g}" for label, p in parts]
    time = result.autocorrelation_time
    lines += [f"  left out: {reason}" for reason in result.left_out]
    lines.append(result.method + ("" if time is None else f", autocorrelation time {time:.3g}"))
    return _show(options, result, "\n".join(lines))


def _moments(options: argparse.Namespace) -> int:
    key, target, sampled, common = _read_input(options)
    common |= {"order": options.order or 2, "transform": _TRANSFORMS[options.transform], "method": options.method}
    return _show(options, jaxpsd.moment_table(key, target, sampled.samples, names=sampled.names, **common))


def _diagnose(options: argparse.Namespace) -> int:
    key, target, sampled, common = _read_input(options)
    common |= {"names": sampled.names, "alpha": options.alpha}
    if options.tolerance is not None:
        common["tolerance"] = options.tolerance
    if options.origin is not None:
        target, sampled = with_origin(target, sampled, options.origin)
    if options.no_second_opinion:
        common["second_opinion"] = False
    report = jaxpsd.diagnose(key, target, sampled.samples, **common)
    by_test = _show(options, report)
    return by_test if options.tolerance is None else _CODES[report.good_enough]


def _rank(options: argparse.Namespace) -> int:
    files: dict[str, Sampled] = {}
    for given in options.files:
        label, has_label, path = given.partition("=")
        path, label = (path, label) if has_label else (given, Path(given).stem)
        if label in files:
            raise ValueError(f"Two sets are called {label}; name them as LABEL=FILE.")
        files[label] = read(path)
    if any(sampled.weights is not None for sampled in files.values()):
        raise ValueError("`rank` takes draws without weights.")
    if options.logdensity is None:
        target = {label: _get_scores(sampled, label) for label, sampled in files.items()}
    else:
        logdensity = _load_logdensity(options.logdensity)
        fitted = {label: fit_target(logdensity, sampled) for label, sampled in files.items()}
        target = next(iter(fitted.values())).target
        files = {label: each.sampled for label, each in fitted.items()}
    ranking = jaxpsd.rank(
        jax.random.key(options.seed),
        _psd(options, options.order or 2),
        target,
        {label: sampled.samples for label, sampled in files.items()},
        method=options.method,
        num_replicates=options.replicates,
        alpha=options.alpha,
        per_chain=options.per_chain,
    )
    return _show(options, ranking)


def _tune(options: argparse.Namespace) -> int:
    asked = {name: getattr(options, name) for name in ("objective", "tolerance", "checkpoint", "num_steps")}
    target, kernel = _load_logdensity(options.logdensity), load_target(options.kernel)
    key, positions = jax.random.key(options.seed), read(options.positions).samples
    tuning = jaxpsd.tune(key, target, kernel, options.settings, positions=positions, **asked)
    code = _show(options, tuning)
    return code if options.tolerance is None else _CODES[tuning.good_enough]


def _demo(options: argparse.Namespace) -> int:
    from jaxpsd.demo import NUM_CHAINS, draw_figures, run_demo

    demo = run_demo(jax.random.key(options.seed), options.draws, options.order, progress=not options.json)
    ranking, report = demo.rankings[options.order], demo.report
    if options.json:
        print(
            json.dumps({"rank": ranking.to_dict(), "report": report.to_dict(), "tune": demo.tuning.to_dict()}, indent=2)
        )
        return _SOUND
    print(
        f"Stochastic-gradient Langevin dynamics on Welling and Teh's mixture posterior: {NUM_CHAINS} chains for each\n"
        f"step size, every fifth of their last {options.draws:,} steps kept. The step sizes, ranked by the polynomial\n"
        f"Stein discrepancy (PSD) of order {options.order} of a chain:\n"
    )
    print(ranking)
    print(f"\nThe step size to use: {ranking.best:g}. A report on its draws, all chains together:\n")
    print(report)
    print("\nThe same question to `tune`, which runs the better step sizes longer, and expects what a full run has:\n")
    print(demo.tuning)
    try:
        written = draw_figures(demo, options.folder)
    except ImportError:
        print("\nFor figures, install matplotlib: pip install 'jaxpsd[plots]'.")
    else:
        print("\nFigures:", *written, sep="\n  ")
    return _SOUND


def _psd(options: argparse.Namespace, order: int) -> jaxpsd.PSD:
    return jaxpsd.PSD(order, basis=options.basis, transform=_TRANSFORMS[options.transform])


def _show(options: argparse.Namespace, result: Any, text: str | None = None) -> int:
    """Print a result, in words of its own unless there are others; whether it rejects is the exit code."""
    print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if options.json else text or result)
    return _REJECTED if getattr(result, "reject", False) else _SOUND


# --- targets and draws ------------------------------------------------------------------------------------


def _read_input(options: argparse.Namespace) -> tuple[jax.Array, Any, Sampled, dict[str, Any]]:
    """The key, the target, the draws, and the options that all commands on one file share."""
    sampled = read_all(options.file)
    name = " ".join(map(str, options.file))
    if options.scores is not None and options.logdensity is not None:
        raise ValueError("Give --scores or --logdensity, not both.")
    if options.scores is not None:
        target = _read_scores(options.scores, sampled, name)
    elif options.logdensity is not None:
        target, sampled, left_out = fit_target(_load_logdensity(options.logdensity), sampled)
        if left_out:
            print(
                f"jaxpsd: left out, since the log-density does not look at it: {', '.join(left_out)}", file=sys.stderr
            )
    else:
        target = _get_scores(sampled, name)
    common = {"num_replicates": options.replicates, "weights": sampled.weights}
    return jax.random.key(options.seed), target, sampled, common


def _read_scores(path: Path, sampled: Sampled, file: str) -> PyTree:
    """The scores in a file of their own: what it calls so, or else all that it holds."""
    given = read(path)
    scores = given.samples if given.scores is None else given.scores
    if isinstance(scores, Mapping) and len(scores) == 1 and not isinstance(sampled.samples, Mapping):
        # One array in an archive, whatever its name.
        (scores,) = scores.values()
    if given.names and sampled.names and given.names != sampled.names:
        raise ValueError(
            f"{path} has scores of {', '.join(given.names):.100}, but {file} has draws of "
            f"{', '.join(sampled.names):.100}: they must be the same, in the same order."
        )
    if shapes_of(scores) != shapes_of(sampled.samples):
        raise ValueError(
            f"{path} has scores of shape {shapes_of(scores)!s:.100}, but {file} has draws of shape "
            f"{shapes_of(sampled.samples)!s:.100}: they must be the same."
        )
    return scores


def _load_logdensity(where: str) -> Any:
    function = load_target(where)
    if is_pymc_model(function):
        return function

    def logdensity(position: PyTree) -> Any:
        try:
            return function(position)
        except (Exception, SystemExit) as error:
            error.add_note(f"jaxpsd: {type(error).__name__} was raised in {where}.")
            raise

    return logdensity


def _get_scores(sampled: Sampled, name: object) -> PyTree:
    if sampled.scores is None:
        raise ValueError(
            f"{name} has no scores. Name the log-density, --logdensity model.py:logdensity, or put scores in the file "
            "(see --help)."
        )
    return sampled.scores


# --- options ----------------------------------------------------------------------------------------------


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxpsd",
        description="How good is a set of Monte Carlo draws?",
        epilog=_QUESTIONS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jaxpsd {jaxpsd.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, title="questions", metavar="command")
    seed, positive, many = _integer_from(0, 2**32 - 1), _integer_from(1, sys.maxsize), _integer_from(100, 10**9)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], question: str, summary: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=question,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=None if name == "demo" else _FILES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        added.add_argument("--seed", type=seed, default=0, help="seed of the random numbers (%(default)s)")
        added.add_argument("--json", action="store_true", help="print the result as JSON")
        added.add_argument("--float64", action="store_true", help="compute in double precision")
        return added

    demo = command(
        "demo",
        _demo,
        "what does it look like? A step size is chosen, and drawn",
        "choose the step size of a stochastic-gradient sampler, and draw what it looks like",
    )
    demo.add_argument("--draws", type=many, default=10_000, help="steps of each chain after burn-in (%(default)s)")
    demo.add_argument("--order", type=int, choices=range(1, 5), default=2, help="polynomial order (%(default)s)")
    demo.add_argument("--folder", type=Path, default=Path("jaxpsd-demo"), help="where figures go (%(default)s)")

    diagnose = command(
        "diagnose",
        _diagnose,
        "how good are these draws, is that good enough, and what to do?",
        "report on a file of draws: what is wrong, and what to do",
    )
    test = command(
        "test",
        _test,
        "could these draws come from the target, or is it more than chance?",
        "test whether the draws in a file could come from the target",
    )
    moments = command(
        "moments",
        _moments,
        "which moments are wrong, and by how much?",
        "say which moments of the draws in a file are wrong, and by how much",
    )
    ranked = command(
        "rank", _rank, "which sampler, step size or guide is best?", "rank files of draws by their discrepancy"
    )
    tuned = command(
        "tune",
        _tune,
        "which setting of a sampler, for a third of what it costs to run them all?",
        "choose a setting of a sampler by running all of them, and the better ones longer",
    )
    of_kernel = "a JAX function of a key, a state and a setting, to the next state and its position"
    tuned.add_argument("kernel", metavar="MODULE_OR_FILE.py:FUNCTION", help=of_kernel)
    tuned.add_argument("settings", nargs="+", type=_parse_setting, help="numbers, or such as '{\"step_size\": 0.1}'")
    tuned.add_argument("--logdensity", required=True, metavar="MODULE_OR_FILE.py:FUNCTION", help="of the target")
    tuned.add_argument("--positions", type=Path, required=True, help="a file with a starting position for each chain")
    tuned.add_argument("--steps", dest="num_steps", type=many, required=True, help="of each chain in a full run")
    tuned.add_argument("--objective", choices=("bias", "error"), default="bias", help="to be small (%(default)s)")
    tuned.add_argument("--checkpoint", type=Path, help="a file for progress, to go on from after an interruption")
    for added in (diagnose, test, moments):
        added.add_argument("file", type=Path, nargs="+", help="the draws; of CmdStan, one file for each chain")
        added.add_argument("--scores", type=Path, help="a file with the scores at the draws")
    good = "what is good enough: standard deviations for means, a share for standard deviations; sets the exit code"
    for added in (diagnose, tuned):
        added.add_argument("--tolerance", type=float, help=good)
    made = "how the draws were made, where the file does not say: advice depends on it"
    diagnose.add_argument("--origin", choices=[str(kind) for kind in Kind if kind != Kind.UNKNOWN], help=made)
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
        added.add_argument("--transform", choices=_TRANSFORMS, default=_TRANSFORM, help=coordinates)
        added.add_argument("--method", choices=("auto", *SIGNS), default="auto", help="bootstrap (%(default)s)")
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
