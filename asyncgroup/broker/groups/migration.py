"""Live groups change their protocol, as far as Kafka's `group.consumer.migration.policy` allows it.

A classic group of consumers becomes a consumer group when a member with the consumer protocol joins; a consumer group
becomes a classic one when only members with the classic protocol stay. Here is the side of classic groups; the other one is
`consumer.consumer_groups`. The tombstones of the one and the records of the other are one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.classic.classic_groups import ClassicGroups
from asyncgroup.broker.groups.classic.rebalance import Rebalance
from asyncgroup.broker.groups.consumer.consumer_group_records import ConsumerGroupRecord
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.consumer.protocol_change import Downgrade, Upgrade
from asyncgroup.broker.groups.consumer.topics import TopicsImage
from asyncgroup.broker.groups.conversion import downgraded, upgraded
from asyncgroup.broker.groups.shared.interfaces import WriteCallback
from asyncgroup.broker.groups.store.coordinator_records import GroupRecord
from asyncgroup.broker.groups.store.offset_store import OffsetStore
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger

__all__ = ["GroupMigration"]

log = escaping_logger(__name__)


class GroupMigration:
    """Takes classic groups out of `groups`, and puts new ones there."""

    def __init__(
        self, groups: ClassicGroups, rebalance: Rebalance, store: OffsetStore, topics: TopicsImage
    ) -> None:
        self._groups = groups
        self._rebalance = rebalance
        self._store = store
        self._topics = topics

    def __repr__(self) -> str:
        return f"<GroupMigration of {self._groups!r}>"

    # -- from classic to consumer ----------------------------------------------------------------------------

    def upgrade(self, group: ClassicGroup) -> Upgrade:
        """Return what a classic group becomes when a member with the consumer protocol joins.

        Parked requests are answered with REBALANCE_IN_PROGRESS, so that their members join again, even if the group stays as
        it is, as in Kafka. Raise Refused(GROUP_ID_NOT_FOUND) if it cannot become a consumer group.
        """
        if group.state is ClassicGroupState.EMPTY:
            value = ModernGroup(group_id=group.group_id)
        else:
            self._check(group)
            self._rebalance.answer_all(group, ErrorCode.REBALANCE_IN_PROGRESS)
            value = upgraded(group, self._topics)
        return Upgrade(
            group=value,
            begin=partial(self._begin, group),
            undo=partial(self._undo, group, group.state),
            write=self._write_upgrade,
        )

    def _check(self, group: ClassicGroup) -> None:
        why = None
        if self._rebalance.config.group_consumer_migration_policy not in ("bidirectional", "upgrade"):
            why = "online upgrade is disabled"
        elif not group.is_consumer_group:
            why = "the group does not use the consumer embedded protocol"
        elif len(group.members) > self._rebalance.config.group_consumer_max_size:
            why = "the group size exceeds the consumer group maximum size"
        if why is not None:
            text = f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, text)

    def _begin(self, group: ClassicGroup) -> None:
        if group.members:
            log.info("group %s becomes a consumer group", group.group_id)
        self._groups.discard(group)
        self._rebalance.transition_to_dead(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _undo(self, group: ClassicGroup, state: ClassicGroupState) -> None:
        """Put the group back. If it was in a rebalance, that begins again: parked requests have been answered."""
        log.info("group %s stays a classic group", group.group_id)
        group.pending_join.clear()
        empty = state is ClassicGroupState.EMPTY
        group.state = ClassicGroupState.EMPTY if empty else ClassicGroupState.STABLE
        self._groups.put(group)
        for member in group.members.values():
            self._rebalance.restart_session_timer(group, member)
        if state in (ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.COMPLETING_REBALANCE):
            self._rebalance.prepare_rebalance(group, "its upgrade was not written")

    def _write_upgrade(
        self, group_id: str, records: Sequence[ConsumerGroupRecord], done: WriteCallback
    ) -> None:
        self._store.write_records(group_id, [GroupRecord(group_id, None), *records], done)

    # -- from consumer to classic ----------------------------------------------------------------------------

    def downgrade(self, change: Downgrade) -> None:
        """Add the classic group, which rebalances at once if `change.reason` says so.

        The rebalance is not in the log, as in Kafka: a coordinator that loads the group before its members have joined again
        finds it stable, without an owner for the partitions of the member that has left.
        """
        group = downgraded(change.group, self._topics, self._groups.clock)
        log.info("group %s becomes a classic group", group.group_id)
        self._groups.put(group)
        for member in group.members.values():
            self._rebalance.restart_session_timer(group, member)

        def written(error: ErrorCode) -> None:
            if error and self._is_untouched(group, change):
                self._groups.discard(group)
                self._rebalance.transition_to_dead(group, error)
                change.undo()
            if change.done is not None:
                change.done(error)

        self._write_downgrade(group, change, written)
        if change.reason is not None and self._groups.get(group.group_id) is group:
            self._rebalance.prepare_rebalance(group, change.reason)

    def replace_empty(self, change: Downgrade) -> ClassicGroup:
        """Add a classic group without members in the place of a consumer group without members."""
        group = self._groups.create(change.group.group_id)

        def written(error: ErrorCode) -> None:
            if error and self._groups.get(group.group_id) is group:
                self._groups.discard(group)
                self._rebalance.transition_to_dead(group, error)
                change.undo()

        self._write_downgrade(group, change, written)
        return group

    def _write_downgrade(self, group: ClassicGroup, change: Downgrade, done: WriteCallback) -> None:
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        record = GroupRecord(group.group_id, group.snapshot(assignments))
        self._store.write_records(group.group_id, [*change.tombstones, record], done)

    def _is_untouched(self, group: ClassicGroup, change: Downgrade) -> bool:
        """Whether nothing has built on a group since its downgrade: no member has joined again, left, or failed."""
        same = (
            group.generation_id == change.group.epoch and group.members.keys() == change.group.members.keys()
        )
        joins = group.awaiting_join_count or group.pending_join
        return self._groups.get(group.group_id) is group and same and not joins
