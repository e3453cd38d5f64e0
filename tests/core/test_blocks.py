import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxpsd._core import blocks as _blocks


@given(st.integers(1, 10**7), st.integers(1, 10**6))
def test_blocks_fill_the_working_set_and_no_more(num_draws, bytes_per_draw):
    length = _blocks.block_length(num_draws, bytes_per_draw)
    assert 1 <= length <= num_draws
    assert length * bytes_per_draw <= max(_blocks.WORKING_SET, bytes_per_draw)
    blocks = -(-num_draws // length)
    fewest = -(-num_draws * bytes_per_draw // _blocks.WORKING_SET)
    assert blocks <= max(2 * fewest + 1, 2 * -(-num_draws // _blocks._MOST_DRAWS) + 1)


@pytest.mark.parametrize("num_draws", [10**4, 10**5, 10**6, 2**20])
def test_round_numbers_of_draws_need_no_mask(num_draws):
    assert num_draws % _blocks.block_length(num_draws, 1000) == 0


def test_a_given_length_is_kept():
    assert _blocks.block_length(100, 1, given=7) == 7
    assert _blocks.block_length(100, 1, given=1000) == 100


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 40), st.integers(1, 45), st.booleans())
def test_blocks_see_every_draw_once(num_draws, length, weighted):
    x = np.arange(1, num_draws + 1, dtype=np.float32)
    weights = np.linspace(1, 2, num_draws, dtype=np.float32) if weighted else None

    def on_block(block, block_weights):
        return (block if block_weights is None else block * block_weights).sum(), block.max()

    @jax.jit
    def in_blocks(x, weights):
        mapped = _blocks.map_over_blocks(lambda block: {"twice": 2 * block}, x, min(length, num_draws))
        return *_blocks.sum_over_blocks(on_block, x, weights, min(length, num_draws)), mapped["twice"]

    total, largest, twice = map(np.asarray, in_blocks(x, weights))
    np.testing.assert_allclose(total, x.sum() if weights is None else (x * weights).sum(), rtol=1e-6)
    assert largest.max() == num_draws
    np.testing.assert_array_equal(twice, 2 * x)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 20), st.integers(1, 25))
def test_tiles_see_every_pair_once(num_draws, length):
    x = np.random.default_rng(num_draws).normal(size=(num_draws, 2)).astype(np.float32)
    weights = np.linspace(1, 2, num_draws, dtype=np.float32)

    def tile_sum(left, right):
        return left.weights @ (left.arrays @ right.arrays.T) @ right.weights

    total = jax.jit(lambda *given: _blocks.sum_over_tile_pairs(tile_sum, *given, min(length, num_draws)))(x, weights)
    np.testing.assert_allclose(total, weights @ (x @ x.T) @ weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_draws", [1, 500, 512, 997, 5000, 8192])
def test_sums_in_chunks_are_sums(num_draws):
    rng = np.random.default_rng(num_draws)
    left, right = rng.normal(size=(num_draws, 3)), rng.normal(size=(num_draws, 2))
    single = [jnp.asarray(values, jnp.float32) for values in (left, right)]
    np.testing.assert_allclose(_blocks.sum_draws(single[0]), left.sum(axis=0), rtol=1e-4, atol=1e-4)
    expected = left.T @ right
    np.testing.assert_allclose(_blocks.product_over_draws(*single), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(_blocks.wide_product_over_draws(single[0].T, single[1]), expected, rtol=1e-4, atol=1e-4)


def test_chunks_lose_less_to_rounding_than_a_running_sum():
    values = np.random.default_rng(0).uniform(size=2**15).astype(np.float32)
    exact = values.astype(np.float64).sum()
    running = np.cumsum(values, dtype=np.float32)[-1]
    assert abs(float(_blocks.sum_draws(jnp.asarray(values))) - exact) < 0.1 * abs(float(running) - exact)


def test_sums_over_blocks_are_compensated():
    # A running sum in single precision would lose the small numbers.
    x = jnp.tile(jnp.array([1.0, 2.0**-13]), 2**13)
    total, _ = _blocks.sum_over_blocks(lambda block, weights: (block.sum(), None), x, None, 2)
    assert float(total) == 2**13 + 1
