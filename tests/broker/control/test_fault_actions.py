"""The actions of faults, and the errors of tests with unused faults."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster, UnusedFaults
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import Disconnected, connect
from tests.broker.internals import node_of
from tests.broker.requests import fetch, join, now, partitions_of, produce, put

BEAT = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
USUAL = ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_delay():
    async with EmbeddedCluster() as cluster, connect(cluster) as client, connect(cluster) as other:
        cluster.faults.on("Heartbeat").delay(2.5)
        slow = client.send(BEAT)
        fast = await other.ask(BEAT)
        assert (now(), fast.error_code) == (0.0, USUAL)
        assert (await client.receive(BEAT, *slow)).error_code == USUAL
        assert now() == 2.5


async def test_a_delay_and_an_error_together(cluster, client):
    cluster.faults.on("Heartbeat").delay(1.0).error(ErrorCode.NOT_COORDINATOR)
    assert (await client.ask(BEAT)).error_code == ErrorCode.NOT_COORDINATOR
    assert now() == 1.0


async def test_holding_a_request(cluster, client):
    cluster.create_topic("t")
    held = cluster.faults.on("Produce", times=2).hold()
    request = produce(cluster, batch(b"a"))
    sent = client.send(request)
    await held.wait_hit()
    await asyncio.sleep(100)
    assert cluster.records("t") == []  # not handled yet
    held.release()
    await client.receive(request, *sent)
    assert now() == 100.0
    await client.ask(request)  # the gate stays open
    assert held.hits == 2


async def test_a_held_join_does_not_hold_other_connections():
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


async def test_dropping_a_response(cluster, client):
    cluster.create_topic("t")
    cluster.faults.on("Produce").drop()
    client.send(produce(cluster, batch(b"a")))
    client.send(BEAT)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.receive_frame(), 1000)
    assert len(cluster.records("t")) == 1  # handled, but without a response
    assert [exchange.api for exchange in cluster.history] == ["Produce"]


@pytest.mark.parametrize(("when", "stored"), [("before", 0), ("after", 1), ("mid-frame", 1)])
async def test_disconnecting(cluster, client, when, stored):
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


@pytest.mark.parametrize("wrong", [0.2, -1, 2**31, True])
async def test_a_throttle_time_is_whole_milliseconds(cluster, wrong):
    with pytest.raises(ConfigError, match="milliseconds"):
        cluster.faults.on("Heartbeat").throttle(wrong)


async def test_held_requests_do_not_outlive_the_cluster(cluster):
    async with connect(cluster) as client:
        held = cluster.faults.on("Heartbeat").hold()
        client.send(BEAT)
        await held.wait_hit()
    await asyncio.sleep(1)
    assert node_of(cluster, 1).listener.connections == set()


async def test_an_error_fault_with_acks_0_closes_the_connection(cluster, client):
    cluster.create_topic("t")
    cluster.faults.on("Produce").error(ErrorCode.NOT_ENOUGH_REPLICAS)
    client.send(produce(cluster, batch(b"a"), acks=0))
    assert await client.disconnected() == b""
    assert cluster.records("t") == []


async def test_an_error_fault_is_sent_in_a_fetch_session(cluster, client):
    cluster.create_topic("t")
    first = await client.ask(fetch(cluster, 0, session_epoch=0, max_wait_ms=0))
    cluster.faults.on("Fetch", topic="t").error(ErrorCode.KAFKA_STORAGE_ERROR)
    session = {"session_id": first.session_id}
    second = await client.ask(fetch(cluster, session_epoch=1, max_wait_ms=60_000, **session))
    assert partitions_of(second)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    third = await client.ask(fetch(cluster, session_epoch=2, max_wait_ms=0, **session))
    assert partitions_of(third)[0].error_code == 0


async def test_each_fault_counts_nth_for_itself(cluster, client):
    cluster.faults.on("Heartbeat").error(ErrorCode.NOT_COORDINATOR)
    cluster.faults.on("Heartbeat", nth=2).error(ErrorCode.REBALANCE_IN_PROGRESS)
    errors = [(await client.ask(BEAT)).error_code for _ in range(3)]
    assert errors == [ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS, USUAL]


async def test_a_where_predicate_sees_the_request(cluster, client):
    cluster.faults.on("Heartbeat", where=lambda beat: beat.generation_id == 2).error("FENCED_INSTANCE_ID")
    second = m.HeartbeatRequest(group_id="g", generation_id=2, member_id="m")
    errors = [(await client.ask(beat)).error_code for beat in (BEAT, second, second)]
    assert errors == [USUAL, ErrorCode.FENCED_INSTANCE_ID, USUAL]


@pytest.mark.parametrize(
    "make",
    [
        lambda faults: faults.on(nth=0),
        lambda faults: faults.on(times=0),
        lambda faults: faults.on().error(12345),
        lambda faults: faults.on().error("NO_SUCH_ERROR"),
        lambda faults: faults.on().delay(-1),
        lambda faults: faults.on().disconnect("midway"),
    ],
)
async def test_invalid_faults(cluster, make):
    with pytest.raises(ConfigError):
        make(cluster.faults)
    cluster.faults.clear()


async def test_an_action_among_the_arguments_that_select_requests(cluster):
    with pytest.raises(
        ConfigError,
        match=r"disconnect='after' is not allowed: it is a method of the fault: on\(…\)\.disconnect\('after'\)",
    ):
        cluster.faults.on("Fetch", disconnect="after")
    with pytest.raises(ConfigError, match=r"on\(…\)\.hold\(\)$"):
        cluster.faults.on("Fetch", hold=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'topick'"):
        cluster.faults.on("Fetch", topick="t")
    assert not cluster.faults


# -- mutate, answer, observe, slow_node ----------------------------------------------------------------------


async def test_mutating_a_response():
    def in_place(response) -> None:
        response.brokers.pop()

    def another(response):
        return m.MetadataResponse(cluster_id="elsewhere", brokers=response.brokers)

    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster) as client:
        cluster.faults.on("Metadata").mutate(in_place).mutate(another)
        answer = await client.ask(m.MetadataRequest())
        assert ([broker.node_id for broker in answer.brokers], answer.cluster_id) == ([1], "elsewhere")
        assert cluster.history[0].response == answer
        assert len((await client.ask(m.MetadataRequest())).brokers) == 2


async def test_mutating_a_response_changes_only_that_response():
    """Not the next response, another cluster's response, the cluster's state, or a handler's shared response."""

    def drop_fetch(response) -> None:
        response.api_keys[:] = [one for one in response.api_keys if one.api_key != m.FetchRequest.API_KEY]
        response.api_keys[0].max_version = 3

    def lose_replicas(response) -> None:
        response.topics[0].partitions[0].replica_nodes.clear()

    made = m.HeartbeatResponse()

    def fence(response) -> None:
        response.error_code = ErrorCode.FENCED_INSTANCE_ID

    async with EmbeddedCluster() as cluster, EmbeddedCluster() as other:
        async with connect(cluster) as client, connect(other) as stranger:
            before = await stranger.ask(m.ApiVersionsRequest(), 2)
            cluster.faults.on("ApiVersions").mutate(drop_fetch)
            changed = await client.ask(m.ApiVersionsRequest(), 2)
            assert len(changed.api_keys) == len(before.api_keys) - 1
            assert (await stranger.ask(m.ApiVersionsRequest(), 2)) == before
            assert (await client.ask(m.ApiVersionsRequest(), 2)) == before
            cluster.history[-1].response.api_keys.clear()
            assert (await client.ask(m.ApiVersionsRequest(), 2)) == before

            cluster.create_topic("t")
            cluster.faults.on("Metadata").mutate(lose_replicas)
            await client.ask(m.MetadataRequest(topics=None))
            assert cluster.partition("t", 0).replicas == (1,)
            (topic,) = (await client.ask(m.MetadataRequest(topics=None))).topics
            assert topic.partitions[0].replica_nodes == [1]

            cluster.faults.on("Heartbeat").answer(lambda _beat: made).mutate(fence).throttle(7)
            assert (await client.ask(BEAT)).error_code == ErrorCode.FENCED_INSTANCE_ID
            assert (made.error_code, made.throttle_time_ms) == (0, 0)


