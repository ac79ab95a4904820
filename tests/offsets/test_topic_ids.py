"""Topics that are deleted or recreated while they have marks, and marks that are refused without a retry."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import UUID, uuid4

import pytest

from asyncgroup.errors import BrokerError, CommitFailedError, ErrorCode, NoBrokersError
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import Committer, PartitionMarks
from asyncgroup.offsets.fetch_offsets import fetch_offsets
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, encode
from tests.offsets.fakes import FakeCluster, answer_commit

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
OLD, NEW, B_ID = UUID(int=1), UUID(int=2), UUID(int=3)


class Broker:
    """A coordinator with topic ids and names; the cluster learns of changes at a metadata refresh."""

    def __init__(self, **options: Any) -> None:
        self.topics = {"a": OLD, "b": B_ID}
        self.told: list[dict[TopicPartition, str]] = []
        self.committed: dict[tuple[str, UUID, int], int] = {}
        self.cluster = FakeCluster(hooks=[self])
        self.coordinator = self.cluster.coordinators
        self.coordinator.script = self.answer
        self.cluster.refreshed = self.describe
        self.describe()
        self.committer = Committer(self.cluster, "g", **options)  # type: ignore[arg-type]

    def describe(self) -> None:
        for name in ("a", "b"):
            self.cluster.topic(name, self.topics.get(name))

    def manage(self, tp: TopicPartition, offset: int = -1) -> PartitionMarks:
        return self.committer.manage(tp, offset)

    async def answer(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        by_id = {topic_id: name for name, topic_id in self.topics.items()}
        response = await answer_commit(request)
        for topic, answered in zip(request.topics, response.topics, strict=True):
            name = by_id.get(topic.topic_id, topic.name)
            for part, result in zip(topic.partitions, answered.partitions, strict=True):
                if name not in self.topics:
                    named = topic.topic_id == m.NO_UUID
                    result.error_code = (
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if named else ErrorCode.UNKNOWN_TOPIC_ID
                    )
                else:
                    self.committed[name, self.topics[name], part.partition_index] = part.committed_offset
        # versions up to 9 have topic names
        version = min(self.version, 9) if any(topic.name for topic in request.topics) else self.version
        return decode(m.OffsetCommitResponse, version, encode(response, version))

    @property
    def version(self) -> int:
        return min(self.coordinator.version, 10)

    def on_commit(self, _group: str, offsets: Any, errors: Any) -> None:
        self.told.append({tp: error.name for tp, error in (errors or {}).items()})


async def failures(broker: Broker, *, retry_rejected: bool = True) -> dict[TopicPartition, str]:
    """Return the error names that one commit raises, by partition."""
    try:
        await broker.committer.commit(retry_rejected=retry_rejected)
    except CommitFailedError as error:
        return {tp: getattr(each, "name", repr(each)) for tp, each in error.errors.items()}
    return {}


@pytest.fixture
def broker() -> Broker:
    """The coordinator."""
    return Broker()


async def test_topic_ids_are_used_if_all_are_known_and_the_broker_supports_them(broker: Broker) -> None:
    a, b = broker.manage(A0), broker.manage(B0)
    a.mark_offset(5)
    b.mark_offset(6)
    assert await failures(broker) == {}
    assert broker.committed == {("a", OLD, 0): 5, ("b", B_ID, 0): 6}
    ((_, request),) = broker.coordinator.requests
    assert [(topic.name, topic.topic_id) for topic in request.topics] == [("", OLD), ("", B_ID)]
    assert not a.dirty
    assert not b.dirty


async def test_names_are_used_for_unknown_topic_ids(broker: Broker) -> None:
    broker.cluster.topic("b", None)
    a, b = broker.manage(A0), broker.manage(B0)
    broker.coordinator.version = 10
    a.mark_offset(5)
    b.mark_offset(6)
    broker.coordinator.script = answer_commit
    assert await failures(broker) == {}
    requests = [request for _, request in broker.coordinator.requests]
    assert [(topic.name, topic.topic_id) for request in requests for topic in request.topics] == [
        ("", OLD),
        ("b", m.NO_UUID),
    ]
    assert not a.dirty
    assert not b.dirty


async def test_a_topic_without_an_id_does_not_make_the_others_use_names(broker: Broker) -> None:
    """Found by a random test: by name the old topic's mark was committed to the new one, whose first records were skipped."""
    broker.cluster.topic("b", None)
    a, b = broker.manage(A0), broker.manage(B0)
    broker.topics["a"] = NEW
    a.mark_offset(5)
    b.mark_offset(6)
    broker.cluster.refreshed = lambda: None
    assert await failures(broker) == {A0: "UNKNOWN_TOPIC_ID"}
    assert broker.committed == {("b", B_ID, 0): 6}


