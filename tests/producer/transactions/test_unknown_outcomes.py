"""What is known of a transaction after a failure: it is called aborted only if it certainly is, and has one error for one cause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from asyncgroup import Cluster, end_transaction
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import (
    CommitFailedError,
    ErrorCode,
    ProducerFencedError,
    RequestTimedOut,
    TransactionAbortedError,
    TransactionOutcomeUnknown,
)
from asyncgroup.model import CommittedOffset, GroupOffsets, TopicPartition
from asyncgroup.producer import Producer
from tests.producer.support import TOPIC, now
from tests.producer.transactions.support import (
    AFTER_LOG,
    INPUT,
    answered,
    cluster_with_topics,
    committed,
    offsets_of,
    producer_of,
    transacting,
)

VERSIONS = pytest.mark.parametrize("version", [1, 2])
# --- a commit that may have been made -------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("detaches", [False, True])
@pytest.mark.parametrize("code", AFTER_LOG)
async def test_a_commit_that_was_made_and_a_retry_that_is_fenced(
    version: int, code: ErrorCode, detaches: bool
) -> None:
    async with cluster_with_topics() as cluster, Cluster(cluster.bootstrap_servers) as clients:
        cluster.faults.on("EndTxn").mutate(answered(code))
        refused = cluster.faults.on("EndTxn").error(ErrorCode.PRODUCER_FENCED)
        with pytest.raises(TransactionOutcomeUnknown, match=r"may be committed or not.*fenced") as raised:
            async with producer_of(cluster) as producer, producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                if detaches:
                    detached = await producer.detach_transaction()
                    await end_transaction(clients, detached, commit=True)
        assert raised.value.commit
        assert refused.hits == 1
        assert committed(cluster) == [b"a"]


@VERSIONS
@pytest.mark.parametrize("detaches", [False, True])
async def test_an_error_that_does_not_say_whether_the_commit_was_made(version: int, detaches: bool) -> None:
    async with cluster_with_topics() as cluster, Cluster(cluster.bootstrap_servers) as clients:
        cluster.faults.on("EndTxn").mutate(answered(ErrorCode.UNKNOWN_SERVER_ERROR))
        with pytest.raises(TransactionOutcomeUnknown, match=r"may be committed or not.*UNKNOWN_SERVER_ERROR"):
            async with producer_of(cluster) as producer, producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                if detaches:
                    detached = await producer.detach_transaction()
                    await end_transaction(clients, detached, commit=True)
        assert committed(cluster) == [b"a"]


@VERSIONS
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.PRODUCER_FENCED,
    ],
)
@pytest.mark.full
async def test_a_commit_that_was_refused_before_the_log_is_aborted(version: int, code: ErrorCode) -> None:
    async with cluster_with_topics() as cluster:
        cluster.faults.on("EndTxn").error(code)
        cluster.faults.on("EndTxn").error(ErrorCode.PRODUCER_FENCED).optional()
        with pytest.raises(ProducerFencedError):
            async with producer_of(cluster) as producer, producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
        assert committed(cluster) == []


@VERSIONS
@pytest.mark.full
async def test_a_commit_that_was_never_sent_and_then_fenced_is_aborted(version: int) -> None:
    """The first attempt finds no coordinator, so it is not one without a result."""
    async with cluster_with_topics(nodes=1) as cluster, producer_of(cluster) as producer:
        with pytest.raises(ProducerFencedError):
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                await cluster.stop_node(1)
                await asyncio.sleep(1.0)  # until the client knows that its connections have ended
                cluster.faults.on("EndTxn").error(ErrorCode.PRODUCER_FENCED)
                starting = asyncio.create_task(start_later(cluster))
        await starting
        assert committed(cluster) == []


async def start_later(cluster: EmbeddedCluster) -> None:
    await asyncio.sleep(5.0)
    await cluster.start_node(1)


@VERSIONS
@pytest.mark.full
async def test_the_note_of_a_cancelled_commit_does_not_call_it_failed(version: int) -> None:
    async with cluster_with_topics() as cluster, producer_of(cluster, close_timeout=20.0) as producer:
        cluster.faults.on("EndTxn").mutate(answered(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        held = cluster.faults.on("EndTxn").hold().error(ErrorCode.PRODUCER_FENCED)

        async def write() -> None:
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)

        writing = asyncio.create_task(write())
        await held.wait_hit()
        writing.cancel()
        await asyncio.sleep(0.1)
        held.release()
        with pytest.raises(asyncio.CancelledError) as raised:
            await writing
        assert "the transaction may be committed or not" in raised.value.__notes__[0]
        assert committed(cluster) == [b"a"]


@pytest.mark.parametrize("version", [1])
@pytest.mark.parametrize("code", AFTER_LOG)
@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "AddOffsetsToTxn"])
async def test_an_addition_that_was_made_is_not_left_open_by_an_abort(
    version: int, code: ErrorCode, api: str
) -> None:
    """The coordinator would abort it after its timeout, and fence the producer."""
    async with transacting(transaction_timeout=10.0, delivery_timeout=60.0) as (cluster, producer):
        held = cluster.faults.on(api).hold().mutate(answered(code))
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                if api == "AddPartitionsToTxn":
                    await producer.enqueue(TOPIC, b"a", partition=0)
                else:
                    sending = asyncio.create_task(producer.send_offsets(offsets_of("g", 1)))
                await held.wait_hit()
                asyncio.get_running_loop().call_later(1.0, held.release)
                raise ZeroDivisionError
        if api == "AddOffsetsToTxn":
            await sending  # they belonged to the transaction, and are aborted with it
        await asyncio.sleep(30.0)
        async with producer.transaction():
            await producer.send(TOPIC, b"b", partition=0)
        assert committed(cluster) == [b"b"]
        assert not cluster.group("g").offsets


# --- a transaction over its timeout ---------------------------------------------------------------------------------


async def send(producer: Producer) -> None:
    await producer.send(TOPIC, b"b", partition=0)


async def send_elsewhere(producer: Producer) -> None:
    await producer.send(TOPIC, b"b", partition=1)


async def enqueue(producer: Producer) -> None:
    await producer.enqueue(TOPIC, b"b", partition=0)


async def send_offsets(producer: Producer) -> None:
    await producer.send_offsets(offsets_of("g", 1))


async def commit(_: Producer) -> None:
    """The end of the block follows."""


@VERSIONS
@pytest.mark.parametrize("act", [send, send_elsewhere, enqueue, send_offsets, commit])
async def test_a_transaction_over_its_timeout_has_one_error(
    cluster: EmbeddedCluster, version: int, act: Callable[[Producer], Awaitable[None]]
) -> None:
    async with producer_of(cluster, transaction_timeout=5.0) as producer:
        with pytest.raises(
            ProducerFencedError, match=r"took longer than transaction_timeout=5 s.*Close this producer"
        ) as raised:
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                await asyncio.sleep(10.0)
                await act(producer)
        assert raised.value.current == (raised.value.producer_id, raised.value.epoch + 1)
        assert raised.value.state == "CompleteAbort"
        with pytest.raises(ProducerFencedError):
            async with producer.transaction():
                pass
    assert committed(cluster) == []


@VERSIONS
async def test_a_detached_transaction_over_its_timeout_has_one_error(version: int) -> None:
    """It is aborted: as no newer producer exists, none has fenced it. To abort it is no error."""
    async with cluster_with_topics() as cluster, Cluster(cluster.bootstrap_servers) as clients:
        async with producer_of(cluster, transaction_timeout=5.0) as producer, producer.transaction():
            await producer.enqueue(TOPIC, b"a", partition=0)
            detached = await producer.detach_transaction()
        await asyncio.sleep(10.0)
        with pytest.raises(TransactionAbortedError, match="after transaction_timeout"):
            await end_transaction(clients, detached, commit=True)
        await end_transaction(clients, detached, commit=False)
        async with producer_of(cluster):
            with pytest.raises(ProducerFencedError):
                await end_transaction(clients, detached, commit=True)
        assert committed(cluster) == []


# --- a wait that is not silent --------------------------------------------------------------------------------------


@VERSIONS
async def test_offsets_that_a_coordinator_does_not_take_are_logged_while_they_wait(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata has the topic, so the coordinator may know it soon."""
    caplog.set_level(logging.WARNING, logger="asyncgroup.producer")
    async with transacting(delivery_timeout=100.0) as (cluster, producer):
        cluster.faults.on("TxnOffsetCommit", times=None).error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        begun = now()
        with pytest.raises((CommitFailedError, RequestTimedOut), match="input-0"):
            async with producer.transaction():
                sending = asyncio.create_task(producer.send_offsets(offsets_of("g", 5)))
                await asyncio.sleep(12.0)
                lines = [each.getMessage() for each in caplog.records if "input-0" in each.getMessage()]
                assert len(lines) == 1
                assert "TxnOffsetCommit, group 'g', input-0: UNKNOWN_TOPIC_OR_PARTITION" in lines[0]
                assert "repeated for at most 100 s" in lines[0]
                await sending
        assert now() - begun == pytest.approx(100.0, abs=3.0)
        assert 3 <= sum("input-0" in each.getMessage() for each in caplog.records) <= 6


