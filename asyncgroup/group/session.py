"""Session: one membership from its assignment to its end."""

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
    """A handler's view of the membership: identity, assignment, claims, marks, commits, and the end.

    `assignment` maps topics to sorted partition numbers, `claims` holds the claims of this member. Both are empty if
    there are more members than partitions: the member then stays in the group, to take over when another one leaves.
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
        """The user data of the assignment, for assignors that send some; else None."""
        self.claims: list[Claim] = []
        self.cause: SessionEnd | None = None
        """Why the session ends; None while it is live."""
        self.on_end: Callable[[SessionEnd], None] | None = None
        self._offsets = offsets
        self._ending = asyncio.Event()
        self._lost = asyncio.Event()
        self._is_over = False
        self._claims_by_partition: dict[tuple[str, int], Claim] = {}  # index of `claims`, built when used
        self.accepts_marks = True
        """Whether new marks can still be committed: False once the last commit has begun, and after a loss."""

    def __repr__(self) -> str:
        state = "live" if self.cause is None else f"ended: {type(self.cause).__name__}"
        return (
            f"<Session {self.group_id!r} generation {self.generation_id} member {self.member_id!r}: "
            f"{len(self.claims)} claims, {state}>"
        )

    @property
    def member_id(self) -> str:
        """The member id from the coordinator."""
        return self.identity.member_id

    @property
    def generation_id(self) -> int:
        """The generation of the group; each rebalance increments it."""
        return self.identity.generation_id

    @property
    def partitions(self) -> list[TopicPartition]:
        """All assigned partitions, sorted."""
        return [TopicPartition(topic, p) for topic in sorted(self.assignment) for p in self.assignment[topic]]

    @property
    def ended(self) -> bool:
        """Whether the session is ending or has ended: finish the record in hand and start no new one."""
        return self.cause is not None

    @property
    def is_lost(self) -> bool:
        """Whether the membership was lost, so that nothing can be committed."""
        return isinstance(self.cause, MemberLost)

    async def wait_ended(self) -> None:
        """Wait until the session begins to end."""
        await self._ending.wait()

    async def wait_lost(self) -> None:
        """Wait until the membership is lost; forever if the session ends regularly."""
        await self._lost.wait()

    @property
    def is_over(self) -> bool:
        """Whether the session has ended completely, so that nothing can be committed."""
        return self._is_over

    def claim(self, topic: str, partition: int) -> Claim | None:
        """Return the claim of a partition, or None if it is not assigned to this member."""
        if len(self._claims_by_partition) != len(self.claims):
            self._claims_by_partition = {(claim.topic, claim.partition): claim for claim in self.claims}
        return self._claims_by_partition.get((topic, partition))

    def mark_record(self, record: Record, metadata: str = "") -> None:
        """Mark this record and all before it in its partition as done.

        Raises ConfigError for a partition that is not assigned to this member, and for a value that is not a Record.
        """
        if not isinstance(record, Record):
            raise ConfigError("record", record, "a Record")
        self._offsets.of(record.topic, record.partition).mark_record(record, metadata)

    def mark_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Mark everything before `offset` as done: it is the next offset to read. Moves forwards only.

        Raises ConfigError for a partition that is not assigned to this member, and for an invalid offset.
        """
        self._offsets.of(topic, partition).mark(check_offset(offset), metadata)

    def reset_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Move the mark back to `offset`, the next one to read. Moves backwards only; the claim's position stays.

        Raises ConfigError for a partition that is not assigned to this member, and for an invalid offset.
        """
        self._offsets.of(topic, partition).reset(check_offset(offset), metadata)

    async def commit(self) -> None:
        """Commit all marks now. Raises CommitFailedError with the partitions that failed, UsageError after the end.

        Tasks other than the handler's may call it too. A session that ends waits for the response as long as for that
        of its last commit; after that the outcome is unknown, and the commit counts as failed.

        A broker may still process a request that has timed out, even after a newer one, and move the group's offset
        back. With `auto_commit` the last commit of the session repeats what that may have undone; without it, records
        committed since that request may be delivered again.
        """
        if self._is_over:
            raise UsageError(f"{self!r} has ended: nothing can be committed any more")
        dirty = self._offsets.dirty
        try:
            await self._offsets.commit()
        except ClosedError as error:
            raise CommitFailedError(self.group_id, dict.fromkeys(dirty, error)) from error

    def end(self, cause: SessionEnd) -> None:
        """Begin to end the session: the iterators of all claims stop before their next record.

        The first cause is kept, except that a loss replaces it: nothing may be committed after a loss.
        """
        is_news = self.cause is None or (isinstance(cause, MemberLost) and not self.is_lost)
        if is_news:
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
        """The session has ended completely: reject later commits and marks."""
        self._is_over = True
        for claim in self.claims:
            self._offsets.drop(claim.tp)
