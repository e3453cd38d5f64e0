"""Tables and a picture of what was stated and what is true."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks._harness import table

Results = Mapping[str, Mapping[str, Any]]
Row = dict[str, Any]

_OUTCOMES = ("right", "wrong", "too close", "not known")

_KINDS = {
    "NUTS": "NUTS",
    "MALA, step too small": "MALA, too small", "MALA, good step": "MALA, good",
    "MALA, step too large": "MALA, too large",
    "MCLMC, step too small": "MCLMC, too small", "MCLMC, good step": "MCLMC, good",
    "MCLMC, step too large": "MCLMC, too large",
    "mean field": "mean field", "Pathfinder": "Pathfinder",
}  # fmt: skip


def rows_of(results: Results) -> list[Row]:
    return [{"model": found["model"], **row} for found in results.values() for row in found.get("rows", ())]


def render(results: Results) -> str:
    rows = rows_of(results)
    lines = [
        "# Public posteriors",
        "",
        f"{sum('outcome' in row for row in rows)} reports on {len(rows)} sets of draws of {len(results)} models of "
        "inference_gym. A verdict says whether all means and standard deviations of the unconstrained coordinates are "
        "within a tolerance of 0.1; where it says that it cannot tell, it is not known. Errors of means and standard "
        "deviations are those that reports state of these coordinates, and those of parameters are stated by corrected "
        "expectations, in constrained space; each with intervals of 95%.",
        "",
        "![Stated against true errors](public_posteriors.png)",
        "",
        "## By kind of draws",
        "",
        table({"set": "draws", **_COLUMNS}, _grouped(rows, lambda row: row["set"], _KINDS)),
        "## By model",
        "",
        table({"set": "model", **_COLUMNS}, _grouped(rows, lambda row: row["model"])),
        "## Verdicts that are wrong",
        "",
        table(_WRONG_COLUMNS, map(_verdict, (row for row in rows if row.get("outcome") == "wrong"))),
        "## Intervals that miss by far",
        "",
        "The worst of each set: true errors that are farther from the stated one than twice the half-width of the "
        "interval. Errors of standard deviations are logarithms of ratios.",
        "",
        table(_MISS_COLUMNS, _misses(rows)),
        "## Which set is the best",
        "",
        table(_RANKING_COLUMNS, map(_ranking, results.values())),
        "## What could not be judged",
        "",
        table({"model": "model", "set": "draws", "why": "why"}, _refused(results)),
        "## Models",
        "",
        "Coordinates whose truth is that of a long NUTS run, and the largest distance of that run from the published "
        "means of parameters, in standard deviations.",
        "",
        table(_MODEL_COLUMNS, map(_model, results.values())),
        "## Set by set",
        "",
        "b² is the mean over parameters of squared errors of means; the last columns are of the parameter whose mean "
        "is off most.",
        "",
        table(_SET_COLUMNS, map(_set, rows)),
    ]
    return "\n".join(lines)


_COLUMNS = {
    "sets": "sets", "right": "verdict right", "wrong": "wrong", "too close": "too close", "not known": "not known",
    "refused": "no report", "within": "within 0.1, in truth", "rejected": "rejected",
    **{
        f"{part} {what}": f"{title}{what}"
        for part, title in (("means", "means "), ("sds", "sds "), ("corrected", "parameters "))
        for what in ("stated", "covered", "sign right")
    },
}  # fmt: skip


def _grouped(rows: list[Row], by: Callable[[Row], str], order: Iterable[str] = ()) -> list[Row]:
    groups: dict[str, list[Row]] = {name: [] for name in order}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    found = [_counted(name, members) for name, members in groups.items() if members]
    return [*found, _counted("all", rows)]


def _counted(name: str, rows: list[Row]) -> Row:
    outcomes = Counter(row["outcome"] for row in rows if "outcome" in row)
    found: Row = {
        "set": name, "sets": len(rows), **{each: outcomes[each] for each in _OUTCOMES},
        "refused": sum("outcome" not in row for row in rows), "within": sum(row.get("fits") is True for row in rows),
        "rejected": sum(row.get("rejected", False) for row in rows),
    }  # fmt: skip
    for part in ("means", "sds", "corrected"):
        counts: Counter = Counter()
        for row in rows:
            counts.update({key: n for key, n in row.get(part, {}).items() if isinstance(n, int)})
        for what, of in (("stated", "all"), ("covered", "stated"), ("sign right", "signed")):
            found[f"{part} {what}"] = counts[what] / counts[of] if counts[of] else None
    return found


_WRONG_COLUMNS = {
    "model": "model", "set": "draws", "said": "good enough", "mean": "mean that is off most",
    "sd": "sd that is off most", "effective": "effective draws", "r_hat": "R-hat", "verdict": "verdict",
}  # fmt: skip


def _verdict(row: Row) -> Row:
    mean, sd = row["worst mean"], row["worst sd"]
    return {
        "model": row["model"], "set": row["set"], "said": row["good enough"],
        "mean": f"{mean['name']}: {mean['error']:+.3f}", "sd": f"{sd['name']}: {sd['error']:+.1%}",
        "effective": f"{row['effective draws']:.0f}", "r_hat": row["largest R-hat"], "verdict": row["verdict"],
    }  # fmt: skip


_MISS_COLUMNS = {
    "model": "model", "set": "draws", "what": "error of", "name": "of", "stated": "stated", "interval": "interval",
    "true": "true", "count": "missed so far", "of": "of stated",
}  # fmt: skip


def _misses(rows: list[Row]) -> list[Row]:
    titles = {"means": "a mean", "sds": "a standard deviation", "corrected": "the mean of a parameter"}
    return [
        {
            "model": row["model"], "set": row["set"], "what": title, "name": miss["name"], "stated": miss["stated"],
            "interval": "{:.3f} … {:.3f}".format(*miss["interval"]), "true": miss["true"], "count": miss["count"],
            "of": row[part]["stated"],
        }
        for row in rows
        for part, title in titles.items()
        if (miss := row.get(part, {}).get("worst miss"))
    ]  # fmt: skip


_RANKING_COLUMNS = {
    "model": "model", "chosen": "chosen", "error": "its error", "best": "least error", "least": "that error",
    "is_as_good": "said to be as good", "right": "right", "as_good": "as good as the chosen", "undecided": "undecided",
}  # fmt: skip


def _ranking(found: Mapping[str, Any]) -> Row:
    ranking = found.get("ranking", {})
    if "chosen" not in ranking:
        return {"model": found["model"], "chosen": ranking.get("refused", found.get("failed"))}
    return {
        "model": found["model"], "chosen": ranking["chosen"], "error": ranking["error of the chosen"],
        "best": ranking["best"], "least": ranking["error of the best"],
        "is_as_good": "yes" if ranking["best"] in ranking["as good"] else "no",
        "right": "yes" if ranking["right"] else "no",
        "as_good": "; ".join(ranking["as good"][1:]), "undecided": "; ".join(ranking["undecided"]),
    }  # fmt: skip


def _refused(results: Results) -> list[Row]:
    found = [
        {"model": each["model"], "set": "all", "why": each["failed"]} for each in results.values() if "failed" in each
    ]
    for row in rows_of(results):
        why = row.get("refused") or row.get("corrected", {}).get("refused")
        if why:
            found.append({"model": row["model"], "set": row["set"], "why": why.replace("\n", " ").replace("|", "\\|")})
    return found


_MODEL_COLUMNS = {
    "model": "model", "dim": "coordinates", "long": "from a long run", "off": "distance",
    "contradicted": "held to", "seconds": "seconds",
}  # fmt: skip


def _model(found: Mapping[str, Any]) -> Row:
    if "failed" in found:
        return {"model": found["model"], "dim": "failed"}
    return {
        "model": found["model"], "dim": found["dim"], "long": found["long run"], "off": found["long run off"],
        "contradicted": "the run, which contradicts what is published" if found.get("contradicted") else "publication",
        "seconds": ", ".join(f"{name} {value:.0f}" for name, value in found["seconds"].items()),
    }  # fmt: skip


_SET_COLUMNS = {
    "model": "model", "set": "draws", "effective": "effective", "r_hat": "R-hat", "said": "good enough",
    "fits": "in truth", "outcome": "verdict", "rejected": "rejected", "mean": "worst mean", "sd": "worst sd", "b": "b²",
    "name": "parameter off most", "true": "true error", "stated": "stated", "interval": "interval",
}  # fmt: skip


def _set(row: Row) -> Row:
    found: Row = {
        "model": row["model"],
        "set": row["set"],
        "b": row.get("b²"),
        "outcome": row.get("outcome", "no report"),
    }
    if "worst mean" in row:
        found |= {
            "fits": {True: "yes", False: "no", None: "too close"}[row["fits"]],
            "mean": f"{row['worst mean']['error']:+.3f}", "sd": f"{row['worst sd']['error']:+.1%}",
        }  # fmt: skip
    if "outcome" in row:
        found |= {
            "effective": f"{row['effective draws']:.0f}", "r_hat": row["largest R-hat"],
            "said": {True: "yes", False: "no", None: "not known"}[row["good enough"]],
            "rejected": "yes" if row["rejected"] else "no",
        }  # fmt: skip
    if (worst := row.get("corrected", {}).get("at the worst")) is not None:
        found |= {
            "name": worst["name"], "true": worst["true"],
            "stated": "not known" if worst["stated"] is None else worst["stated"],
            "interval": "{:.3f} … {:.3f}".format(*worst["interval"]) if "interval" in worst else None,
        }  # fmt: skip
    return found


# --- picture ----------------------------------------------------------------------------------------------

_MARKERS = {"NUTS": "*", "MALA": "o", "MCLMC": "s", "mean field": "^", "Pathfinder": "v"}
_COLOURS = {"too small": "tab:blue", "good": "tab:green", "too large": "tab:red"}

# Errors below the one are drawn there; those that are not known lie in a band below the other.
_LEAST, _BAND = 1e-3, 4e-4


def draw(results: Results) -> Any:
    """Stated against true errors of the parameter that is off most, of each set of draws."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(8, 6.5), layout="constrained")
    rng, most = np.random.default_rng(0), 1.0
    for row in rows_of(results):
        if (worst := row.get("corrected", {}).get("at the worst")) is None:
            continue
        label = _KINDS[row["set"]]
        name, _, step = label.partition(", ")
        style = {
            "marker": _MARKERS[name], "color": _COLOURS.get(step, "black" if name == "NUTS" else "tab:purple"),
            "markersize": 10 if name == "NUTS" else 6, "linestyle": "", "alpha": 0.8,
        }  # fmt: skip
        true = max(abs(worst["true"]), _LEAST)
        if worst["stated"] is None:
            ax.plot(true, _BAND * np.exp(rng.uniform(-0.35, 0.35)), **style)
            most = max(most, true)
            continue
        stated = max(abs(worst["stated"]), _LEAST)
        most = max(most, true, stated)
        # On the side of the true error, so that a line that crosses the diagonal has it.
        ends = np.sign(worst["true"]) * np.array(worst["interval"])
        ax.plot([true, true], np.clip([ends.min(), ends.max()], _LEAST, None), color=style["color"], alpha=0.3, lw=1)
        filled = worst["stated"] * worst["true"] > 0
        ax.plot(true, stated, markerfacecolor=style["color"] if filled else "white", **style)
    limits = np.array([_LEAST, 2 * most])
    ax.plot(limits, limits, color="grey", lw=1, zorder=0)
    ax.axhspan(_BAND / 2, _BAND * 2, color="whitesmoke", zorder=0)
    ax.text(_LEAST, _BAND * 1.1, "not known", va="center", ha="left", color="grey")
    ax.set(
        xscale="log", yscale="log", xlim=(_LEAST / 1.3, limits[1]), ylim=(_BAND / 2, limits[1]),
        xlabel="true error of the mean, in standard deviations", ylabel="stated error",
        title="Means of parameters that are off most, one of each set of draws",
    )  # fmt: skip
    handles = [
        ax.plot([], [], linestyle="", marker=marker, color="black" if name == "NUTS" else "grey", label=name)[0]
        for name, marker in _MARKERS.items()
    ]
    handles += [
        ax.plot(
            [], [], linestyle="", marker=".", color=colour, label=f"step {step}" if step != "good" else "good step"
        )[0]
        for step, colour in _COLOURS.items()
    ]
    handles.append(
        ax.plot([], [], linestyle="", marker="o", color="grey", markerfacecolor="white", label="wrong sign")[0]
    )
    ax.legend(handles=handles, fontsize=8, loc="upper left")
    return figure
