"""Files as CmdStan writes them, models known by their methods; and PyStan itself, where it is installed."""

from pathlib import Path

import jax
import numpy as np
import pytest
import stan_files
import xarray
from eight_schools import EFFECTS, ERRORS, STAN, logdensity

import jaxpsd

KEY = jax.random.key(0)
DATA = Path(__file__).parents[1] / "data"
FILES = sorted(DATA.glob("stan_diagnostic_*.csv"))
# Stan counts from one.
NAMES = ("mu", "log tau", *(f"z[{k}]" for k in range(1, 9)))
X = np.random.default_rng(0).normal(size=(200, 3))
COLUMNS = ("mu", "beta.1", "beta.2")


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_diagnostic_files_have_draws_and_scores():
    scores, samples = jaxpsd.from_stan(FILES)
    # What transforms are, these files do not say.
    assert samples.names == tuple(f"unconstrained {name.removeprefix('log ')}" for name in NAMES)
    assert (samples.num_chains, samples.num_draws) == (2, 200)
    assert (samples.origin.kind, samples.origin.library, samples.origin.divergences) == ("mcmc", "Stan", 0)
    expected = jaxpsd.score(logdensity, samples)
    for name in expected:
        np.testing.assert_allclose(scores[name], expected[name], rtol=1e-5, atol=1e-5)


def test_files_are_found_by_name_list_and_pattern():
    pattern = str(DATA / "stan_diagnostic_*.csv")
    for given, chains in ((FILES[0], 1), (str(FILES[0]), 1), (tuple(FILES), 2), (pattern, 2), ([pattern], 2)):
        assert jaxpsd.from_stan(given)[1].num_chains == chains
    with pytest.raises(FileNotFoundError, match=r"no file .*absent"):
        jaxpsd.from_stan("absent*.csv")
    with pytest.raises(ValueError, match="empty list"):
        jaxpsd.from_stan([])


def test_draws_of_warmup_are_left_out_unless_asked_for(tmp_path):
    path = tmp_path / "x.csv"
    stan_files.write_diagnostics(path, COLUMNS, X, -X, warmup=5 + X[:70], divergent=(3, 5))
    scores, samples = jaxpsd.from_stan(path)
    np.testing.assert_allclose(samples["beta"][0], X[:, 1:], rtol=1e-8)
    np.testing.assert_allclose(scores["mu"][0], -X[:, 0], rtol=1e-8)
    assert samples.origin.divergences == 2
    assert jaxpsd.from_stan(path, warmup=True)[1].num_draws == 270
    # Where nothing adapted, the head of the file says how many there are.
    text = path.read_text().replace("# Adaptation terminated\n", "")
    path.write_text(text)
    assert jaxpsd.from_stan(path)[1].num_draws == 200


def test_a_matrix_is_put_together_with_its_first_index_first(tmp_path):
    x = np.random.default_rng(1).normal(size=(50, 4))
    stan_files.write_diagnostics(tmp_path / "x.csv", ["w.1.1", "w.2.1", "w.1.2", "w.2.2"], x, -x)
    _, samples = jaxpsd.from_stan(tmp_path / "x.csv")
    assert samples.names == tuple(f"unconstrained w[{k}, {j}]" for k in (1, 2) for j in (1, 2))
    np.testing.assert_allclose(samples["w"][0, :, 1, 0], x[:, 1], rtol=1e-8)
    stan_files.write_diagnostics(tmp_path / "x.csv", ["w.1", "w.3", "v.1", "v.1.1"], x, -x)
    assert set(jaxpsd.from_stan(tmp_path / "x.csv")[1].names) == {
        f"unconstrained {name}" for name in ("w.1", "w.3", "v.1", "v.1.1")
    }


