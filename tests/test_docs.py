"""The documentation says what the code does: names, links, messages and figures.

Its examples are run as doctests, like those of the README.
"""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import numpy as np
import pytest
import scipy.stats

import jaxpsd
import jaxpsd.plots

ROOT = Path(__file__).parents[1]
DOCS = ROOT / ".github" / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
OTHERS = sorted((ROOT / ".github").glob("*.md"))


def name_of(path):
    return str(path.relative_to(ROOT))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE = ROOT / ".github" / "site"
site = load(SITE / "pages.py")


def test_the_reference_has_every_public_name_once():
    reference = "\n".join(path.read_text() for path in sorted((DOCS / "reference").glob("*.md")))
    assert sorted(re.findall(r"^::: jaxpsd\.(\w+)$", reference, re.MULTILINE)) == sorted([*jaxpsd.__all__, "plots"])


def test_the_reference_has_every_picture():
    listed = re.search(r"members: \[(.*)\]", (DOCS / "reference" / "plots.md").read_text())[1].split(", ")
    assert sorted(listed) == sorted(jaxpsd.plots.__all__)
    guide = (DOCS / "guides" / "errors.md").read_text()
    assert all(f"`{name}(" in guide or f"`plots.{name}(" in guide for name in listed)


def test_the_readme_is_read_at_one_sitting():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180


# The table "your question, function, page", in the README and in `help(jaxpsd)`.
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "README.md").read_text().split("| your question |")[1].split("\n\n")[0].splitlines()[2:]
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_functions_in_the_table_of_questions_exist_and_are_on_their_pages(row):
    _, functions, page = row
    text = (ROOT / re.search(r"\]\(([^)]+)\)", page)[1]).read_text()
    for function in re.findall(r"`(\w+)`", functions):
        assert function in jaxpsd.__all__
        assert re.search(rf"\b{function}\b", text)


def test_help_names_the_functions_of_the_table():
    for function in re.findall(r"`(\w+)`", " ".join(row[1] for row in ROWS)):
        assert re.search(rf"\b{function}\b", jaxpsd.__doc__), function


