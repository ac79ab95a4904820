"""PendingAcks: acknowledgements on their way to the broker, as groups of one Ack command. Pure state.

An acknowledgement is pending until it is sent, then in flight until the broker has answered, and gone after that. What is in
flight returns to pending after an error, and when the connection ends: acknowledgements are idempotent. So an acknowledgement
is never lost while the consumer is open, and an entry that is acknowledged here is recognized if it is pushed once more.

Groups have the rules of Pulsar's `PersistentAcknowledgmentsGroupingTracker`: a group is sent `group_time` seconds after its
first acknowledgement, or when it has `max_size` ones; a cumulative acknowledgement goes before the individual ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from asyncgroup.pulsar.consumer.acks.unacked import AckedEntry, EntryKey
from asyncgroup.pulsar.wire.ack_set import words_of
from asyncgroup.pulsar.wire.commands import CommandAck, MessageIdData

__all__ = ["AckBatch", "PendingAcks"]

INDIVIDUAL: Final = 0
CUMULATIVE: Final = 1
"""The values of `CommandAck.AckType`."""

MAX_IDS: Final = 5_000
"""Ids of one command, which keep it far below the limit of a frame."""

MAX_PARTLY_ACKED: Final = 1_000
"""Batches that are remembered as acknowledged in part, the latest ones."""


class AckBatch(NamedTuple):
    """Acknowledgements that were sent together: one command, which is cumulative or individual."""

    number: int
    cumulative: tuple[EntryKey, int] | None
    """The entry up to which all is acknowledged, and its unacknowledged messages."""
    entries: Mapping[EntryKey, int]
    """The unacknowledged messages by entry; 0: the whole entry is acknowledged."""

    @property
    def size(self) -> int:
        """The number of entries that it names."""
        return 1 if self.cumulative is not None else len(self.entries)

    def command(self, consumer_id: int, request_id: int | None) -> CommandAck:
        """Return the command."""
        if self.cumulative is not None:
            ids = [_id_of(*self.cumulative)]
            return CommandAck(
                consumer_id=consumer_id, ack_type=CUMULATIVE, message_id=ids, request_id=request_id
            )
        ids = [_id_of(key, unacked) for key, unacked in self.entries.items()]
        return CommandAck(consumer_id=consumer_id, ack_type=INDIVIDUAL, message_id=ids, request_id=request_id)


class PendingAcks:
    """The acknowledgements of one consumer that the broker has not confirmed. Loop times are parameters.

    `index_acks`: the broker keeps which messages of a batch are acknowledged. Without it only whole entries are
    acknowledged, and of a cumulative acknowledgement within a batch all entries before it.
    """

    def __init__(self, group_time: float, max_size: int, *, index_acks: bool) -> None:
        self._group_time = group_time
        self._max_size = max_size
        self._index_acks = index_acks
        self._entries: dict[EntryKey, int] = {}
        self._cumulative: tuple[EntryKey, int] | None = None
        self._sent: dict[int, AckBatch] = {}
        self._number = 0
        self._partly_acked: dict[EntryKey, None] = {}
        self.due_at = inf
        """The loop time at which to send what is pending; infinity without any."""

    def __repr__(self) -> str:
        return f"<PendingAcks {len(self)} pending, {len(self._sent)} commands in flight>"

    def __len__(self) -> int:
        return len(self._entries) + (self._cumulative is not None)

    @property
    def in_flight(self) -> int:
        """The number of commands that are not answered."""
        return len(self._sent)

    # --- acknowledgements -------------------------------------------------------------------------------------------------

    def add(self, acked: AckedEntry, now: float) -> None:
        """Add what `UnackedEntries.ack` has returned."""
        if acked.unacked and not self._index_acks and not acked.is_last:
            return  # nothing to send before the last message
        entries = self._entries
        for key in acked.keys:
            known = entries.get(key)
            entries[key] = acked.unacked if known is None else acked.unacked & known
        if self.due_at == inf or len(entries) >= self._max_size - 1:
            self._schedule(now)

    def add_cumulative(self, acked: AckedEntry, now: float) -> None:
        """Add what `UnackedEntries.ack_cumulative` has returned."""
        key, unacked = acked.keys[-1], acked.unacked
        if unacked and (acked.has_others or not self._index_acks):
            # a cumulative one replaces the broker's acknowledgements in the batch (`ManagedCursorImpl.ackBatchPosition`)
            if acked.has_others and unacked > 0:
                self.add(acked, now)
            key, unacked = _before(key), 0
        known = self._cumulative
        if known is None or key > known[0]:
            self._cumulative = (key, unacked)
        elif key == known[0]:
            self._cumulative = (key, known[1] & unacked)
        self._schedule(now)

    def _schedule(self, now: float) -> None:
        if len(self) >= self._max_size:
            self.due_at = now
        elif self.due_at == inf and len(self):
            self.due_at = now + self._group_time

    def unacked_of(self, key: EntryKey) -> int:
        """Return the messages of an entry that no acknowledgement names of which the broker may not know yet.

        They are bits: -1 for all, 0 for none if the entry is acknowledged as a whole.
        """
        if not self._sent and not self._entries and self._cumulative is None:
            return -1
        if _covers(self._cumulative, key):
            return 0
        unacked = self._entries.get(key, -1)
        for batch in self._sent.values():
            if _covers(batch.cumulative, key):
                return 0
            unacked &= batch.entries.get(key, -1)
        return unacked

    # --- groups -----------------------------------------------------------------------------------------------------------

    def take(self) -> AckBatch | None:
        """Return the next command to send, which is in flight from now on; None if nothing is pending."""
        if self._cumulative is not None:
            found = AckBatch(self._number, self._cumulative, {})
            for key in [key for key in self._entries if _covers(self._cumulative, key)]:
                del self._entries[key]
            self._cumulative = None
        elif self._entries:
            keys = list(self._entries)[:MAX_IDS]
            found = AckBatch(self._number, None, {key: self._entries.pop(key) for key in keys})
        else:
            return None
        self._number += 1
        self._sent[found.number] = found
        for key, unacked in found.entries.items():
            if unacked:
                self._partly_acked[key] = None
        if not len(self):
            self.due_at = inf
        return found

    def confirm(self, number: int) -> None:
        """The broker has processed a command."""
        batch = self._sent.pop(number, None)
        if batch is None or not self._partly_acked:
            return
        for key, unacked in batch.entries.items():
            if not unacked:
                self._partly_acked.pop(key, None)
        while len(self._partly_acked) > MAX_PARTLY_ACKED:
            del self._partly_acked[next(iter(self._partly_acked))]

    def is_partly_acked(self, key: EntryKey) -> bool:
        """Whether the broker may have acknowledgements of some messages of a batch, also of before a seek."""
        return key in self._partly_acked

    def fail(self, number: int, retry_at: float) -> bool:
        """The broker has refused a command, or has not answered: its acknowledgements are pending until `retry_at`.

        Return False if it is not in flight any more, as after the end of the connection.
        """
        batch = self._sent.pop(number, None)
        if batch is None:
            return False
        self._take_back(batch)
        self.due_at = min(self.due_at, retry_at)
        return True

    def disconnect(self) -> None:
        """The connection ended: all that is in flight is pending again, until `take` on the next one."""
        for batch in self._sent.values():
            self._take_back(batch)
        self._sent.clear()
        self.due_at = inf

    def reconnect(self, now: float) -> None:
        """There is a new connection: what is pending is to be sent at once."""
        if len(self):
            self.due_at = now

    def clear(self) -> None:
        """The subscription continues elsewhere: forget all."""
        self._entries.clear()
        self._cumulative = None
        self._sent.clear()
        self.due_at = inf

    def _take_back(self, batch: AckBatch) -> None:
        for key, unacked in batch.entries.items():
            _merge(self._entries, key, unacked)
        known, old = self._cumulative, batch.cumulative
        if old is not None and (known is None or old[0] > known[0]):
            self._cumulative = old
        elif old is not None and known is not None and old[0] == known[0]:
            self._cumulative = (old[0], old[1] & known[1])


def _merge(entries: dict[EntryKey, int], key: EntryKey, unacked: int) -> None:
    known = entries.get(key)
    entries[key] = unacked if known is None else unacked & known


def _covers(cumulative: tuple[EntryKey, int] | None, key: EntryKey) -> bool:
    """Whether a cumulative acknowledgement includes a whole entry."""
    if cumulative is None:
        return False
    return key < cumulative[0] or (key == cumulative[0] and not cumulative[1])


def _before(key: EntryKey) -> EntryKey:
    """Return the entry before; of the first one of a ledger the number -1, which the broker understands."""
    return key[0], key[1] - 1


def _id_of(key: EntryKey, unacked: int) -> MessageIdData:
    words: Sequence[int] = words_of(unacked) if unacked else ()
    return MessageIdData(ledger_id=key[0], entry_id=key[1], ack_set=words)
