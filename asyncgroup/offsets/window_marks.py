"""WindowMarks: what a partition commits whose records are acknowledged in any order: the base, and the window above it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from uuid import UUID

from asyncgroup.model import CommittedOffset, TopicPartition
from asyncgroup.offsets.ack_window import AckWindow
from asyncgroup.offsets.commit_metadata import MAX_METADATA, CommitMetadata, encode_metadata, window_room
from asyncgroup.offsets.window_encoding import encode_window

__all__ = ["WindowMarks"]


class WindowMarks:
    """The window of one claim, encoded once for each version of it.

    `on_restart(offset)` is called when the log has other records from `offset` on than those that were read.
    """

    def __init__(
        self, tp: TopicPartition, window: AckWindow, *, limit: int = MAX_METADATA, text: str = ""
    ) -> None:
        self.tp = tp
        self.window = window
        self.limit = limit
        """Bytes that the metadata of a commit may have: `offset.metadata.max.bytes` of the broker."""
        self.on_restart: Callable[[int], None] | None = None
        self.size = 0
        """Bytes of the metadata that was last encoded."""
        self._text = text
        self._epochs: list[tuple[int, int]] = []  # first offset and leader epoch, where the epoch changed
        self._encoded: tuple[int, CommittedOffset] | None = None  # version of the window, what it commits

    def __repr__(self) -> str:
        return f"<WindowMarks of {self.tp}: {self.window!r}>"

    def note_epoch(self, offset: int, leader_epoch: int) -> None:
        """Remember the leader epoch of the records from `offset` on (KIP-320)."""
        if not self._epochs or self._epochs[-1][1] != leader_epoch:
            self._epochs.append((offset, leader_epoch))

    def value(self, held: tuple[int, int] | None, topic_id: UUID) -> CommittedOffset:
        """Return offset, metadata and leader epoch to commit; `held` is where a value in chunks holds it back."""
        window = self.window
        if self._encoded is not None and self._encoded[0] == window.version and held is None:
            return self._encoded[1]
        offset, epoch = held or (window.base, self._epoch_before(window.base))
        encoded = encode_window(window, offset, window_room(self._text, topic_id, self.limit))
        metadata = encode_metadata(self.tp, offset, CommitMetadata(self._text, topic_id, encoded))
        self.size = len(metadata)
        value = CommittedOffset(offset, metadata, epoch)
        self._encoded = (window.version, value)
        return value

    def is_current(self, value: CommittedOffset) -> bool:
        """Whether the window has not changed since `value` was returned."""
        return self._encoded == (self.window.version, value)

    def rebase(self, offset: int, log_end: int) -> None:
        """Follow an offset reset: reading goes on at `offset`; records that the log has lost count as done."""
        if self.window.base > log_end:
            self.restart(offset, is_recreated=True)
        else:
            self.window.ack_range(self.window.base, offset)

    def restart(self, offset: int, *, is_recreated: bool) -> None:
        """Forget what belongs to records that are no longer in the log: all of a recreated topic, else from `offset` on."""
        if is_recreated:
            self.window.restart(offset)
            self._epochs.clear()
        else:
            self.window.truncate(offset)
            self._epochs = [entry for entry in self._epochs if entry[0] < offset]
        if self.on_restart is not None:
            self.on_restart(0 if is_recreated else offset)

    def _epoch_before(self, offset: int) -> int:
        """Return the leader epoch of the record before `offset`; -1 if unknown."""
        place = bisect_right(self._epochs, (offset, -2)) - 1
        if place < 0:
            return -1
        if place:
            del self._epochs[:place]  # the base does not move back
        return self._epochs[0][1]
