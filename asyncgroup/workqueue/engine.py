"""Engine: where the records of a work queue come from, and what an acknowledgement is. The seam of the queue.

The face (all files beside this one) knows no broker: it decides which record is delivered next, to which handler, and what
follows from the outcome. An engine (`group_engine/`, `testing/memory_engine.py`) knows no handler. What goes which way:

    engine ── partitions, batches of records, revocations ──▶ QueueCore
    QueueCore ── outcomes, room for more records ──▶ PartitionEngine, one for each partition
    QueueCore ── copies to the retry and dead letter topic ──▶ CopyWriter

An engine calls QueueCore, which it gets in `open`; it never calls the dispatcher, the receiver or the workers themselves. A record is
identified by its partition and its offset. An engine whose messages have other identities numbers them as they arrive, in the
order in which they are delivered.

The model is dramatiq's `broker.py`: a seam of one file, with the engines beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from asyncgroup.model import Header, Record, RecordMetadata, TopicPartition
from asyncgroup.workqueue.ack_outcome import AckOutcome
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.statistics import PartitionStatistics

if TYPE_CHECKING:
    from asyncgroup.consumer.error_stream import ErrorReader
    from asyncgroup.errors import AsyncGroupError
    from asyncgroup.group.health import Health
    from asyncgroup.workqueue.core import QueueCore

__all__ = [
    "CopyFormat",
    "CopyWriter",
    "Engine",
    "EngineFeatures",
    "Gate",
    "OnWritten",
    "OutgoingCopy",
    "PartitionEngine",
]


@dataclass(frozen=True, slots=True)
class EngineFeatures:
    """What an engine can do. A setting that needs what is missing is refused when the queue is created."""

    modes: Collection[Mode]
    """The modes that it has."""
    redelivers: Literal["queue", "broker"]
    """Who delivers a record again after a nack: the queue, which keeps the record and counts its deliveries, or the broker."""
    keeps_key_order: Literal["queue", "broker"]
    """Who keeps the order of a key in Mode.KEY_SHARED while a record of it is redelivered."""
    counts_deliveries: bool
    """Whether the numbers of deliveries survive the process."""
    copies: bool
    """Whether records can be copied to retry and dead letter topics."""
    delays: bool
    """Whether a record may have a delivery time of its own."""
    transactions: bool
    """Whether a copy and the acknowledgement of its original can be one transaction."""
    cumulative: bool
    """Whether all records up to one can be acknowledged together, in the modes that deliver in order."""
    durable: bool
    """Whether an acknowledgement survives the process."""
    seek: bool
    """Whether the queue can continue at another position."""


class PartitionEngine:
    """The engine's side of one partition; as a base class, it does nothing: nobody has to know of an acknowledgement."""

    has_copies = False
    """Whether the records are copies in a retry topic: `earlier_attempts` and `skips` are asked for each of them."""

    def on_ack(self, record: Record) -> None:
        """A record is acknowledged: the window has it."""

    def on_change(self) -> None:
        """The window has changed in another way: numbers of failed deliveries, offsets without a record."""

    def on_room(self) -> None:
        """More records may be added, see `PartitionWork.refill_at` and `refill_bytes`."""

    def on_drain(self) -> None:
        """A delivery of a closed partition, or a handler of it, has ended."""

    async def commit(self) -> AckOutcome:
        """Make the acknowledgements durable now. Raises CommitFailedError."""
        return AckOutcome.ACKED

    def earlier_attempts(self, record: Record) -> int:  # noqa: ARG002
        """Return the number of deliveries that led to this copy."""
        return 0

    def skips(self, record: Record) -> bool:  # noqa: ARG002
        """Whether a copy counts as done on arrival, because it is for another subscription."""
        return False


class Gate(Protocol):
    """Lets records of a partition begin one by one, while the engine has a reason for it."""

    def may_begin(self, record: Record) -> bool:
        """Whether the record may be delivered now; after a False, the partition has to be listed again (`QueueCore.relist`)."""
        ...

    def is_counted(self, offset: int) -> bool:
        """Whether the number of deliveries in the window includes the next one of this record."""
        ...

    def ended(self, offset: int) -> None:
        """The delivery of a record has ended with an outcome."""
        ...

    def released(self, offset: int | None) -> None:
        """The delivery of a record (None: of all) was neither done nor failed: it does not count."""
        ...


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

    def abandon(self, tp: TopicPartition, offset: int, *, is_over: bool) -> None:
        """Call no `on_written` for the records of a partition from `offset` on; `is_over`: its assignment ends."""
        ...

    def passes(self, error: Exception) -> bool:
        """Whether to retry the copy soon after this error of `write`; otherwise after a long delay."""
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

    async def open(self, core: QueueCore) -> None:
        """Connect, and begin to give records to `core`, in tasks that the engine owns. Raises what connecting raises."""
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

    async def seek(self, target: Any, *, inclusive: bool) -> None:
        """Continue elsewhere; see `WorkQueue.seek`. Raises ConfigError for a target that it does not know."""
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
