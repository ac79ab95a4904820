"""Older brokers: with the API versions of Kafka 2.8 and 3.9 the same stories run; of others the error says what they lack."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import pytest

from asyncgroup import (
    Batch,
    ConsumerConfig,
    ConsumerGroup,
    ConsumeTransformProduce,
    Producer,
    ProducerConfig,
    TransactionOutput,
    UnsupportedVersionError,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.handlers import api_versions
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import API_BY_NAME, APIS
from tests.stories import membership
from tests.stories.environment import Environment
from tests.stories.virtual import VirtualEnvironment

KAFKA_2_8: Mapping[str, int] = {
    "Produce": 9, "Fetch": 12, "ListOffsets": 6, "Metadata": 11, "OffsetCommit": 8, "OffsetFetch": 7,
    "FindCoordinator": 3, "JoinGroup": 7, "Heartbeat": 4, "LeaveGroup": 4, "SyncGroup": 5, "DescribeGroups": 5,
    "ListGroups": 4, "SaslHandshake": 1, "ApiVersions": 3, "CreateTopics": 7, "DeleteTopics": 6, "DeleteRecords": 2,
    "InitProducerId": 4, "OffsetForLeaderEpoch": 4, "DescribeConfigs": 4, "SaslAuthenticate": 2,
    "CreatePartitions": 3, "DeleteGroups": 2, "OffsetDelete": 0, "DescribeCluster": 0,
    "AddPartitionsToTxn": 3, "AddOffsetsToTxn": 3, "EndTxn": 3, "TxnOffsetCommit": 3,
}  # fmt: skip
"""Latest API versions of Kafka 2.8 (its `common/message/*.json`); the oldest is 0 for each."""

KAFKA_3_9: Mapping[str, int] = {
    **KAFKA_2_8, "Produce": 11, "Fetch": 17, "ListOffsets": 9, "Metadata": 12, "OffsetCommit": 9, "OffsetFetch": 9,
    "FindCoordinator": 6, "JoinGroup": 9, "LeaveGroup": 5, "ListGroups": 5, "ApiVersions": 4, "InitProducerId": 5,
    "DescribeCluster": 1, "AddPartitionsToTxn": 5, "AddOffsetsToTxn": 4, "EndTxn": 4, "TxnOffsetCommit": 4,
    "ConsumerGroupHeartbeat": 0, "ConsumerGroupDescribe": 0, "DescribeTopicPartitions": 0,
}  # fmt: skip

KAFKA_2_4: Mapping[str, int] = {
    **KAFKA_2_8, "Produce": 8, "Fetch": 11, "ListOffsets": 5, "Metadata": 9, "OffsetFetch": 6, "JoinGroup": 6,
    "SyncGroup": 4, "InitProducerId": 2, "AddPartitionsToTxn": 1, "AddOffsetsToTxn": 1, "EndTxn": 1, "TxnOffsetCommit": 2,
}  # fmt: skip

KAFKA_2_0: Mapping[str, int] = {
    **KAFKA_2_4, "Produce": 6, "Fetch": 8, "ListOffsets": 3, "Metadata": 6, "OffsetCommit": 4, "OffsetFetch": 4,
    "FindCoordinator": 2, "JoinGroup": 3, "Heartbeat": 2, "LeaveGroup": 2, "SyncGroup": 2, "ApiVersions": 2,
    "InitProducerId": 1,
}  # fmt: skip
"""The versions of those APIs that matter here."""


STORIES = [
    (KAFKA_2_8, membership.two_joiners),
    (KAFKA_2_8, membership.graceful_leave),
    (KAFKA_3_9, membership.two_joiners),
    # a returning static leader learns that it is the leader since JoinGroup 9 (KIP-814)
    (KAFKA_3_9, membership.static_leader_restarts),
]


def offer(newest: Mapping[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the embedded broker offer versions up to these."""
    offered = [
        m.ApiVersionsResponse.ApiVersion(API_BY_NAME[name].key, 0, high) for name, high in newest.items()
    ]
    monkeypatch.setattr(api_versions, "version_ranges", lambda: copy.deepcopy(offered))


@pytest.mark.parametrize(("newest", "story"), STORIES)
async def test_story(
    newest: Mapping[str, int],
    story: Callable[[Environment], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer(newest, monkeypatch)
    async with VirtualEnvironment.made() as env:
        await story(env)
        spoken = {(one.api, one.version) for one in env.cluster.history if one.api != "ApiVersions"}
    assert {"JoinGroup", "Fetch", "OffsetCommit", "Produce"} <= {api for api, _ in spoken}
    assert {(api, version) for api, version in spoken if version > newest.get(api, -1)} == set()


def test_every_api_of_a_2_8_broker_has_a_version_in_common() -> None:
    for name, high in KAFKA_2_8.items():
        assert APIS[API_BY_NAME[name].key].versions.low <= high


async def consume(servers: str, **config: object) -> None:
    async with ConsumerGroup(servers, "g", ConsumerConfig(**config)) as group:  # type: ignore[arg-type]
        await anext(aiter(group.records("orders")))


async def produce(servers: str, *, acks: int) -> None:
    async with Producer(servers, ProducerConfig(compression_type="zstd", acks=acks)) as producer:
        await producer.send("orders", b"v" * 100, partition=0)


async def transform(servers: str) -> None:
    async def copied(batch: Batch, output: TransactionOutput) -> None:
        for record in batch:
            await output.enqueue("copies", record.value)

    async with Producer(servers) as producer:
        await producer.send("orders", b"v", partition=0)
    config = ConsumerConfig(auto_offset_reset="earliest", isolation_level="read_committed")
    async with ConsumerGroup(servers, "g", config) as group:
        await group.run("orders", ConsumeTransformProduce(copied))


LACKS = [
    (
        KAFKA_2_0,
        partial(consume, group_instance_id="a"),
        "group_instance_id needs Kafka 2.3: version 3 of JoinGroup",
    ),
    (
        KAFKA_2_0,
        partial(produce, acks=1),
        "compression_type='zstd' needs Kafka 2.1, but node 1 has Produce up to version 6",
    ),
    (
        KAFKA_2_0,
        partial(produce, acks=0),
        "compression_type='zstd' needs Kafka 2.1, but node 1 has Produce up to version 6",
    ),
    (
        KAFKA_2_4,
        transform,
        r"offsets of a group's member \(KIP-447\) needs Kafka 2.5: version 2 of TxnOffsetCommit",
    ),
    (
        KAFKA_3_9,
        partial(consume, group_protocol="consumer"),
        "0, this client needs 1 .Kafka 4.0.; use .*classic",
    ),
    (
        KAFKA_2_8,
        partial(consume, group_protocol="consumer"),
        "not offer it.*group_protocol='consumer' needs Kafka 4.0",
    ),
]


@pytest.mark.parametrize(
    ("newest", "use", "message"),
    LACKS,
    ids=["static member", "zstd", "zstd without acks", "KIP-447", "KIP-848 in 3.9", "KIP-848 in 2.8"],
)
async def test_what_a_broker_lacks_is_named_as_the_user_set_it(
    newest: Mapping[str, int],
    use: Callable[[str], Awaitable[None]],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer(newest, monkeypatch)
    async with EmbeddedCluster(transaction_version=0, group_version=0) as cluster:
        cluster.create_topic("orders", 1)
        cluster.create_topic("copies", 1)
        with pytest.raises(UnsupportedVersionError, match=message) as caught:
            await use(cluster.bootstrap_servers)
        assert not caught.value.may_be_written
        assert "zstd" not in message or not list(cluster.records("orders")), "it was not sent"
