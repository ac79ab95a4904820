"""What every benchmark needs: its options, a broker, a process for each client, and the report."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from asyncgroup.testing.apache_kafka import ApacheKafka

__all__ = [
    "ClientFailed",
    "chosen",
    "console_for_tables",
    "count",
    "foot",
    "kafka",
    "options_parser",
    "paragraph",
    "progress_on",
    "run_process",
    "run_worker",
    "show_table",
    "worker",
]

ROOT: Final = Path(__file__).parent.parent
WIDTH: Final = 132
"""Columns of a table where the output is no terminal."""
PARAGRAPH: Final = 118


class ClientFailed(Exception):
    """A measured process failed; the message has what it printed."""


def count(text: str) -> int:
    """An argument that is a number of at least one; underscores may group its digits."""
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def chosen(parser: argparse.ArgumentParser, option: str, text: str, names: list[str]) -> list[str]:
    """Those of `names` that `text` lists with commas, all if it is empty; ends the program with an error for others."""
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"{option} {','.join(unknown)}: not among {', '.join(names)}")
    return [name for name in names if name in wanted or not wanted]


def options_parser(
    name: str, description: str | None, rounds: int, *, external: bool = True
) -> argparse.ArgumentParser:
    """The options that every benchmark has; `external` if it can run on a Kafka that runs already."""
    what = (description or "").removeprefix("The command: ")  # as a module says it
    parser = argparse.ArgumentParser(f"python -m benchmarks {name}", description=what[:1].upper() + what[1:])
    parser.add_argument("--rounds", type=count, default=rounds, help="measurements of each (%(default)s)")
    parser.add_argument("--only", default="", help="clients to measure, with commas")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="little of all: does it work at all?")
    if external:
        parser.add_argument(
            "--bootstrap-servers", help="a Kafka that runs already; without it one is started"
        )
    return parser


def progress_on(console: Console) -> Progress:
    """A progress bar that leaves nothing behind."""
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


@asynccontextmanager
async def kafka(servers: str | None, progress: Progress) -> AsyncIterator[str]:
    """The bootstrap servers of a broker: `servers` if given, else one that lives as long as the context."""
    if servers:
        yield servers
        return
    # the broker must not be the slower end: Java's own choices of collector and compiler, and room for its pages
    task = progress.add_task("starting Apache Kafka", total=None)
    async with ApacheKafka(heap="1g", java_options=()) as cluster:
        progress.remove_task(task)
        yield cluster.bootstrap_servers


@asynccontextmanager
async def worker(*command: str, limit: int = 1 << 16) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with pipes at all three ends, started in the repository's root; killed if it outlives the context.

    `limit` is the longest line in bytes that may be read from it.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, limit=limit
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def run_process(name: str, command: Sequence[str], limit: float) -> dict[str, Any]:
    """The figures (a JSON object) that a command prints last; raises ClientFailed after `limit` seconds."""
    async with worker(*command) as process:
        try:
            async with asyncio.timeout(limit):
                out, err = await process.communicate()
        except TimeoutError:
            raise ClientFailed(f"{name} took longer than {limit:g} s") from None
    if process.returncode or not out.strip():
        raise ClientFailed(f"{name} ended with exit code {process.returncode}:\n{err.decode()}")
    figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    return figures


async def run_worker(function: str, settings: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """Run `module:function` with settings in a Python of its own (`benchmarks.worker`)."""
    command = (sys.executable, "-m", "benchmarks.worker", function, json.dumps(settings))
    return await run_process(function, command, limit)


def console_for_tables() -> Console:
    """Standard output, wide enough for a table where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def show_table(title: str, columns: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]) -> None:
    """Print rows in groups; the first column is text, all others numbers; our own rows are bold."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for group in groups:
        for row in group:
            table.add_row(*row, style="bold" if row[0].startswith("asyncgroup") else None)
        table.add_section()
    console_for_tables().print(table)


def paragraph(text: str) -> str:
    """A caption in lines that stand below a table."""
    return textwrap.fill(text, PARAGRAPH, break_on_hyphens=False)


def foot(versions: Mapping[str, str], machine: Mapping[str, str]) -> str:
    """The lines that say what was used and where."""
    return (
        ", ".join(f"{name} {number}" for name, number in versions.items())
        + f"\n{machine['python']}, {machine['system']}, {machine['processor']}, {machine['cores']} cores, "
        f"load at the start {machine['load']}"
    )