async def test_mutating_the_response_of_a_parked_request(cluster, client):
    cluster.create_topic("t")

    def move(response) -> None:
        response.responses[0].partitions[0].high_watermark = 99

    cluster.faults.on("Fetch").mutate(move)
    answer = await client.ask(fetch(cluster, 0, max_wait_ms=500))
    assert (partitions_of(answer)[0].high_watermark, now()) == (99, 0.5)


async def test_answering_instead_of_the_broker(cluster, client):
    cluster.create_topic("t")
    cluster.faults.on("Heartbeat").answer(lambda beat: m.HeartbeatResponse(error_code=len(beat.group_id)))
    assert (await client.ask(BEAT)).error_code == 1
    assert (await client.ask(BEAT)).error_code == USUAL


async def test_observers_do_not_stop_other_faults():
    seen = []
    async with EmbeddedCluster(history_limit=0) as cluster, connect(cluster) as client:
        watch = cluster.faults.on("Heartbeat", times=None).observe(seen.append)
        cluster.faults.on("Heartbeat", nth=2).error(ErrorCode.NOT_COORDINATOR)
        for _ in range(3):
            await client.ask(BEAT)
        assert watch.hits == 3
        assert [exchange.request for exchange in seen] == [BEAT] * 3
        assert [exchange.errors for exchange in seen] == [[USUAL], [ErrorCode.NOT_COORDINATOR], [USUAL]]


