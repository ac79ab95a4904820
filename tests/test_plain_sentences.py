"""Sentences in docstrings, comments and guide pages that make readers stumble: their number is limited.

Each phrase is correct English, and some uses of it are the plainest ones; so they are counted, not forbidden. Words that are
forbidden are in `test_names.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.guide.pages import PAGES
from tests.test_names import SOURCES, relative, without_code

STUMBLES: Final = {
    r"of (?:them|those|these) (?:that|which|who)\b": "name the things: `failed records`, not `those of them that failed`",
    r"those of (?:them|these|the \w+(?: \w+)?) (?:that|which|in|with)": "name the things",
    r"follow(?:s|ed|ing)?\b[^.;:]{0,40}? up\b": "say what comes next, and where it ends",
    r"(?:holds?|held|holding)\b[^.;:]{0,40}? up\b(?! to)": "`delays`, `stops`, `is stalled`",
    r", too(?=[.,;:)]|$| \()": "`also` before the verb",
    r"(?:is|are|was|were|be|been)(?: not| all)? over\b": "`has ended`, `has passed`",
    r"of (?:its|their|our|your|his|her|one's) own\b": "`its own task`, `a separate task`",
    r"in hand\b": "`acquired` of records, `open` of deliveries, `in progress`",
    r"hand(?:s|ed|ing)?(?: \w+){0,3} out\b": "`deliver`, `return`, `assign`",
}
"""Regular expressions of phrases, with what to write instead."""

MAX_HITS: Final = 2.0
"""The maximum per 1,000 lines of prose; there were 24."""

PHRASES: Final = re.compile("|".join(rf"\b(?:{phrase})" for phrase in STUMBLES))

BLOCKS: Final = re.compile(r'"""([^"]*(?:"(?!"")[^"]*)*)"""|# (.*(?:\n *# .*)*)')


def blocks(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each docstring and comment of a module, or the text of a page without its code.

    A regular expression finds them: to parse all files, as `test_names.prose` does, takes seconds.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        return
    for match in BLOCKS.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1] or match[2] or ""


def hits(path: Path, text: str, line: int) -> Iterator[str]:
    """Yield the phrases of a block with their places."""
    joined = " ".join(without_code(text.lower()).replace("\n#", " ").replace(" # ", " ").split())
    for match in PHRASES.finditer(joined):
        context = joined[max(0, match.start() - 60) : match.end() + 20]
        yield f"{relative(path)}:{line}: {match[0]!r} in {context!r}"


def test_few_sentences_stumble() -> None:
    lines, found = 0, list[str]()
    for path in [*SOURCES, *PAGES.values()]:
        for line, text in blocks(path):
            lines += sum(1 for each in text.splitlines() if each.strip())
            found += hits(path, text, line)
    assert lines > 15_000
    if len(found) > MAX_HITS * lines / 1000:
        rooms = Counter("/".join(hit.split(":")[0].split("/")[:2]) for hit in found)
        pytest.fail(
            f"{len(found)} phrases in {lines} lines, see STUMBLES for others; {dict(rooms.most_common())}\n"
            + "\n".join(found),
            pytrace=False,
        )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Those of them that failed are handed out, too.", 3),
        ("What holds the member up is over; it has a task\nof its own.", 3),
        ("Nothing follows them up to `end`, the record in hand included.", 2),
        ("From the batch that holds the offset up to the end, too high by 2.", 0),
        ("Failed records are delivered too, `of its own`.", 0),
    ],
)
def test_phrases_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, count: int) -> None:
    """In a page, in a docstring and in a comment, also across lines."""
    monkeypatch.setattr("tests.test_names.ROOT", tmp_path)
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(f"{text}\n```text\n{text}\n```\n", encoding="utf-8")
    commented = text.replace("\n", "\n# ")
    module.write_text(
        f'"""{text}"""\nx = "of its own"  # {commented}\n# {commented}\ny = 1\n', encoding="utf-8"
    )
    for path, times in ((page, 1), (module, 3)):
        assert sum(len(list(hits(path, each, line))) for line, each in blocks(path)) == times * count
