"""The cases of the Spark benchmark: workloads, clients, and the settings of the measured functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = [
    "BRIDGES",
    "BRIDGE_CLIENTS",
    "CASES",
    "CLIENTS",
    "IDLE",
    "IDLE_CLIENTS",
    "LATENCY",
    "NO_QUERY",
    "READERS",
    "SINKS",
    "STREAMS",
    "WRITERS",
    "BridgeSettings",
    "IdleSettings",
    "LatencySettings",
    "Reader",
    "SinkSettings",
    "StreamSettings",
    "TopicShape",
    "Workload",
    "Writer",
]


class TopicShape(NamedTuple):
    """What a topic contains before it is read; cases with the same shape share a topic."""

    rows: int = 0
    size: int = 0
    """Bytes of a value."""
    partitions: int = 4
    batch_records: int | None = None
    """Records in a record batch; None: as many as fit into 64 KiB."""


class Workload(NamedTuple):
    """`rows` rows with values of `size` bytes, in batches of `batch` rows; record batches have `batch_records` records."""

    name: str
    title: str
    size: int
    rows: int
    batch: int
    partitions: int = 4
    batch_records: int | None = None

    @property
    def topic(self) -> TopicShape:
        """The topic that is read."""
        return TopicShape(self.rows, self.size, self.partitions, self.batch_records)

    def limited(self, rows: int | None) -> Workload:
        """Return the workload with this number of rows, still in at least four batches, and at least 50 in a partition."""
        if rows is None:
            return self
        partitions = min(self.partitions, max(4, rows // 50))
        return self._replace(rows=rows, batch=min(self.batch, max(1, rows // 4)), partitions=partitions)

    @property
    def text(self) -> str:
        """The title with the numbers."""
        return self.title.format(rows=self.rows, batch=self.batch, partitions=self.partitions)


STREAMS: Final = {
    each.name: each
    for each in (
        Workload("1k-large", "1 KiB, batches of {batch:,}", 1024, 800_000, 100_000),
        Workload("1k-small", "1 KiB, batches of {batch:,}", 1024, 800_000, 20_000),
        Workload("200-large", "200 B, batches of {batch:,}", 200, 2_000_000, 200_000),
        Workload("200-small", "200 B, batches of {batch:,}", 200, 2_000_000, 50_000),
        Workload(
            "source-1000",
            "200 B, batches of {batch:,}, {partitions:,} partitions",
            200,
            600_000,
            200_000,
            1000,
        ),
        # what producers with little traffic write; few, as each record is a request when the topic is loaded
        Workload(
            "source-one", "200 B, batches of {batch:,}, one per record batch", 200, 200_000, 40_000, 4, 1
        ),
        Workload(
            "source-three", "200 B, batches of {batch:,}, three per record batch", 200, 200_000, 40_000, 4, 3
        ),
    )
}
"""Workloads of the sources, by name."""

BRIDGES: Final = {
    each.name: each
    for each in (
        Workload("bridge-1k", "1 KiB, batches of {batch:,}", 1024, 800_000, 100_000),
        Workload("bridge-200", "200 B, batches of {batch:,}", 200, 2_000_000, 200_000),
    )
}
"""Workloads of the bridges, by name."""

SINKS: Final = {
    each.name: each
    for each in (
        Workload("sink-1k", "1 KiB, {rows:,} rows", 1024, 200_000, 200_000),
        Workload("sink-200", "200 B, {rows:,} rows", 200, 600_000, 600_000),
        Workload("sink-300", "200 B, {rows:,} rows, {partitions:,} partitions", 200, 600_000, 600_000, 300),
        Workload("sink-1000", "200 B, {rows:,} rows, {partitions:,} partitions", 200, 600_000, 600_000, 1000),
    )
}
"""Workloads of the sinks, by name; each is one batch."""

LATENCY: Final = "latency"
IDLE: Final = "idle"
CASES: Final = (*STREAMS, *BRIDGES, *SINKS, LATENCY, IDLE)


class Reader(NamedTuple):
    """A Spark source with its options, in addition to those of the case."""

    name: str
    format: str
    options: Mapping[str, str]


TUNED: Final = {"kafka.max.partition.fetch.bytes": str(4 << 20), "kafka.max.poll.records": "5000"}

READERS: Final = {
    each.name: each
    for each in (
        Reader("kafka", "kafka", {}),
        # tuned: larger fetch responses and fewer polls
        Reader("kafka-tuned", "kafka", TUNED),
        # and the system's socket buffer sizes, as asyncgroup uses: Java's 64 KiB cost a few percent of the rate
        Reader("kafka-buffers", "kafka", {**TUNED, "kafka.receive.buffer.bytes": "-1"}),
        Reader("asyncgroup", "asyncgroup", {}),
        Reader("asyncgroup-packed", "asyncgroup", {"tasks": "2"}),
    )
}
"""The sources that are compared; ratios are to `kafka-tuned`."""

NO_QUERY: Final = "no query"
IDLE_CLIENTS: Final = (NO_QUERY, "kafka", "asyncgroup")
BRIDGE_CLIENTS: Final = ("aiokafka", "asyncgroup")


class Writer(NamedTuple):
    """A Spark sink; with `transactions` it has the option `transactional.id.prefix`."""

    name: str
    format: str
    transactions: bool = False


WRITERS: Final = {
    each.name: each
    for each in (
        Writer("kafka", "kafka"),
        Writer("asyncgroup", "asyncgroup"),
        Writer("asyncgroup-transactions", "asyncgroup", transactions=True),
        Writer("python-drops", "dropped"),
    )
}
"""The sinks that are compared; ratios are to `kafka`."""

CLIENTS: Final = tuple(dict.fromkeys((*READERS, *WRITERS, "aiokafka")))


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """A streaming query that reads a whole topic into the sink `noop`; `limit` in seconds."""

    bootstrap_servers: str
    topic: str
    format: str
    options: dict[str, str]
    batch: int
    limit: float


@dataclass(frozen=True, kw_only=True)
class BridgeSettings:
    """A group that reads a whole topic and passes it to Spark in batches; `limit` in seconds."""

    bootstrap_servers: str
    topic: str
    partitions: int
    group_id: str
    rows: int
    batch: int
    limit: float


@dataclass(frozen=True, kw_only=True)
class SinkSettings:
    """A batch query that writes `rows` rows with values of `size` bytes to an empty topic."""

    bootstrap_servers: str
    topic: str
    format: str
    transactions: bool
    rows: int
    size: int
    limit: float


@dataclass(frozen=True, kw_only=True)
class LatencySettings:
    """`times` batches of `rows` rows, each produced after the previous one was committed; `warm_up` more come first."""

    bootstrap_servers: str
    topic: str
    partitions: int
    group_id: str
    rows: int
    size: int
    times: int
    warm_up: int
    limit: float


@dataclass(frozen=True, kw_only=True)
class IdleSettings:
    """A query (`format`; empty: no query) on a topic without new records, observed for `seconds`; `limit` in seconds.

    `settle`: seconds to wait before that, until the query has finished starting. `broker_pid`: the broker's process
    id, if known.
    """

    bootstrap_servers: str
    topic: str
    format: str
    seconds: float
    settle: float
    broker_pid: int | None
    limit: float
