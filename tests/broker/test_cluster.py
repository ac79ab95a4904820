"""The cluster as a whole: construction and exit, stopping and starting nodes, moving leaders and coordinators."""

from __future__ import annotations

import asyncio
import dataclasses
import socket

import pytest

from asyncgroup.broker import ClusterOptions, EmbeddedCluster, Refused
from asyncgroup.broker.control.options import ClusterKeywords
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError, ClosedError, ConfigError, UsageError
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import connect
from tests.broker.internals import nodes_of
from tests.broker.requests import assigned, fetch, join, member, put, sync_request

# -- construction and exit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": 0},
        {"nodes": 2, "ports": [9092]},
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"group_consumer_migration_policy": "never"},
    ],
)
def test_invalid_cluster_options(options):
    with pytest.raises(ConfigError):
        EmbeddedCluster(**options)


async def test_addresses_of_ipv6_stand_in_brackets():
    async with EmbeddedCluster(nodes=2, ports=[9092, 9093], advertised_host="::1") as cluster:
        assert cluster.bootstrap_servers == "[::1]:9092,[::1]:9093"
        assert [node.advertised_host for node in cluster.nodes.values()] == ["::1", "::1"]


async def test_addresses():
    async with EmbeddedCluster(nodes=3, ports=[9092, 9093, 9094], advertised_host="kafka") as cluster:
        assert cluster.bootstrap_servers == "kafka:9092,kafka:9093,kafka:9094"
        assert [node.running for node in cluster.nodes.values()] == [True] * 3
    with pytest.raises(UsageError, match="entered only once"):
        async with cluster:
            pass


async def test_a_port_that_is_taken_leaves_nothing_running():
    async with EmbeddedCluster(ports=[9092]) as one:
        with pytest.raises(OSError, match="in use"):
            async with EmbeddedCluster(nodes=2, ports=[9093, 9092]):
                pass
        assert one.nodes[1].running
    async with EmbeddedCluster(ports=[9093]):
        pass


async def test_two_clusters_with_one_seed_are_the_same():
    ids = []
    for _ in range(2):
        async with EmbeddedCluster(seed=5) as cluster, connect(cluster) as client:
            cluster.create_topic("t")
            answer = await join(client)
            ids.append((cluster.topic("t").id, answer.member_id))
    assert ids[0] == ids[1]


async def test_exit_closes_everything():
    cluster = EmbeddedCluster(nodes=2)
    async with cluster:
        cluster.create_topic("t", 2)
        reader, writer = await asyncio.open_connection(cluster.nodes[1].host, cluster.nodes[1].port)
        client_fetch = fetch(cluster, 0, 1, max_wait_ms=600_000)
        from tests.broker.client import Client

        Client(reader, writer, "x").send(client_fetch)
        await asyncio.sleep(1)
    assert await reader.read() == b""
    writer.close()
    assert [node.listener.connections for node in nodes_of(cluster)] == [set(), set()]
    # the suite's own fixture checks for other leaks


@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_a_cancelled_exit_closes_everything():
    started = asyncio.Event()
    cluster = EmbeddedCluster(nodes=3)

    async def run() -> None:
        async with cluster:
            cluster.faults.on("Metadata").hold()
            started.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(run())
    await started.wait()
    async with connect(cluster) as client:
        client.send(m.MetadataRequest())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.disconnected() == b""
    assert not any(node.running for node in cluster.nodes.values())


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_a_task_cancelled_at_any_point_leaves_nothing_running(tmp_path, data):
    """Cancel a task that starts, stops and ends a cluster at each of its suspension points."""
    finished, turns = False, 0
    while not finished:
        cluster = EmbeddedCluster(nodes=3, data_dir=tmp_path if data else None)

        async def run(cluster: EmbeddedCluster = cluster) -> None:
            async with cluster:
                await cluster.stop_node(2)
                await cluster.start_node(2)

        task = asyncio.create_task(run())
        for _ in range(turns):
            await asyncio.sleep(0)
        finished = not task.cancel()
        await asyncio.wait([task])
        assert not any(node.running for node in cluster.nodes.values())
        for node in cluster.nodes.values():
            if node.port:
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(node.host, node.port)
        turns += 1
    assert turns > 8
    # the suite's own fixture checks for other leaks, such as an orphaned listener


@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_a_node_does_not_start_in_a_cluster_that_has_ended():
    async with EmbeddedCluster(nodes=2) as cluster:
        await cluster.stop_node(2)
        starting = asyncio.create_task(cluster.start_node(2))
        await asyncio.sleep(0)  # the start begins, and the cluster ends before it completes
    with pytest.raises(ClosedError):
        await starting
    with pytest.raises(ClosedError):
        await cluster.start_node(1)
    assert not any(node.running for node in cluster.nodes.values())


