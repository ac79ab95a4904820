"""Subscriptions and assignments in JoinGroup and SyncGroup, in every version and from any client."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from asyncgroup.config import ConsumerConfig
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import AssignmentError, BrokerError, ConnectionLost, ErrorCode
from asyncgroup.group.assignors import Assignment
from asyncgroup.group.classic.join_requests import (
    JOIN_ACTIONS,
    JoinAction,
    build_join,
    build_sync,
    decode_assignment,
    decode_members,
    encode_assignment,
    join_action,
)
from asyncgroup.model import TopicPartition, by_topic
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, encode, encode_versioned, read_prefix

TOPICS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=4)
PARTITIONS = st.sets(st.tuples(TOPICS, st.integers(0, 99)).map(lambda tp: TopicPartition(*tp)), max_size=20)
IDENTITY = MemberIdentity("member-1", 7, "instance-1")
SUBSCRIPTION_VERSIONS = range(4)


def joined(*metadata: bytes, instances: tuple[str | None, ...] = ()) -> m.JoinGroupResponse:
    """Return the leader's JoinGroup response: one member per subscription."""
    member = m.JoinGroupResponse.JoinGroupResponseMember
    return m.JoinGroupResponse(
        members=[
            member(member_id=f"m{number}", metadata=data, group_instance_id=instance)
            for number, (data, instance) in enumerate(
                itertools.zip_longest(metadata, instances, fillvalue=None)
            )
        ]
    )


# -- assignments --------------------------------------------------------------------------------------------------------


@given(PARTITIONS, st.none() | st.binary(max_size=9))
def test_assignment_round_trip_is_sorted(partitions: set[TopicPartition], user_data: bytes | None) -> None:
    found = decode_assignment(encode_assignment(Assignment(tuple(partitions), user_data)))
    assert found == Assignment(tuple(sorted(partitions)), user_data)
    assert list(by_topic(found.partitions)) == sorted({tp.topic for tp in partitions})
    assert [(t, number) for t, numbers in by_topic(found.partitions).items() for number in numbers] == sorted(
        partitions
    )


@given(PARTITIONS, st.randoms(use_true_random=False), st.integers(0, 3))
def test_an_assignment_with_repeated_topics(partitions: set[TopicPartition], rng, version: int) -> None:
    """Found by review: of a repeated topic only the last entry was used. Java merges them."""
    entry = m.ConsumerProtocolAssignment.TopicPartition
    entries = [entry(topic=tp.topic, partitions=[tp.partition]) for tp in partitions]
    entries += [entry(topic=topic, partitions=[]) for topic in ("empty", "none")]
    rng.shuffle(entries)
    message = m.ConsumerProtocolAssignment(assigned_partitions=entries, user_data=b"anything")
    found = decode_assignment(encode_versioned(message, version))
    assert found == Assignment(tuple(sorted(partitions)), b"anything")


def test_a_repeated_partition_counts_once() -> None:
    entry = m.ConsumerProtocolAssignment.TopicPartition
    message = m.ConsumerProtocolAssignment(assigned_partitions=[entry(topic="t", partitions=[3, 1, 3])])
    assert decode_assignment(encode_versioned(message, 1)).partitions == (
        TopicPartition("t", 1),
        TopicPartition("t", 3),
    )


def test_no_bytes_mean_no_partitions() -> None:
    assert decode_assignment(b"") == Assignment()
    assert decode_assignment(encode_assignment(Assignment())) == Assignment()


def test_fields_of_a_future_version_are_ignored() -> None:
    one = Assignment((TopicPartition("t", 1),))
    data = bytearray(encode_assignment(one))
    data[:2] = (9).to_bytes(2, "big")
    assert decode_assignment(bytes(data) + b"something new") == one


@pytest.mark.parametrize("data", [b"\x00", b"\xff\xff\x00\x00", b"\x00\x01\x00\x00\x00\x05\x00"])
def test_an_invalid_assignment(data: bytes) -> None:
    with pytest.raises(AssignmentError, match="leader sent an invalid assignment"):
        decode_assignment(data)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_raise_assignment_error(data: bytes) -> None:
    try:
        found = decode_assignment(data)
    except AssignmentError:
        return
    assert list(found.partitions) == sorted(set(found.partitions))


# -- subscriptions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SUBSCRIPTION_VERSIONS)
@given(topics=st.lists(TOPICS, unique=True), owned=PARTITIONS, data=st.none() | st.binary(max_size=9))
def test_subscriptions_of_every_version(
    version: int, topics: list[str], owned: set[TopicPartition], data: bytes | None
) -> None:
    entry = m.ConsumerProtocolSubscription.TopicPartition
    subscription = m.ConsumerProtocolSubscription(
        topics=topics,
        user_data=data,
        owned_partitions=[entry(topic=tp.topic, partitions=[tp.partition]) for tp in sorted(owned)]
        if version >= 1
        else [],
        generation_id=5 if version >= 2 else -1,
        rack_id="r1" if version >= 3 else None,
    )
    (member,) = decode_members(joined(encode_versioned(subscription, version), instances=("inst",)))
    assert (member.member_id, member.group_instance_id) == ("m0", "inst")
    assert member.topics == tuple(topics)
    assert member.user_data == data
    assert member.owned == (tuple(sorted(owned)) if version >= 1 else ())
    assert member.generation_id == (5 if version >= 2 else -1)
    assert member.rack_id == ("r1" if version >= 3 else None)


