"""The command: each round starts the brokers again, and each client reads from and writes to all of them in turn."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from benchmarks.broker.clients import CLIENTS, Settings
from benchmarks.broker.costs import COST_CASES, measure_cost
from benchmarks.broker.figures import Cost, Rate, show, summarize_costs, summarize_rates
from benchmarks.broker.load import load
from benchmarks.broker.servers import KFAKE, SERVERS, Server, is_compatible, started_server
from benchmarks.common import (
    add_number,
    choose,
    options_parser,
    progress_on,
    run_to_end,
    run_worker,
)
from benchmarks.go_program import GoProgramUnavailable
from benchmarks.machine import NOT_INSTALLED, Conditions, machine, versions

__all__ = ["main", "parse", "run"]

KINDS: Final = ("read", "write")
CASES: Final = (*KINDS, *COST_CASES)
READ, WRITTEN, WIDE = "read", "written", "wide"
MOCK_BYTES: Final = 4_500_000
"""Bytes of a partition that librdkafka's mock certainly keeps: it has 5 MiB, including the batch headers."""
OVERHEAD: Final = 24
"""Bytes of a record in addition to its value: key, lengths, deltas."""
START_LIMIT: Final = 30.0
"""Seconds for a process in addition to its measurement: imports, connecting, joining, closing."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("broker", __doc__, rounds=3)
    add_number(parser, "--records", 600_000, "records that each client reads and writes")
    add_number(parser, "--size", 100, "bytes of each value")
    add_number(parser, "--partitions", 20, "partitions of each topic")
    add_number(parser, "--limit", 20.0, "seconds after which a reader stops")
    parser.add_argument("--servers", default="", help=f"brokers, comma-separated: {', '.join(SERVERS)}")
    parser.add_argument("--cases", default="", help=f"comma-separated: {', '.join(CASES)}")
    add_number(parser, "--members", 1000, "members of the large group")
    add_number(parser, "--groups", 100, "idle groups")
    add_number(parser, "--group-members", 10, "members of each idle group")
    add_number(parser, "--interval", 3.0, "seconds between heartbeats of idle groups")
    add_number(parser, "--seconds", 9.0, "seconds for which idle groups are measured")
    options = parser.parse_args(arguments)
    if options.bootstrap_servers:
        parser.error("--bootstrap-servers: this benchmark starts its own brokers")
    if options.quick:
        options.records, options.partitions, options.rounds = 6_000, 4, 1
        options.members, options.groups, options.seconds = 50, 5, 1.0
    options.clients = choose(parser, "--only", options.only, list(CLIENTS))
    options.servers = choose(parser, "--servers", options.servers, list(SERVERS))
    options.cases = choose(parser, "--cases", options.cases, list(CASES))
    share = -(-options.records // options.partitions) * (options.size + OVERHEAD)
    if "librdkafka-mock" in options.servers and "read" in options.cases and share > MOCK_BYTES:
        parser.error(
            f"{share:,} bytes in a partition: librdkafka's mock keeps {MOCK_BYTES:,}; use more --partitions"
        )
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    console = Console(stderr=True)
    started = machine()
    distributions = [*options.clients, *(d for name in options.servers if (d := SERVERS[name].distribution))]
    used = versions(distributions)
    missing = {name: NOT_INSTALLED for name in options.clients if used[name] == NOT_INSTALLED}
    options.clients = [name for name in options.clients if name not in missing]
    if used.get("confluent-kafka") == NOT_INSTALLED and "librdkafka-mock" in options.servers:
        missing["librdkafka-mock"] = "confluent-kafka is not installed"
        options.servers.remove("librdkafka-mock")
    rates, costs = run_to_end(_measure_all(options, console, missing), console)
    if "kfake" in options.servers:
        used["kfake"] = KFAKE.version()
    if options.json:
        print(json.dumps(_report(options, rates, costs, Conditions(started, used, missing)), indent=2))
    else:
        show(options, rates, costs, Conditions(started, used, missing))
    return 0 if rates or costs else 1


def _report(
    options: argparse.Namespace, rates: Sequence[Rate], costs: Sequence[Cost], conditions: Conditions
) -> dict[str, Any]:
    keys = (
        "records",
        "size",
        "partitions",
        "members",
        "groups",
        "group_members",
        "interval",
        "seconds",
        "rounds",
    )
    return {
        "benchmark": "broker",
        "settings": {key: getattr(options, key) for key in keys},
        "machine": conditions.machine,
        "versions": conditions.versions,
        "missing": conditions.missing,
        "rates": [asdict(each) for each in rates],
        "costs": [asdict(each) for each in costs],
        "rate_summaries": [each._asdict() for each in summarize_rates(rates)],
        "cost_summaries": [each._asdict() for each in summarize_costs(costs)],
    }


async def _measure_all(
    options: argparse.Namespace, console: Console, missing: dict[str, str]
) -> tuple[list[Rate], list[Cost]]:
    with progress_on(console) as progress:
        program = None
        if "kfake" in options.servers:
            task = progress.add_task("building kfake", total=None)
            try:
                program = await KFAKE.build()
            except GoProgramUnavailable as error:
                missing["kfake"] = str(error)
                options.servers.remove("kfake")
            progress.remove_task(task)
        return await run(options, program, progress)


async def run(
    options: argparse.Namespace, program: Path | None, progress: Progress
) -> tuple[list[Rate], list[Cost]]:
    """Measure every client at every broker, and every cost, `rounds` times; `program` is the path of kfake's program."""
    rates: list[Rate] = []
    costs: list[Cost] = []
    cost_cases = [name for name in COST_CASES if name in options.cases]
    kinds = [name for name in KINDS if name in options.cases]
    total = options.rounds * len(options.servers) * (len(options.clients) * len(kinds) + len(cost_cases))
    task = progress.add_task("", total=total)
    topics = {READ: options.partitions, WRITTEN: options.partitions, WIDE: options.members}
    for index in range(1, options.rounds + 1):
        async with AsyncExitStack() as stack:
            servers = []
            for name in options.servers:
                servers.append(await stack.enter_async_context(started_server(name, topics, program)))
                if "read" in kinds:
                    progress.update(task, description=f"round {index}: loading {name}")
                    await load(
                        servers[-1].bootstrap_servers, READ, options.partitions, options.records, options.size
                    )
            # measurements that are compared run directly after each other
            for kind, client in [(kind, client) for kind in kinds for client in options.clients]:
                for server in servers:
                    if not is_compatible(client, server.name):
                        continue
                    progress.update(task, description=f"round {index}: {client} {kind}s {server.name}")
                    rates.append(await measure_rate(kind, client, server, options, index))
                    progress.advance(task)
            for case in cost_cases:
                for server in servers:
                    progress.update(task, description=f"round {index}: {case} {server.name}")
                    found = await measure_cost(case, server, options)
                    costs += [
                        Cost(what=what, server=server.name, round=index, value=value)
                        for what, value in found.items()
                    ]
                    progress.advance(task)
    return rates, costs


async def measure_rate(
    kind: str, client: str, server: Server, options: argparse.Namespace, index: int
) -> Rate:
    """Measure one client that reads or writes at one broker."""
    share = -(-options.records // options.partitions)
    settings = Settings(
        bootstrap_servers=server.bootstrap_servers,
        topic=READ if kind == "read" else WRITTEN,
        partitions=options.partitions,
        records=share * options.partitions,
        size=options.size,
        limit=options.limit,
    )
    cpu = await server.cpu()
    function = CLIENTS[client][KINDS.index(kind)]
    # a writer has no time limit: it writes all records
    figures = await run_worker(function, asdict(settings), 3 * options.limit + START_LIMIT)
    millions = settings.records / 1e6
    return Rate(
        kind=kind,
        client=client,
        server=server.name,
        round=index,
        rate=figures["records"] / figures["seconds"],
        client_cpu=figures["cpu_seconds"] / figures["records"] * 1e6,
        server_cpu=(await server.cpu() - cpu) / millions,
    )
