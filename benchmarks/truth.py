"""Whether what a report says is true, on targets whose truth is known.

Every target of the zoo, every kind of draws: stated errors of means and standard deviations and their intervals, the
sentences of findings, verdicts, and what "would have shown", against what these very draws have wrong. Run with
`python -m benchmarks.truth`; interrupted, it goes on where it stopped.
"""

import argparse
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax

import jaxpsd
from benchmarks._harness import RESULTS, Pieces, run_pieces, table, write_at_one_stroke
from benchmarks._zoo import DIMS, kinds, targets
from benchmarks._zoo.reading import judge

SIZES = (500, 2000, 10_000)


def repeats_of(dim: int) -> int:
    """A report on a hundred coordinates takes seconds, on a few of them a fraction of one."""
    return 10 if dim <= 5 else 5 if dim <= 20 else 1


def cells(dim: int, n: int, repeats: int, only: int | None = None) -> list[dict[str, Any]]:
    """Every target of a dimension by kind of draws: they share what is compiled."""
    rows = []
    for name, target in list(targets(dim).items())[:only]:
        for label, kind in kinds(target).items():
            seed, counts, wrong = zlib.crc32(f"{name}, {label}, {n}".encode()), Counter(), {}
            for key in jax.random.split(jax.random.key(seed), repeats):
                draw, look = jax.random.split(key)
                x = kind(draw, n)
                report = jaxpsd.diagnose(look, target.logdensity, x, names=target.names)
                found, sentences = judge(report, target, kind, x)
                counts += found
                # One of each kind will do.
                wrong = {each["about"]: each for each in sentences} | wrong
            rows.append(
                {
                    "target": name, "kind": label, "n": n, "held_out": target.held_out, "right": kind.is_right,
                    "counts": {key: counts[key] for key in sorted(counts)}, "wrong": list(wrong.values()),
                }
            )  # fmt: skip
    return rows


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {"d = 2, n = 200": partial(cells, 2, 200, 1, 1)}
    return {f"d = {dim}, n = {n}": partial(cells, dim, n, repeats_of(dim)) for dim in DIMS for n in SIZES}


# --- tables -----------------------------------------------------------------------------------------------


def summed(rows: Iterable[Mapping[str, Any]]) -> Counter:
    total: Counter = Counter()
    for row in rows:
        total.update(row["counts"])
    return total


def shares(counts: Counter) -> dict[str, float | None]:
    """How much is stated, how much of that is covered, how often the sign is right, and how wide intervals are."""

    def share(part: str, of: str) -> float | None:
        return counts[part] / counts[of] if counts[of] else None

    found: dict[str, float | None] = {"reports": counts["reports"]}
    for name in ("mean", "sd"):
        width = share(f"{name}: width", f"{name}: stated")
        found |= {
            f"{name} stated": share(f"{name}: stated", f"{name}: all"),
            f"{name} covered": share(f"{name}: covered", f"{name}: stated"),
            f"{name} sign": share(f"{name}: sign right", f"{name}: signed"),
            f"{name} width": None if width is None else width / 1000,
        }
    return found | {"rejected": share("verdict: not from the target", "reports")}


_COLUMNS = {
    "reports": "reports", "rejected": "rejected",
    "mean stated": "means stated", "mean covered": "covered", "mean sign": "sign right", "mean width": "half-width",
    "sd stated": "sds stated", "sd covered": "covered", "sd sign": "sign right", "sd width": "half-width",
}  # fmt: skip


def grouped(rows: list[dict[str, Any]], by: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple, list] = defaultdict(list)
    for row in rows:
        groups[tuple(by(row).items())].append(row)
    return [{**dict(group), **shares(summed(members))} for group, members in groups.items()]


def _family(row: Mapping[str, Any]) -> str:
    return "held out" if row["held_out"] else "Gaussian" if row["target"].startswith("Gaussian") else "not Gaussian"


def verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    right, wrong = (summed(row for row in rows if row["right"] is is_right) for is_right in (True, False))
    names = sorted(key for key in right | wrong if key.startswith("verdict: "))
    return [{"verdict": key.split(": ")[1], "right": right[key], "wrong": wrong[key]} for key in names]


def sentences(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    total = summed(rows)
    found = []
    for key in sorted(total):
        if not key.startswith("sentences: "):
            continue
        about = key.removeprefix("sentences: ")
        examples = [(row, each) for row in rows for each in row["wrong"] if each["about"] == about]
        text = ""
        if examples:
            row, each = examples[len(examples) // 2]
            text = f"{row['target']}, {row['kind']}, n = {row['n']}: “{each['text']}” (truth: {each['truth']})"
        wrong, said = total[f"wrong: {about}"], total[key]
        found.append({"about": about, "said": said, "wrong": wrong, "share": wrong / said, "example": text})
    return found


def render(results: Mapping[str, list[dict[str, Any]]]) -> str:
    rows = [row for piece in results.values() for row in piece]
    total = summed(rows)
    right = shares(summed(row for row in rows if row["right"]))["rejected"]
    lines = [
        "# Is what reports say true?",
        "",
        f"{total['reports']:,} reports. An interval covers if it has what these very draws have wrong, with 0.002 of "
        "slack for digits; signs are judged where an interval leaves out zero. Half-widths are means over what is "
        "stated.",
        "",
        "## Together",
        "",
        table(
            {"set": "targets", "n": "n", **_COLUMNS},
            [
                {"set": "all", "n": "all", **shares(total)},
                *grouped(rows, lambda row: {"set": "all", "n": row["n"]}),
                *grouped(rows, lambda row: {"set": _family(row), "n": "all"}),
            ],
        ),
        f"Share of right draws that are said not to be from the target: {right or 0:.3f} (0.05 intended).",
        "",
        "## By kind of draws",
        "",
        table({"kind": "draws", **_COLUMNS}, grouped(rows, lambda row: {"kind": row["kind"]})),
        "## Verdicts",
        "",
        table({"verdict": "verdict", "right": "draws that are right", "wrong": "others"}, verdicts(rows)),
        "## Sentences",
        "",
        "In what units a thing is the worst: its error over what chance makes of it, that is mean errors in standard "
        "deviations, log ratios of standard deviations times √2, correlations by Fisher's transform; a combination is "
        "compared with the worst direction. It has to be at least 75% of the worst.",
        "",
        table(
            {"about": "sentence", "said": "said", "wrong": "wrong", "share": "share", "example": "one of them"},
            sentences(rows),
        ),
        "## By target and kind of draws",
        "",
        table(
            {"target": "target", "kind": "draws", **_COLUMNS},
            grouped(rows, lambda row: {"target": row["target"], "kind": row["kind"]}),
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.truth")
    parser.add_argument("--smoke", action="store_true", help="toy sizes, in seconds; nothing is written")
    smoke = parser.parse_args().smoke
    text = render(run_pieces(RESULTS / "truth.json", pieces, smoke=smoke))
    print(text)
    if not smoke:
        write_at_one_stroke(RESULTS / "truth.md", text)


if __name__ == "__main__":
    main()
