"""Which requests faults hit and how often, and the error responses of every API."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.broker import EmbeddedCluster, Exchange, Faults
from asyncgroup.broker.control.injection import KafkaInjection
from asyncgroup.broker.control.message_fields import errors_in, topic_names_in
from asyncgroup.broker.handlers import HANDLERS
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.traffic.injection import Injector
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import connect
from tests.broker.requests import commit_request, fetch, now, produce
from tests.broker.samples import sample

BEAT = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
USUAL = ErrorCode.UNKNOWN_MEMBER_ID


# -- matching ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "hit"),
    [
        ({}, [0]),
        ({"nth": 2}, [1]),
        ({"times": 2}, [0, 1]),
        ({"nth": 2, "times": 2}, [1, 2]),
        ({"times": None}, [0, 1, 2, 3]),
        ({"client_id": "test"}, [0]),
        ({"client_id": "other"}, []),
        ({"node": 1}, [0]),
        ({"node": 2}, []),
        ({"group": "g"}, [0]),
        ({"group": "h"}, []),
        ({"topic": "t"}, []),
    ],
)
async def test_which_request_is_hit(options, hit):
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.move_coordinator("g", 1)
        fault = cluster.faults.on("Heartbeat", **options).error(ErrorCode.NOT_COORDINATOR)
        async with connect(cluster, 1) as client:
            errors = [(await client.ask(BEAT)).error_code for _ in range(4)]
        assert errors == [ErrorCode.NOT_COORDINATOR if i in hit else USUAL for i in range(4)]
        assert fault.hits == len(hit)
        assert cluster.faults.unused == ([] if hit else [fault])
        fault.optional()


async def test_a_fault_hits_its_api_and_one_without_api_hits_all(cluster, client):
    fetching = cluster.faults.on("Fetch").error(ErrorCode.UNKNOWN_SERVER_ERROR)
    anything = cluster.faults.on(times=2)  # without an action it only counts
    await client.ask(BEAT)
    await client.ask(m.MetadataRequest())
    assert (fetching.hits, anything.hits) == (0, 2)
    assert cluster.faults.unused == [fetching]
    assert "Fetch" in repr(fetching)
    fetching.cancel()
    assert cluster.faults.unused == []


async def test_the_first_matching_fault_acts_and_the_next_one_hits_the_next_request(cluster, client):
    cluster.faults.on("Heartbeat").error(ErrorCode.NOT_COORDINATOR)
    cluster.faults.on("Heartbeat").error(ErrorCode.REBALANCE_IN_PROGRESS)
    errors = [(await client.ask(BEAT)).error_code for _ in range(3)]
    assert errors == [ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS, USUAL]


async def test_topics_are_matched_by_name_by_id_and_in_sessions(cluster, client):
    cluster.create_topic("t")
    cluster.create_topic("u")

    async def hits(request, version) -> int:
        fault = cluster.faults.on(topic="t", times=None)
        await client.ask(request, version)
        cluster.faults.clear()
        return fault.hits

    assert await hits(produce(cluster, batch()), 13) == 1
    assert await hits(produce(cluster, batch(), version=9), 9) == 1
    assert await hits(produce(cluster, batch(), topic="u"), 13) == 0
    assert await hits(fetch(cluster, 0), 18) == 1
    assert await hits(fetch(cluster, 0, version=12), 12) == 1
    assert await hits(commit_request(cluster, 10, {0: 1}), 10) == 1
    assert await hits(m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="t")]), 12) == 1
    assert await hits(m.DeleteTopicsRequest(topic_names=["x"]), 5) == 0
    for version in (12, 18):
        first = await client.ask(fetch(cluster, 0, version=version, session_epoch=0), version)
        again = fetch(cluster, version=version, session_id=first.session_id, session_epoch=1, max_wait_ms=0)
        assert await hits(again, version) == 1


async def test_groups_are_matched_in_every_api(cluster, client):
    requests = [
        (m.FindCoordinatorRequest(key="g"), 3),
        (m.FindCoordinatorRequest(coordinator_keys=["x", "g"]), 4),
        (m.OffsetFetchRequest(group_id="g"), 7),
        (m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup("g")]), 8),
        (m.DescribeGroupsRequest(["g"]), 5),
        (m.DeleteGroupsRequest(["g"]), 2),
        (m.LeaveGroupRequest("g"), 5),
    ]
    for request, version in requests:
        fault = cluster.faults.on(group="g")
        await client.ask(request, version)
        assert fault.hits == 1, request
    other = cluster.faults.on(group="g").optional()
    await client.ask(m.FindCoordinatorRequest(key="g", key_type=1), 3)
    assert other.hits == 0


# -- errors --------------------------------------------------------------------------------------------------


async def test_an_error_for_one_topic_does_not_affect_others(cluster, client):
    for name in "tu":
        cluster.create_topic(name)
    cluster.faults.on("Produce", topic="t").error(ErrorCode.NOT_ENOUGH_REPLICAS)
    request = produce(cluster, batch(b"a"))
    request.topic_data += produce(cluster, batch(b"b"), topic="u").topic_data
    answer = await client.ask(request)
    assert [topic.partition_responses[0].error_code for topic in answer.responses] == [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        0,
    ]
    assert (len(cluster.records("t")), len(cluster.records("u"))) == (0, 1)

    cluster.faults.on("Fetch", topic="t").error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    request = fetch(cluster, 0, max_wait_ms=60_000, min_bytes=1000)
    request.topics += fetch(cluster, 0, topic="u").topics
    found = {topic.topic_id: topic.partitions[0] for topic in (await client.ask(request)).responses}
    assert found[cluster.topic("t").id].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(found[cluster.topic("u").id].records) > 0
    assert now() == 0.0

    cluster.faults.on("Metadata", topic="t").error(ErrorCode.LEADER_NOT_AVAILABLE)
    answer = await client.ask(
        m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=name) for name in "tu"])
    )
    assert {topic.name: topic.error_code for topic in answer.topics} == {"t": 5, "u": 0}

    cluster.faults.on("OffsetCommit", topic="t").error(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    answer = await client.ask(commit_request(cluster, 9, {0: 1}), 9)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


SPEECHLESS = {"DescribeLogDirs": 3}
"""APIs whose responses have no error field before this version."""

WITHOUT_TOPICS = {
    "AddOffsetsToTxn",
    "AlterClientQuotas",
    "AlterConfigs",
    "AlterReplicaLogDirs",
    "AlterUserScramCredentials",
    "ApiVersions",
    "ConsumerGroupDescribe",
    "CreateAcls",
    "DeleteAcls",
    "DeleteGroups",
    "DescribeAcls",
    "DescribeClientQuotas",
    "DescribeCluster",
    "DescribeConfigs",
    "DescribeGroups",
    "DescribeQuorum",
    "DescribeTransactions",
    "DescribeUserScramCredentials",
    "EndTxn",
    "FindCoordinator",
    "Heartbeat",
    "IncrementalAlterConfigs",
    "InitProducerId",
    "JoinGroup",
    "LeaveGroup",
    "ListConfigResources",
    "ListGroups",
    "ListTransactions",
    "SaslAuthenticate",
    "SaslHandshake",
    "SyncGroup",
    "UpdateFeatures",
}
"""APIs whose requests name no topics that a fault could be limited to."""


def versions(key: int) -> range:
    """Return the versions of the API with an error field."""
    low, high = HANDLERS[key].versions
    return range(max(low, SPEECHLESS.get(HANDLERS[key].name, 0)), high + 1)


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].name)
async def test_every_api_can_be_refused_in_every_version(cluster, client, key):
    """The response of `error` can be encoded in each version and contains the error."""
    cluster.create_topic("t")
    for version in versions(key):
        cluster.faults.on(HANDLERS[key].name).error(ErrorCode.UNKNOWN_SERVER_ERROR)
        request = sample(cluster, HANDLERS[key].name, version)
        answer = await client.ask(request, version)
        assert "error_code=-1" in repr(answer).replace("<ErrorCode.UNKNOWN_SERVER_ERROR: -1>", "-1"), version
    assert cluster.faults.unused == []


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].name)
async def test_every_api_with_topics_can_refuse_one_topic(cluster, client, key):
    """The response of `error` for one topic contains it in every version that names topics."""
    cluster.create_topic("t")
    cluster.create_topic("x")
    refused = 0
    for version in versions(key):
        request = sample(cluster, HANDLERS[key].name, version)
        named = topic_names_in(request, lambda topic_id: cluster.topic("t").name if topic_id.int else None)
        for topic in named:
            cluster.faults.on(HANDLERS[key].name, topic=topic).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            answer = await client.ask(request, version)
            assert ErrorCode.TOPIC_AUTHORIZATION_FAILED in errors_in(answer), (version, answer)
            refused += 1
    assert (refused == 0) == (HANDLERS[key].name in WITHOUT_TOPICS)


CONTEXT = RequestContext(0.0, 1, "test", "", "Heartbeat", 12, 4, 1)
KINDS = st.tuples(st.integers(1, 5), st.none() | st.integers(1, 4), st.booleans())


@given(st.lists(KINDS, max_size=5), st.integers(0, 12))
async def test_how_often_faults_hit(kinds: list[tuple[int, int | None, bool]], requests: int) -> None:
    """At most one fault acts on a request, the first that matches; observing ones see all their matches."""
    injector: Injector[KafkaInjection] = Injector()
    faults = Faults(injector, lambda *_: ())
    made = []
    for nth, times, disturbs in kinds:
        fault = faults.on("Heartbeat", nth=nth, times=times)
        made.append((fault.drop() if disturbs else fault, nth, times))
    for number in range(1, requests + 1):
        before = [fault.hits for fault, *_ in made]
        taken = injector.select(CONTEXT, BEAT, Exchange(CONTEXT, BEAT, 0))
        due = [
            fault._injection
            for (fault, nth, times), hits in zip(made, before, strict=True)
            if fault._injection.disturbs and nth <= number and (times is None or hits < times)
        ]
        assert taken is (due[0] if due else None)
        hit = [fault._injection for (fault, *_), hits in zip(made, before, strict=True) if fault.hits > hits]
        assert [one for one in hit if one.disturbs] == due[:1]
    for fault, nth, times in made:
        if not fault._injection.disturbs:
            possible = max(0, requests - nth + 1)
            assert fault.hits == (possible if times is None else min(times, possible))
    assert faults.unused == [fault for fault, *_ in made if fault.hits == 0]
