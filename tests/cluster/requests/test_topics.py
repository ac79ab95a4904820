"""create_topics: topics that are missing, exist, are refused, and brokers that fail for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.topics import NewTopic, create_topics
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode, NoBrokersError
from tests.cluster.requests.scene import opened
from tests.stories.holding import limit_version


async def create_missing(client: ClusterClient, wanted: Mapping[str, NewTopic]) -> dict[str, AsyncGroupError]:
    """Create the topics that do not exist, with retries for a minute; return the errors."""
    results = await create_topics(client, wanted, retry=client.retry(timeout=60.0), only_missing=True)
    assert results.values.keys() | results.errors.keys() == wanted.keys()
    return results.errors


def shape(cluster: EmbeddedCluster, topic: str) -> tuple[int, int]:
    """Return the number of partitions of a topic, and of their replicas."""
    partitions = cluster.topic(topic).partitions
    return len(partitions), len(partitions[0].replicas)


async def test_missing_topics_are_created_and_others_left_as_they_are() -> None:
    async with opened() as (cluster, client):
        cluster.create_topic("there", 2)
        wanted = {
            "retry": NewTopic(6),
            "dead": NewTopic(1, 2, {"retention.ms": "-1"}),
            "there": NewTopic(9, 1),
        }
        assert await create_missing(client, wanted) == {}
        assert [shape(cluster, name) for name in wanted] == [(6, 3), (1, 2), (2, 3)]
        assert cluster.topic("dead").configs["retention.ms"] == "-1"
        sent = cluster.history.of("CreateTopics")
        assert [topic.name for topic in sent[0].request.topics] == ["retry", "dead"]
        assert await create_missing(client, wanted) == {}
        assert len(cluster.history.of("CreateTopics")) == len(sent) == 1  # nothing was missing
        assert await create_missing(client, {}) == {}


async def test_a_topic_that_another_client_creates_at_the_same_time() -> None:
    async with opened() as (cluster, client):
        cluster.faults.on("CreateTopics").error("TOPIC_ALREADY_EXISTS")
        assert await create_missing(client, {"retry": NewTopic(1)}) == {}


@pytest.mark.parametrize(
    "code", ["TOPIC_AUTHORIZATION_FAILED", "POLICY_VIOLATION", "INVALID_REPLICATION_FACTOR"]
)
async def test_what_the_broker_does_not_allow_is_returned_for_its_topic(code: str) -> None:
    async with opened() as (cluster, client):
        cluster.faults.on("CreateTopics", topic="dead").error(code)
        errors = await create_missing(client, {"retry": NewTopic(1), "dead": NewTopic(1)})
        assert list(errors) == ["dead"]
        error = errors["dead"]
        assert isinstance(error, BrokerError)
        assert error.name == code
        assert "creating topic 'dead'" in str(error)
        assert cluster.topics == ["retry"]
        assert len(cluster.history.of("CreateTopics")) == 1


async def test_an_existing_topic_needs_no_permission_to_create_it() -> None:
    async with opened() as (cluster, client):
        cluster.create_topic("retry", 1)
        cluster.faults.on("CreateTopics", times=None).error("TOPIC_AUTHORIZATION_FAILED").optional()
        assert await create_missing(client, {"retry": NewTopic(1)}) == {}


async def test_a_topic_is_not_created_by_the_metadata_request_with_other_partitions() -> None:
    async with opened(auto_create_topics=True, default_partitions=1) as (cluster, client):
        assert await create_missing(client, {"retry": NewTopic(5)}) == {}
        assert shape(cluster, "retry") == (5, 3)


async def test_retriable_errors_are_retried() -> None:
    async with opened() as (cluster, client):
        cluster.faults.on("CreateTopics", times=2).error("NOT_CONTROLLER")
        cluster.faults.on("CreateTopics", nth=3, topic="dead").error("THROTTLING_QUOTA_EXCEEDED")
        cluster.faults.on("CreateTopics", nth=4).disconnect()
        assert await create_missing(client, {"retry": NewTopic(1), "dead": NewTopic(1)}) == {}
        assert cluster.topics == ["dead", "retry"]
        names = [[topic.name for topic in sent.request.topics] for sent in cluster.history.of("CreateTopics")]
        assert names[-1] == ["dead"]


async def test_a_lost_response_is_no_error() -> None:
    async with opened(nodes=1) as (cluster, client):
        cluster.faults.on("CreateTopics").disconnect("after")
        assert await create_missing(client, {"retry": NewTopic(1)}) == {}
        assert len(cluster.history.of("CreateTopics")) == 1


async def test_the_controller_may_stop_and_start() -> None:
    async with opened(nodes=1) as (cluster, client):
        await cluster.stop_node(1)
        creation = asyncio.create_task(create_missing(client, {"retry": NewTopic(1)}))
        await asyncio.sleep(10)
        assert not creation.done()
        await cluster.start_node(1)
        assert await creation == {}
        assert cluster.topics == ["retry"]


async def test_a_node_that_is_not_there_is_not_asked_without_limit() -> None:
    async with opened(nodes=1) as (cluster, client):
        await cluster.stop_node(1)
        errors = await create_missing(client, {"retry": NewTopic(1), "dead": NewTopic(1)})
        assert {name: type(error) for name, error in errors.items()} == {
            "retry": NoBrokersError,
            "dead": NoBrokersError,
        }


async def test_an_error_that_stays_is_returned_after_a_minute() -> None:
    async with opened(nodes=1) as (cluster, client):
        cluster.faults.on("CreateTopics", times=None).error("NOT_CONTROLLER")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        errors = await create_missing(client, {"retry": NewTopic(1)})
        assert isinstance(error := errors["retry"], BrokerError)
        assert error.code == ErrorCode.NOT_CONTROLLER
        assert 50 < loop.time() - begun < 70


async def test_a_response_without_the_topic_is_retried() -> None:
    async with opened(nodes=1) as (cluster, client):

        def forget(response: Any) -> Any:
            response.topics = []
            return response

        cluster.faults.on("CreateTopics").mutate(forget)
        assert await create_missing(client, {"retry": NewTopic(1)}) == {}
        assert cluster.topics == ["retry"]


@pytest.mark.parametrize(("version", "replicas"), [(2, 1), (3, 1), (4, 3)])
async def test_old_brokers_have_no_default_of_replicas(version: int, replicas: int) -> None:
    async with opened() as (cluster, client):
        limit_version(cluster, 19, version)
        async with ClusterClient(cluster.bootstrap_servers) as older:
            assert await create_missing(older, {"retry": NewTopic(2)}) == {}
        assert shape(cluster, "retry") == (2, replicas)
        assert client.is_open


async def test_a_closed_client() -> None:
    async with opened() as (_, client):
        await client.aclose()
        with pytest.raises(ClosedError):
            await create_missing(client, {"retry": NewTopic(1)})
