"""Cluster.topics, partitions and leader: from the view, looked up, retried, rejected."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.errors import (
    BrokerError,
    ConfigError,
    ErrorCode,
)
from asyncgroup.model import TopicPartition
from tests.cluster.scripted import Call, ScriptedCluster
from tests.cluster.support import HOSTS, cluster_of, now

pytestmark = pytest.mark.virtual

TP = TopicPartition("t", 0)


async def test_known_topics_are_not_looked_up(three: ScriptedCluster, cluster: ClusterClient) -> None:
    three.topics = {"t": {1: (1, 0), 0: (2, 0)}}
    cluster.track(["t"])
    assert await cluster.partitions("t") == [0, 1]
    three.received.clear()
    assert (await cluster.topics("t"))["t"].numbers == [0, 1]
    assert not three.received


async def test_an_unknown_topic_is_retried_before_it_is_an_error() -> None:
    async with (
        ScriptedCluster(*HOSTS) as scripted,
        cluster_of(scripted, retry_backoff=0.1, metadata_retry_max=3) as cluster,
    ):
        scripted.received.clear()
        with pytest.raises(
            BrokerError, match=r"topic 'nope': UNKNOWN_TOPIC_OR_PARTITION \(3\): it does not exist"
        ):
            await cluster.topics(["nope"])
        assert len(scripted.requests_of("Metadata")) == 4
        assert 0.5 < now() < 1.0
        scripted.received.clear()
        await cluster.refresh()
        assert not scripted.requests_of("Metadata")[0].request.topics, "a failed lookup does not stay tracked"


async def test_topics_waits_for_a_topic_being_created(three: ScriptedCluster, cluster: ClusterClient) -> None:
    asyncio.get_running_loop().call_later(0.5, lambda: three.topics.update(t={0: (1, 0)}))
    assert await cluster.partitions("t") == [0]


async def test_an_unauthorized_topic_fails_at_once(three: ScriptedCluster, cluster: ClusterClient) -> None:

    def answer(call: Call) -> None:
        response = three.metadata(call.request)
        for topic in response.topics:
            topic.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        call.answer(response)

    for node in (1, 2, 3):
        three[node].script["Metadata"] = answer
    with pytest.raises(BrokerError, match="topic 'secret': TOPIC_AUTHORIZATION_FAILED"):
        await cluster.topics(["secret"])
    assert now() == 0.0


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "x" * 250, None, 7])
async def test_invalid_topic_names_are_not_sent(name: Any) -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        three.received.clear()
        with pytest.raises(ConfigError, match="topic="):
            await cluster.topics([name])
        assert not three.received


@pytest.mark.parametrize("allowed", [True, False])
async def test_allow_auto_topic_creation_is_sent(allowed: bool) -> None:
    async with ScriptedCluster(*HOSTS) as scripted, cluster_of(scripted, allow_auto_topic_creation=allowed):
        assert {asked.request.allow_auto_topic_creation for asked in scripted.requests_of("Metadata")} == {
            allowed
        }


async def test_topics_that_must_not_be_created_are_asked_for_apart() -> None:
    """They have a separate request even while they exist, as they may be deleted; the request for the others may create topics."""
    async with ScriptedCluster(*HOSTS) as scripted, cluster_of(scripted, metadata_retry_max=0) as cluster:

        def asked() -> list[tuple[list[str], bool]]:
            requests = [call.request for call in scripted.requests_of("Metadata")]
            scripted.received.clear()
            return [([topic.name for topic in r.topics], r.allow_auto_topic_creation) for r in requests]

        scripted.topics = {"t": {0: (1, 0)}}
        cluster.never_create(["kept"])
        cluster.track(["kept", "t"])
        asked()
        await cluster.refresh()
        assert asked() == [(["t"], True), (["kept"], False)]
        assert list(cluster.view.topics) == ["t"]
        assert await cluster.existing_topics(["t", "u"]) == {"t": cluster.view.topics["t"]}
        assert asked() == [(["t", "u"], False)]
        scripted.topics["kept"] = {0: (2, 0)}
        for _ in range(2):
            await cluster.refresh()
            assert asked() == [(["t"], True), (["kept"], False)]
            assert sorted(cluster.view.topics) == ["kept", "t"]


@pytest.mark.parametrize("version", [0, 1, 3, 4, 8, 9, 13])
async def test_every_metadata_version(three: ScriptedCluster, version: int) -> None:
    for broker in three.brokers.values():
        broker.versions["Metadata"] = (0, version)
    three.topics = {"t": {0: (1, 3)}, "u": {0: (2, 0)}}
    async with cluster_of(three, allow_auto_topic_creation=False) as cluster:
        assert await cluster.partitions("t") == [0]
        assert sorted(await cluster.all_topics()) == ["t", "u"]
        assert {asked.version for asked in three.requests_of("Metadata")} == {version}
        assert await cluster.leader(TP) == 1


async def test_all_topics_leaves_the_view_alone(three: ScriptedCluster, cluster: ClusterClient) -> None:
    three.topics = {"t": {0: (1, 0)}, "u": {0: (2, 0)}}
    before = cluster.view
    assert sorted(await cluster.all_topics()) == ["t", "u"]
    assert cluster.view is before


async def test_the_leader_is_looked_up_once(three: ScriptedCluster, cluster: ClusterClient) -> None:
    three.topics = {"t": {0: (2, 0)}}
    cluster.track(["t"])
    assert await cluster.leader(TP) == 2
    three.received.clear()
    assert await cluster.leader(TP) == 2
    assert not three.received


async def test_leader_waits_for_a_leader_election(three: ScriptedCluster, cluster: ClusterClient) -> None:
    three.topics = {"t": {0: (-1, 0)}}
    asyncio.get_running_loop().call_later(0.5, lambda: three.topics.update(t={0: (3, 1)}))
    assert await cluster.leader(TP) == 3


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (0, r"partition t-0: LEADER_NOT_AVAILABLE"),
        (9, r"partition t-9: UNKNOWN_TOPIC_OR_PARTITION .*does not exist"),
    ],
)
async def test_no_leader_after_all_retries(partition: int, expected: str) -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        three.topics = {"t": {0: (-1, 0)}}
        with pytest.raises(BrokerError, match=expected):
            await cluster.leader(TopicPartition("t", partition))
        assert 1 < now() < 10


async def test_older_metadata_does_not_replace_a_newer_leader() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        three.topics = {"t": {0: (2, 4)}}
        cluster.track(["t"])
        await cluster.refresh()
        cluster.update_leader(TP, 7, 5, [BrokerInfo(7, "10.0.0.3", 9092)])
        assert cluster.view.leader(TP) == 7
        await cluster.refresh()
        assert cluster.view.leader(TP) == 2, "node 7 is not among the brokers"
        cluster.update_leader(TP, 3, 5)
        await cluster.refresh()
        assert cluster.view.leader(TP) == 3
        cluster.doubt_leader(TP, 3)
        await cluster.refresh()
        assert cluster.view.leader(TP) == 2
