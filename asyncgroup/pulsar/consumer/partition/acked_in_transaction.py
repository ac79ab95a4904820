"""AckedInTransaction: which messages of an entry a transaction has acknowledged. Pure state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from asyncgroup.pulsar.consumer.acks.unacked import EntryKey
from asyncgroup.pulsar.wire.ack_set import full_set, words_of
from asyncgroup.pulsar.wire.commands import MessageIdData
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["AckedInTransaction", "id_of", "ids_of"]


class AckedInTransaction:
    """What a transaction has acknowledged of one entry: bits of a batch, or with size 0 the entry."""

    __slots__ = ("attachment", "copied_in", "ids", "messages", "size")

    def __init__(self, size: int, attachment: int) -> None:
        """`attachment`: the one in which its messages have arrived."""
        self.messages = 0
        self.size = size
        self.attachment = attachment
        self.copied_in = attachment
        """The attachment of the last copies of them that were queued when they were acknowledged, and dropped."""
        self.ids: list[MessageId] = []

    def __repr__(self) -> str:
        return f"<AckedInTransaction {self.messages:b} of {self.size}, attachment {self.attachment}>"

    def add_all(self, later: AckedInTransaction | None) -> None:
        """Add the messages of this entry that were acknowledged later, if there are any."""
        if later is not None:
            self.messages |= later.messages
            self.ids += later.ids

    def alone(self) -> list[AckedInTransaction]:
        """Return the messages of the entry, each alone."""
        if not self.size:
            return [self]
        found = []
        for each in self.ids:
            one = AckedInTransaction(self.size, self.attachment)
            one.copied_in = self.copied_in
            one.messages = 1 << each.batch_index
            one.ids.append(each)
            found.append(one)
        return found


def ids_of(entries: Mapping[EntryKey, AckedInTransaction]) -> Iterator[MessageIdData]:
    """Yield the ids of an acknowledgement of these entries."""
    for key, acked in entries.items():
        yield id_of(key, full_set(acked.size) & ~acked.messages, acked.size)


def id_of(key: EntryKey, unacked: int, size: int) -> MessageIdData:
    """Return the id of an entry: the broker compares the ack sets of transactions with each other by the batch's size."""
    found = MessageIdData(ledger_id=key[0], entry_id=key[1], ack_set=words_of(unacked) if unacked else ())
    if size:
        found.batch_size = size
    return found
