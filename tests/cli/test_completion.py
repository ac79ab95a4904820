"""`completion`: the shells accept the scripts, and offer commands, actions, options and choices at the right places."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncgroup.cli import main
from asyncgroup.cli.app import ADMINISTRATION, COMMANDS, _parser
from asyncgroup.cli.completion_scripts import SCRIPTS, command_nodes


def run_shell(shell: str, *arguments: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    ended = subprocess.run([shell, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


@pytest.fixture(
    params=["bash", pytest.param("zsh", marks=pytest.mark.full), pytest.param("fish", marks=pytest.mark.full)]
)
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script that the command prints for the shell."""
    assert main(["completion", shell]) == 0
    file = tmp_path / f"completion.{shell}"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    return file


def in_bash(script: Path, *words: str) -> set[str]:
    text = f"""
        source {shlex.quote(str(script))}
        COMP_WORDS=(asyncgroup {shlex.join(words)}) COMP_CWORD={len(words)}
        _asyncgroup
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return set(run_shell("bash", "-c", text).split())


def in_zsh(script: Path, *words: str) -> set[str]:
    # outside of a completion its functions do not exist; the candidates are printed instead, those with the prefix
    text = f"""
        compdef() {{ }}
        _describe() {{ print -rl -- "${{(@P)2}}" }}
        source {shlex.quote(str(script))}
        words=(asyncgroup {shlex.join(words)}) CURRENT={len(words) + 1} PREFIX={shlex.quote(words[-1])}
        _asyncgroup
    """
    names = {line.partition(":")[0] for line in run_shell("zsh", "-f", "-c", text).splitlines()}
    return {name for name in names if name.startswith(words[-1])} - {""}


def in_fish(script: Path, *words: str) -> set[str]:
    line = shlex.quote(" ".join(["asyncgroup", *words]))
    found = run_shell("fish", "-N", "-c", f"source {shlex.quote(str(script))}; complete -C {line}")
    return {each.partition("\t")[0] for each in found.splitlines()}


COMPLETE: dict[str, Callable[..., set[str]]] = {"bash": in_bash, "zsh": in_zsh, "fish": in_fish}


def test_a_shell_accepts_its_script_and_offers_what_fits(shell: str, script: Path) -> None:
    run_shell(shell, "-n", str(script))
    complete = COMPLETE[shell]
    commands = {each.partition(" ")[0] for each in (node.path for node in command_nodes(_parser())) if each}
    assert len(commands) == len(COMMANDS)
    assert complete(script, "") == commands
    assert complete(script, "topics", "d") == {"describe", "delete", "delete-records"}
    assert complete(script, "topics", "describe", "--under") == {"--under-replicated", "--under-min-isr"}
    assert complete(script, "consume", "--format", "") == {"value", "json"}
    assert complete(script, "configs", "describe", "") == {"topic", "broker", "group"}
    # a value is no action
    assert complete(script, "topics", "list", "-X", "topics", "--quie") == {"--quiet"}
    assert complete(script, "topics", "list", "-X", "") == set()


def test_the_scripts_have_every_command_and_option() -> None:
    nodes = list(command_nodes(_parser()))
    paths = {node.path for node in nodes}
    actions = {
        f"{subject} {key.split()[0]}"
        for subject, each in ADMINISTRATION.items()
        for key in each.COLUMNS
        if subject != "health"  # it has no actions
    }
    assert actions <= paths
    for make in SCRIPTS.values():
        text = make(nodes)
        for node in nodes:
            assert node.path in text
            for option in node.options:
                assert all(name.lstrip("-") in text for name in option.names)


@pytest.mark.parametrize("shell_name", ["", "tcsh"])
def test_an_unknown_shell_is_a_usage_error(shell_name: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["completion", shell_name])
    assert caught.value.code == 2
