"""Transactions over the wire, in every version of every API."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import iter_batches
from tests.broker.batches import append, batch, offsets
from tests.broker.client import Client, connect
from tests.broker.internals import log_of, node_of, transactions_of
from tests.broker.requests import (
    fetch,
    now,
    partitions_of,
    produce,
)
from tests.broker.transactional import (
    add_partitions,
    end_transaction,
    init_producer,
    partition_errors,
    transactional,
    txn_offset_commit,
    write_markers,
)

COMMITTED = 1


async def put(client, cluster, producer, *values, sequence=0, version=11, partition=0, name="tx"):
    """Produce one transactional batch; return the partition's result."""
    data = transactional(*values, producer_id=producer.id, epoch=producer.epoch, sequence=sequence)
    request = produce(cluster, data, version=version, first=partition)
    request.transactional_id = name
    (topic,) = (await client.ask(request, version)).responses
    return topic.partition_responses[0]


async def read(client, cluster, version=18, offset=0, isolation=COMMITTED, **fields):
    request = fetch(cluster, 0, version=version, offset=offset, isolation_level=isolation, **fields)
    if version < 7:
        request.session_id, request.session_epoch = 0, -1
    return partitions_of(await client.ask(request, version))[0]


async def latest(client: Client, isolation: int, timestamp: int = -1, version: int = 10) -> int:
    wanted = m.ListOffsetsRequest.ListOffsetsPartition(timestamp=timestamp)
    topics = [m.ListOffsetsRequest.ListOffsetsTopic("t", [wanted])]
    request = m.ListOffsetsRequest(-1, isolation, topics)
    return (await client.ask(request, version)).topics[0].partitions[0].offset


@pytest.mark.parametrize("version", range(5))
async def test_a_transaction_in_every_version(cluster, client, version):
    cluster.create_topic("t", 2)
    producer = await init_producer(client, version)
    asked = min(version, 3)
    answer = await client.ask(add_partitions(producer, 0, 1, version=asked), asked)
    assert partition_errors(answer) == [0, 0]
    assert (await put(client, cluster, producer, b"a", version=3 + version)).error_code == 0
    answer = await end_transaction(client, producer, version, commit=version % 2 == 0)
    assert (answer.error_code, answer.producer_id) == (0, -1)
    assert [cluster.partition("t", number).log_end_offset for number in (0, 1)] == [2, 1]
    found = await read(client, cluster, 4 + version)
    listed = [(one.producer_id, one.first_offset) for one in found.aborted_transactions]
    assert listed == ([(producer.id, 0)] if version % 2 else [])


async def test_an_open_transaction_limits_the_last_stable_offset():
    async with EmbeddedCluster(start_time=1000) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        producer = await init_producer(client)
        await client.ask(produce(cluster, batch(b"plain")))
        await client.ask(add_partitions(producer, 0), 3)
        assert (await put(client, cluster, producer, b"a", b"b")).base_offset == 1
        await client.ask(produce(cluster, batch(b"plain")))
        for version in range(4, 19):
            found = await read(client, cluster, version)
            assert offsets(found.records) == [(0, 0)]
            assert (found.high_watermark, found.last_stable_offset) == (4, 1)
            assert found.aborted_transactions == []
            found = await read(client, cluster, version, isolation=0)
            assert offsets(found.records) == [(0, 0), (1, 2), (3, 3)]
            assert (found.high_watermark, found.last_stable_offset) == (4, 1)
            assert found.aborted_transactions is None
        assert await latest(client, COMMITTED) == 1
        assert await latest(client, 0) == 4
        assert [await latest(client, COMMITTED, timestamp=stamp) for stamp in (1000, 1001)] == [0, -1]
        await end_transaction(client, producer)
        assert await latest(client, COMMITTED) == 5
        found = await read(client, cluster)
        assert offsets(found.records) == [(0, 0), (1, 2), (3, 3), (4, 4)]
        assert found.last_stable_offset == 5


