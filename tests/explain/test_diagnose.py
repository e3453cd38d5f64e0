import importlib.util
import json
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd
from jaxpsd._core.scores import check_input
from jaxpsd._explain import advice as _advice
from jaxpsd._explain import diagnose as _diagnose
from jaxpsd._explain.directions import worst_directions
from jaxpsd._explain.findings import Finding

KEY = jax.random.key(0)
# One shape for most tests, so that programs are compiled once.
SHAPE = (4, 500, 3)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def normal(seed=1, shape=SHAPE):
    return jax.random.normal(jax.random.key(seed), shape)


def diagnose(samples, target=logdensity, **options):
    return jaxpsd.diagnose(KEY, target, samples, names=("a", "b", "c"), **options)


@pytest.fixture(scope="module")
def right():
    return diagnose(normal())


def test_right_draws_are_found_right(right):
    assert not right.reject
    assert right.verdict.startswith("Nothing wrong was found")
    assert right.findings == ()
    assert right.advice == ()
    assert repr(right).count("mode that no draw has visited") == 1
    assert (right.disagreement < 1.02).all()
    # Independent draws are worth their number.
    np.testing.assert_array_equal(right.effective_draws, [500] * 4)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda x: x.at[..., 1].add(0.32), "the mean of b is 0.3"),
        (lambda x: x.at[..., 1].add(-0.3), "standard deviations too low"),
        (lambda x: x.at[..., 2].multiply(0.6), "the standard deviation of c is 0.59"),
        (lambda x: x.at[..., 2].set(0.6 * x[..., 0] + 0.8 * x[..., 2]), "the correlation of a and c is 0.6"),
    ],
)
def test_the_verdict_names_what_is_wrong(change, found):
    report = diagnose(change(normal()))
    assert report.reject
    assert report.verdict.startswith("These draws are not from the target")
    assert found in report.verdict
    assert report.findings[0].text in report.verdict


def test_tails_are_named_where_moments_are_right():
    uniform = jax.random.uniform(KEY, SHAPE, minval=-(3**0.5), maxval=3**0.5)
    uniform = (uniform - uniform.mean((0, 1), keepdims=True)) / uniform.std((0, 1), keepdims=True)
    report = diagnose(uniform)
    assert report.reject
    assert "tails" in report.verdict


def test_burn_in_is_noticed():
    drift = jnp.where(jnp.arange(500) < 40, 4.0, 0.0)[None, :, None] * jnp.array([[[0.0, 1.0, 0.0]]])
    report = diagnose(normal() + drift)
    assert any("beginning" in advice and "b" in advice for advice in report.advice)


def test_chains_that_disagree_are_noticed():
    apart = jnp.array([-0.4, -0.4, 0.4, 0.4])[:, None, None] * jnp.array([[[0.0, 0.0, 1.0]]])
    report = diagnose(normal() * 0.9 + apart)
    assert report.disagreement.argmax() == 2
    assert report.disagreement[2] > 1.05
    assert any("agree" in advice for advice in report.advice)
    # Each by itself is worth its draws, and all together hardly more than there are chains.
    assert report.effective_draws.sum() > 1000
    assert report.total_effective < 100
    assert f"{report.total_effective:,.0f}" in str(report).partition("all 4")[2].split()


def test_too_few_effective_draws_are_no_verdict():
    slow = jnp.cumsum(normal(), axis=1) / 20
    report = diagnose(slow)
    assert report.effective_draws.sum() < 40
    assert report.advice


def test_a_target_far_from_gaussian_is_said_to_be():
    # Two modes, four standard deviations apart.
    def mixture(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 2) ** 2), -0.5 * jnp.sum((x + 2) ** 2))

    signs = jax.random.rademacher(KEY, (*SHAPE[:2], 1), jnp.float32)
    report = diagnose(normal() + 2 * signs, mixture)
    assert not report.reject
    assert any("scores are not linear in the draws (the target is not Gaussian" in each for each in report.caveats)
    # Nothing is said of what could have been seen.
    assert np.isnan(report.detectable).all()
    assert any("marginal_scores" in advice for advice in report.advice)


