"""WindowMarks: what a partition commits whose records are acknowledged in any order: the base, and the window above it."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from asyncgroup.ack_window import AckWindow
from asyncgroup.model import CommittedOffset, Record, TopicPartition
from asyncgroup.offsets.commit_metadata import (
    MAX_METADATA,
    CommitMetadata,
    encode_metadata,
    window_room,
)
from asyncgroup.offsets.window_encoding import encode_window

__all__ = ["WindowMarks"]

_log = logging.getLogger("asyncgroup.offsets")

_SMALL: Final = 256
"""Bytes of metadata of which hundreds of partitions fit into one record batch of the offsets topic."""

_State = tuple[int, bool, int, UUID, tuple[int, int] | None]
"""What the encoded value depends on: version of the window, flag, limit, topic id, where a value in chunks holds it back."""


class WindowMarks:
    """The window of one claim, encoded once for each version of it.

    `start` is the committed offset at which the claim begins to read, with its leader epoch; `text` the user's text there,
    and `end_epoch` the leader epoch of the last acknowledged record in its window.
    `on_restart(offset)` is called when the log has other records from `offset` on than those that were read.
    """

    def __init__(
        self,
        tp: TopicPartition,
        window: AckWindow,
        *,
        limit: int = MAX_METADATA,
        text: str = "",
        start: tuple[int, int] | None = None,
        end_epoch: int = -1,
    ) -> None:
        self.tp = tp
        self.window = window
        self.limit = limit
        """Bytes that the metadata of a commit may have: `offset.metadata.max.bytes` of the broker."""
        self.is_open = False
        """Whether the claim has begun and has not ended in order; see `CommitMetadata.is_open`."""
        self.on_restart: Callable[[int], None] | None = None
        self.size = 0
        """Bytes of the metadata that was last encoded."""
        self.committed = -1
        """The offset of the last commit that the group coordinator has confirmed, as far as the log still has those records; -1 if
        unknown."""
        self._is_shrunk = False
        self._text = text
        self._epochs: list[tuple[int, int]] = []  # first offset and leader epoch, where the epoch changed
        # Commits do not move beyond what was read until the restored window was: the first chunks of a value are acknowledged
        # in it, so that its base may reach the last one before the value holds back the commit.
        self._start = start if start is not None and start[0] < window.end else None
        self._start_ends_at = window.end
        self._restored = (window.end, end_epoch)  # of the window as it was restored
        if start is not None and start[1] >= 0:
            self._epochs.append((start[0] - 1, start[1]))
        self._encoded: tuple[_State, CommittedOffset] | None = None
        self._version = window.version  # that was last encoded

    def __repr__(self) -> str:
        return f"<WindowMarks of {self.tp}: {self.window!r}>"

    @property
    def changes(self) -> int:
        """The number of changes of the window since it was last encoded."""
        return self.window.version - self._version

    def open(self) -> None:
        """The claim begins: a commit from now on has the flag."""
        self.is_open = True

    def close(self) -> None:
        """The claim ends in order: the last commit has no flag."""
        self.is_open = False

    def note_epoch(self, offset: int, leader_epoch: int) -> bool:
        """Remember the leader epoch of the records from `offset` on (KIP-320), which are read now; return whether more may be committed.

        Call it before they are looked up in the window, and after `PartitionMarks.hold_value` for the values in chunks that begin
        before the end of the records.

        A later epoch than that of the last record acknowledged by a former owner, and that below it: the log was truncated
        there since, and has other records.
        """
        self._check_truncated(offset, leader_epoch)
        has_moved = self._move_start(offset + 1, leader_epoch)
        self._add_epoch(offset, leader_epoch)
        return has_moved

    def note_epochs(self, records: Sequence[Record], end: int) -> bool:
        """Remember the leader epochs of the next records of the log, which was read up to the offset `end`; return as `note_epoch`."""
        first, last = records[0], records[-1]
        has_moved = self.note_epoch(first.offset, first.leader_epoch)
        if first.leader_epoch != last.leader_epoch:
            epoch = first.leader_epoch
            for record in records:
                if record.leader_epoch != epoch:
                    epoch = record.leader_epoch
                    has_moved |= self.note_epoch(record.offset, epoch)
        return self.note_epoch(end, last.leader_epoch) or has_moved

    def skip_range(self, start: int, end: int, leader_epoch: int) -> bool:
        """Acknowledge offsets that have no records to deliver, perhaps ahead of others; return whether that changes anything.

        `leader_epoch` is that of the offset before `end`.
        """
        version = self.window.version
        has_moved = (
            self._start is not None and start <= self._start[0] and self._move_start(end, leader_epoch)
        )
        if start < end:
            self._check_truncated(start, leader_epoch)
            self._add_epoch(end - 1, leader_epoch)
        self.window.ack_range(start, end)
        return has_moved or self.window.version != version

    def _move_start(self, end: int, leader_epoch: int) -> bool:
        """The restored window was read up to `end`; return whether more may be committed."""
        start = self._start
        if start is None or end <= start[0]:
            return False
        self._start = None if end >= self._start_ends_at else (end, leader_epoch)
        return start[0] < self.window.base

    def _check_truncated(self, offset: int, leader_epoch: int) -> None:
        end, end_epoch = self._restored
        if offset < end and leader_epoch > end_epoch >= 0:
            self.restart(offset, is_recreated=False)

    def _add_epoch(self, offset: int, leader_epoch: int) -> None:
        epochs = self._epochs
        if not epochs or epochs[-1][0] < offset:
            if not epochs or epochs[-1][1] != leader_epoch:
                epochs.append((offset, leader_epoch))
                self._forget_encoded(offset)
            return
        # before what is known: records are read again, or a range that was skipped lies ahead of the delivered records
        place = bisect_left(epochs, (offset, -2))
        if not place or epochs[place - 1][1] != leader_epoch:
            epochs.insert(place, (offset, leader_epoch))
            self._forget_encoded(offset)

    def _forget_encoded(self, offset: int) -> None:
        """The epoch of an offset is known now: that before the base, or at the window's end, may be another one."""
        if offset < self.window.end:
            self._encoded = None

    def value(self, held: tuple[int, int] | None, topic_id: UUID) -> CommittedOffset:
        """Return offset, metadata and leader epoch to commit; `held` is where a value in chunks holds it back."""
        held = self._lowest(held, self.window.base)
        state = self._state(held, topic_id)
        if self._encoded is not None and self._encoded[0] == state:
            return self._encoded[1]
        offset, epoch = held or (self.window.base, self._epoch_before(self.window.base))
        if held is None:
            self._forget_epochs_before(offset)
        metadata, _ = self._encode(self.window, offset, topic_id)
        self.size = len(metadata.encode())
        value = CommittedOffset(offset, metadata, epoch)
        self._encoded = (state, value)
        self._version = self.window.version
        return value

    def note_committed(self, value: CommittedOffset) -> None:
        """The coordinator has confirmed a value, unless the log has other records since it was encoded."""
        if self._encoded is not None and self._encoded[1] == value:
            self.committed = value.offset

    def is_current(self, value: CommittedOffset, held: tuple[int, int] | None, topic_id: UUID) -> bool:
        """Whether nothing has changed since `value` was returned. Encodes nothing."""
        return self._encoded == (self._state(self._lowest(held, self.window.base), topic_id), value)

    def value_of(
        self, window: AckWindow, held: tuple[int, int] | None, topic_id: UUID
    ) -> tuple[CommittedOffset, int]:
        """Return what `value` would return if `window`, a copy with more acknowledgements, were this one's. Changes nothing.

        The number is the offset below which its metadata has all acknowledgements: a large window has no room for all.
        """
        held = self._lowest(held, window.base)
        offset, epoch = held or (window.base, self._epoch_before(window.base))
        metadata, end = self._encode(window, offset, topic_id)
        return CommittedOffset(offset, metadata, epoch), end

    def shrink(self, *, is_request_too_large: bool = False) -> bool:
        """The broker refused the metadata as too large: halve the limit. Return False if there is nothing left to omit.

        If it refused the request as a whole, this one is left as it is the first time if it is small.
        """
        if is_request_too_large and self.size <= _SMALL < self.limit:
            self.limit = _SMALL
            return True
        if not self.size:
            return False
        is_first = not self._is_shrunk
        self._is_shrunk = True
        self.limit = min(self.limit, self.size) // 2
        if is_first:
            _log.warning(
                "%s: the broker refuses a commit's metadata of %d bytes as too large (offset.metadata.max.bytes); the next "
                "ones are smaller, so that more records may be delivered again after a restart",
                self.tp,
                self.size,
            )
        return True

    def _lowest(self, held: tuple[int, int] | None, base: int) -> tuple[int, int] | None:
        """Return where commits of a window at `base` are held back, by a value in chunks or by the start of the claim."""
        start = self._start
        if start is None or start[0] >= base:
            return held
        return start if held is None else min(start, held)

    def _state(self, held: tuple[int, int] | None, topic_id: UUID) -> _State:
        return self.window.version, self.is_open, self.limit, topic_id, held

    def _encode(self, window: AckWindow, offset: int, topic_id: UUID) -> tuple[str, int]:
        """Return the metadata, and where the part of the window that it contains ends.

        It has as much of the window as fits, and none of it if not even the rest fits.
        """
        text, is_open = self._text, self.is_open
        if (
            offset == window.base and not window.acked_above and not window.attempts
        ):  # in order: the common case
            return self._sealed(offset, CommitMetadata(text, topic_id, "", is_open)), offset
        others = CommitMetadata(text, topic_id, "", is_open, self._end_epoch(window.end, offset))
        encoded, end = encode_window(window, offset, window_room(others, self.limit))
        if not encoded:
            others = others._replace(end_epoch=-1)
        metadata = self._sealed(offset, others._replace(window=encoded))
        return metadata, end if metadata not in ("", text) else offset

    def _sealed(self, offset: int, metadata: CommitMetadata) -> str:
        """Return the metadata of a commit; empty if not even the user's text fits."""
        encoded = encode_metadata(self.tp, offset, metadata, self.limit)
        return encoded if len(encoded.encode()) <= self.limit else ""

    def rebase(self, offset: int, log_end: int) -> None:
        """Follow an offset reset: reading goes on at `offset`, and what is beyond `log_end` is forgotten.

        Records that were read and are no longer in the log stay as they are, since their deliveries go on.
        """
        if self.window.base > log_end:
            self.restart(offset, is_recreated=True)
            return
        self.committed, self._encoded = min(self.committed, log_end), None
        if self.window.end > log_end:
            self.window.truncate(log_end)
        self._forget_epochs(log_end)
        if self.on_restart is not None:
            self.on_restart(min(offset, log_end))

    def restart(self, offset: int, *, is_recreated: bool) -> None:
        """Forget what belongs to records that are no longer in the log: all of a recreated topic, else from `offset` on."""
        self.committed, self._encoded = -1 if is_recreated else min(self.committed, offset), None
        if is_recreated:
            self.window.restart(offset)
            self._forget_epochs(0)
            self._start = None
        else:
            self.window.truncate(offset)
            self._forget_epochs(offset)
        if self.on_restart is not None:
            self.on_restart(0 if is_recreated else offset)

    def _forget_epochs(self, offset: int) -> None:
        """Forget the leader epochs of the records from `offset` on."""
        self._restored = (min(self._restored[0], offset), self._restored[1])
        self._epochs = [entry for entry in self._epochs if entry[0] < offset]

    def _end_epoch(self, end: int, offset: int) -> int:
        """Return the largest leader epoch of the acknowledged records from `offset` to `end`; -1 if unknown, or if there are none."""
        if end <= offset:
            return -1
        place = bisect_right(self._epochs, (end, -2)) - 1
        known = self._epochs[place][1] if place >= 0 else -1
        restored_end, restored_epoch = self._restored
        return max(known, restored_epoch) if offset < restored_end else known

    def _epoch_before(self, offset: int) -> int:
        """Return the leader epoch of the record before `offset`; -1 if unknown."""
        place = bisect_right(self._epochs, (offset, -2)) - 1
        return self._epochs[place][1] if place >= 0 else -1

    def _forget_epochs_before(self, base: int) -> None:
        """Forget all epochs but the last one before the base, which does not move back."""
        place = bisect_right(self._epochs, (base, -2)) - 1
        if place > 0:
            del self._epochs[:place]
