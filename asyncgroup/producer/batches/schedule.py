"""Send schedule: which partitions have a batch to send now, by node, and when the others have to be looked at.

A queue is looked at when something has changed: a batch began or was filled, a result arrived, a time has come. So a plan costs
as much as what has changed since the last one, however many partitions have records. Each queue with a batch that is not in
flight is in one place:

| place | until |
|---|---|
| lingering | its open batch has lingered or was filled, its caller waits and nothing is in flight, or callers wait for memory |
| backing off | the pause after a failure has passed |
| without producer id, not in the transaction | there is an id; AddPartitionsToTxn was answered |
| ready, by node | its node takes a request: fewer than `max_in_flight_requests` are in flight, and there is room for the batch |
| none | a result arrives, or its batch is compressed |
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Container
from heapq import heappop, heappush
from typing import Final, NamedTuple

from asyncgroup.config import ProducerConfig
from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.batch import COMPRESS_OFF_LOOP, ProducerBatch
from asyncgroup.producer.batches.partition_queue import PartitionQueue

__all__ = ["NEVER", "QueueTimes", "SendPlan", "SendSchedule"]

NEVER: Final = float("inf")
"""A loop time that never comes."""

COMPRESSED_AHEAD: Final = 8
"""Batches of a partition that are compressed before they can be sent."""

MAX_BATCHES: Final = 250
"""Batches of a request: about what can be encoded, and acknowledged, in a turn of the event loop of some milliseconds."""

COMPANY: Final = 0.005
"""Seconds, at most half of `linger`, by which batches are sent early together with one of their node that has lingered.

With 1,000 partitions their batches begin at as many different moments: each would be sent in a separate request, whose cost is
that of dozens of batches. Java's producer sends all batches of a node as soon as one has lingered (`RecordAccumulator.drain`).
"""

ROUNDING: Final = 1e-6
"""Seconds by which a batch that lingers longer is sent early: the sum that `_next_lingered` returns is rounded."""

_NO_NODES: Final[frozenset[int]] = frozenset()

Leader = Callable[[TopicPartition], int]
"""Return the node id of a partition's leader; -1 if it is unknown."""


class QueueTimes:
    """A heap of loop times with one entry for each queue: the earliest time that was put for it.

    A time is a reminder to look at the queue: its state may have changed since, so a later time than the known one is not put
    and none is removed. A caller that looks too early puts the queue again.
    """

    __slots__ = ("_at", "_heap", "_ties")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PartitionQueue]] = []
        self._at: dict[PartitionQueue, float] = {}
        """The time of each queue; an entry of the heap with another time is outdated."""
        self._ties = itertools.count()  # queues have no order

    def __repr__(self) -> str:
        return f"<QueueTimes of {len(self._at)} partitions, next at {self.next:g}>"

    def __len__(self) -> int:
        return len(self._at)

    @property
    def next(self) -> float:
        """The earliest time; infinity without any."""
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def put(self, queue: PartitionQueue, at: float) -> None:
        """Look at a queue at loop time `at`, unless an earlier time is known."""
        known = self._at.get(queue)
        if known is None or at < known:
            self._at[queue] = at
            heappush(self._heap, (at, next(self._ties), queue))

    def pop_due(self, now: float) -> list[PartitionQueue]:
        """Remove and return the queues whose time has come, in the order of their times."""
        heap, due = self._heap, []
        while heap and heap[0][0] <= now:
            at, _, queue = heappop(heap)
            if self._at.get(queue) == at:
                del self._at[queue]
                due.append(queue)
        return due

    def discard(self, queue: PartitionQueue) -> None:
        """Remove a queue."""
        self._at.pop(queue, None)


class SendPlan(NamedTuple):
    """What the sender does next."""

    requests: dict[int, list[ProducerBatch]]
    """Batches to send now, by the node id of their leader."""
    expired: list[ProducerBatch]
    """Batches whose delivery timeout has passed."""
    has_leaderless: bool
    """Whether a partition has records to send and no known leader."""
    needs_id: bool
    """Whether a partition has records to send that need a producer id."""
    to_compress: list[ProducerBatch]
    """Closed batches to compress before they can be sent."""
    wake_at: float
    """Loop time at which to plan again at the latest; infinity if there is nothing to wait for."""


class _Conditions(NamedTuple):
    """What a plan depends on besides the queues."""

    now: float
    lingered_at: float
    """Batches whose time to linger ends by this loop time do not linger any longer."""
    leader: Leader
    admit: Callable[[TopicPartition], bool] | None


