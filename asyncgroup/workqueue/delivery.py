"""Delivery: one attempt at one record, with the calls that end it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

from asyncgroup.errors import ConfigError, InvalidRecordError, UsageError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.hooks import DeliveryOutcome
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import Header, Record
from asyncgroup.workqueue.delivery_result import AckOutcome, DeliveryResult, Known, Outstanding
from asyncgroup.workqueue.delivery_state import DeliveryState
from asyncgroup.workqueue.foreign_names import DELIVERY
from asyncgroup.workqueue.handled_exception import handled_exception
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.policies import check_seconds
from asyncgroup.workqueue.statistics import QueueCounts

__all__ = [
    "FAILURES",
    "AckOutcome",
    "Delivery",
    "DeliveryEnds",
    "DeliveryState",
    "Publisher",
    "Work",
    "commit_partition",
    "nack_with",
    "release",
]

FAILURES: Final = (Exception, asyncio.CancelledError)
"""Exceptions of a plain function of the user that fail a delivery: a CancelledError in it is not the cancellation of a task."""


class Publisher(Protocol):
    """Copies records to retry and dead letter topics."""

    def is_last(self, attempt: int) -> bool:
        """Whether a record whose delivery number `attempt` failed is not delivered again."""
        ...

    def start_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Copy the record to the dead letter topic in the background, then call `finish` or `give_back`."""
        ...

    def reject(self, delivery: Delivery, reason: str) -> DeliveryResult[AckOutcome]:
        """Copy the record to the dead letter topic."""
        ...

    def reconsume_later(
        self, delivery: Delivery, delay: float, headers: list[Header]
    ) -> DeliveryResult[AckOutcome]:
        """Copy the record to the retry topic."""
        ...


class DeliveryEnds(Protocol):
    """What a delivery, and the publisher of its copy, call: `Outcomes`."""

    publisher: Publisher
    counts: QueueCounts

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge the record."""
        ...

    def ack_cumulative(self, delivery: Delivery) -> None:
        """Acknowledge the record and all before it in its partition."""
        ...

    def nack(
        self, delivery: Delivery, delay: float | None, error: BaseException | None = None, reason: str = ""
    ) -> None:
        """Deliver the record again after `delay` seconds; `reason`, else `error`, is the reason of a dead letter."""
        ...

    def discard(self, delivery: Delivery, reason: str, error: BaseException | None = None) -> None:
        """Copy a record to the dead letter topic that no delivery can handle; without such a topic, nack it."""
        ...

    def release(self, delivery: Delivery) -> None:
        """Deliver the record again: the delivery was neither acknowledged nor failed."""
        ...

    def renew(self, delivery: Delivery) -> None:
        """Restart the ack timeout."""
        ...

    def key_of(self, record: Record) -> bytes | None:
        """Return the record's ordering key."""
        ...

    def begin_publishing(self, delivery: Delivery) -> None:
        """The record is being copied."""
        ...

    def finish(self, delivery: Delivery) -> AckOutcome:
        """The copy is in its topic: the record is done."""
        ...

    def report_end(
        self, delivery: Delivery, outcome: DeliveryOutcome, error: BaseException | None = None
    ) -> None:
        """Call the hooks: the delivery is settled."""
        ...

    def give_back(self, delivery: Delivery) -> None:
        """There may be no copy: the record stays unacknowledged."""
        ...


_ACQUIRED: Final = DeliveryState.ACQUIRED  # a member of an Enum takes longer to find
_ACKED: Final = Known(AckOutcome.ACKED)
_LOST: Final = Known(AckOutcome.LOST)
_TRUE: Final = Known(True)
_FALSE: Final = Known(False)

_TOO_LATE: Final = {
    DeliveryState.EXPIRED: Known(AckOutcome.EXPIRED),
    DeliveryState.LOST: _LOST,
    DeliveryState.RELEASED: _LOST,  # the queue was closed
}


