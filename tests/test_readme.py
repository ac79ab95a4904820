"""The README's Python: every block compiles, and the names that it imports and calls exist."""

from __future__ import annotations

import ast
import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import asyncgroup
from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Producer, Session
from asyncgroup.broker import EmbeddedCluster

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
OBJECTS = {
    "group": asyncgroup.ConsumerGroup,
    "session": asyncgroup.Session,
    "claim": asyncgroup.Claim,
    "producer": asyncgroup.Producer,
    "consumer": asyncgroup.Consumer,
    "offsets": asyncgroup.OffsetManager,
}
"""The types of variables in the README."""


def _parse(block: str) -> ast.Module:
    tree = compile(block, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    assert isinstance(tree, ast.Module)
    return tree


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize("block", BLOCKS)
def test_imported_names_exist(block: str) -> None:
    imports: list[ast.stmt] = [
        node for node in ast.walk(_parse(block)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    exec(compile(ast.Module(imports, []), "README.md", "exec"), {})


@pytest.mark.parametrize("block", BLOCKS)
def test_called_methods_exist(block: str) -> None:
    for node in ast.walk(_parse(block)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OBJECTS:
            owner = OBJECTS[node.value.id]
            assert hasattr(owner, node.attr), f"{owner.__name__}.{node.attr}"


def test_names_in_the_text_exist() -> None:
    """Attributes named in the text, such as `claim.mark(…)`, `group.pause`, `session.commit()`."""
    text = re.sub(r"^```.*?^```$", "", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`(?:await |async for \w+ in )?(\w+)\.(\w+)", text)
    ours = [(name, attribute) for name, attribute in named if name in OBJECTS]
    assert ours
    for name, attribute in ours:
        assert hasattr(OBJECTS[name], attribute), f"{name}.{attribute}"


def executed(mark: str) -> dict[str, Any]:
    """Execute the block that contains this text; return the names it defines."""
    (block,) = [block for block in BLOCKS if mark in block]
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    return names


@pytest.mark.asyncio
@pytest.mark.virtual
async def test_the_meter_counts_records_and_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("class Meter(Hook)")
    meter = names["Meter"]()

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            if (record.partition, record.offset) == (1, 2):
                await session.wait_ended()
                return

    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 2)

        def group_of(_servers: str, group_id: str, **more: Any) -> ConsumerGroup:
            config = ConsumerConfig(auto_offset_reset="earliest")
            return ConsumerGroup(broker.bootstrap_servers, group_id, config, **more)

        monkeypatch.setitem(names, "ConsumerGroup", group_of)
        async with Producer(broker.bootstrap_servers) as producer:
            for number in range(20):
                await producer.send("greetings", b"hello", partition=number % 2)
        assert meter.lag == 0
        async with names["metered"](meter) as group:
            running = asyncio.create_task(group.run("greetings", read))
            await asyncio.sleep(10.0)
            assert meter.records == {"greetings": 13}
            assert meter.lag == group.health().lag == 7
            await group.aclose()
            await running
        assert meter.lag == 0


def test_the_licences_of_all_dependencies_are_listed() -> None:
    project = tomllib.loads((README.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = README.read_text(encoding="utf-8")
    section = text.partition("\n## Licences\n")[2].partition("\n## ")[0]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *extras["spark"], *extras["demo"], *extras["pipelines"]]:
        name = re.split(r"[<>=\[]", requirement)[0]
        assert name in section, name


def test_the_changelog_comes_last() -> None:
    text = README.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[-1] == "Changelog"
    assert "### 0.1.0 (not released)" in text.partition("## Changelog")[2]
