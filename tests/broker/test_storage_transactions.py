"""Transactions in a cluster on disk that goes and comes back, or whose disk fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from pathlib import Path

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.storage.file_segments import FileSegment
from asyncgroup.broker.storage.records import read_transaction, transaction_record
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch, TransactionMetadata
from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.control import ControlType
from tests.broker.client import connect
from tests.broker.offsets_requests import T0, fetched, find
from tests.broker.requests import produce
from tests.broker.transactional import (
    Writer,
    add_partitions,
    end_transaction,
    init_producer,
    partition_errors,
    transactional,
    txn_offset_commit,
)


def virtually(function):
    return pytest.mark.asyncio(pytest.mark.virtual(function))


def on_disk(path: Path, nodes: int = 1, **options) -> EmbeddedCluster:
    return EmbeddedCluster(nodes, data_dir=path, **options)


def broken(*_):
    raise OSError(errno.EIO, "Input/output error")


@virtually
async def test_aborted_and_open_transactions_are_known_again(tmp_path):
    async with on_disk(tmp_path) as cluster:
        cluster.create_topic("t")
        log = cluster.partition("t", 0).log
        one, two = Writer(log, 1), Writer(log, 2)
        one.write(b"aborted")
        one.abort()
        two.write(b"open")
        one.write(b"committed")
        one.commit()
    async with on_disk(tmp_path) as cluster:
        log = cluster.partition("t", 0).log
        assert (log.last_stable_offset, log.end_offset) == (2, 5)
        assert log.aborted_in(0, log.read(0, 1 << 20)) == [(1, 0, 1)]
        log.append_marker(ControlType.COMMIT, 2, 0, 0)
        assert log.last_stable_offset == 6


@virtually
async def test_an_outcome_that_was_settled_reaches_its_partitions(tmp_path):
    async with on_disk(tmp_path, 2) as cluster:
        cluster.create_topic("t", 1, 1)
        cluster.move_leader("t", 0, 2)
        cluster.partition("t", 0).replicas[:] = [2]
        place = cluster._shared.transactions
        producer = ProducerIdAndEpoch(place.init_producer_id("tx", 60.0).producer.id, 0)
        assert not place.add_partitions("tx", producer, [TopicPartition("t", 0)])
        cluster.partition("t", 0).log.append(transactional(b"v", producer_id=producer.id), 0)
        await cluster.stop_node(2)
        assert not place.end("tx", producer, commit=True).error
        assert cluster.transactions["tx"].state is TransactionState.PREPARE_COMMIT
        assert cluster.partition("t", 0).log.last_stable_offset == 0
    async with on_disk(tmp_path, 2) as cluster:
        assert cluster.transactions["tx"].state is TransactionState.COMPLETE_COMMIT
        log = cluster.partition("t", 0).log
        assert (log.last_stable_offset, log.end_offset) == (2, 2)
        assert log.aborted_in(0, log.read(0, 1 << 20)) == []


@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_clients_that_wait_for_the_cluster_to_come_back_find_it_whole(tmp_path):
    """A client that gets in while the other nodes are still starting would begin transactional ids anew."""
    async with on_disk(tmp_path, 3) as cluster:
        nodes = cluster.nodes
        ports = [node.port for node in nodes.values()]
        begun = {f"tx{n}": cluster._shared.transactions.init_producer_id(f"tx{n}", 60.0) for n in range(20)}
    back = on_disk(tmp_path, 3, ports=ports)

    async def start_anew(node: int) -> dict[str, m.InitProducerIdResponse]:
        while True:
            with contextlib.suppress(OSError, KeyError):  # not there, not listening
                async with connect(back, node) as client:
                    return {tx: await client.ask(m.InitProducerIdRequest(tx, 60_000), 5) for tx in begun}
            await asyncio.sleep(0)

    clients = [asyncio.create_task(start_anew(node)) for node in nodes]
    async with back:
        for answers in await asyncio.gather(*clients):
            for tx, answer in answers.items():
                if not answer.error_code:
                    assert (answer.producer_id, answer.producer_epoch) == (begun[tx].producer.id, 1)
                else:
                    assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert {one.producer.epoch for one in back.transactions.values()} == {1}


def test_all_that_is_known_of_a_transaction_is_kept():
    one = TransactionMetadata("tx", 17)
    one.producer, one.next_producer = ProducerIdAndEpoch(17, 3), ProducerIdAndEpoch(18, 0)
    (
        one.last_producer_epoch,
        one.previous_producer_id,
        one.timeout,
        one.start_timestamp,
        one.last_update_timestamp,
    ) = 2, 16, 60.5, 1000, 2000
    one.state, one.partitions = TransactionState.PREPARE_ABORT, {TopicPartition("t", 1): None, T0: None}
    fresh = TransactionMetadata("tx", -1)
    again = read_transaction(json.loads(json.dumps(transaction_record(one))))
    for name in one.__slots__:
        if name != "transactional_id":
            assert getattr(one, name) != getattr(fresh, name), f"{name} is not tried"
        assert getattr(again, name) == getattr(one, name)


@virtually
async def test_a_transactional_id_goes_on(tmp_path):
    found = []
    for _ in range(3):
        async with on_disk(tmp_path) as cluster, connect(cluster) as client:
            answer = await client.ask(m.InitProducerIdRequest("tx", 60_000))
            found.append((answer.error_code, answer.producer_id, answer.producer_epoch))
    assert found == [(0, found[0][1], epoch) for epoch in range(3)]


@virtually
async def test_an_open_transaction_is_aborted_when_its_time_is_over(tmp_path):
    async with on_disk(tmp_path) as cluster:
        cluster.create_topic("t")
        place = cluster._shared.transactions
        producer = place.init_producer_id("tx", 60.0).producer
        place.add_partitions("tx", producer, [TopicPartition("t", 0)])
        cluster.partition("t", 0).log.append(transactional(b"v", producer_id=producer.id), 0)
    async with on_disk(tmp_path) as cluster:
        assert cluster.transactions["tx"].state is TransactionState.ONGOING
        await asyncio.sleep(61)
        assert cluster.transactions["tx"].state is TransactionState.COMPLETE_ABORT
        assert cluster.partition("t", 0).log.last_stable_offset == 2


@virtually
async def test_markers_wait_for_the_disk(tmp_path, monkeypatch):
    async with on_disk(tmp_path) as cluster:
        cluster.create_topic("t")
        place = cluster._shared.transactions
        producer = place.init_producer_id("tx", 60.0).producer
        place.add_partitions("tx", producer, [TopicPartition("t", 0)])
        cluster.partition("t", 0).log.append(transactional(b"v", producer_id=producer.id), 0)
        with monkeypatch.context() as patch:
            patch.setattr(FileSegment, "append", broken)
            assert not place.end("tx", producer, commit=True).error
            await asyncio.sleep(5)
            assert cluster.partition("t", 0).log.last_stable_offset == 0
        await asyncio.sleep(2)
        assert cluster.partition("t", 0).log.last_stable_offset == 2
        assert cluster.transactions["tx"].state is TransactionState.COMPLETE_COMMIT


@virtually
async def test_what_is_not_kept_of_a_transaction_did_not_happen(tmp_path, monkeypatch):
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 2)
        producer = await init_producer(client)
        assert partition_errors(await client.ask(add_partitions(producer, 0), 3)) == [0]
        refused = ErrorCode.NOT_COORDINATOR
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", broken)
            assert partition_errors(await client.ask(add_partitions(producer, 1), 3)) == [refused]
            assert partition_errors(await client.ask(add_partitions(producer, 0), 3)) == [0], "it is there"
            written = transactional(b"v", producer_id=producer.id)
            request = produce(cluster, written, first=1)
            request.transactional_id = "tx"
            (result,) = (await client.ask(request)).responses[0].partition_responses
            assert result.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            for version in (4, 5):
                assert (await end_transaction(client, producer, version)).error_code == refused
            again = await client.ask(m.InitProducerIdRequest("tx", 60_000))
            assert again.error_code == refused
            await asyncio.sleep(70)
        found = cluster.transactions["tx"]
        assert (found.state, list(found.partitions)) == (TransactionState.ONGOING, [TopicPartition("t", 0)])
        assert found.producer == producer
        await asyncio.sleep(1)
        assert found.state is TransactionState.COMPLETE_ABORT, "its time was over"
        assert found.producer.epoch == producer.epoch + 1


async def pending_offsets(cluster: EmbeddedCluster, client) -> ProducerIdAndEpoch:
    """A transaction with a record and an offset of group g."""
    producer = await init_producer(client)
    (result,) = await put_in_transaction(client, cluster, producer)
    assert result.error_code == 0
    await find(client)
    answer = await client.ask(txn_offset_commit(producer, {0: 7}), 5)
    assert partition_errors(answer) == [0]
    return producer


async def put_in_transaction(client, cluster: EmbeddedCluster, producer: ProducerIdAndEpoch):
    request = produce(cluster, transactional(b"v", producer_id=producer.id, epoch=producer.epoch))
    request.transactional_id = "tx"
    return (await client.ask(request)).responses[0].partition_responses


@virtually
@pytest.mark.parametrize("commits", [True, False])
async def test_offsets_of_an_open_transaction_wait_for_its_end(tmp_path, commits):
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        producer = await pending_offsets(cluster, client)
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        assert await fetched(client) == {}
        assert list(cluster.nodes[1].coordinator.unstable_partitions("g")) == [T0]
        assert cluster.transactions["tx"].state is TransactionState.ONGOING
        assert (await end_transaction(client, producer, 5, commit=commits)).error_code == 0
        assert await fetched(client) == ({T0: 7} if commits else {})
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        assert await fetched(client) == ({T0: 7} if commits else {})
        assert cluster.partition("t", 0).log.last_stable_offset == 2


@virtually
async def test_offsets_of_a_settled_transaction_count_when_the_cluster_is_back(tmp_path):
    """Killed between the outcome and the markers."""
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        producer = await pending_offsets(cluster, client)
        cluster._shared.transactions._completion._write_markers = lambda *_: None
        assert (await end_transaction(client, producer, 5)).error_code == 0
        assert cluster.transactions["tx"].state is TransactionState.PREPARE_COMMIT
        assert cluster.partition("t", 0).log.last_stable_offset == 0
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        assert cluster.transactions["tx"].state is TransactionState.COMPLETE_COMMIT
        assert await fetched(client) == {T0: 7}
        assert cluster.partition("t", 0).log.last_stable_offset == 2
        again = await init_producer(client)
        assert (again.id, again.epoch) == (producer.id, producer.epoch + 2)


@virtually
async def test_an_open_transaction_has_what_is_left_of_its_time(tmp_path):
    async with on_disk(tmp_path, start_time=1_000_000) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        await asyncio.sleep(5)
        await pending_offsets(cluster, client)
    for start_time, left in ((1_035_000, 30), (2_000_000, 0)):
        async with on_disk(tmp_path, start_time=start_time) as cluster:
            found = cluster.transactions["tx"]
            if left:
                await asyncio.sleep(left - 1)
                assert found.state is TransactionState.ONGOING
            await asyncio.sleep(0.5)
            if not left:
                assert found.state is TransactionState.COMPLETE_ABORT
