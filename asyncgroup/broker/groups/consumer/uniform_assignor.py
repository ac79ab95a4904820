"""The assignor `uniform`: as many partitions for each member as possible, and as few moves (Kafka's `UniformAssignor`).

With equal subscriptions the numbers of partitions of two members differ by one at most. With different ones no single
move from one member to another can even them out further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from asyncgroup.broker.groups.consumer.assignors import MemberSpec
from asyncgroup.broker.groups.consumer.consumer_group_member import TargetAssignment, TopicIdPartition

__all__ = ["assign_uniform"]


def assign_uniform(
    members: Mapping[str, MemberSpec], partitions: Mapping[UUID, int]
) -> dict[str, TargetAssignment]:
    """Return the target of every member."""
    if len({member.topics for member in members.values()}) <= 1:
        return _homogeneous(members, partitions)
    return _heterogeneous(members, partitions)


def _kept(
    members: Mapping[str, MemberSpec], partitions: Mapping[UUID, int]
) -> dict[str, list[TopicIdPartition]]:
    """Return each member's present partitions that exist, that it subscribes to, and that no member before it has."""
    taken: set[TopicIdPartition] = set()
    kept: dict[str, list[TopicIdPartition]] = {}
    for member_id, member in members.items():
        kept[member_id] = [
            tp
            for tp in sorted(member.target)
            if tp.topic_id in member.topics
            and tp.partition < partitions.get(tp.topic_id, 0)
            and tp not in taken
        ]
        taken.update(kept[member_id])
    return kept


def _free(
    partitions: Mapping[UUID, int], topics: frozenset[UUID], kept: Mapping[str, list[TopicIdPartition]]
) -> Iterator[TopicIdPartition]:
    """Yield the partitions of these topics that no member has."""
    taken = {tp for held in kept.values() for tp in held}
    for topic_id in sorted(topics & partitions.keys()):
        for index in range(partitions[topic_id]):
            tp = TopicIdPartition(topic_id, index)
            if tp not in taken:
                yield tp


# -- equal subscriptions -------------------------------------------------------------------------------------


def _homogeneous(
    members: Mapping[str, MemberSpec], partitions: Mapping[UUID, int]
) -> dict[str, TargetAssignment]:
    if not members:
        return {}
    topics = next(iter(members.values())).topics
    kept = _kept(members, partitions)
    free = list(_free(partitions, topics, kept))
    total = len(free) + sum(map(len, kept.values()))
    least, extra = divmod(total, len(members))
    # The members that have most keep the extra partitions: that saves moves.
    richest = sorted(kept, key=lambda member_id: -len(kept[member_id]))
    quota = {member_id: least + (number < extra) for number, member_id in enumerate(richest)}
    for member_id, held in kept.items():
        free += held[quota[member_id] :]
        del held[quota[member_id] :]
    rest = iter(free)
    for member_id, held in kept.items():
        held.extend(tp for _, tp in zip(range(quota[member_id] - len(held)), rest, strict=False))
    return {member_id: frozenset(held) for member_id, held in kept.items()}


# -- different subscriptions ---------------------------------------------------------------------------------


def _heterogeneous(
    members: Mapping[str, MemberSpec], partitions: Mapping[UUID, int]
) -> dict[str, TargetAssignment]:
    kept = _kept(members, partitions)
    subscribers = {
        topic_id: [member_id for member_id, member in members.items() if topic_id in member.topics]
        for topic_id in partitions
    }
    topics = frozenset(topic_id for topic_id, found in subscribers.items() if found)
    held = {member_id: set(found) for member_id, found in kept.items()}
    # Topics with few subscribers first: their partitions have the fewest places to go.
    free = sorted(_free(partitions, topics, kept), key=lambda tp: (len(subscribers[tp.topic_id]), tp))
    for tp in free:
        held[min(subscribers[tp.topic_id], key=lambda member_id: len(held[member_id]))].add(tp)
    while _move_one(held, subscribers):
        pass
    return {member_id: frozenset(found) for member_id, found in held.items()}


def _move_one(held: dict[str, set[TopicIdPartition]], subscribers: Mapping[UUID, list[str]]) -> bool:
    """Move one partition from the fullest member that can give to one that has at least two fewer.

    Return False if there is no such move. Each move makes the sum of squares smaller, so the moves come to an end.
    """
    for giver in sorted(held, key=lambda member_id: -len(held[member_id])):
        by_topic = {tp.topic_id: tp for tp in sorted(held[giver], reverse=True)}
        for topic_id, tp in by_topic.items():
            taker = min(subscribers[topic_id], key=lambda member_id: len(held[member_id]))
            if len(held[taker]) + 1 < len(held[giver]):
                held[giver].remove(tp)
                held[taker].add(tp)
                return True
    return False