async def test_a_marker_completes_a_parked_read_committed_fetch():
    async with (
        EmbeddedCluster(start_time=1000) as cluster,
        connect(cluster) as client,
        connect(cluster) as reader,
    ):
        cluster.create_topic("t")
        producer = await init_producer(client)
        await client.ask(add_partitions(producer, 0), 3)
        request = fetch(cluster, 0, isolation_level=COMMITTED, max_wait_ms=60_000)
        sent = reader.send(request)
        await put(client, cluster, producer, b"a")
        assert len(node_of(cluster, 1).purgatory) == 1  # the record alone does not complete the fetch
        await end_transaction(client, producer, commit=False)
        found = partitions_of(await reader.receive(request, *sent))[0]
        assert offsets(found.records) == [(0, 0), (1, 1)]
        assert [one.first_offset for one in found.aborted_transactions] == [0]
        assert now() == 0.0


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
        (12, ErrorCode.NONE),
        (13, ErrorCode.NONE),
    ],
)
async def test_a_partition_that_was_not_added(cluster, client, version, error):
    """From version 12 on Produce itself adds the partition (KIP-890)."""
    cluster.create_topic("t")
    producer = await init_producer(client)
    result = await put(client, cluster, producer, b"a", version=version)
    assert result.error_code == error
    ended = await end_transaction(client, producer, 5, commit=False)
    assert (ended.error_code, ended.producer_epoch) == (0, 1)
    assert cluster.partition("t", 0).log_end_offset == (0 if error else 2)


async def test_a_fenced_producer_can_do_nothing(cluster, client):
    cluster.create_topic("t", 2)
    old = await init_producer(client)
    await client.ask(add_partitions(old, 0), 3)
    assert (await put(client, cluster, old, b"a")).error_code == 0
    again = await client.ask(m.InitProducerIdRequest("tx", 60_000))
    assert again.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    new = await init_producer(client)
    assert (new.id, new.epoch) == (old.id, old.epoch + 2)
    fenced, invalid = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
    for version in range(6):
        known = fenced if version >= 2 else invalid
        asked = add_partitions(old, 0, 1, version=version)
        assert partition_errors(await client.ask(asked, version)) == [known, known]
        assert (await end_transaction(client, old, version)).error_code == known
        if version <= 4:
            request = m.AddOffsetsToTxnRequest("tx", *old, "g")
            assert (await client.ask(request, version)).error_code == known
        if version >= 3:
            request = m.InitProducerIdRequest("tx", 60_000, *old)
            error = (await client.ask(request, version)).error_code
            assert error == (fenced if version >= 4 else invalid)
    for partition in (0, 1):
        result = await put(client, cluster, old, b"b", partition=partition, version=13)
        assert result.error_code == invalid
    result = await client.ask(txn_offset_commit(old, {0: 1}), 5)
    assert partition_errors(result) == [invalid]
    assert [record.value for record in cluster.records("t")] == [b"a"]


async def test_a_transaction_times_out():
    async with EmbeddedCluster(start_time=1000) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        producer = await init_producer(client, timeout=7_000)
        await client.ask(add_partitions(producer, 0), 3)
        await put(client, cluster, producer, b"a")
        found = await read(client, cluster, offset=0, max_wait_ms=60_000)
        assert now() == 7.0
        assert offsets(found.records) == [(0, 0), (1, 1)]
        assert (await end_transaction(client, producer)).error_code == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [0, 3, 4, 5])
async def test_unknown_partitions(cluster, client, version):
    cluster.create_topic("t")
    producer = await init_producer(client)
    answer = await client.ask(add_partitions(producer, 0, 7, version=version), version)
    expected = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert partition_errors(answer) == expected
    assert (await end_transaction(client, producer)).error_code == ErrorCode.INVALID_TXN_STATE


async def test_verify_only_add_partitions(cluster, client):
    cluster.create_topic("t", 2)
    producer = await init_producer(client)
    await client.ask(add_partitions(producer, 0, version=4), 4)
    answer = await client.ask(add_partitions(producer, 0, 1, version=4, verify=True), 4)
    assert partition_errors(answer) == [0, ErrorCode.TRANSACTION_ABORTABLE]


