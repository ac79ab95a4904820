"""`asyncgroup completion bash | zsh | fish`: print a script that completes the commands of this program."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from asyncgroup.cli.completion_scripts import SCRIPTS, command_nodes

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands

__all__ = ["add_parser"]


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `completion`."""
    parser = commands.add_parser(
        "completion",
        parents=[common],
        help="print a script that completes commands in a shell",
        description="Prints a script for bash, zsh or fish that completes commands, options and their choices.",
    )
    parser.add_argument("shell", choices=SCRIPTS)
    parser.set_defaults(run=run, all_commands=commands)


async def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(SCRIPTS[options.shell](list(command_nodes(_root(options.all_commands)))), end="", flush=True)
    return 0


def _root(commands: Commands) -> argparse.ArgumentParser:
    """Return a parser with all commands, like that of the program."""
    root = argparse.ArgumentParser(prog="asyncgroup")
    root.add_argument("--version", action="version", help="show the version")
    root._actions.append(commands)
    return root
