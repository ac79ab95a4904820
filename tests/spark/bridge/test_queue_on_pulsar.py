"""QueueForeachBatch over a queue on Pulsar: its columns, outcomes by message id, crashes. In virtual time, and once for real."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from asyncgroup.columns import message_arrow_schema
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar import MessageId, PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.metadata import SingleMessageMetadata
from asyncgroup.spark import DbApiMerge, FailedRows, QueueForeachBatch, Upsert
from asyncgroup.spark.arrow import message_schema
from asyncgroup.spark.bridge.failed_rows import row_keys
from asyncgroup.spark.ranges import MESSAGE_KEYS
from asyncgroup.workqueue import WorkQueue
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.apache_pulsar import RunningPulsar
from tests.guide.pages import snippet
from tests.pulsar.scripted import BrokerConnection, ScriptedPulsar
from tests.spark.bridge.fakes import FakeSpark
from tests.spark.bridge.test_queue_batches import Function, jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jobs"]

TOPIC = "persistent://public/default/orders"

in_virtual_time = [pytest.mark.virtual(max_virtual_time=3600), pytest.mark.usefixtures("jobs")]


class ByMessageId(Function):
    """A function whose `result` gets the rows as dicts."""

    def __call__(self, batches: list[Any], batch_id: int) -> Any:
        self.calls.append((asyncio.get_running_loop().time(), batch_id, batches))
        return self.result(dicts(batches), len(self.calls))  # type: ignore[arg-type]


def dicts(batches: list[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def running(
    pulsar: ScriptedPulsar, function: Function, *, foreach: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[BrokerConnection, int, asyncio.Task[None]]]:
    """Run a queue until the end of the block; give its connection, and the id of its consumer there."""
    made = QueueForeachBatch(FakeSpark(), function, **{"max_wait": 0.5, **(foreach or {})})  # type: ignore[arg-type]
    # with Mode.SHARED the queue would give failed messages back, and these brokers push nothing again
    settings = {"mode": "key_shared", "nack_backoff": 5, **settings}
    async with WorkQueue(PulsarSource(pulsar.url, "lake", "orders"), **settings) as queue:
        run = asyncio.create_task(made.run(queue))
        await until(lambda: any(one.consumers for one in pulsar.connections))
        (connection,) = (one for one in pulsar.connections if one.consumers)
        try:
            yield connection, next(iter(connection.consumers)), run
        finally:
            await queue.aclose()
            await asyncio.wait([run])
    if not run.cancelled():
        run.result()


def acked(pulsar: ScriptedPulsar) -> list[int]:
    return [each.entry_id for ack in pulsar.commands(c.CommandAck) for each in ack.message_id]


class TestInVirtualTime:
    """On scripted brokers, with batches of Arrow in place of frames."""

    pytestmark = in_virtual_time

    @pytest.mark.parametrize("include_headers", [False, True])
    async def test_the_columns(self, include_headers: bool) -> None:
        function = ByMessageId()
        singles = [
            SingleMessageMetadata(payload_size=0, partition_key="k", event_time=3_000, ordering_key=b"o"),
            SingleMessageMetadata(payload_size=0, properties={"a": "é"}),
        ]
        async with ScriptedPulsar("10.0.0.1") as pulsar:
            headers = {"include_headers": include_headers}
            async with running(pulsar, function, foreach=headers) as (connection, consumer, _):
                connection.push_entry(
                    consumer, b"x", b"y", entry_id=4, ledger_id=7, singles=singles, publish_time=2_000
                )
                await until(lambda: len(acked(pulsar)) == 1)
        ((*_, batches),) = function.calls
        assert [batch.schema for batch in batches] == [message_arrow_schema(include_headers=include_headers)]
        first, second = dicts(batches)
        names = ["key", "value", "topic", "partition", "timestamp", "timestampType"]
        assert list(first) == [
            *names, *["headers"] * include_headers, "messageId", "eventTime", "orderingKey"
        ]  # fmt: skip
        assert (first["key"], first["value"], first["topic"], first["partition"]) == (b"k", b"x", TOPIC, -1)
        assert (first["messageId"], first["orderingKey"]) == ("7:4:-1:0", b"o")
        assert (first["timestamp"], first["eventTime"]) == (
            datetime.fromtimestamp(2, UTC),
            datetime.fromtimestamp(3, UTC),
        )
        assert (second["key"], second["eventTime"], second["orderingKey"]) == (None, None, None)
        if include_headers:
            assert first["headers"] is None
            assert second["headers"] == [{"key": "a", "value": "é".encode()}]

    async def test_rows_are_named_by_message_id(self) -> None:
        """Those that failed are delivered again after their delay, and all others are acknowledged."""

        def result(rows: Any, call: int) -> object:
            odd = [(row["topic"], row["messageId"]) for row in rows if int(row["value"]) % 2]
            return FailedRows(odd, delay=5) if call == 1 else None

        function = ByMessageId(result)
        async with ScriptedPulsar("10.0.0.1") as pulsar:
            async with running(pulsar, function, foreach={"durable": True}) as (connection, consumer, _):
                for number in range(4):
                    connection.push_entry(consumer, b"%d" % number, entry_id=number)
                await until(lambda: len(acked(pulsar)) == 4)
        assert function.rows == [[0, 1, 2, 3], [1, 3]]
        assert acked(pulsar) == [0, 2, 1, 3]
        assert function.calls[1][0] - function.calls[0][0] >= 5

    async def test_the_function_fails(self) -> None:
        def result(_: Any, call: int) -> None:
            if call == 1:
                raise RuntimeError("the table is locked")

        function = ByMessageId(result)
        async with ScriptedPulsar("10.0.0.1") as pulsar:
            async with running(pulsar, function) as (connection, consumer, _):
                for number in range(3):
                    connection.push_entry(consumer, b"%d" % number, entry_id=number)
                await until(lambda: function.calls)
                assert acked(pulsar) == []
                await until(lambda: len(acked(pulsar)) == 3)
        assert function.rows == [[0, 1, 2]] * 2

    async def test_durable_batches_wait_for_the_confirmation(self) -> None:
        function = ByMessageId()
        async with ScriptedPulsar("10.0.0.1") as pulsar:
            confirm: list[Any] = []
            pulsar.script[c.CommandAck] = confirm.append
            options = {"durable": True, "max_rows": 1}
            async with running(pulsar, function, foreach=options) as (connection, consumer, _):
                connection.push_entry(consumer, b"0", entry_id=0)
                connection.push_entry(consumer, b"1", entry_id=1)
                await until(lambda: confirm)
                await asyncio.sleep(5)
                assert function.rows == [[0]]
                del pulsar.script[c.CommandAck]
                confirm[0].answer(
                    c.CommandAckResponse(consumer_id=consumer, request_id=confirm[0].command.request_id)
                )
                await until(lambda: len(acked(pulsar)) == 2)
        assert function.rows == [[0], [1]]

    async def test_a_driver_that_ends_after_the_function_gets_the_same_messages_again(self) -> None:
        """At least once: the acknowledgements were not sent."""
        stored: dict[str, bytes] = {}

        def result(rows: Any, _: int) -> None:
            stored.update({row["messageId"]: row["value"] for row in rows})

        function = ByMessageId(result)
        async with ScriptedPulsar("10.0.0.1") as pulsar:
            with contextlib.suppress(asyncio.CancelledError):
                async with running(pulsar, function) as (connection, consumer, run):
                    connection.push_entry(consumer, b"0", entry_id=0)
                    await until(lambda: function.calls)
                    run.cancel()  # in the call, whose rows are stored
                    await asyncio.wait([run])
            assert acked(pulsar) == []
            async with running(pulsar, function) as (connection, consumer, run):
                connection.push_entry(consumer, b"0", entry_id=0, redelivery_count=1)
                await until(lambda: acked(pulsar))
        assert function.rows == [[0], [0]]
        assert stored == {"7:0:-1": b"0"}

    @pytest.mark.parametrize("field", ["publish_time", "event_time"])
    async def test_a_time_that_cannot_be_a_timestamp(
        self, field: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Any producer can send one: its message is nacked alone, and becomes a dead letter."""
        function = ByMessageId()
        async with ScriptedPulsar("10.0.0.1") as pulsar:
            async with running(pulsar, function, dead_letter=1) as (connection, consumer, _):
                connection.push_entry(consumer, b"0", entry_id=0)
                bad: dict[str, Any] = {field: 1 << 63}
                connection.push_entry(consumer, b"1", entry_id=1, **bad)
                await until(lambda: len(acked(pulsar)) == 2)
        assert function.rows == [[0]]
        assert "cannot be a row" in caplog.text
        (dead,) = pulsar.stored[f"{TOPIC}-lake-DLQ"]
        assert dead.body == b"1"

    async def test_a_sink_that_keys_on_offsets_is_refused(self) -> None:
        merge = DbApiMerge(functools.partial(sqlite3.connect, ":memory:"), "orders")
        async with (
            ScriptedPulsar("10.0.0.1") as pulsar,
            WorkQueue(PulsarSource(pulsar.url, "lake", "orders")) as queue,
        ):
            with pytest.raises(ConfigError, match=r"fn=.*'messageId'.*messages of Pulsar have no offset"):
                await QueueForeachBatch(FakeSpark(), Upsert(merge)).run(queue)  # type: ignore[arg-type]
            allowed = QueueForeachBatch(FakeSpark(), Upsert(merge, keys=MESSAGE_KEYS))  # type: ignore[arg-type]
            run = asyncio.create_task(allowed.run(queue))
            await asyncio.sleep(1)
            assert not run.done()
            await queue.aclose()
            await run


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([("orders", 0, 5)], "the columns topic and messageId"),
        ([("orders", None)], "topic and messageId, none null"),
        ("orders", "the columns topic and messageId"),
    ],
)
def test_invalid_rows(rows: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        row_keys(rows, MESSAGE_KEYS)


def test_a_message_id_may_be_an_object() -> None:
    assert row_keys([("orders", MessageId(1, 2)), ["orders", "1:2:-1:3"]], MESSAGE_KEYS) == {
        ("orders", "1:2:-1"),
        ("orders", "1:2:-1:3"),
    }


@pytest.mark.real
@pytest.mark.full
async def test_each_message_of_a_pulsar_is_stored_once(
    spark: SparkSession, apache_pulsar: RunningPulsar, tmp_path: Path
) -> None:
    """With the guide's function: the first driver ends when it has stored a batch; rows that are no number become dead letters."""
    topic, names = f"lake-{uuid4().hex[:8]}", dict[str, Any]()
    block = snippet("spark-bridge", 'keys=("topic", "messageId")').replace("asyncio.run(main())", "")
    exec(block.replace('"orders.db"', repr(str(tmp_path / "orders.db"))), names)
    with contextlib.closing(names["connect"]()) as table:
        table.execute("CREATE TABLE amounts (topic, messageId, amount, PRIMARY KEY (topic, messageId))")
    calls: list[int] = []

    def store(df: Any, batch_id: int) -> Any:
        assert df.schema == message_schema(include_headers=True)
        result = names["store"](df, batch_id)
        calls.append(df.count())
        loop.call_soon_threadsafe(on_stored)
        return result

    def on_stored() -> None:
        if len(calls) == 1:
            run.cancel()

    def queue_on(client: PulsarClient) -> WorkQueue:
        source = PulsarSource(client, "lake", topic, dead_letter_subscription="all")
        return WorkQueue(source, initial_position="earliest", dead_letter=1)

    loop = asyncio.get_running_loop()
    foreach = QueueForeachBatch(spark, store, max_rows=50, max_wait=2, include_headers=True, durable=True)
    async with PulsarClient(apache_pulsar.service_url) as client, asyncio.timeout(90):
        async with client.producer(topic) as producer:
            for number in range(50):
                value = b"x" if number % 10 == 7 else b"%d" % number
                await producer.enqueue(value, properties={"number": str(number)}, event_time=1_000 + number)
        async with queue_on(client) as queue:
            run = asyncio.create_task(foreach.run(queue))
            await asyncio.wait([run])
            assert run.cancelled()
        async with queue_on(client) as queue:
            run = asyncio.create_task(foreach.run(queue))
            await until(lambda: queue.statistics().counts.dead_lettered == 5)
            assert queue.statistics().counts.acked == 45
            await queue.aclose()
            await run
        config = PulsarConsumerConfig(initial_position="earliest")
        async with client.subscribe(f"{topic}-lake-DLQ", "all", config=config) as consumer:
            dead = [await consumer.receive() for _ in range(5)]
    assert {message.value for message in dead} == {b"x"}
    with contextlib.closing(names["connect"]()) as table:
        stored = [amount for (amount,) in table.execute("SELECT amount FROM amounts ORDER BY amount")]
    assert stored == [number for number in range(50) if number % 10 != 7]
    assert len(calls) > 1
