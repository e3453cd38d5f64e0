import dataclasses

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import jaxpsd
from jaxpsd import plots

mpl.use("agg")
KEY = jax.random.key(0)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def samples():
    return 1.1 * jax.random.normal(KEY, (300, 2))


@pytest.fixture(scope="module")
def table(samples):
    return jaxpsd.moment_table(KEY, logdensity, samples, num_replicates=100, names=("mu", "tau"))


@pytest.fixture(scope="module")
def wide_table():
    x = jax.random.normal(KEY, (250, 100)).at[:, 3].multiply(2)
    return jaxpsd.moment_table(KEY, -x, x, num_replicates=50)


def drawn(ax):
    ax.figure.canvas.draw()
    return ax


def test_the_null_distribution_shows_statistic_and_threshold(samples):
    result = jaxpsd.adaptive_test(KEY, logdensity, samples, num_replicates=100)
    ax = drawn(plots.null_distribution(result))
    lines = [float(line.get_xdata()[0]) for line in ax.get_lines()]
    assert lines == pytest.approx([float(result.threshold), float(result.statistic)])
    ax = plots.null_distribution(result.parts, which="tails")
    assert ax.get_xlabel() == "tails"
    with pytest.raises(ValueError, match="which"):
        plots.null_distribution(result, which=3)


def test_moments_are_bars_in_the_order_of_the_table(table):
    ax = drawn(plots.moment_errors(table, most=3))
    assert [label.get_text() for label in ax.get_yticklabels()] == list(table.labels[:3])
    widths = sorted(bar.get_width() for bar in ax.patches)
    assert widths == pytest.approx(sorted(np.asarray(table.mean[:3]).tolist()))


def test_second_moments_are_a_map(table):
    ax = drawn(plots.second_moments(table))
    shown = ax.images[0].get_array()
    np.testing.assert_allclose(np.diag(shown), np.asarray(table.errors.scale) - 1, rtol=1e-5)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["mu", "tau"]


@pytest.mark.slow
def test_a_hundred_parameters_stay_legible(wide_table):
    ax = drawn(plots.moment_errors(wide_table))
    assert len(ax.get_yticks()) == 20
    assert "20 of 5,150" in ax.get_title()
    ax = drawn(plots.second_moments(wide_table))
    assert len(ax.texts) == 0
    assert len(ax.get_xticks()) < 20


def test_second_moments_need_interactions(samples):
    table = jaxpsd.moment_table(KEY, logdensity, samples, num_replicates=50, interactions=False)
    with pytest.raises(ValueError, match="with interactions"):
        plots.second_moments(table)


@pytest.mark.slow
def test_the_chosen_step_size_has_the_star(samples):
    sets = {0.1: 1.5 * samples, 0.01: samples, 0.001: 0.5 * samples}
    rankings = {
        f"order {order}": jaxpsd.rank(KEY, jaxpsd.PSD(order), logdensity, sets, num_replicates=50) for order in (1, 2)
    }
    ax = drawn(plots.step_sizes(rankings))
    stars = [line.get_xdata()[0] for line in ax.get_lines() if line.get_marker() == "*"]
    assert stars == [ranking.best for ranking in rankings.values()]
    single = drawn(plots.step_sizes(rankings["order 2"]))
    assert single.get_ylabel() == "discrepancy"
    words = jaxpsd.rank(KEY, jaxpsd.PSD(1), logdensity, {"a": samples}, num_replicates=50)
    with pytest.raises(ValueError, match="step sizes"):
        plots.step_sizes(words)


@pytest.mark.parametrize("transform", [None, "standardize"])
def test_a_trace_ends_with_all_draws(samples, transform):
    chains = samples.reshape(3, 100, 2)
    psd = jaxpsd.PSD(2, transform=transform)
    ax = drawn(plots.trace(psd, logdensity, chains, num_points=5))
    line = ax.get_lines()[0]
    assert line.get_xdata()[-1] == 300
    assert line.get_ydata()[-1] == pytest.approx(float(psd(logdensity, chains)), rel=1e-4)
    common = jaxpsd.Affine.fit(chains, "standardize")
    own = jaxpsd.PSD(2, transform=transform and common)
    first = int(line.get_xdata()[0]) // 3
    assert line.get_ydata()[0] == pytest.approx(float(own(logdensity, chains[:, :first])), rel=1e-4)


