"""Transactions of the client on a scripted broker: what is sent in which order, and what a fault makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.errors import (
    ClosedError,
    ConfigError,
    ConnectionLost,
    NoTransactionError,
    QueueFull,
    UsageError,
)
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.transactions.errors import (
    PulsarTransactionAborted,
    PulsarTransactionConflict,
    PulsarTransactionOutcomeUnknown,
    PulsarTransactionTimedOut,
)
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction, PulsarTransactionState
from asyncgroup.pulsar.transactions.txn_id import TxnId
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.ack_set import bits_of
from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.server_errors import ServerError
from tests.pulsar.scripted import Call, ScriptedPulsar, in_turn, late, no_answer, refuse
from tests.pulsar.support import now

TOPIC = "persistent://public/default/orders"
ORDER = (
    c.CommandNewTxn,
    c.CommandAddPartitionToTxn,
    c.CommandAddSubscriptionToTxn,
    c.CommandSend,
    c.CommandAck,
    c.CommandEndTxn,
)


def order(pulsar: ScriptedPulsar) -> list[str]:
    """Return the commands that are about transactions, in the order of their arrival."""
    return [
        type(one.command).__name__.removeprefix("Command")
        for one in pulsar.received
        if isinstance(one.command, ORDER)
    ]


def ends(pulsar: ScriptedPulsar) -> list[TxnAction]:
    return [TxnAction(one.txn_action or 0) for one in pulsar.commands(c.CommandEndTxn)]


@asynccontextmanager
async def sending(
    pulsar: ScriptedPulsar, **config: Any
) -> AsyncIterator[tuple[PulsarClient, PulsarProducer]]:
    async with (
        PulsarClient(pulsar.url) as client,
        client.producer("orders", PulsarProducerConfig(**config)) as producer,
    ):
        yield client, producer


@asynccontextmanager
async def consuming(
    pulsar: ScriptedPulsar, kind: str = "shared", **config: Any
) -> AsyncIterator[tuple[PulsarClient, PulsarTopicConsumer, Callable[..., None]]]:
    """Yield a client, a consumer of it, and a function that pushes an entry to it."""
    async with (
        PulsarClient(pulsar.url) as client,
        client.subscribe("orders", "s", type=kind, config=PulsarConsumerConfig(**config)) as consumer,
    ):

        def push(*values: bytes, **options: Any) -> None:
            number = pulsar.commands(c.CommandSubscribe)[-1].consumer_id
            pulsar.connection_of(consumer=number).push_entry(number, *values, **options)

        yield client, consumer, push


# --- messages -----------------------------------------------------------------------------------------------------------


async def test_the_partition_is_added_before_the_first_message_and_the_end_is_after_all_receipts(
    pulsar: ScriptedPulsar,
) -> None:
    pulsar.script[c.CommandSend] = late(1.0)
    async with sending(pulsar, batching=False) as (client, producer):
        async with client.transaction() as txn:
            assert txn.state is PulsarTransactionState.OPEN
            assert txn.txn_id == TxnId(0, 0)
            await producer.enqueue(b"a", transaction=txn)
            await producer.enqueue(b"b", transaction=txn)
        assert txn.state is PulsarTransactionState.COMMITTED
    assert order(pulsar) == ["NewTxn", "AddPartitionToTxn", "Send", "Send", "EndTxn"]
    begun, added, ended = (
        pulsar.commands(kind)[0] for kind in (c.CommandNewTxn, c.CommandAddPartitionToTxn, c.CommandEndTxn)
    )
    assert begun.txn_ttl_seconds == 60_000, "in ms, in spite of its name"
    assert list(added.partitions) == [TOPIC]
    assert ended.txn_action == TxnAction.COMMIT
    assert pulsar.times(c.CommandEndTxn)[0] >= pulsar.times(c.CommandSend)[-1] + 1.0
    for entry in pulsar.stored[TOPIC]:
        # the first transaction of a coordinator has the id 0, which is not the same as none
        assert (entry.command.txnid_most_bits, entry.command.txnid_least_bits) == (0, 0)
        assert (entry.metadata.txnid_most_bits, entry.metadata.txnid_least_bits) == (0, 0)


async def test_messages_without_a_transaction_have_no_id(pulsar: ScriptedPulsar) -> None:
    async with sending(pulsar) as (_, producer):
        await producer.send(b"a")
    [entry] = pulsar.stored[TOPIC]
    assert entry.command.txnid_most_bits is entry.command.txnid_least_bits is None
    assert entry.metadata.txnid_most_bits is entry.metadata.txnid_least_bits is None


async def test_a_batch_has_the_messages_of_one_transaction(pulsar: ScriptedPulsar) -> None:
    async with sending(pulsar, batching_max_delay=10.0) as (client, producer):
        async with client.transaction() as first, client.transaction() as second:
            for transaction in (first, first, None, None, second, second, first):
                await producer.enqueue(b"x", transaction=transaction)
            await producer.flush()
    found = [
        (entry.command.txnid_least_bits, entry.metadata.num_messages_in_batch)
        for entry in pulsar.stored[TOPIC]
    ]
    assert found == [(0, 2), (None, 2), (1, 2), (0, None)]


async def test_batches_of_keys_chunks_and_delayed_messages_have_their_transaction(
    pulsar: ScriptedPulsar,
) -> None:
    pulsar.first.max_message_size = 1000
    async with sending(pulsar, chunking=True, key_based_batching=True) as (client, producer):
        async with client.transaction() as txn:
            await producer.enqueue(b"x", key="a", transaction=txn)
            await producer.enqueue(b"y", key="b", transaction=txn)
            await producer.enqueue(b"y", key="b", transaction=txn)
            await producer.send(b"z" * 3000, transaction=txn)
            await producer.send(b"later", deliver_after=5, transaction=txn)
    assert {entry.command.txnid_least_bits for entry in pulsar.stored[TOPIC]} == {0}
    assert {entry.metadata.txnid_least_bits for entry in pulsar.stored[TOPIC]} == {0}
    assert len(pulsar.stored[TOPIC]) >= 7


async def test_the_open_batch_is_sent_at_the_end_at_once(pulsar: ScriptedPulsar) -> None:
    async with sending(pulsar, batching_max_delay=50.0) as (client, producer):
        started = now()
        async with client.transaction() as txn:
            await producer.enqueue(b"a", transaction=txn)
        assert now() - started < 1.0
    assert ends(pulsar) == [TxnAction.COMMIT]


async def test_each_partition_is_added_once(pulsar: ScriptedPulsar) -> None:
    pulsar.set_partitions("orders", 3)
    pulsar.script[c.CommandAddPartitionToTxn] = late(0.5)
    async with sending(pulsar, batching=False) as (client, producer):
        async with client.transaction() as txn:
            await asyncio.gather(*(producer.send(b"x", key=f"k{n}", transaction=txn) for n in range(30)))
    added = [one.partitions[0] for one in pulsar.commands(c.CommandAddPartitionToTxn)]
    assert sorted(added) == [f"{TOPIC}-partition-{n}" for n in range(3)]


async def test_other_messages_do_not_wait_for_the_coordinator(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandAddPartitionToTxn] = late(5.0)
    async with sending(pulsar) as (client, producer):
        async with client.transaction() as txn:
            of_txn = asyncio.ensure_future(producer.send(b"in", transaction=txn))
            await asyncio.sleep(0.1)
            started = now()
            await producer.send(b"out")
            assert now() - started < 1.0
            await of_txn


async def test_a_message_that_fails_aborts(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandSend] = in_turn(refuse(ServerError.NOT_ALLOWED_ERROR), Call.default)
    async with sending(pulsar, batching=False) as (client, producer):
        with pytest.raises(PulsarTransactionAborted, match="NotAllowedError") as raised:
            async with client.transaction() as txn:
                with pytest.raises(PulsarServerError):
                    await producer.send(b"a", transaction=txn)
                with pytest.raises(PulsarTransactionAborted, match="NotAllowedError"):
                    await producer.send(b"b", transaction=txn)
        assert isinstance(raised.value.__cause__, PulsarServerError)
        assert raised.value.txn_id == TxnId(0, 0)
        assert txn.state is PulsarTransactionState.ABORTED
        await producer.flush()  # the end of the transaction has raised it
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_a_message_of_enqueue_that_fails_is_raised_by_the_end_alone(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandSend] = no_answer
    async with sending(pulsar, send_timeout=2.0) as (client, producer):
        with pytest.raises(PulsarTransactionAborted, match="send_timeout=2 s"):
            async with client.transaction() as txn:
                await producer.enqueue(b"a", transaction=txn)
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_a_message_that_is_not_accepted_does_not_count(pulsar: ScriptedPulsar) -> None:
    async with sending(pulsar) as (client, producer):
        async with client.transaction() as txn:
            with pytest.raises(ValueError, match="value"):
                await producer.send("text", transaction=txn)  # type: ignore[arg-type]
            await producer.send(b"bytes", transaction=txn)
    assert ends(pulsar) == [TxnAction.COMMIT]


async def test_hooks_and_interceptors_see_the_messages(pulsar: ScriptedPulsar) -> None:
    seen: list[Any] = []

    class Seen:
        def on_send(self, record: Any) -> None:
            seen.append(record.value)

        def on_acknowledgement(
            self, record: Any, message_id: MessageId | None, error: Exception | None
        ) -> None:
            seen.append((record.value, message_id is not None, error))

    async with (
        PulsarClient(pulsar.url) as client,
        client.producer("orders", interceptors=[Seen()]) as producer,
    ):
        async with client.transaction() as txn:
            await producer.send(b"a", transaction=txn)
    assert seen == [b"a", (b"a", True, None)]


async def test_after_a_reconnect_messages_are_sent_again_and_then_it_ends(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandSend] = in_turn(Call.cut, Call.default)
    pulsar.last_sequence_id = 7  # it deduplicates
    async with sending(pulsar, batching=False) as (client, producer):
        async with client.transaction() as txn:
            await producer.send(b"a", transaction=txn)
    assert ends(pulsar) == [TxnAction.COMMIT]
    assert [entry.command.txnid_least_bits for entry in pulsar.stored[TOPIC]] == [0]


@pytest.mark.parametrize("kind", ["message", "batch", "chunks"])
async def test_without_deduplication_a_lost_receipt_aborts(pulsar: ScriptedPulsar, kind: str) -> None:
    # the broker may have stored it, and would store it once more
    pulsar.first.max_message_size = 1000
    pulsar.script[c.CommandSend] = in_turn(Call.default, Call.cut, Call.default)
    async with sending(pulsar, batching=kind == "batch", chunking=kind == "chunks") as (client, producer):
        await producer.send(b"before")
        with pytest.raises(
            PulsarTransactionAborted, match=r"does not deduplicate.*might be stored twice"
        ) as raised:
            async with client.transaction() as txn:
                for value in (b"x" * 3000,) if kind == "chunks" else (b"x", b"y"):
                    await producer.enqueue(value, transaction=txn)
        assert isinstance(raised.value.__cause__, ConnectionLost)
        assert raised.value.__cause__.may_be_written
        await producer.send(b"after")
    assert ends(pulsar) == [TxnAction.ABORT]
    sent = [one for one in pulsar.commands(c.CommandSend) if one.txnid_least_bits is not None]
    assert len(sent) <= {"message": 2, "batch": 1, "chunks": 4}[kind], "no frame twice"


async def test_what_was_not_written_is_sent_after_a_reconnect(pulsar: ScriptedPulsar) -> None:
    async with sending(pulsar, batching=False) as (client, producer):
        async with client.transaction() as txn:
            await producer.send(b"a", transaction=txn)
            pulsar.first.cut()
            await asyncio.sleep(0.001)
            await producer.send(b"b", transaction=txn)
            await producer.send(b"c")
    assert ends(pulsar) == [TxnAction.COMMIT]
    assert [entry.body for entry in pulsar.stored[TOPIC]] == [b"a", b"b", b"c"]


async def test_ordinary_messages_are_sent_again_without_deduplication(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandSend] = in_turn(Call.cut, Call.default)
    async with sending(pulsar, batching=False) as (_, producer):
        await producer.send(b"a")
    assert len(pulsar.commands(c.CommandSend)) == 2


# --- messages without waiting -------------------------------------------------------------------------------------------


async def test_a_message_that_waits_for_the_coordinator_is_sent_in_order(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandAddPartitionToTxn] = late(1.0)
    async with sending(pulsar, batching=False) as (client, producer):
        async with client.transaction() as txn:
            first = [producer.send_nowait(b"%d" % number, transaction=txn) for number in range(3)]
            outside = producer.send_nowait(b"outside")
            await outside
            assert not any(future.done() for future in first)
            assert producer.pending_messages == 3
            await producer.enqueue(b"3", transaction=txn)
            last = producer.send_nowait(b"4", transaction=txn)
        assert [future.result().entry_id for future in (*first, last)] == [1, 2, 3, 5]
        assert producer.pending_messages == 0
    assert [entry.body for entry in pulsar.stored[TOPIC]] == [b"outside", b"0", b"1", b"2", b"3", b"4"]
    assert len(pulsar.commands(c.CommandAddPartitionToTxn)) == 1
    assert ends(pulsar) == [TxnAction.COMMIT]


async def test_a_batch_without_waiting_is_sent_at_the_end(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandAddPartitionToTxn] = late(1.0)
    async with sending(pulsar, batching_max_delay=50.0) as (client, producer):
        started = now()
        async with client.transaction() as txn:
            futures = [producer.send_nowait(b"x", transaction=txn) for _ in range(3)]
        assert now() - started < 2.0
        assert [future.result().batch_index for future in futures] == [0, 1, 2]
    assert ends(pulsar) == [TxnAction.COMMIT]


async def test_flush_and_close_wait_for_messages_that_wait_for_the_coordinator(
    pulsar: ScriptedPulsar,
) -> None:
    pulsar.script[c.CommandAddPartitionToTxn] = late(1.0)
    async with PulsarClient(pulsar.url) as client, client.transaction() as txn:
        async with client.producer("orders") as producer, client.producer("returns") as other:
            flushed = producer.send_nowait(b"x", transaction=txn)
            await producer.flush()
            assert flushed.done()
            closed = other.send_nowait(b"y", transaction=txn)
        assert closed.result() is not None
        async with client.producer("invoices") as producer:
            failed = producer.send_nowait(b"z", transaction=txn)
            await producer.aclose(drain=False)
        with pytest.raises(ClosedError):
            await failed
        await txn.abort()
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_no_room_without_waiting(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandAddPartitionToTxn] = late(1.0)
    async with sending(pulsar, max_pending_messages=2) as (client, producer):
        async with client.transaction() as txn:
            for _ in range(2):
                producer.send_nowait(b"x", transaction=txn)
            with pytest.raises(QueueFull):
                producer.send_nowait(b"x", transaction=txn)
            await producer.flush()
            producer.send_nowait(b"x", transaction=txn)
            producer.send_nowait(b"x", transaction=txn)
            with pytest.raises(QueueFull):
                producer.send_nowait(b"x", transaction=txn)
    assert ends(pulsar) == [TxnAction.COMMIT]


async def test_errors_of_messages_without_waiting(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandAddPartitionToTxn] = refuse(ServerError.INVALID_TXN_STATUS)
    async with sending(pulsar, max_pending_messages=2) as (client, producer):
        txn = client.transaction()
        with pytest.raises(NoTransactionError, match="not begun"):
            producer.send_nowait(b"x", transaction=txn)
        with pytest.raises(PulsarTransactionAborted):
            async with txn:
                with pytest.raises(ValueError, match="value"):
                    producer.send_nowait("x", transaction=txn)  # type: ignore[arg-type]
                futures = [producer.send_nowait(b"x", transaction=txn) for _ in range(2)]
                for future in futures:
                    with pytest.raises(PulsarTransactionAborted, match="InvalidTxnStatus"):
                        await future
                with pytest.raises(PulsarTransactionAborted):
                    producer.send_nowait(b"x", transaction=txn)
        with pytest.raises(NoTransactionError, match="aborted"):
            producer.send_nowait(b"x", transaction=txn)
        for _ in range(2):
            producer.send_nowait(b"x")  # their room is free
    assert ends(pulsar) == [TxnAction.ABORT]


# --- acknowledgements ---------------------------------------------------------------------------------------------------


async def test_the_subscription_is_added_before_the_first_acknowledgement(pulsar: ScriptedPulsar) -> None:
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", entry_id=1)
        push(b"b", b"c", b"d", entry_id=2)
        messages = [await consumer.receive() for _ in range(4)]
        async with client.transaction(timeout=5) as txn:
            for message in messages[:3]:
                consumer.ack(message, transaction=txn)
    assert order(pulsar) == ["NewTxn", "AddSubscriptionToTxn", "Ack", "EndTxn"]
    [added] = pulsar.commands(c.CommandAddSubscriptionToTxn)
    assert [(one.topic, one.subscription) for one in added.subscription] == [(TOPIC, "s")]
    [ack] = pulsar.commands(c.CommandAck)
    assert (ack.txnid_most_bits, ack.txnid_least_bits) == (0, 0)
    assert ack.request_id is not None
    found = [
        (one.entry_id, bits_of(one.ack_set) if one.ack_set else 0, one.batch_size) for one in ack.message_id
    ]
    assert [(entry, bits, size or 0) for entry, bits, size in found] == [(1, 0, 0), (2, 0b100, 3)]


async def test_acknowledgements_wait_for_the_ordinary_ones_before(pulsar: ScriptedPulsar) -> None:
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", entry_id=1)
        push(b"b", entry_id=2)
        first, second = await consumer.receive(), await consumer.receive()
        async with client.transaction() as txn:
            consumer.ack(first)
            consumer.ack(second, transaction=txn)
    assert [
        ([one.entry_id for one in ack.message_id], ack.txnid_least_bits)
        for ack in pulsar.commands(c.CommandAck)
    ] == [([1], None), ([2], 0)]


async def test_a_conflict_aborts(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandAck] = refuse(ServerError.TRANSACTION_CONFLICT, "in pending ack status")
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", entry_id=1)
        message = await consumer.receive()
        with pytest.raises(PulsarTransactionConflict, match=r"acknowledged before.*in pending ack status"):
            async with client.transaction() as txn:
                consumer.ack(message, transaction=txn)
    assert ends(pulsar) == [TxnAction.ABORT]


@pytest.mark.parametrize("values", [(b"a",), (b"a", b"b")])
async def test_a_message_that_was_delivered_twice_is_in_a_transaction_once(
    pulsar: ScriptedPulsar, values: tuple[bytes, ...]
) -> None:
    async with consuming(pulsar) as (client, consumer, push):
        push(*values, entry_id=1)
        message = await consumer.receive()
        with pytest.raises(PulsarTransactionConflict, match=r"has acknowledged .* before"):
            async with client.transaction() as txn:
                consumer.ack(message, transaction=txn)
                with pytest.raises(PulsarTransactionConflict, match=r"has acknowledged .* before"):
                    consumer.ack(message.message_id, transaction=txn)
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_a_conflict_takes_the_other_messages_of_the_batch_into_the_abort(
    pulsar: ScriptedPulsar,
) -> None:
    # the broker has taken the whole entry from the consumer, so that neither a nack nor a close would bring them again
    conflict = refuse(ServerError.TRANSACTION_CONFLICT)
    pulsar.script[c.CommandAck] = in_turn(Call.default, conflict, conflict, Call.default)
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", b"b", b"c", b"d", entry_id=1)
        messages = [await consumer.receive() for _ in range(4)]
        consumer.ack(messages[3])
        with pytest.raises(PulsarTransactionConflict):
            async with client.transaction() as txn:
                consumer.ack(messages[0], transaction=txn)
        push(b"a", b"b", b"c", b"d", entry_id=1, ack_set=[0b0111], redelivery_count=1)
        consumer.nack(messages[1], delay=0)
        await asyncio.sleep(0.1)
        assert pulsar.commands(c.CommandRedeliverUnacknowledgedMessages)
    found = [bits_of(one.ack_set) for ack in pulsar.commands(c.CommandAck) for one in ack.message_id]
    assert found == [0b0111, 0b1110, 0b1110, 0b1101, 0b1011]
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_a_conflict_takes_messages_of_the_batch_that_wait_to_be_acknowledged_into_the_abort(
    pulsar: ScriptedPulsar,
) -> None:
    conflict = refuse(ServerError.TRANSACTION_CONFLICT)
    pulsar.script[c.CommandAck] = in_turn(late(0.5, conflict), conflict, Call.default)
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", b"b", b"c", entry_id=1)
        messages = [await consumer.receive() for _ in range(3)]
        with pytest.raises(PulsarTransactionConflict):
            async with client.transaction() as txn:
                consumer.ack(messages[0], transaction=txn)
                await asyncio.sleep(0.2)
                consumer.ack(messages[1], transaction=txn)
                consumer.ack(messages[2], transaction=txn)
    found = [bits_of(one.ack_set) for ack in pulsar.commands(c.CommandAck) for one in ack.message_id]
    assert found == [0b110, 0b110, 0b101, 0b011]
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_an_acknowledgement_without_an_answer_is_not_sent_again(pulsar: ScriptedPulsar) -> None:
    # the broker would refuse it as a conflict, if it has the first one
    pulsar.script[c.CommandAck] = in_turn(Call.cut, Call.default)
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", entry_id=1)
        message = await consumer.receive()
        with pytest.raises(PulsarTransactionAborted):
            async with client.transaction() as txn:
                consumer.ack(message, transaction=txn)
    assert len(pulsar.commands(c.CommandAck)) == 1
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_an_acknowledgement_that_the_broker_cannot_take_yet_is_sent_again(
    pulsar: ScriptedPulsar,
) -> None:
    pulsar.script[c.CommandAck] = in_turn(refuse(ServerError.SERVICE_NOT_READY), Call.default)
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", entry_id=1)
        message = await consumer.receive()
        async with client.transaction() as txn:
            consumer.ack(message, transaction=txn)
    assert len(pulsar.commands(c.CommandAck)) == 2


async def test_messages_of_an_aborted_batch_are_delivered_again(pulsar: ScriptedPulsar) -> None:
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", b"b", b"c", entry_id=1)
        messages = [await consumer.receive() for _ in range(3)]
        txn = client.transaction()
        async with txn:
            consumer.ack(messages[0], transaction=txn)
            consumer.ack(messages[1], transaction=txn)
            await asyncio.sleep(1)
            # the entry comes again because of its third message: without those of the open transaction
            consumer.nack(messages[2], delay=0)
            await asyncio.sleep(0.1)
            push(b"a", b"b", b"c", entry_id=1, ack_set=[0b100])
            assert (await consumer.receive()).value == b"c"
            await txn.abort()
        assert txn.state is PulsarTransactionState.ABORTED
        push(b"a", b"b", b"c", entry_id=1, redelivery_count=1)
        assert [(await consumer.receive()).value for _ in range(2)] == [b"a", b"b"]


@pytest.mark.parametrize("index_acks", [True, False])
async def test_an_acknowledgement_leaves_messages_that_others_have_acknowledged(
    pulsar: ScriptedPulsar, *, index_acks: bool
) -> None:
    async with consuming(pulsar, index_acks=index_acks) as (_, consumer, push):
        push(b"a", b"b", b"c", entry_id=1, ack_set=[0b110])
        for _ in range(2):
            consumer.ack(await consumer.receive())
        # another transaction is aborted before the broker has these acknowledgements
        push(b"a", b"b", b"c", entry_id=1)
        again = await consumer.receive()
        assert (again.value, consumer.queued) == (b"a", 0)
        await consumer.flush()
        consumer.ack(again)
        await consumer.flush()
    found = [bits_of(one.ack_set) for ack in pulsar.commands(c.CommandAck) for one in ack.message_id]
    assert found == [0b001, 0]


async def test_messages_that_another_consumers_transaction_gave_back_are_delivered(
    pulsar: ScriptedPulsar,
) -> None:
    async with consuming(pulsar) as (_, consumer, push):
        push(b"a", b"b", b"c", entry_id=1, ack_set=[0b100])
        message = await consumer.receive()
        push(b"a", b"b", b"c", entry_id=1)
        assert [(await consumer.receive()).value for _ in range(2)] == [b"a", b"b"]
        assert message.value == b"c"


async def test_messages_of_a_committed_batch_are_not_delivered_again(pulsar: ScriptedPulsar) -> None:
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", b"b", entry_id=1)
        messages = [await consumer.receive() for _ in range(2)]
        async with client.transaction() as txn:
            consumer.ack(messages[0], transaction=txn)
        push(b"a", b"b", entry_id=1)  # an old push that was under way
        push(b"x", entry_id=2)
        assert (await consumer.receive()).value == b"x"


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_in_order_nothing_is_delivered_twice_after_an_abort(pulsar: ScriptedPulsar, kind: str) -> None:
    async with consuming(pulsar, kind) as (client, consumer, push):
        pulsar.script[c.CommandEndTxn] = in_turn(late(1.0), Call.default)
        for number in range(3):
            push(b"%d" % number, entry_id=number)
        first = await consumer.receive()

        async def process() -> None:
            async with client.transaction() as txn:
                consumer.ack(first, transaction=txn)
                raise LookupError

        task = asyncio.ensure_future(process())
        await asyncio.sleep(0.5)
        # the broker rewinds before it answers, in the epoch of before
        for number in range(3):
            push(b"%d" % number, entry_id=number, epoch=0)
        with pytest.raises(LookupError):
            await task
        await asyncio.sleep(0)
        asked = pulsar.commands(c.CommandRedeliverUnacknowledgedMessages)
        assert [one.consumer_epoch for one in asked] == [1]
        for number in range(3):
            push(b"%d" % number, entry_id=number, epoch=1)
        assert [(await consumer.receive()).value for _ in range(3)] == [b"0", b"1", b"2"]
        assert not consumer.queued


async def test_all_up_to_a_message_in_a_transaction(pulsar: ScriptedPulsar) -> None:
    async with consuming(pulsar, "exclusive") as (client, consumer, push):
        push(b"a", b"b", b"c", entry_id=1)
        messages = [await consumer.receive() for _ in range(3)]
        async with client.transaction() as txn:
            consumer.ack_cumulative(messages[1], transaction=txn)
    [ack] = pulsar.commands(c.CommandAck)
    [one] = ack.message_id
    assert (ack.ack_type, one.entry_id, bits_of(one.ack_set), one.batch_size) == (1, 1, 0b100, 3)


async def test_a_consumer_of_several_topics(pulsar: ScriptedPulsar) -> None:
    async with (
        PulsarClient(pulsar.url) as client,
        client.subscribe(["orders", "returns"], "s", type="exclusive") as consumer,
    ):
        for command in pulsar.commands(c.CommandSubscribe):
            number = command.consumer_id
            pulsar.connection_of(consumer=number).push_entry(number, command.topic.encode(), entry_id=3)
        messages = [await consumer.receive(), await consumer.receive()]
        async with client.transaction() as txn:
            consumer.ack(messages[0], transaction=txn)
            consumer.ack_cumulative(messages[1], transaction=txn)
    added = [one.subscription[0].topic for one in pulsar.commands(c.CommandAddSubscriptionToTxn)]
    assert sorted(added) == sorted((message.value or b"").decode() for message in messages)
    assert sorted(ack.ack_type for ack in pulsar.commands(c.CommandAck)) == [0, 1]


async def test_acknowledgements_that_no_transaction_can_have(pulsar: ScriptedPulsar) -> None:
    async with consuming(pulsar) as (client, consumer, push):
        push(b"a", b"b", entry_id=1)
        message = await consumer.receive()
        async with client.transaction() as txn:
            with pytest.raises(UsageError, match="one by one"):
                consumer.ack_cumulative(message, transaction=txn)
            with pytest.raises(ConfigError, match="batch_size"):
                consumer.ack(MessageId(1, 1, -1, 0), transaction=txn)
            with pytest.raises(ConfigError, match=r"client\.transaction\(\)"):
                consumer.ack(message, transaction=message)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=r"client\.transaction\(\)"):
                consumer.ack(message, transaction=client.transaction)  # type: ignore[arg-type]
        async with client.subscribe("orders", "n", config=PulsarConsumerConfig(durable=False)) as other:
            number = pulsar.commands(c.CommandSubscribe)[-1].consumer_id
            pulsar.connection_of(consumer=number).push_entry(number, b"x")
            async with client.transaction() as txn:
                with pytest.raises(UsageError, match="durable"):
                    other.ack(await other.receive(), transaction=txn)


async def test_a_consumer_that_closes_sends_them_first(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandAddSubscriptionToTxn] = late(1.0)
    async with PulsarClient(pulsar.url) as client:
        async with client.transaction() as txn:
            async with client.subscribe("orders", "s", type="shared") as consumer:
                number = pulsar.commands(c.CommandSubscribe)[-1].consumer_id
                pulsar.connection_of(consumer=number).push_entry(number, b"x")
                consumer.ack(await consumer.receive(), transaction=txn)
    assert order(pulsar) == ["NewTxn", "AddSubscriptionToTxn", "Ack", "EndTxn"]
    assert ends(pulsar) == [TxnAction.COMMIT]


# --- the end ------------------------------------------------------------------------------------------------------------


async def test_an_exception_aborts(pulsar: ScriptedPulsar) -> None:
    async with sending(pulsar) as (client, producer):
        with pytest.raises(LookupError):
            async with client.transaction() as txn:
                await producer.send(b"a", transaction=txn)
                raise LookupError
        assert txn.state is PulsarTransactionState.ABORTED
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_commit_and_abort_before_the_end_of_the_block(pulsar: ScriptedPulsar) -> None:
    async with sending(pulsar) as (client, producer):
        async with client.transaction() as txn:
            await txn.commit()
            with pytest.raises(NoTransactionError, match="committed"):
                await txn.commit()
            with pytest.raises(NoTransactionError, match="committed"):
                await txn.abort()
            with pytest.raises(NoTransactionError, match="committed"):
                await producer.send(b"a", transaction=txn)
        async with client.transaction() as txn:
            await txn.abort()
            await txn.abort()
            with pytest.raises(NoTransactionError, match="aborted"):
                await txn.commit()
    assert ends(pulsar) == [TxnAction.COMMIT, TxnAction.ABORT]


async def test_before_its_block_and_a_second_block(pulsar: ScriptedPulsar) -> None:
    async with sending(pulsar) as (client, producer):
        txn = client.transaction()
        for use in (lambda: txn.txn_id, lambda: txn.check_open()):
            with pytest.raises(NoTransactionError, match="not begun"):
                use()
        with pytest.raises(NoTransactionError, match="not begun"):
            await producer.send(b"a", transaction=txn)
        async with txn:
            with pytest.raises(UsageError, match="entered once"):
                await txn.__aenter__()


async def test_a_transaction_of_another_client(pulsar: ScriptedPulsar) -> None:
    async with (
        sending(pulsar) as (_, producer),
        PulsarClient(pulsar.url) as other,
        PulsarProducer(pulsar.url, "orders") as own,
    ):
        async with other.transaction() as txn:
            for each in (producer, own):
                with pytest.raises(UsageError, match="of another client"):
                    await each.send(b"a", transaction=txn)


async def test_topics_that_are_not_persistent(pulsar: ScriptedPulsar) -> None:
    async with PulsarClient(pulsar.url) as client:
        async with (
            client.producer("non-persistent://public/default/x") as producer,
            client.transaction() as txn,
        ):
            with pytest.raises(UsageError, match="not persistent"):
                await producer.send(b"a", transaction=txn)


@pytest.mark.parametrize("timeout", [0, -1, "60", None, True, float("nan")])
async def test_timeouts_that_are_none(pulsar: ScriptedPulsar, timeout: Any) -> None:
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(ConfigError, match="timeout"):
            client.transaction(timeout)


async def test_a_transaction_that_takes_too_long(pulsar: ScriptedPulsar) -> None:
    async with sending(pulsar) as (client, producer):
        with pytest.raises(PulsarTransactionTimedOut, match="within its timeout of 2 s"):
            async with client.transaction(timeout=2) as txn:
                await producer.send(b"a", transaction=txn)
                await asyncio.sleep(3)
                assert ends(pulsar) == [TxnAction.ABORT], "at once, before its coordinator does"
                with pytest.raises(PulsarTransactionTimedOut):
                    await producer.send(b"b", transaction=txn)
                assert txn.state is PulsarTransactionState.TIMED_OUT
        assert txn.state is PulsarTransactionState.TIMED_OUT
        with pytest.raises(LookupError):
            async with client.transaction(timeout=2) as txn:
                await asyncio.sleep(3)
                raise LookupError
    assert ends(pulsar) == [TxnAction.ABORT, TxnAction.ABORT]


async def test_a_commit_waits_for_answers_no_longer_than_the_timeout(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandSend] = no_answer
    async with sending(pulsar, close_timeout=0.1) as (client, producer):
        with pytest.raises(PulsarTransactionTimedOut):
            async with client.transaction(timeout=2) as txn:
                await producer.enqueue(b"a", transaction=txn)
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_a_commit_that_the_coordinator_refuses(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandEndTxn] = refuse(ServerError.TRANSACTION_NOT_FOUND)
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(PulsarTransactionAborted, match=r"knows no such transaction.*TransactionNotFound"):
            async with client.transaction():
                pass
    assert ends(pulsar) == [TxnAction.COMMIT]


async def test_a_commit_without_an_answer_is_sent_again(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandEndTxn] = in_turn(Call.cut, Call.default)
    async with PulsarClient(pulsar.url) as client:
        async with client.transaction() as txn:
            pass
        assert txn.state is PulsarTransactionState.COMMITTED
    assert ends(pulsar) == [TxnAction.COMMIT, TxnAction.COMMIT]


async def test_a_commit_whose_second_attempt_finds_nothing_may_be_committed(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandEndTxn] = in_turn(Call.cut, refuse(ServerError.TRANSACTION_NOT_FOUND))
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(PulsarTransactionOutcomeUnknown, match="may be committed or not"):
            async with client.transaction() as txn:
                pass
        assert txn.state is PulsarTransactionState.UNKNOWN


async def test_a_commit_that_is_never_answered(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandEndTxn] = no_answer
    async with PulsarClient(pulsar.url, PulsarConfig(operation_timeout=3)) as client:
        with pytest.raises(PulsarTransactionOutcomeUnknown):
            async with client.transaction():
                pass


async def test_an_abort_that_is_never_answered_does_not_hide_the_error(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandEndTxn] = no_answer
    async with PulsarClient(pulsar.url) as client:
        started = now()
        with pytest.raises(LookupError) as raised:
            async with client.transaction():
                raise LookupError
        assert now() - started < 10
        assert "its coordinator does that after 60 s" in raised.value.__notes__[0]


async def test_a_client_that_closes_aborts(pulsar: ScriptedPulsar) -> None:
    async with PulsarClient(pulsar.url) as client:
        txn: PulsarTransaction = await client.transaction().__aenter__()
    assert ends(pulsar) == [TxnAction.ABORT]
    with pytest.raises(PulsarTransactionAborted, match="its client was closed") as raised:
        await txn.__aexit__(None, None, None)
    assert isinstance(raised.value.__cause__, ClosedError)


# --- cancellation -------------------------------------------------------------------------------------------------------


async def cancelled(task: asyncio.Task[Any]) -> asyncio.CancelledError:
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    return raised.value


async def test_cancelled_in_the_block(pulsar: ScriptedPulsar) -> None:
    async with PulsarClient(pulsar.url) as client:

        async def work() -> None:
            async with client.transaction():
                await asyncio.sleep(10)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        await cancelled(task)
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_cancelled_while_messages_are_not_answered(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandSend] = late(3.0)
    async with sending(pulsar) as (client, producer):

        async def work() -> None:
            async with client.transaction() as txn:
                await producer.enqueue(b"a", transaction=txn)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        await cancelled(task)
    assert ends(pulsar) == [TxnAction.ABORT]
    assert pulsar.times(c.CommandEndTxn)[0] >= 3.0 + pulsar.times(c.CommandSend)[0], "after the receipt"


async def test_cancelled_while_it_is_committed(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandEndTxn] = late(2.0)
    async with PulsarClient(pulsar.url) as client:
        txn = client.transaction()

        async def work() -> None:
            async with txn:
                pass

        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        error = await cancelled(task)
        assert txn.state is PulsarTransactionState.COMMITTED
        assert "it is committed" in error.__notes__[0]
    assert ends(pulsar) == [TxnAction.COMMIT]


@pytest.mark.parametrize("kind", [c.CommandNewTxn, c.CommandAddPartitionToTxn])
async def test_cancelled_during_a_request_to_the_coordinator(
    pulsar: ScriptedPulsar, kind: type[c.Command]
) -> None:
    pulsar.script[kind] = in_turn(late(2.0), Call.default)
    async with sending(pulsar) as (client, producer):

        async def work() -> None:
            async with client.transaction() as txn:
                await producer.send(b"a", transaction=txn)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        await cancelled(task)
        await work()
    assert ends(pulsar)[-1] is TxnAction.COMMIT
    assert len(pulsar.stored[TOPIC]) == 1
