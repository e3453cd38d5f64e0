"""Files of arrays, written at one stroke."""

import os
from pathlib import Path
from typing import Any

import numpy as np


def check_path(given: str | os.PathLike[str], name: str) -> Path:
    """Where a file is, or can be written."""
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"`{name}` must be the path of a file; got {type(given).__name__}.")
    path = Path(given)
    if path.is_dir():
        raise ValueError(f"`{name}` must be the path of a file; {path} is a folder.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.parent} for `{name}`.")
    return path


def check_writable(given: str | os.PathLike[str], name: str) -> Path:
    """Where a file can be written, before anything is computed that is to go there."""
    path = check_path(given, name)
    try:
        _partial(path).touch()
        _partial(path).unlink()
    except (OSError, ValueError) as error:
        raise OSError(f"`{name}` must be the path of a file that can be written: {error}.") from error
    return path


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """An archive of NumPy's, which is whole wherever it is interrupted."""
    partial = _partial(path)
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