class Delivery:
    """One attempt at one record; exactly one of `ack`, `nack`, `reject` and `reconsume_later` ends it.

        async with delivery: ...        # ack at the end of the block, nack after an exception

    These calls act at once, and raise their errors at once. `await` waits for the result: without it only the result is
    lost. They are made on the event loop's thread.

    A record whose delivery is not ended is delivered again after the ack timeout, or to the partition's next owner.
    A second call on the same delivery raises UsageError; one that comes too late returns AckOutcome.EXPIRED or LOST,
    and has no effect.
    """

    __slots__ = (
        "_has_handler",
        "_has_slot",
        "_is_retry",
        "_keeps_key",
        "_outcomes",
        "_reader",
        "_work",
        "attempt",
        "deadline",
        "decoded",
        "record",
        "state",
    )

    def __init__(
        self,
        record: Record,
        attempt: int,
        deadline: float | None,
        work: Work,
        outcomes: DeliveryEnds,
    ) -> None:
        self.record = record
        """The record."""
        self.attempt = attempt
        """The number of this delivery of the record, from 1 on, also over restarts and retry topics."""
        self.deadline = deadline
        """Loop time at which the ack timeout passes; None without one."""
        self.state = DeliveryState.ACQUIRED
        """The state of the delivery."""
        self.decoded: Any = None
        """The result of the queue's `decode` for the record; None without it."""
        self._has_handler = False  # of `run`, which has not returned yet
        self._keeps_key = False  # done, but its handler runs: the next record of its key waits
        self._is_retry = False  # taken in a turn of the records that were delivered before
        self._has_slot = False  # of these records: it was delivered, and not only put into an inbox
        self._reader: Any = None  # the task that received it; None for a handler of `run`
        self._work = work
        self._outcomes = outcomes

    def __repr__(self) -> str:
        record = self.record
        # a message of Pulsar is found by its id; its offset is a number that the queue gives
        message_id = getattr(record, "message_id", None)
        at = f"{record.topic}-{record.partition}@{record.offset}"
        if message_id is not None:
            at = f"{record.topic}@{message_id}"
        return f"<Delivery {at}, attempt {self.attempt}: {self.state.value}>"

    @property
    def redelivery_count(self) -> int:
        """The number of earlier deliveries of the record: `attempt` - 1, as in Pulsar."""
        return self.attempt - 1

    @property
    def group_id(self) -> str:
        """The consumer group of the queue; empty if its source has none."""
        return self._work.engine.group_id

    @property
    def key(self) -> bytes | None:
        """The record's key."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """The record's value."""
        return self.record.value

    @property
    def headers(self) -> Sequence[Header]:
        """The record's headers."""
        return self.record.headers

    @property
    def ordering_key(self) -> bytes | None:
        """The key that orders deliveries in Mode.KEY_SHARED: the header `ag-ordering-key`, else the record's key."""
        return self._outcomes.key_of(self.record)

    def ack(self, *, durable: bool = False) -> DeliveryResult[AckOutcome]:
        """Acknowledge the record: once a commit contains the acknowledgement, the record is not delivered again.

        Commits are grouped; with `durable`, `await` returns when the commit that contains this acknowledgement is done, and
        raises CommitFailedError if it failed (the record may then be delivered again). Raises UsageError if the
        delivery was ended before.
        """
        if self.state is not _ACQUIRED:
            return self._too_late("ack")
        self._outcomes.ack(self)
        return Outstanding(self._work.commit) if durable else _ACKED

    def ack_cumulative(self, *, durable: bool = False) -> DeliveryResult[AckOutcome]:
        """Acknowledge the record and all before it in its partition; in the modes Exclusive and Failover only.

        Otherwise as `ack`. Raises UsageError in the other modes, as in Pulsar.
        """
        if self.state is not DeliveryState.ACQUIRED:
            return self._too_late("ack_cumulative")
        self._outcomes.ack_cumulative(self)
        return Outstanding(self._work.commit) if durable else _ACKED

    def nack(self, *, delay: float | None = None, reason: str = "") -> DeliveryResult[bool]:
        """Deliver the record again after `delay` seconds, by default after the delay of `nack_backoff`.

        `reason` is the reason of its dead letter after the last delivery; without one it is the exception that the caller
        handles, if the call is in an `except` block.
        A handler of `run` may go on after that; then the record also waits until it has returned. After the last delivery that
        `dead_letter` allows it goes to the dead letter topic instead. In the modes Exclusive and Failover all
        unacknowledged records of the partition that follow are delivered again as well, in order. Returns False if it came too late. Raises ConfigError unless the delay is 0 to 1e9 and the
        reason a str, UsageError if the delivery was ended before.
        """
        _check_reason(reason)
        if delay is not None:
            check_seconds("delay", delay)
        if self.state is not DeliveryState.ACQUIRED:
            self._too_late("nack")
            return _FALSE
        self._outcomes.nack(self, delay, None, reason or _handled())
        return _TRUE

    def reject(self, reason: str = "") -> DeliveryResult[AckOutcome]:
        """Copy the record to the dead letter topic, then acknowledge it; `await` returns when that is done.

        Without a `reason` it is the exception that the caller handles, if the call is in an `except` block. Raises
        ConfigError unless the reason is a str, UsageError if the queue has no `dead_letter`, or if the delivery was ended
        before.
        """
        _check_reason(reason)
        if self.state is not DeliveryState.ACQUIRED:
            return self._too_late("reject")
        return self._outcomes.publisher.reject(self, reason or _handled())

    def reconsume_later(self, delay: float, headers: Iterable[Header] = ()) -> DeliveryResult[AckOutcome]:
        """Copy the record to the retry topic, to be delivered after `delay` seconds, then acknowledge it.

        `await` returns when that is done. `headers` are added to those of the record. After the last delivery that is allowed it goes to the dead letter
        topic instead, with the exception that the caller handles, if there is one. Raises ConfigError unless the delay is 0 to 1e9, InvalidRecordError for invalid headers,
        UsageError if the queue has no `retry`, or if the delivery was ended before.
        """
        check_seconds("delay", delay)
        if self.state is not DeliveryState.ACQUIRED:
            return self._too_late("reconsume_later")
        if not isinstance(headers, Iterable):
            raise InvalidRecordError("headers", headers, "pairs (str, bytes or None)")
        return self._outcomes.publisher.reconsume_later(self, delay, list(headers))

    def renew(self) -> DeliveryResult[bool]:
        """Restart the ack timeout; return False if it has passed. Raises UsageError if the delivery was ended."""
        if self.state is not DeliveryState.ACQUIRED:
            self._too_late("renew")
            return _FALSE
        self._outcomes.renew(self)
        return _TRUE

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state is not DeliveryState.ACQUIRED:
            return
        if error is None:
            self._outcomes.ack(self)
        elif isinstance(error, Exception):
            self._outcomes.nack(self, None, error)
        else:  # cancelled: neither done nor failed
            self._outcomes.release(self)

    def _too_late(self, call: str) -> DeliveryResult[AckOutcome]:
        outcome = _TOO_LATE.get(self.state)
        if outcome is None:
            raise UsageError(f"{call}() of {self!r}: the delivery was ended before")
        return outcome


Work: TypeAlias = PartitionWork[Delivery]
"""The records of a partition."""


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str):
        raise ConfigError("reason", reason, "a str")


def _handled() -> str:
    """Return the text of the exception whose `except` block the caller is in; empty without one."""
    error = handled_exception(3)
    return "" if error is None else describe_error(error)


add_foreign_names(Delivery, DELIVERY)


# --- calls of other rooms; a user has `async with` and `ack(durable=True)` -----------------------------------------------


def nack_with(delivery: Delivery, error: BaseException) -> None:
    """Nack a delivery as `async with` does after an exception, which is the reason of a dead letter."""
    delivery._outcomes.nack(delivery, None, error)


def release(delivery: Delivery) -> None:
    """Release a delivery as a cancelled `async with` does: its record is delivered again with the same attempt number."""
    delivery._outcomes.release(delivery)


async def commit_partition(delivery: Delivery) -> AckOutcome:
    """Commit the acknowledgements of a delivery's partition now. Raises CommitFailedError."""
    outcome: AckOutcome = await delivery._work.commit()
    return outcome
