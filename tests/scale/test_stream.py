"""Streams: batches and pieces in any grouping give what one call gives."""

import pickle
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd

slow = pytest.mark.slow

KEY = jax.random.key(0)
METHODS = {"rademacher": {}, "markov": {"flip_probability": 0.01}, "block": {"block_length": 37}}
N, REPLICATES = 500, 50


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


@pytest.fixture
def x(x64):
    return jax.random.normal(jax.random.key(2), (N, 3))


def in_pieces(stream, x, cuts, **options):
    """States of the pieces between cuts, each summed on its own."""
    ends = [0, *cuts, len(x)]
    states = []
    for start, end in pairwise(ends):
        states.append(stream.update(stream.init(KEY, x[0], start=start, **options), logdensity, x[start:end]))
    return states


@pytest.mark.parametrize(
    "method", ["markov", *(pytest.param(method, marks=slow) for method in ("rademacher", "block"))]
)
def test_batches_of_any_size_give_the_result_of_one_call(x, method):
    options = {"method": method, "num_replicates": REPLICATES, **METHODS[method]}
    whole = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, x, **options)
    stream = jaxpsd.stream(jaxpsd.PSD(2), **options)
    state = stream.init(KEY, x[0])
    for start, end in [(0, 1), (1, 45), (45, 300), (300, N)]:
        state = stream.update(state, logdensity, x[start:end])
    result = stream.result(state)
    np.testing.assert_allclose(result.replicates, whole.replicates, rtol=1e-9)
    np.testing.assert_allclose(result.p_value_floor, whole.p_value_floor, rtol=1e-9)
    assert float(result.p_value) == float(whole.p_value)


@pytest.mark.parametrize("method", ["block", pytest.param("markov", marks=slow)])
def test_merging_is_associative_and_gives_the_result_of_one_call(x, method):
    options = {"method": method, "num_replicates": REPLICATES, **METHODS[method]}
    whole = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, x, **options)
    stream = jaxpsd.stream(jaxpsd.PSD(2), **options)
    a, b, c = in_pieces(stream, x, (100, 333), chain_start=0)
    for merged in (stream.merge(stream.merge(a, b), c), stream.merge(a, stream.merge(b, c))):
        np.testing.assert_allclose(stream.result(merged).replicates, whole.replicates, rtol=1e-9)


@pytest.mark.parametrize("method", ["markov", "block"])
def test_chains_are_merged_as_chains(x, method):
    options = {"method": method, "num_replicates": REPLICATES, **METHODS[method]}
    whole = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, x.reshape(4, -1, 3), **options)
    stream = jaxpsd.stream(jaxpsd.PSD(2), **options)
    merged, *others = in_pieces(stream, x, (125, 250, 375))
    for other in others:
        merged = stream.merge(merged, other)
    np.testing.assert_allclose(stream.result(merged).replicates, whole.replicates, rtol=1e-9)
    np.testing.assert_allclose(stream.result(merged).p_value_floor, whole.p_value_floor, rtol=1e-6)


def test_a_merged_state_can_be_updated(x):
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES, method="markov", flip_probability=0.05)
    a, b, _ = in_pieces(stream, x, (100, 333), chain_start=0)
    state = stream.update(stream.merge(a, b), logdensity, x[333:])
    whole = jaxpsd.gof_test(
        KEY, jaxpsd.PSD(2), logdensity, x, method="markov", flip_probability=0.05, num_replicates=REPLICATES
    )
    np.testing.assert_allclose(stream.result(state).replicates, whole.replicates, rtol=1e-9)


def test_the_value_alone(x):
    stream = jaxpsd.stream(jaxpsd.PSD(3))
    a, b = in_pieces(stream, x, (123,))
    np.testing.assert_allclose(stream.result(stream.merge(a, b)), jaxpsd.PSD(3)(logdensity, x), rtol=1e-12)


