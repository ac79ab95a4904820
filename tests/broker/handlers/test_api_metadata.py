"""ApiVersions, Metadata, FindCoordinator, topics and producer ids over the wire."""

from __future__ import annotations

import uuid

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.handlers import HANDLERS
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.client import connect
from tests.broker.internals import controller_of


def by_name(topics) -> dict:
    return {topic.name: topic for topic in topics}


def asked(*names: str) -> list[m.MetadataRequest.MetadataRequestTopic]:
    return [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]


# -- ApiVersions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
async def test_api_versions(client, version):
    request = m.ApiVersionsRequest()
    if version >= 3:
        request = m.ApiVersionsRequest(client_software_name="a-b.c", client_software_version="1.0.0-x")
    answer = await client.ask(request, version)
    assert answer.error_code == 0
    ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert ranges[0] == (0, 13)
    assert {key: ranges[key] for key in ranges if key} == {
        key: tuple(handler.versions) for key, handler in HANDLERS.items() if key
    }


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("a", ""), ("-a", "1"), ("a b", "1"), ("a", "1.")])
async def test_api_versions_refuses_an_invalid_software_name(client, name, version):
    request = m.ApiVersionsRequest(client_software_name=name, client_software_version=version)
    assert (await client.ask(request, 3)).error_code == ErrorCode.INVALID_REQUEST


# -- Metadata ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_all_topics(version):
    async with (
        EmbeddedCluster(nodes=3, advertised_host="kafka.example") as cluster,
        connect(cluster) as client,
    ):
        cluster.create_topic("one", 2)
        cluster.create_topic("two", 1, 1)
        answer = await client.ask(m.MetadataRequest(topics=[] if version == 0 else None), version)
        brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        assert brokers == {n: ("kafka.example", cluster.nodes[n].port) for n in (1, 2, 3)}
        topics = by_name(answer.topics)
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {"one": 2, "two": 1}
        for partition in topics["one"].partitions:
            assert partition.leader_id == cluster.leader("one", partition.partition_index)
            assert sorted(partition.replica_nodes) == sorted(partition.isr_nodes) == [1, 2, 3]
            assert partition.error_code == 0
            if version >= 7:
                assert partition.leader_epoch == 0
        assert len(topics["two"].partitions[0].replica_nodes) == 1
        if version >= 1:
            assert answer.controller_id == 1
        if version >= 10:
            assert topics["one"].topic_id == cluster.topic("one").id


async def test_metadata_of_no_topics_and_of_some(cluster, client):
    cluster.create_topic("one")
    cluster.create_topic("two")
    assert (await client.ask(m.MetadataRequest(topics=[]), 1)).topics == []
    answer = await client.ask(m.MetadataRequest(topics=asked("two", "two", "nope", "b@d")))
    errors = {topic.name: topic.error_code for topic in answer.topics}
    assert errors == {
        "two": 0,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "b@d": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert len(answer.topics) == 3


async def test_metadata_by_topic_id(cluster, client):
    cluster.create_topic("one")
    unknown = uuid.uuid4()
    topics = [
        m.MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)
        for topic_id in (cluster.topic("one").id, unknown)
    ]
    one, other = (await client.ask(m.MetadataRequest(topics=topics), 12)).topics
    assert (one.name, one.error_code) == ("one", 0)
    assert (other.name, other.topic_id, other.error_code) == (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID)


