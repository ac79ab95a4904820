"""Engine: where the records of a work queue come from, and what an acknowledgement is. The seam of the queue.

The face (all files beside this one) knows no broker: it decides which record is delivered next, to which handler, and what
follows from the outcome. An engine (`group_engine/`, `testing/memory_engine.py`) knows no handler. What goes which way:

    engine ── partitions, batches of records, revocations ──▶ OpenQueue (QueueCore)
    QueueCore ── outcomes, room for more records ──▶ PartitionEngine, one for each partition
    QueueCore ── copies to the retry and dead letter topic ──▶ CopyWriter

An engine calls the OpenQueue that it gets in `open`, and never the dispatcher, the receiver or the workers. A record is
identified by its partition and its offset. An engine whose messages have other identities numbers them as they arrive, in the
order in which they are delivered.

The model is dramatiq's `broker.py`: a seam of one file, with the engines beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from asyncgroup.hooks import DeliveryListeners, Hooks
from asyncgroup.model import Header, Record, RecordMetadata, TopicPartition
from asyncgroup.workqueue.delivery import Delivery, Work
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.statistics import PartitionStatistics

if TYPE_CHECKING:
    from asyncgroup.consumer.error_stream import ErrorReader
    from asyncgroup.errors import AsyncGroupError
    from asyncgroup.group.health.health import Health

__all__ = [
    "CopyFormat",
    "CopyWriter",
    "Engine",
    "EngineFeatures",
    "OnWritten",
    "OpenQueue",
    "OutgoingCopy",
]


@dataclass(frozen=True, slots=True)
class EngineFeatures:
    """What an engine can do. A setting that needs what is missing is refused when the queue is created."""

    modes: Collection[Mode]
    """The modes that it has."""
    redelivers: Literal["queue", "broker"]
    """Who delivers a record again after a nack: the queue, which keeps the record and counts its deliveries, or the broker.

    A queue may also give a record back when its time has come, see `PartitionEngine.gives_back`.
    """
    keeps_key_order: Literal["queue", "broker"]
    """Who keeps the order of a key in Mode.KEY_SHARED while a record of it is redelivered."""
    counts_deliveries: bool
    """Whether the numbers of deliveries survive the process, all of them."""
    copies: bool
    """Whether records can be copied to retry and dead letter topics."""
    delays: bool
    """Whether each record may have its delivery time."""
    transactions: bool
    """Whether a copy and the acknowledgement of its original can be one transaction."""
    cumulative: bool
    """Whether all records up to one can be acknowledged together, in the modes that deliver in order."""
    durable: bool
    """Whether an acknowledgement survives the process."""
    seek: bool
    """Whether the queue can continue at another position."""
    offsets: bool
    """Whether the offset of a record is its place in the partition; otherwise it is a number that this process has given."""


class OutgoingCopy(NamedTuple):
    """A record to be written to a retry or dead letter topic."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    timestamp: int | None
    """The original's timestamp in ms; None if it has none."""


OnWritten = Callable[[RecordMetadata], object]
"""Acknowledges the original."""


class CopyFormat(Protocol):
    """What copies of records look like: their headers say where they come from."""

    def retry_copy(
        self, record: Record, topic: str, attempt: int, delay: float, headers: Sequence[Header]
    ) -> OutgoingCopy:
        """Return the copy of a record, to be delivered again after `delay` seconds, whose delivery number `attempt` ends.

        `headers` are added. Raises what the engine's producer raises for invalid ones.
        """
        ...

    def dead_letter_copy(self, record: Record, topic: str, attempt: int, reason: str) -> OutgoingCopy:
        """Return the copy of a record for the dead letter topic, after `attempt` deliveries."""
        ...


class CopyWriter(Protocol):
    """Writes copies to retry and dead letter topics."""

    is_transactional: bool
    """Whether the acknowledgement of a record is committed when `write` returns."""

    async def aclose(self) -> None:
        """End; copies that are not written raise ClosedError. Safe to call twice, and before the engine was opened."""
        ...

    async def write(
        self, tp: TopicPartition, offset: int, copy: OutgoingCopy, on_written: OnWritten, *, alone: bool
    ) -> RecordMetadata:
        """Write the copy of a record, and return when the broker has acknowledged it.

        `on_written` is called before that if the record has to be acknowledged at the same moment. `alone`: an earlier
        attempt has failed in a way that this copy may have caused. Raises what the engine's producer raises. The outcome of a
        cancelled call is unknown.
        """
        ...

    # called before the tasks of its copies are cancelled
    def abandon(self, tp: TopicPartition, offset: int, *, is_over: bool) -> None:
        """Call no `on_written` for the records of a partition from `offset` on; `is_over`: its assignment ends."""
        ...

    def passes(self, error: Exception) -> bool:
        """Whether to retry the copy soon after this error of `write`; otherwise after a long delay."""
        ...