@pytest.mark.slow
def test_the_first_example_runs_with_what_the_set_up_installs():
    example = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = "\n".join(line[4:] for line in example.splitlines() if line.startswith((">>>", "...")))
    extras = "import sys; sys.modules.update(dict.fromkeys(['numpyro', 'arviz', 'xarray', 'blackjax', 'chex']))\n"
    done = subprocess.run([sys.executable, "-c", extras + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("These draws are not from the target")


def test_the_log_density_on_the_page_of_the_command_line_is_that_of_its_model(tmp_path):
    page = (DOCS / "guides" / "command_line.md").read_text()
    (tmp_path / "model.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    model = load(tmp_path / "model.py")
    header, *rows = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1].splitlines()
    draws = [dict(zip(header.split(","), map(float, row.split(",")), strict=True)) for row in rows]

    def right(mu, log_tau):
        tau = np.exp(log_tau)
        prior = scipy.stats.norm.logpdf(mu, 0, 10) + scipy.stats.expon.logpdf(tau)
        return prior + scipy.stats.norm.logpdf(np.asarray(model.y), mu, tau).sum() + log_tau

    off = [float(model.logdensity(draw)) - right(**draw) for draw in draws]
    # Up to a constant.
    np.testing.assert_allclose(off, off[0], rtol=1e-5)


# --- links ------------------------------------------------------------------------------------------------


def anchors_of(path):
    """Headings of a page as GitHub and mkdocs name them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_links_lead_somewhere(page):
    for address in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        link = urlsplit(address)
        if link.scheme:
            continue
        path = (page.parent / link.path).resolve() if link.path else page
        assert path.exists(), address
        assert not link.fragment or link.fragment in anchors_of(path), address


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / ".github" / "mkdocs.yml").read_text().split("\nnav:")[1]
    on_site = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    on_site |= {place for place in site.files_shown() if not place.endswith(".png")}
    named = set(re.findall(r"[\w/]+\.(?:md|ipynb)", navigation))
    # Results that are not named come last, by themselves.
    assert on_site - named <= set(site.results_shown())
    assert named <= on_site


def test_links_between_files_lead_to_pages_of_the_site():
    page = "[a](../../../benchmarks/results/level.md#x) ![b](../../../benchmarks/figures/draws.png) [c](chains.md) "
    page += "[d](../../../benchmarks/distributed.py) [e](https://docs.jax.dev)"
    source, place = PurePosixPath(".github/docs/guides/limits.md"), "guides/limits.md"
    there = "[a](../evidence/results/level.md#x) ![b](../evidence/figures/draws.png) [c](chains.md) "
    rest = " [e](https://docs.jax.dev)"
    code = "[d](https://code/blob/main/benchmarks/distributed.py)"
    assert site.with_links(page, source, place, "https://code") == there + code + rest
    assert site.with_links(page, source, place, "") == there + "d" + rest


def test_examples_can_be_copied_without_prompts():
    page = "```python\n>>> 1 + 1\n2\n\n```\n\n```python\nx = 1\n```\n"
    assert site.with_sessions(page) == page.replace("python\n>>>", "pycon\n>>>")


# --- figures ----------------------------------------------------------------------------------------------


def test_tables_of_speed_are_those_of_the_results():
    page = site.with_results((DOCS / "how" / "speed.md").read_text())
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert rows
    assert set(rows) <= set((ROOT / "benchmarks" / "results" / "speed.md").read_text().splitlines())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_table_of_results_is_copied_by_hand(page):
    results = {
        line
        for path in (ROOT / "benchmarks").rglob("*.md")
        for line in path.read_text().splitlines()
        if line.startswith("|") and re.search(r"\d\.\d", line)
    }
    assert not results & set(page.read_text().splitlines())


def measured_levels():
    """How often tests of one order reject correct draws: (study and case, basis, order) → share."""
    results = ROOT / "benchmarks" / "results"
    level = json.loads((results / "level.json").read_text())["pieces"]
    for case, piece in level.items():
        if case.startswith(("independent", "correct chains")):
            rows = piece["result"].items()
        elif case.startswith("method"):
            rows = [(row["statistic"], row["level"]) for row in piece["result"]]
        else:
            continue
        for label, share in rows:
            if found := re.match(r"(raw|orthonormal) (\d)", label):
                yield f"level, {case}", found[1], int(found[2]), share
    for case, piece in json.loads((results / "calibration.json").read_text())["pieces"].items():
        if "ULA" in case:
            continue
        basis = "orthonormal" if case.endswith("target") else "raw"
        for method, shares in piece["result"].items():
            for order in (1, 2, 3, 4):
                if (share := shares.get(f"r = {order}")) is not None:
                    yield f"calibration, {case}, {method}", basis, order, share


def test_levels_in_the_documentation_of_a_test_are_those_measured():
    said = " ".join(jaxpsd.gof_test.__doc__.split())
    levels = {(case, basis, order): share for case, basis, order, share in measured_levels()}

    def worst(of):
        return round(100 * max(share for (case, basis, order), share in levels.items() if of(case, basis, order)))

    def raw_four(words):
        return worst(lambda case, basis, order: order == 4 and basis == "raw" and words in case)

    assert f"orders 1 to 3 reject correct draws in at most {worst(lambda case, basis, order: order < 4)}%" in said
    assert f"reject {raw_four('independent: d = 1, n = 50')}% of sets of fifty draws" in said
    assert f"and {raw_four('d = 1, n = 1000')}% of sets of a thousand" in said
    assert f"up to {raw_four('heavy tails, independent')}% of sets of a thousand from a target with heavy tails" in said
    assert f"at most {worst(lambda case, basis, order: basis == 'orthonormal')}%, of any order" in said


def test_committed_results_are_on_the_site():
    shown = set(site.files_shown().values())
    assert set((ROOT / "benchmarks" / "results").glob("*.md")) <= shown
    assert ROOT / "benchmarks" / "paper" / "REPORT.md" in shown
    assert set((ROOT / "notebooks").glob("*.ipynb")) <= shown


@pytest.mark.slow
def test_the_picture_of_a_verdict_can_be_drawn_again(tmp_path):
    load(SITE / "verdict.py").main(tmp_path)
    assert (tmp_path / "verdict.png").stat().st_size < 100_000


# --- messages ---------------------------------------------------------------------------------------------


def texts_of(path):
    """What a module may say: strings, those with values in them with the expressions in braces."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                for part in node.values
            )


MESSAGES = (DOCS / "messages.md").read_text()
QUOTED = re.findall(r"^> (.*)$", MESSAGES, re.MULTILINE)


@pytest.fixture(scope="module")
def said():
    return [text for path in Path(jaxpsd.__file__).parent.rglob("*.py") for text in texts_of(path)]


@pytest.mark.parametrize("message", QUOTED)
def test_messages_that_are_explained_are_those_of_the_code(message, said):
    assert any(message in text for text in said)


def test_every_warning_is_explained():
    for name in jaxpsd.__all__:
        if name.endswith("Warning"):
            assert f"### {name}\n" in MESSAGES
