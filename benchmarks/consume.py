"""Reading a topic in a consumer group: asyncgroup, aiokafka, confluent-kafka and kafka-python.

A topic is loaded once; then every client reads it in each round (A B C A B C …), each time in a new process and a new
group, with automatic commits and the same fetch sizes. The same with each number of partitions. `--shape` selects other
record batches than full ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.testing.apache_kafka import KAFKA_VERSION
from benchmarks.clients import CASES, Settings
from benchmarks.common import (
    ClientFailed,
    add_number,
    kafka,
    positive_ints,
    print_report,
    progress_on,
    run_process,
    run_to_end,
)
from benchmarks.figures import Measurement, summarize
from benchmarks.machine import NOT_INSTALLED, Conditions, machine, versions
from benchmarks.shapes import SHAPES, Shape
from benchmarks.table import show
from benchmarks.topic import Topic

__all__ = ["ClientFailed", "main", "measure", "progress_on", "run"]

SETTINGS: Final = ("records", "size", "partitions", "rounds", "nodes", "skew", "isolation")
"""Options that are printed with `--json`."""
START_LIMIT: Final = 60.0
"""Seconds for a process in addition to reading: imports, joining, closing."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks consume", description=__doc__)
    add_number(parser, "--records", 1_000_000, "records in the topic")
    add_number(parser, "--size", 200, "bytes of each value")
    parser.add_argument(
        "--partitions",
        type=positive_ints,
        default=[4, 200, 1000],
        help="partitions of the topics, comma-separated (4,200,1000)",
    )
    add_number(parser, "--rounds", 3, "measurements of each client")
    add_number(parser, "--limit", 15.0, "seconds after which a slow client is stopped")
    add_number(
        parser, "--nodes", 1, "nodes of the Kafka that is started, among which the partitions are divided"
    )
    parser.add_argument("--skew", action="store_true", help="half of all records are in the first partition")
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="isolation level of the consumers (%(default)s); no record is in a transaction",
    )
    parser.add_argument(
        "--only", default="", help=f"cases or clients to measure, comma-separated: {', '.join(CASES)}"
    )
    parser.add_argument(
        "--json", action="store_true", help="print every measurement as JSON instead of a table"
    )
    parser.add_argument("--bootstrap-servers", help="use a running Kafka instead of starting one")
    parser.add_argument(
        "--shape",
        default="full",
        help=f"record batches of the topic, comma-separated for one table each, or all: {', '.join(SHAPES)}",
    )
    options = parser.parse_args(arguments)
    names = list(SHAPES) if options.shape == "all" else options.shape.split(",")
    if options.bootstrap_servers and options.nodes > 1:
        parser.error("--nodes is for the Kafka that is started without --bootstrap-servers")
    if unknown := [name for name in names if name not in SHAPES]:
        parser.error(f"--shape {', '.join(unknown)}: none of {', '.join(SHAPES)}")
    if options.json and len(names) > 1:
        parser.error("--json prints one shape")
    options.shapes = names
    options.cases = choose(options.only)
    if not options.cases:
        parser.error(f"--only {options.only}: none of {', '.join(CASES)}")
    return options


def choose(only: str) -> list[str]:
    """Return the cases selected by `only`: names of cases, or the part before their dot; empty: all default ones."""
    names = {name.strip() for name in only.split(",") if name.strip()}
    return [
        name
        for name, case in CASES.items()
        if name in names or (case.default and (not names or name.partition(".")[0] in names))
    ]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    console = Console(stderr=True)
    started = machine()
    used = versions(CASES[name].distribution for name in options.cases)
    missing = [name for name in options.cases if used[CASES[name].distribution] == NOT_INSTALLED]
    if missing:
        console.print(f"left out, not installed: {', '.join(missing)}", style="yellow")
        options.cases = [name for name in options.cases if name not in missing]
    used["Apache Kafka"] = "of --bootstrap-servers" if options.bootstrap_servers else KAFKA_VERSION
    found = [_measure_shape(options, name, Conditions(started, used), console) for name in options.shapes]
    return 0 if all(found) else 1


def _measure_shape(
    options: argparse.Namespace, shape: str, conditions: Conditions, console: Console
) -> list[Measurement]:
    """Measure all cases with a topic of this shape, and print the figures."""
    measurements = run_to_end(_measure_all(options, SHAPES[shape], console), console) if options.cases else []
    (_print_json if options.json else _print_table)(options, shape, measurements, conditions)
    for each in measurements:
        if each.committed < each.records:
            text = f"{each.case}, {each.partitions} partitions, round {each.round}: {each.committed:,} of {each.records:,} committed"
            console.print(text, style="red")
    return measurements


