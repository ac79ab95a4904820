"""The records of consumer groups in `__consumer_offsets` (Kafka's `GroupCoordinatorRecordHelpers`).

A group has a record for its epoch and one for the epoch of its target, each member has three (subscription, target,
current assignment), each resolved regular expression one. `changes` returns the records that lead from one value of a
group to the next; `replay` applies one to the value that a new coordinator loads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from asyncgroup.broker.groups.consumer.consumer_group_member import (
    AssignedPartitions,
    ClassicProtocols,
    ConsumerGroupMember,
    ReconciliationState,
    TargetAssignment,
    TopicIdPartition,
    by_topic,
)
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup, ResolvedRegex
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned, encode_versioned, read_prefix

__all__ = [
    "ConsumerGroupRecord",
    "changes",
    "decode_group_record",
    "encode_group_record",
    "member_fields",
    "replay",
]

Key: TypeAlias = (
    m.ConsumerGroupMetadataKey
    | m.ConsumerGroupMemberMetadataKey
    | m.ConsumerGroupTargetAssignmentMetadataKey
    | m.ConsumerGroupTargetAssignmentMemberKey
    | m.ConsumerGroupCurrentMemberAssignmentKey
    | m.ConsumerGroupRegularExpressionKey
)
_Current = m.ConsumerGroupCurrentMemberAssignmentValue
_Target = m.ConsumerGroupTargetAssignmentMemberValue

_TYPES: Final[Mapping[int, tuple[type[Any], type[Any]]]] = {
    key.API_KEY: (key, value)
    for key, value in (
        (m.ConsumerGroupMetadataKey, m.ConsumerGroupMetadataValue),
        (m.ConsumerGroupMemberMetadataKey, m.ConsumerGroupMemberMetadataValue),
        (m.ConsumerGroupTargetAssignmentMetadataKey, m.ConsumerGroupTargetAssignmentMetadataValue),
        (m.ConsumerGroupTargetAssignmentMemberKey, _Target),
        (m.ConsumerGroupCurrentMemberAssignmentKey, _Current),
        (m.ConsumerGroupRegularExpressionKey, m.ConsumerGroupRegularExpressionValue),
    )
}
"""The classes of key and value, by record type."""

_REMOVAL_ORDER: Final = (
    m.ConsumerGroupCurrentMemberAssignmentKey,
    m.ConsumerGroupTargetAssignmentMemberKey,
    m.ConsumerGroupTargetAssignmentMetadataKey,
    m.ConsumerGroupRegularExpressionKey,
    m.ConsumerGroupMemberMetadataKey,
    m.ConsumerGroupMetadataKey,
)
"""The order of tombstones: Kafka's `GroupMetadataManager.replay` refuses that of a group with members, or with targets."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupRecord:
    """One record of a consumer group. Without a value: a tombstone."""

    key: Key
    value: Any

    @property
    def group_id(self) -> str:
        """The group that it belongs to."""
        return self.key.group_id


