"""The schedule: which topic is loaded when, which client reads it in which round, and the settings of each turn."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from rich.progress import Progress

from asyncgroup import Cluster
from benchmarks.spark.cases import (
    BRIDGE_CLIENTS,
    BRIDGES,
    IDLE,
    IDLE_CLIENTS,
    LATENCY,
    NO_QUERY,
    READERS,
    SINKS,
    STREAMS,
    WRITERS,
    BridgeSettings,
    IdleSettings,
    LatencySettings,
    SinkSettings,
    StreamSettings,
    TopicShape,
)
from benchmarks.spark.figures import Measurement
from benchmarks.spark.measured_spark import MeasuredSpark, TurnFailed
from benchmarks.topic import Topic

__all__ = ["Broker", "Turn", "measure_all", "turns", "with_warm_ups"]

SMALL: Final = 200
"""Bytes of a value in a small batch."""
MODULES: Final = {"asyncgroup": "benchmarks.spark.bridge", "aiokafka": "benchmarks.spark.aiokafka_client"}
EXTRA_TIMEOUT: Final = 30.0
"""Seconds to wait for the figures of a measurement in addition to its own limit."""


class Broker(NamedTuple):
    """The bootstrap servers of the broker, and its process id if this process started it."""

    bootstrap_servers: str
    pid: int | None


class Turn(NamedTuple):
    """A client in a case in a round; warm-ups have round numbers up to 0."""

    case: str
    client: str
    round: int


def turns(options: argparse.Namespace, cases: list[str]) -> list[Turn]:
    """Return all turns of some cases; turns that are compared follow each other, after `warm_ups` uncounted rounds."""
    return [
        Turn(case, client, number)
        for number in range(1 - options.warm_ups, options.rounds + 1)
        for case in cases
        for client in _clients(options, case)
        if number > 0 or case != IDLE
    ]


def with_warm_ups(plan: Sequence[Turn], left: Sequence[Turn]) -> list[Turn]:
    """Return the remaining turns of a plan, with the warm-ups first, for a restarted Spark."""
    return [turn for turn in plan if turn.round <= 0 or turn in left]


def _clients(options: argparse.Namespace, case: str) -> Iterator[str]:
    if case in STREAMS:
        candidates = tuple(READERS)
    elif case in SINKS:
        candidates = tuple(WRITERS)
    elif case == IDLE:
        candidates = IDLE_CLIENTS
    else:
        candidates = BRIDGE_CLIENTS
    return (name for name in candidates if name in options.clients or name == NO_QUERY)


async def measure_all(
    broker: Broker,
    spark: MeasuredSpark,
    options: argparse.Namespace,
    progress: Progress,
    missing: dict[str, str],
) -> list[Measurement]:
    """Measure every case and client `rounds` times; cases with the same `TopicShape` share a topic.

    A failed turn is put into `missing` with the reason, and the others continue, with a new Spark if the failure ended
    it.
    """
    workloads = {**STREAMS, **BRIDGES}
    by_shape: dict[TopicShape, list[str]] = {}
    for case in options.cases:
        shape = workloads[case].limited(options.rows).topic if case in workloads else TopicShape()
        by_shape.setdefault(shape, []).append(case)
    found = []
    async with Cluster(broker.bootstrap_servers) as cluster:
        for shape, cases in by_shape.items():
            async with _topic(cluster, shape, progress) as topic:
                runner = _TurnRunner(broker, spark, options, topic, cluster, missing)
                found += await runner.run(turns(options, cases), progress)
    return found


@asynccontextmanager
async def _topic(cluster: Cluster, shape: TopicShape, progress: Progress) -> AsyncIterator[_LoadedTopic]:
    """Yield a topic of this shape; remove it and the groups that read it at the end."""
    topic = Topic(cluster, shape.partitions, shape.rows, shape.size, batch_records=shape.batch_records)
    loaded = _LoadedTopic(topic)
    try:
        if shape.rows:
            task = progress.add_task("loading a topic", total=topic.records)
            await topic.load(lambda more: progress.advance(task, more))
            progress.remove_task(task)
        else:
            await topic.create()
        await topic.find_coordinator(topic.name)
        yield loaded
    finally:
        await topic.remove(loaded.groups)


class _LoadedTopic:
    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.groups: list[str] = []

    def group(self, turn: Turn) -> str:
        # a new group for every attempt, so that a repeated turn also starts at the beginning of the topic
        self.groups.append(f"{self.topic.name}-{turn.case}-{turn.client}-{turn.round}-{len(self.groups)}")
        return self.groups[-1]


class _TurnRunner:
    def __init__(
        self,
        broker: Broker,
        spark: MeasuredSpark,
        options: argparse.Namespace,
        loaded: _LoadedTopic,
        cluster: Cluster,
        missing: dict[str, str],
    ) -> None:
        self._broker = broker
        self._spark = spark
        self._options = options
        self._loaded = loaded
        self._cluster = cluster
        self._missing = missing

    async def run(self, plan: list[Turn], progress: Progress) -> list[Measurement]:
        found, left = [], list(plan)
        task = progress.add_task("", total=len(plan))
        while left:
            turn = left.pop(0)
            which = f"round {turn.round}" if turn.round > 0 else "warming up"
            progress.update(task, description=f"{which}: {turn.case} {turn.client}")
            try:
                figures = await self._measure(turn)
            except TurnFailed as error:
                reason = str(error).rstrip().splitlines()[-1]
                if await self._spark.restart_if_lost():
                    reason += "; Spark ended, so this case is not repeated"
                    plan = [each for each in plan if each[:2] != turn[:2]]
                    left = with_warm_ups(plan, left)
                self._missing[f"{turn.client} in {turn.case}, {which}"] = reason
            else:
                if turn.round > 0:
                    found.append(
                        Measurement(case=turn.case, client=turn.client, round=turn.round, figures=figures)
                    )
            progress.update(task, total=len(plan), completed=len(plan) - len(left))
        progress.remove_task(task)
        return found

    async def _measure(self, turn: Turn) -> dict[str, float | None]:
        if turn.case in SINKS:
            return await self._measure_sink(turn)
        function, settings = self._task(turn)
        figures: dict[str, float | None] = await self._spark.measure(
            function, asdict(settings), self._options.limit + EXTRA_TIMEOUT
        )
        return figures

    async def _measure_sink(self, turn: Turn) -> dict[str, float | None]:
        """Measure a sink with a new topic."""
        workload, options = SINKS[turn.case].limited(self._options.rows), self._options
        writer = WRITERS[turn.client]
        topic = Topic(self._cluster, workload.partitions, 0, workload.size)
        try:
            await topic.create()
            await topic.wait_for_leaders()
            settings = SinkSettings(
                bootstrap_servers=self._broker.bootstrap_servers,
                topic=topic.name,
                format=writer.format,
                transactions=writer.transactions,
                rows=workload.rows,
                size=workload.size,
                limit=options.limit,
            )
            figures: dict[str, float | None] = await self._spark.measure(
                "benchmarks.spark.sink:measure", asdict(settings), options.limit + EXTRA_TIMEOUT
            )
            return figures
        finally:
            await topic.remove([])

    def _task(
        self, turn: Turn
    ) -> tuple[str, StreamSettings | BridgeSettings | LatencySettings | IdleSettings]:
        """Return the measuring function and its settings."""
        options, topic = self._options, self._loaded.topic
        place: dict[str, Any] = {
            "bootstrap_servers": self._broker.bootstrap_servers,
            "topic": topic.name,
            "limit": options.limit,
        }
        if turn.case == IDLE:
            format_ = "" if turn.client == NO_QUERY else turn.client
            return "benchmarks.spark.idle:measure", IdleSettings(
                format=format_,
                seconds=options.seconds,
                settle=options.settle,
                broker_pid=self._broker.pid,
                **place,
            )
        if turn.case in STREAMS:
            reader, batch = READERS[turn.client], STREAMS[turn.case].limited(options.rows).batch
            return "benchmarks.spark.stream:measure", StreamSettings(
                format=reader.format, options=dict(reader.options), batch=batch, **place
            )
        place |= {"partitions": topic.partitions, "group_id": self._loaded.group(turn)}
        if turn.case == LATENCY:
            return f"{MODULES[turn.client]}:latency", LatencySettings(
                rows=options.latency_rows, size=SMALL, times=options.times, warm_up=options.warm_up, **place
            )
        batch = BRIDGES[turn.case].limited(options.rows).batch
        return f"{MODULES[turn.client]}:rate", BridgeSettings(rows=topic.records, batch=batch, **place)
