"""Cancellation, close, and invalid arguments of transactions."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import anyio
import pytest

from asyncgroup import ConfigError, Producer, RequestTimedOut
from asyncgroup.broker import EmbeddedCluster, Fault
from asyncgroup.errors import (
    ClosedError,
    DeliveryFailedError,
    ErrorCode,
    ProducerFencedError,
    TransactionAbortedError,
)
from asyncgroup.model import CommittedOffset, GroupOffsets, TopicPartition
from tests.producer.support import TOPIC, now, stored
from tests.producer.transactions.support import (
    INPUT,
    NAME,
    cluster_with_topics,
    committed,
    offsets_of,
    producer_of,
    requests,
    transacting,
)

VERSIONS = pytest.mark.parametrize("version", [1, 2])


# --- cancellation ---------------------------------------------------------------------------------------------------


async def cancelled_at(held: Fault, producer: Producer) -> asyncio.Task[None]:
    """Return the task of a transaction with one record, cancelled when a request of it is held."""

    async def commit() -> None:
        async with producer.transaction():
            await producer.enqueue(TOPIC, b"a", partition=0)

    task = asyncio.create_task(commit())
    await held.wait_hit()
    task.cancel()
    return task


async def test_a_cancelled_block_is_aborted(cluster: EmbeddedCluster, producer: Producer) -> None:
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(1.0), producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            await asyncio.Event().wait()
    cancelled = raised.value.__cause__ or raised.value.__context__  # the latter before Python 3.11.3
    assert cancelled is not None
    assert cancelled.__notes__ == ["transactional id 'orders-1': the transaction was aborted"]
    assert str(cluster.transactions[NAME].state) == "CompleteAbort"


async def test_a_cancelled_anyio_scope(cluster: EmbeddedCluster, producer: Producer) -> None:
    """It cancels again at every await."""
    with anyio.move_on_after(1.0):
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            await anyio.sleep_forever()
    assert str(cluster.transactions[NAME].state) == "CompleteAbort"
    async with producer.transaction():
        await producer.send(TOPIC, b"b", partition=0)
    assert committed(cluster) == [b"b"]


async def test_cancelled_while_the_commit_is_being_sent(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The commit runs to its end, and the cancellation has its outcome."""
    held = cluster.faults.on("EndTxn").hold()
    task = await cancelled_at(held, producer)
    await asyncio.sleep(1.0)
    assert not task.done()
    held.release()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert raised.value.__notes__ == ["transactional id 'orders-1': the transaction was committed"]
    assert committed(cluster) == [b"a"]
    async with producer.transaction():
        await producer.send(TOPIC, b"b", partition=0)


@VERSIONS
async def test_cancelled_while_the_coordinator_refuses_the_commit(version: int) -> None:
    """Found by the random transactions: the caller that would have aborted is gone."""
    async with transacting() as (cluster, producer):
        held = cluster.faults.on("EndTxn").hold().error(ErrorCode.TRANSACTION_ABORTABLE)
        task = await cancelled_at(held, producer)
        held.release()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert raised.value.__notes__ == ["transactional id 'orders-1': the transaction was aborted"]
        async with producer.transaction():
            await producer.send(TOPIC, b"b", partition=0)
        assert committed(cluster) == [b"b"]


async def test_cancelled_while_records_are_being_written() -> None:
    """EndTxn was not sent, so the transaction is aborted."""
    async with transacting() as (cluster, producer):
        held = cluster.faults.on("Produce").hold()
        task = await cancelled_at(held, producer)
        held.release()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert raised.value.__notes__ == ["transactional id 'orders-1': the transaction was aborted"]
        assert stored(cluster) == [b"a"]
        assert committed(cluster) == []


async def test_a_cancelled_abort_is_limited_and_goes_on() -> None:
    async with transacting(close_timeout=2.0) as (cluster, producer):
        held = cluster.faults.on("EndTxn").hold()
        begun = now()
        with pytest.raises(TimeoutError) as raised:
            async with asyncio.timeout(1.0), producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                await asyncio.Event().wait()
        assert now() - begun == pytest.approx(3.0, abs=0.1)
        cancelled = raised.value.__cause__ or raised.value.__context__
        assert cancelled is not None
        assert cancelled.__notes__ == ["transactional id 'orders-1': the transaction is still being aborted"]
        asyncio.get_running_loop().call_later(5.0, held.release)
        async with producer.transaction():  # begins after the end of the last one
            await producer.send(TOPIC, b"b", partition=0)
        assert now() - begun == pytest.approx(8.0, abs=0.5)
        assert committed(cluster) == [b"b"]


@VERSIONS
async def test_cancelled_offsets_stay_in_the_transaction(version: int) -> None:
    """As for a record that was accepted, only the waiter goes."""
    async with transacting() as (cluster, producer):
        cluster.faults.on("TxnOffsetCommit").delay(5.0)
        async with producer.transaction():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await producer.send_offsets(offsets_of("g", 7))
        assert cluster.group("g").offsets[TopicPartition(INPUT, 0)].offset == 7