@pytest.mark.parametrize(
    ("diagnostic", "output", "named"),
    [
        ("diagnostic.csv", "output.csv", "/elsewhere/output.csv"),
        ("run-diagnostic_2.csv", "run_2.csv", "C:\\runs\\run.csv"),
    ],
)
def test_the_output_file_of_a_run_says_what_parameters_are(tmp_path, diagnostic, output, named):
    names = ["mu", "tau", "share", "beta.1", "beta.2", "p"]
    x = np.random.default_rng(1).normal(size=(50, 6))
    # So small that log p and logit p are nearly the same.
    x[:, 5] = 0.1 * x[:, 5] - 7
    drawn = x.copy()
    drawn[:, 1] = np.exp(x[:, 1])
    drawn[:, [2, 5]] = 1 / (1 + np.exp(-x[:, [2, 5]]))
    drawn[:, 4] = 3 - np.exp(x[:, 4])
    stan_files.write_diagnostics(tmp_path / diagnostic, names, x, -x, output=named)
    unknown = jaxpsd.from_stan(tmp_path / diagnostic)[1].names
    assert set(unknown) == {f"unconstrained {name}" for name in ("beta[1]", "beta[2]", "mu", "p", "share", "tau")}
    stan_files.write_output(tmp_path / output, [*names, "theta"], np.c_[drawn, x[:, 0]])
    for given in (tmp_path / diagnostic, str(tmp_path / "*.csv")):
        _, samples = jaxpsd.from_stan(given)
        assert samples.num_chains == 1
        assert set(samples.names) == {
            "mu", "log tau", "logit share", "logit p", "unconstrained beta[1]", "unconstrained beta[2]"
        }  # fmt: skip
    # An output file of another length is of another run.
    stan_files.write_output(tmp_path / output, names, drawn[:20])
    assert jaxpsd.from_stan(tmp_path / diagnostic)[1].names == unknown


@pytest.mark.parametrize(("sign", "median"), [(1, "1"), (0, "0"), (-100, "-1e")])
def test_gradients_of_something_else_are_refused(tmp_path, sign, median):
    stan_files.write_diagnostics(tmp_path / "x.csv", COLUMNS, X, -X, sign=sign)
    with pytest.raises(ValueError, match=rf"not gradients of −log p.*median over them is {median}.*Are signs"):
        jaxpsd.from_stan(tmp_path / "x.csv")


def _plain(path):
    path.write_text("# stan_version_major = 2\nlp__,accept_stat__,mu,tau\n# Adaptation terminated\n-1,0.9,0.1,2\n")


def _unfinished(path):
    stan_files.write_diagnostics(path, COLUMNS, X, -X)
    path.write_text("\n".join(path.read_text().splitlines()[:30]) + "\n-40,0.9")


def _words(path):
    stan_files.write_diagnostics(path, COLUMNS, X, -X)
    path.write_text(path.read_text().replace("-40,", "minus forty,"))


def _only_warmup(path):
    stan_files.write_diagnostics(path, COLUMNS, X[:0], X[:0], warmup=X)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (_plain, r"no gradients. Run CmdStan again with `output diagnostic_file=FILE`.*save_latent_dynamics=True"),
        (_unfinished, r"line 31 has 2 values for 16 columns"),
        (_words, r"something else than numbers"),
        (_only_warmup, r"warm-up only"),
        (lambda path: path.write_text("# nothing\n"), r"no rows of numbers"),
    ],
)
def test_files_that_will_not_do_are_named(tmp_path, write, message):
    write(tmp_path / "x.csv")
    with pytest.raises(ValueError, match=message):
        jaxpsd.from_stan(tmp_path / "x.csv")


def test_chains_must_belong_together(tmp_path):
    stan_files.write_diagnostics(tmp_path / "a.csv", COLUMNS, X, -X)
    stan_files.write_diagnostics(tmp_path / "b.csv", COLUMNS, X[:100], -X[:100])
    stan_files.write_diagnostics(tmp_path / "c.csv", ("a", "b", "c"), X, -X)
    with pytest.raises(ValueError, match=r"b.csv has 100 draws, .*a.csv has 200"):
        jaxpsd.from_stan([tmp_path / "a.csv", tmp_path / "b.csv"])
    with pytest.raises(ValueError, match="other columns"):
        jaxpsd.from_stan([tmp_path / "a.csv", tmp_path / "c.csv"])


# --- models -----------------------------------------------------------------------------------------------


class Bridge:
    """A BridgeStan model of mu, tau > 0 and a matrix w, all standard normal where they are unconstrained."""

    def param_names(self):
        return ["mu", "tau", "share", "w.1.1", "w.2.1", "w.1.2", "w.2.2"]

    def param_unc_names(self):
        return self.param_names()

    def param_unconstrain(self, theta):
        assert theta.flags.c_contiguous
        return np.array([theta[0], np.log(theta[1]), np.log(theta[2] / (1 - theta[2])), *theta[3:]])

    def log_density_gradient(self, theta):
        return -0.5 * theta @ theta, -theta


UNCONSTRAINED = np.random.default_rng(0).normal(size=(2, 60, 7))


