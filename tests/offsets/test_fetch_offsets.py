"""Fetching committed offsets: one request in every version, retries, errors that name group and partition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    BrokerError,
    ConnectionLost,
    ErrorCode,
    MalformedResponse,
    UnsupportedVersionError,
)
from asyncgroup.group.sessions.claim_source import ClaimSource
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import CommittedOffset, MemberIdentity
from asyncgroup.offsets.fetch_offsets import STABLE_TIMEOUT, fetch_offsets
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, encode
from tests.offsets.fakes import FakeCluster, now

TPS = [TopicPartition("a", 10), TopicPartition("a", 2), TopicPartition("b", 0)]
STORED = {TPS[0]: CommittedOffset(7, "text", 3), TPS[2]: CommittedOffset(0, "", -1)}
VERSIONS = range(1, 10)


def response_to(
    request: m.OffsetFetchRequest,
    version: int,
    *,
    code: int = 0,
    codes: dict[TopicPartition, int] | None = None,
) -> Any:
    """Return the response of a broker that holds STORED, encoded and decoded in the version."""
    response = m.OffsetFetchResponse
    grouped = version >= 8
    asked = request.groups[0].topics if grouped else request.topics
    make_topic = response.OffsetFetchResponseTopics if grouped else response.OffsetFetchResponseTopic
    make_part = response.OffsetFetchResponsePartitions if grouped else response.OffsetFetchResponsePartition
    topics: list[Any] = []
    for topic in asked or ():
        topics.append(make_topic(name=topic.name, partitions=[]))
        for number in topic.partition_indexes:
            tp = TopicPartition(topic.name, number)
            offset, metadata, epoch = STORED.get(tp, CommittedOffset(-1))
            part = make_part(
                partition_index=number,
                committed_offset=offset,
                committed_leader_epoch=epoch if version >= 5 else -1,
                metadata=metadata,
                error_code=(codes or {}).get(tp, 0),
            )
            topics[-1].partitions.append(part)
    if grouped:
        group = response.OffsetFetchResponseGroup(group_id="g", topics=topics, error_code=code)
        message = response(groups=[group])
    else:
        message = response(topics=topics, error_code=code)
    return decode(response, version, encode(message, version))


def cluster_that(*answers: Any, version: int = 9, **config: Any) -> FakeCluster:
    """Return a cluster that answers with each of `answers` in turn and repeats the last one.

    An answer is the keyword arguments of `response_to`, or an error to raise.
    """
    cluster, left = FakeCluster(**config), list(answers)
    cluster.coordinators.version = version

    async def script(request: Any) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return response_to(request, version, **answer)

    cluster.coordinators.script = script
    return cluster


async def fetched(cluster: FakeCluster) -> dict[TopicPartition, CommittedOffset]:
    return await fetch_offsets(cluster, "g", TPS, lane="group")  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
async def test_one_request_for_all_partitions_in_every_version(version: int) -> None:
    cluster = cluster_that({}, version=version)
    found = await fetched(cluster)
    expected = STORED if version >= 5 else {tp: c._replace(leader_epoch=-1) for tp, c in STORED.items()}
    assert found == expected, "a partition without a committed offset is left out"
    ((_, request),) = cluster.coordinators.requests
    if version >= 8:
        assert [group.group_id for group in request.groups] == ["g"]
        topics = request.groups[0].topics
    else:
        assert request.group_id == "g"
        topics = request.topics
    assert [(topic.name, topic.partition_indexes) for topic in topics] == [("a", [2, 10]), ("b", [0])]


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_of_a_partition_name_it(version: int) -> None:
    codes = {TPS[1]: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    with pytest.raises(BrokerError, match=r"group 'g', partition a-2: TOPIC_AUTHORIZATION_FAILED"):
        await fetched(cluster_that({"codes": codes}, version=version))


@pytest.mark.parametrize("version", range(2, 10))
async def test_errors_of_the_group_name_it(version: int) -> None:
    cluster = cluster_that({"code": ErrorCode.GROUP_AUTHORIZATION_FAILED}, version=version)
    with pytest.raises(BrokerError, match="group 'g': GROUP_AUTHORIZATION_FAILED"):
        await fetched(cluster)
    assert len(cluster.coordinators.requests) == 1


@pytest.mark.parametrize(
    ("trouble", "forgotten"),
    [
        ({"code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, 0),
        ({"code": ErrorCode.NOT_COORDINATOR}, 1),
        ({"code": ErrorCode.COORDINATOR_NOT_AVAILABLE}, 1),
        ({"codes": {TPS[0]: ErrorCode.UNSTABLE_OFFSET_COMMIT}}, 0),
        (ConnectionLost("gone"), 0),
        (BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "coordinator of 'g'"), 1),
    ],
)
async def test_retriable_errors_are_retried(trouble: Any, forgotten: int) -> None:
    cluster = cluster_that(trouble, trouble, {})
    assert await fetched(cluster) == STORED
    assert cluster.coordinators.marked_unknown == 2 * forgotten


@pytest.mark.parametrize("tries", [0, 2])
async def test_retries_end_after_metadata_retry_max(tries: int) -> None:
    cluster = cluster_that({"code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, metadata_retry_max=tries)
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        await fetched(cluster)
    assert len(cluster.coordinators.requests) == 1 + tries


async def test_an_unsupported_version_is_raised_at_once() -> None:
    cluster = cluster_that(UnsupportedVersionError("none"))
    with pytest.raises(UnsupportedVersionError):
        await fetched(cluster)
    assert len(cluster.coordinators.requests) == 1


async def test_members_use_the_group_lane() -> None:
    cluster = cluster_that({})
    source = ClaimSource(SimpleNamespace(_inner=cluster), "g", ConsumerConfig(), ())  # type: ignore[arg-type]
    starts, _ = source.claim_starts((await source.fetch_commits(list(STORED))).found)
    assert {tp: (at.offset, at.leader_epoch) for tp, at in starts.items()} == {
        tp: (at.offset, at.leader_epoch) for tp, at in STORED.items()
    }
    assert [at.stored and at.stored.raw for at in starts.values()] == ["text", ""]
    assert cluster.coordinators.lanes == {"group"}


# -- members with an epoch (KIP-848) ------------------------------------------------------------------------------------


async def test_a_member_asks_with_its_newest_epoch_until_it_is_not_stale() -> None:
    """Rule 8: more often than other errors are retried, and never a reset."""
    cluster = cluster_that(*[{"code": ErrorCode.STALE_MEMBER_EPOCH}] * 8, {}, metadata_retry_max=0)
    epochs = iter(range(3, 100))

    def member() -> MemberIdentity:
        return MemberIdentity("m-1", next(epochs), "desk-1")

    found = await fetch_offsets(cluster, "g", TPS, lane="group", member=member)  # type: ignore[arg-type]
    assert found == STORED
    groups = [request.groups[0] for _, request in cluster.coordinators.requests]
    assert [(group.member_id, group.member_epoch) for group in groups] == [("m-1", n) for n in range(3, 12)]


async def test_an_epoch_that_stays_stale_is_an_error_in_the_end() -> None:
    cluster = cluster_that({"code": ErrorCode.STALE_MEMBER_EPOCH})
    began = now()
    with pytest.raises(BrokerError, match="STALE_MEMBER_EPOCH"):
        await fetch_offsets(
            cluster,  # type: ignore[arg-type]
            "g",
            TPS,
            lane="group",
            member=lambda: MemberIdentity("m-1", 3),
        )
    assert STABLE_TIMEOUT <= now() - began < STABLE_TIMEOUT + 5


@pytest.mark.parametrize("member", [None, MemberIdentity()])
async def test_other_clients_send_no_member(member: MemberIdentity | None) -> None:
    cluster = cluster_that({})
    source = ClaimSource(SimpleNamespace(_inner=cluster), "g", ConsumerConfig(), (), lambda: member)  # type: ignore[arg-type]
    await source.fetch_commits(list(STORED))
    ((_, request),) = cluster.coordinators.requests
    assert (request.groups[0].member_id, request.groups[0].member_epoch) == (None, -1)


# -- incomplete responses ----------------------------------------------------------------------------------------------


def cut_group(response: Any) -> None:
    response.groups = []


def cut_other_group(response: Any) -> None:
    response.groups[0].group_id = "another"


def cut_topics(response: Any) -> None:
    (response.groups[0] if response.groups else response).topics.clear()


def cut_partition(response: Any) -> None:
    (response.groups[0] if response.groups else response).topics[0].partitions.pop()


@pytest.mark.parametrize(
    ("cut", "version"),
    [(cut_group, 9), (cut_group, 8), (cut_other_group, 9)]
    + [(cut, version) for cut in (cut_topics, cut_partition) for version in (1, 7, 8, 9)],
)
async def test_a_missing_partition_is_not_taken_for_one_without_a_commit(cut: Any, version: int) -> None:
    """The request is repeated: a broker returns offset -1 for a partition without a committed offset."""
    cluster = cluster_that({}, version=version)
    script = cluster.coordinators.script

    async def incomplete(request: Any) -> Any:
        response = await script(request)
        if len(cluster.coordinators.requests) < 3:
            cut(response)
        return response

    cluster.coordinators.script = incomplete
    assert set(await fetched(cluster)) == set(STORED)
    assert len(cluster.coordinators.requests) == 3


async def test_a_response_that_stays_incomplete_is_an_error() -> None:
    cluster = cluster_that({}, version=9, metadata_retry_max=1)
    script = cluster.coordinators.script

    async def incomplete(request: Any) -> Any:
        response = await script(request)
        cut_partition(response)
        return response

    cluster.coordinators.script = incomplete
    with pytest.raises(
        MalformedResponse, match="committed offsets of group 'g': the response does not contain a-"
    ):
        await fetched(cluster)
