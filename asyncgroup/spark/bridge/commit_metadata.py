"""What a member's commits tell the next one beside their offsets, in the metadata: the batch's number, and its end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from asyncgroup.group import Claim

__all__ = ["BatchNumbers", "LastBatch", "first_range_start", "from_metadata", "to_metadata"]

_METADATA: Final = re.compile(r"foreachBatch/1:(0|[1-9][0-9]{0,17})@(0|[1-9][0-9]{0,18})")


class LastBatch(NamedTuple):
    """The batch that a commit was made for: its number, and where its range of the partition ended."""

    number: int
    end: int


def to_metadata(number: int, end: int) -> str:
    """What is committed beside the offset of a range that ends at `end`, with the version of this format.

    The group's offset may lie behind the range's end, as transaction markers and what was aborted are passed over.
    """
    return f"foreachBatch/1:{number}@{end}"


def from_metadata(metadata: str) -> LastBatch | None:
    """The batch that a commit was made for; None for what others wrote there, or later versions."""
    match = _METADATA.fullmatch(metadata)
    return None if match is None else LastBatch(int(match[1]), int(match[2]))


def first_range_start(claim: Claim) -> int:
    """Where a claim's first range starts: where the range before it ended, though the group may have committed more.

    How far the group was when a batch was begun, and how far it is when that batch is delivered again, may differ by
    what was passed over in between; the start of a range must not.
    """
    last = from_metadata(claim.initial_metadata)
    if last is None or claim.position != claim.initial_offset:
        return claim.position
    return min(last.end, claim.position)


class BatchNumbers:
    """Counts from 0, or on from the largest number that was found in a commit of the member's partitions.

    Numbers only rise, and none is given twice in the life of the object: not to a batch that was interrupted, either.
    """

    def __init__(self) -> None:
        self._next = 0

    def __repr__(self) -> str:
        return f"<BatchNumbers: next {self._next}>"

    def observe(self, metadata: str) -> None:
        """Take in the metadata of a partition's last commit, whoever made it."""
        last = from_metadata(metadata)
        if last is not None:
            self._next = max(self._next, last.number + 1)

    def next(self) -> int:
        """The next number."""
        number = self._next
        self._next += 1
        return number
