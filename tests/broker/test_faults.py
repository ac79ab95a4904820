"""Faults: which request they hit, how often, and what they do to it."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.handlers import HANDLERS
from asyncgroup.broker.transactions.metadata import Producer
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.protocol import APIS
from tests.broker.batches import batch
from tests.broker.client import Disconnected, connect
from tests.broker.requests import commit_request, fetch, join, now, partitions_of, produce, put
from tests.broker.transactional import add_partitions, txn_offset_commit, write_markers

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]

BEAT = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
USUAL = ErrorCode.UNKNOWN_MEMBER_ID


# -- which requests ------------------------------------------------------------------------------------------


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


async def test_faults_of_other_apis_stay_away_and_one_without_api_hits_all():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        fetching = cluster.faults.on("Fetch").error(ErrorCode.UNKNOWN_SERVER_ERROR)
        anything = cluster.faults.on(times=2)  # without action it only counts
        await client.ask(BEAT)
        await client.ask(m.MetadataRequest())
        assert (fetching.hits, anything.hits) == (0, 2)
        assert cluster.faults.unused == [fetching]
        assert "Fetch" in repr(fetching)


async def test_the_first_fault_that_applies_acts_and_the_next_one_gets_the_next_request():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.faults.on("Heartbeat").error(ErrorCode.NOT_COORDINATOR)
        cluster.faults.on("Heartbeat").error(ErrorCode.REBALANCE_IN_PROGRESS)
        errors = [(await client.ask(BEAT)).error_code for _ in range(3)]
        assert errors == [ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS, USUAL]


async def test_topics_are_found_by_name_by_id_and_in_sessions():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
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
            again = fetch(
                cluster, version=version, session_id=first.session_id, session_epoch=1, max_wait_ms=0
            )
            assert await hits(again, version) == 1


async def test_groups_are_found_wherever_they_stand():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
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
        other = cluster.faults.on(group="g")
        await client.ask(m.FindCoordinatorRequest(key="g", key_type=1), 3)
        assert other.hits == 0


# -- what happens --------------------------------------------------------------------------------------------


async def test_an_error_for_one_topic_leaves_the_others_alone():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
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


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].name)
async def test_every_api_can_be_refused_in_every_version(key):
    """What `error` answers can be said by each version, and says the error."""
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        for version in range(HANDLERS[key].versions.low, HANDLERS[key].versions.high + 1):
            cluster.faults.on(HANDLERS[key].name).error(ErrorCode.UNKNOWN_SERVER_ERROR)
            request = sample(cluster, HANDLERS[key].name, version)
            answer = await client.ask(request, version)
            assert "error_code=-1" in repr(answer).replace("<ErrorCode.UNKNOWN_SERVER_ERROR: -1>", "-1"), (
                version
            )
        assert cluster.faults.unused == []


def sample(cluster: EmbeddedCluster, api: str, version: int):
    """A request that names something, so that there is a place for an error."""
    made = {
        "AddPartitionsToTxn": lambda: add_partitions(Producer(1, 0), 0, version=version),
        "CreatePartitions": lambda: m.CreatePartitionsRequest(
            [m.CreatePartitionsRequest.CreatePartitionsTopic("t", 9)]
        ),
        "CreateTopics": lambda: m.CreateTopicsRequest([m.CreateTopicsRequest.CreatableTopic("x", 1, 1)]),
        "DeleteGroups": lambda: m.DeleteGroupsRequest(["g"]),
        "DeleteTopics": lambda: m.DeleteTopicsRequest(
            **(
                {"topics": [m.DeleteTopicsRequest.DeleteTopicState("t")]}
                if version >= 6
                else {"topic_names": ["t"]}
            )
        ),
        "DescribeConfigs": lambda: m.DescribeConfigsRequest(
            [m.DescribeConfigsRequest.DescribeConfigsResource(2, "t")]
        ),
        "DescribeGroups": lambda: m.DescribeGroupsRequest(["g"]),
        "Fetch": lambda: fetch(cluster, 0, version=version),
        "FindCoordinator": lambda: m.FindCoordinatorRequest(
            **({"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"})
        ),
        "ListOffsets": lambda: m.ListOffsetsRequest(
            topics=[m.ListOffsetsRequest.ListOffsetsTopic("t", [m.ListOffsetsRequest.ListOffsetsPartition()])]
        ),
        "Metadata": lambda: m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="t")]),
        "OffsetCommit": lambda: commit_request(cluster, version, {0: 1}),
        "OffsetFetch": lambda: (
            m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup("g")])
            if version >= 8
            else m.OffsetFetchRequest("g", [m.OffsetFetchRequest.OffsetFetchRequestTopic("t", [0])])
        ),
        "OffsetForLeaderEpoch": lambda: m.OffsetForLeaderEpochRequest(
            topics=[
                m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    "t", [m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition()]
                )
            ]
        ),
        "Produce": lambda: produce(cluster, batch(), version=version),
        "InitProducerId": lambda: m.InitProducerIdRequest(transactional_id=None),
        "TxnOffsetCommit": lambda: txn_offset_commit(Producer(1, 0), {0: 1}),
        "WriteTxnMarkers": lambda: write_markers(Producer(1, 0), 0, commit=True),
    }
    request = APIS[next(key for key in HANDLERS if HANDLERS[key].name == api)].request
    return made.get(api, request)()


async def test_a_delay():
    async with EmbeddedCluster() as cluster, connect(cluster) as client, connect(cluster) as other:
        cluster.faults.on("Heartbeat").delay(2.5)
        slow = client.send(BEAT)
        fast = await other.ask(BEAT)
        assert (now(), fast.error_code) == (0.0, USUAL)
        assert (await client.receive(BEAT, *slow)).error_code == USUAL
        assert now() == 2.5


async def test_a_delay_and_an_error_together():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.faults.on("Heartbeat").delay(1.0).error(ErrorCode.NOT_COORDINATOR)
        assert (await client.ask(BEAT)).error_code == ErrorCode.NOT_COORDINATOR
        assert now() == 1.0


async def test_holding_a_request():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        held = cluster.faults.on("Produce", times=2).hold()
        request = produce(cluster, batch(b"a"))
        sent = client.send(request)
        await held.wait_hit()
        await asyncio.sleep(100)
        assert cluster.records("t") == []  # it was not handled yet
        held.release()
        await client.receive(request, *sent)
        assert now() == 100.0
        await client.ask(request)  # the gate stays open
        assert held.hits == 2


async def test_a_held_join_holds_nobody_else():
    async with (
        EmbeddedCluster() as cluster,
        connect(cluster, client_id="a") as a,
        connect(cluster, client_id="b") as b,
    ):
        held = cluster.faults.on("JoinGroup", client_id="a").hold()
        waiting = asyncio.ensure_future(join(a))
        assert (await join(b)).generation_id == 1
        held.release()
        await asyncio.sleep(0)
        waiting.cancel()


async def test_dropping_an_answer():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        cluster.faults.on("Produce").drop()
        client.send(produce(cluster, batch(b"a")))
        client.send(BEAT)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.receive_frame(), 1000)
        assert len(cluster.records("t")) == 1  # handled, but never answered
        assert [exchange.api for exchange in cluster.history] == ["Produce"]


@pytest.mark.parametrize(("when", "stored"), [("before", 0), ("after", 1), ("mid-frame", 1)])
async def test_disconnecting(when, stored):
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        cluster.faults.on("Produce").disconnect(when)
        client.send(produce(cluster, batch(b"a")))
        with pytest.raises(Disconnected) as caught:
            await client.receive_frame()
        assert bool(caught.value.args[0]) == (when == "mid-frame")
        assert len(cluster.records("t")) == stored
        async with connect(cluster) as again:
            assert (await put(again, cluster, batch(b"b")))[0].error_code == 0


async def test_throttling_mutes_the_connection():
    async with EmbeddedCluster() as cluster, connect(cluster) as client, connect(cluster) as other:
        cluster.faults.on("Heartbeat").throttle(1500)
        answer = await client.ask(BEAT)
        assert (answer.throttle_time_ms, answer.error_code, now()) == (1500, USUAL, 0.0)
        await other.ask(BEAT)
        assert now() == 0.0
        await client.ask(BEAT)
        assert now() == 1.5


async def test_held_requests_do_not_outlive_the_cluster():
    async with EmbeddedCluster() as cluster:
        async with connect(cluster) as client:
            held = cluster.faults.on("Heartbeat").hold()
            client.send(BEAT)
            await held.wait_hit()
        await asyncio.sleep(1)
        assert cluster.nodes[1].connections == set()


async def test_an_error_without_acknowledgement_hangs_up():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        cluster.faults.on("Produce").error(ErrorCode.NOT_ENOUGH_REPLICAS)
        client.send(produce(cluster, batch(b"a"), acks=0))
        assert await client.disconnected() == b""
        assert cluster.records("t") == []


async def test_topics_of_a_fetch_error_are_news_to_a_session():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        first = await client.ask(fetch(cluster, 0, session_epoch=0, max_wait_ms=0))
        cluster.faults.on("Fetch", topic="t").error(ErrorCode.KAFKA_STORAGE_ERROR)
        session = {"session_id": first.session_id}
        second = await client.ask(fetch(cluster, session_epoch=1, max_wait_ms=60_000, **session))
        assert partitions_of(second)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        third = await client.ask(fetch(cluster, session_epoch=2, max_wait_ms=0, **session))
        assert partitions_of(third)[0].error_code == 0
