import numpy as np
import pytest
import scipy.stats

from jaxpsd._choose.evidence import expect_square, in_batches, moment_errors, noise_of

PARTS = np.array([0, 0, 1])


def autoregressive(rng, repeats, n, rho, offset):
    """Stationary chains (repeats, 4, n, 3) of variance one about a mean."""
    x = np.zeros((repeats, 4, n, 3))
    x[:, :, 0] = rng.standard_normal((repeats, 4, 3))
    for t in range(1, n):
        x[:, :, t] = rho * x[:, :, t - 1] + (1 - rho**2) ** 0.5 * rng.standard_normal((repeats, 4, 3))
    return x + offset


def test_few_stretches_are_left_as_they_are_and_many_are_joined():
    stretches = np.arange(2 * 35.0).reshape(2, 35, 1)
    assert in_batches(stretches[:, :16]).shape == (2, 16, 1)
    joined = in_batches(stretches)
    # Two oldest do not fit into threes.
    np.testing.assert_allclose(joined[0, :, 0], stretches[0, 2:, 0].reshape(11, 3).mean(axis=1))


def test_noise_of_independent_batches_is_their_variance_over_their_number():
    x = autoregressive(np.random.default_rng(0), 2000, 16, 0.0, 0.0)
    found = np.mean([noise_of(each, PARTS).variance for each in x], axis=0)
    # The larger of two estimates is larger on average, by what chains of a few batches are off.
    assert (found > 1 / 64).all()
    assert (found < 1.4 / 64).all()


def test_chains_that_do_not_mix_are_noisier_than_their_batches_say():
    rng = np.random.default_rng(1)
    stuck = rng.standard_normal((4, 1, 3)) + 0.01 * rng.standard_normal((4, 16, 3))
    noise = noise_of(stuck, PARTS)
    of_chains = stuck.mean(axis=1).var(axis=0, ddof=1) / 4
    assert noise.variance[:2].sum() == pytest.approx(of_chains[:2].sum())
    # Batches of chains that stand still differ as much as chains do: more of them do not help.
    assert (noise.exponent < 0.05).all()
    still = noise_of(np.broadcast_to(rng.standard_normal((4, 1, 3)), (4, 16, 3)), PARTS)
    assert (still.variance > 0).all()


def test_the_expected_square_is_that_of_longer_runs():
    """Of a mean that is off by 0.3, with 4 × 200 draws of an autoregressive chain, for a run five times as long."""
    rng = np.random.default_rng(2)
    rho, offset, n, longer = 0.5, np.array([0.3, 0.0, 0.0]), 200, 5
    x = autoregressive(rng, 300, n, rho, offset)
    batches = x.reshape(300, 4, 8, n // 8, 3).mean(axis=3)
    found = [expect_square(rng, each, PARTS, 1 / longer, 200) for each in batches]
    noise = (1 + rho) / (1 - rho) / (4 * n * longer)
    # What is told from noise is cut at zero, and noise may be taken for more than it is: a little too large.
    assert 0.09 + 3 * noise < np.mean([each.square for each in found]) < 0.1 + 6 * noise
    covered = np.mean(
        [
            low <= 0.09 + 3 * noise <= high
            for low, high in (np.quantile(each.replicates, [0.025, 0.975]) for each in found)
        ]
    )
    # An interval of 95% that is right covers less often than this once in 10⁴ such tests.
    assert covered > scipy.stats.binom.ppf(1e-4, 300, 0.95) / 300 - 0.02
    assert all(each.parts.sum() == pytest.approx(each.square) for each in found)


def test_errors_of_moments_are_those_of_the_draws():
    x = np.random.default_rng(3).normal([1.0, -2.0], [2.0, 0.5], (4, 8, 50, 2))
    batches = np.concatenate([x.mean(axis=2), (x**2).mean(axis=2)], axis=-1)
    mean, sd = np.array([0.8, -2.1]), np.array([1.7, 0.6])
    found = moment_errors(batches, mean, sd)
    flat = x.reshape(-1, 2)
    np.testing.assert_allclose(found.off[:2], (flat.mean(axis=0) - mean) / sd)
    np.testing.assert_allclose(found.off[2:], flat.std(axis=0) / sd - 1)
    np.testing.assert_allclose(found.batches.mean(axis=(0, 1)), found.off, atol=1e-12)
