"""What each command does.

JAX is imported when there is something to compute: help and mistakes in the command do without.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxpsd
from jaxpsd.cli.cache import keep_programs
from jaxpsd.cli.options import TRANSFORMS, build_parser

if TYPE_CHECKING:
    from jax import Array

    from jaxpsd._core.types import PyTree
    from jaxpsd.adapters.files import Sampled

# For scripts: nothing was found, something was, it could not be done, or not be told. A user or a reader that has had
# enough is none of these.
_SOUND, _REJECTED, _MISTAKE, _UNKNOWN, _INTERRUPTED, _NO_READER = 0, 1, 2, 3, 130, 141
_CODES = {True: _SOUND, False: _REJECTED, None: _UNKNOWN}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit code."""
    options = build_parser(_COMMANDS).parse_args(arguments)
    # Results alone go there: what a log-density prints is not to be among them.
    options.output = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            code = _run(options)
        options.output.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python must not try to flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), options.output.fileno())
        return _NO_READER
    except KeyboardInterrupt:
        print("jaxpsd: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BaseException as error:
        # A log-density of the user's can raise anything, and Python's own exit code would say "rejected".
        print(*_explain(error), sep="\n", file=sys.stderr)
        return _MISTAKE
    return code


def _run(options: argparse.Namespace) -> int:
    import jax

    if not options.no_cache:
        keep_programs()
    with jax.enable_x64(options.float64 or jax.config.read("jax_enable_x64")), warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_: print(f"jaxpsd: warning: {message}", file=sys.stderr)
        return options.run(options)


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
        result = jaxpsd.adaptive_test(key, target, sampled.samples, transform=TRANSFORMS[options.transform], **common)
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
    common |= {"order": options.order or 2, "transform": TRANSFORMS[options.transform], "method": options.method}
    return _show(options, jaxpsd.moment_table(key, target, sampled.samples, names=sampled.names, **common))


def _diagnose(options: argparse.Namespace) -> int:
    key, target, sampled, common = _read_input(options)
    common |= {"names": sampled.names, "alpha": options.alpha}
    if options.tolerance is not None:
        common["tolerance"] = options.tolerance
    if options.origin is not None:
        from jaxpsd.adapters.files import with_origin

        target, sampled = with_origin(target, sampled, options.origin)
    if options.no_second_opinion:
        common["second_opinion"] = False
    report = jaxpsd.diagnose(key, target, sampled.samples, **common)
    by_test = _show(options, report)
    return by_test if options.tolerance is None else _CODES[report.good_enough]


def _rank(options: argparse.Namespace) -> int:
    import jax

    from jaxpsd.adapters.files import read
    from jaxpsd.adapters.user_code import fit_target

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
    import jax

    from jaxpsd.adapters.files import read
    from jaxpsd.adapters.user_code import load_target

    asked = {name: getattr(options, name) for name in ("objective", "tolerance", "checkpoint", "num_steps")}
    target, kernel = _load_logdensity(options.logdensity), load_target(options.kernel)
    key, positions = jax.random.key(options.seed), read(options.positions).samples
    tuning = jaxpsd.tune(key, target, kernel, options.settings, positions=positions, **asked)
    code = _show(options, tuning)
    return code if options.tolerance is None else _CODES[tuning.good_enough]


def _demo(options: argparse.Namespace) -> int:
    import jax

    from jaxpsd.demo import NUM_CHAINS, draw_figures, run_demo

    def say(step: str) -> None:
        if not options.json:
            print(f"jaxpsd: {step} …", file=sys.stderr, flush=True)

    def show(*shown: Any, sep: str = " ") -> None:
        print(*shown, sep=sep, file=options.output)

    demo = run_demo(jax.random.key(options.seed), options.draws, options.order, say=say)
    ranking, report = demo.rankings[options.order], demo.report
    if options.json:
        show(
            json.dumps({"rank": ranking.to_dict(), "report": report.to_dict(), "tune": demo.tuning.to_dict()}, indent=2)
        )
        return _SOUND
    show(
        "\n"
        f"Stochastic-gradient Langevin dynamics on Welling and Teh's mixture posterior: {NUM_CHAINS} chains for each\n"
        f"step size, every fifth of their last {options.draws:,} steps kept. The step sizes, ranked by the polynomial\n"
        f"Stein discrepancy (PSD) of order {options.order} of a chain:\n"
    )
    show(ranking)
    show(f"\nThe step size to use: {ranking.best:g}. A report on its draws, all chains together:\n")
    show(report)
    show("\nThe same question to `tune`, which runs the better step sizes longer, and expects what a full run has:\n")
    show(demo.tuning)
    options.output.flush()
    say(f"drawing figures to {options.folder}")
    try:
        written = draw_figures(demo, options.folder)
    except ImportError:
        show("\nFor figures, install matplotlib: pip install 'jaxpsd[plots]'.")
    else:
        show("\nFigures:", *written, sep="\n  ")
    return _SOUND


_COMMANDS = {"demo": _demo, "diagnose": _diagnose, "test": _test, "moments": _moments, "rank": _rank, "tune": _tune}


def _psd(options: argparse.Namespace, order: int) -> "jaxpsd.PSD":
    return jaxpsd.PSD(order, basis=options.basis, transform=TRANSFORMS[options.transform])


def _show(options: argparse.Namespace, result: Any, text: str | None = None) -> int:
    """Print a result, in words of its own unless there are others; whether it rejects is the exit code."""
    shown = json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if options.json else text or result
    print(shown, file=options.output)
    return _REJECTED if getattr(result, "reject", False) else _SOUND


# --- targets and draws ------------------------------------------------------------------------------------


def _read_input(options: argparse.Namespace) -> "tuple[Array, Any, Sampled, dict[str, Any]]":
    """The key, the target, the draws, and the options that all commands on one file share."""
    import jax

    from jaxpsd.adapters.files import read_all
    from jaxpsd.adapters.user_code import fit_target

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


def _read_scores(path: Path, sampled: "Sampled", file: str) -> "PyTree":
    """The scores in a file of their own: what it calls so, or else all that it holds."""
    from jaxpsd._core.checks import shapes_of
    from jaxpsd.adapters.files import read

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
    from jaxpsd.adapters.user_code import is_pymc_model, load_target

    function = load_target(where)
    if is_pymc_model(function):
        return function

    def logdensity(position: "PyTree") -> Any:
        try:
            return function(position)
        except (Exception, SystemExit) as error:
            error.add_note(f"jaxpsd: {type(error).__name__} was raised in {where}.")
            raise

    return logdensity


def _get_scores(sampled: "Sampled", name: object) -> "PyTree":
    if sampled.scores is None:
        raise ValueError(
            f"{name} has no scores. Name the log-density, --logdensity model.py:logdensity, or put scores in the file "
            "(see --help)."
        )
    return sampled.scores