def test_few_effective_draws_are_said_to_be_why_errors_are_not_known():
    slow = jnp.cumsum(normal(), axis=1) / 20
    report = diagnose(slow, lambda x: -0.5 * jnp.sum(x**2) - 0.05 * jnp.sum(x**4), second_opinion=False)
    assert np.isnan(report.moments.errors.mean_off).any()
    assert any("so few effective draws do not carry the polynomials" in each for each in report.caveats)


@pytest.mark.slow
def test_heavy_tails_are_a_caveat():
    t = jax.random.t(KEY, 1.0, (2000, 1))
    report = jaxpsd.diagnose(KEY, lambda x: -jnp.log1p(x[0] ** 2), t)
    assert any("Σ‖τ‖²" in caveat for caveat in report.caveats)


def test_errors_said_to_be_detectable_are_detected():
    """With probability 80%, if the normal approximation is right; it must not be less than 60%."""
    trials, found = 60, {"mean": 0, "scale": 0}
    for seed in range(trials):
        x = normal(100 + seed, (500, 3))
        parts = SimpleNamespace(labels=("means", "scales and correlations"))
        errors = _diagnose._detectable(500, SimpleNamespace(parts=parts, alpha=0.05), 1.0, 3)
        for kind, wrong in (("mean", x.at[:, 0].add(errors.mean)), ("scale", x.at[:, 0].multiply(1 + errors.scale))):
            test = jaxpsd.adaptive_test(jax.random.key(seed), -wrong, wrong, method="rademacher")
            found[kind] += bool(test.reject)
    # A test with power 60% fails this once in 10³ runs.
    assert min(found.values()) >= scipy.stats.binom.ppf(1e-3, trials, 0.6)


def test_reports_are_printed_shown_and_written_down():
    report = diagnose(normal() * 1.2)
    text = repr(report)
    for title in ("Tests", "Worst moments", "Coordinates", "Chains", "To be aware of", "What to do next"):
        assert f"\n{title}\n" in text
        assert f"<h4>{title}</h4>" in report._repr_html_()
    html = report._repr_html_()
    # What is wrong is seen first; parts of a test are below it; names of functions are code.
    assert re.findall(r"<span[^>]*>([^<]*)</span>", html) == ["not good enough", "not from the target"]
    assert html.index("<span") < html.index("These draws are not from the target")
    assert '<td style="text-align:left;padding:.2em .6em .2em 2.6em">means</td>' in html
    assert "<code>corrected_expectation</code>" in html
    assert "`" not in html
    # Dark pages have their own colours of text, and of all else but the badges.
    assert "color:" not in re.sub(r"<span.*?</span>", "", html)
    assert json.loads(json.dumps(report.to_dict()))["verdict"] == report.verdict


@pytest.mark.parametrize(("good_enough", "badge"), [(True, "good enough"), (None, "cannot tell whether good enough")])
def test_a_report_says_first_whether_draws_are_good_enough(right, good_enough, badge):
    report = replace(right, good_enough=good_enough)
    assert re.findall(r"<span[^>]*>([^<]*)</span>", report._repr_html_()) == [badge]


@pytest.mark.slow
def test_scores_weights_and_pytrees_will_do():
    x = normal(2, (500, 2))
    given = {"mu": x[:, 0], "tau": x[:, 1]}
    scores = {"mu": -x[:, 0], "tau": -x[:, 1]}
    # Weights that turn draws of a wider distribution into those of the target.
    wide = jax.tree.map(lambda leaf: 1.3 * leaf, given)
    log_weights = sum(-0.5 * leaf**2 + 0.5 * (leaf / 1.3) ** 2 for leaf in wide.values())
    assert not jaxpsd.diagnose(KEY, scores, given).reject
    weighted = jaxpsd.diagnose(KEY, jax.tree.map(jnp.negative, wide), wide, weights=jnp.exp(log_weights))
    assert not weighted.reject
    assert weighted.moments.names == ("mu", "tau")


