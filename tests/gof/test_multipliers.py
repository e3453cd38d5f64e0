"""Random multipliers: what they are, and that only the key and the draw's place decide."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxpsd._core.blocks import Span
from jaxpsd._gof.multipliers import WORD, Multinomial, Place, key_of_bits, representable
from jaxpsd._gof.scheme import signs_of

slow = pytest.mark.slow

KEY = jax.random.key(3)
METHODS = {"rademacher": None, "markov": representable(0.013), "block": 37}
DRAWS, CHAIN, REPLICATES = 2000, 500, 300


def signs(method):
    return signs_of(KEY, method, METHODS[method], CHAIN, REPLICATES)


@partial(jax.jit, static_argnums=(2, 3))
def rows_of(source, start, length, num_draws):
    return source.prepared(num_draws).rows(start, length)


@cache
def all_signs(method):
    return np.asarray(rows_of(signs(method), 0, DRAWS, DRAWS))


@pytest.mark.parametrize("method", METHODS)
def test_the_draws_as_they_are_come_first(method):
    np.testing.assert_array_equal(all_signs(method)[:, 0], 1)


@partial(jax.jit, static_argnums=2)
def of_block(source, span, length, before):
    return source.of_block(span, length, before, jnp.float32)


# Signs that persist go on from block to block, and blocks of 31 draws begin anywhere in a word.
@pytest.mark.parametrize("method", ["markov", "block", pytest.param("rademacher", marks=slow)])
@pytest.mark.parametrize("length", [31, *(pytest.param(length, marks=slow) for length in (64, 700))])
def test_signs_do_not_depend_on_the_block_length(method, length):
    source, before, rows = signs(method), signs(method).start(), []
    for fresh in range(0, DRAWS, length):
        # As the last block does, where the length does not divide the number of draws.
        start = min(fresh, DRAWS - length)
        block, before = of_block(source, Span(jnp.asarray(start), jnp.asarray(fresh)), length, before)
        rows.append(np.asarray(block)[fresh - start :])
    np.testing.assert_array_equal(np.concatenate(rows), all_signs(method))


@pytest.mark.parametrize("method", METHODS)
def test_signs_are_fair(method):
    # Independent in replicates: two-sided, this fails once in 10⁴ runs.
    plus = (all_signs(method)[100, 1:] > 0).sum()
    low, high = scipy.stats.binom.interval(1 - 1e-4, REPLICATES, 0.5)
    assert low <= plus <= high


def test_markov_signs_change_with_their_probability():
    some = all_signs("markov")[:CHAIN, 1:]
    changes = (some[1:] != some[:-1]).sum()
    low, high = scipy.stats.binom.interval(1 - 1e-4, some[1:].size, METHODS["markov"])
    assert low <= changes <= high


def test_markov_signs_forget_at_the_speed_of_their_probability():
    some, lag = all_signs("markov")[:CHAIN, 1:], 20
    products = some[lag:] * some[:-lag]
    # E[w_t w_{t+l}] = (1 − 2p)^l; the mean over a replicate's lags has at most the spread of one term.
    assert abs(products.mean() - (1 - 2 * METHODS["markov"]) ** lag) < 4 * products.mean(axis=0).std() / REPLICATES**0.5


@pytest.mark.parametrize("method", ["markov", "block"])
def test_chains_start_anew(method):
    every = all_signs(method)[:, 1:]
    for start in range(CHAIN, DRAWS, CHAIN):
        changes = (every[start] != every[start - 1]).sum()
        low, high = scipy.stats.binom.interval(1 - 1e-4, REPLICATES, 0.5)
        assert low <= changes <= high


def test_block_signs_change_between_blocks_only():
    every = all_signs("block")[:, 1:].reshape(-1, CHAIN, REPLICATES)
    for start in range(0, CHAIN, METHODS["block"]):
        block = every[:, start : min(start + METHODS["block"], CHAIN)]
        assert (block == block[:, :1]).all()


def test_any_part_of_the_signs_can_be_had():
    every = all_signs("markov")
    for start, length in [(0, 5), (31, 2), (77, 640), (1999, 1), (1000, 1000)]:
        rows = rows_of(signs("markov"), start, length, DRAWS)
        np.testing.assert_array_equal(rows, every[start : start + length])


def test_replicates_and_draws_are_not_correlated():
    every = all_signs("rademacher")[:, 1:]
    correlation = np.corrcoef(every.T) - np.eye(REPLICATES)
    assert np.abs(correlation).max() < scipy.stats.norm.isf(1e-4 / REPLICATES**2) / DRAWS**0.5


def test_kinds_of_keys_and_old_keys_are_accepted():
    for key in (jax.random.PRNGKey(0), jax.random.key(0, impl="rbg"), jax.random.key(0)):
        assert jax.random.key_data(key_of_bits(key)).shape == (2,)


@pytest.mark.parametrize("probability", [1e-9, 1e-5, 0.004, 0.013, 0.3, 0.5])
def test_probabilities_are_rounded_by_little(probability):
    assert representable(probability) == pytest.approx(max(probability, 2.0**-24), rel=2**-6)


def test_places_count_beyond_what_integers_hold():
    far = Place.at(WORD * 2**32 - 40)
    assert (int(far.word), int(far.bit)) == (2**32 - 2, 24)
    assert int(far.after(9, jnp.asarray(10**6)).word) == 2**32 - 1


def test_counts_are_multinomial():
    counts = np.asarray(jax.jit(Multinomial(KEY, 400).of_share)(np.zeros(200)).counts)
    np.testing.assert_array_equal(counts.sum(axis=0), 200)
    expected = scipy.stats.binom.pmf(np.arange(5), 200, 1 / 200)
    seen = np.bincount(counts.ravel(), minlength=5)[:5] / counts.size
    np.testing.assert_allclose(seen, expected, atol=0.006)


def test_counts_are_centred():
    source = Multinomial(KEY, 50)
    rows = np.asarray(jax.jit(lambda share: source.of_share(share).rows(0, 100))(np.zeros(100)))
    np.testing.assert_array_equal(rows[:, 0], 1)
    np.testing.assert_array_equal(rows[:, 1:].sum(axis=0), 0)
