import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxpsd
from jaxpsd._choose import rank as _rank

KEY = jax.random.key(0)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def normal(seed, shape=(500, 2), scale=1.0):
    return scale * jax.random.normal(jax.random.key(seed), shape)


DISCREPANCIES = {
    "PSD": jaxpsd.PSD(2),
    "dual": jaxpsd.PSD(3, form="dual"),
    "l1": jaxpsd.PSD(2, norm="l1"),
    "KSD": jaxpsd.KSD(jaxpsd.Gaussian("median")),
    "own kernel": jaxpsd.KSD(lambda x, y: jnp.exp(-0.5 * jnp.sum((x - y) ** 2))),
    "FSSD": jaxpsd.FSSD.random(KEY, normal(9)),
    "RFSD": jaxpsd.RFSD(),
}


# Each compiles programs of its own. Other tests rank by sums of moments; here every run takes sums over pairs, with
# a length that comes from the draws, and a norm that is not a sum of squares.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("l1", "KSD") else pytest.mark.slow) for name in DISCREPANCIES]
)
def test_any_discrepancy_ranks_by_its_own_values(name):
    discrepancy = DISCREPANCIES[name]
    sets = {"wide": normal(1, scale=1.5), "right": normal(2), "narrow": normal(3, (300, 2), 0.5)}
    ranking = jaxpsd.rank(KEY, discrepancy, logdensity, sets)
    assert ranking.best == "right"
    assert list(ranking.discrepancy) == sorted(ranking.discrepancy)
    assert (ranking.interval[:, 0] < ranking.discrepancy).all()
    assert (ranking.discrepancy < ranking.interval[:, 1]).all()
    if name in ("PSD", "l1", "KSD", "own kernel"):
        assert ranking.as_good == ("right",)
    if name in ("PSD", "dual", "l1", "FSSD", "own kernel"):
        # Nothing to choose by the draws, so that each is what the discrepancy itself says.
        alone = [float(discrepancy(logdensity, sets[label])) for label in ranking.labels]
        np.testing.assert_allclose(ranking.discrepancy, alone, rtol=1e-4)


def test_values_and_p_values_are_those_of_the_test():
    sets = {"a": normal(1, scale=1.05), "b": normal(2)}
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets, method="rademacher")
    for label, key in zip(sets, jax.random.split(jax.random.split(KEY)[0], 2), strict=True):
        test = jaxpsd.gof_test(key, jaxpsd.PSD(2), logdensity, sets[label], method="rademacher")
        k = ranking.labels.index(label)
        np.testing.assert_allclose(ranking.discrepancy[k] ** 2, test.statistic, rtol=1e-5)
        assert ranking.p_value[k] == pytest.approx(float(test.p_value), abs=1e-6)


@pytest.mark.slow
def test_replicates_of_other_runs_are_what_their_formula_says():
    x = normal(1, (60, 2), 1.3)
    psd = jaxpsd.PSD(2)
    ranking = jaxpsd.rank(KEY, psd, logdensity, {0: x}, method="rademacher", num_replicates=50)
    key = jax.random.split(jax.random.split(KEY)[0], 1)[0]
    null = jaxpsd.gof_test(key, psd, logdensity, x, method="rademacher", num_replicates=50)
    from jaxpsd._gof.scheme import signs_of

    v = np.asarray(signs_of(key, "rademacher", None, 60, 50).prepared(60).rows(jnp.asarray(0), 60))[:, 1:]
    tau = np.asarray(psd.features(logdensity, x), np.float64)
    part = np.sqrt(max(0, 1 - np.mean(null.replicates) / float(null.statistic)))
    errors = ((v - v.mean(axis=0)) / v.std(axis=0)).T @ (tau - tau.mean(axis=0)) / 60
    expected = ((part * tau.mean(axis=0) + errors) ** 2).sum(axis=1)
    np.testing.assert_allclose(ranking.replicates[0], expected, rtol=1e-4)


