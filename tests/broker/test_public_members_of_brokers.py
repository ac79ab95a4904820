"""The public members of the embedded cluster's objects: what a user may call, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from asyncgroup.broker import (
    ClusterOptions,
    EmbeddedCluster,
    Exchange,
    Fault,
    Faults,
    GroupView,
    History,
    ListenerSecurity,
    MemberView,
    NodeView,
    OffsetAndMetadata,
    PartitionView,
    TopicView,
    TransactionView,
)
from asyncgroup.model import TopicPartition
from asyncgroup.testing import KafkaServer
from asyncgroup.testing.kit.clusters import VirtualKafka
from asyncgroup.wire import messages as m
from tests.broker.client import connect
from tests.broker.requests import member
from tests.broker.transactional import init_producer

CLUSTER = {
    *("bootstrap_servers", "nodes", "stop_node", "start_node", "slow_node"),
    *(
        "topics",
        "topic",
        "partition",
        "create_topic",
        "create_partitions",
        "delete_topic",
        "on_unknown_topic",
    ),
    *("records", "produce", "apply_retention", "compact", "truncate", "hold_followers", "release_followers"),
    *("leader", "move_leader", "coordinator", "move_coordinator", "group", "groups", "commit"),
    *("transactions", "transaction_coordinator", "move_transaction_coordinator"),
    *("faults", "history"),
}

SERVER = {
    *("bootstrap_servers", "stop_node", "start_node", "slow_node"),
    *("create_topic", "create_partitions", "delete_topic", "records", "produce"),
    *("leader", "move_leader", "coordinator", "move_coordinator", "group", "groups", "commit"),
    *("faults", "history", "ignore_unused_faults", "call", "advance"),
}

FACADES = {
    "faults": {"on", "unused", "clear"},
    "history": {"of", "wait_for", "story", "clear"},
}

OF_THE_CLUSTER: dict[type, set[str]] = {
    Faults: FACADES["faults"] | {"strict"},
    Fault: {
        *(
            "error",
            "delay",
            "hold",
            "release",
            "answer",
            "mutate",
            "drop",
            "disconnect",
            "throttle",
            "observe",
        ),
        *("optional", "cancel", "hits", "wait_hit"),
    },
    History: FACADES["history"] | {"bytes", "dropped", "recording"},
    Exchange: {
        *("time", "node_id", "client_id", "api", "version", "request", "request_bytes"),
        *("response", "response_bytes", "answered_at", "errors", "duration", "line"),
    },
}

VIEWS: dict[type, set[str]] = {
    NodeView: {"id", "host", "advertised_host", "port", "rack", "running", "delay"},
    TopicView: {"name", "id", "configs", "partitions"},
    PartitionView: {
        *("topic", "partition", "leader", "leader_epoch", "replicas"),
        *("log_start_offset", "high_watermark", "last_stable_offset", "log_end_offset"),
    },
    GroupView: {
        *(
            "group_id",
            "coordinator",
            "state",
            "generation",
            "protocol",
            "leader",
            "members",
            "offsets",
            "assignment",
        ),
    },
    MemberView: {"member_id", "group_instance_id", "client_id", "client_host", "topics", "assignment"},
    TransactionView: {"transactional_id", "state", "producer_id", "producer_epoch", "timeout", "partitions"},
}

PLAIN = (str, int, float, bool, type(None))


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_cluster() -> None:
    assert public(EmbeddedCluster()) == CLUSTER
    assert public(VirtualKafka()) == CLUSTER | {"network", "advance"}


def test_the_server() -> None:
    server = KafkaServer()
    assert public(server) == SERVER
    for name, members in FACADES.items():
        assert public(getattr(server, name)) == members
    fault = {"hits", "wait_hit", "release", "cancel"}
    with KafkaServer() as running:
        assert public(running.faults.on("Fetch", optional=True)) == fault


@pytest.mark.real
async def test_the_clusters_faults_and_history() -> None:
    async with EmbeddedCluster() as cluster, connect(cluster, 1) as client:
        fault = cluster.faults.on("Metadata")
        await client.ask(m.MetadataRequest())
        for shown in (cluster.faults, fault, cluster.history, cluster.history[0]):
            assert public(shown) == OF_THE_CLUSTER[type(shown)]


def test_the_options() -> None:
    assert public(ClusterOptions()) == {field.name for field in dataclasses.fields(ClusterOptions)}
    fields = {field.name for field in dataclasses.fields(ListenerSecurity)}
    assert public(ListenerSecurity(users={"ann": "secret"})) == fields | {"sasl", "protocol"}


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_the_views(view: type) -> None:
    assert public(view) == VIEWS[view]


async def test_views_are_snapshots_of_plain_values() -> None:
    """They refer to nothing that the cluster works with, and keep their values when it changes."""
    async with EmbeddedCluster(nodes=2, racks=["a", None]) as cluster:
        cluster.create_topic("t", 2, configs={"retention.ms": "5000"})
        cluster.produce("t", b"a", partition=1)
        cluster.commit("billing", {("t", 0): 5})
        async with connect(cluster, cluster.transaction_coordinator("tx")) as client:
            producer = await init_producer(client)
        async with connect(cluster, cluster.coordinator("g")) as client:
            await member(client, 0, 1)
            node, topic, partition = cluster.nodes[1], cluster.topic("t"), cluster.partition("t", 1)
            views = [
                node,
                topic,
                partition,
                cluster.group("billing"),
                cluster.group("g"),
                cluster.transactions["tx"],
            ]
            for view in views:
                assert_plain(view)
        assert topic == cluster.topic(topic.id)
        assert topic.partitions[1] == partition
        assert (partition.log_start_offset, partition.high_watermark, partition.log_end_offset) == (0, 1, 1)
        assert cluster.transactions["tx"].producer_id == producer.id
        assert (node.rack, cluster.nodes[2].rack, cluster.topics) == ("a", None, ["__consumer_offsets", "t"])
        await cluster.stop_node(1)
        cluster.create_partitions("t", 3)
        cluster.produce("t", b"b", partition=1)
        assert (node.running, cluster.nodes[1].running) == (True, False)
        assert (len(topic.partitions), len(cluster.topic("t").partitions)) == (2, 3)
        assert (partition.log_end_offset, cluster.partition("t", 1).log_end_offset) == (1, 2)


def assert_plain(value: object) -> None:
    """Fail unless the value is a view, or made of plain values only."""
    if type(value) in (*VIEWS, OffsetAndMetadata, TopicPartition):
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        for field in fields:
            assert_plain(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for each in value:
            assert_plain(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            assert_plain(key)
            assert_plain(each)
    else:
        assert type(value) in PLAIN or type(value).__name__ == "UUID", value
