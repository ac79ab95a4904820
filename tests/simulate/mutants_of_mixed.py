"""Mutations that matter in groups with members of both protocols: bugs introduced on purpose, each as a patch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

from asyncgroup.broker.groups import migration
from asyncgroup.broker.groups.consumer import classic_members, classic_requests
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.error_codes import ErrorCode
from asyncgroup.group.classic import join_requests, membership as classic_membership
from asyncgroup.group.consumer.heartbeat_errors import HeartbeatAction
from asyncgroup.group.consumer.member_state import ConsumerMemberState

__all__ = ["MIXED_MUTANTS"]

Mutation = Callable[[], AbstractContextManager[object]]
Patched = AbstractContextManager[object]


# --- members --------------------------------------------------------------------------------------------------------


def _owns_nothing() -> Patched:
    """A cooperative member joins without the partitions that it keeps."""
    build = join_requests.build_join

    def silent(*args: Any) -> Any:
        return build(*args[:6])

    return patch.object(classic_membership, "build_join", silent)


def _fails_after(code: ErrorCode) -> Patched:
    """A member of the consumer protocol fails at an error after which it should go on (an old bug)."""
    on_error = ConsumerMemberState.on_error

    def rash(self: ConsumerMemberState, found: int) -> HeartbeatAction:
        action = on_error(self, found)
        return HeartbeatAction.FAIL if found == code else action

    return patch.object(ConsumerMemberState, "on_error", rash)


def _sync_is_final() -> Patched:
    """A SyncGroup that is refused, since the group has another assignor now, is not retried (an old bug)."""
    return patch.object(classic_membership, "SyncProtocolChanged", classic_membership.BrokerError)


def _keeps_after_removal() -> Patched:
    """A cooperative member that a consumer group had removed revokes what others have got, and commits it (an old bug)."""
    return patch.object(classic_membership, "check_kept", lambda *_: None)


# --- coordinators ---------------------------------------------------------------------------------------------------


def _upgrade_forgets() -> Patched:
    """A group that becomes a consumer group does not know who has which partitions."""
    upgraded = migration.upgraded

    def forgetful(*args: Any) -> ModernGroup:
        group = upgraded(*args)
        members = {name: dataclasses.replace(member, assigned={}) for name, member in group.members.items()}
        return dataclasses.replace(group, members=members, targets=dict.fromkeys(members, frozenset()))

    return patch.object(migration, "upgraded", forgetful)


def _upgrade_with_old_generation() -> Patched:
    """A group that becomes a consumer group has the epoch before its generation."""
    upgraded = migration.upgraded

    def late(*args: Any) -> ModernGroup:
        group = upgraded(*args)
        return dataclasses.replace(group, epoch=group.epoch - 1, assignment_epoch=group.epoch - 1)

    return patch.object(migration, "upgraded", late)


def _classic_members_go_on() -> Patched:
    """Classic members of a consumer group are not asked to join again."""
    return patch.object(classic_requests, "must_rejoin", lambda *_: False)


def _releases_at_joins() -> Patched:
    """A JoinGroup in a consumer group counts as one of a member that owns nothing."""
    return patch.object(classic_members, "owned_partitions", lambda *_: frozenset())


def _downgrade_without_rebalance() -> Patched:
    """A group that becomes a classic one does not rebalance."""
    downgrade = migration.GroupMigration.downgrade

    def quiet(self: migration.GroupMigration, change: Any) -> None:
        downgrade(self, dataclasses.replace(change, reason=None))

    return patch.object(migration.GroupMigration, "downgrade", quiet)


MIXED_MUTANTS: Final[dict[str, Mutation]] = {
    "kept partitions are not reported": _owns_nothing,
    "the first generation is not waited for": lambda: _fails_after(ErrorCode.UNKNOWN_SERVER_ERROR),
    "a group that became classic is final": lambda: _fails_after(ErrorCode.GROUP_ID_NOT_FOUND),
    "a refused sync is final": _sync_is_final,
    "a removed member keeps its partitions": _keeps_after_removal,
    "an upgrade has the epoch before": _upgrade_with_old_generation,
    "classic members of consumer groups go on": _classic_members_go_on,
    "an upgrade forgets the assignments": _upgrade_forgets,
    "a join releases all partitions": _releases_at_joins,
    "a downgrade does not rebalance": _downgrade_without_rebalance,
}
"""To be found with members of both protocols."""
