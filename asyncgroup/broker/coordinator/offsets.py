"""The offsets of the groups of one coordinator: commits, deletions, expiry (the checking half of Kafka's
`OffsetMetadataManager`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from asyncgroup.broker.coordinator.checks import check_commit, check_delete, check_offset_delete
from asyncgroup.broker.coordinator.expiry import expired_offsets
from asyncgroup.broker.coordinator.group import ClassicGroup
from asyncgroup.broker.coordinator.groups import Groups
from asyncgroup.broker.coordinator.interfaces import ExpiredOffsets, WriteCallback
from asyncgroup.broker.coordinator.rebalance import Rebalance
from asyncgroup.broker.coordinator.requests import CommitReply, CommitRequest, OffsetAndMetadata
from asyncgroup.broker.coordinator.state import ClassicGroupState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger
from asyncgroup.model import TopicPartition

__all__ = ["GroupOffsets"]

log = escaping_logger(__name__)

_NEVER = 2**63 - 1
"""The latest time, in ms, that a record can say."""

_COMMIT_KNOWS_NO_GROUP = 9
"""The first version of OffsetCommit that knows GROUP_ID_NOT_FOUND."""


class GroupOffsets:
    """Takes commits for the groups of a coordinator; whether it is their coordinator is asked before."""

    def __init__(self, groups: Groups, rebalance: Rebalance) -> None:
        self._groups, self._rebalance = groups, rebalance
        self._config, self._store = rebalance.config, rebalance.store

    # -- reading ---------------------------------------------------------------------------------------------

    def committed(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group; empty for an unknown one."""
        group = self._groups.get(group_id)
        return {} if group is None or group.state is ClassicGroupState.DEAD else self._store.offsets(group_id)

    def unstable_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions of a group whose offsets are not stable (KIP-447)."""
        return self._store.unstable_partitions(group_id)

    # -- commits ---------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, reply: CommitReply) -> None:
        """OffsetCommit. A valid commit keeps the member's session alive."""
        group = self._groups.get(request.group_id)
        if group is None and request.generation_id >= 0:
            newer = request.api_version >= _COMMIT_KNOWS_NO_GROUP
            reply(ErrorCode.GROUP_ID_NOT_FOUND if newer else ErrorCode.ILLEGAL_GENERATION)
            return
        if group is None:  # a consumer without group management, or an admin client
            group = self._groups.create(request.group_id)
        if error := check_commit(group, request.member_id, request.group_instance_id, request.generation_id):
            reply(error)
            return
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.PREPARING_REBALANCE):
            self._rebalance.restart_session_timer(group, group.members[request.member_id])
        self._write(group, request, reply)

    def commit_transactional(self, request: CommitRequest, reply: CommitReply) -> None:
        """TxnOffsetCommit: the offsets count when the producer's transaction is committed."""
        group = self._groups.get(request.group_id)
        if group is None and request.generation_id >= 0:
            reply(ErrorCode.ILLEGAL_GENERATION)
            return
        if group is None:
            group = self._groups.create(request.group_id)
        error = check_commit(
            group, request.member_id, request.group_instance_id, request.generation_id, transactional=True
        )
        if error:
            reply(error)
        else:
            self._write(group, request, reply)

    def _write(self, group: ClassicGroup, request: CommitRequest, reply: CommitReply) -> None:
        accepted, results = self._accepted(request)

        def written(error: ErrorCode) -> None:
            if error:
                self._forget_unwritten(group)
            elif self._groups.get(group.group_id) is None:  # it was deleted while the commit was on its way
                self._groups.create(group.group_id)
            reply(error or results)

        if request.producer_id is None:
            self._store.write_offsets(request.group_id, accepted, written)
        else:
            producer = (request.producer_id, request.producer_epoch)
            self._store.write_pending_offsets(request.group_id, producer, accepted, written)

    def _forget_unwritten(self, group: ClassicGroup) -> None:
        """A group that was made for offsets which did not get into the log, and will not either."""
        written = self._store.offsets(group.group_id) or self._store.unstable_partitions(group.group_id)
        if group.is_simple and not written and self._store.is_idle(group.group_id):
            self._groups.discard(group)

    def _accepted(
        self, request: CommitRequest
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, ErrorCode]]:
        """The offsets to write, with their times, and the errors of all."""
        now = self._groups.clock()
        expires = -1 if request.retention is None else min(now + round(request.retention * 1000), _NEVER)
        results: dict[TopicPartition, ErrorCode] = {}
        accepted: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp, offset in request.offsets.items():
            if len(offset.metadata) > self._config.offset_metadata_max_size:
                results[tp] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                results[tp] = ErrorCode.NONE
                accepted[tp] = dataclasses.replace(offset, commit_timestamp=now, expire_timestamp=expires)
        return accepted, results

    # -- deletions -------------------------------------------------------------------------------------------

    def delete(self, group_id: str, partitions: Iterable[TopicPartition], reply: CommitReply) -> None:
        """OffsetDelete (KIP-496): of topics that no member is subscribed to."""
        group = self._groups.get(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else check_offset_delete(group)
        if error or group is None:
            reply(error)
            return
        results = {
            tp: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(tp.topic) else ErrorCode.NONE
            for tp in partitions
        }
        doomed = [tp for tp, error in results.items() if not error]
        self._store.remove_offsets(group_id, doomed, lambda error: reply(error or results))

    def delete_group(self, group_id: str, done: WriteCallback) -> None:
        """DeleteGroups: only a group without members, with its offsets."""
        group = self._groups.get(group_id)
        if group is None:
            done(ErrorCode.GROUP_ID_NOT_FOUND)
        elif error := check_delete(group):
            done(error)
        else:
            self._remove(group, done)

    def _remove(self, group: ClassicGroup, done: WriteCallback) -> None:
        def written(error: ErrorCode) -> None:
            if not error:
                self._removed(group)
            done(error)

        self._store.remove_group(group.group_id, written)

    def _removed(self, group: ClassicGroup) -> None:
        """The group's tombstones are written."""
        if group.state is ClassicGroupState.EMPTY:  # else a member has joined since
            self._groups.discard(group)
            self._rebalance.transition_to_dead(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # -- expiry ----------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Write tombstones for offsets that were kept long enough, and for empty groups that have none left.

        What is found expired now is looked at again when the tombstones are appended: commits may be under way.
        """
        for group in self._groups.all():
            if any(self._expired(group, ())):
                self._expire(group)

    def _expire(self, group: ClassicGroup) -> None:
        found = ExpiredOffsets()

        def find(under_way: Collection[TopicPartition]) -> ExpiredOffsets:
            nonlocal found
            found = self._expired(group, under_way)
            if any(found):
                gone = " and the group" if found.group else ""
                log.info("group %s: %d offsets%s expired", group.group_id, len(found.partitions), gone)
            return found

        def written(error: ErrorCode) -> None:  # what could not be removed is found again by the next check
            if found.group and not error:
                self._removed(group)

        self._store.remove_expired(group.group_id, find, written)

    def _expired(self, group: ClassicGroup, under_way: Collection[TopicPartition]) -> ExpiredOffsets:
        """What of a group has expired by now; commits under way are new ones (`cleanupExpiredOffsets`)."""
        if self._groups.get(group.group_id) is not group:  # it has been deleted or has moved away since
            return ExpiredOffsets()
        offsets = self._store.offsets(group.group_id)
        kept = {*self._store.unstable_partitions(group.group_id), *under_way}
        retention = round(self._config.offsets_retention * 1000)
        expired = expired_offsets(group, offsets, kept, self._groups.clock(), retention)
        busy = under_way or self._store.has_open_transactions(group.group_id)
        goes = group.state is ClassicGroupState.EMPTY and len(expired) == len(offsets) and not busy
        return ExpiredOffsets(expired, goes)