def encode_group_record(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value."""
    value = None if record.value is None else encode_versioned(record.value, 0)
    return encode_versioned(record.key, 0), value


def decode_group_record(key: bytes, value: bytes | None) -> ConsumerGroupRecord | None:
    """Decode a record; None if it is not one of a consumer group. Raise DecodeError."""
    types = _TYPES.get(read_prefix(key))
    if types is None:
        return None
    return ConsumerGroupRecord(
        decode_versioned(types[0], key), None if value is None else decode_versioned(types[1], value)
    )


# -- writing -------------------------------------------------------------------------------------------------


def changes(before: ModernGroup | None, after: ModernGroup | None) -> list[ConsumerGroupRecord]:
    """Return the records that lead from one value of a group to another, in Kafka's order; None: there is no group."""
    # most heartbeats change nothing, and groups are values
    if before is after:
        return []
    # each without what the other has as the same object: the rest is compared by its facts
    old = _contents(before, after)
    new = _contents(after, before)
    removed = [ConsumerGroupRecord(old[key][0], None) for key in old if key not in new]
    # tombstones first: a member that comes back under the same name is written after its removal
    removed.sort(key=lambda record: _REMOVAL_ORDER.index(type(record.key)))
    written = [
        ConsumerGroupRecord(key, value())
        for name, (key, facts, value) in new.items()
        # the facts are compared, so that values are made only for what is written
        if name not in old or old[name][1] != facts
    ]
    return [*removed, *written]


_Contents: TypeAlias = dict[tuple[int, str], tuple[Key, object, Any]]
"""By record type and name: the key, what the value is made of, and a function that makes the value."""


def _contents(group: ModernGroup | None, other: ModernGroup | None) -> _Contents:
    """Return the records of a group, without those of members and targets that another value of the group also has.

    A heartbeat changes few members, and a group may have many.
    """
    found: _Contents = {}
    if group is None:
        return found
    for key, facts, value in _records(group, other or ModernGroup(group_id=group.group_id)):
        # a key of the group has neither: there is one of its type
        name = getattr(key, "member_id", "") or getattr(key, "regular_expression", "")
        found[key.API_KEY, name] = key, facts, value
    return found


def _records(group: ModernGroup, other: ModernGroup) -> Iterator[tuple[Key, object, Any]]:
    group_id = group.group_id
    members = [member for key, member in group.members.items() if other.members.get(key) is not member]
    for member in members:
        yield (
            m.ConsumerGroupMemberMetadataKey(group_id, member.member_id),
            _subscription_facts(member),
            lambda member=member: _subscription_value(member),
        )
    for text, found in group.regexes.items():
        yield (
            m.ConsumerGroupRegularExpressionKey(group_id, text),
            found,
            lambda found=found: m.ConsumerGroupRegularExpressionValue(
                sorted(found.topics), 0, found.timestamp
            ),
        )
    yield (
        m.ConsumerGroupMetadataKey(group_id),
        (group.epoch, group.metadata_hash),
        lambda: m.ConsumerGroupMetadataValue(group.epoch, group.metadata_hash),
    )
    for member_id, target in group.targets.items():
        # by identity: targets are shared by the values of a group
        if other.targets.get(member_id) is target:
            continue
        yield (
            m.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
            target,
            lambda target=target: _target_value(target),
        )
    # after the targets, as in Kafka: the epoch says that they are complete
    if group.assignment_epoch > 0:
        yield (
            m.ConsumerGroupTargetAssignmentMetadataKey(group_id),
            (group.assignment_epoch, group.assignment_timestamp),
            lambda: m.ConsumerGroupTargetAssignmentMetadataValue(
                group.assignment_epoch, group.assignment_timestamp
            ),
        )
    for member in members:
        yield (
            m.ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id),
            (member.epoch, member.previous_epoch, member.state, member.assigned, member.revoking),
            lambda member=member: _current_value(member),
        )


def _subscription_facts(member: ConsumerGroupMember) -> tuple[object, ...]:
    return (
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.topics,
        member.regex,
        member.rebalance_timeout,
        member.server_assignor,
        member.classic,
    )


def member_fields(member: ConsumerGroupMember) -> dict[str, Any]:
    """Return what a member's record and its description in ConsumerGroupDescribe have in common."""
    return {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.regex,
    }


def _subscription_value(member: ConsumerGroupMember) -> m.ConsumerGroupMemberMetadataValue:
    return m.ConsumerGroupMemberMetadataValue(
        **member_fields(member),
        rebalance_timeout_ms=round(member.rebalance_timeout * 1000),
        server_assignor=member.server_assignor,
        # null as a value, not left out: Kafka takes a missing one for that of a classic member
        classic_member_metadata=None if member.classic is None else _classic_value(member.classic),
    )


def _classic_value(classic: ClassicProtocols) -> m.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata:
    cls = m.ConsumerGroupMemberMetadataValue
    return cls.ClassicMemberMetadata(
        round(classic.session_timeout * 1000), [cls.ClassicProtocol(*each) for each in classic.protocols]
    )


def _target_value(target: TargetAssignment) -> m.ConsumerGroupTargetAssignmentMemberValue:
    return _Target([_Target.TopicPartition(*each) for each in by_topic(target).items()])


def _current_value(member: ConsumerGroupMember) -> m.ConsumerGroupCurrentMemberAssignmentValue:
    return _Current(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state.value,
        assigned_partitions=_with_epochs(member.assigned),
        partitions_pending_revocation=_with_epochs(member.revoking),
    )


