"""Whether what a report says is true, on targets whose truth is known.

Every target of the zoo, every kind of draws: stated errors of means and standard deviations and their intervals, the
sentences of findings, verdicts, whether draws are good enough, what became of moved draws, and what "would have shown",
against what these very draws have wrong. Run with `python -m benchmarks.truth`; interrupted, it goes on where it
stopped.
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
from benchmarks._zoo import DIMS, Kind, KnownTarget, kinds, targets
from benchmarks._zoo.judging import SHARE_OF_WORST, Judged, judge

SIZES = (500, 2000, 10_000)


def repeats_of(dim: int, n: int) -> int:
    """A report on a hundred coordinates takes seconds, on a few of them a fraction of one."""
    if dim > 20 or n > 2000:
        return 1
    return 3 if n == 2000 and dim <= 5 else 2


def cells(dim: int, n: int, repeats: int, only: int | None = None) -> list[dict[str, Any]]:
    """Every target of a dimension by kind of draws: they share what is compiled."""
    rows = []
    for name, target in list(targets(dim).items())[:only]:
        for label, kind in kinds(target).items():
            seed = zlib.crc32(f"{name}, {label}, {n}".encode())
            keys = jax.random.split(jax.random.key(seed), repeats)
            rows += rows_of(target, label, kind, n, [_one(target, kind, n, key) for key in keys])
    return rows


def _one(target: KnownTarget, kind: Kind, n: int, key: jax.Array) -> Judged:
    draw, look = jax.random.split(key)
    x = kind(draw, n)
    try:
        report = jaxpsd.diagnose(look, target.logdensity, x, names=target.names)
    except Exception as error:
        # A report that is not there is something to count, and no reason to lose the others.
        return Judged.crashed(error)
    return judge(report, target, kind, x)


def rows_of(target: KnownTarget, label: str, kind: Kind, n: int, judged: list[Judged]) -> list[dict[str, Any]]:
    """One for a kind of draws; those that miss a mode apart."""
    rows = []
    for misses in sorted({each.misses_a_mode for each in judged}):
        counts, wrong = Counter(), []
        for each in judged:
            if each.misses_a_mode is misses:
                counts.update(each.counts)
                wrong += each.wrong
        rows.append(
            {
                "target": target.name, "kind": label, "n": n, "held_out": target.held_out, "right": kind.is_right,
                "misses_a_mode": misses, "counts": {key: counts[key] for key in sorted(counts)},
                # One of each kind will do.
                "wrong": list({each["about"]: each for each in reversed(wrong)}.values()),
            }
        )  # fmt: skip
    return rows


def pieces(smoke: bool) -> Pieces:
    if smoke:
        return {"d = 2, n = 200": partial(cells, 2, 200, 1, 1)}
    return {f"d = {dim}, n = {n}": partial(cells, dim, n, repeats_of(dim, n)) for dim in DIMS for n in SIZES}


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
    return found | {"rejected": share("rejected", "reports"), "crashed": counts["crashed"] or None}


_COLUMNS = {
    "reports": "reports", "crashed": "crashed", "rejected": "rejected",
    "mean stated": "means stated", "mean covered": "covered", "mean sign": "sign right", "mean width": "half-width",
    "sd stated": "sds stated", "sd covered": "covered", "sd sign": "sign right", "sd width": "half-width",
}  # fmt: skip


def grouped(rows: list[dict[str, Any]], by: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple, list] = defaultdict(list)
    for row in rows:
        groups[tuple(by(row).items())].append(row)
    return [{**dict(group), **shares(summed(members))} for group, members in groups.items()]


def _family(row: Mapping[str, Any]) -> str:
    if row["misses_a_mode"]:
        return "a mode that no draw has visited"
    return "held out" if row["held_out"] else "Gaussian" if row["target"].startswith("Gaussian") else "not Gaussian"


def _labelled(row: Mapping[str, Any]) -> str:
    return row["kind"] + ", a mode not visited" * row["misses_a_mode"]


_FAMILIES = ("Gaussian", "not Gaussian", "held out", "a mode that no draw has visited")


def verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    right, wrong = (summed(row for row in rows if row["right"] is is_right) for is_right in (True, False))
    names = sorted(key for key in right | wrong if key.startswith("verdict: "))
    return [{"verdict": key.split(": ")[1], "right": right[key], "wrong": wrong[key]} for key in names]


def levels(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How often draws that are right are said not to be from the target, and what says so."""
    found = []
    for label in ("exact", "MALA"):
        counts = summed(row for row in rows if row["kind"] == label)
        parts = {
            "test": counts["rejected by the test"],
            "moves": counts["rejected by moves"],
            "either": counts["rejected"],
        }
        found.append({"kind": label, "reports": counts["reports"], "moved": counts["moves: reports"], **parts})
    return found


