"""A session: one membership from its assignment to its end, and the only owner of that state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncgroup.checks import check_offset
from asyncgroup.errors import (
    AsyncGroupError,
    ClosedError,
    CommitFailedError,
    ConfigError,
    MemberLost,
    SessionEnd,
    UsageError,
)
from asyncgroup.group.claim import Claim
from asyncgroup.model import Record, TopicPartition
from asyncgroup.offsets import Committer, MemberIdentity

__all__ = ["Session"]


class Session:
    """What a handler sees of its membership: who we are, what we own, marks, commits, and the end.

    `assignment` maps topics to sorted partition numbers, `claims` holds the claims of this member (empty when there
    are more members than partitions: such a session lives, heartbeats and takes over when somebody goes).
    """

    def __init__(
        self,
        group_id: str,
        identity: MemberIdentity,
        assignment: dict[str, list[int]],
        offsets: Committer,
    ) -> None:
        self.group_id = group_id
        self.identity = identity
        self.assignment = assignment
        self.assignment_user_data: bytes | None = None
        """What the group's leader sent with the assignment: for members whose assignor says something."""
        self.claims: list[Claim] = []
        self.cause: SessionEnd | None = None
        """Why the session ends; None while it lives."""
        self.on_end: Callable[[SessionEnd], None] | None = None
        self._offsets = offsets
        self._ending = asyncio.Event()
        self._lost = asyncio.Event()
        self._is_over = False
        self._claims_by_partition: dict[tuple[str, int], Claim] = {}
        self.accepts_marks = True
        """Whether marks made now can still be committed: False once the last commit has begun, or after a loss."""

    def __repr__(self) -> str:
        state = "live" if self.cause is None else f"ended: {type(self.cause).__name__}"
        return (
            f"<Session {self.group_id!r} generation {self.generation_id} member {self.member_id!r}: "
            f"{len(self.claims)} claims, {state}>"
        )

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave this member."""
        return self.identity.member_id

    @property
    def generation_id(self) -> int:
        """The generation of the group, raised by every rebalance."""
        return self.identity.generation_id

    @property
    def partitions(self) -> list[TopicPartition]:
        """All assigned partitions, in order."""
        return [TopicPartition(topic, p) for topic in sorted(self.assignment) for p in self.assignment[topic]]

    @property
    def ended(self) -> bool:
        """Whether the session ends or has ended: finish what is at hand, take nothing new."""
        return self.cause is not None

    @property
    def is_lost(self) -> bool:
        """Whether the membership is gone, so that nothing can be committed any more."""
        return isinstance(self.cause, MemberLost)

    async def wait_ended(self) -> None:
        """Wait until the session begins to end."""
        await self._ending.wait()

    async def wait_lost(self) -> None:
        """Wait until the membership is lost; a session that ends in order never is."""
        await self._lost.wait()

    @property
    def is_over(self) -> bool:
        """Whether nothing can be committed in its name any more."""
        return self._is_over

    def claim(self, topic: str, partition: int) -> Claim | None:
        """The claim of a partition, None if it is not owned."""
        if len(self._claims_by_partition) != len(self.claims):
            self._claims_by_partition = {(claim.topic, claim.partition): claim for claim in self.claims}
        return self._claims_by_partition.get((topic, partition))

    def mark_record(self, record: Record, metadata: str = "") -> None:
        """Mark this record, and all before it in its partition, as done.

        Raises ConfigError for a partition that is not owned, and for a value that is not a Record.
        """
        if not isinstance(record, Record):
            raise ConfigError("record", record, "a Record")
        self._offsets.of(record.topic, record.partition).mark_record(record, metadata)

    def mark_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Everything before `offset`, the next one to read, is done; only forwards.

        Raises ConfigError for a partition not owned and for what is no offset.
        """
        self._offsets.of(topic, partition).mark(check_offset(offset), metadata)

    def reset_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Take marks back to `offset`, the next one to read; only backwards. The claim's own reading goes on.

        Raises ConfigError for a partition not owned and for what is no offset.
        """
        self._offsets.of(topic, partition).reset(check_offset(offset), metadata)

    async def commit(self) -> None:
        """Commit all marks now. Raises CommitFailedError with the partitions that failed, UsageError after the end.

        Another task than a handler's may call it too: a session that ends waits for its answer, as long as for that of
        its own last commit; then nobody knows whether it was committed, and it counts as failed.

        A request that was given up without an answer may still be served, behind a newer one, and set the group's
        offset back. With `auto_commit` a session's last commit repeats what that may have undone; without it, what was
        committed since that request may be delivered again.
        """
        if self._is_over:
            raise UsageError(f"{self!r} is over: nothing can be committed in its name any more")
        dirty = self._offsets.dirty
        try:
            await self._offsets.commit()
        except ClosedError as error:
            raise CommitFailedError(self.group_id, dict.fromkeys(dirty, error)) from error

    def end(self, cause: SessionEnd) -> None:
        """Begin to end: every claim's iterator stops before its next record.

        The first cause stays, except that a loss is always taken in: nothing may be committed after it.
        """
        news = self.cause is None or (isinstance(cause, MemberLost) and not self.is_lost)
        if news:
            self.cause = cause
            if isinstance(cause, MemberLost):
                self.accepts_marks = False
                self._lost.set()
                reason = cause.__cause__
                self._offsets.mark_lost(reason if isinstance(reason, AsyncGroupError) else cause)
            for claim in self.claims:
                claim.end(cause)
            self._ending.set()
        if self.on_end is not None:
            self.on_end(cause)

    def close(self) -> None:
        """The life is over: refuse what comes too late."""
        self._is_over = True
        for claim in self.claims:
            self._offsets.drop(claim.tp)
