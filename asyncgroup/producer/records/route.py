"""Choose the partition of each record of one topic; queue records while it, or the partition, is looked up.

`partitioners.py` has the rules. By default records without a key stick to one partition: after `batch_size` bytes, and when
its open batch is full or sent, they move to another one at random (KIP-794): small records fill large batches, and each
partition gets an equal share of the bytes, also one of a slow broker.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ProducerConfig
from asyncgroup.counting import counted
from asyncgroup.errors import ConfigError, InvalidRecordError
from asyncgroup.model import Header, TopicPartition
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.producer.batches.partition_queue import PartitionQueue
from asyncgroup.producer.batches.results import ResultReceiver
from asyncgroup.producer.partitioners import StickyPartition, topic_rule

__all__ = ["Lookup", "PendingRecord", "Placement", "Route"]

MAX_CACHED_KEYS: Final = 10_000
"""Keys per topic whose partition is cached: hashing a key costs as much as all other work for its record."""


@dataclass(slots=True)
class Placement:
    """The partition of all chunks of a value; None until the first of them is routed."""

    partition: int | None


class PendingRecord(NamedTuple):
    """A record that waits for the metadata of its topic or partition."""

    value: bytes | None
    key: bytes | None
    headers: Sequence[Header]
    partition: int | None
    timestamp: int
    size: int
    """Bytes of buffer memory reserved for it."""
    future: ResultReceiver | None
    deadline: float
    """Loop time at which its delivery timeout expires."""
    placement: Placement | None = None
    """Of a chunk: gives the partition instead of `partition`."""


@dataclass(slots=True, eq=False, repr=False)
class Lookup:
    """A lookup of a topic, or of one partition that its metadata lacks, and the records that wait for it."""

    partition: int | None
    """None: the topic is looked up."""
    backlog: deque[PendingRecord] = field(default_factory=deque)
    """The records, oldest first."""
    has_unplaced: bool = False
    """Whether one of them has no partition yet."""
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when the records were routed, have failed, or wait for another lookup."""

    def __repr__(self) -> str:
        what = "topic" if self.partition is None else f"partition {self.partition}"
        return f"<Lookup of a {what}: {len(self.backlog)} records waiting>"


