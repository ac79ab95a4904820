"""`asyncgroup users`: list, set and delete SCRAM credentials. A password is never an argument, which other users could see."""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    add_subject,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.common import positive
from asyncgroup.cli.tables import Column

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands

__all__ = ["COLUMNS", "add_parser"]

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
ITERATIONS: Final = 4096
"""The fewest that Kafka accepts, and the default of its tool."""
MAX_PASSWORD: Final = 4096
"""Characters that are read of a file."""

_NAME: Final = (Column("user", is_name=True, can_shrink=True), Column("mechanism", is_name=True))
_LISTED: Final = (*_NAME, Column("iterations", is_number=True))
_CHANGE: Final = (*_NAME, *STATUS_COLUMNS)
COLUMNS: Final = {"list": _LISTED, "set": _CHANGE, "delete": _CHANGE}
"""The columns of each action."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `users` with its actions."""
    actions = add_subject(
        commands,
        "users",
        "list, set and delete SCRAM credentials",
        "Lists, sets and deletes the SCRAM credentials of users (KIP-554). Passwords are salted and hashed here.",
    )
    parser = add_action(actions, common, "list", run_list, "List the credentials of users.")
    parser.add_argument("users", nargs="*", metavar="USER", help="default: all users with a credential")
    parser = add_action(
        actions,
        common,
        "set",
        run_set,
        "Set the password of a user. It is asked for on a terminal, and is otherwise the first line of standard input.",
    )
    parser.add_argument("user", metavar="USER", help="the name of a user")
    _add_mechanism(parser)
    parser.add_argument(
        "--iterations", type=positive, default=ITERATIONS, metavar="N", help="4096 (default) to 16384"
    )
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="the first line of a file instead")
    parser = add_action(
        actions, common, "delete", run_delete, "Delete the credentials of users for a mechanism."
    )
    parser.add_argument("users", nargs="+", metavar="USER", help="the names of users")
    _add_mechanism(parser)


def _add_mechanism(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mechanism", choices=MECHANISMS, default=MECHANISMS[0], help="(default: %(default)s)"
    )


async def run_list(options: argparse.Namespace) -> int:
    """List the credentials of users."""
    report = Report(options)
    async with opened_admin(options) as admin:
        found = await admin.users.describe(list(dict.fromkeys(options.users)) or None)
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, credentials in sorted(found.values_by_name.items())
        for mechanism, iterations in sorted(credentials.items())
    ]
    report.rows(_LISTED, rows)
    report.errors(found.errors)
    return report.exit_code


async def run_set(options: argparse.Namespace) -> int:
    """Set the password of a user."""
    from asyncgroup.admin import UserScramCredentialUpsertion
    from asyncgroup.secret import Secret

    password = Secret(_password(options))
    report = Report(options)
    change = UserScramCredentialUpsertion(options.user, password, options.mechanism, options.iterations)
    async with opened_admin(options) as admin:
        altered = await admin.users.alter([change])
    rows = status_rows(
        [(options.user, options.mechanism)],
        altered.errors,
        "set",
        lambda each: {"user": each[0], "mechanism": each[1]},
    )
    report.rows(_CHANGE, rows)
    report.errors(altered.errors)
    return report.exit_code


def _password(options: argparse.Namespace) -> str:
    """Return the password; exit with a usage error if there is none, or if the two that were typed differ."""
    if options.password_file is not None:
        try:
            with options.password_file.open(encoding="utf-8") as file:
                found = str(file.readline(MAX_PASSWORD))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not valid UTF-8"
            options.usage.error(f"--password-file {options.password_file}: {reason}")
    elif sys.stdin is not None and sys.stdin.isatty():
        found = getpass.getpass(f"password of {options.user}: ")
        if found != getpass.getpass("again: "):
            options.usage.error("the two passwords differ")
    else:
        found = "" if sys.stdin is None else sys.stdin.readline(MAX_PASSWORD)
    if not (password := found.rstrip("\r\n")):
        options.usage.error("the password is empty: give it on standard input, or with --password-file")
    return password


async def run_delete(options: argparse.Namespace) -> int:
    """Delete the credentials of users."""
    from asyncgroup.admin import UserScramCredentialDeletion

    report = Report(options)
    names = [(user, options.mechanism) for user in dict.fromkeys(options.users)]
    async with opened_admin(options) as admin:
        altered = await admin.users.alter([UserScramCredentialDeletion(*name) for name in names])
    rows = status_rows(names, altered.errors, "deleted", lambda each: {"user": each[0], "mechanism": each[1]})
    report.rows(_CHANGE, rows)
    report.errors(altered.errors)
    return report.exit_code
