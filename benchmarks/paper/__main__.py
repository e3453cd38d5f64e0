"""`python -m benchmarks.paper NAME | all | report`."""

import argparse

from benchmarks.paper import gof, kanagawa, logistic, mean_shift, rbm, rosenbrock, runtime, sgld, transforms
from benchmarks.paper._experiment import FIGURES, FOLDER, Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    gof.BOOTSTRAP, gof.ASYMPTOTIC, rbm.EXPERIMENT, sgld.EXPERIMENT, runtime.EXPERIMENT, kanagawa.EXPERIMENT,
    logistic.SPARSE, logistic.BIG, rosenbrock.EXPERIMENT, mean_shift.EXPERIMENT, transforms.EXPERIMENT,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper")
    names = [experiment.name for experiment in EXPERIMENTS]
    parser.add_argument("name", choices=[*names, "all", "report"])
    parser.add_argument("--smoke", action="store_true", help="toy sizes, in seconds; nothing is written")
    options = parser.parse_args()
    for experiment in EXPERIMENTS:
        if options.name not in (experiment.name, "all"):
            continue
        results = experiment.run(smoke=options.smoke)
        print(experiment.render(results))
        if experiment.draw is not None:
            figure = experiment.draw(results)
            if not options.smoke:
                FIGURES.mkdir(exist_ok=True)
                figure.savefig(FIGURES / f"{experiment.name}.png", dpi=110)
    if not options.smoke:
        (FOLDER / "REPORT.md").write_text(report())


def report() -> str:
    parts = [
        "# The paper's experiments",
        "",
        "Each section is made by `python -m benchmarks.paper NAME`, from the committed results in `results/`. "
        "Intervals are 95%.",
    ]
    for experiment in EXPERIMENTS:
        results = experiment.finished()
        parts += ["", f"## {experiment.title}", ""]
        if results is None:
            parts.append("Not run at full size yet.")
            continue
        parts.append(experiment.render(results))
        if experiment.draw is not None:
            parts += ["", f"![{experiment.title}](figures/{experiment.name}.png)"]
        parts += ["", f"*`python -m benchmarks.paper {experiment.name}`, {experiment.seconds() / 60:.0f} minutes.*"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
