"""PermitLedger: how many messages the broker may still push to a consumer. Pure state.

A permit is a message, not an entry. On a connection

    permits granted = open at the broker + charged for messages that have arrived

and a message that has arrived is in the queue, delivered, or dropped. The broker charges an entry with its messages that are
not in the entry's ack set, also if it has fewer permits left: then the open ones are below 0. So what has to be granted follows
from two numbers, the open permits and the queued messages, and no way out of the queue has a count that could be forgotten.

A new connection begins with an empty account: the broker knows nothing of permits on the old one.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PermitLedger"]

MOST: Final = 0x7FFFFFFF
"""Permits of one command: a broker reads a larger number as negative, and closes the connection
(`Consumer.flowPermits`). The metadata of a batch that cannot be read may claim more messages."""


class PermitLedger:
    """The permits of one consumer. `next_flow` alone says what to grant.

    - `size`: messages that may be open or queued together, the receiver queue. 0: only what receivers wait for.
    - `max_bytes`: bytes that may be queued, by the mean size of a message and its `overhead`; until one has arrived, each counts
      as `largest` of the connection. None: without limit.
    """

    __slots__ = (
        "_largest",
        "_max_bytes",
        "_mean",
        "_overhead",
        "bytes",
        "delivered",
        "dropped",
        "granted",
        "hurried",
        "is_connected",
        "is_paused",
        "open",
        "outside",
        "queued",
        "size",
        "waiting",
    )

    def __init__(self, size: int, *, max_bytes: int | None = None, overhead: int = 0) -> None:
        self.size = size
        self._max_bytes = max_bytes
        self._overhead = overhead
        self.outside = 0
        """Bytes of messages that were taken from the queue and count for the limit nevertheless."""
        self._mean = 0.0  # bytes of a message; 0 until one has arrived
        self._largest = 0
        self.waiting = 0
        """Number of messages that receivers wait for."""
        self.is_paused = False
        """Whether nothing is granted."""
        self.is_connected = False
        self._open_account()

    def __repr__(self) -> str:
        return f"<PermitLedger {self.open} open, {self.queued} queued, {self.granted} granted>"

    def _open_account(self) -> None:
        self.open = 0
        """Permits that the broker has; below 0 after a batch with more messages than it had."""
        self.queued = 0
        """Messages that have arrived, and are neither delivered nor dropped."""
        self.bytes = 0
        """Bytes of the queued messages."""
        self.granted = 0
        """All permits of this connection."""
        self.delivered = 0
        """Messages of this connection that were delivered."""
        self.dropped = 0
        """Messages of this connection that the broker charged, and that are not to be delivered."""
        self.hurried = 0
        """Messages that went back to the broker and may come again: permits for as many are granted as soon as there is room."""

    def share(self, size: int, max_bytes: int | None) -> None:
        """Change the limits; permits that the broker has beyond them are used up, and no others granted before."""
        self.size = size
        self._max_bytes = max_bytes

    def connect(self, largest: int = 0) -> None:
        """The consumer is registered on a new connection: an empty account, and an empty queue."""
        self._open_account()
        self._largest = largest
        self.is_connected = True

    def disconnect(self) -> None:
        """The connection ended: the broker pushes what was queued again, to this consumer or another one."""
        self._open_account()
        self.is_connected = False

    @property
    def target(self) -> int:
        """How many messages may be open or queued together now."""
        wanted = self.size or self.waiting
        size = self._mean or self._largest
        if self._max_bytes is None or not size:
            return wanted
        room = self._max_bytes - self.outside
        return min(wanted, max(1, int(room / (size + self._overhead))))

    def arrive(self, charged: int, kept: int, size: int) -> None:
        """An entry arrived: the broker charged `charged` messages, `kept` of them with `size` bytes are queued."""
        self.open -= charged
        self.queued += kept
        self.bytes += size
        if charged > kept:
            self.dropped += charged - kept
        if kept:
            each = size / kept
            self._mean = self._mean + (each - self._mean) / 8 if self._mean else each

    def deliver(self, count: int, size: int) -> None:
        """Messages leave the queue for a receiver."""
        self.queued -= count
        self.bytes -= size
        self.delivered += count

    def drop(self, count: int, size: int) -> None:
        """Messages leave the queue, and are not delivered."""
        self.queued -= count
        self.bytes -= size
        self.dropped += count

    def next_flow(self) -> int:
        """Return the permits to grant now, which count as granted; 0 for none.

        At least half of the target is granted at once, so that a busy consumer sends few commands; less if messages are to come
        again, which otherwise would wait for that.
        """
        if self.is_paused or not self.is_connected:
            return 0
        wanted, each = self.size or self.waiting, self._mean or self._largest
        target = wanted  # as the property, without the call: this is asked for each message
        if self._max_bytes is not None and each:
            room = self._max_bytes - self.outside
            target = min(wanted, max(1, int(room / (each + self._overhead))))
        due = target - self.queued - self.open
        if due <= 0 or (due * 2 < target and not self.hurried):
            return 0
        if self._max_bytes is not None and self.bytes + self.outside >= self._max_bytes:
            return 0
        due = min(due, MOST)
        self.open += due
        self.granted += due
        self.hurried = self.hurried - due if self.hurried > due else 0
        return due
