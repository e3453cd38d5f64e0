import sys
import textwrap

import numpy as np
import pytest

from jaxpsd.adapters.files import read
from jaxpsd.adapters.user_code import load_target

X = np.random.default_rng(0).normal(size=(6, 2))


def test_an_array_is_read(tmp_path):
    np.save(tmp_path / "x.npy", X)
    found = read(tmp_path / "x.npy")
    np.testing.assert_array_equal(found.samples, X)
    assert found.scores is None


def test_an_archive_with_scores_is_read(tmp_path):
    np.savez(tmp_path / "x.npz", samples=X, scores=-X, weights=np.ones(6), names=["a", "b"])
    found = read(tmp_path / "x.npz")
    np.testing.assert_array_equal(found.scores, -X)
    assert found.names == ("a", "b")
    assert found.weights.shape == (6,)


def test_an_archive_by_name_is_read(tmp_path):
    np.savez(tmp_path / "x.npz", mu=X[:, 0], beta=X, **{"score.mu": -X[:, 0], "score.beta": -X})
    found = read(tmp_path / "x.npz")
    assert set(found.samples) == set(found.scores) == {"mu", "beta"}
    np.savez(tmp_path / "y.npz", mu=X[:, 0], beta=X, **{"score.mu": -X[:, 0]})
    with pytest.raises(ValueError, match="such as beta"):
        read(tmp_path / "y.npz")


def test_a_table_is_read_with_names_scores_and_chains(tmp_path):
    rows = np.column_stack([X, -X, np.repeat([0, 1], 3)])
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",", header="mu,tau,score.mu,score.tau,chain", comments="")
    found = read(tmp_path / "x.csv")
    assert found.names == ("mu", "tau")
    np.testing.assert_allclose(found.samples, X.reshape(2, 3, 2))
    np.testing.assert_allclose(found.scores, -X.reshape(2, 3, 2))
    np.savetxt(tmp_path / "y.csv", X, delimiter=",")
    np.testing.assert_allclose(read(tmp_path / "y.csv").samples, X)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mu,mu\n1,2\n", "same name"),
        ("mu,tau,score.mu\n1,2,3\n", "not for others, such as tau"),
        ("mu,score.mu,score.tau\n1,2,3\n", "not for others, such as tau"),
        ("mu,chain\n1,0\n2,0\n3,1\n", "differ in length"),
        ("mu,chain\n1,0\n2,nan\n", "number of a chain in every row"),
        ("mu,tau\n1,x\n", "could not be read"),
        (",mu,tau\n0,1,2\n", "a column has no name"),
        ("mu,tau\n1\n", "names 2 columns, but rows have 1"),
        ("mu,tau\n1,2\n1,2,3\n", "number of columns changed from 2 to 3 at row 2$"),
        ("mu,tau\n", "no rows of numbers"),
        ("", "no rows of numbers"),
        ("chain\n0\n1\n", "holds no draws"),
        ("score.mu\n0\n1\n", "holds no draws, only scores"),
    ],
)
def test_a_table_that_makes_no_sense_is_named(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "x.csv")


def test_the_mark_of_excel_is_no_letter(tmp_path):
    (tmp_path / "x.csv").write_text("mu,tau\n1,2\n", encoding="utf-8-sig")
    assert read(tmp_path / "x.csv").names == ("mu", "tau")


def _truncated(path):
    np.savez(path, samples=X)
    path.write_bytes(path.read_bytes()[:-30])


def _renamed(path):
    """An array under the name of an archive, or the other way round."""
    with path.open("wb") as file:
        (np.save if path.suffix == ".npz" else np.savez)(file, X)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("x.npy", lambda path: path.write_bytes(b""), "No data left"),
        ("x.npz", lambda path: path.write_bytes(b""), "No data left"),
        ("x.npz", _truncated, "zip"),
        ("x.npy", lambda path: path.write_bytes(b"something else"), "not an array of numbers"),
        ("x.npy", _renamed, r"let its name end in \.npz"),
        ("x.npz", _renamed, r"let its name end in \.npy"),
        ("x.npz", lambda path: np.savez(path), "holds no draws"),
        ("x.npz", lambda path: np.savez(path, samples=X, names="a"), r"has shape \(\) for samples \(6, 2\)"),
        ("x.npz", lambda path: np.savez(path, samples=X, names=["a"]), r"has shape \(1,\)"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, write, message):
    write(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name} could not be read: .*{message}"):
        read(tmp_path / name)


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="could not be read"):
        read(tmp_path / "x.npy")


def test_files_that_are_none_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        read(tmp_path / "x.npy")
    with pytest.raises(ValueError, match=r"\.npz"):
        read(tmp_path / "x.txt")
    np.save(tmp_path / "x.npy", np.array(["a", "b"]))
    with pytest.raises(ValueError, match="real numbers"):
        read(tmp_path / "x.npy")


def test_functions_come_from_files_and_modules(tmp_path):
    (tmp_path / "my_model.py").write_text(
        textwrap.dedent("""
        scale = 2.0
        def logdensity(x):
            return -scale * x
        number = 3
        """)
    )
    assert load_target(f"{tmp_path}/my_model.py:logdensity")(1.0) == -2.0
    assert load_target("math:sin")(0) == 0
    for where, message in (
        (f"{tmp_path}/my_model.py:number", "no function"),
        (f"{tmp_path}/my_model.py:absent", "no function"),
        ("my_model.py", "file.py:name"),
    ):
        with pytest.raises(ValueError, match=message):
            load_target(where)
    with pytest.raises(FileNotFoundError):
        load_target("nowhere.py:f")
    with pytest.raises(ModuleNotFoundError):
        load_target("no_such_module:f")
    sys.modules.pop("my_model", None)
