"""NegativeAcks: messages that are to be delivered again after a delay, and the commands that ask for it. Pure state.

A message is never asked for before its delay has passed, and the timer is for the earliest one, also when a later call has the
shorter delay. Until then the message counts as held here: if its entry arrives again before, it is not delivered.

A broker pushes everything again to a consumer that registers again. So only a message that has arrived since then is asked for: a
request for one that is still on its way would deliver it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Final

from asyncgroup.pulsar.consumer.acks.unacked import EntryKey
from asyncgroup.pulsar.wire.commands import CommandRedeliverUnacknowledgedMessages, MessageIdData
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["NegativeAcks", "redelivery_commands"]

MAX_IDS: Final = 1000
"""Ids of one command, as in Java's client."""

MAX_STALE: Final = 1000
"""Entries of the heap whose messages were acknowledged before their time, at which it is built again."""


class NegativeAcks:
    """The messages of one partition that wait for their redelivery. Loop times are parameters."""

    def __init__(self) -> None:
        self._due: dict[MessageId, float] = {}
        self._heap: list[tuple[float, MessageId]] = []
        self._coming: set[MessageId] = set()  # those that the broker pushes without a request

    def __repr__(self) -> str:
        return f"<NegativeAcks {len(self._due)} waiting>"

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, message: MessageId) -> bool:
        return message in self._due

    def holds(self, message: MessageId) -> bool:
        """Whether a message that has arrived again waits for its time, and has to be asked for then."""
        if message not in self._due:
            return False
        self._coming.discard(message)
        return True

    def restart(self) -> None:
        """Everything comes again without a request."""
        self._coming.update(self._due)

    @property
    def due_at(self) -> float:
        """The loop time of the earliest redelivery; infinity without any."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else inf

    def add(self, message: MessageId, due_at: float) -> None:
        """Deliver a message again at a loop time; a second call for it counts instead of the first."""
        self._due[message] = due_at
        self._coming.discard(message)
        heappush(self._heap, (due_at, message))

    def discard(self, message: MessageId) -> None:
        """The message was acknowledged."""
        self._coming.discard(message)
        if self._due.pop(message, None) is not None and len(self._heap) > 2 * len(self._due) + MAX_STALE:
            self._heap = [(due, each) for each, due in self._due.items()]
            heapify(self._heap)

    def discard_up_to(self, last: MessageId) -> None:
        """All messages up to one were acknowledged."""
        for message in [each for each in self._due if _position(each) <= _position(last)]:
            self.discard(message)

    def take_due(self, now: float) -> list[MessageId]:
        """Remove the messages whose time has come; return those to ask for, in the order of their times."""
        found = []
        while self.due_at <= now:
            _, message = heappop(self._heap)
            del self._due[message]
            if message in self._coming:
                self._coming.discard(message)
            else:
                found.append(message)
        return found

    def clear(self) -> None:
        """Forget all."""
        self._due.clear()
        self._heap.clear()
        self._coming.clear()


def redelivery_commands(
    consumer_id: int, keys: Iterable[EntryKey], epoch: int | None = None
) -> Iterator[CommandRedeliverUnacknowledgedMessages]:
    """Yield the commands that ask for these entries again: none without entries, since no ids mean all entries."""
    each = iter(dict.fromkeys(keys))
    while ids := [MessageIdData(ledger_id=key[0], entry_id=key[1]) for key in islice(each, MAX_IDS)]:
        yield CommandRedeliverUnacknowledgedMessages(
            consumer_id=consumer_id, message_ids=ids, consumer_epoch=epoch
        )


def _position(message: MessageId) -> tuple[int, int, float]:
    """Return what to compare with another id: an id without an index is the whole entry."""
    return message.ledger_id, message.entry_id, message.batch_index if message.batch_index >= 0 else inf