def _print_json(
    options: argparse.Namespace, shape: str, measurements: Sequence[Measurement], conditions: Conditions
) -> None:
    settings = {key: getattr(options, key) for key in SETTINGS}
    settings["shape"] = shape
    print_report(
        "consume",
        settings,
        conditions,
        measurements=[asdict(measurement) for measurement in measurements],
        summaries=[_as_dict(summary) for summary in summarize(measurements)],
    )


def _print_table(
    options: argparse.Namespace, shape: str, measurements: Sequence[Measurement], conditions: Conditions
) -> None:
    what = f"{options.records:,} records of {options.size} bytes"
    if shape != "full":
        what += f", {SHAPES[shape]}"
    what += ", half of them in one partition" if options.skew else ""
    what += f", {options.isolation}" if options.isolation != "read_uncommitted" else ""
    what += f", {options.nodes} nodes" if options.nodes > 1 else ""
    show(f"{what}, {options.rounds} rounds", summarize(measurements), conditions)


def _as_dict(value: Any) -> Any:
    """Convert a named tuple, and those nested in it, to a dict."""
    if hasattr(value, "_asdict"):
        return {key: _as_dict(inner) for key, inner in value._asdict().items()}
    return value


async def _measure_all(options: argparse.Namespace, shape: Shape, console: Console) -> list[Measurement]:
    with progress_on(console) as progress:
        async with kafka(options.bootstrap_servers, progress, nodes=options.nodes) as servers:
            return [
                measurement
                for partitions in options.partitions
                for measurement in await run(
                    servers,
                    options.cases,
                    records=options.records,
                    size=options.size,
                    partitions=partitions,
                    rounds=options.rounds,
                    limit=options.limit,
                    progress=progress,
                    shape=shape,
                    skewed=options.skew,
                    isolation=options.isolation,
                )
            ]


async def run(
    servers: str,
    cases: Sequence[str],
    *,
    records: int,
    size: int,
    partitions: int,
    rounds: int,
    limit: float,
    progress: Progress,
    warm_up: bool = True,
    shape: Shape = SHAPES["full"],
    skewed: bool = False,
    isolation: str = "read_uncommitted",
) -> list[Measurement]:
    """Load a topic, measure every case `rounds` times, then remove the topic and the groups.

    With `warm_up` the first case runs once before, unmeasured, to warm up the broker's compiler and caches.
    """
    found: list[Measurement] = []
    async with Cluster(servers) as cluster:
        topic = Topic(
            cluster,
            partitions,
            records,
            size,
            batch_records=shape.batch_records,
            codec=shape.codec,
            headers=shape.headers,
            skewed=skewed,
        )
        groups: list[str] = []
        try:
            await _load(topic, progress)
            plan = [(index, name) for index in range(1, rounds + 1) for name in cases]
            task = progress.add_task("", total=len(plan))
            for index, name in ([(0, cases[0])] if warm_up else []) + plan:
                what = f"round {index}: {name}, {partitions}" if index else "warming up"
                progress.update(task, description=what)
                groups.append(f"{topic.name}-{name}-{index}")
                settings = Settings(
                    bootstrap_servers=servers,
                    topic=topic.name,
                    group_id=groups[-1],
                    partitions=partitions,
                    records=topic.records,
                    limit=limit,
                    hot=topic.hot,
                    isolation=isolation,
                )
                figures = await measure(name, settings)
                if index:
                    committed = await topic.committed(settings.group_id)
                    found.append(
                        Measurement(
                            case=name, partitions=partitions, round=index, committed=committed, **figures
                        )
                    )
                    progress.advance(task)
            progress.remove_task(task)
        finally:
            await topic.remove(groups)
    return found


async def _load(topic: Topic, progress: Progress) -> None:
    task = progress.add_task("loading the topic", total=topic.records)
    advance: Callable[[int], object] = lambda positive_int: progress.advance(task, positive_int)  # noqa: E731
    await topic.load(advance)
    await topic.find_coordinator(topic.name)
    progress.remove_task(task)


async def measure(name: str, settings: Settings) -> dict[str, Any]:
    """Run one case in a separate process; raise ClientFailed if it fails or takes too long."""
    command = (sys.executable, "-m", "benchmarks.consume_process", name, json.dumps(asdict(settings)))
    return await run_process(name, command, settings.limit + START_LIMIT)
