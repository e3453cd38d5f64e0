import numpy as np
import pytest

from jaxpsd._core.saving import check_writable, write_arrays


def test_what_cannot_be_written_is_said_before_anything_is_there(tmp_path):
    path = tmp_path / "progress"
    assert check_writable(str(path), "checkpoint") == path
    assert not list(tmp_path.iterdir())
    (tmp_path / "progress.partial").mkdir()
    for given, error, message in (
        (3, TypeError, "`checkpoint` must be the path of a file; got int"),
        (tmp_path, ValueError, "is a folder"),
        (tmp_path / "no" / "file", FileNotFoundError, "There is no folder .* for `checkpoint`"),
        (path, OSError, "`checkpoint` must be the path of a file that can be written"),
        ("a\0b", OSError, "can be written"),
    ):
        with pytest.raises(error, match=message):
            check_writable(given, "checkpoint")


def test_a_file_is_whole_wherever_it_is_interrupted(tmp_path):
    class Interrupting:
        def __array__(self, *_, **__):
            raise KeyboardInterrupt

    path = tmp_path / "state.npz"
    write_arrays(path, {"x": np.ones(2)})
    with pytest.raises(KeyboardInterrupt):
        write_arrays(path, {"x": np.zeros(2), "y": Interrupting()})
    with np.load(path) as file:
        np.testing.assert_array_equal(file["x"], np.ones(2))