async def test_cancelled_offsets_that_fail_later_abort(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The failure has no other caller than the end of the block."""
    cluster.faults.on("TxnOffsetCommit").delay(5.0).error(ErrorCode.ILLEGAL_GENERATION)
    with pytest.raises(TransactionAbortedError, match="ILLEGAL_GENERATION"):
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await producer.send_offsets(offsets_of("g", 7))
    assert committed(cluster) == []


async def test_a_caller_that_waits_for_memory_does_not_get_into_the_next_transaction() -> None:
    async with transacting(buffer_bytes=200) as (cluster, producer):
        held = cluster.faults.on("Produce").hold()
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.enqueue(TOPIC, b"." * 150, partition=0)
                waiting = asyncio.create_task(producer.send(TOPIC, b"." * 150, partition=0))
                await held.wait_hit()
                asyncio.get_running_loop().call_soon(held.release)
                raise ZeroDivisionError
        async with producer.transaction():
            with pytest.raises(TransactionAbortedError, match="by its caller"):
                await waiting
        assert committed(cluster) == []


# --- close ----------------------------------------------------------------------------------------------------------


@VERSIONS
async def test_close_aborts_an_open_transaction(cluster: EmbeddedCluster, version: int) -> None:
    async with producer_of(cluster) as producer:
        await producer.transaction().__aenter__()
        await producer.send(TOPIC, b"a", partition=0)
    assert [e.request.committed for e in cluster.history.of("EndTxn")] == [False]
    assert committed(cluster) == []
    with pytest.raises(ClosedError):
        await producer.send(TOPIC, b"b")


@VERSIONS
async def test_close_while_a_commit_waits_for_its_records(cluster: EmbeddedCluster, version: int) -> None:
    producer = producer_of(cluster)

    async def commit() -> None:
        async with producer.transaction():
            await producer.enqueue(TOPIC, b"a", partition=0)

    held = cluster.faults.on("Produce").hold()
    async with producer:
        task = asyncio.create_task(commit())
        await held.wait_hit()
        asyncio.get_running_loop().call_later(1.0, held.release)
    with pytest.raises(ClosedError):
        await task
    assert [e.request.committed for e in cluster.history.of("EndTxn")] == [False]
    assert committed(cluster) == []


async def test_close_in_a_transactions_block(cluster: EmbeddedCluster) -> None:
    producer = producer_of(cluster)
    with pytest.raises(ClosedError):
        async with producer, producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            await producer.aclose()
    assert committed(cluster) == []


async def test_close_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_with_topics() as cluster:
        async with producer_of(cluster, close_timeout=2.0) as producer:
            await producer.transaction().__aenter__()
            await producer.send(TOPIC, b"a", partition=0)
            cluster.faults.on("EndTxn", times=None).disconnect("before")
            begun = now()
        assert now() - begun == pytest.approx(2.0, abs=0.1)
        assert "closed before its transaction had ended" in caplog.text


async def test_close_of_a_fenced_producer(cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Fencing has aborted its transaction: neither a warning nor DeliveryFailedError."""
    async with producer_of(cluster) as producer:
        await producer.transaction().__aenter__()
        await producer.enqueue(TOPIC, b"a", partition=0)
        await producer.flush()
        async with producer_of(cluster):
            pass
        await producer.enqueue(TOPIC, b"b", partition=0)
        await asyncio.sleep(1.0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("chunks", [False, True], ids=["records", "chunks"])
async def test_a_fenced_transaction_has_one_error(chunks: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the close nor a note at the error reports the records once more."""
    config: dict[str, Any] = {"chunking": True, "batching": False, "max_chunk_size": 1024} if chunks else {}
    async with cluster_with_topics() as cluster:
        with pytest.raises(ProducerFencedError) as raised:
            async with producer_of(cluster, **config) as producer, producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                async with producer_of(cluster):
                    pass
                await producer.enqueue(TOPIC, b"b" * 5000, partition=0)
        assert not getattr(raised.value, "__notes__", [])
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_flush_raises_what_made_the_producer_unusable(cluster: EmbeddedCluster) -> None:
    """In Java it only waits. Here it raises for records of `enqueue`, and these are lost."""
    with pytest.raises(ProducerFencedError):
        async with producer_of(cluster) as producer, producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            async with producer_of(cluster):
                pass
            await producer.enqueue(TOPIC, b"b", partition=0)
            for _ in range(2):
                with pytest.raises(ProducerFencedError, match="fenced: producer id"):
                    await producer.flush()


async def test_flush_in_a_transaction_that_can_only_be_aborted() -> None:
    async with transacting() as (cluster, producer):
        cluster.faults.on("Produce").error(ErrorCode.INVALID_RECORD)
        with pytest.raises(TransactionAbortedError, match="INVALID_RECORD"):
            async with producer.transaction():
                await producer.enqueue(TOPIC, b"a", partition=0)
                with pytest.raises(DeliveryFailedError, match="INVALID_RECORD"):
                    await producer.flush()
                await producer.flush()  # reported once
        async with producer.transaction():
            await producer.enqueue(TOPIC, b"b", partition=0)
            await producer.flush()
        assert committed(cluster) == [b"b"]


async def test_entering_is_cancelled(cluster: EmbeddedCluster) -> None:
    cluster.faults.on("InitProducerId", times=None).error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.0), producer_of(cluster):
            pass
    cluster.faults.clear()


async def test_no_coordinator_until_delivery_timeout(cluster: EmbeddedCluster) -> None:
    cluster.faults.on("InitProducerId", times=None).error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    with pytest.raises(
        RequestTimedOut, match=r"no success within delivery_timeout=40 s: .*COORDINATOR_NOT_AVAILABLE"
    ):
        await producer_of(cluster, delivery_timeout=40.0).__aenter__()
    assert now() == pytest.approx(40.0, abs=1.5)
    cluster.faults.clear()


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        None,
        {TopicPartition(INPUT, 0): 5},
        GroupOffsets("g", {TopicPartition(INPUT, 0): "5"}),  # type: ignore[dict-item]
        GroupOffsets("g", {TopicPartition(INPUT, 0): -5}),
        GroupOffsets("g", {INPUT: CommittedOffset(5)}),  # type: ignore[dict-item]
        GroupOffsets("g", {TopicPartition(INPUT, 0): CommittedOffset(-1)}),
        GroupOffsets("g", {TopicPartition(INPUT, 0): CommittedOffset(5, "", 1 << 31)}),
        GroupOffsets("g", {TopicPartition(INPUT, 0): CommittedOffset(5, "", "7")}),  # type: ignore[arg-type]
        GroupOffsets("g", {TopicPartition(INPUT, 0): True}),
        GroupOffsets("g", {(INPUT, "0"): 5}),  # type: ignore[dict-item]
        GroupOffsets("g", {("no/topic", 0): 5}),
        GroupOffsets("g", 5),  # type: ignore[arg-type]
        GroupOffsets(5, {(INPUT, 0): 5}),  # type: ignore[arg-type]
        GroupOffsets("", {(INPUT, 0): 5}),
        GroupOffsets("g", {(INPUT, 0): 5}, 7),  # type: ignore[arg-type]
        GroupOffsets("g", {(INPUT, 0): 5}, "member", "7"),  # type: ignore[arg-type]
        GroupOffsets("g", {(INPUT, 0): 5}, "member", 1 << 31),
        GroupOffsets("g", {(INPUT, 0): 5}, "member", 7, 7),  # type: ignore[arg-type]
    ],
)
async def test_invalid_offsets(cluster: EmbeddedCluster, producer: Producer, source: object) -> None:
    """The producer goes on: the coordinator would refuse the request, and the producer could only be closed."""
    with pytest.raises(ConfigError):
        async with producer.transaction():
            await producer.send_offsets(source)  # type: ignore[arg-type]
    assert requests(cluster) == ["InitProducerId"]
    async with producer.transaction():
        await producer.send_offsets(GroupOffsets("g", {(INPUT, 0): 5}))
    assert cluster.group("g").offsets[TopicPartition(INPUT, 0)].offset == 5


@pytest.mark.parametrize("place", [TopicPartition(INPUT, 0), (INPUT, 0)])
@pytest.mark.parametrize("offset", [5, CommittedOffset(5)])
async def test_offsets_may_be_numbers_by_topic_and_partition(place: Any, offset: Any) -> None:
    given = GroupOffsets("g", {place: offset})
    assert given == GroupOffsets("g", {TopicPartition(INPUT, 0): CommittedOffset(5)})
    assert isinstance(next(iter(given.offsets)), TopicPartition)
    assert replace(given, member_id="m") == GroupOffsets("g", given.offsets, "m")
    async with transacting() as (cluster, producer):
        async with producer.transaction():
            await producer.send_offsets(given)
        assert cluster.group("g").offsets[TopicPartition(INPUT, 0)].offset == 5


async def test_the_error_of_other_offsets_shows_the_form() -> None:
    async with transacting() as (_, producer):
        with pytest.raises(
            ConfigError, match=r"the next offset of each partition: \{\(topic, partition\): next_offset"
        ):
            async with producer.transaction():
                await producer.send_offsets(GroupOffsets("g", {TopicPartition(INPUT, 0): "5"}))  # type: ignore[dict-item]


async def test_offsets_of_an_object_and_no_offsets(cluster: EmbeddedCluster, producer: Producer) -> None:
    class Session:
        def group_offsets(self) -> GroupOffsets:
            return offsets_of("g", 9, member_id="", generation_id=-1)

    async with producer.transaction():
        await producer.send_offsets(GroupOffsets("g", {}))
    assert requests(cluster) == ["InitProducerId"]
    async with producer.transaction():
        await producer.send_offsets(Session())
    offset = cluster.group("g").offsets[TopicPartition(INPUT, 0)]
    assert (offset.offset, offset.metadata) == (9, "meta")