@pytest.mark.slow
def test_features_and_pairs_give_the_same_replicates():
    sets = {0: normal(1, (70, 3)), 1: normal(2, (70, 3), 1.2)}
    primal, dual = (
        jaxpsd.rank(KEY, jaxpsd.PSD(2, form=form), logdensity, sets, method="markov", num_replicates=40)
        for form in ("primal", "dual")
    )
    np.testing.assert_allclose(primal.replicates, dual.replicates, rtol=1e-3)


@pytest.mark.slow
def test_sets_of_equal_length_are_computed_together_as_if_alone(monkeypatch):
    sets = {k: normal(k, (200, 2)) for k in range(5)}
    options = {"method": "rademacher", "num_replicates": 30}
    one_by_one = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets, **options)
    monkeypatch.setattr(_rank, "sets_at_once", lambda size: 2)
    # Another size of blocks, so that it is compiled again.
    together = jaxpsd.rank(KEY, jaxpsd.PSD(2, block_size=150), logdensity, sets, **options)
    assert one_by_one.labels == together.labels
    np.testing.assert_allclose(one_by_one.replicates, together.replicates, rtol=1e-4)


def test_one_transform_serves_all_sets():
    # By its own standard deviations each of these would look right.
    sets = {"wide": normal(1, scale=3.0), "right": normal(2), "right too": normal(3)}
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2, transform="standardize"), logdensity, sets)
    assert ranking.labels[-1] == "wide"
    assert ranking.compare("wide", "right").ratio > 5


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["center", "standardize", "whiten"])
def test_a_set_gone_astray_does_not_set_the_scale(rule):
    good = {k: normal(k, (400, 2)) for k in range(4)}
    psd = jaxpsd.PSD(2, transform=rule)
    without = jaxpsd.rank(KEY, psd, logdensity, good)
    stuck = jnp.ones((400, 2))
    with_them = jaxpsd.rank(KEY, psd, logdensity, good | {"far": normal(7, (400, 2), 1e6), "stuck": stuck})
    assert with_them.labels[-1] == "far"
    assert "stuck" not in with_them.as_good
    first = with_them.discrepancy[: len(good)]
    np.testing.assert_allclose(sorted(first), sorted(without.discrepancy), rtol=0.2)


def test_sets_that_tell_nothing_of_the_target_do_not_take_part_in_its_coordinates():
    # By the first set alone correlations are those of the target; four draws have scales of their own, and so have
    # draws whose scores have the wrong sign.
    mixing = jnp.array([[1.0, 0.0], [0.95, 0.3]])
    x = normal(1) @ mixing.T
    sets = {"right": x, "few": 3 * x[:3], "between modes": 3 * x[:100]}
    scores = {label: -jnp.linalg.solve(mixing @ mixing.T, each.T).T for label, each in sets.items()}
    scores["between modes"] = -scores["between modes"]
    ranking = jaxpsd.rank(KEY, None, scores, sets, num_replicates=99)
    assert ranking.best == "right"
    alone = jaxpsd.PSD(2, basis="hermite", transform="target")(scores["right"], x)
    np.testing.assert_allclose(ranking.discrepancy[0], alone, rtol=1e-4)
    only = jaxpsd.rank(KEY, None, {"a": scores["between modes"]}, {"a": sets["between modes"]}, num_replicates=99)
    assert "imply no scale of the target in 2 of 2" in " ".join(only.remarks[0])


def test_a_set_that_diverged_comes_last_with_the_reason():
    bad = normal(1).at[7, 1].set(jnp.nan)
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, {"bad": bad, "good": normal(2)})
    assert ranking.labels == ("good", "bad")
    assert np.isnan(ranking.discrepancy[1])
    assert "draw 7" in ranking.remarks[1][0]
    assert "bad" in repr(ranking)
    assert "–" in repr(ranking)
    with pytest.raises(ValueError, match="draw 7"):
        ranking.compare("good", "bad")
    with pytest.raises(ValueError, match="No sample set can be ranked"):
        jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, {"bad": bad})


def compare_with(others, chain, correlation=0.99, shape=(1, 2000, 2), **options):
    sets = {**others, "slow": chain(correlation, shape, 5)}
    return jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets, **options)


