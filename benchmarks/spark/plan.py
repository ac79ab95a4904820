"""The turns: which topic is loaded when, who reads it in which round, and what each is told."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator
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
    STREAMS,
    BridgeSettings,
    IdleSettings,
    LatencySettings,
    StreamSettings,
)
from benchmarks.spark.figures import Measurement
from benchmarks.spark.sessions import MeasuredSpark
from benchmarks.topic import Topic

__all__ = ["Broker", "Turn", "measure_all"]

PARTITIONS: Final = 4
SMALL: Final = 200
"""Bytes of a value in a small batch."""
MODULES: Final = {"asyncgroup": "benchmarks.spark.bridge", "aiokafka": "benchmarks.spark.aio"}
GRACE: Final = 30.0
"""Seconds that a measurement may be silent beyond its own limit."""


class Broker(NamedTuple):
    """Where the broker is, and its process id if it is ours."""

    bootstrap_servers: str
    pid: int | None


class Turn(NamedTuple):
    """A client in a case; the warm-ups have the rounds up to 0."""

    case: str
    client: str
    round: int


def turns(options: argparse.Namespace, cases: list[str]) -> list[Turn]:
    """All turns of some cases: what is compared stands close together in time, after `warm_ups` uncounted rounds."""
    return [
        Turn(case, client, number)
        for number in range(1 - options.warm_ups, options.rounds + 1)
        for case in cases
        for client in _clients(options, case)
        if number > 0 or case != IDLE
    ]


def _clients(options: argparse.Namespace, case: str) -> Iterator[str]:
    if case in STREAMS:
        candidates = tuple(READERS)
    elif case == IDLE:
        candidates = IDLE_CLIENTS
    else:
        candidates = BRIDGE_CLIENTS
    return (name for name in candidates if name in options.clients or name == NO_QUERY)


async def measure_all(
    broker: Broker, spark: MeasuredSpark, options: argparse.Namespace, progress: Progress
) -> list[Measurement]:
    """Every case and client `rounds` times, size of values by size, so that a topic goes before the next one comes."""
    workloads = {**STREAMS, **BRIDGES}
    by_size: dict[int, list[str]] = {}
    for case in options.cases:
        by_size.setdefault(workloads[case].size if case in workloads else 0, []).append(case)
    found = []
    async with Cluster(broker.bootstrap_servers) as cluster:
        for size, cases in by_size.items():
            rows = (workloads[cases[0]].limited(options.rows)).rows if size else 0
            async with _topic(cluster, rows, size, progress) as topic:
                measuring = _Measuring(broker, spark, options, topic)
                found += await measuring.take(turns(options, cases), progress)
    return found


@asynccontextmanager
async def _topic(cluster: Cluster, rows: int, size: int, progress: Progress) -> AsyncIterator[_Loaded]:
    """A topic with so many rows, removed at the end with the groups that have read it."""
    topic = Topic(cluster, PARTITIONS, rows, size)
    loaded = _Loaded(topic)
    try:
        if rows:
            task = progress.add_task("loading a topic", total=topic.records)
            await topic.load(lambda more: progress.advance(task, more))
            progress.remove_task(task)
        else:
            await topic.create()
        await topic.find_coordinator(topic.name)
        yield loaded
    finally:
        await topic.remove(loaded.groups)


class _Loaded:
    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.groups: list[str] = []

    def group(self, turn: Turn) -> str:
        self.groups.append(f"{self.topic.name}-{turn.case}-{turn.client}-{turn.round}")
        return self.groups[-1]


class _Measuring:
    def __init__(
        self, broker: Broker, spark: MeasuredSpark, options: argparse.Namespace, loaded: _Loaded
    ) -> None:
        self._broker, self._spark, self._options, self._loaded = broker, spark, options, loaded

    async def take(self, plan: list[Turn], progress: Progress) -> list[Measurement]:
        found = []
        task = progress.add_task("", total=len(plan))
        for turn in plan:
            which = f"round {turn.round}" if turn.round > 0 else "warming up"
            progress.update(task, description=f"{which}: {turn.case} {turn.client}")
            figures = await self._measure(turn)
            if turn.round > 0:
                found.append(
                    Measurement(case=turn.case, client=turn.client, round=turn.round, figures=figures)
                )
            progress.advance(task)
        progress.remove_task(task)
        return found

    async def _measure(self, turn: Turn) -> dict[str, float | None]:
        function, settings = self._task(turn)
        figures: dict[str, float | None] = await self._spark.measure(
            function, asdict(settings), self._options.limit + GRACE
        )
        return figures

    def _task(
        self, turn: Turn
    ) -> tuple[str, StreamSettings | BridgeSettings | LatencySettings | IdleSettings]:
        """The function that measures, and its settings."""
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
        place |= {"partitions": PARTITIONS, "group_id": self._loaded.group(turn)}
        if turn.case == LATENCY:
            return f"{MODULES[turn.client]}:latency", LatencySettings(
                rows=options.latency_rows, size=SMALL, times=options.times, warm_up=options.warm_up, **place
            )
        batch = BRIDGES[turn.case].limited(options.rows).batch
        return f"{MODULES[turn.client]}:rate", BridgeSettings(rows=topic.records, batch=batch, **place)
