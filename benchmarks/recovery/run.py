"""The command: three brokers, one fault after another, all clients at the same time."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.progress import Progress

from asyncgroup import ClientConfig, Cluster
from asyncgroup.testing.apache_kafka import KAFKA_VERSION, ApacheKafka
from benchmarks.common import (
    add_number,
    choose,
    options_parser,
    print_report,
    progress_on,
    run_to_end,
    show_footer,
    show_table,
)
from benchmarks.machine import NOT_INSTALLED, Conditions, machine, versions
from benchmarks.recovery.faults import FAULTS
from benchmarks.recovery.figures import CLIENTS, COLUMNS, Measurement, caption, rows, summarize
from benchmarks.recovery.scenario import Load, Scenario

__all__ = ["main", "measure", "parse"]

SETTLE: Final = 4.0
NODES: Final = 3
SETTINGS: Final = ("rate", "partitions", "heartbeat", "session_timeout", "rounds")
PROPERTIES: Final = {"min.insync.replicas": 2}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("recovery", __doc__, rounds=3, external=False)
    add_number(parser, "--rate", 600, "records a second")
    add_number(parser, "--partitions", 8, "partitions of the topic")
    add_number(parser, "--heartbeat", 1.0, "seconds between two")
    add_number(parser, "--session-timeout", 10.0, "seconds")
    parser.add_argument("--faults", default="", help=f"comma-separated: {', '.join(FAULTS)}")
    options = parser.parse_args(arguments)
    options.settle = SETTLE
    if options.quick:
        options.settle, options.rounds = 1.0, 1
        options.faults = options.faults or "leader-moved"
    options.faults = choose(parser, "--faults", options.faults, list(FAULTS))
    options.clients = choose(parser, "--only", options.only, list(CLIENTS))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    console = Console(stderr=True)
    started = machine()
    used = versions(CLIENTS)
    if used["confluent-kafka"] == NOT_INSTALLED:
        console.print(
            "confluent-kafka is not installed: its producer is needed to time acknowledgements", style="red"
        )
        return 1
    options.clients = [client for client in options.clients if used[client] != NOT_INSTALLED]
    used["Apache Kafka"] = KAFKA_VERSION
    measurements = run_to_end(_measure_all(options, console), console)
    summaries = summarize(measurements)
    settings = {key: getattr(options, key) for key in SETTINGS}
    if options.json:
        print_report(
            "recovery",
            settings,
            Conditions(started, used),
            measurements=[asdict(each) for each in measurements],
            summaries=[asdict(each) for each in summaries],
        )
    else:
        show_table("Recovery after a fault", COLUMNS, [rows(summaries, fault) for fault in options.faults])
        show_footer(Conditions(started, used), caption(settings))
    return 0 if measurements else 1


async def _measure_all(options: argparse.Namespace, console: Console) -> list[Measurement]:
    with progress_on(console) as progress:
        task = progress.add_task("starting three nodes of Apache Kafka", total=None)
        async with ApacheKafka(NODES, properties=PROPERTIES, java_options=()) as kafka:
            progress.remove_task(task)
            return await measure(kafka, options, progress)


async def measure(kafka: ApacheKafka, options: argparse.Namespace, progress: Progress) -> list[Measurement]:
    """Run every fault `rounds` times, each with a new topic and new groups."""
    load = Load(
        partitions=options.partitions,
        rate=options.rate,
        heartbeat=options.heartbeat,
        session_timeout=options.session_timeout,
        settle=options.settle,
    )
    steps = [(index, name) for index in range(1, options.rounds + 1) for name in options.faults]
    task = progress.add_task("", total=len(steps))
    found: list[Measurement] = []
    async with Cluster(kafka.bootstrap_servers, ClientConfig(client_id="benchmark")) as cluster:
        for index, name in steps:

            def say(what: str, index: int = index, name: str = name) -> None:
                progress.update(task, description=f"{index}: {name}, {what}")

            outcome = await Scenario(kafka, cluster, FAULTS[name], load).run(options.clients, say)
            found += [Measurement.of(name, client, index, outcome) for client in options.clients]
            progress.advance(task)
    return found