@pytest.fixture(scope="module")
def good():
    return {"right": normal(1, (2000, 2)), "right too": normal(2, (2000, 2)), "wide": normal(3, (2000, 2), 1.2)}


def test_signs_that_all_agree_do_not_stretch_the_interval(good, chain):
    # One replicate in thirty has no flip of sign at all.
    ranking = compare_with(good, chain, method="markov")
    k = ranking.labels.index("slow")
    assert not ranking.comparable[k]
    assert (ranking.replicates > 0).all()
    assert (ranking.interval[:, 1] < 10 * ranking.discrepancy).all()
    assert (ranking.interval[:, 0] > 0.1 * ranking.discrepancy).all()
    # It is twenty times as far off as the best, which few draws are enough to see.
    assert "slow" not in (*ranking.as_good, *ranking.undecided)
    assert "too few to compare" in ranking.remarks[k][0]


def test_a_set_of_few_draws_changes_nothing_for_the_others(good, chain):
    # Keys depend on how many sets there are, but not on what is in them.
    with_slow = compare_with(good, chain)
    with_another = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, good | {"slow": chain(0.999, (1, 2000, 2), 6)})
    assert with_slow.comparable.sum() == with_another.comparable.sum() == 3
    for first in good:
        for second in good:
            p, other = (
                each.adjusted_p_value[each.labels.index(first), each.labels.index(second)]
                for each in (with_slow, with_another)
            )
            assert p == other


def test_a_set_of_few_draws_is_neither_best_nor_as_good():
    # Ten draws of a sampler that is right, against many of one that is a little off: it may be better, or worse.
    few, many = normal(4, (10, 2)), normal(5, scale=1.3)
    few = few - few.mean(axis=0, keepdims=True)
    for scale in (1.0, 0.8):
        ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, {"few": scale * few, "many": many})
        assert (ranking.best, ranking.as_good, ranking.undecided) == ("many", ("many",), ("few",))
        assert list(ranking.discrepancy) == sorted(ranking.discrepancy)
        assert "unknown" in repr(ranking)
        assert "It cannot be told whether few is as good." in repr(ranking)
        rows = {row["label"]: row["as_good_as_best"] for row in ranking.to_dict()["ranking"]}
        assert rows == {"few": None, "many": True}


def test_where_no_set_has_enough_draws_nothing_is_claimed():
    sets = {k: normal(k, (8, 2)) for k in range(2)}
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets)
    assert ranking.best == ranking.labels[0]
    assert ranking.as_good == ranking.labels[:1]
    assert ranking.undecided == ranking.labels[1:]
    assert "beyond chance" not in repr(ranking)


def test_one_set_has_nothing_to_be_compared_with(chain):
    ranking = compare_with({}, chain)
    assert (ranking.best, ranking.as_good, ranking.undecided) == ("slow", ("slow",), ())
    assert "slow is the only set with a discrepancy." in repr(ranking)


def test_equal_sets_tie():
    x = normal(1)
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, {"a": x, "b": x}, paired=True)
    assert set(ranking.as_good) == {"a", "b"}
    assert ranking.adjusted_p_value.min() == 1


def test_pairs_do_not_take_the_signs_of_a_set_of_few_draws(good, chain):
    with_slow = compare_with(good, chain, paired=True)
    assert with_slow.undecided == ()
    assert with_slow.as_good == ("right", "right too")
    for label in good:
        k = with_slow.labels.index(label)
        alone = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, {label: good[label]})
        np.testing.assert_allclose(with_slow.interval[k], alone.interval[0], rtol=0.2)


