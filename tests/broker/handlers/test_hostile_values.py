"""Well-formed requests with odd values: each gets a response or a closed connection, without a server error.

Most of the single tests below are regressions found by `OddRequests`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from asyncgroup.broker import EmbeddedCluster, handlers
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UnsupportedVersionError
from asyncgroup.testing import run_virtual
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from asyncgroup.wire.codec import decode_response, encode_request
from tests.broker.batches import batch
from tests.broker.client import Client, Disconnected, connect, is_alive
from tests.broker.odd_requests import OddRequests
from tests.memory_use import memory_under
from tests.profiles import soak, thinned
from tests.wire.batches import with_valid_crc

OFTEN = [0, 1, 8, 9, 10, 11, 14, 19, 22, 24, 25, 26, 28]
"""APIs of groups, transactions and records, which depend on each other's state."""

KEYS = [*handlers.HANDLERS, *OFTEN * 2]
SEEDS = [*thinned(range(12)), *soak(range(100, 1500))]


async def ask_oddly(client: Client, odd: OddRequests) -> bool:
    """Send an odd request; return whether the connection is still usable."""
    key = odd.rng.choice(KEYS)
    versions = handlers.HANDLERS[key].versions
    version = odd.rng.randint(versions.low, versions.high)
    request = odd.request(APIS[key].request.NAME, version)
    client_id = odd.rng.choice(["test", "", None, "a\nb", "y" * 32_767])
    try:
        client.send_bytes(b"".join(encode_request(request, version, 1, client_id)))
        async with asyncio.timeout(odd.rng.choice([0.01, 1, 60])):
            answer = decode_response(APIS[key].response, version, await client.receive_frame())
    except UnsupportedVersionError:
        return True
    except (Disconnected, TimeoutError):
        return False
    odd.learn(answer)
    return True


async def ask_much(cluster: EmbeddedCluster, odd: OddRequests, times: int) -> None:
    while times:
        async with connect(cluster, odd.rng.choice([1, 2])) as client:
            goes_on = True
            while times and goes_on:
                goes_on = await ask_oddly(client, odd)
                times -= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_odd_requests_do_not_cause_server_errors(
    seed: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Three clients send one cluster 60 requests each; every other cluster is on disk and is restarted.

    The test fails on a logged error, which an exception in a handler or an unencodable response causes. The error code
    UNKNOWN_SERVER_ERROR itself is no failure: Kafka returns it in some cases, and so does the embedded broker.
    """
    odd = OddRequests(random.Random(seed))
    data = tmp_path / "data" if seed % 2 else None

    async def story() -> None:
        async with EmbeddedCluster(2, auto_create_topics=True, seed=seed, data_dir=data) as cluster:
            cluster.create_topic("name", 4)
            cluster.create_topic("compact", 2, configs={"cleanup.policy": "compact"})
            cluster.create_topic("times", configs={"message.timestamp.type": "LogAppendTime"})
            async with connect(cluster) as other, asyncio.TaskGroup() as asking:
                for _ in range(3):
                    asking.create_task(ask_much(cluster, odd, 60))
                assert await is_alive(other)
        if data is not None:
            async with EmbeddedCluster(2, data_dir=data) as cluster, connect(cluster) as other:
                assert (await other.ask(m.MetadataRequest(topics=None))).brokers

    with caplog.at_level(logging.ERROR, "asyncgroup"):
        run_virtual(story(), max_virtual_time=None)
    assert [record.getMessage()[:300] for record in caplog.records] == []


# -- regressions ----------------------------------------------------------------------------


async def test_error_messages_are_truncated(client: Client) -> None:
    long = "x" * 32_766
    resource = m.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=long)
    create = m.CreateTopicsRequest.CreatableTopic(name=long, num_partitions=1, replication_factor=1)
    (answer,) = (await client.ask(m.AlterConfigsRequest(resources=[resource]), 1)).responses
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert len(answer.error_message) <= 1001
    (refused,) = (await client.ask(m.CreateTopicsRequest(topics=[create]), 2)).topics
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    (group,) = (await client.ask(m.DescribeGroupsRequest(groups=[long]), 6)).groups
    assert (group.error_code, len(group.error_message)) == (ErrorCode.GROUP_ID_NOT_FOUND, 1001)


@pytest.mark.parametrize("name", ["²", "9" * 5000, "1e3"])
async def test_a_node_id_that_is_not_a_number(client: Client, name: str) -> None:
    resource = m.AlterConfigsRequest.AlterConfigsResource(resource_type=4, resource_name=name)
    (answer,) = (await client.ask(m.AlterConfigsRequest(resources=[resource]))).responses
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_offset_retention_beyond_the_largest_timestamp() -> None:
    """The expiration time would not fit into the record's int64."""
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part])
    request = m.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, retention_time_ms=2**63 - 1, topics=[topic]
    )
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        answer = await client.ask(request, 4)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        assert [one.offset for one in cluster.group("g").offsets.values()] == [5]


@pytest.mark.parametrize("version", [0, 4, 9])
async def test_member_ids_contain_a_truncated_client_id(version: int) -> None:
    protocols = [m.JoinGroupRequest.JoinGroupRequestProtocol("range", b"")]
    request = m.JoinGroupRequest(
        group_id="g", session_timeout_ms=6000, protocol_type="consumer", protocols=protocols
    )
    if version:
        request.rebalance_timeout_ms = 6000
    async with EmbeddedCluster() as cluster, connect(cluster, client_id="y" * 32_767) as client:
        answer = await client.ask(request, version)
        assert answer.error_code == (ErrorCode.NONE if version < 4 else ErrorCode.MEMBER_ID_REQUIRED)
        assert len(answer.member_id) == 1037


