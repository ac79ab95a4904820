"""Batches by partition, and which of them may be sent now.

Pure state: no I/O, no tasks; time comes in as a number. A partition has one batch under way at a time, and a batch
that failed goes back to the head of its queue, so records keep their order through every retry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from asyncgroup.config import ProducerConfig
from asyncgroup.model import Header, RecordMetadata, TopicPartition
from asyncgroup.producer.batch import ProducerBatch

__all__ = ["PartitionQueue", "RecordAccumulator", "SendPlan"]

NEVER = float("inf")


class PartitionQueue:
    """The batches of one partition, oldest first; `open` is the last one while it takes records.

    `in_flight` is the batch under way; before `retry_at` (the loop's time) nothing is sent.
    """

    __slots__ = ("batches", "in_flight", "open", "retry_at", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.batches: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.in_flight: ProducerBatch | None = None
        self.retry_at = float("-inf")

    def __repr__(self) -> str:
        state = "one under way" if self.in_flight else "idle"
        return f"<PartitionQueue {self.tp} {len(self.batches)} batches, {state}>"

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to send and nothing under way."""
        return not self.batches and self.in_flight is None

    def close_open(self) -> None:
        """Let the open batch take no more records."""
        if self.open is not None:
            self.open.closed = True
            self.open = None

    def pop(self) -> ProducerBatch:
        """Take the oldest batch out of the queue."""
        if len(self.batches) == 1:
            self.close_open()
        return self.batches.popleft()


class SendPlan(NamedTuple):
    """What the sender has to do next.

    `requests`: the batches to send now, by leader node. `expired`: batches beyond their delivery timeout. `unknown_leader_topics`:
    topics of which a partition has something to send and no known leader. `wake_at`: when to look again at the
    latest (the loop's time).
    """

    requests: dict[int, list[ProducerBatch]]
    expired: list[ProducerBatch]
    unknown_leader_topics: set[str]
    wake_at: float


class RecordAccumulator:
    """All records that were accepted and are not yet done. `clock` is the loop's time in seconds."""

    def __init__(self, config: ProducerConfig, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._codec, self._batch_size = config.compression_type, config.batch_size
        self._linger, self._delivery_timeout = config.linger, config.delivery_timeout
        self._max_request_size = config.max_request_size
        self.buffer_bytes = config.buffer_bytes
        self.used_bytes = 0
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.incomplete: dict[ProducerBatch, None] = {}
        # partitions with something to send and nothing under way; whoever was served goes to the end
        self._active: dict[PartitionQueue, None] = {}
        self._in_flight: dict[ProducerBatch, None] = {}

    def __repr__(self) -> str:
        return f"<RecordAccumulator {len(self.incomplete)} batches, {self.used_bytes} of {self.buffer_bytes} bytes>"

    @property
    def records(self) -> int:
        """Records that are not yet done."""
        return sum(batch.count for batch in self.incomplete)

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        """The queue of a partition, made if there is none."""
        queue = self.queues.get(tp)
        if queue is None:
            queue = self.queues[tp] = PartitionQueue(tp)
        return queue

    def forget(self, topic: str) -> None:
        """Drop the queues of a topic, which are idle."""
        for tp in [tp for tp in self.queues if tp.topic == topic]:
            del self.queues[tp]

    # --- the buffer ---------------------------------------------------------------------------------------------

    def reserve(self, size: int) -> bool:
        """Take `size` bytes of the buffer; False if it has no room. An empty buffer has room for any record."""
        used = self.used_bytes + size
        if used > self.buffer_bytes and self.used_bytes:
            return False
        self.used_bytes = used
        return True

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        self.used_bytes -= size

    # --- records in ---------------------------------------------------------------------------------------------

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
        """Add a record, for which `size` bytes are reserved; True if it began a batch, which the sender must see."""
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
        """Let no batch wait for more records any longer: a flush."""
        for batch in self.incomplete:
            if not batch.closed:
                self.queues[batch.tp].close_open()

    # --- batches out --------------------------------------------------------------------------------------------

    def plan(
        self,
        now: float,
        leader: Callable[[TopicPartition], int],
        in_flight_nodes: Container[int],
        *,
        skip_linger: bool = False,
    ) -> SendPlan:
        """Take out what can be sent at `now` to nodes that are not `in_flight_nodes`; `skip_linger` lets no batch linger.

        The batches of `requests` are under way from here on: each must come back by `complete` or `reenqueue`. The `expired`
        ones are the caller's to end and fail; one that is under way blocks its partition until its answer comes.
        """
        requests: dict[int, list[ProducerBatch]] = {}
        sizes: dict[int, int] = {}
        unknown_leader_topics: set[str] = set()
        expired, wake_at = self._expire(now)
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
                continue  # its turn comes with the answer that the node owes
            self._drain(queue)
            requests.setdefault(node, []).append(batch)
            sizes[node] = size
        return SendPlan(requests, expired, unknown_leader_topics, wake_at)

    def _expire(self, now: float) -> tuple[list[ProducerBatch], float]:
        """The batches beyond their deadline, those in queues taken out; and the next deadline."""
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
        """A batch that was under way has its final answer; the next one of its partition may go."""
        self._remove_in_flight(batch).retry_at = float("-inf")

    def reenqueue(self, batch: ProducerBatch, at: float) -> None:
        """A batch that was under way goes back to the head of its queue, and nothing is sent from there before `at`."""
        queue = self._remove_in_flight(batch)
        queue.retry_at = at
        queue.batches.appendleft(batch)  # `plan` passes it over if it has expired meanwhile
        self._active[queue] = None

    def _remove_in_flight(self, batch: ProducerBatch) -> PartitionQueue:
        queue = self.queues[batch.tp]
        del self._in_flight[batch]
        queue.in_flight = None
        if queue.batches:
            self._active[queue] = None
        return queue

    def deallocate(self, batch: ProducerBatch) -> bool:
        """Forget a batch and free its bytes, whatever became of it; False if that was done before."""
        if batch not in self.incomplete:
            return False
        del self.incomplete[batch]
        self.release(batch.reserved)
        return True