class OpenQueue(Protocol):
    """The open queue, as its engine sees it: QueueCore."""

    # --- partitions and records

    # the life of a partition: `add`, `offer`, then `close` and `remove` when its deliveries have ended, or `lose` at any time
    def add(self, work: Work) -> None:
        """Add a partition that was assigned, before its first records."""
        ...

    def offer(self, work: Work, records: Iterable[Record]) -> None:
        """Add records of a partition, in offset order. How many is up to the engine: see `ReceiveLimits`."""
        ...

    def requeue(self, work: Work) -> None:
        """Deliver records of the partition again, after its `guard` has delayed one."""
        ...

    def restart(self, work: Work, offset: int) -> list[Delivery]:
        """The log has other records from `offset` on: forget them, and return their open deliveries, which are lost."""
        ...

    def withdraw(self, work: Work) -> list[tuple[Record, int]]:
        """The broker gives all records again that are neither delivered nor being copied, perhaps to another consumer: forget them.

        Their offsets count as done. Return those whose deliveries have failed, with the numbers of these.
        """
        ...

    def close(self, work: Work) -> None:
        """Deliver no more records of a partition that is revoked; its open deliveries may still be ended."""
        ...

    def lose(self, work: Work) -> None:
        """Remove a partition at once: open deliveries are lost, their handlers cancelled, copies given up."""
        ...

    def remove(self, work: Work) -> None:
        """Remove a partition whose deliveries have ended, or that was never read."""
        ...

    # called last, after `remove` or `lose`
    def became_inactive(self, tp: TopicPartition) -> None:
        """A partition was removed for good: the consumer gets no more of its records."""
        ...

    def abandon_copies(self, work: Work, *, is_over: bool = True) -> None:
        """Give up the copies of a partition, unless it has come back as another assignment already; `is_over`: this one ends."""
        ...

    def note_copy_retry(self, topic: str, error: Exception) -> None:
        """The engine's producer tries to write a copy to a topic again; an empty topic: copies to all topics."""
        ...

    # --- what is going on

    @property
    def settings(self) -> QueueSettings:
        """How the queue delivers."""
        ...

    @property
    def is_ended(self) -> bool:
        """Whether no more deliveries begin."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether no deliveries begin, for now or for good."""
        ...

    # without a receiver queue an engine reads a record only for a task that waits
    @property
    def has_demand(self) -> bool:
        """Whether a task waits for a delivery."""
        ...

    @property
    def on_demand(self) -> asyncio.Event:
        """Set when a task begins to wait for a delivery."""
        ...

    @property
    def free_handlers(self) -> int:
        """The number of handlers that may be started now; 1 if loops receive the deliveries."""
        ...

    def works(self) -> Iterable[Work]:
        """Return the partitions that were added and not removed."""
        ...

    def attempts(self, work: Work, record: Record) -> int:
        """Return the number of deliveries of a record so far."""
        ...

    def is_last(self, attempt: int) -> bool:
        """Whether a record whose delivery number `attempt` failed is not delivered again."""
        ...

    @property
    def is_serial(self) -> bool:
        """Whether at most one record of a partition is delivered at a time."""
        ...

    def is_handled(self, work: Work) -> bool:
        """Whether a handler runs for a delivery of this partition, also for one that is lost."""
        ...

    def handles(self, delivery: Delivery) -> bool:
        """Whether a handler runs for this delivery."""
        ...

    def interrupt_all(self, work: Work) -> None:
        """Cancel all handlers of a partition."""
        ...

    def check_open(self) -> None:
        """Raise ClosedError after the end, or the failure that ended the queue."""
        ...

    def end(self, failure: BaseException | None) -> None:
        """Begin no more deliveries; raise `failure` to those that receive (None: the queue was closed)."""
        ...


class Engine(Protocol):
    """Where the records of a queue come from."""

    @property
    def features(self) -> EngineFeatures:
        """What it can do."""
        ...

    @property
    def name(self) -> str:
        """The name of the subscription, for messages: of a consumer group its id."""
        ...

    @property
    def retry_topic(self) -> str | None:
        """The topic of `Delivery.reconsume_later`, which the engine also reads; None without one."""
        ...

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of dead letters; None without one."""
        ...

    @property
    def copies(self) -> CopyWriter:
        """Writes copies to these topics."""
        ...

    @property
    def copy_format(self) -> CopyFormat:
        """Makes them."""
        ...

    @property
    def hooks(self) -> Hooks:
        """The hooks of the engine's clients, which also get the queue's `on_open`."""
        ...

    @property
    def listeners(self) -> DeliveryListeners | None:
        """What is called for each delivery; None without such hooks."""
        ...

    # in this order; `leave` and `aclose` also after an `open` that has failed
    async def open(self, queue: OpenQueue) -> None:
        """Connect, and begin to give records to `queue`, in tasks that the engine owns. Raises what connecting raises."""
        ...

    async def leave(self) -> None:
        """Give no more records, wait until the open deliveries have ended or `close_timeout` has passed, commit and leave."""
        ...

    async def aclose(self) -> None:
        """Close connections, after `leave` and after the last copy. Safe to call without `open`."""
        ...

    def ordering_key(self, record: Record) -> bytes | None:
        """Return the key that orders deliveries in Mode.KEY_SHARED; None for no order."""
        ...

    def due_at(self, record: Record) -> int | None:
        """Return the time of day in ms before which a record is not delivered; None if it may be at once."""
        ...

    def seek(self, target: Any, *, inclusive: bool) -> Coroutine[Any, Any, None] | None:
        """Continue elsewhere; see `WorkQueue.seek`. Return what is left to wait for, None if nothing.

        Raises ConfigError for a target that it does not know.
        """
        ...

    def report(self, error: AsyncGroupError) -> None:
        """Give an error that is retried to the readers of `errors`."""
        ...

    def errors(self) -> ErrorReader:
        """Return a new iterator of the errors that are retried."""
        ...

    def health(self, problems: Sequence[str]) -> Health:
        """Return the health of the engine, with these problems of the queue added."""
        ...

    def statistics(self) -> tuple[tuple[PartitionStatistics, ...], tuple[PartitionStatistics, ...]]:
        """Return the partitions that are assigned, and those that a closed queue had last, sorted."""
        ...