@pytest.mark.slow
def test_many_coordinates_are_looked_at_one_by_one():
    x = normal(3, (4500, 70)).at[:, 5].multiply(1.3)
    report = jaxpsd.diagnose(KEY, -x, x, num_replicates=100)
    assert report.moments.errors.correlation is None
    assert "x[5]" in report.verdict


def test_draws_of_unequal_weights_are_worth_fewer():
    wide, weights = 1.3 * normal(4, (1000, 3)), jnp.exp(normal(5, (1000,)))
    report = diagnose(wide, weights=weights)
    np.testing.assert_allclose(report.effective_draws, weights.sum() ** 2 / (weights**2).sum(), rtol=1e-4)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="not finite at draw 3 of chain 0"):
        diagnose(normal().at[0, 3, 1].set(jnp.nan))
    with pytest.raises(ValueError, match="cannot be traced"):
        jax.jit(lambda x: jaxpsd.diagnose(KEY, logdensity, x).verdict)(normal())
    with pytest.raises(ValueError, match="names"):
        jaxpsd.diagnose(KEY, logdensity, normal(), names="ab")
    with pytest.raises(ValueError, match="two draws"):
        jaxpsd.diagnose(KEY, logdensity, jnp.zeros((1, 3)))


def test_split_r_hat_is_its_formula():
    x = np.asarray(normal(5, (3, 40, 2)), np.float64)
    halves = [half for chain in x for half in (chain[:20], chain[20:])]
    within = np.mean([half.var(axis=0, ddof=1) for half in halves], axis=0)
    between = 20 * np.var([half.mean(axis=0) for half in halves], axis=0, ddof=1)
    expected = np.sqrt((19 / 20 * within + between / 20) / within)
    np.testing.assert_allclose(_diagnose._split_r_hat(x), expected)


@pytest.mark.parametrize("shape", [(4, 100, 3), (2, 101, 2), (3, 8, 2)])
def test_r_hat_is_that_of_arviz(shape):
    x = np.asarray(normal(7, shape), np.float64)
    x[0, :, 0] += 0.3
    x[:, :, 1] **= 3
    # Chains that stand still at times, as those with a rejection step do.
    x[:, 1::2, 1] = x[:, ::2, 1][:, : shape[1] // 2]
    half = shape[1] // 2
    # ArviZ drops the draw in the middle before it ranks.
    even = np.concatenate([x[:, :half], x[:, -half:]], axis=1)
    expected = [arviz.rhat(even[..., k]) for k in range(shape[2])]
    np.testing.assert_allclose(_diagnose._rank_normalized_r_hat(even), expected, rtol=1e-10)


def test_coordinates_that_stand_still_agree_unless_they_do_so_in_different_places():
    x = np.stack([np.zeros((3, 20)), np.repeat(np.arange(3.0)[:, None], 20, axis=1)], axis=-1)
    agrees, differs = _diagnose._rank_normalized_r_hat(x)
    assert agrees == 1
    assert differs == np.inf


def test_the_names_of_version_0_1_are_still_there(right):
    errors = right.moments.errors
    np.testing.assert_array_equal(right.disagreement, right.r_hat)
    for old, new in (("mean", "mean_off"), ("mean_error", "mean_off_se"), ("scale", "sd_ratio")):
        np.testing.assert_array_equal(getattr(errors, old), getattr(errors, new))


def test_warnings_of_others_are_not_in_the_report():
    def old_fashioned(x):
        warnings.warn("this will go", DeprecationWarning, stacklevel=1)
        return logdensity(x)

    samples = normal().at[0, 0, 0].set(1e3)
    with pytest.warns(DeprecationWarning, match="this will go"):
        report = diagnose(samples, old_fashioned)
    assert not any("this will go" in caveat for caveat in report.caveats)
    # Ours is, and stays there.
    assert any("draws carry about" in caveat for caveat in report.caveats)
    with pytest.warns(DeprecationWarning, match="this will go"):
        ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), old_fashioned, {"a": samples, "b": normal()})
    assert not any("this will go" in remark for remarks in ranking.remarks for remark in remarks)
    assert any("draws carry about" in remark for remark in ranking.remarks[ranking.labels.index("a")])


