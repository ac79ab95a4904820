"""The command: in each round the same clients use an embedded Pulsar and an Apache Pulsar, each in its own process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Final
from uuid import uuid4

from rich.console import Console
from rich.progress import Progress

from asyncgroup.testing.apache_pulsar import PULSAR_VERSION, ApachePulsar
from benchmarks.broker.file_limit import raise_file_limit
from benchmarks.common import (
    ClientFailed,
    add_number,
    choose,
    options_parser,
    print_report,
    progress_on,
    run_to_end,
    run_worker,
    show_footer,
    show_table,
    started_process,
)
from benchmarks.figures import Spread
from benchmarks.machine import Conditions, machine
from benchmarks.pulsar_broker.crowd import CrowdSettings
from benchmarks.spark.process_tree import tree_cpu

__all__ = ["CASES", "SERVERS", "CrowdMeasurement", "main", "parse", "run", "show"]

EMBEDDED, APACHE = "embedded", "apache"
SERVERS: Final = (EMBEDDED, APACHE)
CASES: Final = ("one", "crowd")
LIMIT: Final = 600.0
"""Seconds for a measured process."""
START_LIMIT: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class CrowdMeasurement:
    """One case at one server in one round; `server_cpu` is None where the system does not provide it."""

    case: str
    server: str
    round: int
    deliveries: int
    connecting: float
    seconds: float
    cpu_seconds: float
    server_cpu: float | None

    @property
    def rate(self) -> float:
        """Messages delivered per second."""
        return self.deliveries / self.seconds


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("pulsar_broker", __doc__, rounds=3, external=False)
    parser.add_argument("--cases", default="", help=f"comma-separated: {', '.join(CASES)}")
    add_number(parser, "--messages", 100_000, "messages of the case one")
    add_number(
        parser,
        "--crowd-messages",
        8_000,
        "messages of the case crowd; each topic's subscriptions get its own",
    )
    add_number(parser, "--connections", 5_000, "connections of the crowd")
    add_number(parser, "--consumers", 1_000, "those of them that have a consumer; the others have a producer")
    add_number(parser, "--subscriptions", 500, "subscriptions of the crowd")
    add_number(parser, "--topics", 50, "topics of the crowd")
    add_number(parser, "--size", 100, "bytes of each value")
    options = parser.parse_args(arguments)
    if options.quick:
        options.messages, options.crowd_messages, options.rounds = 1_000, 80, 1
        options.connections, options.consumers, options.subscriptions, options.topics = 60, 20, 10, 2
    options.servers = choose(parser, "--only", options.only, list(SERVERS))
    options.cases = choose(parser, "--cases", options.cases, list(CASES))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    console = Console(stderr=True)
    started = machine()

    async def work() -> list[CrowdMeasurement]:
        with progress_on(console) as progress:
            return await run(options, progress)

    found = run_to_end(work(), console)
    conditions = Conditions(started, {"Apache Pulsar": PULSAR_VERSION}, {})
    if options.json:
        keys = ("messages", "crowd_messages", "connections", "consumers", "subscriptions", "topics", "size")
        settings = {key: getattr(options, key) for key in keys}
        print_report("pulsar_broker", settings, conditions, measurements=[asdict(each) for each in found])
    else:
        show(options, found, conditions)
    return 0 if found else 1


async def run(options: argparse.Namespace, progress: Progress) -> list[CrowdMeasurement]:
    """Measure each case at each server, `rounds` times."""
    raise_file_limit()
    found: list[CrowdMeasurement] = []
    task = progress.add_task("", total=options.rounds * len(options.servers) * len(options.cases))
    for index in range(1, options.rounds + 1):
        for server in options.servers:
            progress.update(task, description=f"round {index}: starting {server}")
            async with _SERVERS[server]() as (url, pid):
                for case in options.cases:
                    progress.update(task, description=f"round {index}: {case}, {server}")
                    found.append(await _measure(case, server, index, options, url, pid))
                    progress.advance(task)
    return found


async def _measure(
    case: str, server: str, index: int, options: argparse.Namespace, url: str, pid: int
) -> CrowdMeasurement:
    is_crowd = case == "crowd"
    settings = CrowdSettings(
        service_url=url,
        prefix=f"benchmark-{uuid4().hex[:12]}",
        topics=options.topics if is_crowd else 1,
        subscriptions=options.subscriptions if is_crowd else 1,
        consumers=options.consumers if is_crowd else 1,
        connections=options.connections if is_crowd else 2,
        messages=options.crowd_messages if is_crowd else options.messages,
        size=options.size,
    )
    before = tree_cpu(pid)
    figures = await run_worker("benchmarks.pulsar_broker.crowd:run", asdict(settings), LIMIT)
    after = tree_cpu(pid)
    used = None if before is None or after is None else after - before
    return CrowdMeasurement(
        case=case, server=server, round=index, deliveries=settings.deliveries, server_cpu=used, **figures
    )


@asynccontextmanager
async def _embedded() -> AsyncIterator[tuple[str, int]]:
    command = (sys.executable, "-m", "benchmarks.pulsar_broker.server_process")
    async with started_process(*command) as process:
        assert process.stdout is not None
        async with asyncio.timeout(START_LIMIT):
            line = await process.stdout.readline()
        if not line:
            raise ClientFailed("the embedded Pulsar has ended")
        yield line.decode().strip(), process.pid


@asynccontextmanager
async def _apache() -> AsyncIterator[tuple[str, int]]:
    async with ApachePulsar(heap="1g", direct_memory="1g", java_options=()) as pulsar:
        assert pulsar.pid is not None
        yield pulsar.service_url, pulsar.pid


_SERVERS: Final = {EMBEDDED: _embedded, APACHE: _apache}

_LEGEND: Final = """\
Medians over the rounds; ratio: to Apache Pulsar within a round. Rate: messages delivered and acknowledged per second. CPU: µs per
delivered message, of the server's process (with connecting) and of that of all clients. Connecting: seconds until all are connected."""


def show(options: argparse.Namespace, found: Sequence[CrowdMeasurement], conditions: Conditions) -> None:
    """Print the table."""
    rows = [[_row(case, server, found) for server in options.servers] for case in options.cases]
    columns = ("case", "server", "messages/s", "ratio", "range", "server CPU", "client CPU", "connecting")
    show_table(f"Pulsar brokers, {options.rounds} rounds", columns, rows)
    show_footer(conditions, _LEGEND)


def _row(case: str, server: str, found: Sequence[CrowdMeasurement]) -> list[str]:
    own = [each for each in found if (each.case, each.server) == (case, server)]
    base = {each.round: each.rate for each in found if (each.case, each.server) == (case, APACHE)}
    ratios = [each.rate / base[each.round] for each in own if each.round in base]
    ratio = Spread.of(ratios) if ratios else None
    used = [each.server_cpu / each.deliveries * 1e6 for each in own if each.server_cpu is not None]
    return [
        case,
        server,
        f"{Spread.of([each.rate for each in own]).median:,.0f}",
        "-" if ratio is None else f"{ratio.median:.2f}",
        "-" if ratio is None else f"{ratio.low:.2f}–{ratio.high:.2f}",
        f"{Spread.of(used).median:.1f}" if used else "-",
        f"{Spread.of([each.cpu_seconds / each.deliveries * 1e6 for each in own]).median:.1f}",
        f"{Spread.of([each.connecting for each in own]).median:.2f}",
    ]
