"""The clients, and what they write: workloads of a mode, a size, a codec, with or without headers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

from benchmarks.go_program import GoProgram

__all__ = [
    "BASELINE",
    "CLIENTS",
    "CODECS",
    "DEFAULT_MODES",
    "DEFAULT_PARTITIONS",
    "GO_CLIENTS",
    "MODES",
    "OTHER_MODES",
    "SIZES",
    "SPREAD_MODES",
    "SPREAD_PARTITIONS",
    "TOPICS",
    "WAITING_MODES",
    "Client",
    "Workload",
    "workloads",
]

SIZES: Final = (100, 1024)
CODECS: Final = ("none", "lz4", "zstd")
MODES: Final = {
    "loop": "one caller waits for each acknowledgement",
    "concurrent": "many callers, each waits for its acknowledgements",
    "bulk": "one caller that waits for all at the end",
    "keyed": "the same, and each record has one of many keys",
    "partition": "the same, and the caller names the partitions, one after the other",
    "round-robin": "the same, and the client's partitioner takes one partition after the other",
    "topics": "the same, to many topics of one partition, one after the other",
}
"""How records are written, by the mode's name."""
SPREAD_MODES: Final = ("keyed", "partition", "round-robin", "topics")
"""The modes in which each record may go to another partition than the one before, so the more there are, the smaller the batches."""
OTHER_MODES: Final = tuple(mode for mode in MODES if mode not in SPREAD_MODES)
DEFAULT_MODES: Final = (*OTHER_MODES, "keyed")
"""The modes that are measured if no option selects any."""
DEFAULT_PARTITIONS: Final = 4
SPREAD_PARTITIONS: Final = (4, 100, 1000)
"""Numbers of partitions in the modes of `SPREAD_MODES`, without the option for them."""
TOPICS: Final = 1000
"""Number of topics in the mode "topics"."""
WAITING_MODES: Final = ("loop", "concurrent")
"""The modes in which callers wait for acknowledgements, so that a linger would only delay all of them."""


class Workload(NamedTuple):
    """What is written in a measurement."""

    mode: str
    size: int
    """Bytes of a value."""
    codec: str
    headers: bool
    partitions: int | None = None
    """None for the default number."""

    @property
    def topics(self) -> int:
        """The number of topics."""
        return TOPICS if self.mode == "topics" else 1

    @property
    def title(self) -> str:
        """The name in tables."""
        size = f"{self.size // 1024} KiB" if self.size % 1024 == 0 else f"{self.size} B"
        many = f"{self.partitions:,} partitions" if self.partitions else ""
        if self.mode == "topics":
            many = f"{self.topics:,} topics"
        parts = [self.mode, many, size, self.codec, "headers" if self.headers else ""]
        return ", ".join(part for part in parts if part)

    @property
    def is_default(self) -> bool:
        """Whether it is measured if no option selects workloads: all of them would take an hour."""
        if self.mode in SPREAD_MODES:
            return self.size == SIZES[0] and self.codec == "none" and not self.headers
        if self.mode == "bulk":
            return self.codec == "none" or not self.headers
        return self.codec == "none" and not self.headers and (self.mode == "concurrent" or self.size == 100)


def _partitions(mode: str, wanted: Sequence[int] | None) -> Sequence[int | None]:
    if mode == "topics":
        return (1,)
    return wanted or (SPREAD_PARTITIONS if mode in SPREAD_MODES else (None,))


def workloads(
    modes: Sequence[str],
    sizes: Sequence[int],
    codecs: Sequence[str],
    headers: Sequence[bool],
    partitions: Sequence[int] | None = None,
) -> list[Workload]:
    """Return every combination, in the order of the tables; `partitions` are the numbers of them, None for the defaults."""
    return [
        Workload(mode, size, codec, with_headers, number)
        for mode, size, codec, with_headers in product(modes, sizes, codecs, headers)
        for number in _partitions(mode, partitions)
    ]


class Client(NamedTuple):
    """A client: its distribution, or its name if it is written in Go, and its function for `benchmarks.worker`."""

    name: str
    distribution: str
    function: str
    modes: Sequence[str] = tuple(MODES)
    has_headers: bool = True
    fills: bool = True
    """Whether it is measured with a stopped broker."""

    def can_write(self, workload: Workload) -> bool:
        """Return whether it is measured with this workload."""
        return workload.mode in self.modes and (self.has_headers or not workload.headers)


def _client(name: str, distribution: str, function: str, **limits: bool | Sequence[str]) -> Client:
    return Client(name, distribution, f"benchmarks.produce.{function}", **limits)  # type: ignore[arg-type]


CLIENTS: Final = {
    client.name: client
    for client in (
        _client("asyncgroup", "asyncgroup", "asyncgroup_client:run"),
        _client("aiokafka", "aiokafka", "aiokafka_client:run"),
        _client("aiokafka.batches", "aiokafka", "aiokafka_client:run_batches", modes=("bulk",), fills=False),
        _client(
            "confluent",
            "confluent-kafka",
            "confluent:run",
            modes=tuple(
                mode for mode in MODES if mode != "round-robin"
            ),  # librdkafka has no such partitioner
        ),
        _client(
            "confluent.aio",
            "confluent-kafka",
            "confluent:run_aio",
            modes=OTHER_MODES,
            has_headers=False,
            fills=False,
        ),
        _client("kafka-python", "kafka-python", "kafka_python:run", modes=OTHER_MODES),
        _client("bare-connection", "asyncgroup", "bare_connection:run", modes=("loop",), fills=False),
        Client("sarama", "sarama", "", OTHER_MODES),
        Client("franz-go", "franz-go", "", OTHER_MODES),
    )
}
"""Clients by name, in the order of the tables."""

BASELINE: Final = "aiokafka"
"""The client that ratios refer to."""

GO_CLIENTS: Final = {
    "sarama": GoProgram("produce", "github.com/IBM/sarama"),
    "franz-go": GoProgram("produce", "github.com/twmb/franz-go"),
}
"""One program for both (`benchmarks/peers/produce`)."""
