"""Admin APIs over the wire: DescribeTopicPartitions, producers, transactions, elections, reassignments, log dirs."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.metadata.topics import NO_LEADER
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError
from asyncgroup.wire import messages as m
from tests.broker.batches import batch, sequenced
from tests.broker.client import Client, connect
from tests.broker.requests import produce, put
from tests.broker.transactional import add_partitions, transactional

TODAY = 1_700_000_000_000


# -- DescribeTopicPartitions -------------------------------------------------------------------------------------


def page(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None):
    request = m.DescribeTopicPartitionsRequest
    return request(
        [request.TopicRequest(name) for name in names], limit, request.Cursor(*cursor) if cursor else None
    )


async def read_page(client: Client, request):
    """Return the partitions by topic, the errors by topic, and the next cursor."""
    answer = await client.ask(request)
    found = {topic.name: [p.partition_index for p in topic.partitions] for topic in answer.topics}
    errors = {topic.name: topic.error_code for topic in answer.topics if topic.error_code}
    cursor = answer.next_cursor
    return found, errors, None if cursor is None else (cursor.topic_name, cursor.partition_index)


async def test_topics_page_by_page(cluster, client):
    for name, partitions in (("c", 1), ("a", 3), ("b", 2)):
        cluster.create_topic(name, partitions)
    assert await read_page(client, page()) == ({"a": [0, 1, 2], "b": [0, 1], "c": [0]}, {}, None)
    assert await read_page(client, page("b", "a", limit=0)) == ({"a": [0]}, {}, ("a", 1))
    seen, cursor = [], None
    while True:
        found, _, cursor = await read_page(client, page(limit=2, cursor=cursor))
        seen += [(name, index) for name, partitions in found.items() for index in partitions]
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
    assert await read_page(client, page(limit=3)) == ({"a": [0, 1, 2]}, {}, ("b", 0))
    assert await read_page(client, page("a", cursor=("a", 7))) == ({"a": []}, {}, None)
    assert await read_page(client, page(cursor=("aa", 0))) == ({"b": [0, 1], "c": [0]}, {}, None)
    for cursor in (("z", 0), ("a", -1)):
        _, errors, _ = await read_page(client, page("a", cursor=cursor))
        assert errors == {"a": ErrorCode.INVALID_REQUEST}
    found, errors, _ = await read_page(client, page("nope", "b@d", "c"))
    assert found == {"b@d": [], "c": [0], "nope": []}
    assert errors == {
        "b@d": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_a_partition_of_the_page():
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 1, 3)
        cluster.move_leader("t", 0, 2)
        await cluster.stop_node(3)
        async with connect(cluster) as client:
            (topic,) = (await client.ask(page("t"))).topics
            (partition,) = topic.partitions
            assert (topic.topic_id, topic.is_internal) == (cluster.topic("t").id, False)
            assert topic.topic_authorized_operations > 0
            assert (partition.leader_id, partition.leader_epoch) == (
                2,
                cluster.partition("t", 0).leader_epoch,
            )
            assert sorted(partition.replica_nodes) == [1, 2, 3]
            assert (sorted(partition.isr_nodes), partition.offline_replicas) == ([1, 2], [3])
            assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
            await client.ask(m.FindCoordinatorRequest(coordinator_keys=["g"]))
            (topic,) = (await client.ask(page("__consumer_offsets"))).topics
            assert (topic.is_internal, len(topic.partitions)) == (True, 50)


# -- producers and transactions ----------------------------------------------------------------------------------


async def begin(client: Client, cluster: EmbeddedCluster, name: str = "tx") -> ProducerIdAndEpoch:
    """Begin a transaction with one record in partition 0."""
    answer = await client.ask(m.InitProducerIdRequest(name, 60_000))
    producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
    data = transactional(b"a", producer_id=producer.id, epoch=producer.epoch)
    request = produce(cluster, data, version=12)
    request.transactional_id = name
    (topic,) = (await client.ask(request, 12)).responses
    assert topic.partition_responses[0].error_code == 0
    return producer


async def producers(client: Client, *partitions: int, topic: str = "t"):
    request = m.DescribeProducersRequest
    (answer,) = (await client.ask(request([request.TopicRequest(topic, list(partitions))]))).topics
    return answer.partitions


async def test_describe_producers():
    async with EmbeddedCluster(nodes=2, start_time=TODAY) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t", 2, 1)
        mine, other = sorted((0, 1), key=lambda index: cluster.leader("t", index))
        await put(client, cluster, sequenced(5, 3), first=mine)
        found, elsewhere, unknown = await producers(client, mine, other, 9)
        (one,) = found.active_producers
        assert (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp) == (7, 0, 7, 1000)
        assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, -1)
        assert elsewhere.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (unknown,) = await producers(client, 0, topic="nope")
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (bad,) = await producers(client, 0, topic="b@d")
        assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_describe_transactions():
    async with EmbeddedCluster(start_time=TODAY) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        await put(client, cluster, batch(b"before"))
        await asyncio.sleep(1)
        producer = await begin(client, cluster)
        (found,) = (await producers(client, 0))[0].active_producers
        assert (found.producer_id, found.current_txn_start_offset) == (producer.id, 1)

        asked = m.DescribeTransactionsRequest(["tx", "nope", ""])
        one, unknown, empty = (await client.ask(asked)).transaction_states
        assert (one.error_code, one.transaction_state, one.transaction_timeout_ms) == (0, "Ongoing", 60_000)
        assert (one.producer_id, one.producer_epoch) == producer
        assert one.transaction_start_time_ms == TODAY + 1000
        assert [(topic.topic, topic.partitions) for topic in one.topics] == [("t", [0])]
        assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert empty.error_code == ErrorCode.INVALID_REQUEST

        assert (await client.ask(m.EndTxnRequest("tx", *producer, True))).error_code == 0
        (found,) = (await producers(client, 0))[0].active_producers
        assert (found.current_txn_start_offset, found.coordinator_epoch) == (-1, 0)
        one, _, _ = (await client.ask(asked)).transaction_states
        assert (one.transaction_state, one.topics) == ("CompleteCommit", [])


async def test_list_transactions():
    async with EmbeddedCluster(start_time=TODAY) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        await begin(client, cluster, "one")
        await asyncio.sleep(5)
        two = await begin(client, cluster, "two")
        await client.ask(m.EndTxnRequest("two", *two, False))

        async def listed(*filters, version: int = 2) -> list[tuple[str, str]]:
            answer = await client.ask(m.ListTransactionsRequest(*filters), version)
            assert answer.error_code == 0
            return [(t.transactional_id, t.transaction_state) for t in answer.transaction_states]

        everything = [("one", "Ongoing"), ("two", "CompleteAbort")]
        for version in range(3):
            assert await listed(version=version) == everything
            assert await listed(["Ongoing", "Foo"], version=version) == everything[:1]
            assert await listed([], [two.id], version=version) == everything[1:]
        assert await listed([], [], 4000) == everything[:1]
        assert await listed([], [], 6000) == []
        assert await listed([], [], -1, "t.*") == everything[1:]
        assert await listed([], [], -1, "t") == []
        assert await listed([], [], -1, "") == everything
        answer = await client.ask(m.ListTransactionsRequest(["Ongoing", "Foo"]))
        assert answer.unknown_state_filters == ["Foo"]
        answer = await client.ask(m.ListTransactionsRequest([], [], -1, "t["))
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_transactions_are_described_by_their_coordinator_only():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as one, connect(cluster, 2) as two:
        (found,) = (await one.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]))).coordinators
        here, there = (one, two) if found.node_id == 1 else (two, one)
        assert (await here.ask(m.InitProducerIdRequest("tx", 60_000))).error_code == 0
        for client, error, names in ((here, 0, ["tx"]), (there, ErrorCode.NOT_COORDINATOR, [])):
            (state,) = (await client.ask(m.DescribeTransactionsRequest(["tx"]))).transaction_states
            assert state.error_code == error
            answer = await client.ask(m.ListTransactionsRequest())
            assert [t.transactional_id for t in answer.transaction_states] == names


async def test_an_empty_transaction_has_no_start_time():
    async with EmbeddedCluster(start_time=TODAY) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        answer = await client.ask(m.InitProducerIdRequest("tx", 60_000))
        producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        asked = m.DescribeTransactionsRequest(["tx"])
        (state,) = (await client.ask(asked)).transaction_states
        assert (state.transaction_state, state.transaction_start_time_ms) == ("Empty", -1)
        await client.ask(add_partitions(producer, 0), 3)
        (state,) = (await client.ask(asked)).transaction_states
        assert (state.transaction_state, state.transaction_start_time_ms) == ("Ongoing", TODAY)


# -- leaders and replicas ----------------------------------------------------------------------------------------


def elect(kind: int, *partitions: int, topic: str = "t"):
    wanted = [m.ElectLeadersRequest.TopicPartitions(topic, list(partitions))] if partitions else None
    return m.ElectLeadersRequest(kind, wanted, 1000)


def election_errors(answer) -> dict[int, int]:
    return {p.partition_id: p.error_code for t in answer.replica_election_results for p in t.partition_result}


async def test_elect_leaders():
    async with EmbeddedCluster(nodes=3) as cluster:
        for name in ("t", "other"):
            cluster.create_topic(name, 3, 2)
        async with connect(cluster, 1) as client:
            first = cluster.partition("t", 0).replicas[0]
            cluster.move_leader("t", 0, cluster.partition("t", 0).replicas[1])
            answer = await client.ask(elect(0, 0, 1, 9))
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert election_errors(answer) == {0: 0, 1: ErrorCode.ELECTION_NOT_NEEDED, 9: unknown}
            assert cluster.leader("t", 0) == first
            cluster.move_leader("t", 1, cluster.partition("t", 1).replicas[1])
            answer = await client.ask(elect(0))
            assert election_errors(answer) == {1: 0}
            assert {t.topic for t in answer.replica_election_results} == {"t", "other"}
            answer = await client.ask(elect(0, 0, topic="nope"), 0)
            assert election_errors(answer) == {0: unknown}
            answer = await client.ask(elect(2, 0))
            assert (answer.error_code, election_errors(answer)) == (42, {0: ErrorCode.INVALID_REQUEST})


async def test_elect_leaders_errors():
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 3, 2)
        partition = next(p for p in cluster.topic("t").partitions if set(p.replicas) == {2, 3})
        cluster.move_leader("t", partition.partition, partition.replicas[0])
        await cluster.stop_node(partition.replicas[0])
        async with connect(cluster, 1) as client:
            answer = await client.ask(elect(0, partition.partition))
            assert election_errors(answer) == {partition.partition: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
            answer = await client.ask(elect(1, partition.partition))
            assert election_errors(answer) == {partition.partition: ErrorCode.ELECTION_NOT_NEEDED}
            await cluster.stop_node(partition.replicas[1])
            assert cluster.leader("t", partition.partition) == NO_LEADER
            answer = await client.ask(elect(1, partition.partition))
            assert election_errors(answer) == {partition.partition: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


async def test_cluster_metadata_topic_cannot_be_created(cluster, client):
    wanted = m.CreateTopicsRequest.CreatableTopic("__cluster_metadata", 1, 1)
    (result,) = (await client.ask(m.CreateTopicsRequest([wanted], 1000))).topics
    assert (result.error_code, result.topic_id) == (ErrorCode.INVALID_REQUEST, m.NO_UUID)
    with pytest.raises(UsageError, match="no topic '__cluster_metadata'"):
        cluster.topic("__cluster_metadata")


async def test_alter_partition_reassignments():
    async with EmbeddedCluster(nodes=3) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t", 1, 1)
        cluster.move_leader("t", 0, cluster.partition("t", 0).replicas[0])
        request = m.AlterPartitionReassignmentsRequest

        async def reassign(
            index: int, replicas: list[int] | None, topic: str = "t", allow: bool = True
        ) -> int:
            wanted = [request.ReassignableTopic(topic, [request.ReassignablePartition(index, replicas)])]
            answer = await client.ask(request(1000, allow, wanted))
            assert answer.error_code == 0
            return answer.responses[0].partitions[0].error_code

        assert await reassign(0, [3, 2]) == 0
        assert (cluster.partition("t", 0).replicas, cluster.leader("t", 0)) == ((3, 2), 3)
        assert await reassign(0, [2, 3]) == 0
        assert (cluster.partition("t", 0).replicas, cluster.leader("t", 0)) == ((2, 3), 3)
        for replicas, error in (
            (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
            ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ([7], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ):
            assert await reassign(0, replicas) == error
        assert await reassign(0, [1], allow=False) == ErrorCode.INVALID_REPLICATION_FACTOR
        assert await reassign(9, [1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await reassign(0, [1], topic="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = await client.ask(m.ListPartitionReassignmentsRequest(1000, None))
        assert (answer.error_code, answer.topics) == (0, [])


@pytest.mark.parametrize("version", range(1, 6))
async def test_log_dirs(version):
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t", 2, 1)
        cluster.create_topic("u", 1, 2)
        cluster.move_leader("u", 0, 1)
        data = batch(b"a")
        await put(client, cluster, data, topic="u")
        mine = next(p.partition for p in cluster.topic("t").partitions if p.replicas == (1,))
        request = m.DescribeLogDirsRequest

        async def sizes(topics) -> dict[tuple[str, int], int]:
            (result,) = (await client.ask(request(topics), version)).results
            assert (result.error_code, result.log_dir) == (0, "memory")
            found = {
                (t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions
            }
            assert len(result.topics) == len({name for name, _ in found})
            return found

        assert await sizes(None) == {("t", mine): 0, ("u", 0): len(data)}
        assert await sizes([request.DescribableLogDirTopic("u", [0, 9])]) == {("u", 0): len(data)}
        assert await sizes([request.DescribableLogDirTopic("nope", [0])]) == {}


async def test_the_log_dir_of_a_cluster_on_disk(tmp_path):
    async with EmbeddedCluster(data_dir=tmp_path) as cluster, connect(cluster) as client:
        (result,) = (await client.ask(m.DescribeLogDirsRequest(None))).results
        assert result.log_dir == str(tmp_path)