async def test_only_the_coordinator_serves_a_transactional_id():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as one, connect(cluster, 2) as two:
        cluster.create_topic("t")
        asked = m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
        found = {(await client.ask(asked)).coordinators[0].node_id for client in (one, two)}
        (node_id,) = found
        mine, other = (one, two) if node_id == 1 else (two, one)
        producer = await init_producer(mine)
        moved = ErrorCode.NOT_COORDINATOR
        answer = await other.ask(m.InitProducerIdRequest("tx", 60_000))
        assert (answer.error_code, answer.producer_id) == (moved, -1)
        assert partition_errors(await other.ask(add_partitions(producer, 0), 3)) == [moved]
        assert (await other.ask(m.AddOffsetsToTxnRequest("tx", *producer, "g"))).error_code == moved
        assert (await end_transaction(other, producer)).error_code == moved


async def test_a_transaction_survives_its_coordinator():
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t")
        async with connect(cluster, 1) as one, connect(cluster, 2) as two:
            asked = m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
            first = (await one.ask(asked)).coordinators[0].node_id
            mine, other = (one, two) if first == 1 else (two, one)
            producer = await init_producer(mine)
            await mine.ask(add_partitions(producer, 0), 3)
            await cluster.stop_node(first)
            assert (await other.ask(asked)).coordinators[0].node_id == 3 - first
            assert (await end_transaction(other, producer)).error_code == 0
            assert cluster.partition("t", 0).log_end_offset == 1
        await cluster.start_node(first)
        assert cluster.transaction_coordinator("tx") == 3 - first  # a restarted node does not get it back


async def test_a_transaction_s_coordinator_moves():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as one, connect(cluster, 2) as two:
        cluster.create_topic("t")
        clients = {1: one, 2: two}
        first = cluster.transaction_coordinator("tx")
        producer = await init_producer(clients[first])
        await clients[first].ask(add_partitions(producer, 0), 3)
        cluster.move_transaction_coordinator("tx", 3 - first)
        assert (await end_transaction(clients[first], producer)).error_code == ErrorCode.NOT_COORDINATOR
        asked = m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
        assert (await clients[first].ask(asked)).coordinators[0].node_id == 3 - first
        assert (await end_transaction(clients[3 - first], producer)).error_code == 0


async def test_sequence_numbers_begin_with_0_if_a_write_adds_the_partition(cluster, client):
    """KIP-890: each transaction has its own epoch, and Produce 12 adds partitions itself."""
    cluster.create_topic("t", 2)
    producer = await init_producer(client)
    gap = await put(client, cluster, producer, b"a", sequence=1, version=12)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await put(client, cluster, producer, b"a", version=12)).error_code == 0
    assert (await put(client, cluster, producer, b"b", version=12, sequence=1)).error_code == 0
    # With AddPartitionsToTxn any sequence number is accepted: the producer state may have expired.
    await client.ask(add_partitions(producer, 1), 3)
    later = await put(client, cluster, producer, b"a", sequence=7, partition=1)
    assert later.error_code == 0


async def test_start_time_of_a_transaction():
    async with EmbeddedCluster(start_time=5000) as cluster, connect(cluster) as client:
        cluster.create_topic("t")

        async def began() -> int:
            (state,) = (await client.ask(m.DescribeTransactionsRequest(["tx"]))).transaction_states
            return state.transaction_start_time_ms

        producer = await init_producer(client)
        assert await began() == -1
        answer = await end_transaction(client, producer, 5, commit=False)  # an empty transaction
        assert await began() == 5000
        await asyncio.sleep(1)
        producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        await put(client, cluster, producer, b"a", version=12)
        assert await began() == 6000
        await end_transaction(client, producer, 5)
        assert await began() == 6000
        await init_producer(client)
        assert await began() == -1


async def test_markers_are_found_by_time():
    async with EmbeddedCluster(start_time=5000) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        producer = await init_producer(client)
        await put(client, cluster, producer, b"a", b"b", version=12)  # timestamp 1000
        await end_transaction(client, producer, 5)
        found = [await latest(client, 0, timestamp) for timestamp in (1000, 1001, 5000, 5001, -3)]
        assert found == [0, 2, 2, -1, 2]