async def test_a_lost_membership_fails_topics_with_and_without_ids() -> None:
    lost: list[BrokerError] = []
    broker = Broker(on_lost=lost.append)
    broker.cluster.topic("b", None)
    a, b = broker.manage(A0), broker.manage(B0)
    a.mark_offset(5)
    b.mark_offset(6)
    broker.coordinator.script = lambda request: answer_commit(request, ErrorCode.ILLEGAL_GENERATION)
    assert await failures(broker) == dict.fromkeys((A0, B0), "ILLEGAL_GENERATION")
    assert len(broker.coordinator.requests) == 1
    assert len(lost) == 1


async def test_a_partition_may_be_dropped_between_the_two_requests(broker: Broker) -> None:
    broker.cluster.topic("b", None)
    a, b = broker.manage(A0), broker.manage(B0)
    a.mark_offset(5)
    b.mark_offset(6)

    async def answer(request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        broker.committer.drop(B0)
        return await answer_commit(request)

    broker.coordinator.script = answer
    assert await failures(broker) == {}
    assert [topic.topic_id for _, request in broker.coordinator.requests for topic in request.topics] == [OLD]


async def test_a_topic_id_that_the_broker_does_not_know_yet_is_retried(broker: Broker) -> None:
    a = broker.manage(A0)
    a.mark_offset(5)
    del broker.topics["a"]
    broker.cluster.refreshed = lambda: broker.topics.update(a=OLD)
    assert await failures(broker) == {}
    assert broker.committed == {("a", OLD, 0): 5}
    assert broker.told == [{A0: "UNKNOWN_TOPIC_ID"}, {}]


@pytest.mark.parametrize("version", [9, 10])
async def test_marks_of_a_recreated_topic_are_dropped_with_an_error(broker: Broker, version: int) -> None:
    """By name they would have been committed to the new topic, whose records were not read."""
    broker.coordinator.version = version
    a, b = broker.manage(A0), broker.manage(B0)
    a.mark_offset(50)
    b.mark_offset(6)
    broker.topics["a"] = NEW
    if version < 10:  # only the metadata shows it then
        broker.describe()
    with pytest.raises(CommitFailedError, match=r"a-0: .*deleted and recreated") as raised:
        await broker.committer.commit()
    assert set(raised.value.errors) == {A0}
    assert broker.committed == {("b", B_ID, 0): 6}
    assert broker.cluster.refreshes == (1 if version >= 10 else 0)
    assert broker.told[-2 if version < 10 else -1] == {A0: "UNKNOWN_TOPIC_ID"}
    assert not a.dirty
    assert await failures(broker) == {}, "it was dropped"
    a.mark_offset(51)
    assert await failures(broker, retry_rejected=False) == {A0: "UNKNOWN_TOPIC_ID"}, (
        "the next mark is dropped as well"
    )
    broker.committer.drop(A0)
    broker.manage(A0).mark_offset(3)
    assert await failures(broker) == {}
    assert broker.committed["a", NEW, 0] == 3


@pytest.mark.parametrize("version", [9, 10])
async def test_a_deleted_topic_is_reported_once_and_not_committed_again(version: int) -> None:
    """In sarama commits are repeated without end (#1095, #793)."""
    name = "UNKNOWN_TOPIC_ID" if version >= 10 else "UNKNOWN_TOPIC_OR_PARTITION"
    broker = Broker(retry_max=2)
    broker.coordinator.version = version
    a, b = broker.manage(A0), broker.manage(B0)
    a.mark_offset(5)
    b.mark_offset(6)
    del broker.topics["a"]
    assert await failures(broker, retry_rejected=False) == {A0: name}
    assert len(broker.coordinator.requests) == 3
    assert (a.rejected, a.dirty, b.dirty) == (True, True, False)
    for offset in range(7, 10):
        b.mark_offset(offset)
        assert await failures(broker, retry_rejected=False) == {}
    assert broker.committed["b", B_ID, 0] == 9
    assert len(broker.coordinator.requests) == 6, "none of them contained the topic again"
    a.mark_offset(6)
    assert await failures(broker, retry_rejected=False) == {A0: name}, "reported once per mark"
    assert await failures(broker) == {A0: name}, "an explicit commit raises it again"
    broker.topics["a"] = OLD
    assert await failures(broker) == {}
    assert broker.committed["a", OLD, 0] == 6


async def test_an_automatic_and_an_explicit_commit_that_share_a_request() -> None:
    broker = Broker(retry_max=0)
    a, b = broker.manage(A0), broker.manage(B0)
    a.mark_offset(5)
    del broker.topics["a"]
    assert await failures(broker) == {A0: "UNKNOWN_TOPIC_ID"}
    assert a.rejected
    b.mark_offset(1)
    both = await asyncio.gather(failures(broker), failures(broker, retry_rejected=False))
    assert both == [{A0: "UNKNOWN_TOPIC_ID"}] * 2, "both calls raise it"
    assert len(broker.coordinator.requests) == 2


async def test_a_mark_made_during_the_last_try_is_not_rejected() -> None:
    broker = Broker(retry_max=0)
    a = broker.manage(A0)
    a.mark_offset(5)
    del broker.topics["a"]
    answer = broker.coordinator.script

    async def script(request: Any) -> Any:
        a.mark_offset(6)
        return await answer(request)

    broker.coordinator.script = script
    assert await failures(broker) == {A0: "UNKNOWN_TOPIC_ID"}
    assert not a.rejected


@pytest.mark.parametrize(
    ("code", "rejects"),
    [
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, True),
        (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),  # the authorization may be granted later
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
        (
            ErrorCode.UNKNOWN_MEMBER_ID,
            False,
        ),  # the manager has no membership to lose: the group has members now
    ],
)
async def test_which_error_codes_reject_a_mark(broker: Broker, code: ErrorCode, rejects: bool) -> None:
    a = broker.manage(A0)
    a.mark_offset(5)
    broker.coordinator.script = lambda request: answer_commit(request, code)
    assert await failures(broker, retry_rejected=False) == {A0: code.name}
    assert len(broker.coordinator.requests) == 1
    assert (a.rejected, a.dirty) == (rejects, True)
    broker.coordinator.script = broker.answer
    assert await failures(broker) == {}
    assert broker.committed["a", OLD, 0] == 5