def test_inside_a_samplers_own_loop():
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES, method="markov", flip_probability=0.05)

    def step(carry, key):
        x, state = carry
        x = 0.5 * x + 0.75**0.5 * jax.random.normal(key, x.shape)
        return (x, stream.update(state, logdensity, x[None])), x

    keys = jax.random.split(KEY, 200)
    (_, state), draws = jax.jit(lambda keys: jax.lax.scan(step, (jnp.zeros(2), stream.init(KEY, jnp.zeros(2))), keys))(
        keys
    )
    whole = jaxpsd.gof_test(
        KEY, jaxpsd.PSD(2), logdensity, draws, method="markov", flip_probability=0.05, num_replicates=REPLICATES
    )
    np.testing.assert_allclose(stream.result(state).replicates, whole.replicates, rtol=1e-3)


def test_orders_transforms_and_pytrees(x):
    transform = jaxpsd.Affine(jnp.ones(3), jnp.array([1.0, 2.0, 3.0]))
    psd = jaxpsd.PSD(3, transform=transform)
    tree = {"a": x[:, 0], "b": x[:, 1:]}
    density = lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2))  # noqa: E731
    stream = jaxpsd.stream(psd, REPLICATES, orders=(1, 3))
    state = stream.init(KEY, jax.tree.map(lambda leaf: leaf[0], tree))
    for start in (0, 250):
        state = stream.update(state, density, jax.tree.map(lambda leaf, at=start: leaf[at : at + 250], tree))
    whole = jaxpsd.gof_test(KEY, psd, density, tree, method="rademacher", num_replicates=REPLICATES, orders=(1, 3))
    np.testing.assert_allclose(stream.result(state).adjusted_p_value, whole.adjusted_p_value)
    np.testing.assert_allclose(stream.result(state).replicates, whole.replicates, rtol=1e-9)


def test_functions_of_the_users_own(x):
    waves = jaxpsd.SteinDiscrepancy(jnp.sin)
    stream = jaxpsd.stream(waves)
    state = stream.update(stream.init(KEY, x[0]), logdensity, x)
    np.testing.assert_allclose(stream.result(state), waves(logdensity, x), rtol=1e-9)


def test_the_state_does_not_grow(x):
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES)
    before = stream.init(KEY, x[0])
    after = stream.update(before, logdensity, x)
    assert jax.tree.map(jnp.shape, before) == jax.tree.map(jnp.shape, after)


def test_pieces_that_would_share_signs_are_refused(x):
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES)
    a, b = in_pieces(stream, x, (200,))
    with pytest.raises(ValueError, match="share signs"):
        stream.merge(b, a)
    with pytest.raises(ValueError, match="share signs"):
        stream.merge(a, a)


def test_a_chain_is_not_continued_across_a_gap(x):
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES, method="markov", flip_probability=0.1)
    a, _, c = in_pieces(stream, x, (200, 300), chain_start=0)
    with pytest.raises(ValueError, match="without gaps"):
        stream.merge(a, c)


def test_pieces_of_different_streams_are_refused(x):
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES, method="markov", flip_probability=0.1)
    a, b = in_pieces(stream, x, (200,))
    faster = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES, method="markov", flip_probability=0.4)
    moved = jaxpsd.stream(
        jaxpsd.PSD(2, transform=jaxpsd.Affine(jnp.ones(3), jnp.ones(3))),
        REPLICATES,
        method="markov",
        flip_probability=0.1,
    )
    other_key = stream.init(jax.random.key(9), x[0], start=200)
    for other in (in_pieces(faster, x, (200,))[1], in_pieces(moved, x, (200,))[1], other_key):
        with pytest.raises(ValueError, match="one stream"):
            stream.merge(a, other)
    assert stream.merge(a, b).sums.z.shape == a.sums.z.shape


def test_chains_are_streams_of_their_own(x):
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES)
    with pytest.raises(ValueError, match="draws, dim"):
        stream.update(stream.init(KEY, x[0]), logdensity, x.reshape(2, -1, 3))


def test_states_can_be_merged_inside_jit(x):
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES)
    a, b = in_pieces(stream, x, (200,))
    eager = stream.merge(a, b)
    for merged in (jax.jit(stream.merge)(a, b), jax.jit(lambda: stream.merge(a, b))()):
        np.testing.assert_allclose(merged.sums.z, eager.sums.z, rtol=1e-9)


