"""Choose the partition of each record of one topic; queue records while the topic is being looked up.

Partitioning is as in the Java producer, so that a key maps to the same partition from either client: a record with a key
goes to `to_positive(murmur2(key)) % partitions` (`BuiltInPartitioner.partitionForKey` of kafka-clients). Records without a
key stick to one partition until its batch is closed, then move to another partition at random (KIP-480): small records
fill large batches, and over time the partitions are used evenly.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.errors import BrokerError, ConfigError, ErrorCode
from asyncgroup.model import Header, RecordMetadata, TopicPartition
from asyncgroup.producer.accumulator import RecordAccumulator
from asyncgroup.producer.partition_queue import PartitionQueue
from asyncgroup.wire.murmur2 import partition_for_key

__all__ = ["Partitioner", "PendingRecord", "Route", "StickyPartition"]

Partitioner: TypeAlias = Callable[[bytes | None, int], int]
RecordFuture: TypeAlias = "asyncio.Future[RecordMetadata] | None"

MAX_CACHED_KEYS: Final = 10_000
"""Keys per topic whose partition is cached: hashing a key costs as much as all other work for its record."""


class PendingRecord(NamedTuple):
    """A record that waits for the metadata of its topic."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    partition: int | None
    size: int
    """Bytes of buffer memory reserved for it."""
    future: RecordFuture
    deadline: float
    """Loop time at which its delivery timeout expires."""


class StickyPartition:
    """The partition that records without a key currently go to; `next_partition` chooses another one."""

    __slots__ = ("_random", "current")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.current = -1
        """-1 before the first choice."""

    def __repr__(self) -> str:
        return f"<StickyPartition {self.current}>"

    def next_partition(self, available: Sequence[int]) -> int:
        """Choose one of `available` (not empty) at random; not the current one unless it is the only one."""
        if self.current not in available:
            self.current = self._random.choice(available)
        elif len(available) > 1:
            # uniform over all but the current one, without building a list of them
            place = self._random.randrange(len(available) - 1)
            self.current = available[place] if available[place] != self.current else available[-1]
        return self.current


class Route:
    """The partitions of one topic by the current metadata, and the choice of one for each record."""

    __slots__ = (
        "_accumulator",
        "_available",
        "_partitioner",
        "_queue_by_key",
        "_queues",
        "_sticky_partition",
        "backlog",
        "last_used_at",
        "lookup",
        "partition_count",
        "recently_used",
        "topic",
        "view",
    )

    def __init__(
        self, topic: str, accumulator: RecordAccumulator, partitioner: Partitioner | None, rng: random.Random
    ) -> None:
        self.topic = topic
        self._accumulator = accumulator
        self._partitioner = partitioner
        self._sticky_partition = StickyPartition(rng)
        self._queues: list[PartitionQueue] = []  # by partition number
        self._available: list[int] = []  # partitions with a known leader; all of them if none has one
        self._queue_by_key: dict[bytes, PartitionQueue] = {}
        self.backlog: deque[PendingRecord] = deque()
        """Records that wait for the lookup, oldest first."""
        self.lookup: asyncio.Future[None] | None = None
        """Done when the lookup under way has routed or failed the backlog; None if there is none."""
        self.partition_count = 0
        """0 while the topic is unknown."""
        self.recently_used = True
        """Whether a record was written since `last_used_at` was last updated."""
        self.last_used_at = float("-inf")
        """Loop time of the last check for idle topics at which this topic was in use."""
        self.view: ClusterView | None = None
        """The metadata that the partitions were taken from."""

    def __repr__(self) -> str:
        return f"<Route {self.topic}: {self.partition_count} partitions, {len(self.backlog)} records waiting>"

    @property
    def is_idle(self) -> bool:
        """Whether all its records are done."""
        return not self.backlog and self.lookup is None and all(queue.is_idle for queue in self._queues)

    def update(self, view: ClusterView) -> None:
        """Update the partitions from new metadata."""
        self.view = view
        info = view.topics.get(self.topic)
        partitions = info.partitions if info is not None and not info.error_code else {}
        if len(partitions) != self.partition_count:
            self._queue_by_key.clear()
        self.partition_count = len(partitions)
        for number in range(len(self._queues), self.partition_count):
            self._queues.append(self._accumulator.queue(TopicPartition(self.topic, number)))
        led = [number for number, part in partitions.items() if part.leader in view.brokers]
        self._available = sorted(led) or list(range(self.partition_count))
        if self._sticky_partition.current not in self._available:
            self._sticky_partition.current = -1

    def put(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        size: int,
        future: RecordFuture,
    ) -> bool:
        """Append a record for which `size` bytes are reserved to its partition; True if it began or filled a batch.

        Raises BrokerError for a partition that does not exist, ConfigError if the partitioner returns an invalid one.
        """
        if partition is not None:
            if not 0 <= partition < self.partition_count:
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"partition {self.topic}-{partition}",
                    f"the topic has {self.partition_count} partitions",
                )
            queue = self._queues[partition]
        elif self._partitioner is not None:
            queue = self._queues[self._custom_partition(self._partitioner, key)]
        elif key is not None:
            queue = self._queue_by_key.get(key) or self._queue_for_key(key)
        else:
            return self._put_without_key(timestamp, value, headers, size, future)
        return self._accumulator.append(queue, timestamp, key, value, headers, size, future)

    def _put_without_key(
        self, timestamp: int, value: bytes | None, headers: Sequence[Header], size: int, future: RecordFuture
    ) -> bool:
        """Append a record without a key to the open batch of the sticky partition, or else to another partition."""
        if self._sticky_partition.current >= 0:
            queue = self._queues[self._sticky_partition.current]
            batch = queue.open
            if batch is not None and batch.append(timestamp, None, value, headers, size, future):
                return batch.closed
            queue.close_open()
        queue = self._queues[self._sticky_partition.next_partition(self._available)]
        self._accumulator.append(queue, timestamp, None, value, headers, size, future)
        return True

    def _queue_for_key(self, key: bytes) -> PartitionQueue:
        queue = self._queues[partition_for_key(key, self.partition_count)]
        if len(self._queue_by_key) >= MAX_CACHED_KEYS:
            self._queue_by_key.clear()
        self._queue_by_key[key] = queue
        return queue

    def _custom_partition(self, partitioner: Partitioner, key: bytes | None) -> int:
        number = partitioner(key, self.partition_count)
        if type(number) is not int or not 0 <= number < self.partition_count:
            raise ConfigError(
                f"the partitioner returned {number!r} for a key of topic {self.topic!r}: "
                f"allowed is a partition from 0 to {self.partition_count - 1}"
            )
        return number
