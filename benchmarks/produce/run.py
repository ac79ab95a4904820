"""The command: in each round every client writes every workload into a new topic, each in a separate process."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from asyncgroup import AsyncGroupError, Cluster, Consumer
from asyncgroup.testing.apache_kafka import KAFKA_VERSION, ApacheKafka
from benchmarks.common import (
    ClientFailed,
    add_number,
    choose,
    installed,
    options_parser,
    positive_ints,
    print_report,
    progress_on,
    run_process,
    run_to_end,
    run_worker,
)
from benchmarks.go_program import GoProgramUnavailable
from benchmarks.machine import Conditions, machine
from benchmarks.produce.cases import (
    CLIENTS,
    CODECS,
    DEFAULT_MODES,
    DEFAULT_PARTITIONS,
    GO_CLIENTS,
    MODES,
    SIZES,
    SPREAD_MODES,
    SPREAD_PARTITIONS,
    WAITING_MODES,
    Workload,
    workloads,
)
from benchmarks.produce.figures import Measurement, StoppedMeasurement, show, summarize
from benchmarks.produce.load import Settings
from benchmarks.produce.stopped import Broker, StoppableKafka, fill
from benchmarks.produce.values import write_values
from benchmarks.topic import Topic

__all__ = ["Found", "main", "parse", "run"]

START_LIMIT: Final = 30.0
"""Seconds for a process in addition to writing: imports, the last acknowledgements, closing."""
KAFKA_PROPERTIES: Final = {
    # a removed topic's files are deleted at once; Kafka's default of a minute would need much disk space
    "log.segment.delete.delay.ms": 1000,
    # the controller does not miss the stopped broker
    "broker.session.timeout.ms": 120_000,
}
KEYS: Final = (
    "partitions", "rounds", "seconds", "callers", "batch_bytes", "linger", "waiting_linger", "buffer_bytes",
    "stopped_seconds",
)  # fmt: skip


class Found:
    """What was measured, and what was not and why."""

    def __init__(self) -> None:
        self.measurements: list[Measurement] = []
        self.stopped: list[StoppedMeasurement] = []
        self.missing: dict[str, str] = {}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("produce", __doc__, rounds=3)
    add_number(parser, "--seconds", 1.0, "seconds of each measurement")
    parser.add_argument(
        "--partitions",
        type=positive_ints,
        help=f"partitions of the topic, comma-separated ({DEFAULT_PARTITIONS}; in the modes "
        f"{', '.join(SPREAD_MODES[:-1])} {','.join(map(str, SPREAD_PARTITIONS))})",
    )
    add_number(parser, "--callers", 1000, "concurrent callers")
    add_number(parser, "--batch-bytes", 128 << 10, "bytes of a batch")
    add_number(parser, "--linger", 0.005, "seconds that a batch waits for more records")
    parser.add_argument(
        "--waiting-linger",
        type=float,
        help="the same in the modes in which callers wait (asyncgroup: its default, by which their records do not wait; others: 0)",
    )
    add_number(parser, "--buffer-bytes", 32 << 20, "bytes of unacknowledged records")
    add_number(parser, "--stopped-seconds", 4.0, "seconds of writing to a stopped broker")
    names = ", ".join([*MODES, "stopped"])
    parser.add_argument(
        "--modes", default="", help=f"comma-separated: {names} ({','.join(DEFAULT_MODES)},stopped)"
    )
    parser.add_argument("--sizes", default="", help=f"bytes, comma-separated: {', '.join(map(str, SIZES))}")
    parser.add_argument("--codecs", default="", help=f"comma-separated: {', '.join(CODECS)}")
    parser.add_argument("--headers", choices=("no", "yes", "both"), help="whether records have headers")
    parser.add_argument("--all", action="store_true", help="all combinations, not only the default ones")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seconds, options.stopped_seconds, options.rounds = 0.2, 0.5, 1
    options.stopped_size = SIZES[-1]
    options.clients = choose(parser, "--only", options.only, list(CLIENTS))
    _choose_workloads(parser, options)
    return options


def _choose_workloads(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    default = "" if options.all else ",".join([*DEFAULT_MODES, "stopped"])
    modes = choose(parser, "--modes", options.modes or default, [*MODES, "stopped"])
    sizes = [int(size) for size in choose(parser, "--sizes", options.sizes, list(map(str, SIZES)))]
    codecs = choose(parser, "--codecs", options.codecs, list(CODECS))
    headers = {"no": [False], "yes": [True]}.get(options.headers, [False, True])
    found = workloads([mode for mode in modes if mode in MODES], sizes, codecs, headers, options.partitions)
    selected = options.all or bool(options.sizes or options.codecs or options.headers)
    options.workloads = [each for each in found if selected or each.is_default]
    options.with_stopped = "stopped" in modes and options.bootstrap_servers is None


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    console = Console(stderr=True)
    started = machine()
    packages = {name: CLIENTS[name].distribution for name in options.clients if name not in GO_CLIENTS}
    used, available = installed(packages, console)
    options.clients = [name for name in options.clients if name in available or name in GO_CLIENTS]
    used |= {name: GO_CLIENTS[name].version() for name in options.clients if name in GO_CLIENTS}
    used["Apache Kafka"] = "of --bootstrap-servers" if options.bootstrap_servers else KAFKA_VERSION
    found = run_to_end(_measure_all(options, console), console)
    conditions = Conditions(started, used, found.missing)
    if options.json:
        _print_json(options, found, conditions)
    else:
        show(options, found.measurements, found.stopped, conditions)
    return 0 if found.measurements or found.stopped else 1


def _print_json(options: argparse.Namespace, found: Found, conditions: Conditions) -> None:
    print_report(
        "produce",
        {key: getattr(options, key) for key in KEYS},
        conditions,
        missing=conditions.missing,
        measurements=[asdict(each) for each in found.measurements],
        summaries=[
            {**each._asdict(), "workload": each.workload.title} for each in summarize(found.measurements)
        ],
        stopped=[asdict(each) for each in found.stopped],
    )


@asynccontextmanager
async def _broker(options: argparse.Namespace, progress: Progress) -> AsyncIterator[Broker]:
    if options.bootstrap_servers:
        yield Broker(options.bootstrap_servers)
        return
    task = progress.add_task("starting Apache Kafka", total=None)
    async with ApacheKafka(heap="1g", java_options=(), properties=KAFKA_PROPERTIES) as kafka:
        progress.remove_task(task)
        yield StoppableKafka(kafka)


async def _measure_all(options: argparse.Namespace, console: Console) -> Found:
    with progress_on(console) as progress:
        missing: dict[str, str] = {}
        program = await _go_program(options, progress, missing)
        if not options.clients:
            return Found()
        async with _broker(options, progress) as broker:
            found = await run(broker, options, program, progress)
        found.missing = missing | found.missing
        return found


async def _go_program(
    options: argparse.Namespace, progress: Progress, missing: dict[str, str]
) -> Path | None:
    """Return the program for the clients in Go; without it, leave them out and say why."""
    wanted = [name for name in options.clients if name in GO_CLIENTS]
    if not wanted:
        return None
    task = progress.add_task("building the program in Go", total=None)
    try:
        return await GO_CLIENTS[wanted[0]].build()
    except GoProgramUnavailable as error:
        missing |= dict.fromkeys(wanted, str(error))
        options.clients = [name for name in options.clients if name not in wanted]
        return None
    finally:
        progress.remove_task(task)


async def run(broker: Broker, options: argparse.Namespace, program: Path | None, progress: Progress) -> Found:
    """Measure every client with every workload `rounds` times, then with the broker stopped.

    Without a `program` the clients in Go are left out.
    """
    found = Found()
    clients = [name for name in options.clients if program is not None or name not in GO_CLIENTS]
    steps = [
        (index, workload, client)
        for index in range(1, options.rounds + 1)
        for workload in options.workloads
        for client in clients  # clients that are compared run directly after each other
        if CLIENTS[client].can_write(workload)
    ]
    warm_up = [] if options.quick else [(0, *step[1:]) for step in steps[: len(clients)]]
    with tempfile.TemporaryDirectory() as directory:
        values = {size: str(write_values(Path(directory), size)) for size in SIZES}
        task = progress.add_task("", total=len(steps))
        async with Cluster(broker.bootstrap_servers) as cluster:
            for index, workload, client in warm_up + steps:
                what = f"round {index}: {client} {workload.title}" if index else "warming up the broker"
                progress.update(task, description=what)
                settings = _settings(broker, options, workload, values)
                try:
                    measurement = await _measure(cluster, client, workload, index, settings, program)
                except ClientFailed as error:
                    found.missing[f"{client} {workload.title}"] = _last_line(error)
                    continue
                if index:
                    found.measurements.append(measurement)
                    progress.advance(task)
            if options.with_stopped:
                names = [name for name in clients if CLIENTS[name].fills]
                await _fill_all(cluster, broker, options, names, values, program, found, progress)
    return found


def _settings(
    broker: Broker, options: argparse.Namespace, workload: Workload, values: Mapping[int, str]
) -> dict[str, Any]:
    return {
        **workload._asdict(),
        "bootstrap_servers": broker.bootstrap_servers,
        "partitions": workload.partitions or DEFAULT_PARTITIONS,
        "values": values[workload.size],
        "seconds": options.seconds,
        "callers": options.callers,
        "batch_bytes": options.batch_bytes,
        "linger": options.waiting_linger if workload.mode in WAITING_MODES else options.linger,
        "buffer_bytes": options.buffer_bytes,
    }


async def _measure(
    cluster: Cluster,
    client: str,
    workload: Workload,
    index: int,
    settings: dict[str, Any],
    program: Path | None,
) -> Measurement:
    """Run one client with one workload in a new topic, and count the records in the log."""
    topic = Topic(cluster, settings["partitions"], 0, workload.size, topics=workload.topics)
    await topic.create()
    try:
        await topic.wait_for_leaders()
        names = topic.names if workload.topics > 1 else ()
        given = asdict(Settings(**settings, topic=topic.name, topics=names))
        limit = settings["seconds"] + START_LIMIT
        if client in GO_CLIENTS:
            figures = await run_process(client, [str(program), client, json.dumps(given)], limit)
        else:
            figures = await run_worker(CLIENTS[client].function, given, limit)
        written = await _records_in(cluster, topic)
        if written != figures["records"]:
            raise ClientFailed(f"{written:,} records are in the log, {figures['records']:,} were written")
        return Measurement(client=client, workload=workload, round=index, **figures)
    finally:
        await topic.remove([])


async def _records_in(cluster: Cluster, topic: Topic) -> int:
    async with Consumer(cluster) as consumer:
        return sum((await consumer.end_offsets(topic.tps)).values())


async def _fill_all(
    cluster: Cluster,
    broker: Broker,
    options: argparse.Namespace,
    clients: Sequence[str],
    values: Mapping[int, str],
    program: Path | None,
    found: Found,
    progress: Progress,
) -> None:
    """Let every client write to the stopped broker."""
    task = progress.add_task("", total=len(clients))
    for name in clients:
        progress.update(task, description=f"stopped broker: {name}")
        topic = Topic(cluster, DEFAULT_PARTITIONS, 0, options.stopped_size)
        try:
            await topic.create()
            await topic.wait_for_leaders()
            workload = Workload("stopped", options.stopped_size, "none", headers=False)
            settings = _settings(broker, options, workload, values) | {"seconds": options.stopped_seconds}
            given = json.dumps(asdict(Settings(**settings, topic=topic.name)))
            if name in GO_CLIENTS:
                command = [str(program), name, given]
            else:
                command = [sys.executable, "-m", "benchmarks.worker", CLIENTS[name].function, given]
            figures = await fill(name, command, broker, START_LIMIT)
        except (ClientFailed, AsyncGroupError) as error:
            found.missing[f"{name}, stopped broker"] = _last_line(error)
        else:
            found.stopped.append(StoppedMeasurement(client=name, **figures))
        finally:
            await topic.remove([])
        progress.advance(task)


def _last_line(error: Exception) -> str:
    """Return the last line of an error, which says most if it is the output of a process."""
    return str(error).strip().splitlines()[-1]