async def test_usage_errors():
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t", 2)
        await cluster.stop_node(2)
        for call in (
            lambda: cluster.topic("nope"),
            lambda: cluster.partition("t", 2),
            lambda: cluster.move_leader("t", 0, 2),
            lambda: cluster.move_leader("t", 0, 7),
            lambda: cluster.move_coordinator("g", 2),
            lambda: cluster.create_topic("t"),
            lambda: cluster.create_topic("b@d"),
            lambda: cluster.create_partitions("t", 2),
            lambda: cluster.faults.on("Fetsch"),
        ):
            with pytest.raises(AsyncGroupError):
                call()
        with pytest.raises(UsageError, match="no node 9"):
            await cluster.stop_node(9)
        with pytest.raises(Refused) as caught:
            cluster.create_topic("t")
        assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


# -- topics --------------------------------------------------------------------------------------------------


async def test_replicas_and_leaders_are_distributed():
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 6)
        leaders = [cluster.leader("t", p) for p in range(6)]
        assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
        assert all(len(set(p.replicas)) == 3 for p in cluster.topic("t").partitions)
        cluster.create_partitions("t", 9)
        assert sorted(cluster.leader("t", p) for p in range(9)) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


async def test_records_are_decoded(cluster, client):
    cluster.create_topic("t", 2)
    await put(client, cluster, batch(b"a"), batch(b"b", b"c"))
    assert [(r.partition, r.offset, r.value) for r in cluster.records("t")] == [
        (0, 0, b"a"),
        (1, 0, b"b"),
        (1, 1, b"c"),
    ]
    assert [r.value for r in cluster.records("t", 1)] == [b"b", b"c"]


async def test_deleting_a_topic_deletes_its_committed_offsets(cluster, client):
    cluster.create_topic("t")
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(0, 4)
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=[partition])
    await client.ask(m.OffsetCommitRequest(group_id="g", topics=[topic]), 9)
    assert len(cluster.group("g").offsets) == 1
    cluster.delete_topic("t")
    assert cluster.group("g").offsets == {}


# -- nodes ---------------------------------------------------------------------------------------------------


async def test_leaders_and_coordinators_move_to_live_nodes_and_stay_there():
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 6)
        before = {p: cluster.leader("t", p) for p in range(6)}
        groups = [f"group-{n}" for n in range(60)]
        assert {cluster.coordinator(g) for g in groups} == {1, 2, 3}
        await cluster.stop_node(2)
        assert {cluster.leader("t", p) for p in range(6)} == {1, 3}
        assert {cluster.coordinator(g) for g in groups} == {1, 3}
        for p, leader in before.items():
            moved = leader == 2
            assert cluster.partition("t", p).leader_epoch == int(moved)
            assert moved or cluster.leader("t", p) == leader
        await cluster.start_node(2)
        assert {cluster.leader("t", p) for p in range(6)} == {1, 3}
        await cluster.start_node(2)  # no effect on a running node
        for node in (1, 2, 3):
            await cluster.stop_node(node)
        await cluster.stop_node(3)
        assert {cluster.leader("t", p) for p in range(6)} == {-1}
        assert cluster.coordinator("g") == -1
        await cluster.start_node(3)
        assert {cluster.leader("t", p) for p in range(6)} == {3}
        assert {cluster.coordinator(g) for g in groups} == {3}


async def test_a_stopped_node_refuses_connections_and_comes_back_at_its_port():
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t")
        servers = cluster.bootstrap_servers
        async with connect(cluster, 2) as client:
            await cluster.stop_node(2)
            assert await client.disconnected() == b""
        with pytest.raises(ConnectionRefusedError):
            async with connect(cluster, 2):
                pass
        assert cluster.bootstrap_servers == servers
        await cluster.start_node(2)
        async with connect(cluster, 2) as client:
            assert len((await client.ask(m.MetadataRequest())).brokers) == 2


@pytest.mark.real
async def test_ports_stay_reserved_on_a_real_network():
    async with EmbeddedCluster() as cluster:
        port = cluster.nodes[1].port
        for _ in range(3):
            await cluster.stop_node(1)
            with pytest.raises(OSError), socket.socket() as thief:
                thief.bind(("127.0.0.1", port))
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            await cluster.start_node(1)
            async with connect(cluster) as client:
                assert (await client.ask(m.MetadataRequest())).brokers[0].port == port
        await cluster.stop_node(1)
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


