"""The next offset to commit of one partition; pure state."""

from __future__ import annotations

from typing import NamedTuple

from asyncgroup.checks import check_metadata

__all__ = ["CommittedOffset", "MemberIdentity", "PartitionOffsets"]


class CommittedOffset(NamedTuple):
    """What a group has committed for a partition: the next offset to read, and a free text."""

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

    `next_offset` is -1 while nothing is committed nor marked. `dirty` says whether a commit is due.
    """

    __slots__ = ("dirty", "metadata", "next_offset")

    def __init__(self, next_offset: int = -1, metadata: str = "") -> None:
        self.next_offset, self.metadata = next_offset, metadata
        self.dirty = False

    def __repr__(self) -> str:
        return f"<PartitionOffsets {self.next_offset}{' dirty' if self.dirty else ''}>"

    def mark(self, offset: int, metadata: str = "") -> None:
        """Everything before `offset` is done; ignored if that is no news. Raises ConfigError for bad metadata."""
        if metadata != "":
            check_metadata(metadata)
        if offset > self.next_offset:
            self.next_offset, self.metadata, self.dirty = offset, metadata, True

    def reset(self, offset: int, metadata: str = "") -> None:
        """Go back to `offset`, so that what follows is read again by the next owner; ignored if it lies ahead.

        Raises ConfigError for bad metadata.
        """
        if metadata != "":
            check_metadata(metadata)
        if offset <= self.next_offset:
            self.next_offset, self.metadata, self.dirty = offset, metadata, True

    def rebase(self, offset: int, log_end: int) -> None:
        """Reading goes on at `offset`; if `next_offset` lies behind the log's end, marks count from there as well.

        Otherwise marks below a committed offset that never was, or is no longer, would all be dropped. Nothing is
        committed by that alone.
        """
        if self.next_offset > log_end:
            self.next_offset, self.metadata, self.dirty = offset, "", False

    def committed(self, offset: int, metadata: str) -> None:
        """A commit of these values succeeded: clean, unless something was marked meanwhile."""
        if (offset, metadata) == (self.next_offset, self.metadata):
            self.dirty = False
