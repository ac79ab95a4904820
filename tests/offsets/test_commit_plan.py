"""The pure part of committing: the request, and what error codes ask for."""

from __future__ import annotations

from asyncgroup.errors import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import CommittedOffset, MemberIdentity
from asyncgroup.offsets.commit_plan import ACTIONS, CommitAction, build_commit
from tests.offsets.fakes import committed_by

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_request_is_in_order_and_whole() -> None:
    offsets = {B0: CommittedOffset(5, "x", 3), A1: CommittedOffset(1), A0: CommittedOffset(2)}
    request = build_commit("g", MemberIdentity("m", 4, None), offsets)
    assert list(committed_by(request)) == [A0, A1, B0]
    assert [topic.name for topic in request.topics] == ["a", "b"]
    assert request.topics[1].partitions[0].committed_leader_epoch == 3
    assert (request.group_id, request.member_id, request.generation_id_or_member_epoch) == ("g", "m", 4)


def test_every_retriable_code_of_a_commit_is_thought_of() -> None:
    """By Kafka's `ConsumerCoordinator.OffsetCommitResponseHandler`."""
    kinds = {
        action: {ErrorCode(code) for code, kind in ACTIONS.items() if kind is action}
        for action in CommitAction
    }
    assert kinds[CommitAction.CLEAN] == {ErrorCode.NONE}
    assert kinds[CommitAction.MOVED] == {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
    assert kinds[CommitAction.LOST] >= {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
    }
    assert kinds[CommitAction.FAIL] == set(), "what is not listed fails"
