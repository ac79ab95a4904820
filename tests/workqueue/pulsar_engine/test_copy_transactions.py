"""Copies of a queue and the acknowledgements of their originals in one transaction."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Delivery, WorkQueue
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.transactions.errors import TransactionsNotEnabled
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.workqueue import AckOutcome, DeadLetter
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.scripted import BrokerConnection, Call, ScriptedPulsar, in_turn, late, refuse

TOPIC = "persistent://public/default/orders"
DEAD = "persistent://public/default/orders-billing-DLQ"
ABOUT = (
    c.CommandNewTxn,
    c.CommandAddPartitionToTxn,
    c.CommandAddSubscriptionToTxn,
    c.CommandSend,
    c.CommandAck,
    c.CommandEndTxn,
)
virtual = pytest.mark.virtual(max_virtual_time=3600)


@pytest_asyncio.fixture
async def pulsar() -> AsyncIterator[ScriptedPulsar]:
    """One scripted broker."""
    async with ScriptedPulsar("10.0.0.1") as pulsar:
        yield pulsar


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.05)


def queue_on(pulsar: ScriptedPulsar, *, source: dict[str, Any] | None = None, **settings: Any) -> WorkQueue:
    given = {"transactional_copies": True, **(source or {})}
    return WorkQueue(
        PulsarSource(pulsar.url, "billing", "orders", **given),
        **{"dead_letter": 1, "nack_backoff": 0.0, "concurrency": 100, **settings},
    )


async def attached(pulsar: ScriptedPulsar) -> tuple[BrokerConnection, int]:
    await until(lambda: any(one.consumers for one in pulsar.connections))
    (connection,) = (one for one in pulsar.connections if one.consumers)
    return connection, next(iter(connection.consumers))


@asynccontextmanager
async def rejecting(
    pulsar: ScriptedPulsar, *values: bytes, **options: Any
) -> AsyncIterator[list[tuple[bytes | None, AckOutcome]]]:
    """Run a queue that makes a dead letter of each message; yield the values with their outcomes."""
    done: list[tuple[bytes | None, AckOutcome]] = []

    async def handle(delivery: Delivery) -> None:
        done.append((delivery.value, await delivery.reject("bad")))

    async with queue_on(pulsar, **options) as queue:
        running = asyncio.ensure_future(queue.run(handle))
        connection, consumer = await attached(pulsar)
        pulsar.received.clear()
        for number, value in enumerate(values):
            connection.push_entry(consumer, value, entry_id=number)
        yield done
        running.cancel()
        await asyncio.wait([running])


def order(pulsar: ScriptedPulsar) -> list[str]:
    return [
        type(one.command).__name__.removeprefix("Command")
        for one in pulsar.received
        if isinstance(one.command, ABOUT)
    ]


def ends(pulsar: ScriptedPulsar) -> list[int | None]:
    return [one.txn_action for one in pulsar.commands(c.CommandEndTxn)]


@virtual
async def test_the_copy_and_the_acknowledgement_are_one(pulsar: ScriptedPulsar) -> None:
    async with rejecting(pulsar, b"a") as done:
        await until(lambda: done)
        await asyncio.sleep(5)
    assert done == [(b"a", AckOutcome.COMMITTED)]
    assert Counter(order(pulsar)) == dict.fromkeys(
        ["NewTxn", "AddPartitionToTxn", "Send", "AddSubscriptionToTxn", "Ack", "EndTxn"], 1
    ), "and no acknowledgement outside of it"
    [entry] = pulsar.stored[DEAD]
    [ack] = pulsar.commands(c.CommandAck)
    assert entry.command.txnid_least_bits == ack.txnid_least_bits is not None


@virtual
async def test_copies_that_wait_share_a_transaction(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandNewTxn] = late(0.5)
    async with rejecting(pulsar, *(b"%d" % number for number in range(50))) as done:
        await until(lambda: len(done) == 50)
    assert {outcome for _, outcome in done} == {AckOutcome.COMMITTED}
    assert len(pulsar.commands(c.CommandEndTxn)) <= 2
    assert len(pulsar.stored[DEAD]) == 50


@virtual
async def test_a_connection_that_ends_between_the_copy_and_the_acknowledgement(
    pulsar: ScriptedPulsar,
) -> None:
    pulsar.script[c.CommandAck] = in_turn(Call.cut, Call.default)
    async with rejecting(pulsar, b"a") as done:
        await until(lambda: pulsar.commands(c.CommandAck))
        connection, consumer = await attached(pulsar)
        connection.push_entry(consumer, b"a", entry_id=0, redelivery_count=1)
        await until(lambda: done)
        await asyncio.sleep(5)
    assert done == [(b"a", AckOutcome.COMMITTED)], "no second delivery while the copy is tried again"
    assert ends(pulsar) == [TxnAction.ABORT, TxnAction.COMMIT]
    aborted, committed = pulsar.stored[DEAD]
    assert aborted.command.txnid_least_bits != committed.command.txnid_least_bits


@virtual
async def test_a_message_that_is_acknowledged_already_needs_no_copy(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandAck] = refuse(ServerError.TRANSACTION_CONFLICT)
    async with rejecting(pulsar, b"a", b"b") as done:
        await until(lambda: len(done) == 2)
        await asyncio.sleep(5)
    assert TxnAction.COMMIT not in ends(pulsar)
    assert all(ack.txnid_least_bits is not None for ack in pulsar.commands(c.CommandAck))


@virtual
async def test_a_copy_that_is_refused_delays_no_other(pulsar: ScriptedPulsar) -> None:
    def refuse_bad(call: Call) -> None:
        if call.payload.endswith(b"bad"):
            call.refuse(ServerError.NOT_ALLOWED_ERROR)
        else:
            call.default()

    pulsar.script[c.CommandSend] = refuse_bad
    pulsar.script[c.CommandNewTxn] = late(0.5)
    async with rejecting(pulsar, b"a", b"bad", b"b") as done:
        await until(lambda: len(done) == 2)
        assert [value for value, _ in done] == [b"a", b"b"]
        pulsar.script[c.CommandSend] = Call.default
        await until(lambda: len(done) == 3)


@virtual
async def test_a_commit_without_an_answer_is_written_once(pulsar: ScriptedPulsar) -> None:
    async with rejecting(pulsar, b"a") as done:
        pulsar.script[c.CommandEndTxn] = in_turn(
            Call.cut, refuse(ServerError.TRANSACTION_NOT_FOUND), Call.default
        )
        pulsar.script[c.CommandAck] = in_turn(Call.default, refuse(ServerError.TRANSACTION_CONFLICT))
        await until(lambda: done)
    assert ends(pulsar) == [TxnAction.COMMIT, TxnAction.COMMIT, TxnAction.ABORT]


@virtual
async def test_a_broker_without_transactions_is_noticed_at_once(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandTcClientConnectRequest] = refuse(ServerError.NOT_ALLOWED_ERROR)
    with pytest.raises(TransactionsNotEnabled):
        async with queue_on(pulsar):
            pass
    assert not pulsar.commands(c.CommandSubscribe)


@pytest.mark.parametrize(
    ("source", "settings", "text"),
    [
        ({"transactional_copies": "yes"}, {"dead_letter": 1}, "transactional_copies='yes'"),
        ({}, {}, "there are no copies"),
        ({"durable": False}, {"dead_letter": 1}, "durable=False"),
        ({}, {"dead_letter": {"topic": "non-persistent://public/default/x"}}, "not persistent"),
    ],
)
def test_settings_that_do_not_fit(source: dict[str, Any], settings: dict[str, Any], text: str) -> None:
    given = {
        key: DeadLetter(1, **value) if isinstance(value, dict) else value for key, value in settings.items()
    }
    with pytest.raises(ConfigError, match=text):
        WorkQueue(PulsarSource("pulsar://a", "s", "t", **{"transactional_copies": True, **source}), **given)


@pytest.mark.real
@pytest.mark.full
@pytest.mark.parametrize("mode", ["shared", "exclusive", "key_shared"])
async def test_on_a_real_pulsar(apache_pulsar: RunningPulsar, mode: str) -> None:
    """Retry copies with a delay and dead letters, while connections end: each is there once."""
    topic = f"copied-{uuid.uuid4().hex[:12]}"
    config = PulsarConfig(operation_timeout=60)
    async with PulsarClient(apache_pulsar.service_url, config) as client, asyncio.timeout(120):
        source = PulsarSource(
            apache_pulsar.service_url, "s", topic, transactional_copies=True, dead_letter_subscription="d"
        )
        async with client.producer(topic) as producer:
            for number in range(20):
                await producer.enqueue(b"%d" % number)
            await producer.flush()

        async def handle(delivery: Delivery) -> None:
            await delivery.reconsume_later(0.1)

        queue = WorkQueue(
            source, mode=mode, retry=True, dead_letter=1, concurrency=20, initial_position="earliest"
        )
        settings = PulsarConsumerConfig(initial_position="earliest")
        async with queue, client.subscribe(f"{topic}-s-DLQ", "d", type="shared", config=settings) as dead:
            running = asyncio.ensure_future(queue.run(handle))
            found = []
            while len(found) < 20:
                found.append(await dead.receive())
                dead.ack(found[-1])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await dead.receive()
            running.cancel()
            await asyncio.wait([running])
        assert sorted(message.value or b"" for message in found) == sorted(
            b"%d" % number for number in range(20)
        )
        assert {message.properties["__dlq.errors.delivery.count"] for message in found} == {"2"}
