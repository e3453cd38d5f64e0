import json

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._choose import checkpoint

KEY = jax.random.key(0)
SIZES = [5.0, 2.0, 0.5, 0.1, 0.02, 0.0001]
STARTS = jnp.zeros((4, 2))


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def langevin(key, x, step_size):
    noise = jax.random.normal(key, x.shape)
    x = x + 0.5 * step_size * jax.grad(logdensity)(x) + jnp.sqrt(step_size) * noise
    return x, x


def tune(key=KEY, settings=SIZES, **options):
    options = {"positions": STARTS, "num_steps": 10_000, **options}
    target, kernel = options.pop("target", logdensity), options.pop("kernel", langevin)
    return jaxpsd.tune(key, target, kernel, settings, **options)


@pytest.fixture(scope="module")
def tuning():
    return tune(tolerance=0.1, objective="bias")


def test_the_step_is_chosen_that_weighs_bias_against_noise(tuning):
    """Unadjusted Langevin has variance 1 / (1 − h/4) at step h; at 0.5 it is off by a seventh, at 0.02 it is slow."""
    assert tuning.best == 0.1
    assert tuning.as_good[0] == 0.1
    assert set(tuning.as_good) <= {0.5, 0.1, 0.02}


def test_what_it_says_of_settings_is_true(tuning):
    found = tuning.outcomes
    exact = 1 / np.sqrt(1 - np.array(SIZES[1:4]) / 4) - 1
    # Five standard errors: such a test of two coordinates and three settings fails once in 10⁵ runs.
    assert (np.abs(found.sd_off[1:4] - exact[:, None]) < 5 * found.sd_off_se[1:4]).all()
    assert (np.abs(found.mean_off[1:4]) < 5 * found.mean_off_se[1:4]).all()
    # Draws of h = 2 alternate, x ← 0·x + noise, and are independent: 1000 in as many gradients.
    assert found.effective[1] == pytest.approx(1000, rel=0.6)
    np.testing.assert_allclose(np.square(found.parts[1:]).sum(axis=1), found.discrepancy[1:] ** 2)


def test_a_setting_that_diverged_is_dropped_with_its_reason(tuning):
    assert tuning.outcomes.dropped_in[0] == 1
    assert "not finite in chain" in tuning.outcomes.reasons[0]
    assert np.isnan(tuning.outcomes.discrepancy[0])


def test_the_budget_is_never_exceeded_and_counts_all_that_was_done(tuning):
    assert tuning.spent <= tuning.budget == tuning.grid_price / 3
    assert tuning.spent == tuning.outcomes.gradients.sum() + tuning.fresh.outcomes.gradients[0]
    small = tune(budget=20_000)
    assert 15_000 < small.spent <= 20_000


def test_nothing_is_dropped_that_cannot_be_told_from_the_best(tuning):
    for each in tuning.rounds:
        finite = [place for place, value in zip(each.places, each.values, strict=True) if np.isfinite(value)]
        row = {place: k for k, place in enumerate(each.places)}
        best = min(finite, key=lambda place: each.values[row[place]])
        for place in set(each.dropped) & set(finite):
            assert each.intervals[row[place]][0] > each.intervals[row[best]][1]


def test_chains_that_stand_still_are_not_as_good():
    assert 0.0 not in tune(settings=[0.0, 0.1, 0.5], num_steps=4000, objective="bias").as_good


def test_the_winner_makes_new_draws(tuning):
    fresh = tuning.fresh
    assert fresh.draws.num_chains == 4
    assert fresh.draws.num_draws == fresh.scores.num_draws > 1000
    np.testing.assert_allclose(fresh.scores.positions, -np.asarray(fresh.draws.positions), rtol=1e-5)
    assert tuning.good_enough in (True, None)


def test_the_same_key_gives_the_same_result(tuning):
    again = tune(tolerance=0.1, objective="bias")
    assert again.to_dict() == tuning.to_dict()
    assert tune(jax.random.key(5)).to_dict() != tuning.to_dict()


def test_it_goes_on_where_it_was_killed(tuning, tmp_path, monkeypatch):
    path, save, saved = tmp_path / "progress.npz", checkpoint.Checkpoint.save, []

    def killed(self, *args):
        save(self, *args)
        saved.append(1)
        if len(saved) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.Checkpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        tune(tolerance=0.1, objective="bias", checkpoint=path)
    monkeypatch.setattr(checkpoint.Checkpoint, "save", save)
    with pytest.raises(ValueError, match="checkpoint of another call"):
        tune(settings=SIZES[:5], checkpoint=path)
    resumed = tune(tolerance=0.1, objective="bias", checkpoint=path)
    assert resumed.to_dict() == tuning.to_dict()
    assert not path.exists()