@pytest.mark.parametrize("per_chain", [False, True])
def test_orders_rank_together_as_by_themselves(per_chain):
    sets = {"right": normal(1, (6, 100, 2)), "wide": normal(2, (6, 100, 2), 1.3)}
    options = {"method": "rademacher", "num_replicates": 100, "per_chain": per_chain}
    psds = [jaxpsd.PSD(order, basis="hermite", transform="target") for order in (1, 2)]
    together = _rank.rank_orders(KEY, psds[-1], logdensity, sets, (1, 2), **options)
    for ranking, psd in zip(together, psds, strict=True):
        alone = jaxpsd.rank(KEY, psd, logdensity, sets, **options)
        assert ranking.labels == alone.labels
        for field in ("discrepancy", "interval", "p_value", "replicates", "parts"):
            np.testing.assert_allclose(getattr(ranking, field), getattr(alone, field), rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize("per_chain", [False, True])
def test_a_set_that_did_not_move_is_never_the_best(per_chain):
    # So near the mode, and never anywhere else: by the mean alone nothing could be better.
    shape = (6, 100, 1)
    sets = {"stuck": jnp.full(shape, 1e-3), "far": jnp.full(shape, 5.0), "right": normal(1, shape)}
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(1), logdensity, sets, per_chain=per_chain)
    assert ranking.labels == ("stuck", "right", "far")
    assert (ranking.best, ranking.as_good, ranking.undecided) == ("right", ("right",), ("stuck",))
    assert np.isnan(ranking.interval[[0, 2]]).all()
    assert np.isfinite(ranking.interval[1]).all()
    assert "All draws are the same" in ranking.remarks[0][0]


def test_chains_tell_how_much_they_differ_however_few_draws_each_is_worth(chain):
    sets = {"slow": chain(0.99, (6, 150, 2), 5), "right": normal(1, (6, 150, 2))}
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets, per_chain=True)
    assert ranking.comparable.all()
    assert ranking.as_good == ("right",)


def test_scores_are_given_by_label():
    sets = {"a": normal(1), "b": normal(2, (300, 2), 1.3)}
    scores = {label: jaxpsd.score(logdensity, draws) for label, draws in sets.items()}
    by_scores = jaxpsd.rank(KEY, jaxpsd.PSD(2), scores, sets)
    by_density = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets)
    assert by_scores.labels == by_density.labels
    np.testing.assert_allclose(by_scores.discrepancy, by_density.discrepancy, rtol=1e-6)


@pytest.mark.slow
def test_chains_are_known_to_be_dependent(chain):
    chains = jnp.concatenate([chain(0.9, (1, 2000, 2), seed) for seed in (1, 2)])
    sets = {"chains": chains, "independent": normal(4, (4000, 2))}
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets)
    times = dict(zip(ranking.labels, ranking.autocorrelation_time, strict=True))
    assert 10 < times["chains"] < 30
    assert times["independent"] < 2
    assert ranking.best == "independent"
    assert (ranking.p_value > 0.01).all()


def test_pytrees_are_ranked_too():
    sets = {k: {"mu": normal(k, (200,)), "beta": normal(k + 10, (200, 2))} for k in range(2)}
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(1), lambda p: -0.5 * (p["mu"] ** 2 + jnp.sum(p["beta"] ** 2)), sets)
    assert set(ranking.labels) == {0, 1}


def test_pairs_share_their_noise():
    # The same draws, and one set a little wider: without pairing the noise of 200 draws hides it.
    x = normal(1, (200, 1))
    sets = {"a": 1.3 * x, "b": 1.33 * x}
    apart, together = (
        jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets, paired=paired).compare("b", "a") for paired in (False, True)
    )
    assert together.ratio == pytest.approx(apart.ratio)
    assert together.p_value < 0.01 < 0.1 < apart.p_value
    assert together.interval[0] > 1