def test_a_stream_that_cannot_be_rejected_says_so(x):
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES, method="markov", flip_probability=0.001)
    state = stream.update(stream.init(KEY, x[0]), logdensity, x)
    with pytest.warns(jaxpsd.DependentDrawsWarning, match="nothing can be") as caught:
        stream.result(state)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("discrepancy", "options", "message"),
    [
        (jaxpsd.PSD(2), {"method": "multinomial"}, "'rademacher'"),
        (jaxpsd.PSD(2), {"method": "auto"}, "'rademacher'"),
        (jaxpsd.PSD(2), {"method": "markov", "num_replicates": 99}, "flip_probability"),
        (jaxpsd.PSD(2), {"method": "block", "num_replicates": 99}, "block_length"),
        (jaxpsd.PSD(2), {"num_replicates": 5}, "at least 19"),
        (jaxpsd.PSD(2), {"orders": (1, 2)}, "replicates"),
        (jaxpsd.PSD(2), {"flip_probability": 0.1}, "replicates"),
        (jaxpsd.PSD(2), {"num_replicates": False}, "num_replicates"),
        (jaxpsd.PSD(2), {"num_replicates": np.zeros((40, 2))}, "num_replicates"),
        (jaxpsd.PSD(2), {"orders": (1, 3), "num_replicates": 99}, "only to 2"),
    ],
)
def test_streams_that_make_no_sense(discrepancy, options, message):
    with pytest.raises(ValueError, match=message):
        jaxpsd.stream(discrepancy, **options)


def test_beginnings_that_make_no_sense():
    with pytest.raises(ValueError, match=r"Affine\.fit"):
        jaxpsd.stream(jaxpsd.PSD(2, transform="standardize")).init(KEY, jnp.zeros(2))
    with pytest.raises(ValueError, match="dual"):
        jaxpsd.stream(jaxpsd.PSD(2, form="dual")).init(KEY, jnp.zeros(2))
    stream = jaxpsd.stream(jaxpsd.PSD(2))
    with pytest.raises(ValueError, match="sums of all features"):
        jaxpsd.stream(jaxpsd.PSD(4), REPLICATES).init(KEY, jnp.zeros(300))
    with pytest.raises(TypeError, match="integers"):
        stream.init(KEY, jnp.zeros(2), start=1.5)
    for position in ("strings", object(), {"a": None, "b": "c"}):
        with pytest.raises(TypeError, match=r"`position.* must be an array of floats"):
            stream.init(KEY, position)
    with pytest.raises(ValueError, match="chain_start"):
        stream.init(KEY, jnp.zeros(2), start=5, chain_start=6)
    with pytest.raises(ValueError, match="no draws"):
        stream.result(stream.init(KEY, jnp.zeros(2)))
    with pytest.raises(ValueError, match="like the one given"):
        stream.update(stream.init(KEY, jnp.zeros(2)), logdensity, jnp.zeros((5, 3)))
    with pytest.raises(ValueError, match="one stream"):
        stream.merge(stream.init(KEY, jnp.zeros(2)), stream.init(KEY, jnp.zeros(3)))


@pytest.mark.parametrize("num_replicates", [0, 39])
def test_zero_does_not_mean_that_squares_are_too_small(num_replicates):
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    stream = jaxpsd.stream(jaxpsd.PSD(1), num_replicates)
    empty = stream.init(KEY, x[0])
    with pytest.raises(FloatingPointError, match="squares too small for float32"):
        stream.result(stream.update(empty, -1e-25 * x, x))
    if num_replicates:
        with pytest.raises(FloatingPointError, match="Are the scores zero"):
            stream.result(stream.update(empty, 0 * x, x))
    else:
        assert stream.result(stream.update(empty, 0 * x, x)) == 0


def test_a_stream_can_be_pickled():
    stream = jaxpsd.stream(jaxpsd.PSD(2), 39)
    copied = pickle.loads(pickle.dumps(stream))
    with pytest.raises(ValueError, match="no draws"):
        copied.result(stream.init(KEY, jnp.zeros(2)))


def test_a_draw_that_is_not_finite_is_named(x):
    stream = jaxpsd.stream(jaxpsd.PSD(2), REPLICATES)
    with pytest.raises(ValueError, match="draw 4, coordinate 0"):
        stream.update(stream.init(KEY, x[0]), logdensity, x.at[4, 0].set(jnp.nan))
