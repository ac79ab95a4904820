"""PulsarConsumeTransformProduce on a scripted broker and on a real one."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consume_transform_produce import PulsarConsumeTransformProduce, PulsarTransactionOutput
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.transactions.errors import PulsarTransactionError, TransactionsNotEnabled
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.server_errors import ServerError
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.scripted import Call, ScriptedPulsar, in_turn, late, refuse

Batch = Sequence[PulsarMessage]
OUT = "persistent://public/default/shouted"


async def shout(batch: Batch, output: PulsarTransactionOutput) -> None:
    for message in batch:
        await output.enqueue("shouted", (message.value or b"").upper(), key=message.key)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def transforming(
    pulsar: ScriptedPulsar, transform: Any = shout, kind: str = "shared", **options: Any
) -> AsyncIterator[tuple[asyncio.Task[None], Callable[..., None]]]:
    """Yield the task of a transformation, and a function that pushes an entry to its consumer."""
    work = PulsarConsumeTransformProduce(transform, **options).run(pulsar.url, "spoken", "s", type=kind)
    task = asyncio.ensure_future(work)
    await until(lambda: any(one.consumers for one in pulsar.connections))

    def push(value: bytes, entry_id: int, **fields: Any) -> None:
        (connection,) = (one for one in pulsar.connections if one.consumers)
        connection.push_entry(next(iter(connection.consumers)), value, entry_id=entry_id, **fields)

    try:
        yield task, push
    finally:
        task.cancel()
        await asyncio.wait([task])


def ends(pulsar: ScriptedPulsar) -> list[TxnAction]:
    return [TxnAction(one.txn_action or 0) for one in pulsar.commands(c.CommandEndTxn)]


async def test_output_and_acknowledgements_are_one_transaction(pulsar: ScriptedPulsar) -> None:
    async with transforming(pulsar) as (_, push):
        for number in range(3):
            push(b"a%d" % number, number)
        await until(lambda: ends(pulsar))
    assert set(ends(pulsar)) == {TxnAction.COMMIT}
    acked = [one.entry_id for ack in pulsar.commands(c.CommandAck) for one in ack.message_id]
    assert acked == [0, 1, 2]
    assert {ack.txnid_least_bits for ack in pulsar.commands(c.CommandAck)} == {
        entry.command.txnid_least_bits for entry in pulsar.stored[OUT]
    }


@pytest.mark.parametrize("kind", [c.CommandAck, c.CommandSend, c.CommandAddPartitionToTxn])
async def test_a_failure_repeats_the_batch(pulsar: ScriptedPulsar, kind: type[c.Command]) -> None:
    code = ServerError.TRANSACTION_NOT_FOUND
    if kind is c.CommandAck:
        code = ServerError.TRANSACTION_CONFLICT
    pulsar.script[kind] = in_turn(Call.cut if kind is c.CommandSend else refuse(code), Call.default)
    async with transforming(pulsar) as (_, push):
        push(b"a", 0)
        await until(lambda: ends(pulsar) or len(pulsar.stored[OUT]) > 1)
        if ends(pulsar) == [TxnAction.ABORT]:
            push(b"a", 0, redelivery_count=1)
        await until(lambda: ends(pulsar) and ends(pulsar)[-1] is TxnAction.COMMIT)


async def test_an_exception_of_the_function_is_raised(pulsar: ScriptedPulsar) -> None:
    async def broken(batch: Batch, output: PulsarTransactionOutput) -> None:
        await shout(batch, output)
        raise LookupError

    async with transforming(pulsar, broken) as (task, push):
        push(b"a", 0)
        with pytest.raises(LookupError):
            await task
    assert ends(pulsar) == [TxnAction.ABORT]


async def test_a_message_that_the_broker_refuses_is_raised(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandSend] = refuse(ServerError.NOT_ALLOWED_ERROR)
    async with transforming(pulsar) as (task, push):
        push(b"a", 0)
        with pytest.raises((PulsarTransactionError, PulsarServerError), match="NotAllowedError"):
            await task


async def test_a_function_that_takes_too_long_is_cancelled_and_repeated(pulsar: ScriptedPulsar) -> None:
    calls = 0

    async def slow(batch: Batch, output: PulsarTransactionOutput) -> None:
        nonlocal calls
        calls += 1
        await shout(batch, output)
        await asyncio.sleep(100 if calls == 1 else 0)

    async with transforming(pulsar, slow, timeout=2) as (_, push):
        push(b"a", 0)
        await until(lambda: ends(pulsar))
        push(b"a", 0, redelivery_count=1)
        await until(lambda: len(ends(pulsar)) == 2)
    assert ends(pulsar) == [TxnAction.ABORT, TxnAction.COMMIT]


async def test_failures_in_a_row_are_raised_at_last(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandAck] = refuse(ServerError.TRANSACTION_CONFLICT)
    async with transforming(pulsar, max_failures=2) as (task, push):
        for number in range(3):
            push(b"a", number)
            await until(lambda count=number: len(ends(pulsar)) > count)  # type: ignore[misc]
        with pytest.raises(PulsarTransactionError):
            await task


async def test_output_after_the_end_of_the_function(pulsar: ScriptedPulsar) -> None:
    kept: list[PulsarTransactionOutput] = []

    async def keep(_: Batch, output: PulsarTransactionOutput) -> None:
        kept.append(output)

    async with transforming(pulsar, keep) as (_, push):
        push(b"a", 0)
        await until(lambda: ends(pulsar))
        with pytest.raises(UsageError, match="after its function had returned"):
            await kept[0].enqueue("shouted", b"x")


async def test_a_producer_that_is_being_opened_at_the_end_is_closed(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandProducer] = late(1.0)
    async with transforming(pulsar) as (task, push):
        push(b"a", 0)
        await until(lambda: pulsar.commands(c.CommandProducer))
        task.cancel()
        await asyncio.wait([task])
    names = {each.get_name() for each in asyncio.all_tasks()}
    assert not any(name.startswith("producer of") for name in names), names
    await asyncio.sleep(60)
    assert len(pulsar.commands(c.CommandProducer)) == 1
    assert not any(connection.producers for connection in pulsar.connections)


async def test_a_broker_without_transactions(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandTcClientConnectRequest] = refuse(ServerError.NOT_ALLOWED_ERROR)
    async with transforming(pulsar) as (task, push):
        push(b"a", 0)
        with pytest.raises(TransactionsNotEnabled):
            await task


def test_arguments_that_are_none() -> None:
    with pytest.raises(ConfigError, match="an async function"):
        PulsarConsumeTransformProduce(lambda *_: None)  # type: ignore[arg-type, return-value]
    for key in ("timeout", "max_records", "max_bytes", "max_failures"):
        with pytest.raises(ConfigError, match=key):
            PulsarConsumeTransformProduce(shout, **{key: "5"})  # type: ignore[arg-type]


@pytest.mark.real
@pytest.mark.java
@pytest.mark.full
@pytest.mark.parametrize("kind", ["failover", "shared"])
async def test_on_a_real_pulsar(apache_pulsar: RunningPulsar, kind: str) -> None:
    """Two transformations, of which one is cancelled again and again: each output is there once."""
    source, target = f"spoken-{uuid.uuid4().hex[:12]}", f"shouted-{uuid.uuid4().hex[:12]}"

    async def copy(batch: Batch, output: PulsarTransactionOutput) -> None:
        for message in batch:
            await output.enqueue(target, message.value)
        await asyncio.sleep(0.02)

    config = PulsarConsumerConfig(initial_position="earliest")
    made = PulsarConsumeTransformProduce(copy, consumer_config=config, max_records=20)
    async with PulsarClient(apache_pulsar.service_url, PulsarConfig(operation_timeout=60)) as client:
        reader = client.subscribe(target, "r", type="exclusive", config=config)
        async with reader, client.producer(source) as producer, asyncio.timeout(120):
            for number in range(400):
                await producer.enqueue(b"%d" % number)
            await producer.flush()
            steady = asyncio.ensure_future(made.run(client, source, "s", type=kind))
            found: list[bytes | None] = []
            while len(found) < 400:
                unsteady = asyncio.ensure_future(made.run(client, source, "s", type=kind))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        while len(found) < 400:
                            found.append((await reader.receive()).value)
                unsteady.cancel()
                await asyncio.wait([unsteady])
            steady.cancel()
            await asyncio.wait([steady])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await reader.receive()
    assert sorted(found, key=lambda value: int(value or b"-1")) == [b"%d" % number for number in range(400)]
