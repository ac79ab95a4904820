"""What the stories of the work queue's face need of an engine: a source, records in it, and its dead letters.

Each engine has a Side; `tests/workqueue/test_engines.py` runs the stories on each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

from asyncgroup import GroupSource, Producer, WorkQueue
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.model import Header, Record
from asyncgroup.testing import MemorySource

__all__ = ["SIDES", "Side"]

TOPIC: Final = "orders"


class Side(Protocol):
    """One engine, with one partition of records."""

    def queue(self, **settings: Any) -> WorkQueue:
        """Return a new queue on the records, from the first on."""
        ...

    async def send(self, *values: bytes, key: bytes | None = None, headers: Sequence[Header] = ()) -> None:
        """Add records."""
        ...

    def dead_letters(self) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """Return values and headers of the copies in the dead letter topic, in their order."""
        ...


class MemorySide:
    """Records in memory."""

    def __init__(self) -> None:
        self.source = MemorySource(topic=TOPIC, subscription="billing")
        self._offset = 0

    def queue(self, **settings: Any) -> WorkQueue:
        """See Side."""
        return WorkQueue(self.source, **settings)

    async def send(self, *values: bytes, key: bytes | None = None, headers: Sequence[Header] = ()) -> None:
        """See Side."""
        for value in values:
            self.source.add(Record(TOPIC, 0, self._offset, key=key, value=value, headers=headers))
            self._offset += 1

    def dead_letters(self) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """See Side."""
        return [(copy.value, dict(copy.headers)) for copy in self.source.dead_letters]


class GroupSide:
    """A consumer group on the embedded broker."""

    def __init__(self, cluster: EmbeddedCluster, producer: Producer) -> None:
        self._cluster = cluster
        self._producer = producer

    def queue(self, **settings: Any) -> WorkQueue:
        """See Side."""
        source = GroupSource(self._cluster.bootstrap_servers, "billing", TOPIC)
        return WorkQueue(source, **{"initial_position": "earliest"} | settings)

    async def send(self, *values: bytes, key: bytes | None = None, headers: Sequence[Header] = ()) -> None:
        """See Side."""
        for value in values:
            await self._producer.send(TOPIC, value, key=key, headers=headers, partition=0)

    def dead_letters(self) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """See Side."""
        topic = f"{TOPIC}-billing-DLQ"
        if topic not in self._cluster.topics:
            return []
        return [(record.value, dict(record.headers)) for record in self._cluster.records(topic)]


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
