"""Transactions of the embedded Pulsar: programs on the wire in virtual time, and what happens to coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import SubType
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar.transactions.test_apache_pulsar import (
    UP_TO,
    acknowledge_beside_a_conflict,
    acknowledge_up_to,
    seek_to_what_a_transaction_has_acknowledged,
    share_an_entry,
)
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.transactions.transaction_stories import STORIES
from tests.pulsar_broker.wire_client import COORDINATORS, WireClient, outcome

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

HOSTS = ("10.0.0.1", "10.0.0.2")


@asynccontextmanager
async def embedded(brokers: int = 1, **options: Any) -> AsyncIterator[tuple[EmbeddedPulsar, WireClient]]:
    """An embedded Pulsar, and a client at its first broker that is connected to coordinator 0."""
    async with EmbeddedPulsar(hosts=HOSTS[:brokers], port=6650, **options) as pulsar:
        async with WireClient.of(pulsar.service_url) as client:
            yield pulsar, client


@pytest.mark.parametrize("name", STORIES)
async def test_story(name: str) -> None:
    async with embedded() as (_, client):
        await client.connect_coordinator()
        assert await STORIES[name].run(client, "t") == STORIES[name].expected


@pytest.mark.parametrize("index_acks", [True, False])
@pytest.mark.parametrize("commits", [True, False])
async def test_an_entry_that_two_consumers_share(*, commits: bool, index_acks: bool) -> None:
    async with EmbeddedPulsar(hosts=HOSTS[:1], port=6650) as pulsar:
        await share_an_entry(pulsar.service_url, commits=commits, index_acks=index_acks)


# --- coordinators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_batch", [True, False])
async def test_what_is_acknowledged_beside_a_conflict_comes_again(*, in_batch: bool) -> None:
    async with EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar:
        await acknowledge_beside_a_conflict(pulsar.service_url, in_batch=in_batch)


@pytest.mark.parametrize(("number", "ending", "left"), UP_TO)
async def test_a_cumulative_acknowledgement_leaves_what_others_have_acknowledged_after_it(
    number: int, ending: str, left: list[bytes | None]
) -> None:
    async with EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar:
        assert await acknowledge_up_to(pulsar.service_url, number, ending) == left


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_a_seek_to_what_a_transaction_has_acknowledged(kind: str) -> None:
    async with EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar:
        assert await seek_to_what_a_transaction_has_acknowledged(pulsar.service_url, kind) == [b"3"]


async def test_coordinators_are_partitions_of_a_topic_that_has_no_messages() -> None:
    async with embedded(transaction_coordinators=3) as (pulsar, client):
        answer = await client.request(c.CommandPartitionedTopicMetadata, topic=str(COORDINATORS))
        assert answer.partitions == 3
        assert await client.connect_coordinator(2) == "ok"
        answer = await client.request(c.CommandNewTxn, tc_id=2, txn_ttl_seconds=1_000)
        assert (answer.txnid_most_bits, answer.txnid_least_bits) == (2, 0)
        answer = await client.request(c.CommandNewTxn, tc_id=1)
        assert (outcome(answer), answer.txnid_most_bits) == ("TransactionCoordinatorNotFound", 1)
        assert [each.id for each in runtime_of(pulsar).coordinators.transactions] == [(2, 0)]
        names = await client.request(c.CommandGetTopicsOfNamespace, namespace="pulsar/system", mode=2)
        assert not names.topics


async def test_a_coordinator_has_to_be_looked_up_and_connected_to() -> None:
    async with embedded() as (_, client):
        answer = await client.request(c.CommandTcClientConnectRequest, tc_id=0)
        assert outcome(answer) == "ServiceNotReady"
        await client.lookup(COORDINATORS.of_partition(0))
        assert outcome(await client.request(c.CommandNewTxn)) == "TransactionCoordinatorNotFound"
        assert outcome(await client.request(c.CommandTcClientConnectRequest, tc_id=0)) == "ok"
        assert outcome(await client.request(c.CommandNewTxn, txn_ttl_seconds=1)) == "ok"
        await client.lookup(COORDINATORS.of_partition(9))
        answer = await client.request(c.CommandTcClientConnectRequest, tc_id=9)
        assert outcome(answer) == "TransactionCoordinatorNotFound"


async def test_a_cluster_without_transactions() -> None:
    async with embedded(transaction_coordinators=0) as (_, client):
        answer = await client.request(c.CommandTcClientConnectRequest, tc_id=0)
        assert outcome(answer) == "NotAllowedError"
        for request in (c.CommandNewTxn, c.CommandEndTxn):
            answer = await client.request(request)
            assert isinstance(answer, c.CommandError)
            assert outcome(answer) == "NotAllowedError"
        producer = await client.produce_to("t")
        assert await producer.send(b"a", transaction=(0, 0)) == "NotAllowedError"
        assert await producer.send(b"a") == 0
        consumer = await client.subscribe("t", "s", SubType.SHARED)
        await consumer.received(1)
        assert await consumer.ack(0, transaction=(0, 0)) == "NotAllowedError"


async def test_an_unloaded_coordinator_and_topic_keep_their_transactions() -> None:
    async with embedded() as (pulsar, client):
        await client.connect_coordinator()
        producer = await client.produce_to("t")
        first, second = await client.begin("t"), await client.begin("t")
        await producer.send(b"a", transaction=first)
        await producer.send(b"b", transaction=second)
        runtime_of(pulsar).unload("t")
        runtime_of(pulsar).unload(str(COORDINATORS))
        assert await client.commit(first) == "TransactionCoordinatorNotFound"
        assert await client.connect_coordinator() == "ok"
        assert await client.commit(first) == "ok"
        consumer = await client.subscribe("t", "s", SubType.EXCLUSIVE)
        assert await consumer.received(1) == ["0:a"]
        assert await consumer.last_id() == "0"
        ledgers = [entry.position for entry in runtime_of(pulsar).topic("t").log]
        assert ledgers[2] == (ledgers[0][0] + 1, 0), "the marker is in the ledger of the next load"
        assert await client.abort(second) == "ok"
        assert await consumer.received() == []


async def test_acknowledgements_of_an_open_transaction_outlive_a_load() -> None:
    async with embedded() as (pulsar, client):
        await client.connect_coordinator()
        producer = await client.produce_to("t")
        await producer.send(b"a")
        await producer.send(b"b", b"c")
        transaction = await client.begin()
        await client.add_subscription(transaction, "t", "s")
        consumer = await client.subscribe("t", "s", SubType.SHARED)
        await consumer.received(2)
        await consumer.ack(0, transaction=transaction)
        await consumer.ack(1, index=1, size=2, transaction=transaction)
        runtime_of(pulsar).unload("t")
        consumer = await client.subscribe("t", "s", SubType.SHARED)
        assert await consumer.received(1) == ["1:b"]
        assert await client.commit(transaction) == "ok"
        assert await consumer.ack(1, index=0, size=2) == "ok"
        assert runtime_of(pulsar).subscription("t", "s").backlog == 0
        assert len(runtime_of(pulsar).subscription("t", "s").pending_acks) == 0


async def test_what_comes_again_after_a_load_comes_once() -> None:
    async with embedded() as (pulsar, client):
        await client.connect_coordinator()
        producer = await client.produce_to("t")
        await producer.send(b"a")
        await producer.send(b"b")
        consumer = await client.subscribe("t", "s", SubType.SHARED)
        await consumer.received(2)
        transaction = await client.begin()
        await client.add_subscription(transaction, "t", "s")
        await consumer.ack(1, transaction=transaction)
        pulsar.unload("t")
        consumer = await client.subscribe("t", "s", SubType.SHARED, permits=1)
        assert await consumer.received(1) == ["0:a"]
        assert await client.abort(transaction) == "ok"
        consumer.flow(10)
        assert await consumer.received(1) == ["1:b"]


async def test_a_coordinator_moves_when_its_broker_stops_and_aborts_what_has_timed_out() -> None:
    async with embedded(2) as (pulsar, client):
        pulsar.unload(str(COORDINATORS), to=2)
        runtime_of(pulsar).unload("t", to=1)
        producer = await client.produce_to("t")
        consumer = await client.subscribe("t", "s", SubType.SHARED)
        async with WireClient.of("pulsar://10.0.0.2:6650") as second:
            assert await second.connect_coordinator() == "ok"
            short, long = await second.begin("t", ttl=10_000), await second.begin("t", ttl=600_000)
        await producer.send(b"a", transaction=short)
        await producer.send(b"b", transaction=long)
        await producer.send(b"c")
        await pulsar.stop_broker(2)
        await asyncio.sleep(60)
        assert await consumer.received() == [], "without its coordinator it does not time out"
        assert await client.connect_coordinator() == "ok"
        assert await client.commit(short) == "TransactionNotFound"
        assert await client.commit(long) == "ok"
        assert await consumer.received(2) == ["1:b", "2:c"]
        assert await client.begin() == (0, 2)


async def test_time_outs_in_any_order() -> None:
    async with embedded() as (pulsar, client):
        await client.connect_coordinator()
        times = (50_000, 20_000, 30_000, 5_000, 30_000)
        opened = [await client.begin("t", ttl=ttl) for ttl in times]
        assert await client.commit(opened[2]) == "ok"
        for seconds, left in ((4, {0, 1, 3, 4}), (2, {0, 1, 4}), (15, {0, 4}), (10, {0}), (20, set())):
            await asyncio.sleep(seconds)
            assert {each.id[1] for each in runtime_of(pulsar).coordinators.transactions} == left
        at_once = await client.begin(ttl=0)
        assert await client.commit(at_once) == "TransactionNotFound"


async def test_messages_for_a_transaction_that_has_certainly_ended_are_refused() -> None:
    async with embedded() as (_, client):
        await client.connect_coordinator()
        producer = await client.produce_to("t")
        consumer = await client.subscribe("t", "s", SubType.SHARED)
        first = await client.begin("t")
        await client.commit(first)
        assert await producer.send(b"late", transaction=first) == 1, (
            "the topic does not know that it has ended"
        )
        await producer.send(b"a")
        assert await consumer.received() == []
        second = await client.begin("t")
        await client.commit(second)
        assert await consumer.received(1) == ["2:a"], (
            "the coordinator has forgotten the first one, which is aborted"
        )
        assert await producer.send(b"late", transaction=first) == "NotAllowedError"


# --- faults and history -----------------------------------------------------------------------------------------------


async def test_faults_and_history_know_the_commands() -> None:
    async with embedded() as (pulsar, client):
        await client.connect_coordinator()
        pulsar.faults.on("NewTxn").error("TransactionCoordinatorNotFound")
        pulsar.faults.on("AddPartitionToTxn", topic="t").error("InvalidTxnStatus")
        pulsar.faults.on("AddSubscriptionToTxn", topic="t", subscription="s").error("ServiceNotReady")
        pulsar.faults.on("EndTxn", where=lambda command: command.txn_action == 1).error("UnknownError")
        pulsar.faults.on("TcClientConnectRequest").error("ServiceNotReady")
        answer = await client.request(c.CommandNewTxn)
        assert outcome(answer) == "TransactionCoordinatorNotFound"
        transaction = await client.begin()
        assert await client.add_partition(transaction, "u") == "ok"
        assert await client.add_partition(transaction, "t") == "InvalidTxnStatus"
        assert await client.add_subscription(transaction, "t", "s") == "ServiceNotReady"
        assert await client.abort(transaction) == "UnknownError"
        assert await client.commit(transaction) == "ok"
        assert outcome(await client.request(c.CommandTcClientConnectRequest, tc_id=0)) == "ServiceNotReady"
        assert len(pulsar.history.of("AddPartitionToTxn", topic="t", error="InvalidTxnStatus")) == 1
        assert len(pulsar.history.of("EndTxn")) == 2
