"""Encode and decode the records of `__consumer_offsets`.

A key begins with the record type, a value with its version; a record without a value is a tombstone. Records
are written in the versions that Kafka 4.3 writes; all versions can be read. Kafka's counterparts are
`GroupCoordinatorRecordHelpers` and `GroupCoordinatorRecordSerde`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from asyncgroup.broker.groups.consumer.consumer_group_records import (
    ConsumerGroupRecord,
    decode_group_record,
    encode_group_record,
)
from asyncgroup.broker.groups.shared.requests import (
    ClientDetails,
    GroupSnapshot,
    MemberSnapshot,
    MemberTimeouts,
    OffsetAndMetadata,
)
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned, encode_versioned, read_prefix

__all__ = [
    "ConsumerGroupRecord",
    "CoordinatorRecord",
    "GroupRecord",
    "OffsetRecord",
    "decode_record",
    "encode_record",
]

_OFFSET_VERSION: Final = 4
_OFFSET_WITH_EXPIRY_VERSION: Final = 1
"""The only version that has an expire timestamp; it has neither leader epoch nor topic id."""
_GROUP_VERSION: Final = 3

_Member = m.GroupMetadataValue.MemberMetadata


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A group's offset for a partition. Without an offset: a tombstone."""

    group_id: str
    partition: TopicPartition
    offset: OffsetAndMetadata | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group with the members of one generation. Without a snapshot: a tombstone."""

    group_id: str
    snapshot: GroupSnapshot | None


CoordinatorRecord: TypeAlias = OffsetRecord | GroupRecord | ConsumerGroupRecord


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value."""
    if isinstance(record, ConsumerGroupRecord):
        return encode_group_record(record)
    if isinstance(record, GroupRecord):
        key = encode_versioned(m.GroupMetadataKey(record.group_id), 0)
        return key, None if record.snapshot is None else _encode_group(record.snapshot)
    topic, partition = record.partition
    key = encode_versioned(m.OffsetCommitKey(record.group_id, topic, partition), 0)
    return key, None if record.offset is None else _encode_offset(record.offset)


def decode_record(key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    """Decode a record; None for record types of share groups and streams groups. Raise DecodeError."""
    kind = read_prefix(key or b"")
    if kind == m.GroupMetadataKey.API_KEY:
        group_id = decode_versioned(m.GroupMetadataKey, key or b"").group
        return GroupRecord(group_id, None if value is None else _decode_group(group_id, value))
    if kind == m.OffsetCommitKey.API_KEY:
        commit_key: m.OffsetCommitKey | m.LegacyOffsetCommitKey = decode_versioned(
            m.OffsetCommitKey, key or b""
        )
    elif kind == m.LegacyOffsetCommitKey.API_KEY:
        commit_key = decode_versioned(m.LegacyOffsetCommitKey, key or b"")
    else:
        return decode_group_record(key or b"", value)
    tp = TopicPartition(commit_key.topic, commit_key.partition)
    return OffsetRecord(commit_key.group, tp, None if value is None else _decode_offset(value))


def _encode_offset(offset: OffsetAndMetadata) -> bytes:
    value = m.OffsetCommitValue(
        offset=offset.offset, metadata=offset.metadata, commit_timestamp=offset.commit_timestamp
    )
    if offset.expire_timestamp >= 0:
        value.expire_timestamp = offset.expire_timestamp
        return encode_versioned(value, _OFFSET_WITH_EXPIRY_VERSION)
    value.leader_epoch, value.topic_id = offset.leader_epoch, offset.topic_id
    return encode_versioned(value, _OFFSET_VERSION)


def _decode_offset(value: bytes) -> OffsetAndMetadata:
    read = decode_versioned(m.OffsetCommitValue, value)
    return OffsetAndMetadata(
        read.offset,
        read.leader_epoch,
        read.metadata,
        read.commit_timestamp,
        read.expire_timestamp,
        read.topic_id,
    )


def _encode_group(snapshot: GroupSnapshot) -> bytes:
    return encode_versioned(
        m.GroupMetadataValue(
            protocol_type=snapshot.protocol_type or "",
            generation=snapshot.generation_id,
            protocol=snapshot.protocol_name,
            leader=snapshot.leader,
            current_state_timestamp=snapshot.current_state_timestamp,
            members=[
                _Member(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client.id,
                    client_host=member.client.host,
                    rebalance_timeout=round(member.timeouts.rebalance * 1000),
                    session_timeout=round(member.timeouts.session * 1000),
                    subscription=member.subscription,
                    assignment=member.assignment,
                )
                for member in snapshot.members
            ],
        ),
        _GROUP_VERSION,
    )


def _decode_group(group_id: str, value: bytes) -> GroupSnapshot:
    read = decode_versioned(m.GroupMetadataValue, value)
    return GroupSnapshot(
        group_id=group_id,
        generation_id=read.generation,
        protocol_type=read.protocol_type or None,
        protocol_name=read.protocol,
        leader=read.leader,
        members=tuple(_decode_member(member) for member in read.members),
        current_state_timestamp=read.current_state_timestamp,
    )


def _decode_member(member: _Member) -> MemberSnapshot:
    # Version 0 has no rebalance timeout.
    rebalance = member.rebalance_timeout if member.rebalance_timeout >= 0 else member.session_timeout
    return MemberSnapshot(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client=ClientDetails(member.client_id, member.client_host),
        timeouts=MemberTimeouts(rebalance / 1000, member.session_timeout / 1000),
        subscription=bytes(member.subscription),
        assignment=bytes(member.assignment),
    )
