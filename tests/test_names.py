"""Names and words of the package: one exported class for each name, and plain words in docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.guide.pages import PAGES

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "asyncgroup"
SOURCES: Final = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])

FORBIDDEN: Final = {
    "whoever": "name the caller, the reader or the task",
    "whatever": "use `any` or name the thing",
    "whichever": "use `any` or `each`",
    "wherever": "use `if` or name the place",
    "nobody": "use `no task`, `no caller` or the passive voice",
    "somebody": "name who",
    "everybody": "name who",
    "anybody": "name who",
    "anew": "use `again`",
    "for ever": "use `without limit`",
    "meanwhile": "use `while` or `before then`",
    "in vain": "use `without result`",
    "of one's own": "use `its own` or `separate`",
    "hears?|heard": "use `is notified` or `learns`",
    "told": "use `is notified`, `receives` or `is configured`",
    "said": "name the message or the response",
    "tells? (?:of|everybody|the others)": "use `reports`",
    "troubles?": "use `error`, `failure` or `fault`",
    "befalls?": "use `happens`",
    "(?:within|after|than|for|of) so many": "use `n` or the name of the constant or parameter",
    "be it|lest|thereby|whereby|therein|thereof": "write a second sentence",
    "what is no|nothing but": "say what it is",
}
"""Words that make prose hard to follow, as regular expressions, with what to write instead."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def exported_classes(path: Path) -> Iterator[str]:
    """The classes that a module defines and names in its `__all__`."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    exported: set[str] = set()
    for node in body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            names = getattr(
                node.value, "elts", []
            )  # of a lazy package some are computed: it defines no classes
            exported.update(name.value for name in names if isinstance(name, ast.Constant))
    return (node.name for node in body if isinstance(node, ast.ClassDef) and node.name in exported)


def test_no_two_modules_export_classes_of_one_name() -> None:
    modules = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in exported_classes(path):
            modules[name].append(relative(path))
    assert len(modules) > 100
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of every docstring and every comment of a module, without code in backticks."""
    last, string = tokenize.NEWLINE, None
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], without_code(token.string)
        # a docstring, also one below a constant or an attribute, is a statement that consists of a string
        if token.type == tokenize.NEWLINE and string is not None:
            yield string.start[0], without_code(ast.literal_eval(string.string))
        is_first = last in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            string = token if token.type == tokenize.STRING and is_first else None
            last = token.type


def folded(path: Path) -> str:
    """Return the text of a module so that words of its prose stand next to each other, as in `prose`."""
    return " ".join(path.read_text(encoding="utf-8").replace("#", " ").replace("\\n", " ").split())


def without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "`…`", text)


def page_prose(path: Path) -> str:
    """Return the text of a page of the guide as one line, without code."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return " ".join(without_code(text).split())


def test_docstrings_comments_and_guide_use_plain_words() -> None:
    pattern = re.compile("|".join(rf"\b(?:{word})\b" for word in FORBIDDEN), re.IGNORECASE)
    assert len(SOURCES) > 100
    found = [
        f"{relative(path)}:{line}: {match[0]!r} in {text.strip()[:100]!r}"
        for path in SOURCES
        if pattern.search(folded(path))  # parsing all files takes a second and a half
        for line, text in prose(path)
        for match in pattern.finditer(" ".join(text.split()))
    ]
    found += [
        f"{relative(path)}: {match[0]!r}"
        for path in PAGES.values()
        for match in pattern.finditer(page_prose(path))
    ]
    if found:
        pytest.fail(
            f"{len(found)} unclear words, see FORBIDDEN for others:\n" + "\n".join(found), pytrace=False
        )


def test_forbidden_words_are_found_in_docstrings_and_comments(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Whoever."""\nx = 1  # nobody\n"""`anew` is code."""\ny = "whatever"\n', encoding="utf-8"
    )
    assert sorted(prose(module)) == [(1, "Whoever."), (2, "# nobody"), (3, "`…` is code.")]
    module.write_text('"""Not for\\never, and in"""\n# in\n# vain\n"""In\n    vain."""\n', encoding="utf-8")
    assert {"for ever", "In vain"} <= set(re.findall("for ever|In vain", folded(module)))


# -- the map of the tests -----------------------------------------------------------------------------------------------


def test_the_map_of_the_tests_names_every_directory_and_existing_files() -> None:
    tests = ROOT / "tests"
    named = set(re.findall(r"`([\w/.]+)`", (tests / "README.md").read_text(encoding="utf-8")))
    files = {name for name in named if name.endswith(".py")}
    assert len(files) > 40
    assert [name for name in sorted(files) if not (tests / name.removeprefix("tests/")).is_file()] == []
    directories = {path.name for path in tests.iterdir() if path.is_dir() and any(path.glob("**/*.py"))}
    assert directories - named == set()


def test_directories_of_tests_are_no_packages() -> None:
    """pytest would import the files of `tests/pulsar` as `pulsar`, which is the name of another client's package."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []
