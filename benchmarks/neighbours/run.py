"""The command: topics are loaded once, then every client runs every case in each round."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.testing.apache_kafka import KAFKA_VERSION
from benchmarks.common import (
    add_number,
    choose,
    kafka,
    options_parser,
    positive_int,
    print_report,
    progress_on,
    run_process,
    run_to_end,
    run_worker,
)
from benchmarks.machine import NOT_INSTALLED, Conditions, machine, versions
from benchmarks.neighbours import sarama
from benchmarks.neighbours.cases import CASES, CLIENTS, Case
from benchmarks.neighbours.figures import Measurement, show, summarize
from benchmarks.neighbours.meters import Settings
from benchmarks.topic import Topic

__all__ = ["Plan", "main", "parse", "run"]

LARGE_FETCH: Final = 1 << 20
START_LIMIT: Final = 30.0
"""Seconds for a process in addition to its measurement: imports, joining, closing."""
IDLE_PARTITIONS: Final = 8


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("neighbours", __doc__, rounds=2)
    add_number(parser, "--records", 800_000, "records of each partition")
    add_number(parser, "--size", 200, "bytes of each value")
    add_number(parser, "--batch", 50, "records of a record batch")
    add_number(parser, "--seconds", 6.0, "seconds of each measurement")
    parser.add_argument("--cases", default="", help=f"comma-separated: {', '.join(CASES)}")
    parser.add_argument(
        "--fetch-bytes", type=positive_int, help="fetch limit per partition; by default the size of one batch"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.records, options.seconds, options.rounds = 20_000, 0.5, 1
    # one record batch fits, two do not
    options.fetch_bytes = options.fetch_bytes or options.batch * (options.size + 30)
    options.clients = choose(parser, "--only", options.only, list(CLIENTS))
    options.cases = choose(parser, "--cases", options.cases, list(CASES))
    wanted = {CASES[name].baseline for name in options.cases} | set(options.cases)
    options.cases = [name for name in CASES if name in wanted]
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    console = Console(stderr=True)
    started = machine()
    used = versions(d for name in options.clients if (d := CLIENTS[name].distribution))
    used["Apache Kafka"] = "of --bootstrap-servers" if options.bootstrap_servers else KAFKA_VERSION
    if "sarama" in options.clients:
        used["sarama"] = sarama.version()
    missing = {
        n: NOT_INSTALLED for n in options.clients if used.get(CLIENTS[n].distribution or "") == NOT_INSTALLED
    }
    options.clients = [name for name in options.clients if name not in missing]
    measurements = run_to_end(_measure_all(options, console, missing), console)
    if options.json:
        settings = {
            key: getattr(options, key)
            for key in ("records", "size", "batch", "fetch_bytes", "seconds", "rounds")
        }
        print_report(
            "neighbours",
            settings,
            Conditions(started, used),
            missing=missing,
            measurements=[asdict(each) for each in measurements],
            summaries=[summary._asdict() for summary in summarize(measurements)],
        )
    else:
        show(options, measurements, Conditions(started, used, missing))
    return 0 if measurements else 1


async def _measure_all(
    options: argparse.Namespace, console: Console, missing: dict[str, str]
) -> list[Measurement]:
    with progress_on(console) as progress:
        program = None
        if "sarama" in options.clients:
            task = progress.add_task("building sarama's program", total=None)
            try:
                program = await sarama.build()
            except sarama.SaramaUnavailable as error:
                missing["sarama"] = str(error)
                options.clients.remove("sarama")
            progress.remove_task(task)
        if not options.clients:
            return []
        async with kafka(options.bootstrap_servers, progress) as servers:
            return await run(servers, options, program, progress)


class Plan:
    """The topics of one run: one partition with records, two partitions with records, and idle partitions."""

    def __init__(self, cluster: Cluster, options: argparse.Namespace) -> None:
        def topic(partitions: int) -> Topic:
            records = options.records * partitions
            return Topic(cluster, partitions, records, options.size, batch_records=options.batch)

        self.solo, self.pair = topic(1), topic(2)
        self.idle = Topic(cluster, IDLE_PARTITIONS, 0, options.size)

    def topics_of(self, case: Case) -> list[Topic]:
        """Return the topics of a case, the measured one first."""
        if case.is_batch:
            return [self.solo, self.idle] if case.baseline else [self.solo]
        return [self.pair] if case.baseline else [self.solo]

    async def load(self, cases: Sequence[str], progress: Progress) -> None:
        """Create and load the topics that these cases need."""
        needed = {topic for name in cases for topic in self.topics_of(CASES[name])}
        task = progress.add_task("loading the topics", total=sum(topic.records for topic in needed))
        for topic in needed:
            await topic.load(lambda number: progress.advance(task, number))
        await self.solo.find_coordinator(self.solo.name)
        progress.remove_task(task)


async def run(
    servers: str, options: argparse.Namespace, program: Path | None, progress: Progress
) -> list[Measurement]:
    """Load the topics, measure every client in every case `rounds` times, then remove the topics and groups.

    Without a `program` sarama is skipped.
    """
    found: list[Measurement] = []
    clients = [name for name in options.clients if name != "sarama" or program is not None]
    async with Cluster(servers) as cluster, AsyncExitStack() as stack:
        plan = Plan(cluster, options)
        groups: list[str] = []
        for topic in (plan.idle, plan.pair, plan.solo):
            stack.push_async_callback(topic.remove, groups if topic is plan.solo else [])
        await plan.load(options.cases, progress)
        steps = [
            (index, case, client)
            for index in range(1, options.rounds + 1)
            for client in clients
            for case in options.cases  # cases that are compared run directly after each other
        ]
        task = progress.add_task("", total=len(steps))
        # warm up the broker's compiler, or the first baseline would be too low
        warm_up = [] if options.quick else [(0, options.cases[0], name) for name in clients]
        for index, case_name, client in warm_up + steps:
            progress.update(
                task, description=f"round {index}: {client} {case_name}" if index else "warming up"
            )
            case = CASES[case_name]
            topics = [topic.name for topic in plan.topics_of(case)]
            settings = Settings(
                bootstrap_servers=servers,
                group_id=f"{plan.solo.name}-{client}-{case_name}-{index}",
                topics=topics,
                watched=topics[0],
                records=options.records,
                fetch_bytes=LARGE_FETCH if case.large_fetches else options.fetch_bytes,
                pause=case.pause,
                every=case.every,
                warm_up=min(1.0, options.seconds / 2),
                seconds=options.seconds,
            )
            groups.append(settings.group_id)
            figures = await measure(client, settings, program)
            if index:
                found.append(Measurement.of(client, case_name, index, figures))
                progress.advance(task)
    return found


async def measure(client: str, settings: Settings, program: Path | None) -> dict[str, dict[str, float]]:
    """Measure one client in one case and return its figures."""
    limit = settings.seconds + settings.warm_up + START_LIMIT
    if client == "sarama":
        assert program is not None
        return await run_process(client, [str(program), json.dumps(asdict(settings))], limit)
    return await run_worker(CLIENTS[client].function, asdict(settings), limit)
