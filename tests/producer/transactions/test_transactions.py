"""Transactions on the embedded cluster: begin, send, send offsets, commit, abort, detach, end."""

from __future__ import annotations

import pickle

import pytest

from asyncgroup import Cluster, OpenTransaction, Producer, end_transaction
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    ClosedError,
    ConfigError,
    NoTransactionError,
    NotTransactionalError,
    ProducerFencedError,
    TransactionInProgressError,
)
from asyncgroup.model import TopicPartition
from tests.producer.support import TOPIC, stored
from tests.producer.transactions.support import (
    INPUT,
    NAME,
    committed,
    offsets_of,
    producer_of,
    requests,
    transacting,
)


class Boom(Exception):
    """Raised in a transaction's block."""


async def test_a_transaction_commits_at_the_end_of_its_block() -> None:
    async with transacting() as (cluster, producer):
        async with producer.transaction():
            sent = await producer.send(TOPIC, b"a", partition=0)
            future = producer.send_nowait(TOPIC, b"b", partition=1)
            await producer.enqueue(TOPIC, b"c", partition=2)
            assert committed(cluster) == []
        assert sent.offset == 0
        assert (await future).offset == 0
        assert committed(cluster) == [b"a", b"b", b"c"]
        assert str(cluster.transactions[NAME].state) == "CompleteCommit"


async def test_a_transaction_is_aborted_if_its_block_raises() -> None:
    async with transacting() as (cluster, producer):
        with pytest.raises(Boom):
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
                raise Boom
        assert stored(cluster) == [b"a"]
        assert committed(cluster) == []
        async with producer.transaction():
            await producer.send(TOPIC, b"b", partition=0)
        assert committed(cluster) == [b"b"]


async def test_offsets_are_committed_with_the_transaction() -> None:
    async with transacting() as (cluster, producer):
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            await producer.send_offsets(offsets_of("g", 7))
            assert TopicPartition(INPUT, 0) not in cluster.group("g").offsets
        assert cluster.group("g").offsets[TopicPartition(INPUT, 0)].offset == 7
        with pytest.raises(Boom):
            async with producer.transaction():
                await producer.send_offsets(offsets_of("g", 8))
                raise Boom
        assert cluster.group("g").offsets[TopicPartition(INPUT, 0)].offset == 7


async def test_the_requests_of_version_2(cluster: EmbeddedCluster, producer: Producer) -> None:
    """KIP-890: Produce 12 and TxnOffsetCommit 5 add to the transaction, EndTxn 5 returns the next epoch."""
    for value in (b"a", b"b"):
        async with producer.transaction():
            await producer.send(TOPIC, value, partition=0)
            await producer.send_offsets(offsets_of())
    assert requests(cluster) == ["InitProducerId", *["Produce", "TxnOffsetCommit", "EndTxn"] * 2]
    assert {exchange.version for exchange in cluster.history.of("EndTxn")} == {5}
    assert {exchange.version for exchange in cluster.history.of("TxnOffsetCommit")} == {5}
    assert all(exchange.version >= 12 for exchange in cluster.history.of("Produce"))
    assert [e.request.producer_epoch for e in cluster.history.of("EndTxn")] == [0, 1]


async def test_an_empty_transaction_sends_nothing(cluster: EmbeddedCluster, producer: Producer) -> None:
    async with producer.transaction():
        pass
    with pytest.raises(Boom):
        async with producer.transaction():
            raise Boom
    assert requests(cluster) == ["InitProducerId"]


async def test_a_second_producer_fences_the_first_one_and_aborts_its_transaction() -> None:
    async with transacting() as (cluster, first):
        async with first.transaction():
            await first.send(TOPIC, b"before", partition=0)
        with pytest.raises(
            ProducerFencedError,
            match=r"'orders-1': fenced: producer id \d+ with epoch 1 .*epoch 4, state CompleteCommit",
        ) as raised:
            async with first.transaction():
                await first.send(TOPIC, b"lost", partition=0)
                async with producer_of(cluster) as second:
                    async with second.transaction():
                        await second.send(TOPIC, b"after", partition=0)
                    await first.send(TOPIC, b"zombie", partition=0)
        assert raised.value.epoch == 1
        assert raised.value.current is not None
        assert committed(cluster) == [b"before", b"after"]
        with pytest.raises(ProducerFencedError):
            async with first.transaction():
                pass


async def test_what_a_user_may_do_wrong() -> None:
    async with transacting() as (cluster, producer):
        with pytest.raises(
            NoTransactionError, match=r"'orders-1': a record is written in a transaction only .* is ready"
        ):
            await producer.send(TOPIC, b"x")
        with pytest.raises(NoTransactionError):
            producer.send_nowait(TOPIC, b"x")
        with pytest.raises(NoTransactionError):
            await producer.enqueue(TOPIC, b"x")
        with pytest.raises(NoTransactionError, match="send_offsets needs an open transaction"):
            await producer.send_offsets(offsets_of())
        with pytest.raises(NoTransactionError, match="detach_transaction needs an open transaction"):
            await producer.detach_transaction()
        with pytest.raises(
            TransactionInProgressError, match=r"'orders-1' is in a transaction: .* one transaction at a time"
        ):
            async with producer.transaction(), producer.transaction():
                pass
        assert requests(cluster) == ["InitProducerId"]
    with pytest.raises(ClosedError):
        async with producer.transaction():
            pass
    with pytest.raises(ClosedError):
        await producer.send_offsets(offsets_of())


async def test_transactions_need_a_transactional_id() -> None:
    async with transacting(name=None) as (_, producer):
        for call in (producer.transaction, lambda: producer._transactional("x")):
            with pytest.raises(NotTransactionalError, match=r"needs ProducerConfig\(transactional_id=...\)"):
                call()
        with pytest.raises(NotTransactionalError):
            await producer.send_offsets(offsets_of())
        with pytest.raises(NotTransactionalError):
            await producer.detach_transaction()


@pytest.mark.parametrize("config", [{"acks": 1}, {"enable_idempotence": False}])
async def test_transactions_need_idempotence(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="transactional_id='x' is not allowed: only with acks='all'"):
        ProducerConfig(transactional_id="x", **config)  # type: ignore[arg-type]


# --- detached transactions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
async def test_another_process_ends_a_transaction(cluster: EmbeddedCluster, commit: bool) -> None:
    async with producer_of(cluster) as producer, producer.transaction():
        await producer.enqueue(TOPIC, b"a", partition=0)
        await producer.send_offsets(offsets_of())
        detached = await producer.detach_transaction()
        with pytest.raises(ClosedError, match="was detached: it can only be closed"):
            await producer.send(TOPIC, b"b")
    assert committed(cluster) == []
    assert len(stored(cluster)) == 1
    transaction = pickle.loads(pickle.dumps(detached))
    assert transaction == OpenTransaction(NAME, detached.producer_id, 0, 2)
    async with Cluster(cluster.bootstrap_servers) as clients:
        for _ in range(2):  # a repeated end finds it done
            await end_transaction(clients, transaction, commit=commit)
    assert committed(cluster) == ([b"a"] if commit else [])
    assert bool(cluster.group("g").offsets) is commit


async def test_a_detached_transaction_without_records(cluster: EmbeddedCluster) -> None:
    async with producer_of(cluster) as producer, producer.transaction():
        detached = await producer.detach_transaction()
    assert not detached.has_writes
    async with Cluster(cluster.bootstrap_servers) as clients:
        await end_transaction(clients, detached, commit=True)
    assert requests(cluster) == ["InitProducerId"]
