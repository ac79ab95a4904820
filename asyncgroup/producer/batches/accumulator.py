"""Record accumulator: all records that are not done, as a queue of batches per partition.

Synchronous state without I/O or tasks; the current time is a parameter. `PartitionQueue` keeps the order of a partition, and
`SendSchedule` decides which batches to send now.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from uuid import UUID

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ProducerConfig
from asyncgroup.memory.pending_limits import ProducerMemory, partition_limits, producer_memory
from asyncgroup.model import Header, TopicPartition
from asyncgroup.producer.batches.batch import BatchFormat, ProducerBatch
from asyncgroup.producer.batches.partition_queue import LONG_AGO, NO_ID, PartitionQueue
from asyncgroup.producer.batches.results import ResultReceiver
from asyncgroup.producer.batches.schedule import NEVER, SendSchedule
from asyncgroup.wire.messages import NO_UUID

__all__ = ["RecordAccumulator"]


class RecordAccumulator:
    """All accepted records that are not done yet, as batches per partition. `clock` returns the loop's time (s)."""

    def __init__(
        self, config: ProducerConfig, clock: Callable[[], float], memory: ProducerMemory | None = None
    ) -> None:
        self.clock = clock
        """Returns the loop's time."""
        self._delivery_timeout = config.delivery_timeout
        self._is_idempotent = config.effective_enable_idempotence
        self._is_transactional = config.transactional_id is not None
        self._format = BatchFormat(
            config.compression_type,
            config.batch_size,
            config.compression_level,
            self._is_transactional,
            config.effective_batch_records or sys.maxsize,
        )
        self.memory = memory or producer_memory(config, None)
        self.partition_limits = partition_limits(config)
        self.schedule = SendSchedule(config)
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self._queues_of: defaultdict[str, list[PartitionQueue]] = defaultdict(list)  # by topic
        self.incomplete: dict[ProducerBatch, None] = {}
        """Every batch that is not done, in order of creation; a dict used as an ordered set."""
        self._topic_ids: dict[str, UUID] = {}
        self._orphans: list[ProducerBatch] = []  # of recreated topics, removed from their queues
        self._orphans_in_flight: set[ProducerBatch] = set()
        self._producer_id, self._epoch = NO_ID, 0  # of new queues

    def __repr__(self) -> str:
        return f"<RecordAccumulator {len(self.incomplete)} batches, {self.memory.used} of {self.memory.limit} bytes>"

    @property
    def records(self) -> int:
        """The number of records that are not done yet."""
        return sum(batch.count for batch in self.incomplete)

    def has_waiting_callers(self) -> bool:
        """Return whether a caller waits until records are done."""
        return self.memory.waiting > 0 or bool(self.partition_limits and self.partition_limits.waiting)

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        """Return the queue of a partition; create it if there is none."""
        queue = self.queues.get(tp)
        if queue is None:
            queue = self.queues[tp] = PartitionQueue(
                tp, is_idempotent=self._is_idempotent, is_transactional=self._is_transactional
            )
            self._queues_of[tp.topic].append(queue)
            if self._is_idempotent and self._producer_id != NO_ID:
                queue.set_producer_id(self._producer_id, self._epoch)
        return queue

    def forget(self, topic: str) -> None:
        """Drop the queues of a topic. They must be idle.

        New queues get another producer id: under this one the brokers remember sequence numbers that were forgotten here.
        In transactions the queues stay, as the producer id does.
        """
        if self._is_transactional:
            return
        self._producer_id = NO_ID
        self._topic_ids.pop(topic, None)
        for queue in self._queues_of.pop(topic, ()):
            del self.queues[queue.tp]
            self.schedule.forget(queue)

    # --- recreated topics --------------------------------------------------------------------------------------

    def topic_id(self, topic: str) -> UUID:
        """Return the id that a topic's records were accepted for; the zero UUID if brokers are too old to have ids."""
        return self._topic_ids.get(topic, NO_UUID)

    def update_topic_id(self, topic: str, topic_id: UUID) -> None:
        """Compare a topic's id in newer metadata with the known one; orphan the batches of a topic that was recreated.

        They must not get into the new topic (franz-go also fails them). What is in flight still gets its result.
        """
        known = self.topic_id(topic)
        if topic_id in (known, NO_UUID):
            return
        self._topic_ids[topic] = topic_id
        if known == NO_UUID:
            return
        for queue in self._queues_of.get(topic, ()):
            self._orphans += queue.expire(NEVER)
            self._orphans_in_flight.update(batch for batch in queue.sent if not batch.done)
            queue.restart()
            self.schedule.on_change(queue)

    def update_topic_ids(self, view: ClusterView) -> None:
        """Compare the ids of all topics with those in newer metadata."""
        for topic in list(self._topic_ids):
            if topic in view.topics:
                self.update_topic_id(topic, view.topics[topic].topic_id)

    def take_orphans(self) -> list[ProducerBatch]:
        """Return the batches of recreated topics; the caller must `deallocate` and fail them."""
        orphans, self._orphans = self._orphans, []
        return orphans

    def is_orphan(self, batch: ProducerBatch) -> bool:
        """Return whether a batch in flight is for a topic that was recreated, and must not be sent again."""
        return batch in self._orphans_in_flight

    def set_producer_id(self, producer_id: int) -> None:
        """Use a new producer id for all partitions that need one, and for later ones."""
        self._producer_id = producer_id
        for queue in self.queues.values():
            if queue.needs_id:
                queue.set_producer_id(producer_id)
        self.schedule.on_producer_id()

    def use_transactional_id(self, producer_id: int, epoch: int) -> None:
        """Number the batches of all partitions from 0 on under the producer id and epoch of a transactional id.

        Nothing is in flight, and no batch that was sent is left.
        """
        self._producer_id, self._epoch = producer_id, epoch
        for queue in self.queues.values():
            queue.set_producer_id(producer_id, epoch)
        self.schedule.on_producer_id()

    def remove_done(self) -> bool:
        """Remove the batches that are done from their queues; return whether the result of one is unknown."""
        for queue in self.queues.values():
            if queue.has_waiting:
                queue.expire(LONG_AGO)
                self.schedule.on_change(queue)
        return any(queue.has_gap for queue in self.queues.values())

    def take_without_id(self) -> list[ProducerBatch]:
        """Remove the batches that need a producer id from their queues, and return them."""
        waiting = [queue for queue in self.queues.values() if queue.needs_id]
        batches = [batch for queue in waiting for batch in queue.expire(NEVER)]
        for queue in waiting:
            self.schedule.on_change(queue)
        return batches

    # --- append ------------------------------------------------------------------------------------------------

    def append(
        self,
        queue: PartitionQueue,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        timestamp: int,
        size: int,
        future: ResultReceiver | None,
    ) -> bool:
        """Append a record for which `size` bytes are reserved; True if it filled a batch, which is sent at once."""
        batch = queue.open
        if batch is not None and batch.append(value, key, headers, timestamp, size, future):
            if future is not None:
                self.on_future(queue, future)
            return batch.closed and self.on_filled(queue)
        now = self.clock()
        is_filled = batch is not None  # the open one has no room for it
        batch = ProducerBatch(queue.tp, self._format, now, now + self._delivery_timeout)
        batch.append(value, key, headers, timestamp, size, future)
        queue.add(batch)
        self.incomplete[batch] = None
        self.schedule.on_batch_begun(queue, batch)
        if future is not None:
            self.on_future(queue, future)
        return (is_filled or batch.closed) and self.on_filled(queue)

    def on_future(self, queue: PartitionQueue, future: ResultReceiver) -> None:
        """A record with a future was appended to a queue: if its caller waits, it is sent without lingering."""
        # a future of `send` has the attribute, one of `send_nowait` has not
        if self.schedule.sends_awaited_at_once and getattr(future, "is_awaited", False):
            self.schedule.on_awaited(queue, self.clock())

    def on_filled(self, queue: PartitionQueue) -> bool:
        """The open batch of a queue has no room for more records; return True."""
        self.schedule.on_batch_ready(queue, self.clock())
        return True

    def close(self, queue: PartitionQueue) -> bool:
        """Close the open batch of a queue, so that it is sent without lingering; return whether there was one."""
        if queue.open is None:
            return False
        queue.close_open()
        return self.on_filled(queue)

    def close_open(self) -> None:
        """Close all open batches, so that they are sent without lingering."""
        for batch in self.incomplete:
            if not batch.closed:
                self.close(self.queues[batch.tp])

    # --- results ------------------------------------------------------------------------------------------------

    def succeed(self, batch: ProducerBatch) -> None:
        """The batch in flight is in the log."""
        queue = self._end(batch)
        queue.succeed(batch, self.clock())
        self._update(queue)

    def retry(self, batch: ProducerBatch, at: float, *, is_out_of_order: bool = False) -> None:
        """Send the batch in flight again, not before loop time `at`; it is dropped if its time has passed."""
        queue = self._end(batch)
        if batch.done:
            queue.drop(batch)
        else:
            queue.fail(batch, at, is_out_of_order=is_out_of_order)
        self._update(queue)

    def drop(self, batch: ProducerBatch) -> None:
        """Give up the batch in flight."""
        queue = self._end(batch)
        queue.drop(batch)
        self._update(queue)

    def is_first(self, batch: ProducerBatch) -> bool:
        """Return whether no earlier batch of its partition is without a result."""
        return self.queues[batch.tp].is_first(batch)

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Replace the batch in flight, which is too large for the broker, by two; return them."""
        queue, parts = self._end(batch), batch.split()
        queue.split(batch, parts)
        del self.incomplete[batch]
        self.incomplete |= dict.fromkeys(parts)
        self._update(queue)
        return parts

    def _end(self, batch: ProducerBatch) -> PartitionQueue:
        """Return the queue of a batch in flight that gets its result now."""
        self._orphans_in_flight.discard(batch)
        return self.queues[batch.tp]

    def _update(self, queue: PartitionQueue) -> None:
        """A result has changed a queue: its next batch may be sent now."""
        if queue.has_waiting:
            self.schedule.on_change(queue)

    def on_compressed(self, batches: Sequence[ProducerBatch]) -> None:
        """These batches are compressed; they may be sent."""
        for batch in batches:
            if (queue := self.queues.get(batch.tp)) is not None:
                self.schedule.on_change(queue)

    def deallocate(self, batch: ProducerBatch) -> bool:
        """Free the memory of a batch that is done; False if that happened before."""
        if batch not in self.incomplete:
            return False
        del self.incomplete[batch]
        self.memory.release(batch.reserved, batch.count)
        if self.partition_limits is not None:
            self.partition_limits.release(batch.tp, batch.reserved, batch.count)
        return True
