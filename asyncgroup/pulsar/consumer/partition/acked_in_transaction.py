"""AckedInTransaction: which messages of an entry a transaction has acknowledged. Pure state."""

from __future__ import annotations

from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["AckedInTransaction"]


class AckedInTransaction:
    """What a transaction has acknowledged of one entry: bits of a batch, or with size 0 the entry."""

    __slots__ = ("attachment", "ids", "messages", "size")

    def __init__(self, size: int, attachment: int) -> None:
        """`attachment`: the one in which its messages have arrived."""
        self.messages = 0
        self.size = size
        self.attachment = attachment
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
            one.messages = 1 << each.batch_index
            one.ids.append(each)
            found.append(one)
        return found