class SendSchedule:
    """The places of all queues. State without I/O or tasks."""

    def __init__(self, config: ProducerConfig) -> None:
        self._linger = config.effective_linger
        self._company = min(COMPANY, self._linger / 2)
        self.sends_awaited_at_once = config.linger is None and self._linger > 0.0
        """Whether a batch with a record whose caller waits lingers only while batches of its partition are in flight."""
        self._max_request_size = config.max_request_size
        self._compresses = config.compression_type != "none"
        self._is_transactional = config.transactional_id is not None
        self.on_due: Callable[[float], None] = lambda _at: None
        """Called with the loop time at which a plan is due, if it is earlier than `SendPlan.wake_at`."""
        self._changed: dict[PartitionQueue, None] = {}
        """Queues to look at in the next plan; a dict used as an ordered set, as the others are."""
        self._deadlines = QueueTimes()
        """When the oldest batch of each queue expires."""
        self._lingering = QueueTimes()
        self._backing_off = QueueTimes()
        self._without_id: dict[PartitionQueue, None] = {}
        self._unadmitted: dict[PartitionQueue, None] = {}  # not in the transaction yet
        # by node (-1: unknown), in the order of service: with full requests all partitions get their turn
        self._ready: dict[int, OrderedDict[PartitionQueue, None]] = {}
        self._ready_node: dict[PartitionQueue, int] = {}  # of each queue in `_ready`
        self._leader: Leader | None = None  # of the last plan

    def __repr__(self) -> str:
        return (
            f"<SendSchedule {len(self._ready_node)} partitions ready, {len(self._lingering)} lingering, "
            f"{len(self._backing_off)} backing off>"
        )

    # --- changes ------------------------------------------------------------------------------------------------

    def on_change(self, queue: PartitionQueue) -> None:
        """Look at a queue in the next plan."""
        self._changed[queue] = None

    def on_batch_begun(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """A batch was added to a queue; it lingers unless it is full already."""
        self._deadlines.put(queue, batch.deadline)
        if batch.closed or not self._linger:
            self.on_batch_ready(queue, batch.created_at)
        elif queue.needs_id or self._is_transactional:
            # what it needs besides records is asked for at once
            self.on_batch_ready(queue, batch.created_at)
        else:
            at = batch.created_at + self._linger
            self._lingering.put(queue, at)
            self.on_due(at)

    def on_batch_ready(self, queue: PartitionQueue, now: float) -> None:
        """A batch of a queue is full, or must not linger any longer."""
        self._changed[queue] = None
        self.on_due(now)

    def on_awaited(self, queue: PartitionQueue, now: float) -> None:
        """A caller waits for a record in the open batch of a queue."""
        if queue.open is not None and not queue.open.is_awaited:
            queue.open.is_awaited = True
            self._changed[queue] = None
            if not queue.in_flight:
                self.on_due(now)

    def on_producer_id(self) -> None:
        """There is a producer id for all queues that need one."""
        self._changed |= self._without_id
        self._without_id.clear()

    def on_partitions_added(self) -> None:
        """Partitions were added to the transaction."""
        self._changed |= self._unadmitted
        self._unadmitted.clear()

    def forget(self, queue: PartitionQueue) -> None:
        """Drop an idle queue."""
        self._place(queue, None)
        for times in (self._deadlines, self._lingering, self._backing_off):
            times.discard(queue)
        for place in (self._changed, self._without_id, self._unadmitted):
            place.pop(queue, None)

    # --- plan ---------------------------------------------------------------------------------------------------

    def plan(
        self,
        now: float,
        leader: Leader,
        busy_nodes: Container[int],
        *,
        skip_linger: bool = False,
        owed: float = 0.0,
        admit: Callable[[TopicPartition], bool] | None = None,
    ) -> SendPlan:
        """Plan at most one request to each node at loop time `now`; `skip_linger` sends open batches at once.

        Open batches linger for `owed` seconds if that is longer.

        `leader` returns the node id of a partition's leader, -1 if it is unknown: another function for other metadata, as its
        answers are remembered. `admit`, if given, says whether a partition belongs to the transaction already; if not, its
        batches wait for `on_partitions_added`.

        Nodes in `busy_nodes` get nothing. The batches of `requests` are in flight from here on: the caller must call
        `succeed`, `retry`, `drop` or `split` of the accumulator for each. The caller must also `deallocate` and fail the `expired`
        ones; one that is in flight still gets its result.
        """
        longer = max(owed - self._linger, 0.0) if self._linger else 0.0
        lingered_at = now - longer + ROUNDING if longer else now
        given = _Conditions(now, NEVER if skip_linger else lingered_at, leader, admit)
        if leader != self._leader:
            self._leader = leader
            self._changed |= dict.fromkeys(self._ready_node)
        expired = self._expire(now)
        self._changed |= dict.fromkeys(self._backing_off.pop_due(now))
        lingered = self._lingering.pop_due(given.lingered_at)
        self._changed |= dict.fromkeys(lingered)
        changed, self._changed = self._changed, {}
        to_compress: list[ProducerBatch] = []
        for queue in changed:
            if self._compresses:
                to_compress += self._begin_compressing(queue, given)
            self._place(queue, self._node_for(queue, given))
        early, nodes = self._with_company(lingered, busy_nodes, given) if lingered else (given, _NO_NODES)
        requests = {
            node: batches
            for node, ready in self._ready.items()
            if ready
            and node >= 0
            and node not in busy_nodes
            and (batches := self._fill(node, ready, early if node in nodes else given))
        }
        return SendPlan(
            requests,
            expired,
            bool(self._ready.get(-1)),
            bool(self._without_id),
            to_compress,
            min(self._deadlines.next, self._backing_off.next, self._next_lingered(now, longer)),
        )

    def _next_lingered(self, now: float, longer: float) -> float:
        """Return when the first batch will have lingered; `longer` becomes less as time passes."""
        at = self._lingering.next
        return max(at, (at + now + longer) / 2) if longer else at

    def _with_company(
        self, lingered: list[PartitionQueue], busy_nodes: Container[int], given: _Conditions
    ) -> tuple[_Conditions, Container[int]]:
        """Return the nodes to which a batch that has lingered is sent, and the conditions of their requests: `COMPANY` goes along."""
        nodes = {
            node
            for queue in lingered
            if (node := self._ready_node.get(queue, -1)) >= 0 and node not in busy_nodes
        }
        early = given._replace(lingered_at=given.lingered_at + self._company)
        if nodes:
            self._take_along(nodes, early)
        return early, nodes

    def _take_along(self, nodes: Container[int], early: _Conditions) -> None:
        """Also make queues ready whose batches will have lingered soon, if their node gets a request now."""
        for queue in self._lingering.pop_due(early.lingered_at):
            if queue in self._ready_node:
                continue  # with an earlier batch
            node = self._node_for(queue, early)
            if node is None:
                continue
            batch = queue.next_batch(early.now)
            assert batch is not None
            if node in nodes and not (self._compresses and batch.size >= COMPRESS_OFF_LOOP):
                self._place(queue, node)
            else:
                self._lingering.put(queue, batch.created_at + self._linger)

    def _expire(self, now: float) -> list[ProducerBatch]:
        """Return the batches past their deadline; remove waiting ones from their queue."""
        expired: list[ProducerBatch] = []
        for queue in self._deadlines.pop_due(now):
            expired += queue.overdue(now)
            expired += queue.expire(now)
            self._changed[queue] = None
            if (deadline := queue.next_deadline(now)) < NEVER:
                self._deadlines.put(queue, deadline)
        return expired

    def _node_for(self, queue: PartitionQueue, given: _Conditions) -> int | None:
        """Return the node that the next batch can be sent to (-1: unknown), or None if it has to wait."""
        if queue.needs_id:
            if queue.has_waiting:
                self._without_id[queue] = None
            else:
                self._without_id.pop(queue, None)
            return None
        batch = queue.next_batch(given.now)
        if batch is None:
            return None  # there is none, or results must be known first
        if given.admit is not None and not given.admit(queue.tp):
            self._unadmitted[queue] = None
            return None
        if queue.retry_at > given.now:
            self._backing_off.put(queue, queue.retry_at)
            return None
        if self._lingers(queue, batch, given) or batch.compressing:
            return None
        node = given.leader(queue.tp)
        if node >= 0 and queue.in_flight and queue.node != node:
            return None  # the leader has moved: the former one's results come first
        return node

    def _lingers(self, queue: PartitionQueue, batch: ProducerBatch, given: _Conditions) -> bool:
        """Whether an open batch waits for more records; if so, the queue is looked at when it has lingered."""
        if batch.closed or (batch.is_awaited and not queue.in_flight):
            return False
        at = batch.created_at + self._linger
        if at <= given.lingered_at:
            return False
        self._lingering.put(queue, at)
        return True

    def _place(self, queue: PartitionQueue, node: int | None) -> None:
        """Make a queue ready for a node, or for none. It keeps its place if it was ready for the same node."""
        before = self._ready_node.get(queue)
        if before == node:
            return
        if before is not None:
            del self._ready[before][queue]
        if node is None:
            del self._ready_node[queue]
            return
        self._ready_node[queue] = node
        self._ready.setdefault(node, OrderedDict())[queue] = None

    def _fill(
        self, node: int, ready: OrderedDict[PartitionQueue, None], given: _Conditions
    ) -> list[ProducerBatch]:
        """Return the batches of a request to a node: one of each queue, the longest waiting first, as many as it can hold."""
        batches: list[ProducerBatch] = []
        size = 0
        while ready and len(batches) < MAX_BATCHES:
            queue = next(iter(ready))
            batch = queue.next_batch(given.now)
            if batch is not None and not self._lingers(queue, batch, given):
                size += batch.size
                if batches and size > self._max_request_size:
                    break
                queue.begin(batch, node)
                batches.append(batch)
            self._place(queue, None)
            if queue.has_waiting:
                self._changed[queue] = None  # its next batch belongs to the next request
        return batches

    def _begin_compressing(self, queue: PartitionQueue, given: _Conditions) -> list[ProducerBatch]:
        """Return the batches of a queue to compress on a thread: large ones that are closed, or have lingered."""
        found: list[ProducerBatch] = []
        for batch in itertools.islice(queue.fresh, COMPRESSED_AHEAD):
            if (
                batch.compressing is None
                and batch.size >= COMPRESS_OFF_LOOP
                and not self._lingers(queue, batch, given)
            ):
                if batch is queue.open:
                    queue.close_open()
                batch.closed = batch.compressing = True
                found.append(batch)
        return found