async def test_authorized_operations_are_returned_on_request(cluster, client):
    cluster.create_topic("one")
    plain = await client.ask(m.MetadataRequest(topics=asked("one")), 8)
    assert plain.topics[0].topic_authorized_operations == plain.cluster_authorized_operations == -(2**31)
    request = m.MetadataRequest(
        topics=asked("one"),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    reported = await client.ask(request, 8)
    assert reported.topics[0].topic_authorized_operations > 0
    assert reported.cluster_authorized_operations > 0


async def test_auto_topic_creation_needs_broker_and_client_consent():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        await client.ask(m.MetadataRequest(topics=asked("one")))
        assert "one" not in controller_of(cluster).topics
    async with (
        EmbeddedCluster(auto_create_topics=True, default_partitions=3) as cluster,
        connect(cluster) as client,
    ):
        request = m.MetadataRequest(topics=asked("one"), allow_auto_topic_creation=False)
        await client.ask(request)
        assert "one" not in controller_of(cluster).topics
        first = await client.ask(m.MetadataRequest(topics=asked("one")))
        assert first.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        second = await client.ask(m.MetadataRequest(topics=asked("one")))
        assert (second.topics[0].error_code, len(second.topics[0].partitions)) == (0, 3)


async def test_a_partition_without_live_replicas_has_no_leader():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("one", 2, 1)
        lost = next(p for p in range(2) if cluster.leader("one", p) == 2)
        await cluster.stop_node(2)
        answer = await client.ask(m.MetadataRequest(topics=asked("one")))
        assert [broker.node_id for broker in answer.brokers] == [1]
        partition = answer.topics[0].partitions[lost]
        assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert (partition.isr_nodes, partition.offline_replicas) == ([], [2])
        await cluster.start_node(2)
        partition = (await client.ask(m.MetadataRequest(topics=asked("one")))).topics[0].partitions[lost]
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 2, 2)


# -- FindCoordinator, DescribeCluster ------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator(version):
    async with EmbeddedCluster(nodes=3) as cluster, connect(cluster) as client:
        if version >= 4:
            answer = await client.ask(m.FindCoordinatorRequest(coordinator_keys=["a", "b"]), version)
            found = {each.key: each for each in answer.coordinators}
        else:
            found = {key: await client.ask(m.FindCoordinatorRequest(key=key), version) for key in ("a", "b")}
        for key, each in found.items():
            assert each.error_code == 0
            assert each.node_id == cluster.coordinator(key)
            assert each.port == cluster.nodes[each.node_id].port


@pytest.mark.parametrize("version", [0, 3, 4, 6])
async def test_find_coordinator_errors(cluster, client, version):
    if version == 0:
        request = m.FindCoordinatorRequest(key="s")
        controller_of(cluster).coordinators.offsets_leaders[:] = [-1] * 50
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    else:
        keys = {"coordinator_keys": ["s"]} if version >= 4 else {"key": "s"}
        request = m.FindCoordinatorRequest(key_type=2, **keys)
        error = ErrorCode.INVALID_REQUEST
    answer = await client.ask(request, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.port) == (error, -1, -1)


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(version):
    async with EmbeddedCluster(nodes=3) as cluster, connect(cluster) as client:
        await cluster.stop_node(3)
        answer = await client.ask(
            m.DescribeClusterRequest(include_cluster_authorized_operations=True), version
        )
        assert [broker.broker_id for broker in answer.brokers] == [1, 2]
        assert answer.cluster_id
        assert answer.cluster_authorized_operations > 0
        if version >= 1:
            answer = await client.ask(m.DescribeClusterRequest(endpoint_type=2), version)
            assert answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


# -- topics --------------------------------------------------------------------------------------------------