def test_the_least_straight_score_is_shown():
    x = jax.random.normal(KEY, (200, 2))
    curved = lambda x: -0.5 * x[0] ** 2 - 0.25 * x[1] ** 4  # noqa: E731
    assert drawn(plots.marginal_scores(curved, x)).get_xlabel() == "x[1]"
    assert plots.marginal_scores(curved, x, coordinate="x[0]").get_xlabel() == "x[0]"
    assert plots.marginal_scores(curved, x, coordinate=0).get_xlabel() == "x[0]"
    with pytest.raises(ValueError, match="coordinate"):
        plots.marginal_scores(curved, x, coordinate=2)


def test_a_sampler_that_is_stuck_is_shown_within_the_whole_density():
    stuck = jnp.full((20, 2), 0.5) + 1e-3 * jax.random.normal(jax.random.key(0), (20, 2))
    ax = drawn(plots.draws(logdensity, stuck, limits=((-4, 4), (-3, 3))))
    assert ax.get_xlim() == (-4, 4)
    assert ax.get_ylim() == (-3, 3)
    reach = np.ptp(np.concatenate(ax.collections[0].get_paths()[0].to_polygons()), axis=0)
    assert (reach > 5).all()


def test_contours_hold_their_share_of_the_draws():
    x = np.asarray(jax.random.normal(KEY, (5000, 2)))
    ax = drawn(plots.draws(logdensity, x))
    levels = ax.collections[0].levels
    shares = [(np.asarray(jax.vmap(logdensity)(x)) > level).mean() for level in levels]
    np.testing.assert_allclose(shares, [0.99, 0.95, 0.8, 0.5], atol=0.03)
    with pytest.raises(ValueError, match="two coordinates"):
        plots.draws(logdensity, jnp.zeros((5, 3)))
    with pytest.raises(TypeError, match="function"):
        plots.draws(x, x)
    with pytest.raises(ValueError, match="limits"):
        plots.draws(logdensity, x, limits=((1, -1), (0, 1)))


@pytest.mark.parametrize(
    ("picture", "made_by"),
    [
        (plots.null_distribution, "gof_test"),
        (plots.moment_errors, "moment_table"),
        (plots.second_moments, "moment_table"),
        (plots.step_sizes, "rank"),
        (lambda given: plots.step_sizes({"a": given}), "rank"),
    ],
)
def test_results_of_another_kind_are_told_from_the_right_ones(picture, made_by):
    for given in (None, 3, np.zeros((4, 2))):
        with pytest.raises(TypeError, match=f"must come from `{made_by}"):
            picture(given)
    assert not plt.get_fignums()


def ranking(labels):
    rows = np.ones((len(labels), 2))
    fields = {field.name: None for field in dataclasses.fields(jaxpsd.Ranking)}
    return jaxpsd.Ranking(**fields | {"labels": labels, "discrepancy": rows[:, 0], "interval": rows})


def test_step_sizes_are_positive():
    for labels in ((0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), ("a", "b")):
        with pytest.raises(ValueError, match="must be step sizes"):
            plots.step_sizes(ranking(labels))
    with pytest.raises(ValueError, match="`rankings` is empty"):
        plots.step_sizes({})
    assert not plt.get_fignums()


def result(shape=()):
    values = np.ones(shape)
    numbers = dict.fromkeys(("statistic", "p_value", "adjusted_p_value", "threshold", "reject"), values)
    others = dict.fromkeys(("parameter", "autocorrelation_time", "p_value_floor"))
    replicates = np.ones((20, *shape))
    return jaxpsd.GofResult(**numbers, **others, replicates=replicates, method="markov", alpha=0.05, labels=("V",))


