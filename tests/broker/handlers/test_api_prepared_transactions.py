"""Transactions whose markers are written some time after EndTxn is answered, as in Kafka."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from asyncgroup import Producer, ProducerConfig
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from asyncgroup.wire import messages as m
from tests.broker.client import Client, connect
from tests.broker.handlers.test_api_transactions import latest, put
from tests.broker.transactional import add_partitions, end_transaction, init_producer, partition_errors


async def state(client: Client) -> tuple[str, int, list[str]]:
    """Return the state and number of partitions by DescribeTransactions, and the states by ListTransactions."""
    (described,) = (await client.ask(m.DescribeTransactionsRequest(["tx"]))).transaction_states
    listed = await client.ask(m.ListTransactionsRequest(["PrepareCommit", "PrepareAbort"], []), 0)
    partitions = sum(len(topic.partitions) for topic in described.topics)
    return (
        described.transaction_state,
        partitions,
        [one.transaction_state for one in listed.transaction_states],
    )


@pytest.mark.parametrize(("commit", "what"), [(True, "Commit"), (False, "Abort")])
async def test_a_transaction_is_prepared_before_it_is_complete(
    commit: bool, what: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, "asyncgroup.broker.transactions.completion")
    async with EmbeddedCluster(transaction_markers_delay=2.0) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 2)
        producer = await init_producer(client, 4)
        await client.ask(add_partitions(producer, 0, 1, version=3), 3)
        assert not (await put(client, cluster, producer, b"a")).error_code
        assert not (await end_transaction(client, producer, 4, commit=commit)).error_code
        assert await state(client) == (f"Prepare{what}", 2, [f"Prepare{what}"])
        again = await end_transaction(client, producer, 4, commit=commit)
        assert again.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        answer = await client.ask(add_partitions(producer, 0, version=3), 3)
        assert partition_errors(answer) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert (await latest(client, 0), await latest(client, 1)) == (1, 0)
        await asyncio.sleep(2.0)
        assert await state(client) == (f"Complete{what}", 0, [])
        assert (await latest(client, 0), await latest(client, 1)) == (2, 2)
        assert not (await end_transaction(client, producer, 4, commit=commit)).error_code
    assert caplog.messages == [f"transactional id 'tx': {step}{what}" for step in ("Prepare", "Complete")]


async def test_a_prepared_transaction_completes_when_the_cluster_starts_again(tmp_path: Path):
    async with (
        EmbeddedCluster(data_dir=tmp_path, transaction_markers_delay=5.0) as cluster,
        connect(cluster) as client,
    ):
        cluster.create_topic("t")
        producer = await init_producer(client, 4)
        await client.ask(add_partitions(producer, 0, version=3), 3)
        await put(client, cluster, producer, b"a")
        await end_transaction(client, producer, 4, commit=True)
        assert cluster.transactions["tx"].state == "PrepareCommit"
    async with EmbeddedCluster(data_dir=tmp_path, transaction_markers_delay=5.0) as cluster:
        assert cluster.transactions["tx"].state == "CompleteCommit"
        assert cluster.partition("t", 0).last_stable_offset == 2


@pytest.mark.parametrize("version", [1, 2])
async def test_a_producer_waits_for_the_markers_of_its_last_transaction(version: int):
    async with EmbeddedCluster(
        transaction_markers_delay=0.3, transaction_version=version, topics="t"
    ) as cluster:
        async with Producer(cluster.bootstrap_servers, ProducerConfig(transactional_id="tx")) as producer:
            for value in (b"a", b"b"):
                async with producer.transaction():
                    await producer.send("t", value)
        assert [record.value for record in cluster.records("t")] == [b"a", b"b"]
        refused = [
            exchange.api
            for exchange in cluster.history
            if ErrorCode.CONCURRENT_TRANSACTIONS in exchange.errors
        ]
        assert refused


@pytest.mark.parametrize("delay", [-1.0, float("nan"), float("inf")])
def test_delays_that_are_not_allowed(delay: float):
    with pytest.raises(ConfigError, match="transaction_markers_delay"):
        EmbeddedCluster(transaction_markers_delay=delay)
