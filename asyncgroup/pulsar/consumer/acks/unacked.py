"""UnackedEntries: which messages of each entry are not acknowledged, and which of them this process has. Pure state.

Only entries of several parts are kept: batches, whose messages are acknowledged one by one, and values in chunks, whose
entries are acknowledged together. An entry with one message needs no state: its acknowledgement is its id.

A broker pushes entries, not messages. When it pushes a batch again, because one message of it was negatively acknowledged,
the messages that were acknowledged here and those that are still with a receiver are left out.

The ack set of a pushed batch leaves out what others have acknowledged, also in transactions that are open
(`AbstractBaseDispatcher.filterEntriesForConsumer` of Pulsar). So an acknowledgement names only what was acknowledged here, as that of Java's
client does. One of the whole entry would end the others' messages, which an aborted transaction has to bring back.

A broker may keep the ack set of a batch over a seek, see `clear`. Then the acknowledgement of one message may be the last that it lacks,
and it would push none of the others again. So it gets that of the whole entry, after the last message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.pulsar.wire.ack_set import MAX_SIZE, full_set
from asyncgroup.pulsar.wire.entry import Entry
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["AckedEntry", "EntryKey", "UnackedEntries"]

MAX_IN_TRANSACTIONS: Final = 1_000
"""Batches that are remembered after transactions have acknowledged in them, the latest ones."""

EntryKey: TypeAlias = tuple[int, int]
"""Ledger and entry: an entry of one partition."""


class AckedEntry(NamedTuple):
    """What an acknowledgement of a message means for its entry."""

    keys: Sequence[EntryKey]
    """The entry; of a value in chunks all of its entries; empty if nothing is sent before the last message."""
    unacked: int
    """The messages of a batch that were not acknowledged here, as bits; 0: the whole entry is acknowledged."""
    is_last: bool = False
    """Whether no message is left here although `unacked` names some: others have acknowledged those."""
    has_others: bool = False
    """Whether others may have acknowledged messages of the batch after those of a cumulative acknowledgement."""


class _Batch:
    __slots__ = ("acked", "held", "in_transactions", "is_taken", "is_whole", "unacked", "wanted")

    def __init__(self, wanted: int, unacked: int) -> None:
        self.wanted = wanted
        """The messages that consumers of the subscription have to acknowledge, or have acknowledged."""
        self.unacked = unacked
        """The messages that are left to this consumer."""
        self.held = unacked
        """Unacknowledged messages that are in the queue, or with a receiver."""
        self.in_transactions = 0
        """Those that open transactions have acknowledged: the broker pushes them again if they are aborted."""
        self.acked = 0
        """Those that were acknowledged here."""
        self.is_taken = False
        """Whether a receiver had a message at the end of a connection, and may still acknowledge it."""
        self.is_whole = False
        """Whether it is acknowledged as a whole, as the broker has an ack set of before a seek."""


class UnackedEntries:
    """The entries of one partition that have arrived and are not acknowledged.

    `index_acks`: the broker keeps which messages of a batch are acknowledged, see `PendingAcks`.
    """

    def __init__(self, *, index_acks: bool) -> None:
        self._index_acks = index_acks
        self._batches: dict[EntryKey, _Batch] = {}
        self._chunks: dict[EntryKey, Sequence[EntryKey]] = {}  # by the last one
        self._sought_to: EntryKey | None = None
        self._in_transactions: dict[EntryKey, None] = {}  # batches in which transactions have acknowledged

    def __repr__(self) -> str:
        return f"<UnackedEntries {len(self._batches)} batches, {len(self._chunks)} values in chunks>"

    # --- arrival ----------------------------------------------------------------------------------------------------------

    def arrive(self, entry: Entry, unwanted: int = 0) -> int:
        """Return which messages of an entry have to be delivered, as bits; 0 for none. `unwanted` ones never are."""
        if not entry.is_batch:
            return entry.unacked & ~unwanted
        key = entry.id[:2]
        may_be_sought = self._sought_to is not None and key <= self._sought_to
        known = self._batches.get(key)
        if known is None:
            is_first = may_be_sought and not entry.redelivery_count
            unacked = (entry.present if is_first else entry.unacked) & ~unwanted
            if wanted := entry.present & ~unwanted:
                batch = self._batches[key] = _Batch(wanted, unacked)
                batch.is_whole = is_first and bool(wanted & ~entry.unacked)
            return unacked
        missing = known.unacked
        if not may_be_sought:
            # more than at its last arrival if the transaction of another consumer was aborted
            missing = entry.unacked & ~(known.acked | unwanted)
            known.unacked = missing | known.in_transactions
            known.wanted = entry.present & ~unwanted
        found = missing & ~known.held
        known.held = (known.held | found) & known.unacked
        return found

    def end_if_done(self, key: EntryKey) -> AckedEntry | None:
        """Return what to acknowledge of an entry that has arrived if no message of it is left here, else None."""
        batch = self._batches.get(key)
        if batch is None:
            return AckedEntry((key,), 0)
        if batch.unacked:
            return None
        del self._batches[key]
        left = batch.wanted & ~batch.acked
        return AckedEntry((key,), left, left != 0)

    def add_chunks(self, ids: Sequence[MessageId]) -> None:
        """A value was put together from these entries."""
        self._chunks[ids[-1][:2]] = [one[:2] for one in ids]

    # --- acknowledgements -------------------------------------------------------------------------------------------------

    def ack(self, acked: MessageId) -> AckedEntry | None:
        """A message is acknowledged. Return what follows; None if it was before, or never arrived."""
        key, index = acked[:2], acked.batch_index
        if index < 0:
            self._batches.pop(key, None)
            return AckedEntry(self._chunks.pop(key, (key,)), 0)
        batch = self._batches.get(key)
        if batch is None or not batch.unacked >> index & 1:
            return None
        bit = 1 << index
        batch.acked |= bit
        batch.unacked &= ~bit
        batch.held &= batch.unacked
        left = batch.wanted & ~batch.acked
        if batch.unacked:
            return AckedEntry(() if batch.is_whole else (key,), left)
        del self._batches[key]
        return AckedEntry((key,), left, left != 0)

    def ack_cumulative(self, acked: MessageId) -> AckedEntry:
        """All messages up to this one are acknowledged, also those that others have. Return what follows for its entry.

        Of the messages after it in its batch those are left that were not acknowledged here: others may have done so in a transaction
        that is aborted later, see `has_others`. A batch of unknown size that is not here is left as it is. Entries before are forgotten:
        they arrived in the order of their ids, as in all subscriptions that allow this.
        """
        key, index = acked[:2], acked.batch_index
        batch = self._batches.get(key)
        for found in (self._batches, self._chunks):
            while found and (first := next(iter(found))) < key:
                del found[first]
        if index < 0:
            self._batches.pop(key, None)
            self._chunks.pop(key, None)
            return AckedEntry((key,), 0)
        bits = full_set(min(index, MAX_SIZE) + 1)
        if batch is None:
            size = acked.batch_size
            is_known = size is not None and size <= MAX_SIZE
            return AckedEntry((key,), full_set(size or 0) & ~bits if is_known else -1, has_others=True)
        batch.acked |= bits
        batch.unacked &= ~bits
        batch.held &= batch.unacked
        left = batch.wanted & ~batch.acked
        if not batch.unacked:
            del self._batches[key]
        if left == batch.unacked:
            return AckedEntry((key,), left)
        return AckedEntry((key,), left, not batch.unacked, has_others=True)

    # --- acknowledgements in transactions ---------------------------------------------------------------------------------

    def add_to_transaction(self, key: EntryKey, messages: int) -> None:
        """A transaction acknowledges these messages of a batch, as bits."""
        if (batch := self._batches.get(key)) is not None:
            batch.in_transactions |= messages & batch.unacked
            self._in_transactions[key] = None
            if len(self._in_transactions) > MAX_IN_TRANSACTIONS:
                del self._in_transactions[next(iter(self._in_transactions))]

    def was_in_transaction(self, key: EntryKey) -> bool:
        """Whether a transaction has acknowledged some messages of a batch, also before a seek, and perhaps not all."""
        return key in self._in_transactions

    def left_in(self, key: EntryKey) -> int:
        """Return the messages of a batch that are neither acknowledged here nor by an open transaction, as bits."""
        batch = self._batches.get(key)
        return 0 if batch is None else batch.unacked & ~batch.in_transactions

    def release_in_transaction(self, key: EntryKey, messages: int) -> None:
        """The broker knows these acknowledgements, or they are withdrawn: from now on what it pushes again is delivered."""
        if (batch := self._batches.get(key)) is not None:
            batch.held &= ~messages

    def end_transaction(self, key: EntryKey, messages: int, *, is_committed: bool) -> None:
        """The transaction has ended; `messages` is 0 for an entry that is no batch."""
        if not messages:
            if is_committed:
                self._chunks.pop(key, None)
            return
        batch = self._batches.get(key)
        if batch is None:
            return
        batch.in_transactions &= ~messages
        if is_committed:
            batch.acked |= messages
            batch.unacked &= ~messages
            batch.held &= batch.unacked
            if not batch.unacked:
                del self._batches[key]
                if batch.acked == batch.wanted:
                    self._in_transactions.pop(key, None)

    # --- redelivery -------------------------------------------------------------------------------------------------------

    def is_acked(self, message: MessageId) -> bool:
        """Whether a message of a batch was acknowledged, so that it cannot be delivered again."""
        if message.batch_index < 0:
            return False
        batch = self._batches.get(message[:2])
        return batch is None or not batch.unacked >> message.batch_index & 1

    def is_alone(self, message: MessageId) -> bool:
        """Whether the broker pushes no other message with this one if it pushes its entry again."""
        if message.batch_index < 0:
            return True
        batch = self._batches.get(message[:2])
        if batch is None or batch.unacked != 1 << message.batch_index:
            return False
        return (self._index_acks and not batch.is_whole) or not batch.acked

    def release(self, message: MessageId) -> None:
        """A message is neither in the queue nor with a receiver any more: it is delivered when its entry arrives again."""
        if message.batch_index >= 0 and (batch := self._batches.get(message[:2])) is not None:
            batch.held &= ~(1 << message.batch_index)

    def entries_of(self, message: MessageId) -> Sequence[EntryKey]:
        """Return the entries that have to be pushed again for a message."""
        key = message[:2]
        return self._chunks.get(key, (key,))

    def release_all(self) -> None:
        """All that is not acknowledged comes again, to this consumer or another one, also what is with a receiver.

        Call it after `release` for what was in the queue: batches of which no receiver has a message are forgotten.
        """
        for key, batch in list(self._batches.items()):
            batch.is_taken = batch.is_taken or bool(batch.held)
            batch.held = 0
            # after a seek the ack set of a first delivery is ignored, so that only this process knows what was acknowledged
            may_be_sought = self._sought_to is not None and key <= self._sought_to
            is_known = batch.in_transactions or (batch.acked and (may_be_sought or not self._index_acks))
            if not batch.is_taken and not is_known:
                del self._batches[key]

    def clear(self, last_before_seek: EntryKey | None) -> None:
        """The subscription continues elsewhere.

        Of a Shared or Key_Shared subscription the broker keeps the ack sets of batches over a seek (`PendingAckHandleImpl`, if it has
        transactions). So those up to the last entry before it are ignored at their first delivery; after that this process knows what
        is acknowledged.
        """
        self._batches.clear()
        self._chunks.clear()
        self._sought_to = last_before_seek


UNKNOWN_END: Final[EntryKey] = (1 << 64, 0)
"""The last entry before a seek if it is not known: no ack set counts."""