def good_enough(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is said, by what is true."""
    found = []
    for family in _FAMILIES:
        counts = summed(row for row in rows if _family(row) == family)
        found += [
            {"set": family, "said": {"True": "yes", "False": "no", "None": "cannot be told"}[said]}
            | {f"is {fits}": counts[f"good enough: {said}, in truth {fits}"] for fits in (True, False)}
            for said in ("True", "False", "None")
        ]
    return found


_SIZES_OF_MOVES = ("away from the target", "less than half", "about all", "more than 1.5 times")


def moves(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether moved draws go to where the target is, and how far of the way, where that is said."""
    found = []
    for is_right in (True, False):
        counts = summed(row for row in rows if row["right"] is is_right)
        for quantity in ("mean", "standard deviation"):
            cells = {size: counts[f"moves: {quantity}, {size}"] for size in ("said", *_SIZES_OF_MOVES)}
            found.append({"kind": "right" if is_right else "others", "quantity": quantity, **cells})
    return found


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
    visited = [row for row in rows if not row["misses_a_mode"]]
    total = summed(rows)
    lines = [
        "# Is what reports say true?",
        "",
        f"{total['reports']:,} reports. An interval covers if it has what these very draws have wrong, with 0.002 of "
        "slack for digits; signs are judged where an interval leaves out zero. Half-widths are means over what is "
        "stated. Draws of one mode of two are right as far as scores can tell, and stand apart.",
        "",
        "## Together",
        "",
        table(
            {"set": "targets", "n": "n", **_COLUMNS},
            [
                {"set": "all but modes that no draw has visited", "n": "all", **shares(summed(visited))},
                *grouped(visited, lambda row: {"set": "all but modes that no draw has visited", "n": row["n"]}),
                *grouped(rows, lambda row: {"set": _family(row), "n": "all"}),
            ],
        ),
        "## By kind of draws",
        "",
        "Without modes that no draw has visited.",
        "",
        table({"kind": "draws", **_COLUMNS}, grouped(visited, lambda row: {"kind": row["kind"]})),
        "## Draws that are right, said not to be from the target",
        "",
        "By the test, intended in 5 of 100, and by moved draws, in 1 of 100 where there are any.",
        "",
        table(
            {
                "kind": "draws", "reports": "reports", "test": "by the test", "moved": "with moved draws",
                "moves": "by these", "either": "by either",
            },
            levels(rows),
        ),
        "## Verdicts",
        "",
        table({"verdict": "verdict", "right": "draws that are right", "wrong": "others"}, verdicts(rows)),
        "## Good enough?",
        "",
        table(
            {"set": "targets", "said": "said", "is True": "they are", "is False": "they are not"}, good_enough(rows)
        ),
        "## Sentences",
        "",
        "A sentence's number is held to the interval it prints. A thing named as the worst has to have at least "
        f"{SHARE_OF_WORST:.0%} of the largest error there is: of means in standard deviations, of logarithms of "
        "standard deviations, of correlations by Fisher's transform; a combination is compared with the worst "
        "direction. What would have shown in four of five cases is asked where the law of the draws is off by as "
        "much.",
        "",
        table(
            {"about": "sentence", "said": "said", "wrong": "wrong", "share": "share", "example": "one of them"},
            sentences(visited),
        ),
        "## Moved draws",
        "",
        "How far they go of the way to the target, where it is said that they go. Nothing is claimed of it.",
        "",
        table(
            {"kind": "draws", "quantity": "quantity", "said": "said", **{size: size for size in _SIZES_OF_MOVES}},
            moves(visited),
        ),
        "## By target and kind of draws",
        "",
        table(
            {"target": "target", "kind": "draws", **_COLUMNS},
            grouped(rows, lambda row: {"target": row["target"], "kind": _labelled(row)}),
        ),
    ]  # fmt: skip
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
