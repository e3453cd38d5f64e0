"""The package as a whole: what it exports, what it imports, and in which direction."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

import jaxpsd

PACKAGE = Path(jaxpsd.__file__).parent
ROOMS = [
    "_core",
    "_stein",
    "_discrepancies",
    "_gof",
    "_explain",
    "_choose",
    "_scale",
    "adapters",
    "plots",
    "demo",
    "cli",
]


def test_every_public_name_exists_and_is_documented():
    for name in jaxpsd.__all__:
        assert getattr(jaxpsd, name).__doc__, name
    modules = {path.stem for path in PACKAGE.iterdir()}
    public = {name for name in dir(jaxpsd) if not name.startswith("_")} - modules
    assert public - {"Any", "TYPE_CHECKING", "import_module"} == set(jaxpsd.__all__)


# What only comes out of a function that has an example.
RESULTS = {
    "Comparison", "CorrectedExpectation", "DetectableErrors", "Discrepancy", "Finding", "FunctionChange", "GofResult",
    "ImpliedErrors", "MomentTable", "OptimizedFSSD", "Ranking", "Relaxation", "Report", "Stream", "Tuning",
}  # fmt: skip
FUNCTIONS = [name for name in jaxpsd.__all__ if name not in RESULTS and not name.endswith("Warning")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_name_has_an_example(name):
    assert ">>>" in getattr(jaxpsd, name).__doc__


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if not room_of(path).startswith("__")]


def test_every_module_is_in_a_room_that_the_package_names():
    assert {room_of(path) for path in MODULES} == set(ROOMS)
    places = [jaxpsd.__doc__.index(f"\n{room}") if room.startswith("_") else 0 for room in ROOMS]
    assert places[: ROOMS.index("adapters")] == sorted(places[: ROOMS.index("adapters")])


def imports_of(path):
    """Modules of the package that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "jaxpsd":
            _, *inside = node.module.split(".")
            yield from ([inside[0]] if inside else [alias.name for alias in node.names if alias.name in ROOMS])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_use_only_those_above(path):
    own = ROOMS.index(room_of(path))
    assert all(ROOMS.index(room) <= own for room in imports_of(path))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_is_longer_than_one_sitting(path):
    assert len(path.read_text().splitlines()) < 400


CONTRIBUTING = Path(__file__).parents[1] / ".github" / "CONTRIBUTING.md"
# What the walk through a call names, and where: `run` (`_core/programs`).
NAMED = re.findall(r"`([\w.]+)`\s+\(`(\w+/\w+)`\)", CONTRIBUTING.read_text())


def test_the_walk_names_enough_to_follow():
    assert len(NAMED) >= 10


@pytest.mark.parametrize(("name", "place"), NAMED, ids=lambda part: part)
def test_what_the_walk_names_is_there(name, place):
    module = import_module("jaxpsd." + place.replace("/", "."))
    assert attrgetter(name)(module)


# All that needs no other library.
_LOAD = "import jaxpsd; [getattr(jaxpsd, name) for name in jaxpsd.__all__ if not name.startswith('from_')]"


def test_what_type_checkers_see_is_where_names_are_loaded_from():
    (block,) = (node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    seen = {alias.name: line.module.removeprefix("jaxpsd.") for line in block.body for alias in line.names}
    assert seen == jaxpsd._HOME_OF
    assert sorted(seen) == sorted(jaxpsd.__all__)


@pytest.fixture(scope="module")
def imported():
    """What a program of its own finds once all is loaded: optional dependencies, and settings that have changed."""
    optional = ["numpyro", "arviz", "matplotlib", "blackjax", "optax", "chex", "pandas", "xarray", "beartype", "tqdm"]
    optional += ["pymc", "pytensor", "nutpie", "stan", "bridgestan"]
    code = (
        f"import json, sys, jax\nbefore = dict(jax.config.values)\n{_LOAD}\n"
        f"loaded = [name for name in {optional} if name in sys.modules]\n"
        "changed = [name for name, value in jax.config.values.items() if name not in before or before[name] != value]\n"
        "print(json.dumps([loaded, changed + [name for name in before if name not in jax.config.values]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_pulls_in_no_optional_dependency(imported):
    assert imported[0] == []


def test_importing_changes_no_setting(imported):
    assert imported[1] == []


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_a_missing_extra_says_how_to_install_it():
    # All in one program, which prints what each remedy is.
    script = "\n".join(
        [
            "import sys, traceback",
            "sys.modules.update(dict.fromkeys(['numpyro', 'pymc', 'matplotlib']))",
            "import jaxpsd",
            "for code in ('jaxpsd.from_numpyro', 'jaxpsd.from_pymc(None)', 'import jaxpsd.plots'):",
            "    try:",
            "        exec(code)",
            "    except ImportError:",
            "        print(traceback.format_exc().splitlines()[-1])",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for extra, remedy in zip(("numpyro", "pymc", "plots"), done.stdout.splitlines(), strict=True):
        assert f"pip install 'jaxpsd[{extra}]'" in remedy


def test_the_core_does_without_any_extra():
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['numpyro', 'arviz', 'xarray', 'matplotlib', 'blackjax']));"
        "import jax, jaxpsd; key = jax.random.key(0); x = jax.random.normal(key, (100, 2));"
        "print(jaxpsd.gof_test(key, jaxpsd.PSD(1), -x, x, num_replicates=50))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "p = " in done.stdout


def test_pictures_need_no_import_of_their_own():
    script = "import sys, jaxpsd; assert 'matplotlib' not in sys.modules; print(jaxpsd.plots.report.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "report\n"
