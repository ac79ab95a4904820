"""The command: work queues side by side on one Kafka, each client in a separate process."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.testing.apache_kafka import KAFKA_VERSION
from benchmarks.common import (
    ClientFailed,
    add_number,
    choose,
    kafka,
    options_parser,
    positive_int,
    print_report,
    progress_on,
    run_to_end,
)
from benchmarks.machine import Conditions, machine, versions
from benchmarks.queue import tables
from benchmarks.queue.cases import (
    CASES,
    CLIENTS,
    METADATA,
    PARALLEL_CONSUMER,
    PYRALLEL,
    pinned_versions,
    with_baselines,
)
from benchmarks.queue.cassandra import NODES, cassandra
from benchmarks.queue.figures import summarize
from benchmarks.queue.installation import PeerUnavailable
from benchmarks.queue.load import Settings
from benchmarks.queue.measure import Measurement, measure
from benchmarks.queue.metadata import PATTERNS, Sizes, measure_metadata
from benchmarks.queue.topics import load
from benchmarks.topic import Topic

__all__ = ["Found", "main", "parse", "run"]

JAVA_OPTIONS: Final = ("-Xmx1g",)
OFFSET_MAP_SIZES: Final = "io.confluent.parallelconsumer.offsets.OffsetMapSizes"
KEYS: Final = ("cases", "clients", "partitions", "concurrency", "records", "seconds", "budget", "rounds")


class Found:
    """What was measured, and what was not and why."""

    def __init__(self) -> None:
        self.measurements: list[Measurement] = []
        self.sizes: list[Sizes] = []
        self.sizes_are_computed = False
        self.missing: dict[str, str] = {}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("queue", __doc__, rounds=3)
    parser.add_argument("--cases", default="", help=f"comma-separated: {', '.join([*CASES, METADATA])}")
    parser.add_argument(
        "--records", type=positive_int, default=0, help="records of each case, instead of its own number"
    )
    add_number(parser, "--partitions", 4, "partitions of the topics")
    add_number(parser, "--concurrency", 200, "handlers at a time")
    add_number(parser, "--seconds", 8.0, "the longest measurement, in seconds")
    add_number(
        parser,
        "--budget",
        64 << 20,
        "bytes of records that a client may hold, for clients with such a setting",
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.records, options.seconds, options.rounds = options.records or 400, 3.0, 1
    options.clients = choose(parser, "--only", options.only, list(CLIENTS))
    names = choose(parser, "--cases", options.cases, [*CASES, METADATA])
    options.with_metadata = METADATA in names
    options.cases = with_baselines([name for name in names if name in CASES])
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    console = Console(stderr=True)
    started, found = machine(), Found()
    run_to_end(_run_all(options, console, found), console)
    summaries = summarize(found.measurements, options.concurrency)
    measured = [name for name in CLIENTS if name in {each.client for each in found.measurements}]
    used = versions(["asyncgroup", *({"aiokafka"} & set(measured))]) | pinned_versions(measured)
    if options.cases:
        used["Apache Kafka"] = "of --bootstrap-servers" if options.bootstrap_servers else KAFKA_VERSION
    conditions = Conditions(started, used, found.missing)
    if options.json:
        print_report(
            "queue",
            {key: getattr(options, key) for key in KEYS},
            conditions,
            missing=found.missing,
            measurements=[asdict(each) for each in found.measurements],
            summaries=[summary._asdict() for summary in summaries],
            metadata=[each._asdict() for each in found.sizes],
            metadata_computed=found.sizes_are_computed,
        )
    else:
        tables.show(options, summaries, found.sizes, found.sizes_are_computed, conditions)
    return 0 if found.measurements or found.sizes else 1


async def _run_all(options: argparse.Namespace, console: Console, found: Found) -> None:
    with progress_on(console) as progress:
        async with AsyncExitStack() as stack:
            programs = await _prepare(options, stack, progress, found)
            if options.with_metadata:
                await _measure_metadata(options, programs, progress, found)
            if options.cases and options.clients:
                servers = await stack.enter_async_context(kafka(options.bootstrap_servers, progress))
                await run(servers, options, programs, found, progress)


# --- clients that have to be installed ------------------------------------------------------------------------------------


async def _prepare(
    options: argparse.Namespace, stack: AsyncExitStack, progress: Progress, found: Found
) -> dict[str, list[str]]:
    """Install the chosen clients and start Cassandra if it is needed; return the beginning of their commands.

    Clients that cannot be installed are removed from the options and named in `found.missing`.
    """
    programs: dict[str, list[str]] = {}
    unavailable: dict[str, str] = {}  # by distribution
    address: str | None = None
    task = progress.add_task("", total=None)
    for name in list(options.clients):
        client = CLIENTS[name]
        progress.update(task, description=f"installing {client.distribution}")
        try:
            if client.distribution in unavailable:
                raise PeerUnavailable(unavailable[client.distribution])
            if client.environment is not None:
                programs[name] = [str(await client.environment.prepare())]
            elif not client.function:
                programs[name] = await PARALLEL_CONSUMER.command("QueueBenchmark", *JAVA_OPTIONS)
            if client.needs_cassandra and options.cases:
                progress.update(task, description="starting Cassandra for prosody-events")
                address = address or await stack.enter_async_context(cassandra())
                programs[name] = ["env", f"{NODES}={address}", *programs[name]]
        except PeerUnavailable as error:
            unavailable[client.distribution] = found.missing[name] = str(error)
            options.clients.remove(name)
    progress.remove_task(task)
    return programs


async def _measure_metadata(
    options: argparse.Namespace, programs: Mapping[str, list[str]], progress: Progress, found: Found
) -> None:
    task = progress.add_task("metadata", total=None)
    java = None
    try:
        java = await PARALLEL_CONSUMER.command(OFFSET_MAP_SIZES)
    except PeerUnavailable as error:
        found.sizes_are_computed = True
        found.missing["parallel-consumer, metadata"] = f"computed from its format instead: {error}"
    pyrallel = programs.get(PYRALLEL.distribution)
    patterns = PATTERNS[:3] if options.quick else PATTERNS
    try:
        found.sizes = await measure_metadata(patterns, java, pyrallel)
    except PeerUnavailable as error:
        found.missing[METADATA] = str(error)
    progress.remove_task(task)


# --- on a broker ----------------------------------------------------------------------------------------------------------


async def run(
    servers: str,
    options: argparse.Namespace,
    programs: Mapping[str, list[str]],
    found: Found,
    progress: Progress,
) -> None:
    """Load the topics, measure every client in every case `rounds` times, then remove the topics and the groups."""
    async with Cluster(servers) as cluster, AsyncExitStack() as stack:
        groups: list[str] = []
        topics = await _load_all(cluster, options, stack, groups, progress)
        steps = [
            (index, case, name)
            for index in range(1, options.rounds + 1)
            for case in options.cases
            for name in options.clients
            if case in CLIENTS[name].cases
        ]
        # the broker's compiler has to be warm, or the first client would be slower
        warm_up = [] if options.quick else [(0, *step[1:]) for step in steps[:1]]
        task = progress.add_task("", total=len(steps))
        for index, case, name in warm_up + steps:
            what = f"round {index}: {name} {case}" if index else "warming up the broker"
            progress.update(task, description=what)
            settings = _settings(servers, options, case)
            try:
                measurement = await _measure(
                    cluster, topics.get(case), name, case, index, settings, programs.get(name, []), groups
                )
            except ClientFailed as error:
                found.missing[f"{name}, {case}"] = str(error).strip().splitlines()[-1]
                continue
            if index:
                found.measurements.append(measurement)
                progress.advance(task)


def _partitions(options: argparse.Namespace, case: str) -> int:
    return CASES[case].partitions or int(options.partitions)


def _records(options: argparse.Namespace, case: str) -> int:
    own = CASES[case].records
    return options.records or own if own else 0


async def _load_all(
    cluster: Cluster,
    options: argparse.Namespace,
    stack: AsyncExitStack,
    groups: list[str],
    progress: Progress,
) -> dict[str, Topic]:
    """Load a topic for each case, except for those of the kind `fresh`, which have one for each measurement."""
    topics: dict[str, Topic] = {}
    cases = [name for name in options.cases if CASES[name].kind != "fresh"]
    task = progress.add_task("loading the topics", total=sum(_records(options, name) for name in cases))
    for name in cases:
        topic = topics[name] = Topic(cluster, _partitions(options, name), 0, 1)
        stack.push_async_callback(topic.remove, groups if name == cases[0] else [])
        records = _records(options, name)
        await load(cluster, topic, CASES[name], records, lambda number: progress.advance(task, number))
    progress.remove_task(task)
    return topics


def _settings(servers: str, options: argparse.Namespace, name: str) -> dict[str, Any]:
    case = CASES[name]
    records = _records(options, name)
    return {
        "bootstrap_servers": servers,
        "partitions": _partitions(options, name),
        "kind": case.kind,
        "records": records,
        "keys": case.keys,
        "poison": case.poison_records(records),
        "work": case.work,
        "work_step": case.work_step,
        "concurrency": options.concurrency,
        "retry": 1.0,
        "retry_factor": case.retry_factor,
        "retry_max": case.retry_max,
        "budget": options.budget,
        "limit": options.seconds,
    }


async def _measure(
    cluster: Cluster,
    topic: Topic | None,
    name: str,
    case: str,
    index: int,
    settings: dict[str, Any],
    program: Sequence[str],
    groups: list[str],
) -> Measurement:
    """Measure a client on the topic of its case, or on a new one."""
    if topic is not None:
        own = Settings(**settings | {"topic": topic.name, "group_id": f"{topic.name}-{name}-{index}"})
        groups.append(own.group_id)
        return await measure(cluster, topic, name, case, index, own, program)
    topic = Topic(cluster, settings["partitions"], 0, 1)
    own = Settings(**settings | {"topic": topic.name, "group_id": f"{topic.name}-{name}"})
    try:
        await load(cluster, topic, CASES[case], settings["records"], lambda _: None)
        return await measure(cluster, topic, name, case, index, own, program)
    finally:
        await topic.remove([own.group_id])