def _with_epochs(
    partitions: AssignedPartitions,
) -> list[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    return [
        _Current.TopicPartitions(
            topic_id, indexes, [partitions[TopicIdPartition(topic_id, index)] for index in indexes]
        )
        for topic_id, indexes in by_topic(partitions).items()
    ]


# -- reading -------------------------------------------------------------------------------------------------


def replay(group: ModernGroup | None, record: ConsumerGroupRecord) -> ModernGroup | None:
    """Return the group after a record; None: it does not exist."""
    key, value = record.key, record.value
    # the last tombstone of a group drops everything that is left of it
    if isinstance(key, m.ConsumerGroupMetadataKey) and value is None:
        return None
    if group is None:
        if value is None:
            return None
        # compaction may have removed the first records of a group
        group = ModernGroup(group_id=key.group_id)
    match key:
        case m.ConsumerGroupMetadataKey():
            return dataclasses.replace(group, epoch=value.epoch, metadata_hash=value.metadata_hash)
        case m.ConsumerGroupTargetAssignmentMetadataKey():
            epoch, at = (0, 0) if value is None else (value.assignment_epoch, value.assignment_timestamp)
            return dataclasses.replace(group, assignment_epoch=epoch, assignment_timestamp=at)
        case m.ConsumerGroupTargetAssignmentMemberKey():
            target = None if value is None else frozenset(_partitions(value.topic_partitions))
            return dataclasses.replace(group, targets=_put(group.targets, key.member_id, target))
        case m.ConsumerGroupRegularExpressionKey():
            found = None if value is None else ResolvedRegex(frozenset(value.topics), value.timestamp)
            return dataclasses.replace(group, regexes=_put(group.regexes, key.regular_expression, found))
        case _:
            return _replay_member(group, key, value)


def _put(entries: Mapping[str, Any], name: str, value: object | None) -> dict[str, Any]:
    rest = dict(entries)
    if value is None:
        rest.pop(name, None)
    else:
        rest[name] = value
    return rest


def _replay_member(
    group: ModernGroup,
    key: m.ConsumerGroupMemberMetadataKey | m.ConsumerGroupCurrentMemberAssignmentKey,
    value: Any,
) -> ModernGroup:
    known = group.members.get(key.member_id)
    if isinstance(key, m.ConsumerGroupMemberMetadataKey):
        member = None if value is None else _with_subscription(known, key.member_id, value)
    elif value is not None:
        member = _with_current(known or ConsumerGroupMember(member_id=key.member_id), value)
    else:
        # a tombstone of the assignment alone: the member is kept, with nothing assigned
        nothing = m.ConsumerGroupCurrentMemberAssignmentValue()
        member = None if known is None else _with_current(known, nothing)
    return dataclasses.replace(group, members=_put(group.members, key.member_id, member))


def _with_subscription(
    known: ConsumerGroupMember | None, member_id: str, value: m.ConsumerGroupMemberMetadataValue
) -> ConsumerGroupMember:
    return dataclasses.replace(
        known or ConsumerGroupMember(member_id=member_id),
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or "",
        rebalance_timeout=value.rebalance_timeout_ms / 1000,
        server_assignor=value.server_assignor,
        classic=_classic_protocols(value.classic_member_metadata),
    )


def _classic_protocols(
    value: m.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None,
) -> ClassicProtocols | None:
    if value is None or not value.supported_protocols:  # a classic member has joined with at least one
        return None
    protocols = tuple((one.name, bytes(one.metadata)) for one in value.supported_protocols)
    return ClassicProtocols(value.session_timeout_ms / 1000, protocols)


def _with_current(
    member: ConsumerGroupMember, value: m.ConsumerGroupCurrentMemberAssignmentValue
) -> ConsumerGroupMember:
    known = {state.value: state for state in ReconciliationState}
    return dataclasses.replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=known.get(value.state, ReconciliationState.UNKNOWN),
        assigned=_epochs(value.assigned_partitions, value.member_epoch),
        revoking=_epochs(value.partitions_pending_revocation, value.member_epoch),
    )


def _epochs(
    topics: Sequence[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], epoch: int
) -> dict[TopicIdPartition, int]:
    """Return the partitions with their assignment epochs, before Kafka 4.3 the member's epoch `epoch`."""
    found: dict[TopicIdPartition, int] = {}
    for topic in topics:
        # a record of an older broker has none
        epochs = topic.assignment_epochs or [epoch] * len(topic.partitions)
        found.update(
            {
                TopicIdPartition(topic.topic_id, index): since
                for index, since in zip(topic.partitions, epochs, strict=False)
            }
        )
    return found


def _partitions(
    topics: Iterable[m.ConsumerGroupTargetAssignmentMemberValue.TopicPartition],
) -> Iterator[TopicIdPartition]:
    for topic in topics:
        for index in topic.partitions:
            yield TopicIdPartition(topic.topic_id, index)
