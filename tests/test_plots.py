import dataclasses
import itertools

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


def test_the_legend_is_beside_the_bars(samples):
    ax = drawn(plots.null_distribution(jaxpsd.gof_test(KEY, jaxpsd.PSD(1), logdensity, samples, num_replicates=100)))
    assert not ax.get_legend().get_window_extent().overlaps(ax.get_window_extent())
    assert sum(bar.get_height() for bar in ax.patches) == 100


def test_the_legend_of_moments_is_above_the_bars_and_below_the_title(wide_table):
    ax = drawn(plots.moment_errors(wide_table))
    legend = ax.get_legend().get_window_extent()
    assert not legend.overlaps(ax.get_window_extent().padded(-1))
    assert not legend.padded(-1).overlaps(ax.title.get_window_extent())


@pytest.mark.parametrize(("statistic", "scale"), [(30.0, "linear"), (300.0, "log")])
def test_replicates_far_from_the_statistic_stay_visible(statistic, scale):
    replicates = np.linspace(1, 10, 100)
    far = dataclasses.replace(result(), statistic=np.array(statistic), replicates=replicates)
    ax = drawn(plots.null_distribution(far))
    assert ax.get_xscale() == scale
    first, last = (ax.transData.transform((x, 0))[0] for x in (1, 10))
    assert last - first > 0.2 * ax.get_window_extent().width


@pytest.mark.parametrize("statistic", [45.0, 900.0, 1e6])
def test_labels_of_a_logarithmic_axis_can_be_read(statistic):
    far = dataclasses.replace(result(), statistic=np.array(statistic), replicates=np.linspace(1, 10, 100))
    ax = drawn(plots.null_distribution(far))
    labels = [*ax.get_xticklabels(), *ax.get_xticklabels(minor=True)]
    low, high = ax.get_xlim()
    boxes = [each.get_window_extent() for each in labels if each.get_text() and low <= each.get_position()[0] <= high]
    assert len(boxes) >= 3
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(sorted(boxes, key=lambda box: box.x0)))


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
    assert ax.images[0].get_array().shape == (20, 20)


def known_errors(table, mean_off, sd_ratio, correlation=None):
    """A table whose errors are these, known to ±0.01; all correlations of the target are zero."""
    dim = len(mean_off)
    uncertain = np.full(dim, 0.01 / 1.96)
    errors = table.errors._replace(
        mean_off=np.asarray(mean_off), mean_off_se=uncertain, mean_off_unseen=np.zeros(dim),
        sd_ratio=np.asarray(sd_ratio), sd_ratio_se=uncertain * sd_ratio, sd_ratio_unseen=np.zeros(dim),
        correlation=correlation, true_correlation=np.eye(dim),
    )  # fmt: skip
    return dataclasses.replace(table, errors=errors, names=tuple(f"x{k}" for k in range(dim)))


def lines_of(ax):
    """Points of means and of standard deviations, and their intervals."""
    return [(bars[0].get_xdata(), bars[0].get_ydata(), bars[2][0].get_segments()) for bars in ax.containers]


def test_what_is_too_wide_is_to_the_right(table):
    ax = drawn(plots.errors(known_errors(table, [0.3, -0.2], [1.0, 0.6])))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x1", "x0"]
    (means, _, mean_bars), (scales, _, _) = lines_of(ax)
    np.testing.assert_allclose(means, [-0.2, 0.3])
    np.testing.assert_allclose(scales, [-0.4, 0.0])
    np.testing.assert_allclose(mean_bars[1][:, 0], [0.29, 0.31])
    # The worst is on top.
    assert ax.yaxis_inverted()
    low, high = ax.get_xlim()
    assert low == -high
    band = ax.patches[0]
    assert (band.get_x(), band.get_width()) == pytest.approx((-0.1, 0.2))


@pytest.mark.parametrize(("dim", "most", "rows"), [(50, 12, 13), (50, 50, 50), (5, 12, 5)])
def test_more_coordinates_than_fit_are_counted(table, dim, most, rows):
    off = np.linspace(0, 0.5, dim)
    ax = drawn(plots.errors(known_errors(table, off, np.ones(dim)), most=most))
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert len(labels) == rows
    assert labels[0] == f"x{dim - 1}"
    assert (labels[-1] == "+ 38 more") == (rows == 13)
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


def test_what_is_not_known_is_said_and_comes_first(table):
    ax = drawn(plots.errors(known_errors(table, [0.0, 0.2, 0.5], [np.nan, np.nan, 1.0])))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x1", "x0", "x2"]
    assert [text.get_text() for text in ax.texts] == ["not known"] * 2


def test_gross_errors_leave_the_tolerance_visible(table):
    ax = drawn(plots.errors(known_errors(table, [0.0, 20.0], [1.0, 0.1])))
    assert ax.get_xscale() == "symlog"
    band = ax.patches[0].get_window_extent().width
    assert band > 0.1 * ax.get_window_extent().width


def test_errors_are_of_means_alone_where_no_more_is_known(samples):
    table = jaxpsd.moment_table(KEY, logdensity, samples, order=1, num_replicates=50)
    errors = table.errors._replace(sd_ratio=None, sd_ratio_se=None, sd_ratio_unseen=None)
    assert len(drawn(plots.errors(dataclasses.replace(table, errors=errors))).containers) == 1


