"""`ConsumerGroup.mark` and `commit`, for code that has a record but no claim."""

from __future__ import annotations

import logging

from asyncgroup.checks import check_metadata
from asyncgroup.consumer.partition_consumer import partition_of
from asyncgroup.errors import AsyncGroupError, CommitFailedError, ConfigError, MarkDropped
from asyncgroup.group.member_health import MemberHealth
from asyncgroup.group.session import Session
from asyncgroup.model import Batch, Record, TopicPartition

__all__ = ["GroupMarks"]

_log = logging.getLogger("asyncgroup.group")


class GroupMarks:
    """Finds the claim that returned a record; drops and reports the mark if that claim has ended.

    The partition may have been revoked and assigned again in between. A mark past what the new claim has returned comes
    from the old claim, and would commit records that were not processed.
    """

    def __init__(self, group_id: str, member_health: MemberHealth) -> None:
        self._group_id = group_id
        self._member_health = member_health
        self._dropped: dict[TopicPartition, MarkDropped] = {}  # since the last commit()
        self._logged: set[TopicPartition] = set()  # partitions whose dropped marks were logged

    def mark(self, session: Session | None, done: Record | Batch, metadata: str) -> None:
        """Mark a record or batch as done in `session`, the current one. Raises ConfigError."""
        if isinstance(done, Record):
            last = done.offset
        elif isinstance(done, Batch):
            last = done.last_offset
        else:
            raise ConfigError("done", done, "a Record or a Batch")
        claim = None if session is None else session._state.claims.get((done.topic, done.partition))
        if session is None or claim is None:
            reason = "its partition is not assigned to this member"
        elif not session._state.accepts_marks:
            reason = f"its claim has ended: {session.cause}"
        elif not partition_of(claim._state.consumer).was_read(last):
            reason = "its partition was revoked and assigned again, and the new claim has not read that far"
        else:
            claim.mark(done, metadata)
            if self._logged:
                self._logged.discard(claim.tp)
            return
        check_metadata(metadata)
        self._drop(TopicPartition(done.topic, done.partition), last, reason)

    def _drop(self, tp: TopicPartition, offset: int, reason: str) -> None:
        error = MarkDropped(tp, offset, reason)
        self._dropped[tp] = error
        self._member_health.report_error(error)
        if tp not in self._logged:  # once per partition: many marks may be late
            self._logged.add(tp)
            _log.warning("group %s: %s", self._group_id, error)

    async def commit(self, session: Session | None) -> None:
        """Commit all marks. Raises CommitFailedError, also for marks dropped since the last call."""
        dropped, self._dropped = self._dropped, {}
        errors: dict[TopicPartition, AsyncGroupError] = {**dropped}
        # a session that is over remains the current one until all its tasks have ended
        if session is not None and not session._state.is_over:
            try:
                await session.commit()
            except CommitFailedError as error:
                errors |= error.errors
            except BaseException:
                self._dropped = dropped | self._dropped  # reported by the next call
                raise
        if errors:
            raise CommitFailedError(self._group_id, errors)
