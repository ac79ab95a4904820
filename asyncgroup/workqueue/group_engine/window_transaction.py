"""WindowTransaction: the commit of a claim's window in a transaction, in turn with the other commits of the window (KIP-447).

While such a transaction is open, no other commit of the claim is sent: a broker applies the newer of the two when the
transaction ends, so an ordinary one would undo the acknowledgements that the transaction commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from asyncgroup.errors import CommitFailedError, UsageError
from asyncgroup.model import CommittedOffset, TopicPartition
from asyncgroup.offsets import Committer, PartitionMarks

__all__ = ["WindowTransaction"]


class WindowTransaction:
    """At most one open transaction that commits the window of a claim.

    `begin`, `ready`, `value`, then `end`. An ordinary commit of the claim whose caller waits for its outcome is made in a block of
    `commits`.
    """

    def __init__(
        self, group_id: str, tp: TopicPartition, committer: Committer, marks: PartitionMarks
    ) -> None:
        self.tp = tp
        self.commits = _Commits(self)
        self._group_id = group_id
        self._committer = committer
        self._marks = marks
        self.is_open = False
        """Whether a transaction commits the window, or is about to."""
        self.is_given_up = False
        """Whether the claim ended while the outcome of the transaction was unknown: nothing more of it is committed."""
        self._ended: asyncio.Event = asyncio.Event()
        self._running = 0  # ordinary commits whose callers wait
        self._idle: asyncio.Event = asyncio.Event()
        self._value: CommittedOffset | None = None
        self._version = -1  # of the window that `_value` contains
        self._committed_version = -1  # of the window that the last transaction has committed

    def __repr__(self) -> str:
        return f"<WindowTransaction of {self.tp}: {'open' if self.is_open else 'none'}>"

    @property
    def is_live(self) -> bool:
        """Whether the claim's offsets may be committed: it was neither revoked nor lost."""
        return self.tp in self._committer and self._committer.of(*self.tp) is self._marks

    @property
    def is_dirty(self) -> bool:
        """Whether acknowledgements wait for a commit."""
        return self._marks.dirty

    def begin(self) -> None:
        """Begin to hold back ordinary commits; `end` follows."""
        assert not self.is_open, self
        self.is_open, self._value = True, None
        self._ended.clear()

    async def ready(self) -> None:
        """Wait for the ordinary commits in flight, whose callers wait for their outcome or not."""
        while self._running:
            self._idle.clear()
            await self._idle.wait()
        if self.is_open:  # else it has ended already
            self._marks.transactional = True
            await self._committer.wait_in_flight()

    def value(self, offsets: Iterable[int]) -> CommittedOffset | None:
        """Return the offset to commit, with the acknowledgements so far and with these; None if it has no room for them."""
        self._value = self._marks.value_with(offsets)
        self._version = self._marks.progress
        return self._value

    def end(self, *, is_committed: bool) -> None:
        """The transaction has ended, or will be aborted: ordinary commits go on. No effect if none is open.

        If it was committed, the offsets given to `value` are acknowledged in the window by now.
        """
        if not self.is_open or self.is_given_up:
            return
        if is_committed and self._value is not None:
            self._committed_version = self._version
            _ = self._marks.value  # encoded, so that it is compared with the one that was committed
            self._marks.committed(self._value)
        self.is_open = self._marks.transactional = False
        self._ended.set()

    def give_up(self) -> None:
        """The claim has ended while the transaction may still be committed or not: commit nothing more of the claim.

        Its next owner waits for the outcome (`require_stable` of OffsetFetch).
        """
        self.is_given_up = True
        self._ended.set()

    def shrink(self, code: int) -> bool:
        """Commit less of the window if the group coordinator refused it as too large; return whether that is less."""
        _ = self._marks.value  # its size counts
        return self._marks.shrink(code)

    async def wait_for_turn(self, version: int) -> bool:
        """Wait until no transaction is open; return whether one that ended has committed this version of the window.

        Raises CommitFailedError if the claim ends first.
        """
        while self.is_open:
            await self._ended.wait()
            if self.is_given_up:
                text = f"the claim of {self.tp} has ended: its offsets can no longer be committed"
                raise CommitFailedError(self._group_id, {self.tp: UsageError(text)})
            if self._committed_version >= version:
                return True
        return False


class _Commits:
    """The block in which an ordinary commit is made: no transaction begins in it."""

    def __init__(self, transaction: WindowTransaction) -> None:
        self._transaction = transaction

    def __enter__(self) -> Self:
        self._transaction._running += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transaction._running -= 1
        if not self._transaction._running:
            self._transaction._idle.set()