class Route:
    """The partitions of one topic by the current metadata, and the choice of one for each record."""

    __slots__ = (
        "_accumulator",
        "_available",
        "_batch_size",
        "_choose",
        "_found",
        "_is_adaptive",
        "_key_partition",
        "_queue_by_key",
        "_queues",
        "_sticky",
        "last_used_at",
        "lookups",
        "partition_count",
        "recently_used",
        "topic",
        "view",
    )

    def __init__(
        self, topic: str, accumulator: RecordAccumulator, config: ProducerConfig, rng: random.Random
    ) -> None:
        self.topic = topic
        self._accumulator = accumulator
        self._key_partition, self._choose = topic_rule(topic, config, rng)
        self._batch_size = config.batch_size
        self._is_adaptive = config.adaptive_partitioning
        self._sticky = StickyPartition(rng)
        self._queues: list[PartitionQueue] = []  # by partition number
        self._available: list[int] = []  # partitions with a known leader; all of them if none has one
        self._queue_by_key: dict[bytes, PartitionQueue] = {}
        self.lookups: dict[int | None, Lookup] = {}
        """The lookups under way: that of the topic under None, those of partitions under their numbers."""
        self._found: dict[int, Lookup] = {}  # those of partitions that the metadata has by now
        self.partition_count = 0
        """0 while the topic is unknown."""
        self.recently_used = True
        """Whether a record was written since `last_used_at` was last updated."""
        self.last_used_at = float("-inf")
        """Loop time of the last check for idle topics at which this topic was in use."""
        self.view: ClusterView | None = None
        """The metadata that the partitions were taken from."""

    def __repr__(self) -> str:
        return f"<Route {self.topic}: {self.partition_count} partitions, {self.waiting} records waiting>"

    @property
    def waiting(self) -> int:
        """The number of records that wait for a lookup."""
        return sum(len(lookup.backlog) for lookup in self.lookups.values())

    @property
    def is_idle(self) -> bool:
        """Whether all its records are done."""
        return not self.lookups and all(queue.is_idle for queue in self._queues)

    def is_known(self, partition: int | None) -> bool:
        """Return whether a record, with this partition or with none, need not wait for a lookup.

        It waits also for one that began earlier, so that records of a partition keep their order.
        """
        if self.lookups and self._earlier_lookup(partition) is not None:
            return False
        return self.partition_count > (partition or 0)

    def _earlier_lookup(self, partition: int | None) -> Lookup | None:
        """Return a lookup whose records come before one with this partition, or with none, if they may share a partition."""
        if (same := self.lookups.get(None) or self.lookups.get(partition)) is not None:
            return same
        # the metadata has these partitions by now, so that a record without one may be put there
        for lookup in self._found.values():
            if partition is None or lookup.has_unplaced:
                return lookup
        return None

    def begin_lookup(self, number: int | None) -> Lookup:
        """Return a new lookup of the topic, or of one partition."""
        lookup = self.lookups[number] = Lookup(number)
        if number is not None and number < self.partition_count:
            self._found[number] = lookup
        return lookup

    def end_lookup(self, lookup: Lookup) -> None:
        """Forget a lookup: its records are put into their partitions next."""
        del self.lookups[lookup.partition]
        if lookup.partition is not None:
            self._found.pop(lookup.partition, None)

    def lookup_for(self, partition: int | None) -> int | None:
        """Return the key in `lookups` that a record has to wait for which `is_known` says is not known."""
        if (earlier := self._earlier_lookup(partition)) is not None:
            return earlier.partition
        return partition if self.partition_count else None

    def update(self, view: ClusterView) -> None:
        """Update the partitions from new metadata."""
        self.view = view
        info = view.topics.get(self.topic)
        partitions = info.partitions if info is not None and not info.error_code else {}
        if info is not None:
            self._accumulator.update_topic_id(self.topic, info.topic_id)
        # a key's partition depends on their number
        if len(partitions) != self.partition_count:
            self._queue_by_key.clear()
        self.partition_count = len(partitions)
        if self.lookups:
            self._found = {
                number: lookup
                for number, lookup in self.lookups.items()
                if number is not None and number < self.partition_count
            }
        for number in range(len(self._queues), self.partition_count):
            self._queues.append(self._accumulator.queue(TopicPartition(self.topic, number)))
        led = [number for number, part in partitions.items() if part.leader in view.brokers]
        self._available = sorted(led) or list(range(self.partition_count))
        if self._sticky.current not in self._available:
            self._sticky.current = -1

    def put(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        timestamp: int,
        size: int,
        future: ResultReceiver | None,
    ) -> bool:
        """Append a record for which `size` bytes are reserved to its partition; True if it filled a batch.

        Raises InvalidRecordError for a partition that does not exist, ConfigError if the partitioner returns an invalid one.
        """
        if partition is not None:
            if not 0 <= partition < self.partition_count:
                raise self.missing_partition(partition)
            return self._accumulator.append(
                self._queues[partition], value, key, headers, timestamp, size, future
            )
        if key is not None or self._choose is not None:
            queue = None if key is None else self._queue_by_key.get(key)
            queue = queue or self._decided_queue(key)
            if queue is not None:
                return self._accumulator.append(queue, value, key, headers, timestamp, size, future)
        sticky, is_filled = self._sticky, False
        if sticky.current >= 0:
            queue = self._queues[sticky.current]
            batch = queue.open
            if batch is not None:
                # the most frequent case, without a call of the accumulator
                if batch.append(value, key, headers, timestamp, size, future):
                    sticky.produced += size
                    if future is not None:
                        self._accumulator.on_future(queue, future)
                    return batch.closed and self._accumulator.on_filled(queue)
                is_filled = self._accumulator.close(queue)
        # the partition is changed only between two batches, as in Java (`allBatchesFull`): they are as large as possible
        queue = self._queues[self._sticky_partition(size)]
        return self._accumulator.append(queue, value, key, headers, timestamp, size, future) or is_filled

    def missing_partition(self, number: int) -> InvalidRecordError:
        """Return the error of a record for a partition that the topic does not have."""
        count = counted(self.partition_count, "partition")
        allowed = f"{TopicPartition(self.topic, number)} does not exist, the topic has {count}"
        return InvalidRecordError("partition", number, allowed)

    def put_pending(self, record: PendingRecord) -> bool:
        """Append a record that waited for the lookup. Raises as `put`."""
        value, key, headers, partition, timestamp, size, future, _, placement = record
        if placement is not None:
            partition = self.place(placement, key)
        return self.put(value, key, headers, partition, timestamp, size, future)

    def place(self, placement: Placement, key: bytes | None) -> int:
        """Return the partition of a chunk; choose it if it is the first one. Raises ConfigError as `put`."""
        if placement.partition is None:
            placement.partition = self.choose(key, self._batch_size, lambda _tp, _size: False)
        return placement.partition

    def choose(self, key: bytes | None, size: int, is_full: Callable[[TopicPartition, int], bool]) -> int:
        """Return the partition for a record of `size` bytes; the topic must be known. Without a key, not a full one.

        For producers with limits for each partition: they choose it before they wait, and then `put` it there.
        """
        if key is not None or self._choose is not None:
            queue = None if key is None else self._queue_by_key.get(key)
            queue = queue or self._decided_queue(key)
            if queue is not None:
                return queue.tp.partition
        number = self._sticky_partition(size)
        if is_full(TopicPartition(self.topic, number), size):
            free = [each for each in self._available if not is_full(TopicPartition(self.topic, each), size)]
            # if all are full, its caller waits for room in the one that it would have had
            return self._sticky.next_partition(free) if free else number
        return number

    def _decided_queue(self, key: bytes | None) -> PartitionQueue | None:
        """Return the queue that the key or the partitioner decides for; None if the record goes to the sticky partition."""
        if key is not None and self._key_partition is not None:
            number = self._key_partition(key, self.partition_count)
            if number >= 0:  # else it is treated as if there were no key
                if len(self._queue_by_key) >= MAX_CACHED_KEYS:
                    self._queue_by_key.clear()
                queue = self._queue_by_key[key] = self._queues[number]
                return queue
        if self._choose is None:
            return None
        number = self._choose(key, self.partition_count, self._available)
        if type(number) is not int or not 0 <= number < self.partition_count:
            raise ConfigError(
                f"the partitioner returned {number!r} for a key of topic {self.topic!r}: "
                f"allowed is a partition from 0 to {self.partition_count - 1}"
            )
        return self._queues[number]

    def _sticky_partition(self, size: int) -> int:
        """Return the partition of a record of `size` bytes without a key, another one than before once that has its share."""
        sticky = self._sticky
        sticky.produced += size
        if sticky.current < 0 or sticky.produced >= self._batch_size:
            queued = [self._queues[number].waiting for number in self._available] if self._is_adaptive else ()
            sticky.next_partition(self._available, queued)
            sticky.produced = size
        return sticky.current