async def test_markers_use_the_timestamp_type_of_their_topic():
    async with EmbeddedCluster(start_time=5000) as cluster, connect(cluster) as client:
        cluster.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
        producer = await init_producer(client)
        await put(client, cluster, producer, b"a", version=12)
        await end_transaction(client, producer, 5)
        headers = list(iter_batches(bytes((await read(client, cluster)).records)))
        assert [(one.is_control, one.timestamp_type, one.max_timestamp) for one in headers] == [
            (False, 1, 5000),
            (True, 1, 5000),
        ]


# -- WriteTxnMarkers ---------------------------------------------------------------------------------------------


async def test_markers_of_transaction_version_2_need_a_newer_epoch(cluster, client):
    """Requests carry the `transaction.version`; from 2 on each marker increments the producer epoch."""
    cluster.create_topic("t")
    append(log_of(cluster, "t", 0), transactional(b"a", producer_id=9, epoch=3), 0)
    codes = []
    for epoch, transaction_version in ((3, 2), (4, 2), (4, 2), (4, 1)):
        request = write_markers(ProducerIdAndEpoch(9, epoch), 0, commit=True)
        request.markers[0].transaction_version = transaction_version
        answer = await client.ask(request, 2)
        codes.append(answer.markers[0].topics[0].partitions[0].error_code)
    assert codes == [ErrorCode.INVALID_PRODUCER_EPOCH, 0, 0, 0]
    assert cluster.partition("t", 0).last_stable_offset == 4


@pytest.mark.parametrize("version", [1, 2])
async def test_an_admin_aborts_a_hanging_transaction(version):
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as one, connect(cluster, 2) as two:
        cluster.create_topic("t", 2, replication_factor=1)
        leader, other = (one, two) if cluster.leader("t", 0) == 1 else (two, one)
        hanging = transactional(b"a", producer_id=9, epoch=3)
        append(log_of(cluster, "t", 0), hanging, 0)
        request = write_markers(ProducerIdAndEpoch(9, 3), 0, 5, commit=False)
        codes = [
            [p.error_code for p in (await client.ask(request, version)).markers[0].topics[0].partitions]
            for client in (other, leader)
        ]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [[ErrorCode.NOT_LEADER_OR_FOLLOWER, unknown], [0, unknown]]
        assert cluster.partition("t", 0).last_stable_offset == 2
        old = write_markers(ProducerIdAndEpoch(9, 2), 0, commit=False)
        (topic,) = (await leader.ask(old, version)).markers[0].topics
        assert topic.partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("version", [3, 4])
async def test_faults_by_topic(cluster, client, version):
    cluster.create_topic("t")
    producer = await init_producer(client)
    for api in ("AddPartitionsToTxn", "TxnOffsetCommit", "WriteTxnMarkers"):
        cluster.faults.on(api, topic="t").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        cluster.faults.on(api, topic="other", times=None).error(ErrorCode.UNKNOWN_SERVER_ERROR)
    refused = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert (
        partition_errors(await client.ask(add_partitions(producer, 0, version=version), version)) == refused
    )
    assert partition_errors(await client.ask(txn_offset_commit(producer, {0: 1}))) == refused
    (marker,) = (await client.ask(write_markers(producer, 0, commit=True))).markers
    assert [p.error_code for p in marker.topics[0].partitions] == refused
    assert cluster.transactions["tx"].state == "Empty"
    cluster.faults.clear()


async def test_transaction_version_2_is_announced(client):
    for version in (3, 4):
        answer = await client.ask(m.ApiVersionsRequest("x", "1"), version)
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        assert (levels["group.version"], levels["transaction.version"]) == (1, 2)
        assert answer.finalized_features_epoch >= 0


async def test_a_topic_deleted_while_no_node_is_alive_does_not_block_its_transaction(cluster):
    cluster.create_topic("t")
    coordinator = transactions_of(cluster)
    producer = coordinator.init_producer_id("tx", 10.0).producer
    assert not coordinator.add_partitions("tx", producer, [TopicPartition("t", 0)])
    await cluster.stop_node(1)
    await asyncio.sleep(20)
    assert cluster.transactions["tx"].state == "PrepareAbort"
    cluster.delete_topic("t")
    assert cluster.transactions["tx"].state == "CompleteAbort"
