"""Results for people and programs: plain text for a terminal, HTML for a notebook, plain numbers for JSON."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

Columns = Mapping[str, Sequence[str]]
"""Titles, and the cells below each."""


def text_table(columns: Columns) -> str:
    """A table in plain text, the first column to the left and all others to the right."""
    widths = [max(map(len, (title, *cells))) for title, cells in columns.items()]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *rest]).rstrip()

    rows = zip(*columns.values(), strict=True)
    return "\n".join([line(list(columns)), "  ".join("─" * width for width in widths), *map(line, rows)])


def html_table(columns: Columns) -> str:
    """The same in HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ["left", *["right"] * (len(cells) - 1)]
        cells = [
            f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in zip(cells, sides, strict=True)
        ]
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line(row, "td") for row in zip(*columns.values(), strict=True))
    return f"<table><thead>{line(list(columns), 'th')}</thead><tbody>{body}</tbody></table>"


def number(value: float, digits: int = 3) -> str:
    """A number as people write it."""
    return f"{float(value):.{digits}g}"


def plain(value: Any) -> Any:
    """Arrays as lists of Python's numbers, and None for what is not finite, which JSON does not know."""
    if value is None:
        return None
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.floating):
        is_number = np.isfinite(array)
        array = array.astype(object)
        array[~is_number] = None
    return array.tolist()
