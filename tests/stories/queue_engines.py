"""What the stories of the work queue's face need of an engine: a source, records in it, and its dead letters.

Each engine has a Side; the stories are those of `queue_stories.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

from asyncgroup import GroupSource, Producer, WorkQueue
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.model import Header, Record, clock_of_loop
from asyncgroup.testing import MemorySource

__all__ = ["SIDES", "Side"]

TOPIC: Final = "orders"


class Side(Protocol):
    """One engine, with one partition of records."""

    topic: str
    """The topic, as copies name it."""
    counts_deliveries: bool
    """Whether the numbers of deliveries survive the queue."""
    quiet: float
    """Seconds without a delivery after which none is expected."""
    slack: float
    """Seconds by which something may be late."""
    early_ms: int
    """Milliseconds by which the engine may deliver a delayed record early."""

    def time_of_day(self) -> int:
        """Return the time in ms."""
        ...

    def queue(self, **settings: Any) -> WorkQueue:
        """Return a new queue on the records, from the first on."""
        ...

    async def send(self, *values: bytes, key: bytes | None = None, deliver_at: int | None = None) -> None:
        """Add records, to be delivered at once or at a time in ms."""
        ...

    def dead_letters(self) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """Return values and headers of the copies in the dead letter topic, in their order."""
        ...


class _VirtualSide:
    """In virtual time."""

    topic = TOPIC
    counts_deliveries = True
    quiet = 20.0
    slack = 0.0
    early_ms = 0

    def time_of_day(self) -> int:
        """See Side."""
        return clock_of_loop()()


class MemorySide(_VirtualSide):
    """Records in memory."""

    def __init__(self) -> None:
        self.source = MemorySource(topic=TOPIC, subscription="billing")
        self._offset = 0

    def queue(self, **settings: Any) -> WorkQueue:
        """See Side."""
        return WorkQueue(self.source, **settings)

    async def send(self, *values: bytes, key: bytes | None = None, deliver_at: int | None = None) -> None:
        """See Side."""
        headers = _headers(deliver_at)
        for value in values:
            self.source.add(Record(TOPIC, 0, self._offset, key=key, value=value, headers=headers))
            self._offset += 1

    def dead_letters(self) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """See Side."""
        return [(copy.value, dict(copy.headers)) for copy in self.source.dead_letters]


class GroupSide(_VirtualSide):
    """A consumer group on the embedded broker."""

    def __init__(self, cluster: EmbeddedCluster, producer: Producer) -> None:
        self._cluster = cluster
        self._producer = producer

    def queue(self, **settings: Any) -> WorkQueue:
        """See Side."""
        source = GroupSource(self._cluster.bootstrap_servers, "billing", TOPIC)
        return WorkQueue(source, **{"initial_position": "earliest"} | settings)

    async def send(self, *values: bytes, key: bytes | None = None, deliver_at: int | None = None) -> None:
        """See Side."""
        headers = _headers(deliver_at)
        for value in values:
            await self._producer.send(TOPIC, value, key=key, headers=headers, partition=0)

    def dead_letters(self) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """See Side."""
        topic = f"{TOPIC}-billing-DLQ"
        if topic not in self._cluster.topics:
            return []
        return [(record.value, dict(record.headers)) for record in self._cluster.records(topic)]


def _headers(deliver_at: int | None) -> list[Header]:
    return [] if deliver_at is None else [("ag-deliver-at", b"%d" % deliver_at)]


@asynccontextmanager
async def _memory() -> AsyncIterator[Side]:
    yield MemorySide()


@asynccontextmanager
async def _group() -> AsyncIterator[Side]:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, 1)
        async with Producer(cluster.bootstrap_servers) as producer:
            yield GroupSide(cluster, producer)


SIDES: Final[dict[str, Callable[[], AbstractAsyncContextManager[Side]]]] = {
    "memory": _memory,
    "group": _group,
}
"""By the name of the engine."""
