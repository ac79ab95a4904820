"""AckedInTransaction: which messages of an entry a transaction has acknowledged. Pure state."""

from __future__ import annotations

from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["AckedInTransaction"]


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
