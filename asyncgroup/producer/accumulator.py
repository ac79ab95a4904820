"""Record accumulator: a queue of batches per partition, and the decision which batches to send now.

Synchronous state without I/O or tasks; the current time is a parameter. A partition has at most one batch in flight,
and a failed batch goes back to the head of its queue, so that records keep their order through retries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from asyncgroup.config import ProducerConfig
from asyncgroup.model import Header, RecordMetadata, TopicPartition
from asyncgroup.producer.batch import ProducerBatch
from asyncgroup.producer.buffer_memory import BufferMemory

__all__ = ["PartitionQueue", "RecordAccumulator", "SendPlan"]

NEVER = float("inf")
"""A loop time that never comes."""


class PartitionQueue:
    """The batches of one partition that are not done, oldest first."""

    __slots__ = ("batches", "in_flight", "open", "retry_at", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.batches: deque[ProducerBatch] = deque()
        """Batches waiting to be sent; the one in flight is not among them."""
        self.open: ProducerBatch | None = None
        """The last batch of `batches` while it accepts records."""
        self.in_flight: ProducerBatch | None = None
        self.retry_at = float("-inf")
        """Loop time before which nothing is sent."""

    def __repr__(self) -> str:
        state = "one in flight" if self.in_flight else "idle"
        return f"<PartitionQueue {self.tp} {len(self.batches)} batches, {state}>"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued and nothing is in flight."""
        return not self.batches and self.in_flight is None

    def close_open(self) -> None:
        """Close the open batch: it accepts no more records."""
        if self.open is not None:
            self.open.closed = True
            self.open = None

    def pop(self) -> ProducerBatch:
        """Remove and return the oldest queued batch."""
        if len(self.batches) == 1:
            self.close_open()
        return self.batches.popleft()


class SendPlan(NamedTuple):
    """What the sender does next."""

    requests: dict[int, list[ProducerBatch]]
    """Batches to send now, by the node id of their leader."""
    expired: list[ProducerBatch]
    """Batches whose delivery timeout has passed."""
    unknown_leader_topics: set[str]
    """Topics with a partition that has records to send and no known leader."""
    wake_at: float
    """Loop time at which to plan again at the latest; infinity if there is nothing to wait for."""


