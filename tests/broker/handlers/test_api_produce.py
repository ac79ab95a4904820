"""Produce over the wire."""

from __future__ import annotations

import uuid

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.batches import batch, sequenced
from tests.broker.client import connect
from tests.broker.requests import produce, put


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [-1, 1])
async def test_produce(cluster, client, version, acks):
    cluster.create_topic("t", 2)
    for base in (0, 2):
        results = await put(client, cluster, batch(b"a", b"b"), batch(b"c", b"d"), acks=acks, version=version)
        assert [(r.index, r.error_code, r.base_offset) for r in results] == [(0, 0, base), (1, 0, base)]
        assert {r.log_append_time_ms for r in results} == {-1}
    assert [r.value for r in cluster.records("t", 1)] == [b"c", b"d"] * 2


async def test_produce_with_acks_0_gets_no_response(cluster, client):
    cluster.create_topic("t")
    client.send(produce(cluster, batch(b"a"), acks=0))
    metadata = m.MetadataRequest()
    await client.receive(metadata, *client.send(metadata))
    assert [r.value for r in cluster.records("t")] == [b"a"]


async def test_an_error_with_acks_0_closes_the_connection(cluster, client):
    cluster.create_topic("t")
    client.send(produce(cluster, batch(b"a"), batch(b"b"), acks=0))
    assert await client.disconnected() == b""
    assert [r.value for r in cluster.records("t")] == [b"a"]


@pytest.mark.parametrize(
    ("data", "version", "error"),
    [
        (None, 13, ErrorCode.INVALID_RECORD),
        (b"", 13, ErrorCode.INVALID_RECORD),
        (batch(b"a") + batch(b"b"), 13, ErrorCode.INVALID_RECORD),
        (batch(b"a")[:-1] + b"!", 13, ErrorCode.CORRUPT_MESSAGE),
        (batch(b"x" * 1_100_000), 13, ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"a", codec="zstd"), 6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(b"a", codec="zstd"), 7, ErrorCode.NONE),
        (
            batch(b"a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
            13,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (
            batch(b"a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)[:-1],
            13,
            ErrorCode.INVALID_RECORD,
        ),
        (batch(b"a")[:30], 13, ErrorCode.INVALID_RECORD),
    ],
    ids=[
        "null",
        "empty",
        "two",
        "crc",
        "large",
        "zstd6",
        "zstd7",
        "transactional",
        "transactional cut short",
        "half a header",
    ],
)
async def test_refused_batches(cluster, client, data, version, error):
    cluster.create_topic("t")
    (result,) = await put(client, cluster, data, version=version)
    assert result.error_code == error
    assert result.base_offset == (-1 if error else 0)
    assert result.error_message is None


async def test_produce_to_unknown_partitions(cluster, client):
    cluster.create_topic("t")
    request = produce(cluster, batch(b"a"), first=7)
    request.topic_data[0].topic_id = uuid.UUID(int=1)
    (result,) = (await client.ask(request)).responses[0].partition_responses
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    (result,) = await put(client, cluster, batch(b"a"), first=7)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = produce(cluster, batch(b"a"), version=9)
    request.topic_data[0].name = "nope"
    (result,) = (await client.ask(request, 9)).responses[0].partition_responses
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_only_the_leader_accepts_records_and_others_return_the_leader():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as one, connect(cluster, 2) as two:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 2)
        answer = await one.ask(produce(cluster, batch(b"a"), version=10), 10)
        (result,) = answer.responses[0].partition_responses
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (2, 1)
        assert [(e.node_id, e.port) for e in answer.node_endpoints] == [(2, cluster.nodes[2].port)]
        (result,) = await put(two, cluster, batch(b"a"))
        assert result.error_code == 0
        assert cluster.records("t")[0].leader_epoch == 1


async def test_invalid_acks(cluster, client):
    cluster.create_topic("t")
    (result,) = await put(client, cluster, batch(b"a"), acks=2)
    assert result.error_code == ErrorCode.INVALID_REQUIRED_ACKS


async def test_idempotence_over_the_wire(cluster, client):
    cluster.create_topic("t")
    (first,) = await put(client, cluster, sequenced(0, 3))
    (again,) = await put(client, cluster, sequenced(0, 3))
    (gap,) = await put(client, cluster, sequenced(5))
    assert (first.base_offset, again.base_offset, again.error_code) == (0, 0, 0)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(cluster.records("t")) == 3


async def test_max_message_bytes_of_a_topic(cluster, client):
    cluster.create_topic("t", configs={"max.message.bytes": "200"})
    (small,) = await put(client, cluster, batch(b"a"))
    (large,) = await put(client, cluster, batch(b"a" * 200))
    assert (small.error_code, large.error_code) == (0, ErrorCode.MESSAGE_TOO_LARGE)
