"""How transactions end when something comes between: lost responses, moves, timeouts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import Cluster, Producer, RequestTimedOut, end_transaction
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    ConfigError,
    ErrorCode,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknown,
)
from asyncgroup.model import TopicPartition
from tests.producer.support import TOPIC, now, stored
from tests.producer.transactions.support import (
    INPUT,
    NAME,
    cluster_with_topics,
    committed,
    offsets_of,
    producer_of,
    transacting,
)

VERSIONS = pytest.mark.parametrize("version", [1, 2])


# --- lost responses and moves ---------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "api", ["AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "Produce"]
)
@pytest.mark.parametrize("commit", [True, False])
async def test_a_lost_request_or_response(version: int, when: str, api: str, commit: bool) -> None:
    """A repeated request is recognized; a commit is made once."""
    async with transacting() as (cluster, producer):
        cluster.faults.on(api).disconnect(when).optional()  # type: ignore[arg-type]
        for value in (b"a", b"b"):
            try:
                async with producer.transaction():
                    await producer.send(TOPIC, value, partition=0)
                    await producer.send_offsets(offsets_of("g", 5))
                    if not commit:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        assert committed(cluster) == ([b"a", b"b"] if commit else [])
        assert bool(cluster.group("g").offsets) is commit
        assert stored(cluster) == [b"a", b"b"]


@VERSIONS
async def test_no_answer_to_end_txn(cluster: EmbeddedCluster, producer: Producer, version: int) -> None:
    """The connection stays open, so only the request timeout shows that the response is lost."""
    cluster.faults.on("EndTxn").drop()
    begun = now()
    async with producer.transaction():
        await producer.send(TOPIC, b"a", partition=0)
    assert now() - begun == pytest.approx(30.0, abs=1.0)
    assert committed(cluster) == [b"a"]


@VERSIONS
async def test_the_coordinator_moves(cluster: EmbeddedCluster, producer: Producer, version: int) -> None:
    for step in range(4):
        async with producer.transaction():
            cluster.move_transaction_coordinator(NAME, step % 3 + 1)
            await producer.send(TOPIC, b"%d" % step, partition=0)
            cluster.move_coordinator("g", (step + 1) % 3 + 1)
            await producer.send_offsets(offsets_of("g", step))
            cluster.move_transaction_coordinator(NAME, (step + 1) % 3 + 1)
    assert committed(cluster) == [b"0", b"1", b"2", b"3"]
    assert cluster.group("g").offsets[TopicPartition(INPUT, 0)].offset == 3


@VERSIONS
async def test_the_coordinators_node_stops(version: int) -> None:
    async with transacting() as (cluster, producer):
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            await cluster.stop_node(cluster.transaction_coordinator(NAME))
        assert committed(cluster) == [b"a"]


# --- no end in time -------------------------------------------------------------------------------------------------


@VERSIONS
async def test_a_commit_without_an_answer(cluster: EmbeddedCluster, version: int) -> None:
    """Whether it was made is not known: the next producer finds it out."""
    async with producer_of(cluster, delivery_timeout=40.0) as producer:
        with pytest.raises(
            TransactionOutcomeUnknown, match=r"may be committed or not: .*COORDINATOR_NOT_AVAILABLE"
        ) as raised:
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                cluster.faults.on("EndTxn", times=None).error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert raised.value.commit
        with pytest.raises(TransactionOutcomeUnknown):
            async with producer.transaction():
                pass
    cluster.faults.clear()
    async with producer_of(cluster) as other, other.transaction():
        await other.send(TOPIC, b"b", partition=0)
    assert committed(cluster) == [b"b"]


@VERSIONS
@pytest.mark.parametrize(
    "code",
    [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING],
)
async def test_a_refusal_after_a_commit_without_an_answer(version: int, code: ErrorCode) -> None:
    """Found by the random transactions: the first EndTxn has committed, so this is not an abort."""
    async with cluster_with_topics() as cluster, Cluster(cluster.bootstrap_servers) as clients:
        for detaches in (False, True):
            lost = cluster.faults.on("EndTxn").disconnect("after")
            refused = cluster.faults.on("EndTxn").error(code)
            with pytest.raises(TransactionOutcomeUnknown, match="may be committed or not"):
                async with producer_of(cluster) as producer, producer.transaction():
                    await producer.send(TOPIC, b"a", partition=0)
                    if detaches:
                        detached = await producer.detach_transaction()
                        await end_transaction(clients, detached, commit=True)
            assert (lost.hits, refused.hits) == (1, 1)
        assert committed(cluster) == [b"a", b"a"]


async def test_an_abort_without_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_with_topics() as cluster, producer_of(cluster, delivery_timeout=40.0) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                cluster.faults.on("EndTxn", times=None).disconnect("before")
                raise ZeroDivisionError
        assert "the transaction was not aborted" in caplog.text
        with pytest.raises(TransactionOutcomeUnknown, match="may still be open"):
            async with producer.transaction():
                pass


async def test_offsets_without_an_answer() -> None:
    async with transacting(delivery_timeout=40.0) as (cluster, producer):
        fault = cluster.faults.on("TxnOffsetCommit", times=None).disconnect("before")
        with pytest.raises(RequestTimedOut, match=r"'orders-1': no success within delivery_timeout=40 s"):
            async with producer.transaction():
                await producer.send_offsets(offsets_of())
        fault.cancel()
        async with producer.transaction():
            await producer.send_offsets(offsets_of())


@pytest.mark.parametrize("version", [1])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_partitions_and_groups_that_may_have_been_added(version: int, when: str) -> None:
    """No answer until delivery_timeout: the next epoch leaves what the coordinator may have begun."""
    for api in ("AddPartitionsToTxn", "AddOffsetsToTxn"):
        async with transacting(delivery_timeout=40.0) as (cluster, producer):
            cluster.faults.on(api, times=None).disconnect(when)  # type: ignore[arg-type]
            with pytest.raises(AsyncGroupError, match="delivery_timeout=40 s"):
                async with producer.transaction():
                    await producer.send_offsets(offsets_of("g", 1))
                    await producer.send(TOPIC, b"a", partition=0)
            cluster.faults.clear()
            async with producer.transaction():
                await producer.send_offsets(offsets_of("g", 2))
                await producer.send(TOPIC, b"b", partition=0)
            assert committed(cluster) == [b"b"]
            assert cluster.history.of("EndTxn")[-1].request.producer_epoch >= 1


@VERSIONS
@pytest.mark.parametrize("when", ["before", "after"])
async def test_records_that_expire_abort_the_transaction(version: int, when: str) -> None:
    """A batch whose result is unknown: the next transaction has another epoch."""
    async with transacting(delivery_timeout=40.0, request_timeout=30.0) as (cluster, producer):
        cluster.faults.on("Produce", times=None).disconnect(when)  # type: ignore[arg-type]
        with pytest.raises(TransactionAbortedError, match="not acknowledged within delivery_timeout"):
            async with producer.transaction():
                await producer.enqueue(TOPIC, b"a", partition=0)
        cluster.faults.clear()
        async with producer.transaction():
            await producer.send(TOPIC, b"b", partition=0)
        assert stored(cluster) == ([b"b"] if when == "before" else [b"a", b"b"])
        assert committed(cluster) == [b"b"]


@VERSIONS
async def test_a_batch_in_flight_at_an_abort(version: int) -> None:
    """Its request is waited for; as the result is lost, the next transaction has another epoch."""
    async with transacting(request_timeout=5.0) as (cluster, producer):
        held = cluster.faults.on("Produce").hold().disconnect("before")
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.enqueue(TOPIC, b"a", partition=0)
                await held.wait_hit()
                asyncio.get_running_loop().call_later(1.0, held.release)
                raise ZeroDivisionError
        assert now() >= 1.0
        async with producer.transaction():
            await producer.send(TOPIC, b"b", partition=0)
        assert committed(cluster) == stored(cluster) == [b"b"]


async def test_the_transaction_timeout(cluster: EmbeddedCluster) -> None:
    """The coordinator aborts, and fences the producer; the error names the timeout among the causes."""
    async with producer_of(cluster, transaction_timeout=5.0) as producer:
        with pytest.raises(
            ProducerFencedError, match=r"transaction_timeout=5 s and the coordinator aborted it"
        ) as raised:
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                await asyncio.sleep(10.0)
                await producer.send(TOPIC, b"b", partition=0)
        assert raised.value.current == (raised.value.producer_id, 1)
        assert raised.value.state == "CompleteAbort"
    assert committed(cluster) == []


@VERSIONS
async def test_a_commit_after_the_transaction_timeout(cluster: EmbeddedCluster, version: int) -> None:
    """Fatal, as in Java 4.3 (`EndTxnHandler`): this producer can only be closed, and the next one goes on."""
    async with producer_of(cluster, transaction_timeout=5.0) as producer:
        with pytest.raises(ProducerFencedError) as raised:
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                await asyncio.sleep(10.0)
        text = str(raised.value)
        assert f"'{NAME}'" in text
        assert "transaction_timeout=5 s" in text
        assert text.endswith("Close this producer")
        if version == 2:
            assert isinstance(raised.value.__cause__, BrokerError)
            assert raised.value.__cause__.name == "INVALID_TXN_STATE"
        with pytest.raises(type(raised.value)) as again:
            async with producer.transaction():
                pass
        assert str(again.value) == text
    async with producer_of(cluster) as other, other.transaction():
        await other.send(TOPIC, b"b", partition=0)
    assert committed(cluster) == [b"b"]


@VERSIONS
@pytest.mark.parametrize("commit", [True, False])
async def test_a_detached_transaction_that_timed_out(version: int, commit: bool) -> None:
    async with cluster_with_topics() as cluster, Cluster(cluster.bootstrap_servers) as clients:
        async with producer_of(cluster, transaction_timeout=5.0) as producer, producer.transaction():
            await producer.enqueue(TOPIC, b"a", partition=0)
            detached = await producer.detach_transaction()
        assert detached.version == version
        await asyncio.sleep(10.0)
        if commit:
            with pytest.raises(TransactionAbortedError, match="after transaction_timeout"):
                await end_transaction(clients, detached, commit=True)
        else:
            await end_transaction(clients, detached, commit=False)
        assert committed(cluster) == []


@VERSIONS
async def test_a_detached_transaction_of_a_fenced_producer(version: int) -> None:
    async with cluster_with_topics() as cluster, Cluster(cluster.bootstrap_servers) as clients:
        async with producer_of(cluster) as producer, producer.transaction():
            await producer.enqueue(TOPIC, b"a", partition=0)
            detached = await producer.detach_transaction()
        async with producer_of(cluster):
            pass
        with pytest.raises(ProducerFencedError):
            await end_transaction(clients, detached, commit=True)
        assert committed(cluster) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"cluster": "127.0.0.1:9092"}, "cluster of type str"),
        ({"transaction": None}, "transaction of type NoneType"),
        ({"transaction": ("id", 1, 0, 2)}, "transaction of type tuple"),
        ({"commit": "no"}, "commit='no'"),
        ({"commit": None}, "commit=None"),
        ({"timeout": "5"}, "timeout='5'"),
        ({"timeout": None}, "timeout=None"),
    ],
)
async def test_arguments_of_end_transaction(arguments: dict[str, Any], text: str) -> None:
    async with cluster_with_topics() as cluster, Cluster(cluster.bootstrap_servers) as clients:
        async with producer_of(cluster) as producer, producer.transaction():
            await producer.enqueue(TOPIC, b"a", partition=0)
            detached = await producer.detach_transaction()
        given = {"cluster": clients, "transaction": detached, "commit": False, **arguments}
        with pytest.raises(ConfigError) as caught:
            await end_transaction(given.pop("cluster"), given.pop("transaction"), **given)
        assert text in str(caught.value)
        await end_transaction(clients, detached, commit=True)
        assert committed(cluster) == [b"a"]


async def test_end_transaction_on_a_cluster_that_is_not_open() -> None:
    """Nothing was sent, so the outcome is known."""
    async with cluster_with_topics() as cluster:
        async with producer_of(cluster) as producer, producer.transaction():
            await producer.enqueue(TOPIC, b"a", partition=0)
            detached = await producer.detach_transaction()
        with pytest.raises(ClosedError, match="is not open: nothing was sent"):
            await end_transaction(Cluster(cluster.bootstrap_servers), detached, commit=True)


async def test_end_transaction_without_an_answer() -> None:
    async with cluster_with_topics() as cluster, Cluster(cluster.bootstrap_servers) as clients:
        async with producer_of(cluster) as producer, producer.transaction():
            await producer.enqueue(TOPIC, b"a", partition=0)
            detached = await producer.detach_transaction()
        lost = cluster.faults.on("EndTxn", times=None).disconnect("after")
        with pytest.raises(TransactionOutcomeUnknown):
            await end_transaction(clients, detached, commit=True, timeout=5.0)
        lost.cancel()
        await end_transaction(clients, detached, commit=True)
        assert committed(cluster) == [b"a"]
