"""A transaction whose detach is cancelled, and producers that are closed while a transaction is open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import Cluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    ClosedError,
    NoTransactionError,
    TransactionAbortedError,
    TransactionOutcomeUnknown,
)
from asyncgroup.producer import MemoryBudget, Producer
from asyncgroup.wire import messages as m
from tests.producer.support import QUICK, TOPIC, now
from tests.producer.transactions.support import (
    NAME,
    cluster_with_topics,
    committed,
    offsets_of,
    requests,
    transacting,
)

VERSIONS = pytest.mark.parametrize("version", [1, 2])


@VERSIONS
async def test_a_transaction_whose_detach_was_cancelled_is_aborted(version: int) -> None:
    """Its records in flight may not be committed without their acknowledgements."""
    async with transacting() as (cluster, producer):
        with pytest.raises(TransactionAbortedError, match="detach_transaction failed: CancelledError"):
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                cluster.faults.on("Produce").delay(5.0)
                late = producer.send_nowait(TOPIC, b"b", partition=0)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await producer.detach_transaction()
        assert isinstance(late.exception(), TransactionAbortedError)
        async with producer.transaction():
            await producer.send(TOPIC, b"c", partition=0)
        assert committed(cluster) == [b"c"]


@VERSIONS
async def test_a_block_that_ends_while_another_task_detaches_waits_for_its_records(version: int) -> None:
    async with transacting() as (cluster, producer):
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            cluster.faults.on("Produce").delay(5.0)
            late = producer.send_nowait(TOPIC, b"b", partition=0)
            detaching = asyncio.create_task(producer.detach_transaction())
            await asyncio.sleep(1.0)
        await late
        await detaching
        assert "EndTxn" not in requests(cluster)


@VERSIONS
@pytest.mark.parametrize("shared", [False, True])
async def test_a_block_whose_producer_is_closed_at_once_commits_nothing(version: int, shared: bool) -> None:
    async with cluster_with_topics() as cluster:
        settings = ProducerConfig(transactional_id=NAME, **QUICK)
        async with Cluster(cluster.bootstrap_servers, settings) as client:
            producer = Producer(client if shared else cluster.bootstrap_servers, settings)
            await producer.__aenter__()
            with pytest.raises(ClosedError, match="closed before its transaction was committed"):
                async with asyncio.timeout(300.0), producer.transaction():
                    await producer.send(TOPIC, b"a", partition=0)
                    cluster.faults.on("Produce").delay(5.0)
                    late = producer.send_nowait(TOPIC, b"b", partition=0)
                    await asyncio.sleep(1.0)
                    await producer.aclose(drain=False)
            with pytest.raises(ClosedError, match="drain=False"):
                await late
            assert committed(cluster) == []
            assert "EndTxn" not in requests(cluster)


@pytest.mark.parametrize("pending", [False, True])
async def test_a_block_that_raises_in_a_producer_that_is_closed_at_once(pending: bool) -> None:
    async with transacting() as (cluster, producer):
        late: Any = None
        with pytest.raises(ValueError, match="mine"):
            async with asyncio.timeout(300.0), producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                cluster.faults.on("Produce").delay(5.0).optional()
                if pending:
                    late = producer.send_nowait(TOPIC, b"b", partition=0)
                await asyncio.sleep(1.0)
                await producer.aclose(drain=False)
                raise ValueError("mine")
        if late is not None:
            assert isinstance(late.exception(), ClosedError)


async def test_no_transaction_begins_after_a_close_without_drain() -> None:
    async with transacting() as (_, producer):
        await producer.aclose(drain=False)
        with pytest.raises(ClosedError):
            async with producer.transaction():
                pass


async def test_a_close_without_drain_leaves_no_task(cluster: EmbeddedCluster) -> None:
    settings = ProducerConfig(transactional_id=NAME, **QUICK)
    async with Cluster(cluster.bootstrap_servers, settings) as client:
        producer = Producer(client, settings)
        await producer.__aenter__()
        cluster.faults.on("TxnOffsetCommit", times=None).drop()
        with pytest.raises(ClosedError, match="before its transaction was committed"):
            async with producer.transaction():
                offsets = asyncio.create_task(producer.send_offsets(offsets_of()))
                await asyncio.sleep(1.0)
                await producer.aclose(drain=False)
                names = {task.get_name() for task in asyncio.all_tasks()}
                assert not [name for name in names if name.startswith("Producer")], names
                with pytest.raises(ClosedError, match="closed before group 'g' had the offsets"):
                    await offsets


async def test_a_commit_under_way_when_the_producer_is_closed_at_once_is_unknown() -> None:
    """Its caller was not cancelled, so it gets an error, not a CancelledError."""
    async with transacting() as (cluster, producer):
        cluster.faults.on("EndTxn", times=None).drop()

        async def transact() -> None:
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)

        block = asyncio.create_task(transact())
        await asyncio.sleep(1.0)
        await producer.aclose(drain=False)
        with pytest.raises(TransactionOutcomeUnknown, match="the producer was closed"):
            await block


async def test_a_transaction_whose_producer_has_a_bug_ends() -> None:
    async with transacting() as (cluster, producer):
        with pytest.raises(TransactionAbortedError, match="a bug"):
            async with asyncio.timeout(300.0), producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                cluster.faults.on("Produce").delay(5.0)
                late = producer.send_nowait(TOPIC, b"b", partition=0)
                await asyncio.sleep(1.0)
                producer._inner.sender.timer.report(RuntimeError("a bug"))
        assert late.exception() is not None
        with pytest.raises(RuntimeError, match="a bug"):
            await producer.aclose()


async def test_a_close_without_drain_ends_the_wait_for_an_abort() -> None:
    async with transacting(close_timeout=60.0) as (cluster, producer):
        with pytest.raises(ClosedError):
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                cluster.faults.on("EndTxn", times=None).drop()
                closing = asyncio.create_task(producer.aclose())
                await asyncio.sleep(1.0)
                began = now()
                await producer.aclose(drain=False)
                await closing
                assert now() - began < 1.0


async def test_a_producer_that_cannot_start_leaves_a_shared_budget() -> None:
    budget = MemoryBudget(1000)
    async with cluster_with_topics() as cluster:
        cluster.faults.on("InitProducerId").error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
        settings = ProducerConfig(transactional_id=NAME, **QUICK)
        with pytest.raises(Exception, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            async with Producer(cluster.bootstrap_servers, settings, memory=budget):
                pass
    assert not budget._inner.listeners


@VERSIONS
async def test_a_response_without_the_partition_of_an_offset_is_repeated(version: int) -> None:
    async with transacting() as (cluster, producer):
        cluster.faults.on("TxnOffsetCommit").answer(lambda _request: m.TxnOffsetCommitResponse(topics=[]))
        async with producer.transaction():
            await producer.send_offsets(offsets_of("g", 5))
        assert requests(cluster, "TxnOffsetCommit") == ["TxnOffsetCommit"] * 2


@pytest.mark.parametrize("version", [1])
async def test_a_response_without_an_added_partition_is_repeated(version: int) -> None:
    async with transacting() as (cluster, producer):
        cluster.faults.on("AddPartitionsToTxn").answer(
            lambda _request: m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[])
        )
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
        assert requests(cluster, "AddPartitionsToTxn") == ["AddPartitionsToTxn"] * 2
        assert committed(cluster) == [b"a"]


@pytest.mark.parametrize("limits", [{}, {"max_pending_records": 2}])
@pytest.mark.parametrize("ends_by", ["commit", "abort"])
async def test_a_value_ends_with_the_transaction_it_began_in(limits: dict[str, Any], ends_by: str) -> None:
    config: dict[str, Any] = {
        "chunking": True,
        "max_chunk_size": 1024,
        "batch_size": 1,
        "buffer_bytes": 1500,
        **limits,
    }
    async with transacting(**config) as (cluster, producer):
        async with producer.transaction():
            await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").delay(1.0)
        value: Any = None
        try:
            async with producer.transaction():
                value = asyncio.create_task(producer.send(TOPIC, b"." * 3000, partition=0))
                await asyncio.sleep(0.5)
                if ends_by == "abort":
                    raise KeyError
        except KeyError:
            pass
        async with producer.transaction():
            await producer.send(TOPIC, b"next", partition=0)
            await asyncio.sleep(10.0)
            with pytest.raises((NoTransactionError, TransactionAbortedError)):
                await value
        assert producer._inner.memory.used == 0
