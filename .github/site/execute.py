"""Notebooks as they are committed: `python .github/site/execute.py notebooks/*.ipynb` writes what they show.

Without times of cells, without what progress has left, and without what differs from one machine to the next.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")


def says_something(text: str) -> bool:
    """Not an empty line, nor that widgets for progress are not installed here."""
    return bool(text.strip()) and "IProgress not found" not in text


def main(path: Path) -> None:
    """Execute a notebook in place."""
    notebook = nbformat.read(path, as_version=4)
    about = dict(notebook.metadata)
    NotebookClient(notebook, timeout=1200, kernel_name="python3", coalesce_streams=True).execute()
    notebook.metadata.clear()
    notebook.metadata.update(about)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            for out in cell.outputs:
                if out.output_type == "stream":
                    out.text = out.text.rstrip() + "\n"
            cell.outputs = [out for out in cell.outputs if out.output_type != "stream" or says_something(out.text)]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main(Path(name))
