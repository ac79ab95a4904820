"""Records of __consumer_offsets, compared with bytes written by Kafka's own classes.

The bytes come from `MessageUtil.toVersionPrefixedBytes` and `toCoordinatorTypePrefixedBytes` of kafka-clients 4.3.1
with the generated classes of kafka-group-coordinator 4.3.1: one object with all fields of its version set, and one
with none. kio does not have these messages.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given

from asyncgroup.errors import DecodeError, UnsupportedVersionError
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, decode_versioned, encode, encode_versioned, read_prefix
from asyncgroup.wire.message import Message
from tests.profiles import examples
from tests.wire.strategies import ALL_VERSIONS, few_examples, random_messages
from tests.wire.test_kio_oracle import UNKNOWN_TO_KIO

TIME = 1_700_000_000_123
TOPIC_ID = UUID("01234567-89ab-cdef-0011-223344556677")


def offset(**fields: object) -> Message:
    return m.OffsetCommitValue(offset=42, metadata="note", commit_timestamp=TIME, **fields)


def group(state_time: int = -1, **fields: object) -> Message:
    member = m.GroupMetadataValue.MemberMetadata(
        member_id="m-1",
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout=10000,
        subscription=b"\1\2\3",
        **fields,
    )
    return m.GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader=None,
        current_state_timestamp=state_time,
        members=[member],
    )


_Member = m.ConsumerGroupMemberMetadataValue
_Target = m.ConsumerGroupTargetAssignmentMemberValue
_Current = m.ConsumerGroupCurrentMemberAssignmentValue

CONSUMER_GROUPS = [
    (m.ConsumerGroupMetadataKey("gé"), "0003000367c3a9"),
    (m.ConsumerGroupMemberMetadataKey("gé", "m-1"), "0005000367c3a900036d2d31"),
    (m.ConsumerGroupTargetAssignmentMetadataKey("gé"), "0006000367c3a9"),
    (m.ConsumerGroupTargetAssignmentMemberKey("gé", "m-1"), "0007000367c3a900036d2d31"),
    (m.ConsumerGroupCurrentMemberAssignmentKey("gé", "m-1"), "0008000367c3a900036d2d31"),
    (m.ConsumerGroupRegularExpressionKey("gé", "a.*"), "0010000367c3a90003612e2a"),
    (m.ConsumerGroupMetadataValue(3, -5), "000000000003010008fffffffffffffffb"),
    (m.ConsumerGroupMetadataValue(), "00000000000000"),
    (
        _Member(
            instance_id="i",
            rack_id="r",
            client_id="c",
            client_host="/127.0.0.1",
            subscribed_topic_names=["a", "b"],
            subscribed_topic_regex="a.*",
            rebalance_timeout_ms=30000,
            server_assignor="range",
            classic_member_metadata=_Member.ClassicMemberMetadata(
                9000, [_Member.ClassicProtocol("range", b"\1\2\3")]
            ),
        ),
        (
            "00000269027202630b2f3132372e302e302e31030261026204612e2a000075300672616e67650100120100002328"
            "020672616e6765040102030000"
        ),
    ),
    (
        _Member(instance_id=None, rack_id=None, subscribed_topic_regex=None, server_assignor=None),
        "0000000001010100ffffffff0000",
    ),
    (
        _Member(
            instance_id=None,
            rack_id=None,
            client_id="ann",
            client_host="/127.0.0.1",
            subscribed_topic_names=["a"],
            rebalance_timeout_ms=60_000,
            server_assignor=None,
            classic_member_metadata=None,
        ),
        # as Apache Kafka 4.3.1 writes it for a member of the consumer protocol
        "0000000004616e6e0b2f3132372e302e302e310202610100" + "00ea600001000100",
    ),
    (m.ConsumerGroupTargetAssignmentMetadataValue(4, TIME), "0000000000040100080000018bcfe5687b"),
    (m.ConsumerGroupTargetAssignmentMetadataValue(), "00000000000000"),
    (
        _Target([_Target.TopicPartition(TOPIC_ID, [0, 2])]),
        "0000020123456789abcdef00112233445566770300000000000000020000",
    ),
    (_Target(), "00000100"),
    (
        _Current(
            member_epoch=5,
            previous_member_epoch=4,
            state=1,
            assigned_partitions=[_Current.TopicPartitions(TOPIC_ID, [0, 2], [4, 5])],
            partitions_pending_revocation=[_Current.TopicPartitions(TOPIC_ID, [1])],
        ),
        (
            "0000000000050000000401020123456789abcdef0011223344556677030000000000000002010009030000000400000005"
            "020123456789abcdef001122334455667702000000010000"
        ),
    ),
    (_Current(), "0000000000000000000000010100"),
    (
        m.ConsumerGroupRegularExpressionValue(["a1", "a2"], 7, TIME),
        "00000303613103613200000000000000070000018bcfe5687b00",
    ),
    (m.ConsumerGroupRegularExpressionValue(), "0000010000000000000000000000000000000000"),
]

STATIC = {"rebalance_timeout": 60000, "group_instance_id": "static"}
GOLDEN = [
    (
        m.OffsetCommitKey(group="gé", topic="flights", partition=5),
        0,
        "0001000367c3a90007666c696768747300000005",
    ),
    (
        m.LegacyOffsetCommitKey(group="gé", topic="flights", partition=5),
        0,
        "0000000367c3a90007666c696768747300000005",
    ),
    (m.GroupMetadataKey(group="gé"), 0, "0002000367c3a9"),
    (
        m.LegacyOffsetCommitValue(offset=42, metadata="note", commit_timestamp=TIME),
        0,
        "0000000000000000002a00046e6f74650000018bcfe5687b",
    ),
    (offset(), 0, "0000000000000000002a00046e6f74650000018bcfe5687b"),
    (
        offset(expire_timestamp=1_700_000_009_999),
        1,
        "0001000000000000002a00046e6f74650000018bcfe5687b0000018bcfe58f0f",
    ),
    (offset(), 2, "0002000000000000002a00046e6f74650000018bcfe5687b"),
    (offset(leader_epoch=7), 3, "0003000000000000002a0000000700046e6f74650000018bcfe5687b"),
    (
        offset(leader_epoch=7, topic_id=TOPIC_ID),
        4,
        "0004000000000000002a00000007056e6f74650000018bcfe5687b0100100123456789abcdef0011223344556677",
    ),
    (
        group(),
        0,
        (
            "00000008636f6e73756d657200000003000572616e6765ffff0000000100036d2d31000163000a2f3132372e302e302e31"
            "000027100000000301020300000000"
        ),
    ),
    (
        group(rebalance_timeout=60000),
        1,
        (
            "00010008636f6e73756d657200000003000572616e6765ffff0000000100036d2d31000163000a2f3132372e302e302e31"
            "0000ea60000027100000000301020300000000"
        ),
    ),
    (
        group(TIME, rebalance_timeout=60000),
        2,
        (
            "00020008636f6e73756d657200000003000572616e6765ffff0000018bcfe5687b0000000100036d2d31000163"
            "000a2f3132372e302e302e310000ea60000027100000000301020300000000"
        ),
    ),
    (
        group(TIME, **STATIC),
        3,
        (
            "00030008636f6e73756d657200000003000572616e6765ffff0000018bcfe5687b0000000100036d2d310006737461746963"
            "000163000a2f3132372e302e302e310000ea60000027100000000301020300000000"
        ),
    ),
    (
        group(TIME, **STATIC),
        4,
        (
            "000409636f6e73756d6572000000030672616e6765000000018bcfe5687b02046d2d3107737461746963"
            "02630b2f3132372e302e302e310000ea600000271004010203010000"
        ),
    ),
    *((message, 0, data) for message, data in CONSUMER_GROUPS),
    (m.OffsetCommitValue(), 4, "00040000000000000000ffffffff01000000000000000000"),
    (m.GroupMetadataValue(protocol=None, leader=None), 4, "000401000000000000ffffffffffffffff0100"),
]


def test_every_version_has_golden_bytes():
    assert {(message.NAME, version) for message, version, _ in GOLDEN} == {
        (name, version) for name, version in ALL_VERSIONS if name in UNKNOWN_TO_KIO
    }


@pytest.mark.parametrize(("message", "version", "data"), GOLDEN)
def test_bytes_match_kafkas(message, version, data):
    assert encode_versioned(message, version).hex() == data
    assert decode_versioned(type(message), bytes.fromhex(data)) == message


@pytest.mark.parametrize(("name", "version"), [pair for pair in ALL_VERSIONS if pair[0] in UNKNOWN_TO_KIO])
def test_round_trip(name, version):
    @few_examples(examples(30))
    @given(random_messages(name, version))
    def check(message: Message) -> None:
        data = encode_versioned(message, version)
        assert decode_versioned(type(message), data) == message
        assert decode(type(message), version, data[2:]) == message

    check()


def test_the_prefix_of_a_key_is_its_record_type():
    key = encode_versioned(m.GroupMetadataKey(group="g"), 0)
    assert read_prefix(key) == m.GroupMetadataKey.API_KEY == 2
    with pytest.raises(DecodeError, match="type is 2, not 1"):
        decode_versioned(m.OffsetCommitKey, key)


@pytest.mark.parametrize("data", [b"", b"\x00"])
def test_too_short_for_a_prefix(data):
    with pytest.raises(DecodeError, match="too few"):
        decode_versioned(m.ConsumerProtocolSubscription, data)


def test_a_newer_version_is_decoded_as_the_newest_known_one():
    subscription = m.ConsumerProtocolSubscription(topics=["t"], generation_id=4, rack_id="r")
    data = b"\x00\x63" + encode(subscription, 3) + b"what version 99 adds"
    assert decode_versioned(m.ConsumerProtocolSubscription, data) == subscription


def test_a_negative_version_is_an_error():
    with pytest.raises(DecodeError, match="-1 is not in 0-3"):
        decode_versioned(m.ConsumerProtocolSubscription, b"\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff")


def test_encoding_an_unknown_version_is_an_error():
    with pytest.raises(UnsupportedVersionError):
        encode_versioned(m.ConsumerProtocolSubscription(), 4)
