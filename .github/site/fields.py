"""Docstrings for the site, where `help()` shows them as they are.

Fields of a class, a name and below it, indented, what it is, become a section of attributes, as NumPy's style has it.
Parameters that share a line are taken apart, so that each has its own type. Public names lead to their places in the
reference.
"""

import re
from pathlib import Path
from typing import Any

import griffe

_FIELD = re.compile(r"^(\w[\w, ]*)(?:\([^)]*\))?\n((?:    .*\n?)+)", re.MULTILINE)


_SHARED = re.compile(r"^(\w+(?:, \w+)+)\n((?:    .*\n?)+)", re.MULTILINE)

_REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
_PUBLIC = {
    name
    for page in _REFERENCE.glob("*.md")
    for name in re.findall(r"^::: jaxpsd\.(\w+)$", page.read_text(), re.MULTILINE)
}
_NAME = re.compile(r"(?<!`)`(\w+)`(?!`)")


class Fields(griffe.Extension):
    """Turn the list of fields of a class into a section, and take parameters apart."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Rewrite the docstring before it is parsed."""
        if func.docstring is not None:
            text = _SHARED.sub(
                lambda match: "".join(f"{name}\n{match[2].rstrip()}\n" for name in match[1].split(", ")),
                func.docstring.value,
            )
            func.docstring.value = _linked(text, func.name)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Rewrite the docstring before it is parsed."""
        if cls.docstring is None:
            return
        cls.docstring.value = _linked(cls.docstring.value, cls.name)
        text, section, rest = _split(cls.docstring.value)
        fields = _FIELD.findall(text)
        if not fields:
            return
        before = text[: _FIELD.search(text).start()]  # pyright: ignore[reportOptionalMemberAccess]
        listed = "".join(f"{name.strip()}\n{what.rstrip()}\n" for name, what in fields)
        cls.docstring.value = f"{before}Attributes\n----------\n{listed}\n{section}{rest}"


def _linked(text: str, own: str) -> str:
    """With links from other public names."""

    def link(match: re.Match[str]) -> str:
        name = match[1]
        return f"[`{name}`][jaxpsd.{name}]" if name in _PUBLIC and name != own else match[0]

    return _NAME.sub(link, text)


def _split(text: str) -> tuple[str, str, str]:
    """What comes before the first section, and from there on."""
    match = re.search(r"^\w[\w ]*\n-{3,}\n", text, re.MULTILINE)
    return (text, "", "") if match is None else (text[: match.start()], match[0], text[match.end() :])