@pytest.mark.parametrize(
    ("shape", "features"), [((2000, 50), (2, True)), ((500, 400), (2, False)), ((5000, 1900), (1, False))]
)
def test_as_many_features_are_looked_at_as_there_is_room_for(shape, features):
    draws = jaxpsd.Draws(jnp.zeros(shape))
    assert _diagnose.features_for(draws, 1000, weighted=False) == features


def test_more_coordinates_than_can_be_looked_at_are_refused():
    with pytest.raises(ValueError, match=r"cannot look at 2,500 coordinates of 5,000 draws.*Thin the draws"):
        _diagnose.features_for(jaxpsd.Draws(jnp.zeros((5000, 2500))), 1000, weighted=False)


@pytest.mark.parametrize(("worst", "word"), [(-0.2, "too narrow"), (0.2, "too wide")])
def test_advice_goes_by_the_worst_scale(worst, word):
    findings = [
        Finding("", 9.0, "standard deviation", worst, (worst, worst)),
        Finding("", 4.0, "standard deviation", -0.9 * worst, (0.0, 0.0)),
    ]
    table, draws = SimpleNamespace(unknown=lambda: []), jaxpsd.Draws(normal())
    facts = SimpleNamespace(findings=findings, table=table, draws=draws)
    assert word in _advice._remedy(facts)
    assert "corrected_expectation" in _advice._remedy(facts)
    facts.table.unknown = lambda: ["mean of a"]
    assert "corrected_expectation" not in _advice._remedy(facts)


# --- the worst direction ----------------------------------------------------------------------------------


def correlated(correlation=0.98):
    covariance = np.array([[1, correlation, 0], [correlation, 1, 0], [0, 0, 1.0]])
    x = jax.random.normal(jax.random.key(0), (2000, 3)) @ np.linalg.cholesky(covariance).T
    precision = jnp.asarray(np.linalg.inv(covariance), jnp.float32)
    return x, lambda x: -0.5 * x @ precision @ x


def test_a_combination_that_is_off_is_named_where_no_coordinate_is():
    x, target = correlated()
    # The target holds the difference tight: its standard deviation is 0.2.
    moved = x + jnp.array([[0.03, -0.03, 0.0]])
    report = jaxpsd.diagnose(jax.random.key(1), target, moved, names=("a", "b", "c"))
    assert report.reject
    finding = report.findings[0]
    assert re.match(
        r"the mean of 0\.\d+·a − 0\.\d+·b is 0\.\d\d \(0\.\d\d … 0\.\d\d\) standard deviations too high", finding.text
    )
    u = np.asarray(moved[:, 0] - moved[:, 1])
    assert finding.error == pytest.approx(u.mean() / 0.2, rel=0.2)
    assert finding.interval[0] <= finding.error <= finding.interval[1]
    assert f"{finding.text}." in report.verdict


def test_right_draws_have_no_direction_that_stands_out():
    x, target = correlated()
    given = check_input(target, x).with_scores()
    psd = jaxpsd.PSD(2, basis="hermite", transform=jaxpsd.Affine.fit(x, "target", target=target), form="primal")
    table = jaxpsd.moment_table(jax.random.key(1), target, x)
    assert worst_directions(psd, given, table, 2000.0) == ()


