import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from adapters.stan_files import write_diagnostics

import jaxpsd
from jaxpsd import demo as _demo
from jaxpsd._gof.settings import BOOTSTRAPS, SIGNS, UNBIASED
from jaxpsd.cli import cache, main, options

X = np.random.default_rng(1).normal(size=(400, 2)).astype(np.float32)


@pytest.fixture
def files(tmp_path):
    for name, draws in (("right", X), ("wide", 1.5 * X[:300])):
        np.savez(tmp_path / f"{name}.npz", samples=draws, scores=-draws, names=["mu", "tau"])
    np.savez(tmp_path / "other.npz", samples=X, scores=-X, names=["a", "b"])
    np.save(tmp_path / "plain.npy", X)
    (tmp_path / "model.py").write_text("def logdensity(x):\n    return -0.5 * (x**2).sum()\n")
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """What is asked of tests, which are not made."""
    calls = []

    def test(*arguments, **options):
        calls.append((arguments, options))
        raise FloatingPointError("asked")

    monkeypatch.setattr("jaxpsd.adaptive_test", test)
    monkeypatch.setattr("jaxpsd.gof_test", test)
    return calls


def test_exit_codes_tell_right_from_wrong(files, capsys):
    assert main(["test", str(files / "right.npz")]) == 0
    assert capsys.readouterr().out.startswith("not rejected at 0.05: p = ")
    assert main(["test", str(files / "wide.npz"), "--order", "2", "--transform", "none"]) == 1
    assert capsys.readouterr().out.startswith("rejected at 0.05: p = ")


def test_a_log_density_will_do_for_scores(files, capsys):
    assert main(["test", str(files / "plain.npy"), "--logdensity", f"{files / 'model.py'}:logdensity"]) == 0
    first = capsys.readouterr().out
    np.save(files / "scores.npy", -X)
    assert main(["test", str(files / "plain.npy"), "--scores", str(files / "scores.npy")]) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    "arrays", [{"samples": X, "scores": -X, "names": ["mu", "tau"]}, {"scores": -X}, {"anything": -X}]
)
def test_a_file_of_scores_may_be_an_archive(files, asked, arrays):
    np.savez(files / "scores.npz", **arrays)
    main(["test", str(files / "plain.npy"), "--scores", str(files / "scores.npz")])
    (((_, target, _), _),) = asked
    np.testing.assert_array_equal(target, -X)


def test_the_adaptive_test_chooses_coordinates_unless_told(files, asked, capsys):
    file = str(files / "right.npz")
    for given, chosen in (([], "target"), (["whiten"], "whiten"), (["none"], None)):
        main(["test", file, *(["--transform", *given] if given else [])])
        assert asked.pop()[1]["transform"] == chosen
    main(["test", file, "--order", "2"])
    assert asked.pop()[0][1] == jaxpsd.PSD(2, basis="hermite", transform="target")
    main(["test", file, "--order", "2", "--transform", "center", "--basis", "monomial"])
    assert asked.pop()[0][1] == jaxpsd.PSD(2, transform="center")
    with pytest.raises(SystemExit):
        main(["test", "--help"])
    assert "(target: as draws and scores imply them)" in " ".join(capsys.readouterr().out.split())


def test_moments_are_listed(files, capsys):
    assert main(["moments", str(files / "wide.npz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["moments"][0]["monomial"] in ("mu²", "tau²")
    assert main(["moments", str(files / "wide.npz")]) == 0
    assert "sd / true sd" in capsys.readouterr().out


def test_files_are_ranked(files, capsys):
    assert main(["rank", str(files / "wide.npz"), f"good={files / 'right.npz'}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in found["ranking"]] == ["good", "wide"]
    assert main(["rank", str(files / "wide.npz"), str(files / "wide.npz")]) == 2
    assert "LABEL=FILE" in capsys.readouterr().err


@pytest.mark.slow
def test_a_report_is_printed(files, capsys):
    assert main(["diagnose", str(files / "wide.npz")]) == 1
    assert capsys.readouterr().out.startswith("These draws are not from the target")
    assert main(["diagnose", str(files / "wide.npz"), "--tolerance", "0.1", "--no-second-opinion"]) == 1
    assert "They are not good enough" in capsys.readouterr().out
    assert main(["diagnose", str(files / "right.npz"), "--json", "--float64"]) == 0
    assert json.loads(capsys.readouterr().out)["test"]["reject"] is False


@pytest.fixture
def diagnosed(monkeypatch):
    """Options of reports, which are not made; what they would say can be set."""
    said = {"good_enough": None, "reject": False, "options": [], "given": []}

    def diagnose(rng_key, target, samples, **options):
        said["options"].append(options)
        said["given"].append((target, samples))
        return SimpleNamespace(good_enough=said["good_enough"], reject=said["reject"], to_dict=dict)

    monkeypatch.setattr("jaxpsd.diagnose", diagnose)
    return said


@pytest.mark.parametrize("reject", [False, True])
@pytest.mark.parametrize(("good_enough", "code"), [(True, 0), (False, 1), (None, 3)])
def test_with_a_tolerance_the_exit_code_says_whether_draws_are_good_enough(files, diagnosed, good_enough, code, reject):
    diagnosed |= {"good_enough": good_enough, "reject": reject}
    file = str(files / "right.npz")
    assert main(["diagnose", file, "--tolerance", "0.2"]) == code
    assert main(["diagnose", file]) == int(reject)
    given, none = diagnosed["options"]
    assert given["tolerance"] == 0.2
    assert "tolerance" not in none


def test_a_second_opinion_can_be_declined(files, diagnosed):
    main(["diagnose", str(files / "right.npz"), "--no-second-opinion"])
    main(["diagnose", str(files / "right.npz")])
    assert [options.get("second_opinion") for options in diagnosed["options"]] == [False, None]


@pytest.mark.parametrize("file", ["right.npz", "chains.npz", "table.csv", "by_name.npz"])
def test_how_draws_were_made_can_be_said(files, diagnosed, file):
    np.savez(files / "chains.npz", samples=X.reshape(2, 200, 2), scores=-X.reshape(2, 200, 2))
    np.savez(files / "by_name.npz", mu=X[:, 0], tau=X[:, 1], **{"score.mu": -X[:, 0], "score.tau": -X[:, 1]})
    np.savetxt(files / "table.csv", np.c_[X, -X], delimiter=",", header="mu,tau,score.mu,score.tau", comments="")
    main(["diagnose", str(files / file), "--origin", "laplace"])
    main(["diagnose", str(files / file)])
    (scores, samples), (_, untold) = diagnosed["given"]
    assert samples.origin == jaxpsd.Origin("laplace")
    assert not isinstance(untold, jaxpsd.Draws)
    # What is passed on is the same.
    psd = jaxpsd.PSD(2)
    assert float(psd(scores, samples)) == pytest.approx(float(psd(-X, X)), rel=1e-5)


def test_divergences_in_a_file_are_said_first(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(300, 2))
    write_diagnostics(tmp_path / "x.csv", ["mu", "tau"], x, -x, divergent=range(69))
    assert main(["diagnose", str(tmp_path / "x.csv"), "--no-second-opinion", "--replicates", "100"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("69 transitions of 300 diverged")
    assert "Get rid of divergent transitions first" in out
    assert "`adapt_delta=0.95`" in out


def test_help_lists_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main(["diagnose", "--help"])
    out = capsys.readouterr().out
    assert "3  `diagnose --tolerance`: it cannot be told" in out
    assert "`tune --tolerance` has those of `diagnose --tolerance`" in out


# --- files of other libraries -----------------------------------------------------------------------------

DATA = Path(__file__).parent / "data"
EIGHT_SCHOOLS = """
import jax.numpy as jnp
y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
sigma = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
def logdensity(p):
    log_tau = p[NAME]
    tau = jnp.exp(log_tau)
    prior = -0.5 * ((p["mu"] / 5) ** 2 + (tau / 5) ** 2 + jnp.sum(p["z"] ** 2)) + log_tau
    return prior - 0.5 * jnp.sum(((y - p["mu"] - tau * p["z"]) / sigma) ** 2)
"""


def test_files_of_nutpie_and_stan_have_their_scores(asked):
    main(["test", str(DATA / "nutpie.nc")])
    main(["test", *map(str, sorted(DATA.glob("stan_diagnostic_*.csv")))])
    for ((_, scores, samples), _), library in zip(asked, ("nutpie", "Stan"), strict=True):
        assert (samples.num_chains, samples.num_draws, samples.origin.library) == (2, 200, library)
        assert set(scores) == set(samples) == {"mu", "tau", "z"}


@pytest.mark.parametrize("named", [True, False])
def test_a_file_of_pymc_is_left_what_the_log_density_looks_at(tmp_path, asked, capsys, named):
    name = '"tau_log__"' if named else '"absent"'
    (tmp_path / "eight.py").write_text(EIGHT_SCHOOLS.replace("NAME", name))
    main(["test", str(DATA / "pymc.nc"), "--logdensity", f"{tmp_path / 'eight.py'}:logdensity"])
    ((_, _, samples), _) = asked[0]
    left_out = {"tau", "theta"} if named else set()
    assert set(samples) == {"mu", "tau", "tau_log__", "theta", "z"} - left_out
    assert "z[Choate]" in samples.names
    assert ("does not look at it: tau, theta" in capsys.readouterr().err) == named
    sys.modules.pop("eight", None)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_file_of_pymc_goes_with_its_model(tmp_path, capsys):
    pytest.importorskip("pymc")
    folder = Path(__file__).parent / "adapters"
    text = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\nfrom eight_schools import pymc_model\nmodel = pymc_model()\n"
    )
    (tmp_path / "with_model.py").write_text(text)
    model = f"{tmp_path / 'with_model.py'}:model"
    assert main(["test", str(DATA / "pymc.nc"), "--logdensity", model]) == 0
    np.savez(tmp_path / "x.npz", mu=X[:, 0])
    assert main(["test", str(tmp_path / "x.npz"), "--logdensity", model]) == 2
    assert "takes an ArviZ file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("-0.5 * (p['mu'] ** 2 + (p['beta'] ** 2).sum())", {"mu": (), "beta": (2,)}),
        ("-0.5 * (p**2).sum()", None),
    ],
)
def test_named_columns_are_a_dictionary_for_functions_that_take_one(tmp_path, asked, body, expected):
    rows = np.column_stack([X, X[:, 0], np.repeat([0, 1], 200)])
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",", header="mu,beta[0],beta[1],chain", comments="")
    (tmp_path / "by_name.py").write_text(f"def logdensity(p):\n    return {body}\n")
    main(["test", str(tmp_path / "x.csv"), "--logdensity", f"{tmp_path / 'by_name.py'}:logdensity"])
    ((_, _, samples), _) = asked[0]
    if expected is None:
        assert samples.shape == (2, 200, 3)
    else:
        assert samples.shapes == expected
        assert samples.num_chains == 2
        assert samples.names == ("beta[0]", "beta[1]", "mu")
    sys.modules.pop("by_name", None)


def test_columns_that_a_log_density_does_not_look_at_are_left_out(tmp_path, asked, capsys):
    # As of ArviZ's tables, which count draws.
    rows = np.column_stack([np.arange(400), X])
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",", header="draw,mu,tau", comments="")
    (tmp_path / "of_two.py").write_text("def logdensity(p):\n    return -0.5 * (p['mu'] ** 2 + p['tau'] ** 2)\n")
    main(["test", str(tmp_path / "x.csv"), "--logdensity", f"{tmp_path / 'of_two.py'}:logdensity"])
    ((_, _, samples), _) = asked[0]
    assert set(samples) == {"mu", "tau"}
    assert "does not look at it: draw" in capsys.readouterr().err
    sys.modules.pop("of_two", None)


def test_a_plain_file_of_stan_says_what_is_missing(tmp_path, capsys):
    path = tmp_path / "output.csv"
    path.write_text("# stan_version_major = 2\nlp__,accept_stat__,mu,tau\n-1,0.9,0.1,2\n# Elapsed Time\n")
    assert main(["diagnose", str(path)]) == 2
    assert "no gradients. Run CmdStan again with `output diagnostic_file=FILE`" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", X)
    assert main(["diagnose", str(path), str(tmp_path / "x.npy")]) == 2
    assert "Several files must be CmdStan's diagnostic files" in capsys.readouterr().err
    assert main(["diagnose", str(path), str(tmp_path / "absent.csv")]) == 2
    assert "There is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["test", "{}/plain.npy"], "has no scores"),
        (["diagnose", "{}/right.npz", "--tolerance", "2"], "`tolerance` must be below 1"),
        (["test", "{}/absent.npy"], "There is no file"),
        (["test", "{}/plain.npy", "--logdensity", "nonsense"], "module:name"),
        (["test", "{}/plain.npy", "--logdensity", ":logdensity"], "module:name"),
        (["test", "{}/plain.npy", "--logdensity", ".:logdensity"], "module:name"),
        (["test", "{}/plain.npy", "--logdensity", "{}/model.py:absent"], "no function"),
        (["test", "{}/plain.npy", "--scores", "{}/wide.npz"], "has scores of shape (300, 2), but"),
        (["test", "{}/right.npz", "--scores", "{}/other.npz"], "has scores of a, b, but"),
        (["test", "{}/plain.npy", "--scores", "{}/right.npz", "--logdensity", "math:sin"], "not both"),
        (["test", "{}/right.npz", "--alpha", "2"], "alpha"),
        (["rank", "{}/plain.npy"], "has no scores"),
    ],
)
def test_mistakes_are_explained(files, arguments, message, capsys):
    assert main([argument.format(files) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("jaxpsd: error: ")
    assert message in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def logdensity(x:\n", "failing.py could not be loaded: SyntaxError: "),
        ("logdensity = nonsense", "NameError: "),
        ("assert False, 'no data'", "AssertionError: no data"),
        ("logdensity = {}['a']", "KeyError: 'a'"),
        ("import no_such_module", "No module named"),
        ("import sys; sys.exit(7)", "SystemExit: 7"),
        ("def logdensity(x):\n    return {}['a']", "KeyError: 'a'"),
        ("def logdensity(x):\n    return x.sum() * (1 / 0)", "ZeroDivisionError was raised in "),
        ("def logdensity(x):\n    raise SystemExit(7)", "SystemExit: 7"),
        ("class Stop(BaseException): pass\ndef logdensity(x):\n    raise Stop('failing.py')", "Stop: "),
    ],
)
def test_a_model_that_fails_is_a_mistake_and_no_rejection(files, text, message, capsys):
    (files / "failing.py").write_text(text)
    assert main(["test", str(files / "plain.npy"), "--logdensity", f"{files / 'failing.py'}:logdensity"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("jaxpsd: error: ")
    assert message in error
    assert "failing.py" in error
    assert "removed its internal frames" not in error
    sys.modules.pop("failing", None)


def test_what_a_model_prints_is_no_part_of_the_result(files, capsys):
    text = "print('loading')\ndef logdensity(x):\n    print('tracing')\n    return -0.5 * (x**2).sum()\n"
    (files / "talking.py").write_text(text)
    assert main(["test", str(files / "plain.npy"), "--logdensity", f"{files / 'talking.py'}:logdensity", "--json"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["reject"] is False
    assert found.err.startswith("loading\ntracing\n")
    sys.modules.pop("talking", None)


@pytest.mark.parametrize(
    "arguments",
    [[], ["demo", "--draws", "0"], ["demo", "--order", "40"], ["demo", "--seed", "-1"], ["test"], ["unknown"]],
)
def test_wrong_usage_exits_with_a_message(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: jaxpsd" in capsys.readouterr().err


def test_warnings_are_short(tmp_path, capsys):
    heavy = np.random.default_rng(0).standard_t(1, size=(2000, 1)).astype(np.float32)
    np.savez(tmp_path / "x.npz", samples=heavy, scores=-2 * heavy / (1 + heavy**2))
    main(["test", str(tmp_path / "x.npz"), "--order", "4", "--transform", "none"])
    assert capsys.readouterr().err.startswith("jaxpsd: warning: 5 of 2,000 draws")


@pytest.fixture(scope="module")
def short_demo():
    """Two step sizes, one order, few draws."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_demo, "STEP_SIZES", (5e-2, 5e-3))
        patch.setattr(_demo, "ORDERS", (2,))
        yield _demo.run_demo(jax.random.key(0), 2000, 2)


@pytest.fixture
def _demo_is_known(short_demo, monkeypatch):
    monkeypatch.setattr(_demo, "run_demo", lambda *args, **options: short_demo)
    monkeypatch.setattr(_demo, "STEP_SIZES", (5e-2, 5e-3))


@pytest.mark.usefixtures("_demo_is_known")
def test_the_demo_ranks_reports_and_draws(tmp_path, capsys):
    assert main(["demo", "--folder", str(tmp_path / "figures")]) == 0
    printed = capsys.readouterr().out
    assert "The step size to use: 0.005." in printed
    assert "What to do next" in printed
    assert "gradient evaluations, 33% of the" in printed
    written = {path.name for path in (tmp_path / "figures").iterdir()}
    assert written == {"step_sizes.png", "draws.png", "tuning.png", "best_step_size.png"}


@pytest.mark.usefixtures("_demo_is_known")
def test_the_demo_does_without_matplotlib(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    assert "pip install 'jaxpsd[plots]'" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_demo_is_known")
def test_the_demo_speaks_json(capsys):
    assert main(["demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in found["rank"]["ranking"]] == [0.005, 0.05]


@pytest.mark.slow
def test_the_demo_runs_as_it_is(tmp_path, capsys):
    assert main(["demo", "--folder", str(tmp_path), "--float64"]) == 0
    captured = capsys.readouterr()
    assert "The step size to use: 0.005." in captured.out
    assert "jaxpsd: ranking the step sizes" in captured.err


def test_a_setting_is_chosen(files, capsys):
    code = (
        "import jax, jax.numpy as jnp\n"
        "def langevin(key, x, setting):\n"
        "    step = setting['step']\n"
        "    x = x - 0.5 * step * x + jnp.sqrt(step) * jax.random.normal(key, x.shape)\n"
        "    return x, x\n"
    )
    (files / "sampler.py").write_text(code)
    np.save(files / "starts.npy", np.zeros((4, 2), np.float32))
    command = ["tune", f"{files}/sampler.py:langevin", '{"step": 2.0}', '{"step": 0.2}']
    command += ["--logdensity", f"{files}/model.py:logdensity", "--positions", f"{files}/starts.npy", "--steps", "4000"]
    assert main([*command, "--json", "--tolerance", "0.5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"] == {"step": 0.2}
    assert found["good_enough"] is True
    with pytest.raises(SystemExit):
        main([*command[:2], "not a number", *command[2:]])
    assert "a dictionary in JSON" in capsys.readouterr().err


def test_the_package_is_a_program():
    done = subprocess.run([sys.executable, "-m", "jaxpsd", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("jaxpsd ")


def test_an_interruption_ends_in_a_word_and_a_code(files, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxpsd.adaptive_test", interrupted)
    assert main(["test", str(files / "right.npz")]) == 130
    assert capsys.readouterr().err == "jaxpsd: interrupted\n"


@pytest.mark.slow
def test_an_interruption_leaves_no_broken_picture(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    demo = _demo.run_demo(jax.random.key(0), 500, 1, num_chains=5)
    save, names = Figure.savefig, []

    def broken(figure, path, **options):
        names.append(path)
        if len(names) == 2:
            path.write_bytes(b"half a picture")
            raise KeyboardInterrupt
        save(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.raises(KeyboardInterrupt):
        _demo.draw_figures(demo, tmp_path)
    assert [path.name for path in tmp_path.glob("*.png")] == ["step_sizes.png"]


class Harmful:
    """Unpickled, it would leave a trace."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["draws.npy", "draws.npz"])
def test_pickles_are_not_loaded(tmp_path, capsys, name):
    trace = tmp_path / "trace"
    hidden = np.array([Harmful(trace)], dtype=object)
    if name == "draws.npy":
        np.save(tmp_path / name, hidden, allow_pickle=True)
    else:
        np.savez(tmp_path / name, samples=hidden)
    assert main(["test", str(tmp_path / name)]) == 2
    assert "could not be read" in capsys.readouterr().err
    assert not trace.exists()


def test_nothing_is_written_but_where_it_was_told(files, tmp_path_factory, monkeypatch, capsys):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    before = sorted(files.iterdir())
    assert main(["test", str(files / "right.npz")]) == 0
    assert main(["test", str(files / "right.npz"), "--logdensity", "no_such_module:f"]) == 2
    assert "named with its ending" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())
    assert sorted(files.iterdir()) == before


def test_help_needs_no_jax():
    script = "import sys; from jaxpsd.cli import main\ntry: main(['test', '--help'])\n"
    script += "except SystemExit: sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--replicates" in done.stdout


def test_the_bootstraps_on_offer_are_those_there_are():
    assert ("auto", *SIGNS) == options._SIGNS
    assert set(options._METHODS) == set(BOOTSTRAPS) - set(UNBIASED)


@pytest.fixture
def no_cache_yet(monkeypatch, tmp_path):
    """A home of its own, and JAX as users have it who have set nothing."""
    names = [f"jax_{name}" for name in ("compilation_cache_dir", *_OF_CACHE)]
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


_OF_CACHE = ("persistent_cache_min_compile_time_secs", "persistent_cache_min_entry_size_bytes")


@pytest.mark.skipif(sys.platform != "linux", reason="caches are elsewhere")
def test_programs_are_kept_in_the_cache_of_the_user(no_cache_yet):
    cache.keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(no_cache_yet / "cache" / "jaxpsd")
    assert (no_cache_yet / "cache" / "jaxpsd").is_dir()


def test_programs_are_kept_where_the_user_has_said(no_cache_yet):
    jax.config.update("jax_compilation_cache_dir", str(no_cache_yet / "mine"))
    cache.keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(no_cache_yet / "mine")
    assert not list(no_cache_yet.iterdir())


def test_programs_are_not_kept_where_that_cannot_be(no_cache_yet, monkeypatch):
    (no_cache_yet / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(no_cache_yet / "file"))
    monkeypatch.setattr(sys, "platform", "linux")
    cache.keep_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_no_programs_are_kept_on_request(files, no_cache_yet, asked):
    main(["test", str(files / "right.npz"), "--no-cache"])
    assert jax.config.jax_compilation_cache_dir is None
    assert not (no_cache_yet / "cache").exists()