@pytest.mark.slow
def test_the_median_chain_stands_for_a_run():
    chains = normal(1, (7, 200, 2)) * jnp.linspace(0.7, 1.3, 7)[:, None, None]
    sets = {"right": normal(2, (7, 200, 2)), "mixed": chains.at[0, 3, 1].set(jnp.nan), "bad": chains * 2}
    psd = jaxpsd.PSD(2)
    ranking = jaxpsd.rank(KEY, psd, logdensity, sets, per_chain=True)
    assert ranking.labels == ("right", "mixed", "bad")
    alone = [float(psd(logdensity, chain)) for chain in sets["right"]]
    assert ranking.discrepancy[0] == pytest.approx(np.median(alone), rel=1e-5)
    # A chain that diverged counts as the worst; there are p-values for all chains together only.
    others = [float(psd(logdensity, chain)) for chain in chains[1:]]
    assert ranking.discrepancy[1] == pytest.approx(np.median([*others, np.inf]), rel=1e-5)
    assert np.isnan(ranking.p_value[1])
    assert "draw 3 of chain 0" in ranking.remarks[1][0]
    assert ranking.interval[0, 0] <= ranking.discrepancy[0] <= ranking.interval[0, 1]
    with pytest.raises(ValueError, match="at least 5"):
        jaxpsd.rank(KEY, psd, logdensity, {"few": normal(3, (3, 100, 2))}, per_chain=True)


def test_each_set_is_judged_by_itself_where_a_tolerance_is_given():
    sets = {
        "right": normal(1, (4000, 2)) - normal(1, (4000, 2)).mean(axis=0, keepdims=True),
        "wide": normal(2, (4000, 2), 1.3),
        "astray": normal(3, (4000, 2)).at[0, 0].set(jnp.inf),
        "stuck": jnp.full((4000, 2), 1e-3),
    }
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets, tolerance=0.1)
    judged = dict(zip(ranking.labels, ranking.good_enough, strict=True))
    assert judged == {"right": True, "wide": False, "astray": None, "stuck": None}
    assert (ranking.tolerance, ranking.to_dict()["tolerance"]) == (0.1, 0.1)
    assert {row["label"]: row["good_enough"] for row in ranking.to_dict()["ranking"]} == judged
    assert "good enough" in repr(ranking)
    # As a report on these draws would say.
    for label in ("right", "wide"):
        report = jaxpsd.diagnose(KEY, logdensity, sets[label], tolerance=0.1, second_opinion=False)
        assert report.good_enough is judged[label]


def test_nobody_judges_unless_asked(monkeypatch):
    monkeypatch.setattr(_rank, "judge_candidates", lambda *_: pytest.fail("nobody asked"))
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, {"a": normal(1), "b": normal(2)})
    assert ranking.good_enough is None
    assert ranking.tolerance is None
    assert "good enough" not in repr(ranking)
    assert "tolerance" not in ranking.to_dict()


def test_results_can_be_written_down():
    sets = {0.1: normal(1), 0.2: normal(2).at[0, 0].set(jnp.inf)}
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, sets)
    plain = json.loads(json.dumps(ranking.to_dict()))
    assert [row["label"] for row in plain["ranking"]] == [0.1, 0.2]
    assert plain["ranking"][1]["discrepancy"] is None
    assert "<table>" in ranking._repr_html_()


@pytest.mark.slow
def test_equal_samplers_are_told_apart_no_more_often_than_they_should_be():
    trials, told, covered = 100, 0, []
    values, intervals = [], []
    for seed in range(trials):
        sets = {k: normal(1000 + 2 * seed + k, (300, 2), 1.2) for k in range(2)}
        ranking = jaxpsd.rank(jax.random.key(seed), jaxpsd.PSD(2), logdensity, sets, method="rademacher")
        told += ranking.adjusted_p_value[0, 1] <= 0.05
        values += list(ranking.discrepancy**2)
        intervals += list(ranking.interval**2)
    # A correct 5% test fails this once in 10⁴ runs.
    assert told <= scipy.stats.binom.isf(1e-4, trials, 0.05)
    expected = np.mean(values)
    covered = np.mean([low <= expected <= high for low, high in intervals])
    # The intervals' level is approximate: nine in ten, for nineteen in twenty.
    assert covered >= scipy.stats.binom.ppf(1e-4, 2 * trials, 0.9) / (2 * trials)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": {}}, "mapping from labels"),
        ({"samples": normal(1)}, "mapping from labels"),
        ({"target": jnp.zeros((500, 2))}, "mapping from each label"),
        ({"discrepancy": jaxpsd.LinearKSD()}, "LinearKSD"),
        ({"discrepancy": jaxpsd.PSD}, "must be a discrepancy"),
        ({"method": "multinomial"}, "sign bootstrap"),
        ({"samples": {"a": normal(1), "b": normal(1, (500, 3))}}, "differ"),
        ({"samples": {"a": normal(1), "b": normal(1, (300, 2))}, "paired": True}, "as many draws"),
        ({"samples": {"a": normal(1, (1, 2))}}, "two draws"),
        ({"alpha": 2.0}, "alpha"),
        ({"tolerance": 1.5}, "`tolerance` must be below 1"),
    ],
)
def test_mistakes_are_named(change, message):
    given = {"discrepancy": jaxpsd.PSD(2), "target": logdensity, "samples": {"a": normal(1)}} | change
    with pytest.raises((TypeError, ValueError), match=message):
        jaxpsd.rank(KEY, given.pop("discrepancy"), given.pop("target"), given.pop("samples"), **given)