async def test_validate_only_creation_of_the_offsets_topic(client: Client) -> None:
    wanted = m.CreateTopicsRequest.CreatableTopic(
        name="__consumer_offsets", num_partitions=-1, replication_factor=-1
    )
    (answer,) = (await client.ask(m.CreateTopicsRequest(topics=[wanted], validate_only=True))).topics
    assert (answer.error_code, answer.num_partitions) == (ErrorCode.NONE, 50)
    assert not (await client.ask(m.MetadataRequest(topics=None))).topics


@pytest.mark.parametrize("codec", ["none", "gzip"])
async def test_a_batch_that_claims_two_billion_records(codec: str) -> None:
    """A list with one entry per claimed record would take gigabytes."""
    data = bytearray(batch(b"v", codec=codec))
    data[22] |= 8  # LogAppendTime, which is an error of each record
    struct.pack_into(">i", data, 23, 2**31 - 2)
    struct.pack_into(">i", data, 57, 2**31 - 1)
    part = m.ProduceRequest.PartitionProduceData(index=0, records=with_valid_crc(bytes(data)))
    topic = m.ProduceRequest.TopicProduceData(name="times", partition_data=[part])
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("times", configs={"message.timestamp.type": "LogAppendTime"})
        with memory_under(2_000_000):
            answer = await client.ask(m.ProduceRequest(acks=1, topic_data=[topic]), 12)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
        assert cluster.partition("times", 0).log_end_offset == 0


async def test_a_request_that_creates_too_many_partitions_in_total() -> None:
    """Each topic is within the limit of partitions created at once, but one request has many such topics."""
    many = [
        m.CreateTopicsRequest.CreatableTopic(name=f"t{n}", num_partitions=10_000, replication_factor=1)
        for n in range(1000)
    ]
    names = [m.MetadataRequest.MetadataRequestTopic(name=f"t{n}") for n in range(10_001)]
    more = [m.CreatePartitionsRequest.CreatePartitionsTopic(f"t{n}", 6000) for n in range(2)]
    async with EmbeddedCluster(auto_create_topics=True) as cluster, connect(cluster) as client:
        created = await client.ask(m.CreateTopicsRequest(topics=many))
        assert {topic.error_code for topic in created.topics} == {ErrorCode.POLICY_VIOLATION}
        found = await client.ask(m.MetadataRequest(topics=names))
        assert {topic.error_code for topic in found.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert not (await client.ask(m.MetadataRequest(topics=None))).topics
        cluster.create_topic("t0")
        cluster.create_topic("t1")
        refused = await client.ask(m.CreatePartitionsRequest(topics=more))
        assert all(topic.error_code for topic in refused.results)


async def test_a_pattern_with_catastrophic_backtracking(client: Client) -> None:
    made = await client.ask(
        m.InitProducerIdRequest(transactional_id="a" * 200 + "!", transaction_timeout_ms=1000)
    )
    assert made.error_code == ErrorCode.NONE
    listed = await client.ask(m.ListTransactionsRequest(transactional_id_pattern="(a+)+"))
    assert (listed.error_code, listed.transaction_states) == (ErrorCode.NONE, [])
    listed = await client.ask(m.ListTransactionsRequest(transactional_id_pattern="(a|b)*!"))
    assert len(listed.transaction_states) == 1
    listed = await client.ask(m.ListTransactionsRequest(transactional_id_pattern="(" * 3000))
    assert listed.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    ("start", "guess"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", r"a frame of 1195725856 bytes; .* \(this looks like HTTP\)"),
        (b"\x16\x03\x01\x02\x00\x01\x00", r"\(this looks like TLS: the listener is plain text\)"),
        (b"\x7f\xff\xff\xff", r"at most 104857600 are allowed$"),
    ],
)
async def test_other_protocols_are_named_in_the_error(
    start: bytes, guess: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        client.send_bytes(start)
        assert await client.disconnected() == b""
    (warning,) = (record for record in caplog.records if record.name == "asyncgroup.broker.net.connection")
    assert warning.levelname == "WARNING"
    assert warning.exc_info is None
    assert re.search(guess, warning.getMessage())


IDS = [UUID(int=number * (2**61 - 1) + 7) for number in range(1, 1501)]
"""UUIDs with the same hash: Python's hash of an int is its value modulo that prime."""


@pytest.mark.parametrize(
    "request_",
    [
        m.FetchRequest(
            max_wait_ms=0,
            session_epoch=0,
            topics=[
                m.FetchRequest.FetchTopic(topic_id=one, partitions=[m.FetchRequest.FetchPartition()])
                for one in IDS
            ],
        ),
        m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(None, one) for one in IDS]),
        m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(one, None) for one in IDS]),
    ],
    ids=lambda request: request.NAME,
)
async def test_colliding_topic_ids_do_not_slow_down_a_fetch(
    request_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a frame of a megabyte would block the loop for ten minutes."""
    compared, equal = itertools.count(), UUID.__eq__

    def counted(one: UUID, other: object) -> bool:
        next(compared)
        return equal(one, other)

    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        monkeypatch.setattr(UUID, "__eq__", counted)
        assert await client.ask(request_)
        assert next(compared) < 20 * len(IDS)
