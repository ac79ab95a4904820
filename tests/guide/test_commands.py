"""The console blocks: every `asyncgroup` command is parsed by its parser, and every file and module exists."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib.util import find_spec

import pytest

from asyncgroup.cli.app import ADMINISTRATION, _parser
from tests.guide.pages import ROOT, commands

COMMANDS = [
    (page, part.strip())
    for page, line in commands()
    for part in re.split(r"\||&&", line)
    if "asyncgroup" in part and not part.strip().startswith("pip ")
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_is_accepted(page: str, command: str) -> None:
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    if words[0] == "asyncgroup":
        _parser().parse_args(words[1:])
    else:
        assert words[:2] == ["python", "-m"], page
        assert find_spec(words[2]) is not None


@pytest.mark.parametrize(
    "extra", sorted({extra for _, line in commands() for extra in re.findall(r"\[(\w+)\]", line)})
)
def test_an_extra_exists(extra: str) -> None:
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def actions() -> list[str]:
    """Return the administrative commands with each of their actions."""
    found = []
    (commands_of,) = (each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction))
    for subject in ADMINISTRATION:
        parser = commands_of.choices[subject]
        several = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        found += [f"{subject} {action}" for each in several for action in each.choices] or [subject]
    return found


@pytest.mark.parametrize("action", actions())
def test_an_administrative_command_has_an_example(action: str) -> None:
    examples = [command for name, command in COMMANDS if name == "command-line"]
    assert any(f"{command} ".startswith(f"asyncgroup {action} ") for command in examples)
