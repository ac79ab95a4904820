"""PartitionMarks: the next offset to commit of one partition; CommitHold: what holds it back. Pure state."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from asyncgroup.checks import check_leader_epoch, check_metadata, check_offset
from asyncgroup.errors import ErrorCode
from asyncgroup.model import CommittedOffset, Record
from asyncgroup.offsets.window_marks import WindowMarks
from asyncgroup.wire.messages import NO_UUID

__all__ = ["CommitHold", "CommittedOffset", "MemberIdentity", "PartitionMarks"]


class MemberIdentity(NamedTuple):
    """The member that commits offsets; the default is a consumer that is not a group member."""

    member_id: str = ""
    generation_id: int = -1
    """The generation, or the member epoch (KIP-848)."""
    group_instance_id: str | None = None


class PartitionMarks:
    """Marks of one partition: `mark` moves only forwards, `reset` only backwards (`partitionOffsetManager` in sarama)."""

    __slots__ = (
        "_bound",
        "_hold",
        "_skipped",
        "dirty",
        "late_marks",
        "leader_epoch",
        "metadata",
        "next_offset",
        "rejected",
        "topic_id",
        "transactional",
        "unanswered",
        "window",
    )

    def __init__(
        self, next_offset: int = -1, metadata: str = "", leader_epoch: int = -1, topic_id: UUID = NO_UUID
    ) -> None:
        self.next_offset = next_offset
        """The next offset to read; -1 while nothing is committed or marked."""
        self.metadata = metadata
        """The text committed with `next_offset`."""
        self.leader_epoch = leader_epoch
        """The leader epoch of the record before `next_offset`; -1 if unknown."""
        self.topic_id = topic_id
        """The topic that the marks belong to; a recreated topic of the same name has another id."""
        self._skipped = (0, 0, -1)
        """Start, end and leader epoch of the last range without records to deliver."""
        self._bound: Callable[[], int] | None = None  # returns the offset that marks may not exceed
        self._hold = CommitHold()
        self.dirty = False
        """Whether the mark has to be committed."""
        self.rejected = False
        """Whether the current mark was refused for good: automatic commits skip it until it changes."""
        self.unanswered = False
        """Whether a commit was given up without a response: the broker may still process it, after newer ones."""
        self.transactional = False
        """Whether a producer commits the mark in a transaction; the committer then leaves it out."""
        self.late_marks: Callable[[], object] | None = None
        """Called before the mark is read or moved back: applies the marks of a thread that have not been applied yet."""
        self.window: WindowMarks | None = None
        """What is committed in place of the mark if records are acknowledged in any order (work queues)."""

    def __repr__(self) -> str:
        state = " rejected" if self.rejected else " dirty" if self.dirty else ""
        return f"<PartitionMarks {self.next_offset}{state}>"

    @property
    def is_bounded(self) -> bool:
        """Whether marks beyond some offset are ignored: after a change of the log, or an unreadable batch."""
        return self._bound is not None

    def _collect(self) -> None:
        if self.late_marks is not None:
            self.late_marks()

    @property
    def base(self) -> int:
        """The first offset that is not done; -1 while nothing is committed or marked."""
        self._collect()
        return self.next_offset if self.window is None else self.window.window.base

    @property
    def progress(self) -> int:
        """A number that changes with each mark, or with each change of the window."""
        self._collect()
        return self.next_offset if self.window is None else self.window.window.version

    @property
    def value(self) -> CommittedOffset:
        """The offset, metadata and epoch to commit: the mark, unless a value in chunks holds it back."""
        self._collect()
        if self.window is not None:
            return self.window.value(self._hold.limit(self.window.window.base), self.topic_id)
        offset, epoch = self._hold.limit(self.next_offset) or (self.next_offset, self.leader_epoch)
        return CommittedOffset(offset, self.metadata, epoch)

    def value_with(self, offsets: Iterable[int]) -> CommittedOffset | None:
        """Return what would be committed if these offsets were also acknowledged; None if it has no room for them.

        Changes nothing: the transaction that commits it may be aborted.
        """
        assert self.window is not None
        wanted = list(offsets)
        window = self.window.window.with_acks(wanted)
        value, end = self.window.value_of(window, self._hold.limit_if(window.base), self.topic_id)
        return value if max(wanted, default=-1) < end else None

    def value_after(self, offset: int, leader_epoch: int) -> CommittedOffset:
        """Return what a mark at `offset` would commit.

        A range without records that begins there is skipped; a value in chunks may hold it back. Changes nothing: the
        transaction that commits it may be aborted.
        """
        start, end, epoch = self._skipped
        if start <= offset < end:
            offset, leader_epoch = end, epoch
        offset, leader_epoch = self._hold.limit_if(offset) or (offset, leader_epoch)
        return CommittedOffset(offset, "", leader_epoch)

    def mark_offset(self, offset: int, metadata: str = "", leader_epoch: int = -1) -> None:
        """Mark everything before `offset` as processed; ignored unless it is beyond the current mark.

        `leader_epoch` is that of the record before `offset`; without it the commit has no epoch, not that of an older mark.
        Raises ConfigError if the offset or epoch is not valid, or the metadata is not a string or too long.
        """
        self.advance(check_offset(offset), metadata, check_leader_epoch(leader_epoch))

    def mark_record(self, record: Record, metadata: str = "") -> None:
        """Mark a record and all before it as processed. Raises ConfigError for bad metadata."""
        self.advance(record.offset + 1, metadata, record.leader_epoch)

    def advance(self, offset: int, metadata: str, leader_epoch: int) -> None:
        """As `mark_offset`, without checking the offset and the epoch, which come from a record."""
        # the usual case, without a call
        if metadata != "":
            check_metadata(metadata)
        if offset > self.next_offset and (self._bound is None or offset <= self._bound()):
            self._move(offset, metadata, leader_epoch)

    def reset_offset(self, offset: int, metadata: str = "", leader_epoch: int = -1) -> None:
        """Move the mark back to `offset`, so that the next member reads again from there; ignored if it is beyond the mark.

        Raises ConfigError as `mark_offset`.
        """
        if metadata != "":
            check_metadata(metadata)
        self._collect()
        if check_offset(offset) <= self.next_offset:
            self._move(offset, metadata, check_leader_epoch(leader_epoch))

    def skip_range(self, start: int, end: int, leader_epoch: int = -1) -> None:
        """Skip a range without records to deliver, only transaction markers and aborted records.

        A mark that reaches `start`, now or later, moves on to `end`, so that the group's lag becomes 0. Only the last range
        is remembered; one that goes on where that ends extends it. `leader_epoch` is that of the record before `end`.
        """
        if self.window is not None:
            if self.window.skip_range(start, end, leader_epoch):
                self.touch()
            return
        if start < end and self._skipped[0] < start <= self._skipped[1]:
            start = self._skipped[0]
        self._skipped = (start, end, leader_epoch)
        if start <= self.next_offset < end:
            self._move(self.next_offset, self.metadata, self.leader_epoch)

    def _move(self, offset: int, metadata: str, leader_epoch: int) -> None:
        start, end, epoch = self._skipped
        if start <= offset < end:
            offset, leader_epoch = end, epoch
        self.next_offset = offset
        self.metadata = metadata
        self.leader_epoch = leader_epoch
        self.dirty = True
        # another value may be accepted
        self.rejected = False

    def rebase(self, offset: int, log_end: int) -> None:
        """Follow an offset reset: reading continues at `offset`. If `next_offset` is beyond the log's end, move it there too.

        Otherwise all marks below a committed offset that is not in the log would be ignored. This alone commits nothing.
        """
        self._collect()
        # that range was of the log before
        self._skipped = (0, 0, -1)
        # or the last commit would store the new position, as if it was marked
        self.unanswered = False
        if self.window is not None:
            self.window.rebase(offset, log_end)
        elif self.next_offset > log_end:
            self._move(offset, "", -1)
            self.dirty = False

    def restart(self, offset: int, topic_id: UUID, position: Callable[[], int]) -> None:
        """Follow a change of the log: from `offset` on it has other records than those marked.

        The log was truncated, or the topic was recreated (`topic_id`; nil: the same topic). A mark beyond `offset` moves
        back to it, and later marks beyond `position()` are ignored, as they are of lost records. This alone commits nothing.
        """
        self._collect()
        self._skipped = (0, 0, -1)
        self.unanswered = False
        self._bound = position
        # a recreated topic has none of its values
        self._hold.release_from(offset if topic_id == NO_UUID else 0)
        if topic_id != NO_UUID:
            self.topic_id = topic_id
        if self.window is not None:
            self.window.restart(offset, is_recreated=topic_id != NO_UUID)
        elif self.next_offset > offset:
            self._move(offset, "", -1)
            self.dirty = False

    def seek(self, offset: int) -> None:
        """Follow a seek of a work queue: all records before `offset` count as done, and none from there on."""
        assert self.window is not None
        self._skipped = (0, 0, -1)
        self._hold.release_from(0)
        self.next_offset = offset  # values in chunks from there on hold back the commit
        self.window.restart(offset, is_recreated=True)
        self.touch()

    def hold_back(self, offset: int, position: Callable[[], int]) -> int:
        """Limit marks after a batch that was delivered from `offset` on turned out to be unreadable.

        From now on marks beyond `position()` are ignored. Return where reading has to continue: at `offset`, or at the mark
        if that is later.
        """
        self._bound = position
        return max(offset, self.value.offset)

    # --- values in chunks -------------------------------------------------------------------------------------------

    def hold_value(self, first_offset: int, leader_epoch: int) -> None:
        """Hold back commits beyond the first chunk of a value, until it is marked or given up."""
        self._hold.begin(first_offset, leader_epoch, self.next_offset)

    def complete_value(self, first_offset: int, last_offset: int) -> None:
        """The value is complete; from now on a mark at its last chunk releases the commit."""
        before = self._hold.limit(self.base)
        self._hold.complete(first_offset, last_offset)
        self._commit_if_changed(before)

    def release_value(self, first_offset: int) -> None:
        """The value was given up."""
        before = self._hold.limit(self.base)
        self._hold.release(first_offset)
        self._commit_if_changed(before)

    def _commit_if_changed(self, before: tuple[int, int] | None) -> None:
        if self._hold.limit(self.base) != before:
            self.dirty, self.rejected = True, False

    def bind_topic(self, topic_id: UUID, position: Callable[[], int]) -> None:
        """Bind the marks to the topic that is read. If they belong to a deleted topic of the same name, do as `restart`.

        The second case follows a seek, which applies to the topic that exists then.
        """
        if self.topic_id == NO_UUID:
            self.topic_id = topic_id
        elif topic_id != self.topic_id:
            self.restart(position(), topic_id, position)

    def committed(self, value: CommittedOffset) -> None:
        """Record that `value` was committed; the mark stays dirty if it has changed since the request."""
        if self.window is not None:
            self.window.note_committed(value)
        if self._is_current(value):
            self.dirty = self.rejected = False

    def _is_current(self, value: CommittedOffset) -> bool:
        """Whether `value` is what would be committed now."""
        if self.window is None:
            return value == self.value
        return self.window.is_current(value, self._hold.limit(self.window.window.base), self.topic_id)

    def is_due(self, *, retry_rejected: bool) -> bool:
        """Whether the mark has to be committed, by a commit that leaves out rejected marks or does not."""
        self._collect()
        return self.dirty and not self.transactional and (retry_rejected or not self.rejected)

    def touch(self) -> None:
        """The window has changed and has to be committed."""
        self.dirty, self.rejected = True, False

    def reject(self, value: CommittedOffset) -> None:
        """Record that `value` was refused for good; ignored if the mark has changed since the request."""
        self.rejected = self.rejected or (self.dirty and self._is_current(value))

    def shrink(self, code: int) -> bool:
        """If a broker refused the window as too large (`code`), commit less of it; return whether it became smaller."""
        if self.window is None or code not in (
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ):
            return False
        return self.window.shrink(is_request_too_large=code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE)

    def recommit_unanswered(self) -> None:
        """Make the mark dirty if an unanswered commit may overwrite the newer committed offset, or already has."""
        self.dirty = self.dirty or (self.unanswered and self.base >= 0)

    def take_back(self, value: CommittedOffset) -> None:
        """Return to an earlier mark: the transaction that would have committed the present one was aborted."""
        if self.window is not None:
            return  # its acknowledgements stay, and are committed with the next ones
        if self.next_offset > value.offset:
            self.next_offset, self.metadata, self.leader_epoch = value
        self.dirty = self.rejected = False

    def discard_mark(self) -> None:
        """Drop the mark: its topic was deleted."""
        self.dirty = False
        self.rejected = False


class _Held(NamedTuple):
    leader_epoch: int
    last_offset: int | None
    """The offset of the last chunk; None while the value is incomplete."""


class CommitHold:
    """The values of one partition that are incomplete or not marked yet, by the offset of their first chunk.

    A commit between the first and the last chunk of such a value would lose it: the next member would read only the rest.
    """

    def __init__(self) -> None:
        self._values: dict[int, _Held] = {}
        # their offsets as a heap, also of values that were released: a large batch may be marked at its end only
        self._order: list[int] = []

    def __repr__(self) -> str:
        return f"<CommitHold at {sorted(self._values)}>"

    def begin(self, first_offset: int, leader_epoch: int, next_offset: int) -> None:
        """Hold back commits at the first chunk of a value; not if the mark, `next_offset`, was beyond it before."""
        if first_offset >= next_offset or first_offset in self._values:
            if first_offset not in self._values:
                heapq.heappush(self._order, first_offset)
            # a value that is read again is incomplete again
            self._values[first_offset] = _Held(leader_epoch, None)

    def complete(self, first_offset: int, last_offset: int) -> None:
        """The value is complete: from here on a mark beyond its last chunk releases it."""
        if (held := self._values.get(first_offset)) is not None:
            self._values[first_offset] = held._replace(last_offset=last_offset)

    def release(self, first_offset: int) -> None:
        """The value was given up."""
        self._values.pop(first_offset, None)

    def release_from(self, offset: int) -> None:
        """Release the values that began at this offset or later: the log has other records there now."""
        self._values = {first: held for first, held in self._values.items() if first < offset}

    def limit(self, next_offset: int) -> tuple[int, int] | None:
        """Return offset and leader epoch to commit in place of `next_offset`; None if it may be committed.

        Values that are marked as a whole are forgotten.
        """
        while self._order:
            first = self._order[0]
            held = self._values.get(first)
            if held is not None and (held.last_offset is None or held.last_offset >= next_offset):
                # the lowest one: if it begins at the mark or later, so do all others
                return (first, held.leader_epoch) if first < next_offset else None
            heapq.heappop(self._order)
            self._values.pop(first, None)
        return None

    def limit_if(self, next_offset: int) -> tuple[int, int] | None:
        """Return what `limit` would return, and forget nothing: the mark is not there yet."""
        return min(
            (
                (first, held.leader_epoch)
                for first, held in self._values.items()
                if first < next_offset and (held.last_offset is None or held.last_offset >= next_offset)
            ),
            default=None,
        )
