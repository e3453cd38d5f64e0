"""Results for people and programs: plain text for a terminal, HTML for a notebook, plain numbers for JSON."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, SupportsFloat

import numpy as np

Columns = Mapping[str, Sequence[str]]
"""Titles, and the cells below each."""


def text_table(columns: Columns) -> str:
    """A table in plain text, the first column to the left and all others to the right."""
    widths = [max(map(len, (title, *cells))) for title, cells in columns.items()]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    rows = zip(*columns.values(), strict=True)
    return "\n".join([line(list(columns)), "  ".join("─" * width for width in widths), *map(line, rows)])


def html_table(columns: Columns) -> str:
    """The same in HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ["left", *["right"] * (len(cells) - 1)]
        aligned = zip(cells, sides, strict=True)
        cells = [f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in aligned]
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line(row, "td") for row in zip(*columns.values(), strict=True))
    return f"<table><thead>{line(list(columns), 'th')}</thead><tbody>{body}</tbody></table>"


def number(value: SupportsFloat) -> str:
    """A number as people write it."""
    return f"{float(value):.3g}"


def plain(value: Any) -> Any:
    """Arrays as lists of Python's numbers, and None for what is not finite, which JSON does not know."""
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.floating):
        array = np.where(np.isfinite(array), array, np.array(None))
    return array.tolist()
