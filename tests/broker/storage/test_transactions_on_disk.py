"""Transactions in a cluster on disk: restarts and storage errors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from pathlib import Path

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.log.file_segments import FileSegment
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch, TransactionMetadata, TransactionState
from asyncgroup.broker.transactions.store import read_transaction, transaction_record
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import ControlType
from tests.broker.batches import append
from tests.broker.client import connect
from tests.broker.internals import log_of, node_of, partition_in, transactions_of
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


def on_disk(path: Path, nodes: int = 1, **options) -> EmbeddedCluster:
    return EmbeddedCluster(nodes, data_dir=path, **options)


def broken(*_):
    raise OSError(errno.EIO, "Input/output error")


async def test_aborted_and_open_transactions_survive_a_restart(tmp_path):
    async with on_disk(tmp_path) as cluster:
        cluster.create_topic("t")
        log = log_of(cluster, "t", 0)
        one, two = Writer(log, 1), Writer(log, 2)
        one.write(b"aborted")
        one.abort()
        two.write(b"open")
        one.write(b"committed")
        one.commit()
    async with on_disk(tmp_path) as cluster:
        log = log_of(cluster, "t", 0)
        assert (log.last_stable_offset, log.end_offset) == (2, 5)
        assert log.aborted_transactions(0, log.read(0, 1 << 20)) == [(1, 0, 1)]
        log.append_marker(ControlType.COMMIT, 2, 0, 0)
        assert log.last_stable_offset == 6


async def test_markers_of_a_prepared_transaction_are_written_after_a_restart(tmp_path):
    async with on_disk(tmp_path, 2) as cluster:
        cluster.create_topic("t", 1, 1)
        cluster.move_leader("t", 0, 2)
        partition_in(cluster, "t", 0).replicas[:] = [2]
        coordinator = transactions_of(cluster)
        producer = ProducerIdAndEpoch(coordinator.init_producer_id("tx", 60.0).producer.id, 0)
        assert not coordinator.add_partitions("tx", producer, [TopicPartition("t", 0)])
        append(log_of(cluster, "t", 0), transactional(b"v", producer_id=producer.id), 0)
        await cluster.stop_node(2)
        assert not coordinator.end("tx", producer, commit=True).error
        assert cluster.transactions["tx"].state == "PrepareCommit"
        assert cluster.partition("t", 0).last_stable_offset == 0
    async with on_disk(tmp_path, 2) as cluster:
        assert cluster.transactions["tx"].state == "CompleteCommit"
        log = log_of(cluster, "t", 0)
        assert (log.last_stable_offset, log.end_offset) == (2, 2)
        assert log.aborted_transactions(0, log.read(0, 1 << 20)) == []


@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_clients_never_reach_a_node_before_the_restart_is_complete(tmp_path):
    """Otherwise a client could initialize transactional ids from scratch while other nodes are still starting."""
    async with on_disk(tmp_path, 3) as cluster:
        nodes = cluster.nodes
        ports = [node.port for node in nodes.values()]
        initialized = {f"tx{n}": transactions_of(cluster).init_producer_id(f"tx{n}", 60.0) for n in range(20)}
    back = on_disk(tmp_path, 3, ports=ports)

    async def init_all(node: int) -> dict[str, m.InitProducerIdResponse]:
        while True:
            with contextlib.suppress(OSError, KeyError):  # the node does not exist yet, or does not listen
                async with connect(back, node) as client:
                    return {
                        tx: await client.ask(m.InitProducerIdRequest(tx, 60_000), 5) for tx in initialized
                    }
            await asyncio.sleep(0)

    clients = [asyncio.create_task(init_all(node)) for node in nodes]
    async with back:
        for answers in await asyncio.gather(*clients):
            for tx, answer in answers.items():
                if not answer.error_code:
                    assert (answer.producer_id, answer.producer_epoch) == (initialized[tx].producer.id, 1)
                else:
                    assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert {one.producer_epoch for one in back.transactions.values()} == {1}


def test_every_field_of_a_transaction_round_trips():
    saved = TransactionMetadata("tx", 17)
    saved.producer = ProducerIdAndEpoch(17, 3)
    saved.next_producer = ProducerIdAndEpoch(18, 0)
    saved.last_producer_epoch = 2
    saved.previous_producer_id = 16
    saved.timeout = 60.5
    saved.start_timestamp = 1000
    saved.last_update_timestamp = 2000
    saved.state = TransactionState.PREPARE_ABORT
    saved.partitions = {TopicPartition("t", 1): None, T0: None}
    fresh = TransactionMetadata("tx", -1)
    again = read_transaction(
        json.loads(json.dumps({"key": ["transaction", "tx"], **transaction_record(saved)}))
    )
    for name in saved.__slots__:
        if name != "transactional_id":
            assert getattr(saved, name) != getattr(fresh, name), (
                f"{name} has its default value: nothing is tested"
            )
        assert getattr(again, name) == getattr(saved, name)


async def test_a_transactional_id_survives_restarts(tmp_path):
    found = []
    for _ in range(3):
        async with on_disk(tmp_path) as cluster, connect(cluster) as client:
            answer = await client.ask(m.InitProducerIdRequest("tx", 60_000))
            found.append((answer.error_code, answer.producer_id, answer.producer_epoch))
    assert found == [(0, found[0][1], epoch) for epoch in range(3)]


def open_transaction(cluster: EmbeddedCluster):
    """Write a record of the transaction `tx`, which stays open; return its coordinator and its producer."""
    cluster.create_topic("t")
    coordinator = transactions_of(cluster)
    producer = coordinator.init_producer_id("tx", 60.0).producer
    coordinator.add_partitions("tx", producer, [TopicPartition("t", 0)])
    append(log_of(cluster, "t", 0), transactional(b"v", producer_id=producer.id), 0)
    return coordinator, producer


async def test_an_open_transaction_times_out_after_a_restart(tmp_path):
    async with on_disk(tmp_path) as cluster:
        open_transaction(cluster)
    async with on_disk(tmp_path) as cluster:
        assert cluster.transactions["tx"].state == "Ongoing"
        await asyncio.sleep(61)
        assert cluster.transactions["tx"].state == "CompleteAbort"
        assert cluster.partition("t", 0).last_stable_offset == 2


async def test_markers_are_retried_after_a_storage_error(tmp_path, monkeypatch):
    async with on_disk(tmp_path) as cluster:
        coordinator, producer = open_transaction(cluster)
        with monkeypatch.context() as patch:
            patch.setattr(FileSegment, "append", broken)
            assert not coordinator.end("tx", producer, commit=True).error
            await asyncio.sleep(5)
            assert cluster.partition("t", 0).last_stable_offset == 0
        await asyncio.sleep(2)
        assert cluster.partition("t", 0).last_stable_offset == 2
        assert cluster.transactions["tx"].state == "CompleteCommit"


async def test_changes_of_a_transaction_that_cannot_be_saved_are_undone(tmp_path, monkeypatch):
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 2)
        producer = await init_producer(client)
        assert partition_errors(await client.ask(add_partitions(producer, 0), 3)) == [0]
        refused = ErrorCode.NOT_COORDINATOR
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", broken)
            assert partition_errors(await client.ask(add_partitions(producer, 1), 3)) == [refused]
            assert partition_errors(await client.ask(add_partitions(producer, 0), 3)) == [0], (
                "it has been added before"
            )
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
        found = transactions_of(cluster).transactions["tx"]
        assert (found.state, list(found.partitions)) == (TransactionState.ONGOING, [TopicPartition("t", 0)])
        assert found.producer == producer
        await asyncio.sleep(1)
        assert found.state is TransactionState.COMPLETE_ABORT, "it timed out"
        assert found.producer.epoch == producer.epoch + 1


async def pending_offsets(cluster: EmbeddedCluster, client) -> ProducerIdAndEpoch:
    """Begin a transaction with a record and an offset of group g."""
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


@pytest.mark.parametrize("commits", [True, False])
async def test_offsets_of_an_open_transaction_stay_pending_over_a_restart(tmp_path, commits):
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        producer = await pending_offsets(cluster, client)
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        assert await fetched(client) == {}
        assert list(node_of(cluster, 1).coordinator.offsets.unstable_partitions("g")) == [T0]
        assert cluster.transactions["tx"].state == "Ongoing"
        assert (await end_transaction(client, producer, 5, commit=commits)).error_code == 0
        assert await fetched(client) == ({T0: 7} if commits else {})
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        assert await fetched(client) == ({T0: 7} if commits else {})
        assert cluster.partition("t", 0).last_stable_offset == 2


async def test_offsets_of_a_prepared_transaction_are_committed_after_a_restart(tmp_path):
    """Killed between the decision and the markers."""
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        producer = await pending_offsets(cluster, client)
        transactions_of(cluster)._completion._write_markers = lambda *_: None
        assert (await end_transaction(client, producer, 5)).error_code == 0
        assert cluster.transactions["tx"].state == "PrepareCommit"
        assert cluster.partition("t", 0).last_stable_offset == 0
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        assert cluster.transactions["tx"].state == "CompleteCommit"
        assert await fetched(client) == {T0: 7}
        assert cluster.partition("t", 0).last_stable_offset == 2
        again = await init_producer(client)
        assert (again.id, again.epoch) == (producer.id, producer.epoch + 2)


async def test_the_timeout_of_an_open_transaction_includes_the_time_of_a_restart(tmp_path):
    async with on_disk(tmp_path, start_time=1_000_000) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        await asyncio.sleep(5)
        await pending_offsets(cluster, client)
    for start_time, left in ((1_035_000, 30), (2_000_000, 0)):
        async with on_disk(tmp_path, start_time=start_time) as cluster:
            found = transactions_of(cluster).transactions["tx"]
            if left:
                await asyncio.sleep(left - 1)
                assert found.state is TransactionState.ONGOING
            await asyncio.sleep(0.5)
            if not left:
                assert found.state is TransactionState.COMPLETE_ABORT
