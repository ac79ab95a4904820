"""Helpers of all benchmarks: command-line options, a Kafka broker, child processes and tables."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from asyncgroup import AsyncGroupError
from asyncgroup.testing.apache_kafka import KAFKA_VERSION, ApacheKafka
from benchmarks.machine import NOT_INSTALLED, Conditions, machine, versions

__all__ = [
    "ClientFailed",
    "add_number",
    "choose",
    "console_for_tables",
    "installed",
    "kafka",
    "measure_cases",
    "options_parser",
    "positive_int",
    "positive_ints",
    "print_report",
    "progress_on",
    "run_process",
    "run_to_end",
    "run_with_kafka",
    "run_worker",
    "show_footer",
    "show_table",
    "started_process",
    "wrap",
]

T = TypeVar("T")

ROOT: Final = Path(__file__).parent.parent
WIDTH: Final = 132
"""Columns of a table if standard output is not a terminal."""
WRAP_WIDTH: Final = 118
"""Columns of the text below a table."""


class ClientFailed(Exception):
    """A measured process failed; the message contains its output."""


def positive_int(text: str) -> int:
    """Parse a command-line argument that must be an integer, 1 or more; underscores may group its digits."""
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def positive_ints(text: str) -> list[int]:
    """Parse a command-line argument that must be integers, 1 or more, separated by commas."""
    return [positive_int(number.strip()) for number in text.split(",")]


def add_number(parser: argparse.ArgumentParser, option: str, default: float, what: str) -> None:
    """Add an option for a number: an integer, 1 or more, if `default` is one, else a float."""
    kind = positive_int if isinstance(default, int) else float
    parser.add_argument(option, type=kind, default=default, help=f"{what} (%(default)s)")


def choose(parser: argparse.ArgumentParser, option: str, text: str, names: list[str]) -> list[str]:
    """Return the names listed in `text` (comma-separated), all if it is empty; exit with an error for unknown names."""
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"{option} {','.join(unknown)}: not among {', '.join(names)}")
    return [name for name in names if name in wanted or not wanted]


def options_parser(
    name: str, description: str | None, rounds: int, *, external: bool = True
) -> argparse.ArgumentParser:
    """Create a parser with the options of all benchmarks; `external` adds `--bootstrap-servers`."""
    what = (description or "").removeprefix("The command: ")  # the description is a module's docstring
    parser = argparse.ArgumentParser(f"python -m benchmarks {name}", description=what[:1].upper() + what[1:])
    parser.set_defaults(kafka_properties={})  # of the Kafka that the benchmark starts
    add_number(parser, "--rounds", rounds, "measurements of each")
    parser.add_argument("--only", default="", help="clients to measure, comma-separated")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON instead of a table")
    parser.add_argument(
        "--quick", action="store_true", help="a short run with little data, to check that it works"
    )
    if external:
        parser.add_argument("--bootstrap-servers", help="use a running Kafka instead of starting one")
    return parser


def installed(clients: Mapping[str, str], console: Console) -> tuple[dict[str, str], list[str]]:
    """Return the versions of the clients of some cases, and the cases whose client is installed; print the others."""
    used = versions(clients.values())
    if missing := sorted({client for client in clients.values() if used[client] == NOT_INSTALLED}):
        console.print(f"left out, not installed: {', '.join(missing)}", style="yellow")
    return used, [name for name, client in clients.items() if client not in missing]


def run_to_end(work: Coroutine[Any, Any, T], console: Console) -> T:
    """Return the result of a benchmark; if it fails, print the error and exit with 1, after Ctrl-C exit with 130."""
    try:
        return asyncio.run(work)
    except (ClientFailed, AsyncGroupError) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def run_with_kafka(
    run: Callable[[str, argparse.Namespace, Progress], Coroutine[Any, Any, T]],
    options: argparse.Namespace,
    console: Console,
) -> T:
    """Run a benchmark that takes the addresses of one Kafka, with a progress bar; see `run_to_end`."""

    async def work() -> T:
        with progress_on(console) as progress:
            async with kafka(options.bootstrap_servers, progress, options.kafka_properties) as servers:
                return await run(servers, options, progress)

    return run_to_end(work(), console)


def measure_cases(
    run: Callable[[str, argparse.Namespace, Progress], Coroutine[Any, Any, T]],
    options: argparse.Namespace,
    clients: Mapping[str, str],
    in_go: Mapping[str, str] | None = None,
) -> tuple[Conditions, T]:
    """Measure `options.cases`, without those whose client is not installed, on one Kafka; see `run_with_kafka`.

    `clients` has the client of each case, `in_go` the version of each client that is not a Python package.
    """
    others = in_go or {}
    console = Console(stderr=True)
    started = machine()
    packages = {name: clients[name] for name in options.cases if clients[name] not in others}
    used, found = installed(packages, console)
    options.cases = [name for name in options.cases if name in found or clients[name] in others]
    used |= {client: others[client] for client in map(clients.__getitem__, options.cases) if client in others}
    used["Apache Kafka"] = "of --bootstrap-servers" if options.bootstrap_servers else KAFKA_VERSION
    measurements = run_with_kafka(run, options, console)
    return Conditions(started, used), measurements


def print_report(name: str, settings: Mapping[str, Any], conditions: Conditions, **figures: Any) -> None:
    """Print the figures of a benchmark as JSON."""
    about = {"settings": settings, "machine": conditions.machine, "versions": conditions.versions}
    print(json.dumps({"benchmark": name, **about, **figures}, indent=2))


def progress_on(console: Console) -> Progress:
    """Create a progress bar that is erased at the end."""
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


@asynccontextmanager
async def kafka(
    servers: str | None, progress: Progress, properties: Mapping[str, int] | None = None, nodes: int = 1
) -> AsyncIterator[str]:
    """Yield bootstrap servers: `servers` if given, else those of an Apache Kafka with this number of nodes that runs until the context ends."""
    if servers:
        yield servers
        return
    # the broker must not be the bottleneck: Java's default garbage collector and compiler, and a large heap
    task = progress.add_task("starting Apache Kafka", total=None)
    async with ApacheKafka(nodes, heap="1g", java_options=(), properties=properties) as cluster:
        progress.remove_task(task)
        yield cluster.bootstrap_servers


@asynccontextmanager
async def started_process(*command: str, limit: int = 1 << 16) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process with pipes for its standard streams, in the repository's root; kill it when the context ends.

    `limit` is the longest line, in bytes, that can be read from it.
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
    """Run a command and return the JSON object that it prints last; raise ClientFailed after `limit` seconds."""
    async with started_process(*command) as process:
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
    """Run `module:function` with settings in a separate Python process (`benchmarks.worker`)."""
    command = (sys.executable, "-m", "benchmarks.worker", function, json.dumps(settings))
    return await run_process(function, command, limit)


def console_for_tables() -> Console:
    """Return a console for standard output, `WIDTH` columns wide if it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def show_table(title: str, columns: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]) -> None:
    """Print rows in groups. The first column is text, the others are numbers; rows of asyncgroup are bold."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for group in groups:
        for row in group:
            table.add_row(*row, style="bold" if row[0].startswith("asyncgroup") else None)
        table.add_section()
    console_for_tables().print(table)


def wrap(text: str) -> str:
    """Wrap a caption to lines of `WRAP_WIDTH` columns."""
    return textwrap.fill(text, WRAP_WIDTH, break_on_hyphens=False)


def show_footer(conditions: Conditions, caption: str = "") -> None:
    """Print what was not measured and why, the caption of the last table, the versions of the software, the machine."""
    machine = "{python}, {system}, {processor}, {cores} cores, load at the start {load}"
    lines = [f"{name}: not measured, {reason}" for name, reason in conditions.missing.items()]
    lines += [caption] if caption else []
    lines += [
        ", ".join(f"{name} {number}" for name, number in conditions.versions.items()),
        machine.format_map(conditions.machine),
    ]
    for line in lines:
        console_for_tables().print(line, markup=False, highlight=False)