class RecordAccumulator:
    """All accepted records that are not done yet, as batches per partition. `clock` returns the loop's time (s)."""

    def __init__(self, config: ProducerConfig, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._codec = config.compression_type
        self._batch_size = config.batch_size
        self._linger = config.linger
        self._delivery_timeout = config.delivery_timeout
        self._max_request_size = config.max_request_size
        self.memory = BufferMemory(config.buffer_bytes)
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.incomplete: dict[ProducerBatch, None] = {}
        """Every batch that is not done, in order of creation; a dict used as an ordered set."""
        # partitions with queued batches and none in flight; a partition that was served moves to the end
        self._active: dict[PartitionQueue, None] = {}
        self._in_flight: dict[ProducerBatch, None] = {}

    def __repr__(self) -> str:
        return f"<RecordAccumulator {len(self.incomplete)} batches, {self.memory.used} of {self.memory.limit} bytes>"

    @property
    def records(self) -> int:
        """The number of records that are not done yet."""
        return sum(batch.count for batch in self.incomplete)

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        """Return the queue of a partition; create it if there is none."""
        queue = self.queues.get(tp)
        if queue is None:
            queue = self.queues[tp] = PartitionQueue(tp)
        return queue

    def forget(self, topic: str) -> None:
        """Drop the queues of a topic. They must be idle."""
        for tp in [tp for tp in self.queues if tp.topic == topic]:
            del self.queues[tp]

    # --- append ------------------------------------------------------------------------------------------------

    def append(
        self,
        queue: PartitionQueue,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        size: int,
        future: asyncio.Future[RecordMetadata] | None,
    ) -> bool:
        """Append a record for which `size` bytes are reserved; True if it started a batch: the sender must be woken."""
        batch = queue.open
        if batch is not None and batch.append(timestamp, key, value, headers, size, future):
            return False
        queue.close_open()
        now = self._clock()
        batch = ProducerBatch(queue.tp, self._codec, self._batch_size, now, now + self._delivery_timeout)
        batch.append(timestamp, key, value, headers, size, future)
        queue.batches.append(batch)
        queue.open = batch
        self.incomplete[batch] = None
        if queue.in_flight is None:
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
        in_flight_nodes: Container[int],
        *,
        skip_linger: bool = False,
    ) -> SendPlan:
        """Remove from the queues what can be sent at loop time `now`; `skip_linger` sends open batches at once.

        Nodes in `in_flight_nodes` get nothing. The batches of `requests` are in flight from here on: the caller must
        call `complete` or `reenqueue` for each. The caller must also `deallocate` and fail the `expired` ones; an
        expired batch that is in flight blocks its partition until its response arrives.
        """
        requests: dict[int, list[ProducerBatch]] = {}
        sizes: dict[int, int] = {}
        unknown_leader_topics: set[str] = set()
        expired, wake_at = self._expire(now)
        # `_active` is in the order of service, so that with full requests all partitions of a node get their turn
        for queue in list(self._active):
            batch = queue.batches[0]
            at = self._ready_at(queue, batch, skip_linger=skip_linger)
            if at > now:
                wake_at = min(wake_at, at)
                continue
            node = leader(queue.tp)
            if node < 0:
                unknown_leader_topics.add(queue.tp.topic)
                continue
            size = sizes.get(node, 0) + batch.size
            if node in in_flight_nodes or (node in sizes and size > self._max_request_size):
                continue  # it is sent after the response to the request in flight
            self._drain(queue)
            requests.setdefault(node, []).append(batch)
            sizes[node] = size
        return SendPlan(requests, expired, unknown_leader_topics, wake_at)

    def _expire(self, now: float) -> tuple[list[ProducerBatch], float]:
        """Return the batches past their deadline, and the next deadline. Queued ones are removed from their queue."""
        expired: list[ProducerBatch] = []
        next_deadline = NEVER
        for batch in self._in_flight:
            if batch.deadline > now:
                next_deadline = min(next_deadline, batch.deadline)
            elif not batch.done:
                expired.append(batch)
        for queue in [*self._active, *(self.queues[batch.tp] for batch in self._in_flight)]:
            while queue.batches and (queue.batches[0].done or queue.batches[0].deadline <= now):
                batch = queue.pop()
                if not batch.done:
                    expired.append(batch)
            if queue.batches:
                next_deadline = min(next_deadline, queue.batches[0].deadline)
            else:
                self._active.pop(queue, None)
        return expired, next_deadline

    def _ready_at(self, queue: PartitionQueue, batch: ProducerBatch, *, skip_linger: bool) -> float:
        if batch.closed or skip_linger:
            return queue.retry_at
        return max(queue.retry_at, batch.created_at + self._linger)

    def _drain(self, queue: PartitionQueue) -> None:
        batch = queue.pop()
        batch.attempts += 1
        queue.in_flight = batch
        self._in_flight[batch] = None
        del self._active[queue]

    def complete(self, batch: ProducerBatch) -> None:
        """The batch in flight is done; the next one of its partition may be sent."""
        self._remove_in_flight(batch).retry_at = float("-inf")

    def reenqueue(self, batch: ProducerBatch, at: float) -> None:
        """Put the batch in flight back at the head of its queue, which sends nothing before loop time `at`."""
        queue = self._remove_in_flight(batch)
        queue.retry_at = at
        queue.batches.appendleft(batch)  # if it has expired since, `plan` skips it
        self._active[queue] = None

    def _remove_in_flight(self, batch: ProducerBatch) -> PartitionQueue:
        queue = self.queues[batch.tp]
        del self._in_flight[batch]
        queue.in_flight = None
        if queue.batches:
            self._active[queue] = None
        return queue

    def deallocate(self, batch: ProducerBatch) -> bool:
        """Free the memory of a batch that is done; False if that happened before."""
        if batch not in self.incomplete:
            return False
        del self.incomplete[batch]
        self.memory.release(batch.reserved)
        return True