async def test_records_survive_the_stop_of_their_leader():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 2) as survivor:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        async with connect(cluster, 1) as client:
            await put(client, cluster, batch(b"a"))
        await cluster.stop_node(1)
        assert cluster.leader("t", 0) == 2
        await put(survivor, cluster, batch(b"b"))
        assert [(r.value, r.leader_epoch) for r in cluster.records("t")] == [(b"a", 1), (b"b", 2)]


async def test_requests_parked_at_a_killed_node_get_no_response():
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        async with connect(cluster, 1) as client:
            client.send(fetch(cluster, 0, max_wait_ms=60_000))
            await asyncio.sleep(1)
            await cluster.stop_node(1)
            assert await client.disconnected() == b""
        assert cluster.history[0].answered_at is None


# -- coordinators --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["move", "stop"])
async def test_a_group_survives_its_coordinator(how):
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t", 2)
        old = cluster.coordinator("g")
        new = 3 - old
        async with connect(cluster, old) as client:
            joined = await member(client, 0, 1)
            partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(0, 4)
            topic = m.OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=[partition])
            commit = m.OffsetCommitRequest(
                group_id="g", generation_id_or_member_epoch=1, member_id=joined.member_id, topics=[topic]
            )
            await client.ask(commit, 9)
            before = cluster.group("g")
            if how == "move":
                cluster.move_coordinator("g", new)
                beat = m.HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
                assert (await client.ask(beat)).error_code == ErrorCode.NOT_COORDINATOR
            else:
                await cluster.stop_node(old)
        after = cluster.group("g")
        assert after.coordinator == new
        assert (after.state, after.generation, after.leader) == ("Stable", 1, joined.member_id)
        assert (after.members, after.offsets) == (before.members, before.offsets)
        async with connect(cluster, new) as client:
            beat = m.HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
            assert (await client.ask(beat)).error_code == 0
            assert bytes((await client.ask(sync_request(joined))).assignment) == assigned(0, 1)
        await asyncio.sleep(11)
        assert cluster.group("g").state == "Empty"  # no heartbeats reached the new coordinator


async def test_a_parked_join_gets_not_coordinator_after_a_move():
    async with EmbeddedCluster(nodes=2, initial_rebalance_delay=3.0) as cluster:
        old = cluster.coordinator("g")
        async with connect(cluster, old) as client:
            joining = asyncio.ensure_future(join(client))
            await asyncio.sleep(1)
            cluster.move_coordinator("g", 3 - old)
            assert (await joining).error_code == ErrorCode.NOT_COORDINATOR


# -- snapshots of groups -------------------------------------------------------------------------------------


async def test_groups_of_other_protocol_types_are_not_decoded(cluster, client):
    cluster.group("g")
    protocols = [m.JoinGroupRequest.JoinGroupRequestProtocol("default", b"\x00")]
    joined = await join(client, protocol_type="connect", protocols=protocols)
    view = cluster.group("g")
    assert view.members[joined.member_id].topics == ()
    assert view.members[joined.member_id].assignment == {}


async def test_undecodable_member_metadata_is_shown_as_empty(cluster, client):
    protocols = [m.JoinGroupRequest.JoinGroupRequestProtocol("range", b"\x00\x00rubbish")]
    joined = await join(client, protocols=protocols)
    await client.ask(sync_request(joined, plan={joined.member_id: b"\x00\x00rubbish"}))
    shown = cluster.group("g").members[joined.member_id]
    assert (shown.topics, shown.assignment) == ((), {})


async def test_a_new_leader_is_added_to_the_replicas():
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t", 1, 1)
        other = 3 - cluster.leader("t", 0)
        cluster.move_leader("t", 0, other)
        assert sorted(cluster.partition("t", 0).replicas) == [1, 2]
        assert cluster.leader("t", 0) == other


def test_the_options_are_one_value_whose_fields_are_the_keyword_arguments() -> None:
    options = [option.name for option in dataclasses.fields(ClusterOptions)]
    assert sorted(options) == sorted(["nodes", *ClusterKeywords.__annotations__])
    assert repr(EmbeddedCluster(ClusterOptions(nodes=2))) == repr(EmbeddedCluster(2))
    with pytest.raises(UsageError, match="seed: an option may not be given beside ClusterOptions"):
        EmbeddedCluster(ClusterOptions(), seed=1)
    with pytest.raises(ConfigError, match=r"sede=1 is not allowed: .*did you mean seed\?"):
        EmbeddedCluster(1, sede=1)