def test_an_unknown_label_is_named():
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, {"a": normal(1)})
    with pytest.raises(KeyError, match="'b'"):
        ranking.compare("a", "b")


def test_a_grid_is_sampled_with_different_keys_and_a_progress_bar(capsys):
    draws = jaxpsd.sample_grid(KEY, lambda key, scale: scale * jax.random.normal(key, (5, 1)), [1.0, 2.0])
    assert set(draws) == {1.0, 2.0}
    assert not np.allclose(2 * draws[1.0], draws[2.0])
    assert "2/2" in capsys.readouterr().err


def test_a_sampler_that_fails_is_named_with_its_step_size():
    def fails(key, step_size):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError) as caught:
        jaxpsd.sample_grid(KEY, fails, [0.5], progress=False)
    assert "0.5" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="differ from each other"):
        jaxpsd.sample_grid(KEY, fails, [0.5, 0.5])
    with pytest.raises(TypeError, match="sampler"):
        jaxpsd.sample_grid(KEY, 3, [0.5])


def test_an_interrupted_grid_goes_on_where_it_stopped():
    calls = []

    def sampler(key, scale):
        calls.append(scale)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return scale * jax.random.normal(key, (5, 1))

    done = {}
    with pytest.raises(KeyboardInterrupt):
        jaxpsd.sample_grid(KEY, sampler, [1.0, 2.0, 3.0], done=done, progress=False)
    assert list(done) == [1.0]
    found = jaxpsd.sample_grid(KEY, sampler, [1.0, 2.0, 3.0], done=done, progress=False)
    assert calls == [1.0, 2.0, 2.0, 3.0]
    whole = jaxpsd.sample_grid(KEY, sampler, [1.0, 2.0, 3.0], progress=False)
    assert list(found) == list(whole)
    for scale, draws in whole.items():
        np.testing.assert_array_equal(found[scale], draws)
    with pytest.raises(TypeError, match="`done` must be a dictionary"):
        jaxpsd.sample_grid(KEY, sampler, [1.0], done=[1.0])


def test_a_grid_may_be_any_array_of_numbers():
    draws = jaxpsd.sample_grid(jax.random.key(0), lambda key, step: step, jnp.array([0.1, 0.2]), progress=False)
    assert [f"{step:g}" for step in draws] == ["0.1", "0.2"]


@pytest.mark.parametrize("grid", [None, 3, [], [0.1, 0.1], [float("nan")], [[0.1], [0.2]]], ids=str)
def test_a_grid_that_is_none_is_explained(grid):
    with pytest.raises((TypeError, ValueError), match="`grid` must be"):
        jaxpsd.sample_grid(jax.random.key(0), lambda key, step: step, grid, progress=False)


def test_more_replicates_than_fit_are_refused():
    x = np.zeros((10, 1), np.float32)
    with pytest.raises(ValueError, match="The replicates would be"):
        jaxpsd.rank(jax.random.key(0), jaxpsd.PSD(1), {"a": x}, {"a": x}, num_replicates=10**12)
