"""Cursor: what a subscription has acknowledged. Pure state (Pulsar's `ManagedCursorImpl`).

Everything before the mark-delete position is acknowledged, after it whole entries one by one, and of a batch some of its messages.
"""

from __future__ import annotations

from asyncgroup.ack_window import AckWindow
from asyncgroup.pulsar.wire.ack_set import full_set
from asyncgroup.pulsar_broker.log.topic_log import StoredEntry

__all__ = ["Cursor"]


class Cursor:
    """The acknowledgements of one subscription; entries by their indexes."""

    def __init__(self, start: int) -> None:
        """`start` is the first entry that is not acknowledged."""
        self._window = AckWindow(start)
        self._unacked: dict[int, int] = {}  # of batches that are acknowledged in part
        self.reserved: dict[int, int] = {}
        """Entries that open transactions have acknowledged: those of their messages, as bits, that they have not."""
        self._committed: dict[int, int] = {}  # of those batches: what transactions have not acknowledged
        self.acked_count = 0
        """The number of acknowledgements of whole entries."""

    def __repr__(self) -> str:
        return f"<Cursor at {self.mark_delete}, {len(self._window.runs)} runs, {len(self._unacked)} batches>"

    @property
    def mark_delete(self) -> int:
        """The last entry up to which all are acknowledged."""
        return self._window.base - 1

    def is_acked(self, index: int) -> bool:
        """Whether an entry is acknowledged as a whole."""
        return index in self._window

    def unacked(self, entry: StoredEntry) -> int:
        """Return the messages of an entry that are not acknowledged, as bits."""
        if entry.index in self._window:
            return 0
        return self._unacked.get(entry.index, full_set(entry.count))

    def deliverable(self, entry: StoredEntry) -> int:
        """Return the messages of an entry that are not acknowledged, nor by an open transaction, as bits."""
        index = entry.index
        if index in self._window:
            return 0
        bits = self._unacked.get(index)
        if bits is None:
            bits = full_set(entry.count)
        return bits & self.reserved[index] if index in self.reserved else bits

    def partly_acked(self, entry: StoredEntry) -> int | None:
        """Return the bits for the ack set of an entry; None if none of its messages is acknowledged."""
        bits = self._unacked.get(entry.index)
        if entry.index in self.reserved:
            reserved = self.reserved[entry.index]
            return reserved if bits is None else bits & reserved
        return bits

    def next_unacked(self, index: int) -> int:
        """Return the first entry at or after an index that is not acknowledged."""
        index = max(index, self._window.base)
        # a reader goes on from here, so that each acknowledged entry is passed once; a look at all runs would be one for each entry
        while index in self._window:
            index += 1
        return index

    def ack(self, entry: StoredEntry, unacked: int = 0) -> bool:
        """Acknowledge an entry, or its messages that are not in `unacked`. Return whether the whole entry is acknowledged now."""
        left = self.unacked(entry) & unacked
        if left:
            if left != full_set(entry.count):
                self._unacked[entry.index] = left
            return False
        self._unacked.pop(entry.index, None)
        if self.reserved:
            self.reserved.pop(entry.index, None)
        if self._committed:
            self._committed.pop(entry.index, None)
        self.acked_count += self._window.ack(entry.index)
        return True

    def commit(self, entry: StoredEntry, unacked: int) -> bool:
        """Acknowledge messages of an entry as `ack`, for a transaction."""
        whole = self.ack(entry, unacked)
        if not whole:
            before = self._committed.get(entry.index, full_set(entry.count))
            self._committed[entry.index] = before & unacked
        return whole

    def ack_up_to(self, entry: StoredEntry, unacked: int) -> bool:
        """Acknowledge all messages of a batch but those in `unacked`, the last ones, as `ack`.

        The one with the later first message that is not acknowledged counts alone, this set or that of former acknowledgements
        (`ManagedCursorImpl.ackBatchPosition`): messages that were acknowledged one by one may come again.
        """
        before = self._unacked.get(entry.index, 0)
        if before and unacked:
            if unacked & -unacked <= before & -before:
                return False
            del self._unacked[entry.index]
        return self.ack(entry, unacked)

    def ack_before(self, index: int) -> None:
        """Acknowledge all entries before an index."""
        if index > self._window.base:
            self.acked_count += sum(each not in self._window for each in range(self._window.base, index))
            self._window.ack_range(self._window.base, index)
            self._unacked = {each: bits for each, bits in self._unacked.items() if each >= index}
            if self.reserved:
                self.reserved = {each: bits for each, bits in self.reserved.items() if each >= index}
            if self._committed:
                self._committed = {each: bits for each, bits in self._committed.items() if each >= index}

    def reset(self, index: int, *, is_shared: bool) -> None:
        """Continue at an entry; of a shared subscription acknowledged messages of batches stay so, of others those of transactions.

        `ManagedCursorImpl.internalResetCursor` forgets them. But `PendingAckHandleImpl` has a copy of those that were acknowledged in
        a transaction, or in a Shared or Key_Shared subscription, and the dispatcher goes on to leave them out.
        """
        self._window = AckWindow(index)
        if not is_shared:
            self._unacked = self._committed.copy()
