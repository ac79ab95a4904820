"""The two orders of delivery: in offset order, or shared, with or without keys. Pure: they change a PartitionWork only."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from asyncgroup.errors import UsageError
from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import FAILURES, Delivery, Work
from asyncgroup.workqueue.modes import Mode

__all__ = ["DeliveryOrder", "InOrder", "Redelivery", "Shared", "ordering_key_by"]


class Redelivery(Enum):
    """What a failed record does when its time has come."""

    READY = "it is ready"
    ARRIVE = "it waits for an earlier record of its key, if there is one"
    REWIND = "all unacknowledged records of the partition are delivered again, in order"


class DeliveryOrder(Protocol):
    """Which records of a partition may overtake others."""

    serial: bool
    """Whether at most one record of a partition is acquired: handlers run in offset order."""
    key_of: Callable[[Record], bytes | None] | None
    """Returns the key that orders records; None if keys do not matter."""
    keeps_order: bool
    """Whether a record whose delivery has failed delays the later ones of its order."""

    def add_again(self, work: Work, record: Record) -> None:
        """A record that was delivered before is ready."""
        ...

    def put_back(self, work: Work, delivery: Delivery) -> None:
        """The record of a delivery that was neither done nor failed is ready."""
        ...

    def repeat(self) -> Redelivery:
        """Return what a failed record does when its time has come."""
        ...

    def fail(self, work: Work, record: Record) -> Record | None:
        """A record waits after a failed delivery; return the record that may overtake it, if there is one."""
        ...

    def leave(self, work: Work, record: Record) -> Record | None:
        """A record is done; return the one that has waited for it, if there is one."""
        ...

    def check_cumulative(self, delivery: Delivery) -> None:
        """Raise UsageError if the mode has no order, so that no record is before another one."""
        ...


class InOrder:
    """Exclusive and Failover: offset order. A failed record is delivered again with all that follow it, as in Pulsar."""

    key_of: Callable[[Record], bytes | None] | None = None
    keeps_order = True

    def __init__(self) -> None:
        self.serial = False

    def __repr__(self) -> str:
        return f"<InOrder: {'one by one' if self.serial else 'several at a time'}>"

    def may_take(self, work: Work, record: Record) -> bool:
        """Whether no earlier record of the partition has to be delivered, or done, before this one."""
        if self.serial and (work.handlers or not work.is_next_in_order):
            return False
        return not work.retries or record is work.retries[0]

    def add_again(self, work: Work, record: Record) -> None:
        """Add it in offset order."""
        work.insert_retry(record)

    def put_back(self, work: Work, delivery: Delivery) -> None:
        """Add it in offset order; records that precede it may have to be counted first."""
        record = delivery.record
        if work.guard is not None:
            work.guard.released(record.offset)
        if delivery._is_retry or (work.retries and record.offset < work.retries[-1].offset):
            work.insert_retry(record)
        else:
            work.insert_fresh(record)

    def repeat(self) -> Redelivery:
        """One by one, no later record was delivered."""
        return Redelivery.READY if self.serial else Redelivery.REWIND

    def fail(self, work: Work, record: Record) -> None:
        """None may overtake it."""

    def leave(self, work: Work, record: Record) -> None:
        """None waits for one record alone."""

    def check_cumulative(self, delivery: Delivery) -> None:
        """Records before this one are known by their offsets."""


class Shared:
    """Shared, and with `key_of` Key_Shared: no order but that of a key, of which one record at a time is delivered.

    `keeps_order`: a record whose delivery has failed delays the later ones of its key.
    """

    def __init__(
        self, key_of: Callable[[Record], bytes | None] | None = None, *, keeps_order: bool = True
    ) -> None:
        self.serial = False
        self.key_of = key_of
        self.keeps_order = keeps_order

    def __repr__(self) -> str:
        return f"<Shared: {'without' if self.key_of is None else 'with'} keys>"

    def add_again(self, work: Work, record: Record) -> None:
        """Add it as the last one: its failures have delayed it."""
        work.retries.append(record)

    def put_back(self, work: Work, delivery: Delivery) -> None:
        """It is the next one."""
        (work.retries if delivery._is_retry else work.fresh).appendleft(delivery.record)

    def repeat(self) -> Redelivery:
        """A record that was overtaken waits for its key once more."""
        return Redelivery.READY if self.key_of is None or self.keeps_order else Redelivery.ARRIVE

    def fail(self, work: Work, record: Record) -> Record | None:
        """Return the next record of its key if the order may be broken."""
        return None if self.keeps_order else self.leave(work, record)

    def leave(self, work: Work, record: Record) -> Record | None:
        """Return the next record of its key."""
        if self.key_of is None:
            return None
        try:
            key = self.key_of(record)
        except FAILURES:  # it has no key: it was in no queue of a key
            return None
        return None if key is None else work.leave_key_queue(key)

    def check_cumulative(self, delivery: Delivery) -> None:
        """Raise UsageError: the mode has no order."""
        mode = Mode.SHARED if self.key_of is None else Mode.KEY_SHARED
        allowed = f"mode {mode.value} has no order: acknowledge each record by itself"
        raise UsageError(f"ack_cumulative() of {delivery!r}: {allowed}")


def ordering_key_by(
    function: Callable[[Record], bytes | None] | None, default: Callable[[Record], bytes | None]
) -> Callable[[Record], bytes | None]:
    """Return the engine's function, or a user's in its place; a key that is neither bytes nor None raises TypeError."""
    if function is None:
        return default

    def key_of(record: Record) -> bytes | None:
        key = function(record)
        if key is not None and not isinstance(key, bytes):
            raise TypeError(f"ordering_key returned {key!r}; allowed are bytes and None")
        return key

    return key_of
