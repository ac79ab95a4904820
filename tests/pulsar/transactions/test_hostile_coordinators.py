"""Coordinators that are slow, gone, or answer with anything, and callers that are cancelled: one clear error, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from asyncgroup.errors import AsyncGroupError, NoTransactionError, ProtocolError, UsageError
from asyncgroup.pulsar import (
    PulsarConsumeTransformProduce,
    PulsarMessage,
    PulsarProducer,
    PulsarTopicConsumer,
    PulsarTransactionOutput,
)
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.transactions.errors import PulsarTransactionAborted
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction, PulsarTransactionState
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.profiles import thinned
from tests.pulsar.cancelling import WHEN, cancelled_at
from tests.pulsar.scripted import Answerer, Call, ScriptedPulsar, late, no_answer, refuse
from tests.pulsar.support import now

pytestmark = pytest.mark.virtual(max_virtual_time=36_000)

ENDED = (
    PulsarTransactionState.NOT_BEGUN,
    PulsarTransactionState.COMMITTED,
    PulsarTransactionState.ABORTED,
    PulsarTransactionState.TIMED_OUT,
    PulsarTransactionState.UNKNOWN,
)
REQUESTS = (
    c.CommandTcClientConnectRequest,
    c.CommandNewTxn,
    c.CommandAddPartitionToTxn,
    c.CommandAddSubscriptionToTxn,
    c.CommandEndTxn,
)


def ends(pulsar: ScriptedPulsar) -> list[TxnAction]:
    return [TxnAction(one.txn_action or 0) for one in pulsar.commands(c.CommandEndTxn)]


# --- coordinators ---------------------------------------------------------------------------------------------------------


def freeze(call: Call) -> None:
    """Handle nothing more."""
    call.broker.freeze()


def twice(call: Call) -> None:
    call.default()
    call.default()


def other_type(call: Call) -> None:
    """Answer with a success that this request does not have."""
    call.succeed()


def other_id(call: Call) -> None:
    """Answer a request that was not made."""
    call.command.request_id += 1000
    call.default()


def bytes_of_nothing(call: Call) -> None:
    call.write(b"\0\0\0\x06\0\0\0\x02\xff\xff")


ANSWERERS: dict[str, Answerer] = {
    "nothing": no_answer,
    "frozen": freeze,
    "cut": Call.cut,
    "twice": twice,
    "late": late(100.0),
    "of another type": other_type,
    "with another id": other_id,
    "no command": bytes_of_nothing,
    "an unknown error": refuse(9999, "x" * 5000 + "\x1b[31m\n"),
}


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__.removeprefix("Command"))
@pytest.mark.parametrize("answerer", ANSWERERS)
async def test_a_coordinator_that_answers_with_anything(
    pulsar: ScriptedPulsar, kind: type[c.Command], answerer: str
) -> None:
    before, began = asyncio.all_tasks(), now()
    producing = PulsarProducerConfig(send_timeout=20.0, close_timeout=2.0)
    client = PulsarClient(pulsar.url, PulsarConfig(operation_timeout=10.0))
    async with (
        client,
        client.producer("orders", producing) as producer,
        client.subscribe(
            "orders", "s", type="shared", config=PulsarConsumerConfig(close_timeout=2.0)
        ) as consumer,
    ):
        connection = pulsar.connection_of(consumer=pulsar.commands(c.CommandSubscribe)[-1].consumer_id)
        connection.push_entry(pulsar.commands(c.CommandSubscribe)[-1].consumer_id, b"v")
        message = await consumer.receive()
        pulsar.script[kind] = ANSWERERS[answerer]
        transaction, sent = client.transaction(timeout=30.0), list[asyncio.Future[MessageId]]()
        with contextlib.suppress(AsyncGroupError):
            async with transaction as txn:
                sent += [producer.send_nowait(b"n", transaction=txn) for _ in range(3)]
                sent[1].cancel()
                await producer.send(b"a", transaction=txn)
                consumer.ack(message, transaction=txn)
        assert transaction.state in ENDED
        assert all(future.done() for future in sent)
        assert len({type(future.exception()) for future in sent if not future.cancelled()}) <= 1
        if answerer == "twice":
            assert transaction.state is PulsarTransactionState.COMMITTED
        pulsar.script.clear()
        pulsar.first.thaw()
        async with client.transaction() as txn:  # the next one works
            await producer.enqueue(b"b", transaction=txn)
        assert txn.state is PulsarTransactionState.COMMITTED
    assert now() - began <= 90.0
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == before
    assert pulsar.connections == []


async def test_a_transaction_of_another_coordinator(pulsar: ScriptedPulsar) -> None:
    """Its requests would go to a coordinator that this cluster does not have."""
    pulsar.script[c.CommandNewTxn] = lambda call: call.answer(
        c.CommandNewTxnResponse(request_id=call.request_id, txnid_most_bits=7, txnid_least_bits=3)
    )
    async with PulsarClient(pulsar.url) as client:
        transaction = client.transaction()
        with pytest.raises(ProtocolError, match=r"NEW_TXN was answered with transaction \(7,3\)"):
            async with transaction:
                pytest.fail("it has begun")
        assert transaction.state is PulsarTransactionState.NOT_BEGUN
    assert ends(pulsar) == []


async def test_more_coordinators_than_any_cluster_has(pulsar: ScriptedPulsar) -> None:
    pulsar.set_partitions("persistent://pulsar/system/transaction_coordinator_assign", (1 << 32) - 1)
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(ProtocolError, match="partitions"):
            async with client.transaction():
                pytest.fail("it has begun")


# --- callers --------------------------------------------------------------------------------------------------------------


async def test_two_tasks_enter_one_transaction(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandNewTxn] = late(1.0)
    async with PulsarClient(pulsar.url) as client:
        transaction = client.transaction()
        entering = asyncio.create_task(transaction.__aenter__())
        await asyncio.sleep(0.5)
        with pytest.raises(UsageError, match="entered once"):
            await transaction.__aenter__()
        await entering
        await transaction.commit()
    assert len(pulsar.commands(c.CommandNewTxn)) == 1
    assert ends(pulsar) == [TxnAction.COMMIT]


async def test_a_transaction_whose_begin_has_failed_may_be_entered_again(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandNewTxn] = no_answer
    async with PulsarClient(pulsar.url, PulsarConfig(operation_timeout=2.0)) as client:
        transaction = client.transaction()
        with pytest.raises(AsyncGroupError):
            await transaction.__aenter__()
        pulsar.script.clear()
        async with transaction:
            pass
        assert transaction.state is PulsarTransactionState.COMMITTED


async def test_a_commit_of_another_task_while_the_block_raises(pulsar: ScriptedPulsar) -> None:
    """The request to commit is on its way: the block waits for its end, and sends no request to abort."""
    pulsar.script[c.CommandEndTxn] = late(1.0)
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(KeyError):
            async with client.transaction() as txn:
                committing = asyncio.create_task(txn.commit())
                await asyncio.sleep(0.5)
                raise KeyError("x")
        assert txn.state is PulsarTransactionState.COMMITTED
        await committing
    assert ends(pulsar) == [TxnAction.COMMIT]


async def test_a_commit_of_another_task_that_waits_for_answers_while_the_block_raises(
    pulsar: ScriptedPulsar,
) -> None:
    """No request to commit was sent: the transaction is aborted, and the commit says so."""
    pulsar.script[c.CommandSend] = late(2.0)
    async with PulsarClient(pulsar.url) as client, client.producer("orders") as producer:
        with pytest.raises(KeyError):
            async with client.transaction() as txn:
                await producer.enqueue(b"a", transaction=txn)
                committing = asyncio.create_task(txn.commit())
                await asyncio.sleep(0.5)
                raise KeyError("x")
        with pytest.raises(PulsarTransactionAborted, match="it was aborted before it could be committed"):
            await committing
        assert txn.state is PulsarTransactionState.ABORTED
    assert ends(pulsar) == [TxnAction.ABORT]


@pytest.mark.parametrize("call", [PulsarTransaction.commit, PulsarTransaction.abort])
async def test_two_ends_at_once(
    pulsar: ScriptedPulsar, call: Callable[[PulsarTransaction], Awaitable[None]]
) -> None:
    pulsar.script[c.CommandEndTxn] = late(1.0)
    async with PulsarClient(pulsar.url) as client, client.transaction() as txn:
        first = asyncio.create_task(txn.commit())
        await asyncio.sleep(0.5)
        with pytest.raises(NoTransactionError, match="committing"):
            await call(txn)
        await first
    assert ends(pulsar) == [TxnAction.COMMIT]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, BaseException])
async def test_a_block_that_raises_no_exception(pulsar: ScriptedPulsar, error: type[BaseException]) -> None:
    async with PulsarClient(pulsar.url) as client:
        found: BaseException | None = None
        transaction = client.transaction()
        try:
            async with transaction:
                raise error("x")
        except BaseException as caught:
            found = caught
        assert type(found) is error
        assert transaction.state is PulsarTransactionState.ABORTED
    assert ends(pulsar) == [TxnAction.ABORT]


@pytest.mark.parametrize(("timeout", "sent"), [(1e12, 10**15), (1e300, 1 << 53), (1e-9, 1)])
async def test_odd_timeouts(pulsar: ScriptedPulsar, timeout: float, sent: int) -> None:
    async with PulsarClient(pulsar.url) as client:
        with contextlib.suppress(PulsarTransactionAborted):
            async with client.transaction(timeout=timeout):
                pass
    assert [one.txn_ttl_seconds for one in pulsar.commands(c.CommandNewTxn)] == [sent]


# --- cancelled at each await ----------------------------------------------------------------------------------------------


async def leave(transaction: PulsarTransaction) -> None:
    """Leave the end to the block."""


@asynccontextmanager
async def embedded() -> AsyncIterator[tuple[EmbeddedPulsar, PulsarClient]]:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650, topics=["in", "out"], deduplication=True) as pulsar,
        PulsarClient(pulsar.service_url) as client,
    ):
        yield pulsar, client


def committed(pulsar: EmbeddedPulsar) -> list[bytes | None]:
    return [each.value for each in pulsar.messages("out") if each.committed]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("end", [leave, PulsarTransaction.commit, PulsarTransaction.abort])
async def test_a_block_that_is_cancelled_at_each_await(
    end: Callable[[PulsarTransaction], Awaitable[None]], when: str
) -> None:
    """Its message and its acknowledgement count together, or neither does, and it does not stay open."""

    async def run(
        client: PulsarClient, producer: PulsarProducer, consumer: PulsarTopicConsumer, message: PulsarMessage
    ) -> None:
        async with client.transaction(timeout=20.0) as txn:
            await producer.send(b"a", transaction=txn)
            consumer.ack(message, transaction=txn)
            await end(txn)

    number, was_cancelled = 0, True
    while was_cancelled:
        async with (
            embedded() as (pulsar, client),
            client.producer("out") as producer,
            client.subscribe("in", "s", type="shared") as consumer,
        ):
            pulsar.produce("in", b"v")
            message = await consumer.receive()

            was_cancelled = await cancelled_at(number, when, run(client, producer, consumer, message))
            await asyncio.sleep(30)
            assert pulsar.transactions == {}
            backlog = pulsar.subscription("in", "s").backlog
            assert (committed(pulsar), backlog) in (([b"a"], 0), ([], 1))
            if backlog:
                consumer.nack(message, delay=0)  # it was not acknowledged, or comes again by itself
                async with asyncio.timeout(60):
                    assert (await consumer.receive()).value == b"v", "it comes again"
        number += 1
    assert number > 5


@pytest.mark.parametrize("when", WHEN)
async def test_a_transformation_that_is_cancelled_at_each_await(when: str) -> None:
    """Another one goes on where it was: each message is in the output once."""
    values = [b"%d" % number for number in range(4)]

    async def transform(batch: Sequence[PulsarMessage], output: PulsarTransactionOutput) -> None:
        for message in batch:
            await output.enqueue("out", message.value)

    transformation = PulsarConsumeTransformProduce(transform, max_records=2)
    for number in thinned(range(60), 20):
        async with embedded() as (pulsar, client):
            pulsar.create_subscription("in", "s", position="earliest")
            pulsar.produce("in", *values)
            first = asyncio.wait_for(transformation.run(client, "in", "s"), 20)
            await cancelled_at(number, when, first)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(transformation.run(client, "in", "s"), 40)
            assert sorted(each or b"" for each in committed(pulsar)) == values
            assert pulsar.subscription("in", "s").backlog == 0
            assert pulsar.transactions == {}
