"""The command: one broker, one Spark; the clients that are compared take turns in each round.

The broker is Apache Kafka. Every source reads a topic from its start, of 4 partitions unless the case says otherwise, with the
same number of rows per batch, the same unix-domain sockets to Spark's Python workers, and the same checkpoint settings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from asyncgroup.testing.apache_kafka import KAFKA_VERSION, ApacheKafka
from asyncgroup.testing.apache_kafka.jars import SPARK_KAFKA_VERSION, KafkaJarsUnavailable, spark_kafka_jars
from benchmarks.common import add_number, choose, options_parser, positive_int, progress_on, run_to_end
from benchmarks.machine import Conditions, machine, versions
from benchmarks.spark.cases import CASES, CLIENTS
from benchmarks.spark.figures import Measurement, summarize
from benchmarks.spark.measured_spark import measured_spark
from benchmarks.spark.report import show
from benchmarks.spark.schedule import Broker, measure_all

__all__ = ["main", "parse", "run"]

SETTINGS: Final = {
    # a local file system renames atomically; the default manager's precautions cost 70 ms per batch for all sources
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.sql.streaming.metricsEnabled": "false",
    # Spark's own source keeps the consumers of finished queries, 15 MB each, and this session runs dozens of queries
    "spark.driver.memory": "3g",
}
"""Spark settings of all queries, in addition to the socket settings of `asyncgroup.spark.configure`."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("spark", __doc__, rounds=3)
    parser.add_argument("--cases", default="", help=f"comma-separated: {', '.join(CASES)}")
    parser.add_argument(
        "--rows",
        type=positive_int,
        help="rows of each topic (default: 800,000 of 1 KiB, 2,000,000 of 200 B, fewer for some cases)",
    )
    add_number(parser, "--times", 60, "small batches that are timed")
    add_number(parser, "--seconds", 15.0, "seconds for which an idle query is measured")
    add_number(parser, "--limit", 180.0, "seconds that one measurement may take")
    options = parser.parse_args(arguments)
    options.warm_ups, options.warm_up, options.latency_rows, options.settle = 2, 20, 100, 4.0
    if options.quick:
        options.rounds, options.rows, options.times, options.seconds = 1, options.rows or 20_000, 5, 1.0
        options.warm_ups, options.warm_up, options.settle = 1, 2, 1.0
    options.clients = choose(parser, "--only", options.only, list(CLIENTS))
    options.cases = choose(parser, "--cases", options.cases, list(CASES))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    console = Console(stderr=True)
    started = machine()
    used = versions(["asyncgroup", "aiokafka", "pyspark", "pyarrow"])
    used["Apache Kafka"] = "of --bootstrap-servers" if options.bootstrap_servers else KAFKA_VERSION
    missing: dict[str, str] = {}
    measurements = run_to_end(_measure(options, console, missing), console)
    if any(name.startswith("kafka") for name in options.clients):
        used["spark-sql-kafka"] = SPARK_KAFKA_VERSION
    if options.json:
        print(json.dumps(_report(options, measurements, Conditions(started, used, missing)), indent=2))
    else:
        show(options, measurements, Conditions(started, used, missing))
    return 0 if measurements else 1


def _report(
    options: argparse.Namespace, measurements: Sequence[Measurement], conditions: Conditions
) -> dict[str, Any]:
    return {
        "benchmark": "spark",
        "settings": {key: getattr(options, key) for key in ("rows", "times", "seconds", "rounds")},
        "machine": conditions.machine,
        "versions": conditions.versions,
        "missing": conditions.missing,
        "measurements": [asdict(each) for each in measurements],
        "summaries": [
            {
                "case": each.case,
                "client": each.client,
                "figures": {name: spread._asdict() for name, spread in each.figures.items()},
                "ratios": {name: spread._asdict() for name, spread in each.ratios.items()},
            }
            for each in summarize(measurements)
        ],
    }


async def _measure(
    options: argparse.Namespace, console: Console, missing: dict[str, str]
) -> list[Measurement]:
    with progress_on(console) as progress:
        async with _broker(options.bootstrap_servers, progress) as broker:
            return await run(broker, options, progress, missing)


@asynccontextmanager
async def _broker(servers: str | None, progress: Progress) -> AsyncIterator[Broker]:
    if servers:
        yield Broker(servers, None)
        return
    # the broker must not be the bottleneck: Java's default garbage collector and compiler, and a large heap
    task = progress.add_task("starting Apache Kafka", total=None)
    async with ApacheKafka(heap="1g", java_options=()) as kafka:
        progress.remove_task(task)
        yield Broker(kafka.bootstrap_servers, kafka.pid(1))


async def run(
    broker: Broker, options: argparse.Namespace, progress: Progress, missing: dict[str, str]
) -> list[Measurement]:
    """Measure what the options select; put clients that cannot be measured into `missing` with the reason."""
    config = dict(SETTINGS)
    try:
        config["spark.jars"] = ",".join(map(str, await asyncio.to_thread(spark_kafka_jars)))
    except KafkaJarsUnavailable as error:
        for name in [name for name in options.clients if name.startswith("kafka")]:
            missing[name] = str(error)
            options.clients.remove(name)
    task = progress.add_task("starting Spark", total=None)
    async with measured_spark(config) as spark:
        progress.remove_task(task)
        return await measure_all(broker, spark, options, progress, missing)
