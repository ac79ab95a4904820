"""Commit metadata of the bridge: the batch's number and the end of its range, stored beside the committed offset.

The next owner of a partition reads them to continue the numbering and to start its first range where the last one ended.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from asyncgroup.group import Claim

__all__ = ["BatchNumbers", "LastBatch", "first_range_start", "from_metadata", "to_metadata"]

_METADATA: Final = re.compile(r"foreachBatch/1:(0|[1-9][0-9]{0,17})@(0|[1-9][0-9]{0,18})")


class LastBatch(NamedTuple):
    """The batch that a commit was made for."""

    number: int
    end: int
    """End offset (exclusive) of the batch's range of the partition."""


def to_metadata(number: int, end: int) -> str:
    """Return the commit metadata for a range that ends at `end`; begins with the version of the format.

    The committed offset may be larger than `end`, as transaction markers and aborted records are skipped.
    """
    return f"foreachBatch/1:{number}@{end}"


def from_metadata(metadata: str) -> LastBatch | None:
    """Return the batch that a commit was made for; None for metadata of other programs or later versions."""
    match = _METADATA.fullmatch(metadata)
    return None if match is None else LastBatch(int(match[1]), int(match[2]))


def first_range_start(claim: Claim) -> int:
    """Return where a claim's first range starts: at the end of the last committed range, not at the committed offset.

    The committed offset may include skipped offsets (transaction markers, aborted records), and may be another one when
    a batch is delivered again; the start of its range must be the same.
    """
    last = from_metadata(claim.initial_metadata)
    if last is None or claim.position != claim.initial_offset:
        return claim.position
    return min(last.end, claim.position)


class BatchNumbers:
    """Generates batch numbers: from 0, or from the largest number found in a commit of the member's partitions plus 1.

    Numbers only increase, and none is used twice in the life of the object, not even after an interrupted batch.
    """

    def __init__(self) -> None:
        self._next = 0

    def __repr__(self) -> str:
        return f"<BatchNumbers: next {self._next}>"

    def observe(self, metadata: str) -> None:
        """Continue after the batch number in a partition's commit metadata, if there is one."""
        last = from_metadata(metadata)
        if last is not None:
            self._next = max(self._next, last.number + 1)

    def next(self) -> int:
        """Return the next number."""
        number = self._next
        self._next += 1
        return number
