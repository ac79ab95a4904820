"""The numbers of a member's batches, and how they outlive it: in the metadata of its commits."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["BatchNumbers", "from_metadata", "to_metadata"]

_METADATA: Final = re.compile(r"foreachBatch/1:(0|[1-9][0-9]{0,17})")


def to_metadata(number: int) -> str:
    """What is committed beside the offsets of a batch: the number of that batch, and the version of this format."""
    return f"foreachBatch/1:{number}"


def from_metadata(metadata: str) -> int | None:
    """The number of the batch that a commit was made for; None for what others wrote there, or later versions."""
    match = _METADATA.fullmatch(metadata)
    return None if match is None else int(match[1])


class BatchNumbers:
    """Counts from 0, or on from the largest number that was found in a commit of the member's partitions.

    Numbers only rise, and none is given twice in the life of the object: not to a batch that was interrupted, either.
    """

    def __init__(self) -> None:
        self._next = 0

    def __repr__(self) -> str:
        return f"<BatchNumbers: next {self._next}>"

    def see(self, metadata: str) -> None:
        """Take in the metadata of a partition's last commit, whoever made it."""
        number = from_metadata(metadata)
        if number is not None:
            self._next = max(self._next, number + 1)

    def take(self) -> int:
        """The next number."""
        number = self._next
        self._next += 1
        return number
