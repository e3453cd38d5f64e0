"""Replicates against their definition, with multipliers and Gram matrices written out."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpsd
from jaxpsd._core.checks import check_samples
from jaxpsd._core.programs import Data
from jaxpsd._core.scores import Given
from jaxpsd._discrepancies.plans import Part
from jaxpsd._gof.bootstrap import Wanted, bootstrap
from jaxpsd._gof.multipliers import Multinomial
from jaxpsd._gof.scheme import signs_of

slow = pytest.mark.slow

KEY = jax.random.key(5)
REPLICATES = 20
SOURCES = {
    "rademacher": signs_of(KEY, "rademacher", None, 111, REPLICATES),
    "markov": signs_of(KEY, "markov", 0.125, 111, REPLICATES),
    "block": signs_of(KEY, "block", 10, 111, REPLICATES),
    "multinomial": Multinomial(KEY, REPLICATES),
}


@pytest.fixture
def draws(x64):
    x = jax.random.normal(jax.random.key(1), (333, 3))
    return x, 0.1 - x * jnp.array([1.0, 0.5, 2.0])[None]


def values(psd, x, s, source, weights=None, wanted=None):
    wanted = wanted or Wanted()
    plan = psd._plan(Given(check_samples(x), s, weights), REPLICATES)
    return np.asarray(compiled(Data(x, s, weights, None), plan, source, wanted))


@jax.jit
def compiled(data, plan, source, wanted):
    return bootstrap(data, plan, source, wanted)[0]


@partial(jax.jit, static_argnums=1)
def rows_of(source, n):
    ready = source.of_share(jnp.zeros(n)) if isinstance(source, Multinomial) else source.prepared(n)
    return ready.rows(jnp.asarray(0), n)


def multipliers(source, n):
    return np.asarray(rows_of(source, n), np.float64)


# Here and below, every run takes both forms, with signs that persist where there is a choice.
@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize(
    "method", ["markov", *(pytest.param(method, marks=slow) for method in ("rademacher", "block"))]
)
def test_v_statistics_are_quadratic_forms_of_the_gram_matrix(draws, method, form):
    x, s = draws
    v, gram = multipliers(SOURCES[method], len(x)) / len(x), np.asarray(jaxpsd.PSD(3).gram(s, x))
    expected = np.einsum("im,ij,jm->m", v, gram, v)
    found = values(jaxpsd.PSD(3, form=form), x, s, SOURCES[method])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(found[0], jaxpsd.PSD(3).v_statistic(s, x), rtol=1e-10)


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_u_statistics_leave_out_the_diagonal(draws, form):
    x, s = draws
    n, source = len(x), SOURCES["multinomial"]
    v, gram = multipliers(source, n) / n, np.asarray(jaxpsd.PSD(3).gram(s, x))
    off = gram - np.diag(np.diag(gram))
    expected = np.einsum("im,ij,jm->m", v, off, v)
    found = values(jaxpsd.PSD(3, form=form), x, s, source, wanted=Wanted(unbiased=True))[0]
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-10)
    np.testing.assert_allclose(found[0], jaxpsd.PSD(3).u_statistic(s, x), rtol=1e-10)


@pytest.mark.parametrize(
    ("form", "unbiased"), [("dual", False), ("primal", True), pytest.param("dual", True, marks=slow)]
)
def test_several_orders_are_those_of_the_orders_alone(draws, form, unbiased):
    x, s = draws
    source = SOURCES["multinomial" if unbiased else "markov"]
    together = values(
        jaxpsd.PSD(4, form=form), x, s, source, wanted=Wanted(tuple(map(Part.up_to, (4, 1, 3))), unbiased)
    )
    for row, order in zip(together, (4, 1, 3), strict=True):
        alone = values(jaxpsd.PSD(order), x, s, source, wanted=Wanted(unbiased=unbiased))[0]
        np.testing.assert_allclose(row, alone, rtol=1e-9)


PARTS = {
    "a degree": Part((2,)),
    "several degrees": Part((1, 3)),
    "powers": Part((2,), powers=True),
    "the largest": Part((1, 2), measure="largest"),
    "a sum": Part((2,), powers=True, measure="sum"),
}


@pytest.mark.parametrize("basis", ["monomial", "hermite"])
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_parts_are_made_of_the_features_that_they_name(draws, form, basis):
    x, s = draws
    source, psd = SOURCES["markov"], jaxpsd.PSD(3, form=form, basis=basis)
    z = np.asarray(psd.features(s, x)).T @ multipliers(source, len(x)) / len(x)
    exponents = psd.exponents(3)
    found = values(psd, x, s, source, wanted=Wanted(tuple(PARTS.values())))
    for row, part in zip(found, PARTS.values(), strict=True):
        belongs = np.isin(exponents.sum(axis=1), part.degrees)
        belongs &= (not part.powers) | ((exponents > 0).sum(axis=1) == 1)
        some = z[belongs]
        expected = {"squares": (some**2).sum(axis=0), "largest": (some**2).max(axis=0)}
        expected["sum"] = some.sum(axis=0) ** 2 / len(some)
        np.testing.assert_allclose(row, expected[part.measure], rtol=1e-8, atol=1e-15)


def test_parts_without_the_diagonal(draws):
    x, s = draws
    source, n = SOURCES["multinomial"], len(x)
    psd = jaxpsd.PSD(3, basis="hermite", interactions=2)
    tau, v = np.asarray(psd.features(s, x)), multipliers(source, n)
    some = tau[:, psd.exponents(3).sum(axis=1) == 3]
    for measure in ("squares", "sum"):
        each = some if measure == "squares" else some.sum(axis=1, keepdims=True) / some.shape[1] ** 0.5
        z, diagonal = each.T @ v / n, (each**2).sum(axis=1) @ v**2 / n**2
        expected = (z**2).sum(axis=0) - diagonal
        expected[0] *= n / (n - 1)
        found = values(psd, x, s, source, wanted=Wanted((Part((3,), measure=measure),), unbiased=True))[0]
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize(
    ("method", "form", "block_size"),
    [
        ("markov", "dual", 50),
        ("block", "primal", 200),
        pytest.param("rademacher", "primal", 32, marks=slow),
        pytest.param("multinomial", "dual", 70, marks=slow),
    ],
)
def test_replicates_do_not_depend_on_the_block_size(draws, method, form, block_size):
    x, s = draws
    wanted = Wanted(unbiased=method == "multinomial")
    psd = jaxpsd.PSD(2, form=form)
    expected = values(psd, x, s, SOURCES[method], wanted=wanted)
    found = values(replace(psd, block_size=block_size), x, s, SOURCES[method], wanted=wanted)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_weights_multiply_signs(draws, form):
    x, s = draws
    weights = jax.random.uniform(KEY, (len(x),))
    weights = weights / weights.sum()
    v = multipliers(SOURCES["markov"], len(x)) * np.asarray(weights)[:, None]
    expected = np.einsum("im,ij,jm->m", v, np.asarray(jaxpsd.PSD(2).gram(s, x)), v)
    found = values(jaxpsd.PSD(2, form=form), x, s, SOURCES["markov"], weights)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_largest_feature_alone_can_be_resampled(draws):
    x, s = draws
    tau = np.asarray(jaxpsd.PSD(2).features(s, x))
    expected = np.abs(tau.T @ multipliers(SOURCES["markov"], len(x)) / len(x)).max(axis=0) ** 2
    np.testing.assert_allclose(values(jaxpsd.PSD(2, norm="l1"), x, s, SOURCES["markov"])[0], expected, rtol=1e-10)


@pytest.mark.parametrize("penalty", [[1.0, 2.0, 3.0], list(np.linspace(1, 2, 19))])
def test_penalties_count_in_replicates(draws, penalty):
    x, s = draws
    psd = jaxpsd.PSD(3, penalty=penalty)
    v = multipliers(SOURCES["block"], len(x)) / len(x)
    expected = np.einsum("im,ij,jm->m", v, np.asarray(psd.gram(s, x)), v)
    np.testing.assert_allclose(values(psd, x, s, SOURCES["block"])[0], expected, rtol=1e-10)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_single_precision_is_close_to_double_precision(order):
    x = np.random.default_rng(0).normal(size=(5000, 4))
    results = []
    for dtype, enabled in ((np.float32, False), (np.float64, True)):
        with jax.enable_x64(enabled):
            draws = jnp.asarray(x, dtype)
            results.append(values(jaxpsd.PSD(order), draws, -draws, SOURCES["rademacher"])[0])
    # The same signs, whatever the precision.
    np.testing.assert_allclose(*results, rtol=2e-4)
