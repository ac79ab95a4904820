"""The command: the same scenario for every client in each round, with a new topic for each run."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.progress import Progress

from asyncgroup import AsyncGroupError, Cluster
from asyncgroup.testing.apache_kafka import KAFKA_VERSION
from benchmarks.common import (
    ClientFailed,
    console_for_tables,
    footer,
    kafka,
    options_parser,
    positive_int,
    progress_on,
    show_table,
)
from benchmarks.machine import NOT_INSTALLED, machine, versions
from benchmarks.member import Settings
from benchmarks.rebalance.figures import CASES, MODES, Measurement, caption, rows, summarize
from benchmarks.rebalance.scenario import Scenario, ScenarioPlan
from benchmarks.topic import Topic

__all__ = ["main", "parse", "run"]

SETTLE: Final = 2.5
COLUMNS: Final = (
    "client",
    "quiet",
    "one joins",
    "one leaves: others'",
    "its own",
    "twice",
    "lost",
    "records",
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("rebalance", __doc__, rounds=3)
    parser.add_argument("--rate", type=positive_int, default=800, help="records a second (%(default)s)")
    parser.add_argument(
        "--partitions", type=positive_int, default=16, help="partitions of the topic (%(default)s)"
    )
    parser.add_argument("--heartbeat", type=float, default=1.0, help="seconds between two (%(default)s)")
    parser.add_argument("--modes", default="", help=f"comma-separated: {', '.join(MODES)}")
    options = parser.parse_args(arguments)
    options.settle = SETTLE
    if options.quick:
        options.settle, options.rounds, options.heartbeat = 0.3, 1, 0.2
    options.modes = _chosen(options.modes, MODES)
    options.cases = _chosen(options.only, CASES)
    if not options.cases:
        parser.error(f"--only {options.only}: none of {', '.join(CASES)}")
    return options


def _chosen(text: str, names: Sequence[str] | Mapping[str, object]) -> list[str]:
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    return [name for name in names if not wanted or name in wanted]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    console = Console(stderr=True)
    started = machine()
    used = versions(CASES[name].client for name in options.cases)
    missing = sorted({n for name in options.cases if used[n := CASES[name].client] == NOT_INSTALLED})
    if missing:
        console.print(f"left out, not installed: {', '.join(missing)}", style="yellow")
        options.cases = [name for name in options.cases if CASES[name].client not in missing]
    used["Apache Kafka"] = "of --bootstrap-servers" if options.bootstrap_servers else KAFKA_VERSION
    try:
        measurements = asyncio.run(_measure_all(options, console))
    except (ClientFailed, AsyncGroupError) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    summaries = summarize(measurements)
    settings = {key: getattr(options, key) for key in ("rate", "partitions", "heartbeat", "rounds")}
    if options.json:
        report = {
            "benchmark": "rebalance",
            "settings": settings,
            "machine": started,
            "versions": used,
            "measurements": [asdict(each) for each in measurements],
            "summaries": [summary._asdict() for summary in summaries],
        }
        print(json.dumps(report, indent=2))
    else:
        groups = [
            [[f"heartbeats {mode}", *[""] * (len(COLUMNS) - 1)], *rows(summaries, mode)]
            for mode in options.modes
        ]
        show_table("One member joins, one leaves", COLUMNS, groups)
        line = console_for_tables().print
        line(caption(settings), highlight=False)
        line(footer(used, started), highlight=False)
    return 0 if measurements else 1


async def _measure_all(options: argparse.Namespace, console: Console) -> list[Measurement]:
    with progress_on(console) as progress:
        async with kafka(options.bootstrap_servers, progress) as servers:
            return await run(servers, options, progress)


async def run(servers: str, options: argparse.Namespace, progress: Progress) -> list[Measurement]:
    """Run every case in every mode `rounds` times, each with a new topic and a new group."""
    found: list[Measurement] = []
    steps = [
        (index, mode, case)
        for index in range(1, options.rounds + 1)
        for mode in options.modes
        for case in options.cases
    ]
    task = progress.add_task("", total=len(steps))
    async with Cluster(servers) as cluster:
        for index, mode, name in steps:
            case = CASES[name]
            topic = Topic(cluster, options.partitions, 0, 1)
            settings = Settings(
                bootstrap_servers=servers,
                group_id=topic.name,
                topic=topic.name,
                heartbeat=options.heartbeat,
                strategy=case.strategy,
                at_heartbeat=case.at_heartbeat,
            )
            plan = ScenarioPlan(
                partitions=options.partitions,
                rate=options.rate,
                settle=options.settle,
                spread=mode == "spread",
                delay=options.heartbeat * (index - 1) / options.rounds,
            )

            def say(what: str, name: str = name, mode: str = mode, index: int = index) -> None:
                progress.update(task, description=f"{index}: {name} {mode}, {what}")

            say("creating the topic")
            await topic.create()
            try:
                await topic.find_coordinator(topic.name)
                outcome = await Scenario(case.client, settings, plan).run(say)
            finally:
                await topic.remove([])
            found.append(Measurement.of(name, mode, index, outcome))
            progress.advance(task)
    return found
