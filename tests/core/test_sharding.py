"""Draws that are spread over devices: the results of one device, and nothing travels but sums."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import Partial

import jaxpsd
from jaxpsd._core.checks import check_samples
from jaxpsd._core.programs import compiled
from jaxpsd._core.scores import Given, check_input
from jaxpsd._core.sharding import shards_of
from jaxpsd._discrepancies.base import _u, _v
from jaxpsd._gof.bootstrap import Wanted, bootstrap
from jaxpsd._gof.scheme import choose_bootstrap
from jaxpsd._gof.settings import Settings

slow = pytest.mark.slow

KEY = jax.random.key(3)
# A share of 125 draws, which no word of 32 signs divides.
N, DIM = 1000, 3


def logdensity(x):
    return -0.5 * jnp.sum((x - 0.2) ** 2)


def spread(array, devices=8, axis_type=AxisType.Auto):
    mesh = jax.make_mesh((devices,), ("draws",), devices=jax.devices()[:devices], axis_types=(axis_type,))
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec("draws")))


@pytest.fixture(scope="module")
def draws(chain):
    return chain(0.6, (1, N, DIM))[0]


DISCREPANCIES = {
    "moments": jaxpsd.PSD(2),
    "features": jaxpsd.PSD(2, norm="l1"),
    "pairs": jaxpsd.PSD(3, form="dual"),
    "standardized": jaxpsd.PSD(2, transform="standardize"),
    "whitened": jaxpsd.PSD(2, transform="whiten"),
    "of the target": jaxpsd.PSD(2, basis="hermite", transform="target"),
    "Hermite pairs": jaxpsd.PSD(3, basis="hermite", form="dual"),
    "KSD": jaxpsd.KSD(),
    "Gaussian KSD": jaxpsd.KSD(jaxpsd.Gaussian()),
    "own functions": jaxpsd.SteinDiscrepancy(lambda x: jnp.sin(x)),
}


# Sums of moments, in coordinates that all devices have to agree on, and sums over pairs; the others run on a schedule.
_FEW = ("pairs", "of the target")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in _FEW else slow) for name in DISCREPANCIES])
def test_values_are_those_of_one_device(draws, name):
    discrepancy, x = DISCREPANCIES[name], spread(draws)
    weights = jax.random.uniform(KEY, (N,))
    for given in (None, weights):
        expected = discrepancy(logdensity, draws, given)
        np.testing.assert_allclose(discrepancy(logdensity, x, given), expected, rtol=2e-5)
    if name != "features":
        expected = discrepancy.u_statistic(logdensity, draws)
        np.testing.assert_allclose(discrepancy.u_statistic(logdensity, x), expected, rtol=1e-4)


@pytest.mark.parametrize("form", ["primal", pytest.param("dual", marks=slow)])
@pytest.mark.parametrize(
    "options",
    [
        {"method": "rademacher"},
        {"method": "rademacher", "weights": True},
        {"method": "markov", "flip_probability": 0.1},
        {"method": "block", "block_length": 7},
        {"method": "multinomial"},
        {"method": "auto"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.filterwarnings("ignore::jaxpsd.DependentDrawsWarning")
def test_replicates_are_those_of_one_device(draws, options, form):
    options = dict(options)
    if options.pop("weights", False):
        options["weights"] = jax.random.uniform(KEY, (N,))
    psd = jaxpsd.PSD(2, form=form)
    expected = jaxpsd.gof_test(KEY, psd, logdensity, draws, num_replicates=60, **options)
    result = jaxpsd.gof_test(KEY, psd, logdensity, spread(draws), num_replicates=60, **options)
    np.testing.assert_allclose(result.replicates, expected.replicates, rtol=2e-4, atol=1e-6)
    assert result.p_value == expected.p_value
    assert result.method == expected.method


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.filterwarnings("ignore::jaxpsd.DependentDrawsWarning")
def test_normal_replicates_are_those_of_one_device(draws, weighted):
    weights = jax.random.uniform(KEY, (N,)) if weighted else None
    options = {"method": "gaussian", "num_replicates": 60, "weights": weights}
    expected = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, draws, **options)
    result = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, spread(draws), **options)
    np.testing.assert_allclose(result.replicates, expected.replicates, rtol=1e-3)
    assert result.p_value == expected.p_value


@pytest.mark.parametrize("devices", [2, 3, pytest.param(5, marks=slow)])
def test_the_ring_meets_every_pair_once(chain, devices):
    x = chain(0.3, (1, 60 * devices, DIM))[0]
    for weights in (None, jnp.linspace(0.1, 1, len(x))):
        expected = jaxpsd.KSD()(logdensity, x, weights)
        np.testing.assert_allclose(jaxpsd.KSD()(logdensity, spread(x, devices), weights), expected, rtol=1e-5)


# Five chains are the case in which the ends of chains and those of devices do not meet.
@pytest.mark.parametrize("num_chains", [5, *(pytest.param(count, marks=slow) for count in (1, 4, 8, 16))])
def test_the_autocorrelation_time_is_that_of_one_device(chain, num_chains):
    # More draws than points of the series, so that stretches of draws lie on two devices.
    x = chain(0.9, (num_chains, 20_000 // num_chains, 2)).reshape(-1, 2)
    options = {"num_replicates": 40, "method": "auto"}
    one, many = (
        jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, jaxpsd.Draws(positions, num_chains), **options)
        for positions in (x, spread(x))
    )
    assert many.autocorrelation_time == pytest.approx(one.autocorrelation_time, rel=1e-4)
    assert many.parameter == one.parameter
    np.testing.assert_allclose(many.replicates, one.replicates, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_chains_on_devices_of_their_own(chain, axis_type):
    chains = chain(0.5, (16, 50, 2))
    samples = {"a": chains[..., 0], "b": chains}

    def density(position):
        return -0.5 * jnp.sum(position["b"] ** 2) - 0.1 * position["a"] ** 2

    apart = jax.tree.map(lambda leaf: spread(leaf, axis_type=axis_type), samples)
    options = {"chains": True, "num_replicates": 40}
    one, many = (jaxpsd.gof_test(KEY, jaxpsd.PSD(2), density, each, **options) for each in (samples, apart))
    np.testing.assert_allclose(many.replicates, one.replicates, rtol=1e-4, atol=1e-6)
    scores = jaxpsd.score(density, apart, chains=True)
    assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(scores))
    again = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), scores, apart, **options)
    np.testing.assert_allclose(again.replicates, one.replicates, rtol=1e-4, atol=1e-6)


def test_some_devices_may_have_the_same_draws(draws):
    mesh = jax.make_mesh((4, 2), ("draws", "model"), axis_types=(AxisType.Auto,) * 2)
    x = jax.device_put(draws, NamedSharding(mesh, PartitionSpec("draws")))
    assert shards_of(x).count == 4
    np.testing.assert_allclose(jaxpsd.PSD(2)(logdensity, x), jaxpsd.PSD(2)(logdensity, draws), rtol=1e-5)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_draws_cut_in_other_ways_are_put_in_order(chain, axis_type):
    chains = chain(0.5, (3, 80, 2))
    mesh = jax.make_mesh((8,), ("draws",), axis_types=(axis_type,))
    x = jax.device_put(chains, NamedSharding(mesh, PartitionSpec(None, "draws")))
    np.testing.assert_allclose(jaxpsd.PSD(2)(logdensity, x), jaxpsd.PSD(2)(logdensity, chains), rtol=1e-5)


def test_a_mesh_may_have_one_device(draws):
    """Where a script for many devices runs on one."""
    x = spread(draws, devices=1, axis_type=AxisType.Explicit)
    expected = jaxpsd.PSD(2)(logdensity, draws)
    for target in (logdensity, jax.vmap(jax.grad(logdensity))(x)):
        np.testing.assert_allclose(jaxpsd.PSD(2)(target, x), expected, rtol=1e-5)


def test_scores_may_come_from_anywhere(draws):
    scores, psd = jaxpsd.score(logdensity, draws), jaxpsd.PSD(2)
    expected = psd(scores, draws)
    np.testing.assert_allclose(psd(scores, spread(draws)), expected, rtol=1e-5)
    np.testing.assert_allclose(psd(np.asarray(scores), spread(draws)), expected, rtol=1e-5)
    np.testing.assert_allclose(psd(spread(scores), draws), expected, rtol=1e-5)


def on(device, value):
    return jax.device_put(jnp.asarray(value), jax.devices()[device])


@pytest.mark.filterwarnings("ignore::jaxpsd.DependentDrawsWarning")
@pytest.mark.parametrize("place", [lambda x: on(3, x), spread], ids=["one", "many"])
def test_all_that_goes_with_draws_may_lie_anywhere(draws, place):
    psd = jaxpsd.PSD(2, penalty=on(1, [1.0, 2.0]), transform=jaxpsd.Affine(on(2, np.zeros(DIM)), on(4, np.ones(DIM))))
    here = jaxpsd.PSD(2, penalty=[1.0, 2.0], transform=jaxpsd.Affine(np.zeros(DIM), np.ones(DIM)))
    target = Partial(lambda loc, x: -0.5 * jnp.sum((x - loc) ** 2), on(5, 0.2))
    options = {"method": "rademacher", "num_replicates": 39}
    found = jaxpsd.gof_test(on(6, KEY), psd, target, place(draws), **options)
    expected = jaxpsd.gof_test(KEY, here, logdensity, draws, **options)
    np.testing.assert_allclose(found.replicates, expected.replicates, rtol=2e-4, atol=1e-6)
    fssd = jaxpsd.FSSD(on(1, draws[:3]), on(2, 1.0))
    np.testing.assert_allclose(fssd(target, place(draws)), jaxpsd.FSSD(draws[:3], 1.0)(logdensity, draws), rtol=1e-5)


def test_leaves_of_one_tree_may_lie_on_devices_of_their_own(draws):
    tree = {"a": on(1, draws[:, 0]), "b": on(2, draws[:, 1:])}
    target = lambda p: logdensity(jnp.append(p["a"], p["b"]))  # noqa: E731
    np.testing.assert_allclose(jaxpsd.PSD(2)(target, tree), jaxpsd.PSD(2)(logdensity, draws), rtol=1e-5)
    scores = jaxpsd.score(target, tree)
    assert all(leaf.devices() == tree["a"].devices() for leaf in jax.tree.leaves(scores))


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        (np.array([["a", "b"]] * 8), "ndarray of <U1"),
        (np.array([[object()]] * 8), "ndarray of object"),
        (np.ma.masked_array(np.ones((8, 2)), False), "MaskedArray of float64"),
    ],
    ids=["words", "objects", "masked"],
)
def test_only_numbers_are_spread(samples, found):
    with pytest.raises(TypeError, match=f"`samples` must be arrays of numbers, none of them masked; got {found}"):
        jaxpsd.spread(samples)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxpsd.DependentDrawsWarning")
def test_everything_else_takes_them_too(draws):
    x = spread(draws)
    one, many = (jaxpsd.adaptive_test(KEY, logdensity, each, num_replicates=60) for each in (draws, x))
    np.testing.assert_allclose(many.parts.statistic, one.parts.statistic, rtol=1e-4)
    one, many = (jaxpsd.moment_table(KEY, logdensity, each, num_replicates=60) for each in (draws, x))
    np.testing.assert_allclose(many.mean, one.mean, rtol=1e-3, atol=1e-6)
    assert many.labels == one.labels
    for field in ("mean_off", "sd_ratio", "true_correlation", "mean_off_se", "mean_explained"):
        np.testing.assert_allclose(getattr(many.errors, field), getattr(one.errors, field), rtol=1e-3, atol=1e-4)
    one, many = (jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, each, method="asymptotic") for each in (draws, x))
    np.testing.assert_allclose(many.statistic, one.statistic, rtol=1e-4)
    ranking = jaxpsd.rank(KEY, jaxpsd.PSD(2), logdensity, {"as they are": x, "too wide": spread(1.5 * draws)})
    assert ranking.best == "as they are"
    features = jaxpsd.PSD(2).features(logdensity, x)
    assert len(features.sharding.device_set) == 8


def test_a_draw_that_is_not_finite_is_named(draws):
    x = spread(draws.at[777, 1].set(jnp.nan))
    with pytest.raises(ValueError, match="not finite at draw 777, coordinate 1: nan"):
        jaxpsd.PSD(2)(logdensity, x)


# --- what travels -----------------------------------------------------------------------------------------


def collectives(program, x, *args):
    """Kinds and sizes, in numbers, of all that devices send each other."""
    given = check_input(logdensity, x)
    on_devices = compiled(program, shards_of(given.draws.positions), "sums")
    return travelling(on_devices.lower(given.data, *args).compile().as_text())


def travelling(text):
    """The same of a compiled program."""
    found = re.findall(
        r"= (.+?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(", text
    )
    shapes = [(kind, re.findall(r"\w\d+\[([\d,]*)\]", result)) for result, kind in found]
    return [
        (kind, max(int(np.prod([int(size) for size in shape.split(",") if size])) for shape in parts))
        for kind, parts in shapes
    ]


@pytest.fixture(scope="module")
def many_draws():
    return spread(jax.random.normal(KEY, (80_000, DIM)))


@pytest.mark.parametrize("program", [_v, _u])
def test_a_value_sends_sums_only(many_draws, program):
    plan = jaxpsd.PSD(2)._plan(Given(check_samples(many_draws)))
    found = collectives(program, many_draws, plan)
    assert found
    assert max(size for _, size in found) < 200


@pytest.mark.parametrize("method", ["rademacher", "markov", "block"])
def test_a_test_sends_sums_of_replicates_only(many_draws, method):
    draws, parameter = check_samples(many_draws), {"markov": 0.1, "block": 5}.get(method)
    psd = jaxpsd.PSD(2)
    plan = psd._plan(Given(draws), 50)
    given = check_input(logdensity, many_draws)
    scheme = choose_bootstrap(KEY, Settings(method, 50, 0.05, parameter), given, plan)
    found = collectives(bootstrap, many_draws, plan, scheme.multipliers, Wanted())
    assert found
    # Sums of 9 monomials in 50 replicates, and signs handed on by 8 devices.
    assert max(size for _, size in found) <= 9 * 51


def test_pairs_send_shares_round_a_ring(many_draws):
    plan = jaxpsd.KSD()._plan(Given(check_samples(many_draws)))
    found = collectives(_v, many_draws, plan)
    assert {kind for kind, size in found if size > 100} == {"collective-permute"}
    assert max(size for _, size in found) == 10_000 * DIM


def test_in_a_program_of_the_users_means_of_features_are_all_that_travels(many_draws):
    """As the guide to many devices has it."""
    psd, mesh = jaxpsd.PSD(2), many_draws.sharding.mesh

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("draws"), out_specs=PartitionSpec(), check_vma=False)
    def value(x):
        means = psd.features(logdensity, x).mean(axis=0)
        return jnp.linalg.norm(jax.lax.pmean(means, "draws"))

    np.testing.assert_allclose(value(many_draws), psd(logdensity, many_draws), rtol=1e-5)
    text = value.lower(many_draws).compile().as_text()
    assert {(kind, size) for kind, size in travelling(text) if size > 1} == {("all-reduce", 9)}


@pytest.mark.slow
def test_keys_sets_and_scores_may_lie_on_different_devices():
    """What was put on a device is moved to the draws, wherever a program begins."""
    devices = jax.devices()
    draws = jax.random.normal(jax.random.key(0), (40, 2))
    on = [jax.device_put(draws, device) for device in devices[:3]]
    key, psd = jax.device_put(jax.random.key(1), devices[3]), jaxpsd.PSD(1)
    expected = jaxpsd.gof_test(jax.random.key(1), psd, -draws, draws, method="asymptotic")
    found = jaxpsd.gof_test(key, psd, -on[0], on[1], method="asymptotic", null_samples=on[2], null_target=-on[2])
    np.testing.assert_allclose(found.statistic, expected.statistic, rtol=1e-5)
    np.testing.assert_allclose(
        jaxpsd.discrepancies(psd, -jnp.stack([on[0], on[0]]), jnp.stack([on[1], on[1]])),
        [psd(-draws, draws)] * 2, rtol=1e-5,
    )  # fmt: skip
    assert jaxpsd.FSSD.random(key, on[1]).locations.shape == (10, 2)
    ranking = jaxpsd.rank(key, psd, {"a": -on[0], "b": -on[1]}, {"a": on[0], "b": on[1]}, method="rademacher")
    np.testing.assert_allclose(ranking.discrepancy, [psd(-draws, draws)] * 2, rtol=1e-5)
