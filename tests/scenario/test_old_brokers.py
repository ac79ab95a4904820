"""Groups on brokers with the API versions of Kafka 2.8 and 3.9: the same stories run with the common versions."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping

import pytest

from asyncgroup.broker.handlers import api_versions
from asyncgroup.wire import messages as m
from asyncgroup.wire.protocol import API_BY_NAME, APIS
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


STORIES = [
    (KAFKA_2_8, membership.two_joiners),
    (KAFKA_2_8, membership.graceful_leave),
    (KAFKA_3_9, membership.two_joiners),
    # a returning static leader learns that it is the leader since JoinGroup 9 (KIP-814)
    (KAFKA_3_9, membership.static_leader_restarts),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("newest", "story"), STORIES)
async def test_story(
    newest: Mapping[str, int],
    story: Callable[[Environment], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered = [
        m.ApiVersionsResponse.ApiVersion(API_BY_NAME[name].key, 0, high) for name, high in newest.items()
    ]
    monkeypatch.setattr(api_versions, "version_ranges", lambda: copy.deepcopy(offered))
    async with VirtualEnvironment.made() as env:
        await story(env)
        spoken = {(one.api, one.version) for one in env.cluster.history if one.api != "ApiVersions"}
    assert {"JoinGroup", "Fetch", "OffsetCommit", "Produce"} <= {api for api, _ in spoken}
    assert {(api, version) for api, version in spoken if version > newest.get(api, -1)} == set()


def test_every_api_of_a_2_8_broker_has_a_version_in_common() -> None:
    for name, high in KAFKA_2_8.items():
        assert APIS[API_BY_NAME[name].key].versions.low <= high