@pytest.mark.parametrize("number", [1, -1, 1.0, [], "a", object()])
def test_what_to_show_is_chosen_by_number_or_name(number):
    with pytest.raises(ValueError, match="`which` must be one of"):
        plots.null_distribution(result(), which=number)
    with pytest.raises(ValueError, match="`coordinate` must be one of"):
        plots.marginal_scores(logdensity, {"b": np.zeros(5)}, coordinate=number)


def test_the_tests_of_many_sets_are_no_picture():
    with pytest.raises(ValueError, match="several sets"):
        plots.null_distribution(result((4,)))


def test_a_scale_that_is_not_known_has_no_colour(table):
    scale = np.array([np.nan, 1.5])
    errors = table.errors._replace(sd_ratio=scale)
    ax = drawn(plots.second_moments(dataclasses.replace(table, errors=errors)))
    assert ax.texts[0].get_text() == "?"
    assert ax.images[0].get_clim() == pytest.approx((-0.5, 0.5))
    unknown = errors._replace(sd_ratio=scale * np.nan, correlation=np.full((2, 2), np.nan))
    ax = drawn(plots.second_moments(dataclasses.replace(table, errors=unknown)))
    assert {text.get_text() for text in ax.texts} == {"?"}


@pytest.mark.parametrize(
    "limits", [((0, np.inf), (0, 1)), (("a", "b"), (0, 1)), ((0, 1), (0,)), 3, "a", [((0, 1), (0, 1))]], ids=repr
)
def test_limits_are_two_pairs_of_numbers(limits):
    with pytest.raises((ValueError, TypeError), match="`limits` must be"):
        plots.draws(logdensity, np.zeros((5, 2)), limits=limits)


def test_a_log_density_that_is_none_is_explained():
    for returned in (lambda x: x, lambda x: None):
        with pytest.raises(TypeError, match="must return a scalar"):
            plots.draws(returned, np.zeros((5, 2)))
    with pytest.raises(KeyError) as caught:
        plots.draws(lambda x: {}["a"], np.zeros((5, 2)))
    assert "called with one position" in caught.value.__notes__[0]


def test_pictures_go_where_they_are_told(table):
    _, ax = plt.subplots()
    assert plots.moment_errors(table, ax=ax) is ax
    with pytest.raises(TypeError, match="axes"):
        plots.moment_errors(table, ax=3)


@pytest.fixture(scope="module")
def tuned():
    """Three settings of a sampler that needs no steps."""

    def kernel(key, x, setting):
        return x, setting["wide"] * jax.random.normal(key, x.shape)

    settings = [{"wide": 1.5, "word": "a"}, {"wide": 1.0, "word": "a"}, {"wide": 0.1, "word": "a"}]
    return jaxpsd.tune(
        jax.random.key(0), lambda x: -0.5 * (x**2).sum(), kernel, settings, positions=np.zeros((4, 2), np.float32),
        num_steps=2000,
    )  # fmt: skip


def test_rounds_of_tuning_are_lines_and_the_choice_has_the_star(tuned):
    ax = plots.tuning(tuned)
    lines = [line for line in ax.lines if line.get_label().startswith("round")]
    assert len(lines) == len(tuned.rounds)
    np.testing.assert_array_equal(lines[0].get_xdata(), [0.1, 1.0, 1.5])
    assert ax.lines[-1].get_marker() == "*"
    assert ax.lines[-1].get_xdata()[0] == tuned.best["wide"] == 1.0
    assert ax.get_xlabel() == "wide"


def test_settings_that_are_no_numbers_have_labels(tuned):
    settings = tuple({**setting, "other": -k} for k, setting in enumerate(tuned.settings))
    ax = plots.tuning(dataclasses.replace(tuned, settings=settings))
    assert [label.get_text() for label in ax.get_xticklabels()] == list(tuned.labels)
    with pytest.raises(TypeError, match="must come from `tune`"):
        plots.tuning(3)
