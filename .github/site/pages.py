"""What the site shows beside the pages in `docs`, and where their links lead.

The README, the changelog, notebooks and committed results are pages too, as they are in the repository: nothing is
copied by hand. Links in pages are those of the repository, so that they work wherever its files are read; on the site
they lead to the page that was made of a file, or else to the repository.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
DOCS = PurePosixPath(".github/docs")

# From folders and files of the repository to places on the site.
PLACES = {
    "README.md": "index.md",
    ".github/CHANGELOG.md": "CHANGELOG.md",
    ".github/CONTRIBUTING.md": "CONTRIBUTING.md",
    "benchmarks/results": "evidence/results",
    "benchmarks/paper/REPORT.md": "evidence/paper/REPORT.md",
    "benchmarks/paper/figures": "evidence/paper/figures",
    "benchmarks/figures": "evidence/figures",
    "notebooks": "notebooks",
}
_SHOWN = (".md", ".ipynb", ".png")

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_SESSION = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)
_INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)


def files_shown() -> dict[str, Path]:
    """Files outside `docs` that are on the site, by their places there."""
    found = {}
    for source, place in PLACES.items():
        path = ROOT / source
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in inside:
            if file.suffix in _SHOWN:
                found[f"{place}/{file.name}" if path.is_dir() else place] = file
    return found


def results_shown() -> list[str]:
    """Pages of committed results, by their places on the site."""
    return [place for place in files_shown() if place.startswith("evidence/results/") and place.endswith(".md")]


def place_of(path: PurePosixPath) -> str | None:
    """Where a file of the repository is on the site."""
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS))
    return next((place for place, file in files_shown().items() if file == ROOT / path), None)


def with_results(markdown: str) -> str:
    """With the tables and text of committed results in the places that name them, without their titles."""

    def read(match: re.Match[str]) -> str:
        _, _, rest = (ROOT / match[1]).read_text().partition("\n")
        # Below the sections of the page.
        return re.sub(r"^#", "##", rest.strip(), flags=re.MULTILINE)

    return _INCLUDE.sub(read, markdown)


def with_links(markdown: str, source: PurePosixPath, place: str, repository: str) -> str:
    """With links to where files are on the site; or else in the repository, if its address is known.

    Parameters
    ----------
    markdown
        The page.
    source, place
        Where it is in the repository, and on the site.
    repository
        The address of the repository, or nothing.
    """

    def lead(match: re.Match[str]) -> str:
        picture, text, address = match.groups()
        link = urlsplit(address)
        if link.scheme or not link.path:
            return match[0]
        path = PurePosixPath(os.path.normpath(source.parent / link.path))
        anchor = f"#{link.fragment}" if link.fragment else ""
        if (found := place_of(path)) is not None:
            return f"{picture}[{text}]({os.path.relpath(found, PurePosixPath(place).parent)}{anchor})"
        if not (ROOT / path).exists():
            # For the build to complain of.
            return match[0]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{picture}[{text}]({repository}/{kind}/main/{path}{anchor})" if repository else text

    return _LINK.sub(lead, markdown)


def with_sessions(markdown: str) -> str:
    """With examples that have prompts and results marked as such, so that they can be copied without them."""
    return _SESSION.sub("```pycon\n", markdown)


# --- called by mkdocs -------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Leave underscores alone, which are indices of mathematics; and list results that the navigation does not name."""
    from markdown import Extension

    class Underscores(Extension):
        def extendMarkdown(self, md: Any) -> None:
            if hasattr(md, "delimiters"):
                md.delimiters.remove("_")
            # In older versions of Python-Markdown.
            md.inlinePatterns.deregister("em_strong2", strict=False)

    config.markdown_extensions.append(Underscores())
    evidence = next(entry["Evidence"] for entry in config.nav if "Evidence" in entry)
    named = {place for entry in evidence for place in (entry.values() if isinstance(entry, dict) else [entry])}
    evidence += [place for place in results_shown() if place not in named]
    return config


# Before the plugin for docstrings takes note of extensions.
on_config.mkdocs_priority = 100


def on_files(files: Any, config: Any) -> Any:
    """Add the files that are shown; before notebooks are looked for."""
    from mkdocs.structure.files import File

    for place, path in files_shown().items():
        if path == ROOT / place:
            # The plugin for notebooks looks for them in a folder.
            files.append(File(place, str(ROOT), config.site_dir, config.use_directory_urls))
        else:
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


on_files.mkdocs_priority = 100


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Include results, and lead links to pages."""
    place = page.file.src_uri
    if page.parent is None:
        # A page that is alone under its tab has no pages beside it to lead to.
        page.meta["hide"] = ["navigation"]
    shown = files_shown()
    source = PurePosixPath(shown[place].relative_to(ROOT)) if place in shown else DOCS / place
    return with_links(with_sessions(with_results(markdown)), source, place, (config.repo_url or "").rstrip("/"))
