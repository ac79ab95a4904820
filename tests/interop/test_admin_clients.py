"""Admin clients of other libraries against the embedded cluster."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.interop.test_foreign_clients import (
    WAIT,
    aiokafka_produce,
    confluent_consume,
    confluent_produce,
    in_thread,
    kafka_python_consume,
    kafka_python_produce,
)

RECORDS = 300


# -- confluent-kafka ----------------------------------------------------------------------------------------------


def done(futures: dict[Any, Any]) -> list[Any]:
    """Return the results of an admin call for several resources."""
    return [future.result(WAIT) for future in futures.values()]


def confluent_topics(servers: str) -> dict[str, Any]:
    from confluent_kafka import KafkaError, KafkaException, TopicCollection
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": servers})
    done(admin.create_topics([NewTopic("orders", 4, 2, config={"retention.ms": "5000"})]))
    with pytest.raises(KafkaException) as raised:
        done(admin.create_topics([NewTopic("orders", 4)]))
    assert raised.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    done(admin.create_partitions([NewPartitions("orders", 6)]))
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    change = ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
    done(
        admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[change])]
        )
    )
    (settings,) = done(admin.describe_configs([resource]))
    (described,) = done(admin.describe_topics(TopicCollection(["orders"])))
    cluster = admin.describe_cluster().result(WAIT)
    return {
        "settings": {name: entry.value for name, entry in settings.items()},
        "partitions": {p.id: (p.leader.id, [n.id for n in p.replicas]) for p in described.partitions},
        "topic id": str(described.topic_id),
        "nodes": sorted(node.id for node in cluster.nodes),
        "topics": sorted(admin.list_topics(timeout=WAIT).topics),
    }


def confluent_groups(servers: str) -> dict[str, Any]:
    from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": servers})
    listed = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(WAIT)
    (described,) = done(admin.describe_consumer_groups(["readers"]))
    (before,) = done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("readers")]))
    offsets = [TopicPartition("orders", 0, 1)]
    done(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("readers", offsets)]))
    requested = ConsumerGroupTopicPartitions("readers", [TopicPartition("orders", 0)])
    (after,) = done(admin.list_consumer_group_offsets([requested]))
    (latest,) = done(admin.list_offsets({TopicPartition("orders", 0): OffsetSpec.latest()}))
    (deleted,) = done(admin.delete_records([TopicPartition("orders", 0, 2)]))
    (earliest,) = done(admin.list_offsets({TopicPartition("orders", 0): OffsetSpec.earliest()}))
    done(admin.delete_consumer_groups(["readers"]))
    done(admin.delete_topics(["orders"]))
    return {
        "listed": [group.group_id for group in listed.valid],
        "state": described.state,
        "before": sum(tp.offset for tp in before.topic_partitions),
        "after": [tp.offset for tp in after.topic_partitions],
        "latest": latest.offset,
        "low": deleted.low_watermark,
        "earliest": earliest.offset,
    }


async def test_confluent_administers_topics() -> None:
    async with EmbeddedCluster(nodes=3) as cluster:
        found = await in_thread(confluent_topics, cluster.bootstrap_servers)
        partitions = cluster.topic("orders").partitions
        assert found["partitions"] == {p.partition: (p.leader, list(p.replicas)) for p in partitions}
        assert len(partitions) == 6
        assert (found["settings"]["retention.ms"], found["settings"]["max.message.bytes"]) == (
            "5000",
            "2000000",
        )
        assert (found["nodes"], found["topics"]) == ([1, 2, 3], ["orders"])


async def test_confluent_administers_groups() -> None:
    from confluent_kafka import ConsumerGroupState

    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("orders", 4)
        await in_thread(confluent_produce, cluster.bootstrap_servers, {})
        await in_thread(confluent_consume, cluster.bootstrap_servers, "readers", RECORDS)
        end = cluster.partition("orders", 0).log_end_offset
        assert await in_thread(confluent_groups, cluster.bootstrap_servers) == {
            "listed": ["readers"],
            "state": ConsumerGroupState.EMPTY,
            "before": RECORDS,
            "after": [1],
            "latest": end,
            "low": 2,
            "earliest": 2,
        }
        assert cluster.groups == []


# -- kafka-python -------------------------------------------------------------------------------------------------


def kafka_python_admin(servers: str) -> dict[str, Any]:
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.admin import NewPartitions, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=servers.split(","))
    try:
        admin.create_topics([NewTopic("made", 2, 3)])
        admin.create_partitions({"made": NewPartitions(3)})
        (made,) = admin.describe_topics(["made"])
        offsets = admin.list_group_offsets("readers")
        described = admin.describe_groups(["readers"])
        removed = admin.delete_records({TopicPartition("orders", 0): 1})
        deleted = admin.delete_groups(["readers"])
        admin.delete_topics(["made"])
        return {
            "partitions": len(made["partitions"]),
            "offsets": offsets,
            "described": str(described),
            "removed": str(removed),
            "deleted": str(deleted),
            "topics": sorted(admin.list_topics()),
        }
    finally:
        admin.close()


async def test_kafka_python_administers() -> None:
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("orders", 4)
        servers = cluster.bootstrap_servers
        await in_thread(kafka_python_produce, servers, {})
        await in_thread(kafka_python_consume, servers, "readers", RECORDS)
        found = await in_thread(kafka_python_admin, servers)
        assert found["partitions"] == 3
        assert "orders" in found["topics"]
        assert "made" not in found["topics"]
        assert "Empty" in found["described"]
        assert cluster.groups == []
        assert cluster.partition("orders", 0).log_start_offset == 1


# -- aiokafka -----------------------------------------------------------------------------------------------------


async def test_aiokafka_administers() -> None:
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    async with EmbeddedCluster(nodes=3) as cluster:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        await admin.start()
        try:
            await admin.create_topics([NewTopic("orders", 2, 2)])
            await admin.create_partitions({"orders": NewPartitions(4)})
            assert len(cluster.topic("orders").partitions) == 4
            await aiokafka_produce(cluster.bootstrap_servers)
            await admin.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, "orders", {"retention.ms": "77000"})]
            )
            assert cluster.topic("orders").configs["retention.ms"] == "77000"
            described = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "orders")])
            assert "77000" in str(described)
            await admin.delete_records({TopicPartition("orders", 1): _before(3)})
            assert cluster.partition("orders", 1).log_start_offset == 3
            assert await admin.list_topics() == ["orders"]
            assert {broker["node_id"] for broker in (await admin.describe_cluster())["brokers"]} == {1, 2, 3}
            await admin.delete_topics(["orders"])
            assert await admin.list_topics() == []
        finally:
            await admin.close()


def _before(offset: int) -> Any:
    from aiokafka.admin import RecordsToDelete

    return RecordsToDelete(before_offset=offset)
