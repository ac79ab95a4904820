"""The README and the pages of the guide, with their code blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

__all__ = [
    "GUIDE",
    "INDEX",
    "PAGES",
    "README",
    "ROOT",
    "Snippet",
    "blocks",
    "commands",
    "page",
    "python_blocks",
    "snippet",
    "snippets",
]

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
GUIDE: Final = ROOT / "asyncgroup" / "guide"
INDEX: Final = GUIDE / "README.md"
PAGES: Final = {
    "README": README,
    "index": INDEX,
    **{path.stem: path for path in sorted(GUIDE.glob("*.md")) if path != INDEX},
}
"""The files by name."""

_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Snippet(NamedTuple):
    """One block of Python."""

    page: str
    number: int
    code: str

    @property
    def name(self) -> str:
        """Page and number, from 1."""
        return f"{self.page}-{self.number}"


def page(name: str) -> str:
    """Return the text of a page."""
    return PAGES[name].read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """Return the blocks of a page in a language, such as yaml."""
    return [code for found, code in _BLOCK.findall(page(name)) if found == language]


def python_blocks(name: str) -> list[str]:
    """Return the Python blocks of a page."""
    return blocks(name, "python")


def snippets() -> list[Snippet]:
    """Return the Python blocks of all pages."""
    return [Snippet(name, n, code) for name in PAGES for n, code in enumerate(python_blocks(name), 1)]


def snippet(name: str, text: str) -> str:
    """Return the only Python block of a page that contains this text."""
    (found,) = [code for code in python_blocks(name) if text in code]
    return found


def commands() -> list[tuple[str, str]]:
    """Return (page, command) of the lines after a `$` in the console blocks of all pages."""
    return [
        (name, line[2:])
        for name in PAGES
        for language, block in _BLOCK.findall(page(name))
        if language == "console"
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
