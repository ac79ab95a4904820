"""What is measured, of which clients, and the goals of asyncgroup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["ASYNCIO", "CASES", "CLIENTS", "GOALS", "OWN", "QUEUES", "RATES", "SYNC", "Goal", "PulsarPeer"]

OWN: Final = "asyncgroup"
ASYNCIO: Final = "pulsar.asyncio"
SYNC: Final = "pulsar.sync"

CASES: Final = {
    "produce": "bulk: one caller sends all messages and waits for all receipts at the end",
    "produce-keys": "the same, each message with one of many keys",
    "receive": "receive and acknowledge each message, until the broker has the acknowledgements",
    "queue": "a work queue whose handlers return at once",
    "queue-keys": "the same in Mode.KEY_SHARED: those of a key one after the other",
    "latency": "one caller waits for the receipt of each message",
    "memory": "a receiver queue that is full: one message is received, and no other",
}
"""The cases by name."""

QUEUES: Final = ("queue", "queue-keys")
"""The cases of a work queue, which only asyncgroup has."""

RATES: Final = ("produce", "produce-keys", "receive", "queue", "queue-keys")
"""The cases with messages per second."""


class PulsarPeer(NamedTuple):
    """A client: its distribution, its function for `benchmarks.worker` (both empty for a program), and its cases."""

    name: str
    distribution: str
    function: str
    cases: Sequence[str]


_COMMON: Final = ("produce", "produce-keys", "receive", "latency", "memory")
_PROGRAM_CASES: Final = (
    "produce",
    "produce-keys",
    "receive",
    "latency",
)  # memory of a heap that is collected

CLIENTS: Final = {
    peer.name: peer
    for peer in (
        PulsarPeer(OWN, "asyncgroup", "asyncgroup_client:run", tuple(CASES)),
        PulsarPeer("asyncgroup.batch", "asyncgroup", "asyncgroup_client:run_batches", ("receive",)),
        PulsarPeer(ASYNCIO, "pulsar-client", "asyncio_client:run", _COMMON),
        PulsarPeer("pulsar.asyncio.single", "pulsar-client", "asyncio_client:run_single", ("latency",)),
        PulsarPeer(SYNC, "pulsar-client", "sync_client:run", _COMMON),
        PulsarPeer("java", "", "", _PROGRAM_CASES),
        PulsarPeer("go", "", "", _PROGRAM_CASES),
    )
}
"""The clients by name; `.batch` receives several messages at a time, `.single` sends without batches."""


class Goal(NamedTuple):
    """A ratio of asyncgroup to another client, of the medians of all rounds."""

    case: str
    figure: str
    other: str
    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, ratio: float) -> bool:
        """Return whether a ratio is as good as the goal."""
        return (self.at_least is None or ratio >= self.at_least) and (
            self.at_most is None or ratio <= self.at_most
        )


GOALS: Final = (
    Goal("produce", "rate", ASYNCIO, at_least=3.0),
    Goal("produce-keys", "rate", ASYNCIO, at_least=3.0),
    Goal("receive", "rate", ASYNCIO, at_least=3.0),
    Goal("receive", "per_core", SYNC, at_least=0.5),
    Goal("latency", "p50", ASYNCIO, at_most=1.0),
    Goal("latency", "p99", ASYNCIO, at_most=1.0),
)
"""The goals but that of the memory, whose measure is the client's own limit."""