async def test_a_slow_node():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as slow, connect(cluster, 2) as other:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        cluster.slow_node(1, 0.25)
        cluster.faults.on("Metadata", node=1).delay(1.0)
        sent = slow.send(BEAT), slow.send(m.MetadataRequest())
        await other.ask(m.MetadataRequest())
        assert now() == 0.0
        await slow.receive(BEAT, *sent[0])
        assert now() == 0.25
        await slow.receive(m.MetadataRequest(), *sent[1])
        assert now() == 1.5
        await slow.ask(fetch(cluster, 0, max_wait_ms=500))
        assert now() == 2.25
        slow.send(BEAT)  # in progress when the node stops
        await asyncio.sleep(0.1)
        await cluster.stop_node(1)
        await cluster.start_node(1)
        async with connect(cluster, 1) as again:
            await again.ask(BEAT)
            assert now() == 2.6
            cluster.slow_node(1, 0)
            await again.ask(BEAT)
            assert now() == 2.6
        with pytest.raises(ConfigError, match="seconds"):
            cluster.slow_node(1, -1)
        with pytest.raises(UsageError, match="no node 3"):
            cluster.slow_node(3, 1)


# -- errors of the test itself -----------------------------------------------------------------------------------


async def test_a_fault_that_was_never_hit_fails_the_exit():
    cluster = EmbeddedCluster()
    with pytest.raises(UnusedFaults, match="Fault on Fetch topic='t' nth=1") as caught:
        async with cluster, connect(cluster) as client:
            cluster.faults.on("Fetch", topic="t").error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            cluster.faults.on("Heartbeat", nth=2)
            cluster.faults.on("Produce").optional().drop()
            cluster.faults.on("Metadata").drop().cancel()
            await client.ask(BEAT)
    assert len(caught.value.faults) == 2
    assert isinstance(caught.value, AssertionError)
    assert not any(node.running for node in cluster.nodes.values())


async def test_a_propagating_exception_is_not_masked():
    with pytest.raises(KeyError, match="own"):
        async with EmbeddedCluster() as cluster:
            cluster.faults.on("Fetch").drop()
            raise KeyError("own")


async def test_cleared_faults_need_not_be_hit(cluster):
    cluster.faults.on("Fetch").drop()
    cluster.faults.clear()


@pytest.mark.parametrize("kind", ["observe", "mutate", "answer"])
async def test_assertions_in_fault_functions_fail_the_test(kind):
    def look(_) -> None:
        pytest.fail("this cannot be right")

    with pytest.raises(pytest.fail.Exception, match="this cannot be right"):
        async with EmbeddedCluster() as cluster, connect(cluster) as client:
            getattr(cluster.faults.on("Heartbeat"), kind)(look)
            answer = await client.ask(BEAT)
            assert answer.error_code == (USUAL if kind == "observe" else ErrorCode.UNKNOWN_SERVER_ERROR)


async def test_a_where_function_that_raises_fails_the_test():
    with pytest.raises(AttributeError, match="no_such_field"):
        async with EmbeddedCluster() as cluster, connect(cluster) as client:
            cluster.faults.on("Heartbeat", where=lambda beat: beat.no_such_field).drop()
            assert (await client.ask(BEAT)).error_code == USUAL
