"""Transactions of version 1, and changes between the versions (KIP-890)."""

from __future__ import annotations

import pytest

from asyncgroup.broker.metadata.features import DEFAULT_LEVELS
from asyncgroup.errors import AsyncGroupError, ErrorCode
from tests.producer.support import TOPIC, now
from tests.producer.transactions.support import (
    NAME,
    committed,
    offsets_of,
    requests,
    transacting,
)


@pytest.mark.parametrize("level", [0, 1])
async def test_the_requests_of_version_1(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    """Partitions and groups are added first, the epoch stays, sequence numbers go on."""
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", level)
    async with transacting() as (cluster, producer):
        for value in (b"a", b"b"):
            async with producer.transaction():
                await producer.send(TOPIC, value, partition=0)
                await producer.send(TOPIC, value, partition=0)
                await producer.send_offsets(offsets_of())
        once = ["AddPartitionsToTxn", "Produce", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
        assert requests(cluster) == ["InitProducerId", *once * 2]
        highest = {api: max(e.version for e in cluster.history.of(api)) for api in set(once)}
        assert highest == {
            "AddPartitionsToTxn": 3, "Produce": 11, "AddOffsetsToTxn": 4, "TxnOffsetCommit": 4, "EndTxn": 4
        }  # fmt: skip
        assert [e.request.producer_epoch for e in cluster.history.of("EndTxn")] == [0, 0]
        assert committed(cluster) == [b"a", b"a", b"b", b"b"]


async def test_an_upgrade_needs_the_next_epoch_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Java: version 2 would otherwise begin under an epoch that version 1 has used."""
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", 1)
    async with transacting() as (cluster, producer):
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", 2)
            cluster.faults.on("EndTxn").disconnect("before")  # features are read from each new connection
        async with producer.transaction():
            await producer.send(TOPIC, b"b", partition=0)
        assert requests(cluster)[-5:] == ["EndTxn", "EndTxn", "InitProducerId", "Produce", "EndTxn"]
        assert [exchange.version for exchange in cluster.history.of("EndTxn")] == [4, 4, 5]
        assert committed(cluster) == [b"a", b"b"]


async def test_a_downgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting() as (cluster, producer):
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
            monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", 1)
            cluster.faults.on("EndTxn").disconnect("before")
        for value in (b"b", b"c"):
            async with producer.transaction():
                await producer.send(TOPIC, value, partition=0)
        assert [exchange.version for exchange in cluster.history.of("EndTxn")] == [5, 5, 4, 4]
        assert committed(cluster) == [b"a", b"b", b"c"]


async def test_a_change_is_seen_on_a_connection_to_any_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Java, the newest response to ApiVersions decides; the connection to the coordinator stays open."""
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", 1)
    async with transacting() as (cluster, producer):
        coordinator = cluster.transaction_coordinator(NAME)
        elsewhere = next(number for number in range(3) if cluster.leader(TOPIC, number) != coordinator)
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=elsewhere)
            monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", 2)
            cluster.faults.on("Produce").disconnect("before")
            await producer.send(TOPIC, b"b", partition=elsewhere)
        async with producer.transaction():
            await producer.send(TOPIC, b"c", partition=elsewhere)
        assert [exchange.version for exchange in cluster.history.of("EndTxn")] == [4, 5]
        assert committed(cluster) == [b"a", b"b", b"c"]


async def test_markers_that_are_not_written_yet_are_waited_for_in_short_pauses() -> None:
    async with transacting(retry_backoff=1.0, retry_backoff_max=1.0) as (cluster, producer):
        cluster.faults.on("Produce", times=2).error(ErrorCode.CONCURRENT_TRANSACTIONS)
        begun = now()
        async with producer.transaction():
            await producer.send(TOPIC, b"a", partition=0)
        assert now() - begun == pytest.approx(0.02 + 0.04, abs=0.01)


async def test_a_broker_without_version_2_although_it_is_finalized() -> None:
    async with transacting() as (cluster, producer):
        cluster.faults.on("ApiVersions", times=None).mutate(only_produce_11)
        wanted = r"transaction.version=2 is finalized, but node \d has Produce up to version 11 only"
        with pytest.raises(AsyncGroupError, match=wanted):
            async with producer.transaction():
                await producer.send(TOPIC, b"a", partition=0)
        cluster.faults.clear()
        assert committed(cluster) == []


def only_produce_11(response: object) -> None:
    for key in response.api_keys:  # type: ignore[attr-defined]
        if key.api_key == 0:
            key.max_version = 11
