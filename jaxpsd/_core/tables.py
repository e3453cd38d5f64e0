"""Results for people and programs: plain text for a terminal, HTML for a notebook, plain numbers for JSON."""

import re
from collections.abc import Iterable, Mapping, Sequence
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
    """The same in HTML; spaces before a cell indent it there too."""

    def line(cells: Sequence[str], tag: str) -> str:
        shown = []
        for k, cell in enumerate(cells):
            indent = len(cell) - len(cell.lstrip())
            # Room between columns, where the page around has no style for tables.
            style = f"text-align:{'right' if k else 'left'};padding:.2em .6em .2em {0.6 + indent:g}em"
            shown.append(f'<{tag} style="{style}">{html_text(cell.strip())}</{tag}>')
        return f"<tr>{''.join(shown)}</tr>"

    body = "".join(line(row, "td") for row in zip(*columns.values(), strict=True))
    return f"<table><thead>{line(list(columns), 'th')}</thead><tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    """Words in HTML, with code where there are backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def html_lines(lines: Iterable[str], tag: str = "p") -> str:
    """Lines of words, each an element of its own."""
    return "".join(f"<{tag}>{html_text(line)}</{tag}>" for line in lines)


def html_badge(text: str, colour: str) -> str:
    """A word to be seen first: white on a colour of its own, so that it is legible on light and dark pages."""
    style = f"background:{colour};color:#fff;border-radius:1em;padding:.15em .8em;font-weight:600;white-space:nowrap"
    return f'<span style="{style}">{escape(text)}</span>'


def number(value: SupportsFloat) -> str:
    """A number as people write it."""
    return f"{float(value):.3g}"


def plain(value: Any) -> Any:
    """Arrays as lists of Python's numbers, and None for what is not finite, which JSON does not know."""
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.floating):
        array = np.where(np.isfinite(array), array, np.array(None))
    return array.tolist()
