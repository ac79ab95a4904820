"""The long description of the distributions, and the one place of the version."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from types import ModuleType

import pytest

import asyncgroup
from asyncgroup.cli import main
from asyncgroup.cluster import connecting
from tests.distribution.built import ROOT

README = """# name

See [groups](asyncgroup/guide/groups.md#handlers) and [a site](https://example.org).

## Try it

$ pip install -e '.[cli]' && asyncgroup demo
$ pip install -e '.[test]' && pytest
"""


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("long_description", ROOT / ".ci" / "long_description.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_an_address_the_pages_are_named(hook: ModuleType) -> None:
    assert hook.long_description(README, {}, "1.2") == (
        "# name\n\nSee groups (`groups.md`) and [a site](https://example.org).\n\n"
        "The pages that are named in parentheses, such as `getting-started.md`, come with the package, in its directory "
        "`asyncgroup/guide`.\n\n"
        "## Try it\n\n$ pip install 'asyncgroup[cli]' && asyncgroup demo\n"
    )


def test_with_an_address_links_lead_to_the_tag_of_the_version(hook: ModuleType) -> None:
    text = hook.long_description(README, {"Source": "https://example.org/a/"}, "1.2")
    assert "[groups](https://example.org/a/blob/v1.2/asyncgroup/guide/groups.md#handlers)" in text
    assert "[a site](https://example.org)." in text
    assert "named in parentheses" not in text


def test_a_link_that_cannot_be_replaced_is_an_error(hook: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"tests/README\.md is not a page of the guide"):
        hook.long_description("# name\n\n[tests](tests/README.md)\n", {}, "1.2")


def test_no_link_of_the_readme_remains(hook: ModuleType) -> None:
    text = hook.long_description((ROOT / "README.md").read_text(encoding="utf-8"), {}, "1.2")
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []
    assert "(`getting-started.md`)" in text
    assert "-e '" not in text


def test_the_version_is_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "asyncgroup/version.py"
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"asyncgroup {asyncgroup.__version__}\n"
    assert re.sub("[^a-zA-Z0-9.-]", "-", asyncgroup.__version__) == connecting._SOFTWARE_VERSION
    pattern = re.compile(rf"""["'](?:v|asyncgroup[ -])?{re.escape(asyncgroup.__version__)}["']""")
    sources = [path for room in ("asyncgroup", ".ci") for path in (ROOT / room).rglob("*.py")]
    found = [path for path in sources if pattern.search(path.read_text(encoding="utf-8"))]
    assert found == [ROOT / "asyncgroup" / "version.py"]