def constrained():
    x = UNCONSTRAINED.copy()
    x[..., 1] = np.exp(x[..., 1])
    x[..., 2] = 1 / (1 + np.exp(-x[..., 2]))
    return x


def posterior():
    x = constrained()
    w = x[..., 3:].reshape(2, 60, 2, 2).swapaxes(2, 3)
    scalars = {name: (("chain", "draw"), x[..., k]) for k, name in enumerate(("mu", "tau", "share"))}
    return xarray.Dataset(scalars | {"w": (("chain", "draw", "i", "j"), w)})


@pytest.mark.parametrize("draws", [constrained, posterior, lambda: {"posterior": posterior()}])
def test_a_bridgestan_model_maps_and_scores_draws(draws):
    scores, samples = jaxpsd.from_stan(Bridge(), draws(), progress=False)
    assert samples.names == ("mu", "logit share", "log tau", "w[1, 1]", "w[1, 2]", "w[2, 1]", "w[2, 2]")
    assert samples.num_chains == 2
    np.testing.assert_allclose(samples["tau"], UNCONSTRAINED[..., 1], atol=1e-12)
    np.testing.assert_allclose(samples["w"][:, :, 1, 0], UNCONSTRAINED[..., 4])
    for name in samples:
        np.testing.assert_allclose(scores[name], -samples[name])


def test_unconstrained_draws_are_taken_as_they_are():
    _, samples = jaxpsd.from_stan(Bridge(), UNCONSTRAINED[0], unconstrained=True, progress=False)
    np.testing.assert_array_equal(samples["tau"][0], UNCONSTRAINED[0, :, 1])
    assert "unconstrained tau" in samples.names

    class Inverse(Bridge):
        def param_constrain(self, x):
            return np.array([x[0], np.exp(x[1]), 1 / (1 + np.exp(-x[2])), *x[3:]])

    _, samples = jaxpsd.from_stan(Inverse(), UNCONSTRAINED, unconstrained=True, progress=False)
    assert {"mu", "log tau", "logit share", "w[1, 1]"} <= set(samples.names)


@pytest.mark.parametrize(
    ("source", "draws", "error", "message"),
    [
        (Bridge(), None, TypeError, "a model alone"),
        (Bridge(), X, ValueError, "must have 7 columns, as `param_names.*got 3"),
        (Bridge(), X[0], ValueError, r"got shape \(3,\)"),
        (Bridge(), posterior().drop_vars("tau"), ValueError, "no draws of 'tau'"),
        (3, None, TypeError, "got int"),
        ([3], None, TypeError, "got list"),
        ("x.csv", X, TypeError, "got str with draws"),
    ],
)
def test_mistakes_are_named(source, draws, error, message):
    with pytest.raises(error, match=message):
        jaxpsd.from_stan(source, draws, progress=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("x64")
def test_pystan_itself():
    stan = pytest.importorskip("stan")
    model = stan.build(STAN, data={"y": EFFECTS.tolist(), "sigma": ERRORS.tolist()}, random_seed=1)
    fit = model.sample(num_chains=2, num_samples=1500, num_warmup=1000, delta=0.95)
    scores, samples = jaxpsd.from_stan(model, fit, progress=False)
    assert samples.names == NAMES
    assert (samples.num_chains, samples.num_draws) == (2, 3000)
    # Draws of chain 1, which PyStan has beside those of chain 0.
    np.testing.assert_array_equal(samples["mu"][1], fit["mu"].reshape(-1, 2)[:, 1])
    expected = jaxpsd.score(logdensity, samples)
    for name in expected:
        np.testing.assert_allclose(scores[name], expected[name], rtol=1e-5, atol=1e-5)
    assert not jaxpsd.diagnose(KEY, scores, samples).reject
    with pytest.raises(TypeError, match="got a fit alone"):
        jaxpsd.from_stan(fit)
    with pytest.raises(TypeError, match="a model with NoneType"):
        jaxpsd.from_stan(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_simplex_of_pystan_has_fewer_parameters():
    stan = pytest.importorskip("stan")
    program = "parameters { simplex[3] s; real<lower=-1, upper=2> b; } model { s ~ dirichlet([5, 5, 5]'); }"
    model = stan.build(program, random_seed=1)
    fit = model.sample(num_chains=2, num_samples=100, num_warmup=50, save_warmup=True)
    _, samples = jaxpsd.from_stan(model, fit, progress=False)
    assert samples.names == ("x[1]", "x[2]", "x[3]")
    assert samples.num_draws == 200
