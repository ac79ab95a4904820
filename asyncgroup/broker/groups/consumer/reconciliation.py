"""One step of a member's current assignment towards its target (Kafka's `CurrentAssignmentBuilder`).

A partition moves in three steps: its owner is asked to revoke it, reports that it has, and only then the next owner
gets it. A member asked to revoke keeps its epoch; one that waits for others has the target's epoch already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.consumer.consumer_group_member import (
    AssignedPartitions,
    ConsumerGroupMember,
    ReconciliationState,
    TargetAssignment,
    TopicIdPartition,
)
from asyncgroup.error_codes import ErrorCode

__all__ = ["reconcile"]

_REJOIN = "The member's state is unknown. It must abandon its partitions and rejoin."


def reconcile(
    member: ConsumerGroupMember,
    target: TargetAssignment,
    target_epoch: int,
    *,
    is_free: Callable[[TopicIdPartition], bool],
    owned: Collection[TopicIdPartition] | None,
    subscribed: Collection[UUID],
    subscription_changed: bool = False,
) -> ConsumerGroupMember:
    """Return the member's next state, or the same one if it cannot advance.

    `is_free`: whether no member owns a partition. `owned`: the partitions that the member reports; None if it does
    not, which counts as owning all. `subscribed`: the topics to which the target is limited, as it may be older than the
    subscription. Raise Refused(FENCED_MEMBER_EPOCH) if the member has to rejoin.
    """
    match member.state:
        case ReconciliationState.STABLE if member.epoch == target_epoch:
            return _drop_unsubscribed(member, owned, subscribed) if subscription_changed else member
        case ReconciliationState.UNREVOKED_PARTITIONS if _owns_any(owned, member.revoking):
            return _drop_unsubscribed(member, owned, subscribed) if subscription_changed else member
        case ReconciliationState.UNKNOWN if owned is None or owned:
            raise Refused(ErrorCode.FENCED_MEMBER_EPOCH, _REJOIN)
        case _:
            limited = frozenset(tp for tp in target if tp.topic_id in subscribed)
            return _advance(member, limited, target_epoch, is_free, owned)


def _owns_any(owned: Collection[TopicIdPartition] | None, partitions: AssignedPartitions) -> bool:
    return owned is None or any(tp in partitions for tp in owned)


def _drop_unsubscribed(
    member: ConsumerGroupMember,
    owned: Collection[TopicIdPartition] | None,
    subscribed: Collection[UUID],
) -> ConsumerGroupMember:
    """Ask the member to revoke the topics that it no longer subscribes to, before a new target is computed."""
    dropped = {tp: since for tp, since in member.assigned.items() if tp.topic_id not in subscribed}
    if not dropped:
        return member
    kept = {tp: since for tp, since in member.assigned.items() if tp not in dropped}
    revoking = {**member.revoking, **dropped}
    if not _owns_any(owned, revoking):
        return member.at_epoch(member.epoch, assigned=kept)
    return member.at_epoch(
        member.epoch, state=ReconciliationState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking
    )


def _advance(
    member: ConsumerGroupMember,
    target: TargetAssignment,
    target_epoch: int,
    is_free: Callable[[TopicIdPartition], bool],
    owned: Collection[TopicIdPartition] | None,
) -> ConsumerGroupMember:
    kept = {tp: since for tp, since in member.assigned.items() if tp in target}
    revoking = {tp: since for tp, since in member.assigned.items() if tp not in target}
    if revoking and _owns_any(owned, revoking):
        # An unknown state is left in the target's epoch even if partitions are to be revoked.
        epoch = target_epoch if member.state is ReconciliationState.UNKNOWN else member.epoch
        return member.at_epoch(
            epoch, state=ReconciliationState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking
        )
    missing = [tp for tp in target if tp not in kept]
    new = {tp: target_epoch for tp in missing if tp in member.revoking or is_free(tp)}
    state = (
        ReconciliationState.STABLE if len(new) == len(missing) else ReconciliationState.UNRELEASED_PARTITIONS
    )
    return member.at_epoch(target_epoch, state=state, assigned=kept | new, revoking={})
