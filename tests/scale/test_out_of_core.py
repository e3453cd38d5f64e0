"""Draws from disk: the results of memory, and progress that survives a kill."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr

import jaxpsd

KEY = jax.random.key(5)
STREAM = jaxpsd.stream(jaxpsd.PSD(2), num_replicates=40, method="markov", flip_probability=0.1)


def logdensity(x):
    return -0.5 * jnp.sum((x - 0.1) ** 2)


def over(source, target=logdensity, stream=STREAM, **options):
    return jaxpsd.stream_over(stream, KEY, target, source, **{"chunk_length": 300, "progress": False, **options})


def in_memory(samples, **options):
    options = {"method": "markov", "flip_probability": 0.1, "num_replicates": 40, **options}
    return jaxpsd.gof_test(KEY, jaxpsd.PSD(2), logdensity, samples, **options)


@pytest.fixture(scope="module")
def chains(chain):
    return np.asarray(chain(0.5, (3, 1000, 2)))


def test_a_memmap_gives_the_test_of_the_draws_in_memory(chains, tmp_path):
    np.save(tmp_path / "draws.npy", chains[0])
    source = np.load(tmp_path / "draws.npy", mmap_mode="r")
    np.testing.assert_allclose(over(source).replicates, in_memory(chains[0]).replicates, rtol=1e-4, atol=1e-6)


def test_chains_on_disk_give_the_test_of_chains(chains, tmp_path):
    with h5py.File(tmp_path / "draws.h5", "w") as file:
        source = file.create_dataset("draws", data=chains, chunks=(1, 128, 2))
        result = over(source)
        np.testing.assert_allclose(result.replicates, in_memory(chains).replicates, rtol=1e-4, atol=1e-6)
        assert result.p_value == in_memory(chains).p_value
        scores = file.create_dataset("scores", data=0.1 - chains)
        np.testing.assert_allclose(over(source, scores).replicates, result.replicates, rtol=1e-4, atol=1e-6)


def test_zarr_gives_the_test_of_the_draws_in_memory(chains, tmp_path):
    source = zarr.create_array(tmp_path / "draws.zarr", shape=chains.shape, chunks=(1, 128, 2), dtype="float32")
    source[:] = chains
    result = over(source, chunk_length=None)
    np.testing.assert_allclose(result.replicates, in_memory(chains).replicates, rtol=1e-4, atol=1e-6)


def test_chunks_of_a_file_are_read_whole(chains, tmp_path):
    from jaxpsd._scale.out_of_core import _chunk_length

    with h5py.File(tmp_path / "draws.h5", "w") as file:
        source = file.create_dataset("draws", data=np.zeros((100_000, 300), np.float32), chunks=(700, 300))
        length = _chunk_length([source], 1, 100_000, None)
    assert length % 700 == 0
    assert length * 300 * 4 <= 2**25


def test_a_pytree_of_arrays(chains):
    source = {"a": chains[..., 0], "b": chains}

    def density(position):
        return -0.5 * jnp.sum(position["b"] ** 2) - 0.1 * position["a"] ** 2

    result = over(source, density, chains=True)
    options = {"method": "markov", "flip_probability": 0.1, "num_replicates": 40, "chains": True}
    expected = jaxpsd.gof_test(KEY, jaxpsd.PSD(2), density, jax.tree.map(jnp.asarray, source), **options)
    np.testing.assert_allclose(result.replicates, expected.replicates, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_an_iterator_of_batches(chains):
    parts = [chains[0][:70], chains[0][70:71], chains[0][71:]]
    expected = in_memory(chains[0]).replicates
    np.testing.assert_allclose(over(iter(parts)).replicates, expected, rtol=1e-4, atol=1e-6)
    pairs = ((part, 0.1 - part) for part in parts)
    np.testing.assert_allclose(over(pairs, target=None).replicates, expected, rtol=1e-4, atol=1e-6)


def test_values_alone_can_be_streamed(chains):
    value = over(chains[0], stream=jaxpsd.stream(jaxpsd.PSD(2)))
    np.testing.assert_allclose(value, jaxpsd.PSD(2)(logdensity, chains[0]), rtol=1e-5)


class Interrupted(Exception):
    """Stands for Ctrl-C."""


class Breaking:
    """An array that can be read so many times."""

    def __init__(self, array, reads):
        self.array, self.reads, self.shape, self.dtype = array, reads, array.shape, array.dtype

    def __getitem__(self, index):
        self.reads -= 1
        if self.reads < 0:
            raise Interrupted
        return self.array[index]


@pytest.mark.parametrize("reads", [1, 2, 5, 9])
@pytest.mark.parametrize("every", [0.0, 1e9])
def test_work_goes_on_where_it_was_interrupted(chains, tmp_path, reads, every):
    path = tmp_path / "progress.npz"
    with pytest.raises(Interrupted):
        over(Breaking(chains, reads), checkpoint=path, checkpoint_every=every)
    counting = Breaking(chains, 100)
    result = over(counting, checkpoint=path)
    whole = over(chains)
    for field in ("statistic", "replicates", "p_value"):
        np.testing.assert_array_equal(getattr(result, field), getattr(whole, field))
    if reads > 2:
        # Twelve batches and a look at both ends, less what was done before.
        assert 100 - counting.reads < 14
    # And it is done: nothing is read again but for a look at both ends.
    again = Breaking(chains, 2)
    np.testing.assert_array_equal(over(again, checkpoint=path).replicates, whole.replicates)


@pytest.mark.slow
def test_a_kill_at_any_time_changes_nothing(chains, tmp_path):
    np.save(tmp_path / "draws.npy", np.tile(chains[0], (20, 1)))
    script = textwrap.dedent("""
        import sys, time
        import jax, jax.numpy as jnp, numpy as np
        import jaxpsd

        class Slow:
            def __init__(self, array):
                self.array, self.shape, self.dtype = array, array.shape, array.dtype
            def __getitem__(self, index):
                time.sleep(0.02)
                print("read", flush=True)
                return self.array[index]

        folder = sys.argv[1]
        stream = jaxpsd.stream(jaxpsd.PSD(2), num_replicates=40, method="markov", flip_probability=0.1)
        result = jaxpsd.stream_over(
            stream, jax.random.key(5), lambda x: -0.5 * jnp.sum((x - 0.1) ** 2),
            Slow(np.load(folder + "/draws.npy", mmap_mode="r")), chunk_length=150,
            checkpoint=folder + "/progress.npz", checkpoint_every=0.0, progress=False,
        )
        np.save(folder + "/replicates.npy", result.replicates)
    """)
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(20):
            process.stdout.readline()
        time.sleep(random.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "progress.npz").exists()
    assert not (tmp_path / "replicates.npy").exists()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    whole = over(np.load(tmp_path / "draws.npy"), chunk_length=150)
    np.testing.assert_array_equal(np.load(tmp_path / "replicates.npy"), whole.replicates)


def test_states_can_be_kept_and_merged(chains, tmp_path):
    halves = chains[0][:480], chains[0][480:]
    paths = [tmp_path / f"{k}.npz" for k in range(2)]
    for path, half, start in zip(paths, halves, (0, 480), strict=True):
        state = STREAM.update(STREAM.init(KEY, half[0], start=start, chain_start=0), logdensity, half)
        jaxpsd.save_state(state, path)
    like = STREAM.init(KEY, halves[0][0])
    first, second = (jaxpsd.load_state(path, like) for path in paths)
    result = STREAM.result(STREAM.merge(first, second))
    np.testing.assert_allclose(result.replicates, in_memory(chains[0]).replicates, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="share signs"):
        STREAM.merge(first, first)


def test_progress_of_other_work_is_not_taken_up(chains, tmp_path):
    path = tmp_path / "progress.npz"
    over(chains[0], checkpoint=path)
    with pytest.raises(ValueError, match="progress of other work"):
        over(chains, checkpoint=path)
    with pytest.raises(ValueError, match="progress of other work"):
        over(chains[0], checkpoint=path, chunk_length=100)
    with pytest.raises(ValueError, match="another stream: its key"):
        jaxpsd.stream_over(STREAM, jax.random.key(6), logdensity, chains[0], checkpoint=path, progress=False)
    with pytest.raises(ValueError, match="another stream: its replicates"):
        over(chains[0], stream=jaxpsd.stream(jaxpsd.PSD(2), num_replicates=50), checkpoint=path)
    with pytest.raises(ValueError, match="progress of other work"):
        over(2 * chains[0], checkpoint=path)
    with pytest.raises(ValueError, match="progress of other work"):
        over(chains[0], lambda x: -9 * jnp.sum(x**2), checkpoint=path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        over(chains[0], checkpoint=tmp_path / "missing" / "progress.npz")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match="damaged"):
        over(chains[0], checkpoint=path)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not the state of such a stream"):
        over(chains[0], checkpoint=path)


X = np.zeros((4, 2), np.float32)


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        (np.zeros((0, 2)), {}, "holds no draws"),
        (np.zeros(5), {}, "must be"),
        (iter(()), {}, "holds no draws"),
        (3, {}, "must be an array"),
        ({"a": np.zeros((4, 2)), "b": np.zeros((5, 2))}, {}, "must be"),
        ({"a": np.zeros((4, 0))}, {}, "without coordinates"),
        ({"a": np.zeros(4)}, {"chains": True}, r"`source` must be \(chains, draws, …\); got \[\(4,\)\]"),
        (X, {"chains": True}, r"`source` must be \(chains, draws, …\); got \[\(4, 2\)\]"),
        (iter([X[:0], X]), {}, r"at least one draw; number 0 has shape \(0, 2\)"),
        (iter([1.0]), {}, r"number 0 has shape \(\)"),
        (range(3), {}, r"number 0 has shape \(\)"),
        (b"bytes", {}, r"number 0 has shape \(\)"),
        ({1.0, 2.0}, {}, r"number 0 has shape \(\)"),
        (iter([X]), {"target": None}, r"pairs \(samples, scores\); number 0 is ndarray"),
        (iter([X]), {"target": X}, "log-density function, or None"),
        (X, {"target": None}, r"scores in the structure and shape of `source`; got None for \(4, 2\)"),
        (X, {"target": "a"}, "scores in the structure"),
        (X, {"target": 3}, "scores in the structure"),
        (X, {"checkpoint_every": None}, "`checkpoint_every` must be seconds"),
        (X, {"checkpoint_every": "a"}, "`checkpoint_every` must be seconds"),
        (X, {"checkpoint": X}, "`checkpoint` must be the path of a file; got ndarray"),
    ],
)
def test_sources_and_options_that_will_not_do(source, options, error):
    with pytest.raises((ValueError, TypeError), match=error):
        over(source, **options)


def test_states_and_paths_that_will_not_do(tmp_path):
    state = STREAM.init(KEY, X[0])
    for other in (None, X, {}, "a"):
        with pytest.raises(TypeError, match="`state` must be the state of a stream"):
            jaxpsd.save_state(other, tmp_path / "state.npz")
        with pytest.raises(TypeError, match="`like` must be the state of a stream"):
            jaxpsd.load_state(tmp_path / "state.npz", other)
    with pytest.raises(TypeError, match="`path` must be the path of a file; got NoneType"):
        jaxpsd.save_state(state, None)
    with pytest.raises(ValueError, match="is a folder"):
        jaxpsd.save_state(state, tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        jaxpsd.save_state(state, tmp_path / "missing" / "state.npz")
    with pytest.raises(FileNotFoundError, match="no file"):
        jaxpsd.load_state(tmp_path / "state.npz", state)
    assert not list(tmp_path.iterdir())


def test_what_reads_and_writes_files_cannot_be_traced(tmp_path):
    calls = (
        lambda x: over(x),
        lambda x: over(iter([x])),
        lambda x: over(X),
        lambda x: jaxpsd.save_state(STREAM.init(KEY, x[0]), tmp_path / "state.npz"),
    )
    for call in calls:
        with pytest.raises(ValueError, match="outside of `jit`"):
            jax.jit(call)(X)