@VERSIONS
async def test_a_transaction_does_not_wait_for_a_topic_that_does_not_exist(version: int) -> None:
    """Its offsets are refused after some lookups of the metadata; those of others are not committed without them."""
    both = GroupOffsets("g", {TopicPartition(name, 0): CommittedOffset(5) for name in (INPUT, "missing")})
    async with transacting(delivery_timeout=100.0) as (cluster, producer):
        begun = now()
        with pytest.raises(CommitFailedError, match="missing-0: UNKNOWN_TOPIC_OR_PARTITION"):
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                await producer.send_offsets(both)
        assert now() - begun < 10.0
        async with producer.transaction():
            await producer.send_offsets(offsets_of("g", 6))
        assert cluster.group("g").offsets[TopicPartition(INPUT, 0)].offset == 6
        assert committed(cluster) == []


@VERSIONS
async def test_the_lookup_of_a_missing_topic_does_not_create_it(version: int) -> None:
    """Otherwise the offset of a deleted topic would be committed for the new one, and no member would read its first records."""
    gone = GroupOffsets("g", {TopicPartition("source", 0): CommittedOffset(1000)})
    async with transacting(options={"auto_create_topics": True}) as (cluster, producer):
        cluster.create_topic("source", 1)
        cluster.delete_topic("source")
        with pytest.raises(CommitFailedError, match="source-0"):
            async with producer.transaction():
                await producer.send_offsets(gone)
        assert "source" not in cluster.topics
        assert not cluster.group("g").offsets


@pytest.mark.parametrize("version", [0, 1])
async def test_a_partition_that_cannot_be_added_as_it_was_deleted(version: int) -> None:
    async with transacting(delivery_timeout=100.0) as (cluster, producer):
        cluster.create_topic("other", 1)
        async with producer.transaction():
            await producer.send("other", b"a", partition=0)
        cluster.delete_topic("other")
        begun = now()
        with pytest.raises(TransactionAbortedError, match="other-0: UNKNOWN_TOPIC_OR_PARTITION"):
            async with producer.transaction():
                await producer.send("other", b"b", partition=0)
        assert now() - begun < 10.0
        async with producer.transaction():
            await producer.send(TOPIC, b"c", partition=0)
        assert committed(cluster) == [b"c"]


@VERSIONS
@pytest.mark.full
async def test_short_waits_are_not_logged(version: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="asyncgroup.producer")
    async with transacting() as (cluster, producer):
        cluster.faults.on("TxnOffsetCommit", times=3).error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        async with producer.transaction():
            await producer.send_offsets(offsets_of("g", 1))
        assert not caplog.records