async def test_retention_without_effect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(retention=60.0)
    a = broker.manage(A0)
    broker.coordinator.version = 4
    with caplog.at_level(logging.WARNING, "asyncgroup.offsets"):
        a.mark_offset(5)
        assert await failures(broker) == {}
        assert caplog.records == []
        broker.coordinator.version = 9
        for offset in (6, 7):
            a.mark_offset(offset)
            assert await failures(broker) == {}
    assert broker.coordinator.requests[0][1].retention_time_ms == 60_000
    (said,) = caplog.messages
    assert said.startswith(
        "offset_retention=60.0 has no effect: only OffsetCommit versions 2 to 4 have a retention time"
    )


# -- fetching offsets --------------------------------------------------------------------------------------------------


class Stored:
    """A coordinator with a committed offset for topic `a` with one id."""

    def __init__(self, topic_id: UUID) -> None:
        self.topic_id = topic_id
        self.requests: list[m.OffsetFetchRequest] = []

    async def __call__(self, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        self.requests.append(request)
        response = m.OffsetFetchResponse
        topics = []
        for topic in request.groups[0].topics or ():
            known = topic.topic_id == self.topic_id
            part = response.OffsetFetchResponsePartitions(
                0, 7 if known else -1, 2, "text", 0 if known else ErrorCode.UNKNOWN_TOPIC_ID
            )
            topics.append(response.OffsetFetchResponseTopics("", topic.topic_id, [part]))
        return response(groups=[response.OffsetFetchResponseGroup("g", topics)])


async def test_offsets_are_requested_by_topic_id() -> None:
    cluster = FakeCluster()
    cluster.topic("a", OLD)
    stored = cluster.coordinators.script = Stored(OLD)
    found = await fetch_offsets(cluster, "g", [A0], lane="x")  # type: ignore[arg-type]
    assert found == {A0: (7, "text", 2)}
    assert (stored.requests[0].groups[0].topics or ())[0].topic_id == OLD


async def test_an_outdated_topic_id_is_refreshed() -> None:
    cluster = FakeCluster()
    cluster.topic("a", OLD)
    cluster.refreshed = lambda: cluster.topic("a", NEW)
    stored = cluster.coordinators.script = Stored(NEW)
    assert A0 in await fetch_offsets(cluster, "g", [A0], lane="x")  # type: ignore[arg-type]
    assert (len(stored.requests), cluster.refreshes) == (2, 1)


async def test_a_failed_refresh_only_uses_up_one_try() -> None:
    def fail() -> None:
        raise NoBrokersError("nobody answers")

    broker = Broker(retry_max=1)
    a = broker.manage(A0)
    a.mark_offset(5)
    del broker.topics["a"]
    broker.cluster.refreshed = fail
    assert await failures(broker) == {A0: "UNKNOWN_TOPIC_ID"}
    assert len(broker.coordinator.requests) == 2
    cluster = FakeCluster(metadata_retry_max=1)
    cluster.topic("a", OLD)
    cluster.refreshed = fail
    stored = cluster.coordinators.script = Stored(NEW)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_ID"):
        await fetch_offsets(cluster, "g", [A0], lane="x")  # type: ignore[arg-type]
    assert len(stored.requests) == 2


async def test_a_topic_id_that_stays_unknown_ends_in_an_error() -> None:
    cluster = FakeCluster(metadata_retry_max=2)
    cluster.topic("a", uuid4())
    stored = cluster.coordinators.script = Stored(NEW)
    with pytest.raises(BrokerError, match="partition a-0: UNKNOWN_TOPIC_ID"):
        await fetch_offsets(cluster, "g", [A0], lane="x")  # type: ignore[arg-type]
    assert len(stored.requests) == 3
