"""The program `asyncgroup`: parse arguments, run a command, return its exit code, print errors as one line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

from asyncgroup.cli import (
    acls,
    broker,
    cluster,
    completion,
    configs,
    consume,
    demo,
    dlq,
    groups,
    health,
    offsets,
    produce,
    quotas,
    topics,
    transactions,
    users,
    work,
)
from asyncgroup.cli.advice import with_advice
from asyncgroup.cli.common import INTERRUPTED, Terminated
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.escaping import printable
from asyncgroup.version import __version__

__all__ = ["ADMINISTRATION", "exit_code_of", "main"]

ADMINISTRATION: Final = {
    "topics": topics,
    "configs": configs,
    "groups": groups,
    "offsets": offsets,
    "transactions": transactions,
    "acls": acls,
    "users": users,
    "quotas": quotas,
    "cluster": cluster,
    "health": health,
}
"""The commands of an operator; `COLUMNS` of each has the columns of its actions."""
COMMANDS: Final = (demo, broker, produce, consume, work, dlq, *ADMINISTRATION.values(), completion)
LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code: 0 success, 1 failure, 2 wrong arguments, 128 + n ended by signal n."""
    options = _parser().parse_args(arguments)
    as_json = getattr(options, "log_format", "text") == "json"
    _log_to_stderr(LEVELS[min(options.verbose, len(LEVELS) - 1)], as_json=as_json)
    try:
        return int(asyncio.run(options.run(options)))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated as signal:
        return signal.code
    except BrokenPipeError:
        _discard_output()
        return 0
    except (AsyncGroupError, OSError) as error:
        # an operator's command says what to do as well
        text = with_advice(error) if "has_advice" in options else str(error) or type(error).__name__
        return _report(error, text, options)
    except Exception as error:  # noqa: BLE001  the traceback is shown with -v only
        what = f"unexpected {type(error).__name__}: {error} (-v shows the traceback)"
        return _report(error, what, options)


@functools.cache  # tests parse many command lines, and it takes 10 ms
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="asyncgroup",
        description="Kafka consumer groups for asyncio: programs that read and write records, and the operator's commands. "
        "consume, dlq, produce and work also know Apache Pulsar.",
    )
    parser.add_argument("--version", action="version", version=f"asyncgroup {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="log what happens and show tracebacks; -vv logs details",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands, common)
    return parser


class _Stderr(logging.StreamHandler[Any]):
    """A handler that looks `sys.stderr` up for every line: a live table replaces it while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _log_to_stderr(level: int, *, as_json: bool) -> None:
    handler = _Stderr()
    if as_json:
        from asyncgroup.telemetry import JsonLogFormatter

        handler.setFormatter(JsonLogFormatter())
    logging.basicConfig(level=level, format="asyncgroup: %(message)s", handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs every call into Java at lower levels


def _report(error: BaseException, text: str, options: argparse.Namespace) -> int:
    if options.verbose:
        traceback.print_exception(error)
    with contextlib.suppress(OSError):
        action = f" {options.action}" if "has_advice" in options and "action" in options else ""
        lines = "\n".join(map(printable, text.split("\n")))
        print(f"asyncgroup {options.command}{action}: {lines}", file=sys.stderr)
    if isinstance(error, OSError):
        _drop_unwritten_output()
    return exit_code_of(error, options)


def exit_code_of(error: BaseException, options: argparse.Namespace) -> int:
    """Return the exit code for an error: 2 for arguments of an operator's command whose check is left to Admin, else 1."""
    return 2 if isinstance(error, ConfigError) and "has_advice" in options else 1


def _drop_unwritten_output() -> None:
    """Drop what standard output cannot write, as to a full disk: Python would fail again at exit, with code 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _discard_output()


def _discard_output() -> None:
    """Redirect stdout to the null device: its reader has closed the pipe (`| head`), and Python flushes it on exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
