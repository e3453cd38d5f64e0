"""What careless and hostile users pass: a clear error or the right answer, and nothing else."""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxpsd
from jaxpsd._core.scores import Given

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
PSD = jaxpsd.PSD(2)
STREAM = jaxpsd.stream(PSD, 39)
MASKED = np.ma.masked_array(X, X > 1)
ONE_HOT = np.eye(40)[3]


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def seen(stream):
    return stream.update(stream.init(KEY, X[0]), -X, X)


MISTAKES = {
    "too many replicates": (
        lambda: jaxpsd.gof_test(KEY, PSD, -X, X, method="rademacher", num_replicates=10**10),
        ValueError, "The replicates would be .* Take fewer",
    ),
    "too many simulations": (
        lambda: jaxpsd.gof_test(KEY, PSD, -X, X, method="asymptotic", num_replicates=10**12),
        ValueError, "The replicates would be .* Take fewer",
    ),
    "order beyond reason": (lambda: jaxpsd.PSD(50), ValueError, "at most 20; got 50"),
    "scores of fewer draws": (
        lambda: jaxpsd.discrepancies(PSD, [-X[:3]], [X]),
        ValueError, r"number 0; got \(3, 2\) for \(40, 2\)",
    ),
    "sets of different kinds": (
        lambda: jaxpsd.discrepancies(PSD, logdensity, [X, X[:, :1]]), ValueError, "same structure and shape",
    ),
    "one set for many": (lambda: jaxpsd.discrepancies(PSD, logdensity, X), ValueError, "goes into a list"),
    "state of another order": (
        lambda: jaxpsd.stream(jaxpsd.PSD(3), 39).result(seen(STREAM)), ValueError, r"another stream: of PSD\(order=2",
    ),
    "state of another method": (
        lambda: jaxpsd.stream(PSD, 39, method="block", block_length=3).update(seen(STREAM), -X, X),
        ValueError, "another stream",
    ),
    "no state": (lambda: STREAM.update(None, -X, X), TypeError, "must come from `init`"),
    "states that are none": (lambda: STREAM.merge("a", "b"), TypeError, "got str and str"),
    "a stream that overflows": (
        lambda: (lambda s: s.result(s.update(s.init(KEY, X[0]), -X * 1e19, X)))(jaxpsd.stream(PSD)),
        FloatingPointError, "not finite.*overflow",
    ),
    "nothing varies, simulated": (
        lambda: jaxpsd.gof_test(KEY, jaxpsd.PSD(1), 0 * X, X, method="asymptotic"),
        FloatingPointError, "Are the scores zero",
    ),
    "nothing varies, by numbers": (
        lambda: jaxpsd.gof_test(KEY, jaxpsd.PSD(1), 0 * X, X, method="asymptotic", deterministic=True),
        FloatingPointError, "Are the scores zero",
    ),
    "pairs that are all alike": (
        lambda: jaxpsd.gof_test(KEY, jaxpsd.LinearKSD(lambda x, y: 0.0 * jnp.sum(x * y)), -X, X),
        FloatingPointError, "standard error is zero",
    ),
    "other chains": (lambda: PSD(jaxpsd.Draws(-X, 2), X), ValueError, "samples have 1 chains, the scores 2"),
    "masked samples": (lambda: PSD(logdensity, MASKED), TypeError, "`samples` is a masked array"),
    "masked weights": (lambda: PSD(-X, X, MASKED[:, 0]), TypeError, "`weights` is a masked array"),
    "masked locations": (lambda: jaxpsd.FSSD(MASKED[:3], 1.0)(-X, X), TypeError, "`locations` is a masked array"),
    "complex weights": (lambda: PSD(-X, X, np.ones(40) * 1j), TypeError, "`weights` must be real numbers"),
    "complex scale": (lambda: jaxpsd.Affine(np.zeros(2), np.array([1j, 1j])), TypeError, "`scale` must be real"),
    "complex penalty": (lambda: jaxpsd.PSD(2, penalty=np.array([1j, 1]))(-X, X), TypeError, "`penalty` must be real"),
    "weights in words": (lambda: PSD(-X, X, "abc"), TypeError, "`weights` must be real numbers"),
    "weights that are keys": (lambda: PSD(-X, X, jax.random.split(KEY, 40)), TypeError, "real numbers; got .*key"),
    "ragged weights": (lambda: PSD(-X, X, [[1], [1, 2]]), TypeError, "`weights` must be real numbers; got list"),
    "a penalty that float32 has no room for": (
        lambda: jaxpsd.PSD(2, penalty=[1e-300, 1.0])(-X, X), ValueError, "also when rounded to float32",
    ),
    "all weight on one draw": (
        lambda: jaxpsd.Affine.fit(X, weights=ONE_HOT), ValueError, "hardly varies among the draws that have weight",
    ),
    "a function too large to be squared": (
        lambda: jaxpsd.corrected_expectation(lambda x: 1e25 * x, -X, X), FloatingPointError, "too large to be squared",
    ),
    "locations from draws that are not finite": (
        lambda: jaxpsd.FSSD.random(KEY, np.where(X > 2, np.nan, X)), ValueError, "not finite at draw",
    ),
    "a kernel that is not positive definite": (
        lambda: jaxpsd.KernelDiscrepancy(lambda x, s, y, u: -jnp.sum(s * u))(-X, X),
        FloatingPointError, "positive definite",
    ),
    "numbers for arrays": (lambda: jaxpsd.Affine(0.0, 1.0).forward(X), ValueError, r"loc \(dim,\).*got 0.0, 1.0"),
    "loc and scale that differ": (
        lambda: jaxpsd.Affine(jnp.zeros(2), jnp.ones(3)).scores(X), ValueError, r"got shape \(2,\), shape \(3,\)",
    ),
    "words for positions": (
        lambda: jaxpsd.Affine(jnp.zeros(2), jnp.ones(2)).forward("a"), TypeError, "`x` must be real",
    ),
    "a key of the wrong length": (
        lambda: jaxpsd.gof_test(np.zeros(3, np.uint32), PSD, -X, X), TypeError, "`rng_key` must be one key",
    ),
    "keys that cannot be sorted": (
        lambda: PSD(logdensity, {1: X[:, 0], "a": X[:, 1]}), TypeError, "use strings for all of them",
    ),
    "key and discrepancy forgotten": (lambda: jaxpsd.gof_test(PSD, logdensity, X, X), TypeError, "`discrepancy` must"),
    "a word for names": (
        lambda: jaxpsd.diagnose(KEY, -X, X, names="ab"), ValueError, "`names` must be strings in order.*got 'ab'",
    ),
    "a report under vmap": (
        lambda: jax.vmap(lambda key: jaxpsd.diagnose(key, -X, X).test.p_value)(jax.random.split(KEY)),
        ValueError, "`diagnose` looks at values and cannot be traced",
    ),
    "a traced tolerance": (
        lambda: jax.jit(lambda tolerance: jaxpsd.diagnose(KEY, -X, X, tolerance=tolerance).test.p_value)(0.1),
        ValueError, "`diagnose` looks at values and cannot be traced",
    ),
    "moves under vmap": (
        lambda: jax.vmap(lambda key: jaxpsd.relax(key, logdensity, X).p_value)(jax.random.split(KEY)),
        ValueError, "`relax` looks at values and cannot be traced",
    ),
    "a check under vmap": (
        lambda: jax.vmap(lambda key: jaxpsd.check(key, -X, X).test.p_value)(jax.random.split(KEY)),
        ValueError, "`check` looks at values and cannot be traced",
    ),
    "a ranking under jit": (
        lambda: jax.jit(lambda x: jaxpsd.rank(KEY, PSD, logdensity, {"a": x, "b": x}).discrepancy)(X),
        ValueError, "`rank` looks at values and cannot be traced",
    ),
    "data that cannot be sorted": (
        lambda: jaxpsd.Minibatches(logdensity, logdensity, {1: X, "a": X}, batch_size=3),
        TypeError, "`data` has a dictionary whose keys cannot be sorted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_explained(name):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()


def test_a_kernel_that_needs_jax_numpy_says_so():
    with pytest.raises(jax.errors.TracerArrayConversionError) as caught:
        jaxpsd.KSD(lambda x, y: np.sum(np.asarray(x)))(-X, X)
    assert "written with jax.numpy" in "".join(caught.value.__notes__)


# --- what looks odd and is fine ---------------------------------------------------------------------------


ODD = {
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "Fortran's order": np.asfortranarray,
    "not contiguous": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
    "backwards": lambda x: x[::-1][::-1],
    "big-endian": lambda x: x.astype(">f4"),
    "long double": lambda x: x.astype(np.longdouble),
    "a matrix": lambda x: np.asarray(x).view(np.matrix),
    "a data frame": lambda x: pd.DataFrame(x).to_numpy(),
    "on another device": lambda x: jax.device_put(x, jax.devices()[1]),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("name", ODD)
def test_arrays_of_any_make_give_the_same_result(name):
    odd = ODD[name](X)
    np.testing.assert_allclose(PSD(logdensity, odd), PSD(logdensity, X), rtol=1e-6)
    np.testing.assert_allclose(PSD(-X, odd), PSD(-X, X), rtol=1e-6)


@pytest.mark.parametrize("key", [jax.random.PRNGKey(0), np.asarray(jax.random.PRNGKey(0)), jax.random.key(0)], ids=str)
def test_keys_of_any_kind_give_the_same_test(key):
    expected = jaxpsd.gof_test(KEY, PSD, -X, X, num_replicates=39).replicates
    np.testing.assert_array_equal(jaxpsd.gof_test(key, PSD, -X, X, num_replicates=39).replicates, expected)


# --- anything at all --------------------------------------------------------------------------------------

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.just(object()), st.just({}),
    st.just([]), st.just(np.array([])), st.just(np.zeros((2, 2, 2, 2))), st.just(np.array(["a"])), st.just(MASKED),
    st.just(lambda: None), st.just(jnp.nan), st.just(np.array([[1 + 1j, 2.0]])), st.just(np.array([None])),
)  # fmt: skip
OPTIONS = (
    "num_replicates", "alpha", "method", "orders", "flip_probability", "block_length", "weights", "chains",
    "null_samples",
)  # fmt: skip


def outcome(call):
    """What a call returns, or how it explains that it does not."""
    try:
        return call(), None
    except (ValueError, TypeError, FloatingPointError) as error:
        return None, error


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(["order", "interactions", "transform", "norm", "penalty", "form", "block_size"]), ANYTHING)
def test_settings_of_any_kind_are_taken_or_explained(name, value):
    draws = jaxpsd.Draws(jnp.asarray(X))
    _, error = outcome(lambda: jaxpsd.PSD(**{name: value})._plan(Given(draws)))
    assert error is None or f"`{name}`" in str(error)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(OPTIONS), ANYTHING)
def test_options_of_any_kind_are_taken_or_explained(name, value):
    options = {"num_replicates": 39, name: value}
    result, error = outcome(lambda: jaxpsd.gof_test(KEY, jaxpsd.PSD(1), -X, X, **options))
    if error is None:
        assert np.isfinite(result.p_value).all()
    else:
        # An array of weights, say, is called by its name; what is wrong with samples by theirs.
        assert name in str(error) or "`" in str(error)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    hnp.arrays(np.float32, (6, 2), elements=st.floats(-3, 3, width=32)),
    st.integers(0, 5),
    st.integers(0, 1),
    st.sampled_from([np.nan, np.inf, -np.inf]),
    st.booleans(),
)
def test_what_is_not_finite_is_named_wherever_it_stands(x, row, column, bad, in_scores):
    samples, scores = x.copy(), -x
    (scores if in_scores else samples)[row, column] = bad
    what = "score" if in_scores else "`samples`"
    with pytest.raises(ValueError, match=rf"{what}.* is not finite at draw {row}, coordinate {column}"):
        jaxpsd.gof_test(KEY, PSD, scores, samples, method="rademacher", num_replicates=39)