def test_the_scale_of_a_combination_is_named(x64):
    x, target = correlated()
    wide = x + 0.25 * (x[:, :1] - x[:, 1:2]) * jnp.array([[1.0, -1.0, 0.0]])
    given = check_input(target, wide).with_scores()
    psd = jaxpsd.PSD(2, basis="hermite", transform=jaxpsd.Affine.fit(wide, "target", target=target), form="primal")
    table = jaxpsd.moment_table(jax.random.key(1), target, wide, names=("a", "b", "c"))
    finding = worst_directions(psd, given, table, 2000.0)[0]
    assert finding.quantity == "standard deviation"
    assert re.match(
        r"the standard deviation of 0\.\d+·a − 0\.\d+·b is 1\.\d\d \(1\.\d\d … 1\.\d\d\) times the target's",
        finding.text,
    )
    assert finding.interval[0] <= finding.error <= finding.interval[1]
    assert finding.error == pytest.approx(0.5, abs=0.05)


# --- a second opinion -------------------------------------------------------------------------------------


def skewed(x):
    """The logarithms of gamma variables."""
    return jnp.sum(0.5 * x - jnp.exp(x))


SKEWED = jnp.log(jax.random.gamma(jax.random.key(6), 0.5, (500, 3)))


def test_draws_are_moved_where_the_target_is_not_gaussian(right):
    assert diagnose(SKEWED, skewed).relaxation is not None
    assert diagnose(SKEWED, skewed, second_opinion=False).relaxation is None
    assert right.relaxation is None
    assert "Draws that followed the target" in repr(diagnose(normal(), second_opinion=True))


@pytest.mark.parametrize("asked", ["yes", None, 1, 0.5, "Auto"])
def test_second_opinions_are_asked_for_or_not(asked):
    with pytest.raises(ValueError, match="`second_opinion` must be True, False or 'auto'"):
        diagnose(normal(), second_opinion=asked)


def test_scores_cannot_be_followed():
    with pytest.raises(ValueError, match="takes the log-density as a function; got scores"):
        diagnose(normal(), -normal(), second_opinion=True)
    assert diagnose(SKEWED, jax.vmap(jax.grad(skewed))(SKEWED)).relaxation is None


def test_without_blackjax_nothing_moves(monkeypatch):
    def find_spec(name, *rest):
        return None if name == "blackjax" else True

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    report = diagnose(FUNNEL, funnel)
    assert report.relaxation is None
    assert any("Install BlackJAX" in advice for advice in report.advice)


def funnel(x):
    return -0.5 * (x[0] / 1.5) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - x[0]


FUNNEL = normal(7, (500, 3)) * jnp.array([[0.8, 0.9, 0.9]])


def test_moved_draws_say_what_polynomials_cannot():
    report = diagnose(FUNNEL, funnel)
    assert report.moments.unknown()
    assert report.relaxation.reject
    assert report.reject
    assert report.relaxation.statements[0] in report.verdict


def test_derivatives_of_ones_own_making_are_followed():
    @jax.custom_jvp
    def own(x):
        return skewed(x)

    own.defjvp(lambda primals, tangents: (own(*primals), jax.jvp(skewed, primals, tangents)[1]))
    report = diagnose(SKEWED, lambda x: own(x), second_opinion=True)
    assert report.relaxation is not None
    assert not report.reject


# --- what is said -----------------------------------------------------------------------------------------


def test_a_small_p_value_of_a_part_is_explained_where_the_test_does_not_reject():
    for seed in range(20):
        report = diagnose(normal(200 + seed))
        parts = np.asarray(report.test.parts.p_value)
        is_said = any("parts of the test has p =" in caveat for caveat in report.caveats)
        assert is_said == (parts.min() <= 0.05 and not report.test.reject)
        if is_said:
            break
    assert is_said


def test_what_is_not_known_is_null_in_json():
    report = diagnose(FUNNEL, funnel, second_opinion=False)
    assert np.isnan(report.moments.errors.sd_ratio).any()
    told = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert None in told["moments"]["errors"]["sd_ratio"]
    assert told["detectable"] == {"mean": None, "scale": None}
    assert "not known" in report._repr_html_()
