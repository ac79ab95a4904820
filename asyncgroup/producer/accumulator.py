"""Record accumulator: a queue of batches per partition, and the decision which batches to send now.

Synchronous state without I/O or tasks; the current time is a parameter. `PartitionQueue` keeps the order of a partition.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Container, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ProducerConfig
from asyncgroup.model import Header, TopicPartition
from asyncgroup.producer.batch import COMPRESS_OFF_LOOP, ProducerBatch, ResultReceiver
from asyncgroup.producer.partition_queue import NO_ID, PartitionQueue
from asyncgroup.producer.pending_limits import ProducerMemory, partition_limits, producer_memory
from asyncgroup.wire.messages import NO_UUID

__all__ = ["RecordAccumulator", "SendPlan"]

COMPRESSED_AHEAD: Final = 8
"""Batches of a partition that are compressed before they can be sent."""

NEVER = float("inf")
"""A loop time that never comes."""


class SendPlan(NamedTuple):
    """What the sender does next."""

    requests: dict[int, list[ProducerBatch]]
    """Batches to send now, by the node id of their leader."""
    expired: list[ProducerBatch]
    """Batches whose delivery timeout has passed."""
    unknown_leader_topics: set[str]
    """Topics with a partition that has records to send and no known leader."""
    needs_id: bool
    """Whether a partition has records to send that need a producer id."""
    to_compress: list[ProducerBatch]
    """Closed batches to compress before they can be sent."""
    wake_at: float
    """Loop time at which to plan again at the latest; infinity if there is nothing to wait for."""


class RecordAccumulator:
    """All accepted records that are not done yet, as batches per partition. `clock` returns the loop's time (s)."""

    def __init__(
        self, config: ProducerConfig, clock: Callable[[], float], memory: ProducerMemory | None = None
    ) -> None:
        self._clock = clock
        self._codec, self._level = config.compression_type, config.compression_level
        self._batch_size = config.batch_size
        self._compresses = config.compression_type != "none"
        self._batch_records = config.effective_batch_records or sys.maxsize
        self._linger = config.effective_linger
        self._delivery_timeout = config.delivery_timeout
        self._max_request_size = config.max_request_size
        self._is_idempotent = config.effective_enable_idempotence
        self._is_transactional = config.transactional_id is not None
        self.memory = memory or producer_memory(config, None)
        self.partition_limits = partition_limits(config)
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.incomplete: dict[ProducerBatch, None] = {}
        """Every batch that is not done, in order of creation; a dict used as an ordered set."""
        # partitions with batches that are not in flight; one that was served moves to the end
        self._active: dict[PartitionQueue, None] = {}
        self._in_flight: dict[ProducerBatch, None] = {}
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

    @property
    def has_waiting_callers(self) -> bool:
        """Whether a caller waits until records are done."""
        return self.memory.waiting > 0 or bool(self.partition_limits and self.partition_limits.waiting)

    @property
    def has_waiting(self) -> bool:
        """Whether a batch is not in flight."""
        return bool(self._active)

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        """Return the queue of a partition; create it if there is none."""
        queue = self.queues.get(tp)
        if queue is None:
            queue = self.queues[tp] = PartitionQueue(
                tp, is_idempotent=self._is_idempotent, is_transactional=self._is_transactional
            )
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
        for tp in [tp for tp in self.queues if tp.topic == topic]:
            del self.queues[tp]

    # --- recreated topics --------------------------------------------------------------------------------------

    def topic_id(self, topic: str) -> UUID:
        """Return the id that a topic's records were accepted for; the zero UUID if brokers are too old to have ids."""
        return self._topic_ids.get(topic, NO_UUID)

    def update_topic_id(self, topic: str, topic_id: UUID) -> None:
        """Compare a topic's id in newer metadata with the known one; orphan the batches of a topic that was recreated.

        They must not get into the new topic (franz-go fails them, too). What is in flight still gets its result.
        """
        known = self.topic_id(topic)
        if topic_id in (known, NO_UUID):
            return
        self._topic_ids[topic] = topic_id
        if known == NO_UUID:
            return
        for queue in [queue for tp, queue in self.queues.items() if tp.topic == topic]:
            self._orphans += queue.expire(NEVER)
            self._orphans_in_flight.update(batch for batch in queue.sent if not batch.done)
            queue.restart()
            self._update(queue)

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

    def use_transactional_id(self, producer_id: int, epoch: int) -> None:
        """Number the batches of all partitions from 0 on under the producer id and epoch of a transactional id.

        Nothing is in flight, and no batch that was sent is left.
        """
        self._producer_id, self._epoch = producer_id, epoch
        for queue in self.queues.values():
            queue.set_producer_id(producer_id, epoch)

    def remove_done(self) -> bool:
        """Remove the batches that are done from their queues; return whether the result of one is unknown."""
        self._expire(float("-inf"))
        return any(queue.has_gap for queue in self.queues.values())

    def take_without_id(self) -> list[ProducerBatch]:
        """Remove the batches that need a producer id from their queues, and return them."""
        waiting = [queue for queue in self.queues.values() if queue.needs_id]
        batches = [batch for queue in waiting for batch in queue.expire(NEVER)]
        for queue in waiting:
            self._update(queue)
        return batches

    # --- append ------------------------------------------------------------------------------------------------

    def append(
        self,
        queue: PartitionQueue,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        size: int,
        future: ResultReceiver | None,
    ) -> bool:
        """Append a record for which `size` bytes are reserved; True if it began or filled a batch: the sender must be woken."""
        batch = queue.open
        if batch is not None and batch.append(timestamp, key, value, headers, size, future):
            return batch.closed
        now = self._clock()
        batch = ProducerBatch(
            queue.tp,
            self._codec,
            self._batch_size,
            now,
            now + self._delivery_timeout,
            level=self._level,
            transactional=self._is_transactional,
            most_records=self._batch_records,
        )
        batch.append(timestamp, key, value, headers, size, future)
        queue.add(batch)
        self.incomplete[batch] = None
        self._active[queue] = None
        return True

    def close_open(self) -> None:
        """Close all open batches, so that they are sent without lingering."""
        for batch in self.incomplete:
            if not batch.closed:
                self.queues[batch.tp].close_open()

    # --- send plan ---------------------------------------------------------------------------------------------

    def plan(
        self,
        now: float,
        leader: Callable[[TopicPartition], int],
        busy_nodes: Container[int],
        *,
        skip_linger: bool = False,
        admit: Callable[[TopicPartition], bool] | None = None,
    ) -> SendPlan:
        """Plan at most one request to each node at loop time `now`; `skip_linger` sends open batches at once.

        `admit`, if given, says whether a partition belongs to the transaction already; if not, its batches wait.

        Nodes in `busy_nodes` get nothing. The batches of `requests` are in flight from here on: the caller must call
        `succeed`, `retry`, `drop` or `split` for each. The caller must also `deallocate` and fail the `expired` ones; one
        that is in flight still gets its result.
        """
        requests: dict[int, list[ProducerBatch]] = {}
        sizes: dict[int, int] = {}
        unknown_leader_topics: set[str] = set()
        to_compress: list[ProducerBatch] = []
        needs_id = False
        expired, wake_at = self._expire(now)
        # `_active` is in the order of service, so that with full requests all partitions of a node get their turn
        for queue in list(self._active):
            needs_id |= queue.needs_id
            if self._compresses:
                to_compress += self._begin_compressing(queue, now, skip_linger=skip_linger)
            batch = queue.next_batch(now)
            if batch is None:
                continue  # it has to wait for results, or for a producer id
            if admit is not None and not admit(queue.tp):
                continue  # it has to wait for AddPartitionsToTxn
            at = self._ready_at(queue, batch, skip_linger=skip_linger)
            if at > now:
                wake_at = min(wake_at, at)
                continue
            if batch.compressing:
                continue
            node = leader(queue.tp)
            if node < 0:
                unknown_leader_topics.add(queue.tp.topic)
                continue
            size = sizes.get(node, 0) + batch.size
            if node in busy_nodes or (node in sizes and size > self._max_request_size):
                continue  # it is sent after the response to a request in flight
            if queue.in_flight and queue.node != node:
                continue  # the leader has moved: the former one's results come first
            self._begin(queue, batch, node)
            requests.setdefault(node, []).append(batch)
            sizes[node] = size
        return SendPlan(requests, expired, unknown_leader_topics, needs_id, to_compress, wake_at)

    def _expire(self, now: float) -> tuple[list[ProducerBatch], float]:
        """Return the batches past their deadline, and the next deadline. Waiting ones are removed from their queue."""
        expired: list[ProducerBatch] = []
        next_deadline = NEVER
        for batch in self._in_flight:
            if batch.deadline > now:
                next_deadline = min(next_deadline, batch.deadline)
            elif not batch.done:
                expired.append(batch)
        for queue in list(self._active):
            expired += queue.expire(now)
            next_deadline = min(next_deadline, queue.next_deadline)
            self._update(queue)
        return expired, next_deadline

    def _ready_at(self, queue: PartitionQueue, batch: ProducerBatch, *, skip_linger: bool) -> float:
        if batch.closed or skip_linger:
            return queue.retry_at
        return max(queue.retry_at, batch.created_at + self._linger)

    def _begin_compressing(
        self, queue: PartitionQueue, now: float, *, skip_linger: bool
    ) -> list[ProducerBatch]:
        """Return the batches of a queue to compress on a thread: large ones that are closed, or have lingered."""
        found: list[ProducerBatch] = []
        for batch in itertools.islice(queue.fresh, COMPRESSED_AHEAD):
            if (
                batch.compressing is None
                and batch.size >= COMPRESS_OFF_LOOP
                and (batch.closed or self._ready_at(queue, batch, skip_linger=skip_linger) <= now)
            ):
                if batch is queue.open:
                    queue.close_open()
                batch.closed = batch.compressing = True
                found.append(batch)
        return found

    def _begin(self, queue: PartitionQueue, batch: ProducerBatch, node: int) -> None:
        queue.begin(batch, node)
        self._in_flight[batch] = None
        del self._active[queue]
        self._update(queue)

    def _update(self, queue: PartitionQueue) -> None:
        """Make a queue active if it has a batch that is not in flight."""
        if queue.has_waiting:
            self._active[queue] = None
        else:
            self._active.pop(queue, None)

    # --- results ------------------------------------------------------------------------------------------------

    def succeed(self, batch: ProducerBatch) -> None:
        """The batch in flight is in the log."""
        self._end(batch).succeed(batch, self._clock())

    def retry(self, batch: ProducerBatch, at: float, *, is_out_of_order: bool = False) -> None:
        """Send the batch in flight again, not before loop time `at`; it is dropped if its time is over."""
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
        queue, parts = self._end(batch), batch.split(self._codec, self._level)
        queue.split(batch, parts)
        del self.incomplete[batch]
        self.incomplete |= dict.fromkeys(parts)
        self._update(queue)
        return parts

    def _end(self, batch: ProducerBatch) -> PartitionQueue:
        del self._in_flight[batch]
        self._orphans_in_flight.discard(batch)
        return self.queues[batch.tp]

    def deallocate(self, batch: ProducerBatch) -> bool:
        """Free the memory of a batch that is done; False if that happened before."""
        if batch not in self.incomplete:
            return False
        del self.incomplete[batch]
        self.memory.release(batch.reserved, batch.count)
        if self.partition_limits is not None:
            self.partition_limits.release(batch.tp, batch.reserved, batch.count)
        return True
