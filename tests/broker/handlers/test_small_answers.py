"""Details of Kafka's responses that `tests/interop/test_parity.py` found; these tests need no Kafka."""

from __future__ import annotations

import uuid

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.metadata.features import SUPPORTED_FEATURES
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_response, encode_request
from tests.broker.batches import batch
from tests.broker.client import connect
from tests.broker.requests import commit_request, errors, fetch, partitions_of


async def test_bytes_after_a_request_are_ignored(client):
    """librdkafka sends three of them with a Metadata request for all topics."""
    frame = b"".join(encode_request(m.MetadataRequest(None), 13, 1, "x"))[4:]
    client.send_frame(frame + b"\x00\x00\x00")
    answer = decode_response(m.MetadataResponse, 13, await client.receive_frame())
    assert [broker.node_id for broker in answer.brokers] == [1]


async def test_a_topic_deleted_by_name_and_by_id_in_one_request(cluster, client):
    cluster.create_topic("t")
    state = m.DeleteTopicsRequest.DeleteTopicState
    both = [state("t"), state(None, cluster.topic("t").id), state("nothing")]
    first, second = (await client.ask(m.DeleteTopicsRequest(both))).responses
    assert (first.name, first.topic_id, first.error_code) == (
        "t",
        cluster.topic("t").id,
        ErrorCode.INVALID_REQUEST,
    )
    assert (second.name, second.error_code) == ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_a_partition_committed_twice_in_one_request(cluster, client):
    cluster.create_topic("t", 2)
    request = commit_request(cluster, 9, {0: 1})
    (topic,) = request.topics
    topic.partitions.append(type(topic.partitions[0])(0, 7))
    request.topics.append(type(topic)(name="t", partitions=[]))
    answer = await client.ask(request, 9)
    assert errors(answer) == [0, 0]
    assert len(answer.topics) == 1  # a topic without partitions is left out of the response
    ((_, committed),) = cluster.group("g").offsets.items()
    assert committed.offset == 7


@pytest.mark.parametrize(("version", "message"), [(3, "NONE"), (6, "")])
async def test_the_error_message_of_a_successful_find_coordinator(client, version, message):
    keys = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
    answer = await client.ask(m.FindCoordinatorRequest(**keys), version)
    (one,) = answer.coordinators or [answer]
    assert (one.node_id, one.error_message) == (1, message)


async def test_fetch_of_an_unknown_partition_and_with_an_invalid_isolation_level(cluster, client):
    cluster.create_topic("t")
    known, unknown = partitions_of(await client.ask(fetch(cluster, 0, 9, max_wait_ms=0))).values()
    assert (known.aborted_transactions, unknown.aborted_transactions) == (None, [])
    invalid = await client.ask(fetch(cluster, 0, isolation_level=7))
    assert invalid.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_metadata_of_a_topic_without_name_and_id(client):
    wanted = m.MetadataRequest.MetadataRequestTopic(uuid.UUID(int=0), None)
    answer = await client.ask(m.MetadataRequest([wanted]), 13)
    assert (answer.error_code, answer.brokers) == (ErrorCode.UNKNOWN_SERVER_ERROR, [])


async def test_features_with_minimum_level_0_are_hidden_in_version_3(client):
    """KAFKA-17011."""
    request = m.ApiVersionsRequest("x", "1")
    old, new = [await client.ask(request, version) for version in (3, 4)]
    assert [feature.name for feature in old.supported_features] == ["metadata.version"]
    assert {feature.name for feature in new.supported_features} == set(SUPPORTED_FEATURES)
    assert old.finalized_features == new.finalized_features


async def test_settings_of_a_node_can_be_reset_and_set(client):
    """`kafka-reassign-partitions` sets throttle rates, and resets them even if they are not set."""
    cls = m.IncrementalAlterConfigsRequest
    codes = []
    for operation, value in ((1, None), (0, "5")):
        config = cls.AlterableConfig("leader.replication.throttled.rate", operation, value)
        answer = await client.ask(cls([cls.AlterConfigsResource(4, "1", [config])]))
        codes.append(answer.responses[0].error_code)
    assert codes == [ErrorCode.NONE, ErrorCode.NONE]


async def test_not_leader_responses_contain_the_leader_and_its_rack():
    """KIP-951."""
    async with EmbeddedCluster(2, racks=["a", "b"]) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t", 1, 2)
        cluster.move_leader("t", 0, 2)
        data = m.ProduceRequest.PartitionProduceData(0, batch())
        topic = m.ProduceRequest.TopicProduceData(topic_id=cluster.topic("t").id, partition_data=[data])
        answer = await client.ask(m.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 13)
        assert [(node.node_id, node.rack) for node in answer.node_endpoints] == [(2, "b")]