@pytest.fixture(scope="module")
def full_report(samples):
    return jaxpsd.diagnose(KEY, logdensity, 1.2 * samples, num_replicates=100, tolerance=0.2, second_opinion=False)


def test_a_report_brings_its_tolerance(full_report, table):
    for given, tolerance, expected in ((full_report, None, 0.2), (full_report, 0.3, 0.3), (table, None, 0.1)):
        band = plots.errors(given, tolerance=tolerance).patches[0]
        assert band.get_width() == pytest.approx(2 * expected)
    with pytest.raises(ValueError, match="tolerance"):
        plots.errors(table, tolerance=2)


def test_a_report_is_one_figure(full_report, table):
    figure = plots.report(full_report)
    figure.canvas.draw()
    assert figure.get_suptitle().replace("\n", " ") == full_report.verdict
    assert "independent draws" in figure.get_supxlabel()
    titles = [ax.get_xlabel() for ax in figure.axes]
    assert titles == ["too small  ←  error  →  too large", "V of order 2", ""]
    unknown = full_report.moments.errors._replace(true_correlation=np.full((2, 2), np.nan))
    moments = dataclasses.replace(full_report.moments, errors=unknown)
    *_, last = plots.report(dataclasses.replace(full_report, moments=moments)).axes
    assert "Stein feature" in last.get_xlabel()
    with pytest.raises(TypeError, match="must come from `diagnose`"):
        plots.report(table)


def test_second_moments_of_fifty_coordinates_are_those_of_the_worst(table):
    correlation = np.eye(50)
    correlation[[7, 30], [30, 7]] = 0.4
    ax = drawn(plots.second_moments(known_errors(table, np.zeros(50), np.r_[np.ones(49), 1.3], correlation), most=3))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["x7", "x30", "x49"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x7", "x30", "x49"]
    np.testing.assert_allclose(ax.images[0].get_array(), [[0, 0.4, 0], [0.4, 0, 0], [0, 0, 0.3]], atol=1e-12)
    assert "3 of 50" in ax.get_title()
    ax = drawn(plots.second_moments(known_errors(table, np.zeros(50), np.ones(50), correlation)))
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert len(boxes) == 20
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


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


@pytest.mark.parametrize("rho", [0.0, 0.95])
def test_scores_of_any_gaussian_are_a_line_of_its_precision(rho):
    covariance = np.array([[1, rho], [rho, 1]])
    x = np.random.default_rng(0).multivariate_normal([1, 2], covariance, size=300)
    scores = -(x - [1, 2]) @ np.linalg.inv(covariance)
    ax = drawn(plots.marginal_scores(scores, x, coordinate=0))
    points, line = ax.get_lines()
    slope = -1 / (1 - rho**2)
    x, y = (values - values.mean() for values in (points.get_xdata(), points.get_ydata()))
    np.testing.assert_allclose(y, slope * x, rtol=0, atol=2e-2)
    assert np.ptp(line.get_ydata()) / np.ptp(line.get_xdata()) == pytest.approx(-slope, rel=1e-3)
    assert "linear score 100%" in line.get_label()
    assert "less what is linear in the others" in ax.get_ylabel()


def test_the_linear_score_is_that_of_a_report(samples):
    def curved(x):
        return -0.5 * x[0] ** 2 - 0.25 * x[1] ** 4 - 0.5 * x[0] * x[1]

    table = jaxpsd.moment_table(KEY, curved, samples, num_replicates=50)
    for k in range(2):
        label = plots.marginal_scores(curved, samples, coordinate=k).get_lines()[1].get_label()
        assert label.endswith(f"linear score {float(table.linearity[k]):.0%}")


def test_fewer_draws_than_coordinates_tell_nothing_of_scores():
    with pytest.raises(ValueError, match="more draws than coordinates, 5 and one; got 6"):
        plots.marginal_scores(-np.eye(6, 5), np.eye(6, 5))


def test_two_of_several_coordinates_are_shown_over_a_slice():
    def density(p):
        return -0.5 * ((p["a"] - 5) ** 2 + jnp.sum((p["b"] - p["a"]) ** 2))

    x = np.random.default_rng(0).normal(size=(501, 3))
    given = {"a": x[:, 0] + 2.0, "b": x[:, 1:]}
    ax = drawn(plots.draws(density, given, coordinates=("b[1]", 1)))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("b[1]", "b[0]")
    np.testing.assert_array_equal(ax.get_lines()[0].get_xdata(), x[:, 2].astype(np.float32))
    # Where the others are at their medians, both are centred at that of a.
    paths = ax.collections[0].get_paths()
    centre = np.concatenate([polygon for path in paths for polygon in path.to_polygons()]).mean(axis=0)
    np.testing.assert_allclose(centre, np.median(given["a"]), atol=0.1)
    assert "slice of the density" in ax.get_legend().get_texts()[1].get_text()
    for wrong in (None, (0,), (0, 0), (0, 7), ("a", "c"), 3):
        with pytest.raises(ValueError, match="`coordinates` must be"):
            plots.draws(density, given, coordinates=wrong)


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
    with pytest.raises(ValueError, match="`coordinates` must be two"):
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
        (plots.errors, "diagnose"),
        (plots.report, "diagnose"),
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


def test_a_map_of_nothing_says_so(table):
    blank = np.full(20, np.nan)
    ax = drawn(plots.second_moments(known_errors(table, blank, blank, np.full((20, 20), np.nan))))
    assert [text.get_text() for text in ax.texts] == ["not known"]


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
