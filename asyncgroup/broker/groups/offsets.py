"""Offset commits, deletion and expiration for the groups of one coordinator.

The request side of Kafka's `OffsetMetadataManager`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from asyncgroup.broker.groups.classic.classic_checks import check_commit, check_delete, check_offset_delete
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.classic.classic_groups import ClassicGroups
from asyncgroup.broker.groups.classic.rebalance import Rebalance
from asyncgroup.broker.groups.consumer.consumer_checks import check_commit as check_member_commit, check_fetch
from asyncgroup.broker.groups.consumer.consumer_group_member import TopicIdPartition
from asyncgroup.broker.groups.consumer.consumer_groups import ConsumerGroups
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.shared.interfaces import ExpiredOffsets, WriteCallback
from asyncgroup.broker.groups.shared.requests import CommitReply, CommitRequest, OffsetAndMetadata
from asyncgroup.broker.groups.store.offset_store import OffsetStore
from asyncgroup.counting import counted
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger
from asyncgroup.model import TopicPartition

__all__ = ["OffsetMetadataManager", "expired_offsets"]

log = escaping_logger(__name__)

_MAX_TIMESTAMP = 2**63 - 1
"""The largest timestamp that a record can hold, in ms."""

_GROUP_ID_NOT_FOUND_VERSION = 9
"""The first version of OffsetCommit with the error GROUP_ID_NOT_FOUND."""


class OffsetMetadataManager:
    """Handles requests for offsets, and deletes groups. `error_for` returns why this node cannot serve a group, or NONE."""

    def __init__(
        self,
        groups: ClassicGroups,
        consumer_groups: ConsumerGroups,
        rebalance: Rebalance,
        store: OffsetStore,
        error_for: Callable[[str | None], ErrorCode],
    ) -> None:
        self._groups = groups
        self._consumer_groups = consumer_groups
        self._rebalance = rebalance
        self._error_for = error_for
        self._config = rebalance.config
        self._retention_ms = round(min(rebalance.config.offsets_retention * 1000, _MAX_TIMESTAMP))
        self._store = store

    # -- reading ---------------------------------------------------------------------------------------------

    def committed(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, empty if it is unknown. Check first that this node serves it."""
        group = self._groups.get(group_id)
        live = group is not None and group.state is not ClassicGroupState.DEAD
        known = live or self._consumer_groups.get(group_id) is not None
        return self._store.offsets(group_id) if known else {}

    def fetch_error(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return why a member of a consumer group may not fetch offsets, or NONE (KIP-848)."""
        group = self._consumer_groups.get(group_id)
        return ErrorCode.NONE if group is None else check_fetch(group, member_id, member_epoch)

    def unstable_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which the group has offsets in an open transaction (KIP-447)."""
        return self._store.unstable_partitions(group_id)

    # -- commits ---------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, reply: CommitReply) -> None:
        """Handle OffsetCommit. A valid commit restarts the member's session timer."""
        self._commit(request, reply)

    def commit_transactional(self, request: CommitRequest, reply: CommitReply) -> None:
        """Handle TxnOffsetCommit: the offsets take effect when the producer's transaction is committed."""
        self._commit(request, reply, transactional=True)

    def _commit(self, request: CommitRequest, reply: CommitReply, *, transactional: bool = False) -> None:
        if error := self._error_for(request.group_id):
            reply(error)
            return
        if (consumer_group := self._consumer_groups.get(request.group_id)) is not None:
            self._commit_of_member(consumer_group, request, reply)
            return
        group = self._groups.get(request.group_id)
        if group is None and request.member.generation_id >= 0:
            has_error = not transactional and request.api_version >= _GROUP_ID_NOT_FOUND_VERSION
            reply(ErrorCode.GROUP_ID_NOT_FOUND if has_error else ErrorCode.ILLEGAL_GENERATION)
            return
        if group is None:  # a consumer with manual assignment, or an admin client
            group = self._groups.create(request.group_id)
        if error := check_commit(group, request.member, transactional=transactional):
            reply(error)
            return
        has_session = group.state in (ClassicGroupState.STABLE, ClassicGroupState.PREPARING_REBALANCE)
        if has_session and not transactional:
            self._rebalance.restart_session_timer(group, group.members[request.member.id])
        self._write(group, request, reply)

    def _commit_of_member(self, group: ModernGroup, request: CommitRequest, reply: CommitReply) -> None:
        """Handle an offset commit for a consumer group; unlike in classic groups it does not extend the session."""
        topics = self._consumer_groups.topics
        ids = ((topics.find(tp.topic), tp.partition) for tp in request.offsets)
        error = check_member_commit(
            group,
            request.member,
            partitions=[TopicIdPartition(facts.id, index) for facts, index in ids if facts is not None],
            version=request.api_version,
            transactional=request.producer_id is not None,
        )
        if error:
            reply(error)
        else:
            self._write(None, request, reply)

    def _write(self, group: ClassicGroup | None, request: CommitRequest, reply: CommitReply) -> None:
        accepted, results = self._accepted(request)

        def written(error: ErrorCode) -> None:
            if error and group is not None:
                self._discard_if_unused(group)
            elif not error and not self._exists(
                request.group_id
            ):  # it was deleted while the commit was pending
                self._groups.create(request.group_id)
            reply(error or results)

        if request.producer_id is None:
            self._store.write_offsets(request.group_id, accepted, written)
        else:
            producer = (request.producer_id, request.producer_epoch)
            self._store.write_offsets(request.group_id, accepted, written, producer)

    def _exists(self, group_id: str) -> bool:
        return self._groups.get(group_id) is not None or self._consumer_groups.get(group_id) is not None

    def _discard_if_unused(self, group: ClassicGroup) -> None:
        """Remove a group that was created for a commit that failed, if no other commit is stored or pending."""
        written = self._store.offsets(group.group_id) or self._store.unstable_partitions(group.group_id)
        if group.is_simple and not written and self._store.is_idle(group.group_id):
            self._groups.discard(group)

    def _accepted(
        self, request: CommitRequest
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, ErrorCode]]:
        """Return the offsets to write, with their timestamps, and the error code of each offset in the request."""
        now = self._groups.clock()
        expires = (
            -1 if request.retention is None else min(now + round(request.retention * 1000), _MAX_TIMESTAMP)
        )
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
        """Handle OffsetDelete (KIP-496): only for topics that no member subscribes to."""
        if error := self._error_for(group_id or None):
            reply(error)
            return
        is_subscribed_to: Callable[[str], bool]
        group, consumer_group = self._groups.get(group_id), self._consumer_groups.get(group_id)
        if consumer_group is not None:
            is_subscribed_to = consumer_group.subscribed_topics.__contains__
        elif group is None:
            reply(ErrorCode.GROUP_ID_NOT_FOUND)
            return
        elif error := check_offset_delete(group):
            reply(error)
            return
        else:
            is_subscribed_to = group.is_subscribed_to
        results = {
            tp: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed_to(tp.topic) else ErrorCode.NONE
            for tp in partitions
        }
        to_remove = [tp for tp, error in results.items() if not error]
        self._store.remove_offsets(group_id, to_remove, lambda error: reply(error or results))

    def delete_group(self, group_id: str, done: WriteCallback) -> None:
        """Handle DeleteGroups: delete a group without members, and its offsets."""
        group = self._groups.get(group_id)
        if error := self._error_for(group_id):
            done(error)
        elif self._consumer_groups.get(group_id) is not None:
            self._delete_consumer_group(group_id, done)
        elif group is None:
            done(ErrorCode.GROUP_ID_NOT_FOUND)
        elif error := check_delete(group):
            done(error)
        else:
            self._remove(group, done)

    def _delete_consumer_group(self, group_id: str, done: WriteCallback) -> None:
        if not self._consumer_groups.is_empty(group_id):
            done(ErrorCode.NON_EMPTY_GROUP)
            return

        def written(error: ErrorCode) -> None:
            if not error and self._consumer_groups.is_empty(group_id):  # else a member has joined since
                self._consumer_groups.discard(group_id)
            done(error)

        self._store.remove_group(group_id, written, lambda: self._consumer_groups.tombstones(group_id))

    def _remove(self, group: ClassicGroup, done: WriteCallback) -> None:
        def written(error: ErrorCode) -> None:
            if not error:
                self._on_removed(group)
            done(error)

        self._store.remove_group(group.group_id, written)

    def _on_removed(self, group: ClassicGroup) -> None:
        """Remove the group from memory, after its tombstones are written."""
        if group.state is ClassicGroupState.EMPTY:  # else a member has joined since
            self._groups.discard(group)
            self._rebalance.transition_to_dead(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # -- expiry ----------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Write tombstones for expired offsets, and for empty groups that have no other offsets.

        The expired offsets are computed again at the time of the append, as commits may be pending now.
        """
        for group in self._groups.all():
            if any(self._find_expired(group, ())):
                self._expire(group)
        for consumer_group in self._consumer_groups.all():
            if any(self._find_expired_of_consumers(consumer_group.group_id, ())):
                self._expire_of_consumers(consumer_group.group_id)

    def _expire(self, group: ClassicGroup) -> None:
        found = ExpiredOffsets()

        def find(unreplicated: Collection[TopicPartition]) -> ExpiredOffsets:
            nonlocal found
            found = self._find_expired(group, unreplicated)
            if any(found):
                and_group = " and the group" if found.group else ""
                expired = counted(len(found.partitions), "offset")
                log.info("group %s: expired: %s%s", group.group_id, expired, and_group)
            return found

        def written(error: ErrorCode) -> None:  # after a failure the next check finds the same offsets again
            if found.group and not error:
                self._on_removed(group)

        self._store.remove_expired(group.group_id, find, written)

    def _find_expired(self, group: ClassicGroup, unreplicated: Collection[TopicPartition]) -> ExpiredOffsets:
        """Return what has expired of a group (`cleanupExpiredOffsets`).

        Offsets of partitions with `unreplicated` commits have not.
        """
        if self._groups.get(group.group_id) is not group:  # it was deleted or moved to another node
            return ExpiredOffsets()
        offsets = self._store.offsets(group.group_id)
        kept = {*self._store.unstable_partitions(group.group_id), *unreplicated}
        expired = expired_offsets(group, offsets, kept, self._groups.clock(), self._retention_ms)
        in_use = unreplicated or self._store.has_open_transactions(group.group_id)
        remove_group = group.state is ClassicGroupState.EMPTY and len(expired) == len(offsets) and not in_use
        return ExpiredOffsets(expired, remove_group)

    def _expire_of_consumers(self, group_id: str) -> None:
        found = ExpiredOffsets()

        def find(unreplicated: Collection[TopicPartition]) -> ExpiredOffsets:
            nonlocal found
            found = self._find_expired_of_consumers(group_id, unreplicated)
            return found

        def written(error: ErrorCode) -> None:
            if found.group and not error and self._consumer_groups.is_empty(group_id):
                self._consumer_groups.discard(group_id)

        tombstones = partial(self._consumer_groups.tombstones, group_id)
        self._store.remove_expired(group_id, find, written, tombstones)

    def _find_expired_of_consumers(
        self, group_id: str, unreplicated: Collection[TopicPartition]
    ) -> ExpiredOffsets:
        """Return what has expired of a consumer group: retention begins at the commit, in every state of the group."""
        group = self._consumer_groups.get(group_id)
        if group is None:
            return ExpiredOffsets()
        offsets = self._store.offsets(group_id)
        kept = {*self._store.unstable_partitions(group_id), *unreplicated}
        limit = self._groups.clock() - self._retention_ms
        expired = [
            tp
            for tp, offset in offsets.items()
            if tp not in kept and tp.topic not in group.subscribed_topics and offset.commit_timestamp <= limit
        ]
        in_use = group.members or unreplicated or self._store.has_open_transactions(group_id)
        return ExpiredOffsets(expired, not in_use and len(expired) == len(offsets))


def expired_offsets(
    group: ClassicGroup,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    unstable: Collection[TopicPartition],
    now: int,
    retention: int,
) -> list[TopicPartition]:
    """Return the partitions whose offsets are older than `retention` (ms) at `now`, except the `unstable` ones.

    When the retention of an offset begins:
    - in an empty group, when the group became empty;
    - in a group without members ever (manual assignment), at the commit;
    - in a stable group, at the commit, and only for topics that no member subscribes to;
    - never while a group rebalances or its subscriptions are unknown.

    An offset with an expire timestamp (OffsetCommit 2-4) expires at that time instead.
    """
    if group.protocol_type is None:
        since = -1
    elif group.state is ClassicGroupState.EMPTY:
        since = group.current_state_timestamp
    elif group.subscribed_topics is not None and group.state is ClassicGroupState.STABLE:
        since = -1
    else:
        return []
    expired = []
    for tp, offset in offsets.items():
        if group.is_subscribed_to(tp.topic) or tp in unstable:
            continue
        begin = since if since >= 0 else offset.commit_timestamp
        end = offset.expire_timestamp if offset.expire_timestamp >= 0 else begin + retention
        if now >= end:
            expired.append(tp)
    return expired
