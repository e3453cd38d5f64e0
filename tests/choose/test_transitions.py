"""From kernels and algorithms of BlackJAX to programs: chains move as the sampler itself would move them."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpsd._choose.arms import check_settings, numbers_of
from jaxpsd._choose.transitions import Lengths, Minibatched, Origin, begin_chains, run_chains, trace_transition
from jaxpsd._core.draws import Draws

KEY = jax.random.key(0)
STARTS = Draws(jax.random.normal(jax.random.key(1), (2, 3)))
DATA = jax.random.normal(jax.random.key(2), (50, 3))
LENGTHS = Lengths(draws=3, thin=2)
ORIGIN = Origin(jnp.zeros(3), jnp.ones(3))


def logdensity(x):
    return -0.5 * jnp.sum(x**2 / jnp.array([1.0, 2.0, 3.0]))


def log_likelihood(x, observation):
    return -0.5 * jnp.sum((observation - x) ** 2)


GRADIENT = blackjax.sgmcmc.gradients.grad_estimator(logdensity, log_likelihood, len(DATA))

ALGORITHMS = {
    "mala": lambda size: blackjax.mala(logdensity, size),
    "hmc": lambda size: blackjax.hmc(logdensity, size, jnp.ones(3), 3),
    "mclmc": lambda size: blackjax.mclmc(logdensity, L=1.0, step_size=size),
    "sgld": lambda _: blackjax.sgld(GRADIENT),
    "sghmc": lambda _: blackjax.sghmc(GRADIENT, 3),
}


def run(transition, group, places, first=0, count=2):
    """Some stretches of some settings."""
    rows = jnp.asarray([group.members.index(place) for place in places])
    arrays = [leaf[rows] for leaf in group.arrays]
    states = begin_chains(KEY, transition, STARTS.positions, arrays, jnp.asarray(places))
    args = jnp.asarray(places), ORIGIN, jnp.asarray(first), jnp.asarray(count), LENGTHS
    return run_chains(KEY, transition, states, arrays, *args)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_of_blackjax_move_as_by_themselves(name):
    build = ALGORITHMS[name]
    minibatched = Minibatched(DATA, 5) if name.startswith("sg") else None
    (group,) = check_settings([0.01, 0.02], np.dtype(np.float32)).groups
    transition = trace_transition(build, None, group, STARTS, KEY, minibatched)
    _, path = run(transition, group, [0, 1])
    # The second setting's first chain, by hand.
    algorithm, key = build(0.02), jax.random.fold_in(jax.random.fold_in(KEY, 1), 0)
    state = algorithm.init(STARTS.positions[0], rng_key=key)
    for stretch in range(2):
        draw_keys = jax.random.split(jax.random.fold_in(key, stretch), LENGTHS.draws)
        visited = []
        for draw, draw_key in enumerate(draw_keys):
            for step_key in jax.random.split(draw_key, LENGTHS.thin):
                if minibatched is None:
                    state, _ = jax.jit(algorithm.step)(step_key, state)
                    position = state.position
                else:
                    batch_key, noise_key = jax.random.split(step_key)
                    batch = DATA[jax.random.randint(batch_key, (5,), 0, len(DATA))]
                    state = position = jax.jit(algorithm.step)(noise_key, state, batch, 0.02)
                visited.append(position)
            np.testing.assert_allclose(path.positions[stretch, 1, 0, draw], position, rtol=1e-4, atol=1e-5)
        moments = np.concatenate([np.mean(visited, axis=0), np.mean(np.square(visited), axis=0)])
        np.testing.assert_allclose(path.moments[stretch, 1, 0], moments, rtol=1e-4, atol=1e-5)


def test_it_changes_nothing_who_runs_beside_whom():
    (group,) = check_settings([0.1, 0.2, 0.3], np.dtype(np.float32)).groups
    transition = trace_transition(ALGORITHMS["mala"], None, group, STARTS, KEY, None)
    _, together = run(transition, group, [0, 1, 2])
    _, alone = run(transition, group, [2])
    np.testing.assert_allclose(alone.positions[:2, 0], together.positions[:2, 2], rtol=1e-5)


def test_settings_of_one_structure_form_a_group():
    settings = check_settings(
        [{"step": 0.1, "size": 10}, {"step": 0.2, "size": 10}, {"step": 0.1, "size": 20}], np.dtype(np.float32)
    )
    assert [group.members for group in settings.groups] == [(0, 1), (2,)]
    assert settings.groups[0].rebuild([7.0]) == {"step": 7.0, "size": 10}
    assert settings.labels == ("step 0.1, size 10", "step 0.2, size 10", "step 0.1, size 20")
    assert sorted(numbers_of(settings.values)) == ["size", "step"]


def test_arrays_are_settings_along_their_first_axis():
    settings = check_settings({"step": np.array([0.1, 0.2]), "steps": np.array([3, 4])}, np.dtype(np.float32))
    assert settings.values[1] == {"step": 0.2, "steps": 4}
    (group,) = settings.groups
    assert group.members == (0, 1)
    assert [leaf.dtype for leaf in group.arrays] == [jnp.float32, jnp.int32]


def test_equal_labels_are_told_apart():
    assert check_settings([0.1, 0.1000001], np.dtype(np.float32)).labels == ("0.1 (number 1)", "0.1 (number 2)")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ([], ValueError, "at least one setting"),
        ({"a": 0.1}, ValueError, "first axis is that of the settings"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, ValueError, r"\(2,\), \(3,\)"),
        ([0.1, float("nan")], ValueError, r"`settings\[1\]` has a value that is not finite"),
        ([0.1, None], ValueError, r"`settings\[1\]` is empty"),
        ([0.1, object()], TypeError, "must be real numbers"),
    ],
)
def test_settings_that_cannot_be_run_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        check_settings(settings, np.dtype(np.float32))


def kernel(key, x, size):
    return x + size * jax.random.normal(key, x.shape), x


@pytest.mark.parametrize(
    ("sampler", "init", "error", "message"),
    [
        (3, None, TypeError, "`kernel` must be a function"),
        (lambda key, x, size: x, None, TypeError, "must return a pair"),
        (lambda key, x, size: (x[:1], x), None, TypeError, "must return a state like the one"),
        (lambda key, x, size: (x, x[:1]), None, TypeError, "must return a position like those"),
        (lambda size: size, None, TypeError, "must return an algorithm with `init` and `step`"),
        (ALGORITHMS["mala"], lambda x: x, ValueError, "algorithms have their own"),
        (kernel, 3, TypeError, "`init` must be a function"),
        (ALGORITHMS["sgld"], None, ValueError, "pass all `data`"),
    ],
)
def test_samplers_that_cannot_be_run_are_named(sampler, init, error, message):
    (group,) = check_settings([0.1], np.dtype(np.float32)).groups
    with pytest.raises(error, match=message):
        trace_transition(sampler, init, group, STARTS, KEY, None)


def test_a_mini_batch_needs_a_size_and_a_step():
    (group,) = check_settings([{"size": 0.1}], np.dtype(np.float32)).groups
    with pytest.raises(ValueError, match="size of mini-batches must be known"):
        trace_transition(ALGORITHMS["sgld"], None, group, STARTS, KEY, Minibatched(DATA, None))
    with pytest.raises(ValueError, match="needs a `step_size`"):
        trace_transition(ALGORITHMS["sgld"], None, group, STARTS, KEY, Minibatched(DATA, 5))
    with pytest.raises(ValueError, match="a kernel draws its own"):
        trace_transition(kernel, None, group, STARTS, KEY, Minibatched(DATA, 5))
