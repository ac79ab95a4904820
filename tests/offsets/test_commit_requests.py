"""`build_commit` makes the OffsetCommit request, and `COMMIT_ACTIONS` maps the error codes of its response."""

from __future__ import annotations

from uuid import uuid4

from asyncgroup.errors import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import CommittedOffset, MemberIdentity
from asyncgroup.offsets.commit_requests import COMMIT_ACTIONS, RETENTION_VERSIONS, CommitAction, build_commit
from asyncgroup.wire.codec import decode, encode
from tests.offsets.fakes import committed_by

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_request_has_all_fields_in_sorted_order() -> None:
    offsets = {B0: CommittedOffset(5, "x", 3), A1: CommittedOffset(1), A0: CommittedOffset(2)}
    request = build_commit(9, "g", MemberIdentity("m", 4, None), offsets, {})
    assert list(committed_by(request)) == [A0, A1, B0]
    assert [topic.name for topic in request.topics] == ["a", "b"]
    assert request.topics[1].partitions[0].committed_leader_epoch == 3
    assert (request.group_id, request.member_id, request.generation_id_or_member_epoch) == ("g", "m", 4)


def test_topics_are_identified_by_id_from_version_10_on() -> None:
    old, new, b = uuid4(), uuid4(), uuid4()
    offsets = {A0: CommittedOffset(5), A1: CommittedOffset(1), B0: CommittedOffset(2)}
    ids = {A0: old, A1: new, B0: b}
    for version in range(2, 11):
        request = build_commit(version, "g", MemberIdentity(), offsets, ids)
        decoded = decode(type(request), version, encode(request, version))
        if version < 10:
            assert [topic.name for topic in decoded.topics] == ["a", "b"]
        else:
            assert [(t.topic_id, len(t.partitions)) for t in decoded.topics] == [(old, 1), (new, 1), (b, 1)]


def test_retention_is_sent_in_versions_that_have_it() -> None:
    for version in range(2, 11):
        for retention in (None, 0.5, 3600.0):
            request = build_commit(
                version, "g", MemberIdentity(), {A0: CommittedOffset(5)}, {A0: uuid4()}, retention
            )
            decoded = decode(type(request), version, encode(request, version))
            is_sent = retention is not None and version in RETENTION_VERSIONS
            assert decoded.retention_time_ms == (round((retention or 0) * 1000) if is_sent else -1)


def test_every_code_of_kafkas_commit_handler_has_an_action() -> None:
    """Compared with Kafka's `ConsumerCoordinator.OffsetCommitResponseHandler`."""
    codes = {
        action: {ErrorCode(code) for code, mapped in COMMIT_ACTIONS.items() if mapped is action}
        for action in CommitAction
    }
    assert codes[CommitAction.COMMITTED] == {ErrorCode.NONE}
    assert codes[CommitAction.FIND_COORDINATOR] == {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
    assert codes[CommitAction.LOST] >= {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
    }
    assert codes[CommitAction.REFRESH_METADATA] == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
    assert ErrorCode.STALE_MEMBER_EPOCH in codes[CommitAction.RETRY]
    assert codes[CommitAction.FAIL] == set(), "codes that are not listed fail"
