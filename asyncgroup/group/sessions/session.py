"""Session: a handler's view of the membership, from `setup` to `cleanup`.

`Session` shows what a handler may call; its `_inner`, the SessionState in `state`, is for the other files of
the package. Handlers import Session for their annotations, so importing this file loads little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.checks import check_offset
from asyncgroup.errors import ClosedError, CommitFailedError, ConfigError, UsageError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.group.foreign_names import SESSION
from asyncgroup.model import Batch, CommittedOffset, Record, TopicPartition

if TYPE_CHECKING:
    from asyncgroup.errors import SessionEnd
    from asyncgroup.group.sessions.claim import Claim
    from asyncgroup.group.sessions.state import SessionState
    from asyncgroup.model import GroupOffsets
    from asyncgroup.offsets import PartitionMarks

__all__ = ["Session"]


class Session:
    """A handler's view of the membership: identity, assignment, claims, marks, commits, and the end.

    `assignment` maps topics to sorted partition numbers, `claims` holds the claims of this member. Both are empty if
    there are more members than partitions: the member then stays in the group, to take over when another one leaves.

    Only partitions with a claim can be marked, until `on_revoked` and `cleanup` have ended. An assigned partition has none yet
    while its start offset is not known. Marks that are made after the membership was lost are never committed.
    """

    __slots__ = ("__weakref__", "_inner")

    def __init__(self, state: SessionState) -> None:
        self._inner = state

    def __repr__(self) -> str:
        state = "live" if self.cause is None else f"ended: {type(self.cause).__name__}"
        return (
            f"<Session {self.group_id!r} generation {self.generation_id} member {self.member_id!r}: "
            f"{len(self.claims)} claims, {state}>"
        )

    @property
    def member_id(self) -> str:
        """The member id from the coordinator."""
        return self._inner.identity.member_id

    @property
    def generation_id(self) -> int:
        """The generation of the group; with the consumer protocol this member's epoch, which may differ from other members'."""
        return self._inner.identity.generation_id

    @property
    def group_id(self) -> str:
        """The group's id."""
        return self._inner.group_id

    @property
    def assignment(self) -> dict[str, list[int]]:
        """The assigned partitions: topics with their sorted partition numbers."""
        return self._inner.assignment

    @property
    def assignment_user_data(self) -> bytes | None:
        """The user data of the assignment, for assignors that send some; else None."""
        return self._inner.user_data

    @property
    def partitions(self) -> list[TopicPartition]:
        """All assigned partitions, sorted."""
        return self._inner.partitions

    @property
    def claims(self) -> list[Claim]:
        """The claims of this member: one for each assigned partition whose start offset is known; see `health()` for the others."""
        return list(self._inner.claims)

    @property
    def ended(self) -> bool:
        """Whether the session is ending or has ended: finish the current record and start no new one."""
        return self._inner.ended

    @property
    def cause(self) -> SessionEnd | None:
        """Why the session ends; None while it is live."""
        return self._inner.cause

    @property
    def is_lost(self) -> bool:
        """Whether the membership was lost, so that nothing can be committed."""
        return self._inner.is_lost

    async def wait_ended(self) -> None:
        """Wait until the session begins to end."""
        await self._inner.wait_ended()

    async def wait_lost(self) -> None:
        """Wait until the membership is lost; forever if the session ends regularly."""
        await self._inner.wait_lost()

    def mark_record(self, record: Record, metadata: str = "") -> None:
        """Mark this record and all before it in its partition as done; ignored if they are marked already.

        Raises ConfigError for a partition without a claim (not assigned, or not started yet), for a value that is not a
        Record, and for invalid metadata.
        """
        if not isinstance(record, Record):
            raise ConfigError("record", record, "a Record")
        self._marks_of(record.topic, record.partition).mark_record(record, metadata)

    def mark_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Mark everything before `offset` as done: it is the next offset to read. Ignored unless it moves the mark forwards.

        Raises ConfigError for a partition without a claim (not assigned, or not started yet), and for an invalid offset or
        invalid metadata.
        """
        self._marks_of(topic, partition).mark_offset(check_offset(offset), metadata)

    def reset_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Move the mark back to `offset`, the next one to read; ignored if it is beyond the mark. The claim's position stays.

        Raises ConfigError as `mark_offset`.
        """
        self._marks_of(topic, partition).reset_offset(check_offset(offset), metadata)

    def _marks_of(self, topic: str, partition: int) -> PartitionMarks:
        """Return the marks of a claim; raise ConfigError for a partition without one."""
        try:
            return self._inner.offsets.of(topic, partition)
        except ConfigError:
            is_place = isinstance(topic, str) and isinstance(partition, int)
            if not is_place or TopicPartition(topic, partition) not in self._inner.claims.starting:
                raise
            allowed = "a partition that has started: the start offset of this one is not known yet"
            raise ConfigError("partition", f"{topic}-{partition}", allowed) from None

    def group_offsets(self, *done: Record | Batch) -> GroupOffsets:
        """Return offsets for `Producer.send_offsets`, which commits them in a transaction (KIP-447).

        `done` are records or batches that the transaction completes, with all before them in their partitions. From then on
        marks of these partitions are not committed automatically. Without arguments, the marks of all claims that are not
        committed yet: for a transaction that contains the output of all claims.

        The value names the member and its generation (or epoch), so that the group coordinator refuses it once the
        member has lost its partitions. Call it immediately before `send_offsets`.

        Raises ConfigError for a partition without a claim (not assigned, or not started yet) and for values of other types,
        UsageError without arguments if `auto_commit` is on: the marks could be committed before the transaction.
        """
        state = self._inner
        found: dict[TopicPartition, CommittedOffset] = {}
        for each in done:
            if not isinstance(each, Record | Batch):
                raise ConfigError("done", each, "a Record or a Batch")
            marks = self._marks_of(each.topic, each.partition)
            last = each.offset if isinstance(each, Record) else each.last_offset
            tp, value = (
                TopicPartition(each.topic, each.partition),
                marks.value_after(last + 1, each.leader_epoch),
            )
            if tp not in found or found[tp].offset < value.offset:
                found[tp] = value
        for tp in found:
            state.offsets.of(*tp).transactional = True
        if not done:
            if state.auto_commit:
                raise UsageError("auto_commit is on: pass the records or batches, or set auto_commit=False")
            found = {tp: state.offsets.of(*tp).value for tp in state.offsets.dirty}
        return state.group_offsets(found)

    async def commit(self) -> None:
        """Commit all marks now. Raises CommitFailedError with the partitions that failed, UsageError after the end.

        Tasks other than the handler's may call it too. A session that ends waits for the response as long as for that
        of its last commit; after that the outcome is unknown, and the commit counts as failed.

        A broker may still process a request that has timed out, even after a newer one, and move the group's offset
        back. With `auto_commit` the last commit of the session repeats what that may have undone; without it, records
        committed since that request may be delivered again.
        """
        if self._inner.is_over:
            raise UsageError(f"{self!r} has ended: nothing can be committed any more")
        dirty = self._inner.offsets.dirty
        try:
            await self._inner.offsets.commit()
        except ClosedError as error:
            raise CommitFailedError(self.group_id, dict.fromkeys(dirty, error)) from error


add_foreign_names(Session, SESSION)
