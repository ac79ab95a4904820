"""Helpers that the administrative commands share: their options, the connection, and how rows and errors are printed."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asyncgroup.cli.advice import with_advice
from asyncgroup.cli.common import cancel_on_sigterm, seconds
from asyncgroup.cli.connection_options import add_connection_options, connection_options
from asyncgroup.cli.printing import is_terminal
from asyncgroup.cli.tables import Column, Row, json_line, name_of, table_lines
from asyncgroup.config import ClientConfig
from asyncgroup.error_types import short_error_type
from asyncgroup.errors import NoBrokersError
from asyncgroup.escaping import printable

if TYPE_CHECKING:
    from asyncgroup.admin import Admin
    from asyncgroup.cli.common import Commands
    from asyncgroup.cluster import Cluster

__all__ = [
    "STATUS_COLUMNS",
    "Report",
    "add_action",
    "add_dry_run",
    "add_subject",
    "comma_separated",
    "connected",
    "node_problems",
    "opened_admin",
    "status_rows",
]

DEFAULT_TIMEOUT: Final = 30.0
"""Seconds in which a command repeats its requests."""

K = TypeVar("K")

STATUS_COLUMNS: Final = (Column("status"), Column("error", can_shrink=True))
"""The last columns of a change: what happened, and Kafka's name of the error."""


# --- arguments --------------------------------------------------------------------------------------------------------


def add_subject(commands: Commands, name: str, help_text: str, description: str) -> Commands:
    """Add a command whose actions are subcommands, and return these."""
    parser = commands.add_parser(name, help=help_text, description=description)
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def add_action(
    actions: Commands,
    common: argparse.ArgumentParser,
    name: str,
    run: Callable[[argparse.Namespace], Awaitable[int]],
    description: str,
    *,
    has_wide: bool = False,
) -> argparse.ArgumentParser:
    """Add an action with the options for the connection and the output; the first sentence of its description is its help."""
    short = description.partition(". ")[0].rstrip(".")
    parser = actions.add_parser(
        name, parents=[common], help=short[:1].lower() + short[1:], description=description
    )
    add_connection_options(parser)
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT,
        metavar="S",
        help=f"seconds for the connection, and then for repeating requests (default: {DEFAULT_TIMEOUT:g})",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print a JSON object for each row")
    output.add_argument("-q", "--quiet", action="store_true", help="print only the names")
    if has_wide:
        parser.add_argument(
            "--wide", action="store_true", help="print the columns that are left out by default"
        )
    parser.set_defaults(run=run, wide=False, has_advice=True)
    return parser


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add --dry-run."""
    parser.add_argument(
        "--dry-run", action="store_true", help="let Kafka check the request, and change nothing"
    )


def comma_separated(text: str) -> list[str]:
    """Argument type: several words separated by commas."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a word, or several separated by commas")
    return words


# --- the connection ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[tuple[Cluster, Admin]]:
    """Connect, and yield the cluster with its Admin. SIGTERM cancels the block. Raises ConfigError, NoBrokersError, Terminated."""
    from asyncgroup.admin import Admin
    from asyncgroup.cluster import Cluster

    given = connection_options(options, client_id="asyncgroup-admin")
    servers = given.require_servers(options.usage)
    config = given.config(ClientConfig)
    with cancel_on_sigterm():
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(options.timeout):
                    cluster = await stack.enter_async_context(Cluster(servers, config))
            except TimeoutError:
                raise NoBrokersError(
                    f"no broker of {servers} answered within {options.timeout:g} s"
                ) from None
            yield cluster, await stack.enter_async_context(Admin(cluster, timeout=options.timeout))


@asynccontextmanager
async def opened_admin(options: argparse.Namespace) -> AsyncIterator[Admin]:
    """Connect as `connected`, and yield the Admin."""
    async with connected(options) as (_, admin):
        yield admin


# --- output -----------------------------------------------------------------------------------------------------------


class Report:
    """Prints rows to standard output and errors to standard error, and knows the exit code."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.exit_code = 0
        """1 as soon as there was an error."""
        self._command = f"{options.command} {options.action}" if "action" in options else str(options.command)
        self._is_json = bool(options.json)
        self._is_quiet = bool(options.quiet)
        self._is_wide = bool(options.wide)
        self._on_terminal = is_terminal()

    def rows(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        """Print the rows; a table without rows is not printed."""
        if self._is_json:
            for row in rows:
                self._print(json_line(columns, row))
        elif self._is_quiet:
            for name in dict.fromkeys(name_of(columns, row) for row in rows if not row.get("error")):
                self._print(name)
        elif all_rows := list(rows):
            for line in table_lines(columns, all_rows, width=self._width(), wide=self._is_wide):
                self._print(line)
        self._flush()

    def text(self, text: str) -> None:
        """Print text as it is."""
        print(text, end="")
        self._flush()

    def _print(self, line: str) -> None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        # a terminal without Unicode gets escapes
        print(line.encode(encoding, "backslashreplace").decode(encoding))

    def _flush(self) -> None:
        if sys.stdout is not None:  # the program may have been started without one (`>&-`)
            sys.stdout.flush()  # a reader that has closed the pipe (`| head`) is an error here, not at exit

    def _width(self) -> int | None:
        return shutil.get_terminal_size().columns if self._on_terminal else None

    def note(self, text: str) -> None:
        """Print a line to standard error that is no error; not with `--quiet`."""
        if not self._is_quiet:
            print(f"asyncgroup {self._command}: {text}", file=sys.stderr)

    def error(self, error: Exception | str) -> None:
        """Print an error as one line with what to do, if that is known; the exit code becomes 1."""
        self.exit_code = 1
        text = error if isinstance(error, str) else with_advice(error)
        print(f"asyncgroup {self._command}: {printable(text)}", file=sys.stderr)

    def errors(self, errors: Mapping[Any, Exception]) -> None:
        """Print the errors, each once: many names may share the error of a broker that did not answer."""
        for text in dict.fromkeys(map(with_advice, errors.values())):
            self.error(text)

    def node_errors(self, errors: Mapping[int, Exception]) -> None:
        """Print the errors of the nodes whose rows are missing: they did not answer, or with an error."""
        for problem in node_problems(errors):
            self.error(problem)


def node_problems(errors: Mapping[int, Exception]) -> list[str]:
    """Return a sentence for each node whose rows are missing."""
    return [f"the rows of node {node} are missing: {with_advice(error)}" for node, error in errors.items()]


def status_rows(
    names: Iterable[K], errors: Mapping[K, Exception], done: str, row: Callable[[K], Row]
) -> list[Row]:
    """Return a row for each name of a change: its own columns (`row`), then `STATUS_COLUMNS`; `done` is the status of those without an error."""
    rows: list[Row] = []
    for name in names:
        error = errors.get(name)
        shown = None if error is None else short_error_type(error)
        rows.append({**row(name), "status": done if error is None else "failed", "error": shown})
    return rows
