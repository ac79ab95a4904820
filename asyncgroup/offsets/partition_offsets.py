"""The next offset to commit of one partition; pure state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from asyncgroup.checks import check_metadata, check_offset
from asyncgroup.errors import ConfigError
from asyncgroup.model import Record
from asyncgroup.wire.messages import NO_UUID

__all__ = ["CommittedOffset", "MemberIdentity", "PartitionOffsets"]


class CommittedOffset(NamedTuple):
    """What a group has committed for a partition: the next offset to read, a free text, and a leader epoch.

    `leader_epoch` is that of the last record before `offset`, -1 where nobody said (KIP-320).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class MemberIdentity(NamedTuple):
    """Under whose name offsets are committed; the default is that of a consumer outside any group protocol."""

    member_id: str = ""
    generation_id: int = -1
    group_instance_id: str | None = None


class PartitionOffsets:
    """Marks of one partition: `mark` moves forwards only, `reset` backwards only (`partitionOffsetManager` in sarama).

    `next_offset` is the next offset to read, -1 while nothing is committed nor marked; `metadata` and `leader_epoch`
    go with it. `dirty` says whether a commit is due. `topic_id` is the id of the topic that the marks are made for:
    a topic made anew under the same name is another one.
    """

    __slots__ = (
        "_bound",
        "_skipped",
        "dirty",
        "leader_epoch",
        "metadata",
        "next_offset",
        "rejected",
        "topic_id",
        "unanswered",
    )

    def __init__(
        self, next_offset: int = -1, metadata: str = "", leader_epoch: int = -1, topic_id: UUID = NO_UUID
    ) -> None:
        self.next_offset, self.metadata, self.leader_epoch = next_offset, metadata, leader_epoch
        self.topic_id = topic_id
        self._skipped = (0, 0, -1)
        self._bound: Callable[[], int] | None = None
        self.dirty = False
        self.rejected = False
        """Whether this very mark was refused for good: automatic commits leave it alone until it changes."""
        self.unanswered = False
        """Whether a commit was ever given up without an answer: it may still come, behind newer ones."""

    def __repr__(self) -> str:
        state = " rejected" if self.rejected else " dirty" if self.dirty else ""
        return f"<PartitionOffsets {self.next_offset}{state}>"

    @property
    def value(self) -> CommittedOffset:
        """What a commit sends."""
        return CommittedOffset(self.next_offset, self.metadata, self.leader_epoch)

    def mark(self, offset: int, metadata: str = "", leader_epoch: int = -1) -> None:
        """Everything before `offset` is done; ignored if that is no news.

        `leader_epoch` is that of the record before it; a mark without one commits none, never that of an older mark.
        Raises ConfigError for what is no offset or no epoch, and for metadata that is no text or too long.
        """
        self.advance(check_offset(offset), metadata, _check_epoch(leader_epoch))

    def mark_record(self, record: Record, metadata: str = "") -> None:
        """This record and all before it are done. Raises ConfigError for bad metadata."""
        self.advance(record.offset + 1, metadata, record.leader_epoch)

    def advance(self, offset: int, metadata: str, leader_epoch: int) -> None:
        """As `mark`, for an offset and an epoch that come from a record and need no check."""
        if metadata != "":
            check_metadata(metadata)
        if offset > self.next_offset and (self._bound is None or offset <= self._bound()):
            self._move(offset, metadata, leader_epoch)

    def reset(self, offset: int, metadata: str = "", leader_epoch: int = -1) -> None:
        """Go back to `offset`, so that what follows is read again by the next owner; ignored if it lies ahead.

        Raises ConfigError as `mark` does.
        """
        if metadata != "":
            check_metadata(metadata)
        if check_offset(offset) <= self.next_offset:
            self._move(offset, metadata, _check_epoch(leader_epoch))

    def skip_range(self, start: int, end: int, leader_epoch: int = -1) -> None:
        """From `start` up to `end` is nothing to handle, only transaction markers and what was aborted: a mark that
        reaches `start`, now or later, goes on to `end`, so that the group's lag becomes 0.

        The newest such range is remembered. `leader_epoch` is that of the record before `end`.
        """
        self._skipped = (start, end, leader_epoch)
        if start <= self.next_offset < end:
            self._move(self.next_offset, self.metadata, self.leader_epoch)

    def _move(self, offset: int, metadata: str, leader_epoch: int) -> None:
        start, end, epoch = self._skipped
        if start <= offset < end:
            offset, leader_epoch = end, epoch
        self.next_offset, self.metadata, self.leader_epoch = offset, metadata, leader_epoch
        self.dirty, self.rejected = True, False

    def rebase(self, offset: int, log_end: int) -> None:
        """Reading goes on at `offset`; if `next_offset` lies behind the log's end, marks count from there as well.

        Otherwise marks below a committed offset that never was, or is no longer, would all be dropped. Nothing is
        committed by that alone.
        """
        self._skipped = (0, 0, -1)
        self.unanswered = False
        if self.next_offset > log_end:
            self._move(offset, "", -1)
            self.dirty = False

    def restart(self, offset: int, topic_id: UUID, position: Callable[[], int]) -> None:
        """From `offset` on the log holds other records than those that were marked: it was truncated, or the topic is
        another one (`topic_id`; nil: the same).

        A mark beyond `offset` counts no longer, and one beyond `position()` will not: it is of a record that is gone.
        Nothing is committed by that alone.
        """
        self._skipped = (0, 0, -1)
        self.unanswered = False
        self._bound = position
        if topic_id != NO_UUID:
            self.topic_id = topic_id
        if self.next_offset > offset:
            self._move(offset, "", -1)
            self.dirty = False

    def hold_back(self, offset: int, position: Callable[[], int]) -> int:
        """Hold marks back: records from `offset` on were handed out in a batch that could not be decoded.

        No mark passes `position()` from now on. Returns where reading has to go on: at `offset`, or after the mark.
        """
        self._bound = position
        return max(offset, self.next_offset)

    def bind_topic(self, topic_id: UUID, position: Callable[[], int]) -> None:
        """What is read is of this topic. If the marks are of another one, its namesake, it is as with `restart`: a reader
        that has sought meant whatever topic there is.
        """
        if self.topic_id == NO_UUID:
            self.topic_id = topic_id
        elif topic_id != self.topic_id:
            self.restart(position(), topic_id, position)

    def committed(self, value: CommittedOffset) -> None:
        """A commit of `value` succeeded: clean, unless something was marked meanwhile."""
        if value == self.value:
            self.dirty = self.rejected = False

    def reject(self, value: CommittedOffset) -> None:
        """A commit of `value` was refused for good; no news if something was marked meanwhile."""
        self.rejected = self.rejected or (self.dirty and value == self.value)

    def recommit_unanswered(self) -> None:
        """Commit once more what an unanswered commit may have set back, or may yet."""
        self.dirty = self.dirty or (self.unanswered and self.next_offset >= 0)

    def discard_mark(self) -> None:
        """The mark will never be committed: what it was made for is gone."""
        self.dirty = self.rejected = False


def _check_epoch(epoch: object) -> int:
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not -1 <= epoch <= 0x7FFFFFFF:
        raise ConfigError("leader_epoch", epoch, "-1 for none, or a whole number of at most 32 bits")
    return epoch