def creatable(name: str, partitions: int = -1, factor: int = -1, **fields):
    return m.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, **fields
    )


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics(version):
    async with EmbeddedCluster(nodes=3) as cluster, connect(cluster) as client:
        request = m.CreateTopicsRequest(
            topics=[creatable("one", 4, 2), creatable("one-one", 1, 1), creatable("b@d", 1, 1)]
        )
        one, _, bad = (await client.ask(request, version)).topics
        assert one.error_code == 0
        assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert [len(p.replicas) for p in cluster.topic("one").partitions] == [2] * 4
        if version >= 5:
            assert (one.num_partitions, one.replication_factor) == (4, 2)
            assert {config.name for config in one.configs} >= {"retention.ms", "cleanup.policy"}
        if version >= 7:
            assert one.topic_id == cluster.topic("one").id
        (again,) = (await client.ask(m.CreateTopicsRequest(topics=[creatable("one", 4, 2)]), version)).topics
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def assignment(*replicas: list[int]):
    return [
        m.CreateTopicsRequest.CreatableReplicaAssignment(index, nodes) for index, nodes in enumerate(replicas)
    ]


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (creatable("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (creatable("t", -2, 1), ErrorCode.INVALID_PARTITIONS),
        (creatable("t", 2**31 - 1, 1), ErrorCode.POLICY_VIOLATION),
        (creatable("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("t", 1, 1, assignments=assignment([1])), ErrorCode.INVALID_REQUEST),
        (creatable("t", assignments=assignment([1], [9])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("t", assignments=assignment([1, 1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("t", assignments=assignment([2, 1], [1])), ErrorCode.NONE),
        (creatable("t"), ErrorCode.NONE),
        (
            creatable("t", configs=[m.CreateTopicsRequest.CreatableTopicConfig("retention.ms", "x")]),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            creatable("t", configs=[m.CreateTopicsRequest.CreatableTopicConfig("retention.ms", None)]),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            creatable("t", configs=[m.CreateTopicsRequest.CreatableTopicConfig("retention.ms", "-1")]),
            ErrorCode.NONE,
        ),
    ],
)
async def test_create_topics_checks(topic, error):
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster) as client:
        for validate_only in (True, False):
            request = m.CreateTopicsRequest(topics=[topic], validate_only=validate_only)
            (result,) = (await client.ask(request)).topics
            assert result.error_code == error
            assert ("t" in controller_of(cluster).topics) == (not error and not validate_only)


async def test_duplicate_topics_in_create_topics(client):
    (result,) = (await client.ask(m.CreateTopicsRequest(topics=[creatable("t"), creatable("t")]))).topics
    assert result.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_topics(cluster, client, version):
    cluster.create_topic("one")
    if version >= 6:
        topics = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in ("one", "nope")]
        request = m.DeleteTopicsRequest(topics=topics)
    else:
        request = m.DeleteTopicsRequest(topic_names=["one", "nope"])
    results = by_name((await client.ask(request, version)).responses)
    assert results["one"].error_code == 0
    assert results["nope"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert controller_of(cluster).topics == {}


async def test_delete_topics_by_id(cluster, client):
    cluster.create_topic("one")
    state = m.DeleteTopicsRequest.DeleteTopicState
    topics = [
        state(topic_id=cluster.topic("one").id),
        state(topic_id=uuid.UUID(int=9)),
        state(),
        state(name="one", topic_id=uuid.UUID(int=9)),
    ]
    results = (await client.ask(m.DeleteTopicsRequest(topics=topics))).responses
    assert [result.error_code for result in results] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert results[0].name == "one"


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions(version):
    async with EmbeddedCluster(nodes=3) as cluster, connect(cluster) as client:
        cluster.create_topic("one", 2, 2)
        cluster.create_topic("two", 2)
        wanted = m.CreatePartitionsRequest.CreatePartitionsTopic
        request = m.CreatePartitionsRequest(
            topics=[wanted("one", 5, None), wanted("two", 2, None), wanted("nope", 3, None)]
        )
        results = by_name((await client.ask(request, version)).results)
        assert results["one"].error_code == 0
        assert results["two"].error_code == ErrorCode.INVALID_PARTITIONS
        assert results["nope"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [len(p.replicas) for p in cluster.topic("one").partitions] == [2] * 5


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_configs(cluster, client, version):
    cluster.create_topic("one", configs={"retention.ms": "5000"})
    resource = m.DescribeConfigsRequest.DescribeConfigsResource
    request = m.DescribeConfigsRequest(
        resources=[
            resource(2, "one", ["retention.ms", "cleanup.policy"]),
            resource(2, "one", None),
            resource(2, "nope", None),
            resource(2, "b@d", None),
        ]
    )
    some, everything, unknown, bad = (await client.ask(request, version)).results
    values = {config.name: (config.value, config.config_source) for config in some.configs}
    assert values == {"retention.ms": ("5000", 1), "cleanup.policy": ("delete", 5)}
    assert len(everything.configs) > 30
    assert all(config.synonyms == [] for config in everything.configs)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# -- producers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id(version):
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as one, connect(cluster, 2) as two:
        request = m.InitProducerIdRequest(transactional_id=None)
        answers = [await client.ask(request, version) for client in (one, two, one)]
        assert len({answer.producer_id for answer in answers}) == 3
        assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
        refused = await one.ask(m.InitProducerIdRequest(transactional_id=""), version)
        assert (refused.error_code, refused.producer_id) == (ErrorCode.INVALID_REQUEST, -1)