@pytest.mark.parametrize("damage", ["words", "half", "an array", "another archive", "other words"])
def test_what_is_no_checkpoint_is_refused(tmp_path, damage):
    path = tmp_path / "progress.npz"
    np.savez(path, told=np.array("3" if damage == "other words" else "{}"), x=np.zeros(100))
    if damage in ("words", "half"):
        path.write_bytes(b"nonsense" if damage == "words" else path.read_bytes()[:300])
    elif damage == "an array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"no checkpoint of `tune`, or a broken one\. Delete it, or name another"):
        tune(checkpoint=path, num_steps=2000)


def test_a_checkpoint_is_of_one_sampler_and_of_settings_to_the_last_digit(tmp_path, monkeypatch):
    path = tmp_path / "progress.npz"
    options = {"num_steps": 2000, "checkpoint": path}

    def another(key, x, size):
        return langevin(key, x, 1.1 * size)

    def killed(self, *args):
        save(self, *args)
        raise KeyboardInterrupt

    save = checkpoint.Checkpoint.save
    monkeypatch.setattr(checkpoint.Checkpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        tune(settings=[0.123456, 0.5], **options)
    for changed in ({"settings": [0.1234561, 0.5]}, {"settings": [0.123456, 0.5], "kernel": another}):
        with pytest.raises(ValueError, match="checkpoint of another call"):
            tune(**changed, **options)


def test_states_may_be_of_types_that_files_do_not_know(tmp_path, monkeypatch):
    def kernel(key, state, size):
        x, average = state
        x, _ = langevin(key, x, size)
        return (x, (average + x.astype(average.dtype)) / 2), x

    options = {"num_steps": 2000, "settings": [0.1, 0.5], "kernel": kernel}
    options["init"] = lambda x: (x, x.astype(jnp.bfloat16))
    save, path = checkpoint.Checkpoint.save, tmp_path / "progress.npz"

    def killed(self, *args):
        save(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(checkpoint.Checkpoint, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            tune(checkpoint=path, **options)
    assert tune(checkpoint=path, **options).to_dict() == tune(**options).to_dict()


def test_it_is_not_to_be_traced():
    for call in (
        lambda x: tune(positions=x),
        lambda x: tune(settings=[x[0, 0], 0.1]),
        lambda x: tune(tolerance=x[0, 0]),
    ):
        with pytest.raises(ValueError, match="`tune` looks at values and cannot be traced"):
            jax.jit(call)(STARTS)
    with pytest.raises(ValueError, match="`tune` looks at values and cannot be traced"):
        jax.vmap(lambda key: tune(key))(jax.random.split(KEY))


def test_the_result_is_shown_as_text_html_and_json(tuning):
    text, found = repr(tuning), json.loads(json.dumps(tuning.to_dict(), allow_nan=False))
    assert text.splitlines()[2].startswith("0.1 ")
    assert text.splitlines()[3].startswith("  its new draws")
    assert "gradient evaluations, 33% of the" in text
    assert "(tolerance 0.1)" in text
    assert found["best"] == 0.1
    assert found["settings"][0]["reason"].startswith("Diverged")
    assert [each["steps"] for each in found["rounds"]] == [each.steps for each in tuning.rounds]
    html = tuning._repr_html_()
    assert html.startswith("<table>")
    assert "0.0001" in html


def test_settings_compile_once_however_many_there_are():
    traced = []

    def kernel(key, x, size):
        traced.append(1)
        return langevin(key, x, size)

    tune(kernel=kernel, settings={"a": np.geomspace(0.01, 0.5, 9)}["a"], num_steps=2000)
    # Once for the shape of what it returns, and once for the program.
    assert len(traced) <= 2


def test_positions_may_be_pytrees_and_settings_dictionaries():
    def kernel(key, state, setting):
        x, _ = langevin(key, jnp.concatenate([state["a"], state["b"][0]]), setting["step"])
        state = {"a": x[:1], "b": x[None, 1:]}
        assert setting["words"] in ("some", "other")
        return state, state

    positions = {"a": jnp.zeros((4, 1)), "b": jnp.zeros((4, 1, 1))}
    tuning = tune(
        kernel=kernel, positions=positions, num_steps=2000, target=lambda x: logdensity(jnp.append(x["a"], x["b"])),
        settings=[{"step": 0.2, "words": "some"}, {"step": 0.2, "words": "other"}, {"step": 2.0, "words": "other"}],
    )  # fmt: skip
    assert tuning.best["step"] == 0.2
    assert tuning.names == ("a[0]", "b[0, 0]")
    assert set(tuning.fresh.draws) == {"a", "b"}


def test_states_may_be_more_than_positions():
    def kernel(key, state, size):
        x, count = state
        x, _ = langevin(key, x, size)
        return (x, count + 1), x

    tuning = tune(kernel=kernel, init=lambda x: (x, 0), num_steps=2000, settings=[2.0, 0.2])
    assert tuning.best == 0.2


def test_the_error_is_that_of_a_given_number_of_gradients():
    """A sampler of independent draws, right ones, of which one setting is dear."""

    def kernel(key, x, setting):
        return x, (1 + setting["wide"]) * jax.random.normal(key, x.shape)

    settings = [{"wide": 0.0, "price": 1}, {"wide": 0.0, "price": 16}, {"wide": 0.5, "price": 1}]
    tuning = tune(
        kernel=kernel, settings=settings, gradients=lambda setting: setting["price"], objective="error", num_steps=4000
    )
    assert tuning.best == settings[0]
    # Errors of n independent draws are 1/√n and 1/√(2n), and that is their mean over both; bias may hide in the noise
    # of draws so far, which are fewer than those of a run at the mean price, six.
    n = 0.75 * 4 * 4000 * np.array([6, 6 / 16])
    so_far = 0.75 * 4 * tuning.outcomes.steps[:2]
    least, most = (np.sqrt((1 + 0.5) / 2 / count) for count in (n, so_far))
    assert (tuning.outcomes.error[:2] > 0.5 * least).all()
    assert (tuning.outcomes.error[:2] < 3 * most).all()
    assert tuning.outcomes.error[2] == pytest.approx(0.5 / 2**0.5, rel=0.1)
    assert "smallest error" in repr(tuning)


def test_a_posterior_of_many_observations_is_scored_by_mini_batches():
    data = jax.random.normal(KEY, (1000, 2)) + 1
    mean, unit = data.mean(axis=0), 1 / 1001

    def log_prior(mu):
        return -0.5 * jnp.sum(mu**2)

    def log_likelihood(mu, batch):
        return -0.5 * jnp.sum((batch - jnp.broadcast_to(mu, batch.shape)) ** 2)

    gradient = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, 1000)
    posterior = jaxpsd.Minibatches(log_prior, log_likelihood, data, batch_size=20, control_variate=mean)
    sizes = [share * unit for share in (1.0, 0.03, 0.0003)]
    tuning = tune(
        target=posterior, kernel=lambda _: blackjax.sgld(gradient), settings=sizes, positions=jnp.tile(mean, (4, 1)),
        data=data, batch_size=20,
    )  # fmt: skip
    assert tuning.best == sizes[1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": STARTS}, TypeError, "`target` must be the log-density"),
        ({"num_steps": 10}, ValueError, "leaves .* steps for each of 6 settings"),
        ({"num_steps": 0}, ValueError, "`num_steps` must be an integer"),
        ({"objective": "speed"}, ValueError, "`objective` must be one of"),
        ({"burn_in": 0.9}, ValueError, "`burn_in` must be a number from 0 to 0.75"),
        ({"order": 1}, ValueError, "`order` must be at least 2"),
        ({"keep": 1}, ValueError, "`keep` must be a number"),
        ({"budget": -1}, ValueError, "`budget` must be a positive number"),
        ({"gradients": lambda setting: None}, TypeError, "`gradients` must be a number, or a function"),
        ({"gradients": 0}, ValueError, "`gradients` must be positive"),
        ({"positions": jnp.zeros(2)}, ValueError, "`positions` must be"),
        ({"positions": jnp.full((4, 2), jnp.nan)}, ValueError, "`positions` is not finite"),
        ({"tolerance": 2.0}, ValueError, "`tolerance` must be below 1"),
        ({"batch_size": 3}, ValueError, "`batch_size` is that of batches of `data`"),
        ({"checkpoint": "/nowhere/at/all"}, FileNotFoundError, "There is no folder"),
        ({"data": STARTS[:0]}, ValueError, "`data` holds no observations"),
        ({"checkpoint": 3}, TypeError, "`checkpoint` must be the path of a file"),
        ({"checkpoint": "/"}, ValueError, "is a folder"),
        ({"order": 21}, ValueError, "`order` must be at most 20"),
        ({"num_steps": 10**12}, ValueError, "`num_steps` must be at most"),
        ({"num_chains": 10**10}, ValueError, "Take fewer chains or settings"),
        ({"settings": [{1: 0.1, "a": 0.1}]}, TypeError, "`settings` has a dictionary whose keys"),
        ({"settings": {1: STARTS, "a": STARTS}}, TypeError, "`settings` has a dictionary whose keys"),
        ({"settings": [1e300]}, ValueError, "is not finite in float32"),
        ({"kernel": lambda key, x, size: (x, None)}, TypeError, "The position that follows must be an array"),
        ({"kernel": lambda key, x, size: ("a", x)}, TypeError, "The state that follows must be an array.*got str"),
        ({"init": lambda x: ()}, TypeError, "The first state must be an array.*at least one"),
        ({"kernel": lambda key, x, size: (x / 0, x / 0)}, ValueError, "No setting can be used"),
        ({"target": lambda x: jnp.where(x[0] < 1, jnp.nan, 0.0)}, ValueError, "Start where the target has a density"),
    ],
)
def test_mistakes_are_named(options, error, message):
    with pytest.raises(error, match=message):
        tune(**{"num_steps": 2000, **options})


def test_other_chains_than_positions_take_them_in_turn():
    tuning = tune(num_chains=3, positions=jnp.zeros((1, 2)), num_steps=2000, settings=[0.5, 0.1])
    assert tuning.fresh.draws.num_chains == 3
