"""Requests to leaders, the controller and named nodes: deleted records, topics, configurations."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.configs import BROKER, GROUP, TOPIC, ConfigResource, describe_configs
from asyncgroup.cluster.requests.records import delete_records
from asyncgroup.cluster.requests.topics import NewTopic, create_topics, delete_topics
from asyncgroup.errors import BrokerError, ConnectionLost, ErrorCode, NoBrokersError
from tests.cluster.requests.scene import groups_of, now, opened
from tests.stories.holding import limit_version


def parts(count: int = 3) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in range(count)]


async def with_records(cluster: EmbeddedCluster, client: ClusterClient) -> dict[TopicPartition, int]:
    """Write ten records to each of three partitions, which three nodes lead; return an offset for each."""
    cluster.create_topic("orders", 3)
    for tp in parts():
        cluster.move_leader(*tp, tp.partition + 1)
        for _ in range(10):
            cluster.produce("orders", b"x", partition=tp.partition)
    client.track(["orders"])
    await client.refresh()
    return dict.fromkeys(parts(), 4)


def starts(cluster: EmbeddedCluster) -> list[int]:
    return [cluster.records("orders", number)[0].offset for number in range(3)]


# --- leaders ------------------------------------------------------------------------------------------------------------


async def test_records_are_deleted_at_all_leaders() -> None:
    async with opened() as (cluster, client):
        offsets = await with_records(cluster, client)
        found = await delete_records(client, offsets)
        assert found.require() == offsets
        assert starts(cluster) == [4, 4, 4]
        assert sorted(each.node_id for each in cluster.history.of("DeleteRecords")) == [1, 2, 3]


async def test_a_leader_that_moved_is_looked_up() -> None:
    async with opened() as (cluster, client):
        offsets = await with_records(cluster, client)
        cluster.move_leader("orders", 0, 3)
        once = await delete_records(client, offsets)
        assert isinstance(error := once.errors[parts()[0]], BrokerError)
        assert error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "deleting records of orders-0 before offset 4" in str(error)
        assert list(once.values) == parts()[1:]
        again = await delete_records(client, offsets, retry=client.retry(timeout=10.0))
        assert again.require() == offsets
        assert starts(cluster) == [4, 4, 4]


async def test_one_leader_that_fails_harms_no_other_partition() -> None:
    async with opened() as (cluster, client):
        offsets = await with_records(cluster, client)
        offsets[parts()[1]] = 99
        cluster.faults.on("DeleteRecords", node=1).disconnect()
        found = await delete_records(client, offsets)
        assert isinstance(found.errors[parts()[0]], ConnectionLost)
        assert "OFFSET_OUT_OF_RANGE" in str(found.errors[parts()[1]])
        assert found.values == {parts()[2]: 4}
        assert starts(cluster) == [0, 0, 4]


async def test_a_partition_without_a_leader_waits_for_one() -> None:
    async with opened() as (cluster, client):
        cluster.create_topic("orders", 3, replication_factor=1)
        homes = {cluster.leader(*tp): tp for tp in parts()}
        client.track(["orders"])
        offline = homes[3]
        await cluster.stop_node(3)
        await client.refresh()
        offsets = dict.fromkeys(parts(), 0)
        once = await delete_records(client, offsets)
        assert {tp: str(error) for tp, error in once.errors.items()} == {
            offline: f"deleting records of {offline}: LEADER_NOT_AVAILABLE (5)"
        }
        deleting = asyncio.create_task(delete_records(client, offsets, retry=client.retry(timeout=60.0)))
        await asyncio.sleep(5)
        assert not deleting.done()
        await cluster.start_node(3)
        assert (await deleting).values == offsets


# --- the controller -----------------------------------------------------------------------------------------------------


async def test_what_another_controller_answers_is_taken_after_a_refresh() -> None:
    async with opened() as (cluster, client):
        former = client.view.controller_id
        refreshes = len(cluster.history.of("Metadata"))
        cluster.faults.on("CreateTopics").error("NOT_CONTROLLER")
        retry = client.retry(timeout=10.0)
        found = await create_topics(client, {"a": NewTopic(1), "b": NewTopic(2)}, retry=retry)
        assert found.values == {"a": None, "b": None}
        assert [each.node_id for each in cluster.history.of("CreateTopics")] == [
            former,
            client.view.controller_id,
        ]
        assert len(cluster.history.of("Metadata")) == refreshes + 1


async def test_the_next_request_looks_for_a_controller_that_refused_the_last_one() -> None:
    async with opened() as (cluster, client):
        cluster.faults.on("CreateTopics").disconnect()
        once = await create_topics(client, {"a": NewTopic(1)})
        assert isinstance(once.errors["a"], ConnectionLost)
        assert client.view.controller_id == -1
        assert (await create_topics(client, {"a": NewTopic(1)})).values == {"a": None}
        assert client.view.controller_id in client.view.brokers


async def test_any_broker_is_asked_while_the_metadata_names_no_controller() -> None:
    async with opened() as (cluster, client):

        def without(response: Any) -> Any:
            response.controller_id = -1
            return response

        cluster.faults.on("Metadata", times=None).mutate(without)
        await client.refresh()
        assert (await create_topics(client, {"a": NewTopic(1)})).values == {"a": None}
        assert cluster.topics == ["a"]


async def test_a_topic_that_exists_is_an_error_unless_only_missing_ones_are_created() -> None:
    async with opened() as (cluster, client):
        cluster.create_topic("a", 1)
        retry = client.retry(timeout=10.0)
        found = await create_topics(client, {"a": NewTopic(1), "b": NewTopic(1)}, retry=retry)
        assert found.values == {"b": None}
        assert str(found.errors["a"]).startswith("creating topic 'a': TOPIC_ALREADY_EXISTS (36)")
        assert len(cluster.history.of("CreateTopics")) == 1


@pytest.mark.parametrize("version", [1, 5, 6])
async def test_topics_are_deleted(version: int) -> None:
    async with opened() as (cluster, client):
        limit_version(cluster, 20, version).optional()
        for name in ("a", "b"):
            cluster.create_topic(name, 1)
        async with ClusterClient(cluster.bootstrap_servers) as older:
            retry = older.retry(timeout=10.0)
            cluster.faults.on("DeleteTopics").disconnect()
            found = await delete_topics(older, ["a", "b", "none"], retry=retry)
        assert found.values == {"a": None, "b": None}
        assert str(found.errors["none"]).startswith("deleting topic 'none': UNKNOWN_TOPIC_OR_PARTITION (3)")
        assert cluster.topics == []
        assert {each.version for each in cluster.history.of("DeleteTopics")} == {version}
        assert len(cluster.history.of("DeleteTopics")) == 2
        assert client.is_open


# --- named nodes --------------------------------------------------------------------------------------------------------


async def test_each_configuration_is_asked_for_where_it_is() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        resources = [
            ConfigResource(BROKER, "2"),
            ConfigResource(GROUP, groups[3]),
            ConfigResource(TOPIC, "orders"),
            ConfigResource(BROKER, "1"),
        ]
        found = (await describe_configs(client, resources)).require()
        assert found[resources[2]]["cleanup.policy"] == "delete"
        assert "offset.metadata.max.bytes" in found[resources[0]]
        assert "consumer.session.timeout.ms" in found[resources[1]]
        asked = {
            (resource.resource_type, resource.resource_name): each.node_id
            for each in cluster.history.of("DescribeConfigs")
            for resource in each.request.resources
        }
        assert [asked[4, "1"], asked[4, "2"], asked[32, groups[3]]] == [1, 2, 3]
        assert (2, "orders") in asked


async def test_only_the_wanted_keys_are_described() -> None:
    async with opened(nodes=1) as (cluster, client):
        cluster.create_topic("orders", 1)
        topic = ConfigResource(TOPIC, "orders")
        found = await describe_configs(client, [topic], ["cleanup.policy", "no.such.key"])
        assert found.require() == {topic: {"cleanup.policy": "delete"}}


async def test_a_broker_that_is_not_there_costs_the_others_nothing() -> None:
    async with opened() as (cluster, client):
        brokers = [ConfigResource(BROKER, str(number)) for number in (1, 2, 9)]
        cluster.faults.on("DescribeConfigs", node=2).error("CLUSTER_AUTHORIZATION_FAILED")
        found = await describe_configs(client, brokers, ["offset.metadata.max.bytes"])
        assert list(found.values) == brokers[:1]
        assert str(found.errors[brokers[1]]).startswith(
            "configuration of broker 2: CLUSTER_AUTHORIZATION_FAILED"
        )
        assert isinstance(found.errors[brokers[2]], NoBrokersError)


async def test_a_failure_does_not_make_the_coordinator_of_a_group_unknown() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on("DescribeConfigs").disconnect()
        group, begun = ConfigResource(GROUP, groups[1]), now()
        found = await describe_configs(client, [group], retry=client.retry(timeout=10.0))
        assert group in found.require()
        assert len(cluster.history.of("FindCoordinator")) == 1
        assert now() - begun < 1