def test_an_invalid_subscription_names_its_member() -> None:
    good = encode_versioned(m.ConsumerProtocolSubscription(topics=["t"]), 1)
    with pytest.raises(AssignmentError, match="member 'm1' sent an invalid subscription"):
        decode_members(joined(good, b"\x00\x01\x00\x00\x00\x09"))


# -- requests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_a_join_offers_every_assignor_in_every_version(version: int) -> None:
    config = ConsumerConfig(session_timeout=12.5, rebalance_timeout=42.0, group_instance_id="instance-1")
    identity = IDENTITY if version >= 5 else IDENTITY._replace(group_instance_id=None)
    request = build_join("g", identity, config, {"sticky": b"had", "range": None}, ["b", "a"], "because")
    read = decode(m.JoinGroupRequest, version, encode(request, version))
    assert (read.group_id, read.member_id, read.protocol_type) == ("g", "member-1", "consumer")
    assert read.session_timeout_ms == 12_500
    assert read.rebalance_timeout_ms == (42_000 if version >= 1 else -1)
    assert read.group_instance_id == ("instance-1" if version >= 5 else None)
    assert read.reason == ("because" if version >= 8 else None)
    assert [protocol.name for protocol in read.protocols] == ["sticky", "range"]
    sticky, ranged = decode_members(joined(*(protocol.metadata for protocol in read.protocols)))
    assert sticky.topics == ranged.topics == ("a", "b")
    assert sticky.owned == ranged.owned == ()
    assert (sticky.user_data, ranged.user_data) == (b"had", None)


@pytest.mark.parametrize(
    ("user_data", "owned", "rack_id", "version"),
    [
        (None, [], "", 1),
        (b"had", [], "", 2),
        (None, [TopicPartition("a", 1)], "", 2),
        (None, [], "r1", 3),
        (b"had", [TopicPartition("a", 1)], "r1", 3),
    ],
)
def test_the_lowest_sufficient_version_of_a_subscription(
    user_data: bytes | None, owned: list[TopicPartition], rack_id: str, version: int
) -> None:
    """sarama before 1.41 rejects newer versions; only leaders with a sticky assignor use the generation."""
    config = ConsumerConfig(rack_id=rack_id)
    request = build_join("g", IDENTITY, config, {"range": user_data}, ["a"], "because", owned)
    assert read_prefix(request.protocols[0].metadata) == version
    (member,) = decode_members(joined(request.protocols[0].metadata))
    assert member.generation_id == (7 if version >= 2 else -1)
    assert member.rack_id == (rack_id or None)
    assert member.user_data == user_data
    assert member.owned == tuple(owned)


@pytest.mark.parametrize("version", range(6))
@given(plan=st.dictionaries(st.sampled_from(["m1", "m2", "m3"]), PARTITIONS))
def test_a_sync_carries_the_assignments_in_every_version(
    version: int, plan: dict[str, set[TopicPartition]]
) -> None:
    identity = IDENTITY if version >= 3 else IDENTITY._replace(group_instance_id=None)
    given_out = {member: Assignment(tuple(tps), member.encode()) for member, tps in plan.items()}
    request = build_sync("g", identity, "range", given_out)
    read = decode(m.SyncGroupRequest, version, encode(request, version))
    assert (read.group_id, read.member_id, read.generation_id) == ("g", "member-1", 7)
    assert (read.protocol_type, read.protocol_name) == (
        ("consumer", "range") if version >= 5 else (None, None)
    )
    found = {entry.member_id: decode_assignment(entry.assignment) for entry in read.assignments}
    whole = {member: Assignment(tuple(sorted(tps)), member.encode()) for member, tps in plan.items()}
    assert found == whole, "members without partitions have an assignment too"


def test_a_follower_sends_no_assignments() -> None:
    assert build_sync("g", IDENTITY, "range", {}).assignments == []


# -- error codes --------------------------------------------------------------------------------------------------------


def test_actions_for_error_codes() -> None:
    assert join_action(BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "join")) is JoinAction.FAIL
    assert join_action(BrokerError(ErrorCode.REQUEST_TIMED_OUT, "join")) is JoinAction.REJOIN
    assert join_action(ConnectionLost("node 1")) is JoinAction.FIND_COORDINATOR
    assert JOIN_ACTIONS[ErrorCode.MEMBER_ID_REQUIRED] is JoinAction.REJOIN_WITH_GIVEN_ID
    assert JOIN_ACTIONS[ErrorCode.UNKNOWN_MEMBER_ID] is JoinAction.REJOIN_AS_NEW_MEMBER
    # as in Java: without its id, the old member would stay in the group until its session times out
    assert JOIN_ACTIONS[ErrorCode.ILLEGAL_GENERATION] is JoinAction.REJOIN
    for code, action in JOIN_ACTIONS.items():
        if action is JoinAction.FAIL:
            assert not is_retriable(code), code
        if is_retriable(code):
            assert action in (JoinAction.REJOIN, JoinAction.FIND_COORDINATOR), code
