"""PulsarReader on the embedded Pulsar, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.model import clock_of_loop, now_ms
from asyncgroup.pulsar import (
    EARLIEST,
    LATEST,
    MessageId,
    PulsarClient,
    PulsarConsumerConfig,
    PulsarProducer,
    PulsarProducerConfig,
    PulsarReader,
)
from tests.pulsar_broker.support import embedded

pytestmark = pytest.mark.virtual(max_virtual_time=3600)


async def produce(client: PulsarClient, *numbers: int, **settings: Any) -> list[MessageId]:
    config = PulsarProducerConfig(**settings)
    async with PulsarProducer(client, "t", config, clock=clock_of_loop()) as producer:
        sends = [producer.send(b"%d" % number, key=f"k{number}") for number in numbers]
        return list(await asyncio.gather(*sends))


async def read_all(reader: PulsarReader) -> list[int]:
    found = []
    while await reader.has_message_available():
        found.append(int((await reader.read()).value or b""))
    return found


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("partitions", [0, 3])
async def test_everything_from_the_first_message_on_and_what_comes(partitions: int, batching: bool) -> None:
    async with embedded(default_partitions=partitions) as (pulsar, client):
        await produce(client, *range(30), batching=batching)
        async with client.reader("t", "earliest") as reader:
            assert sorted(await read_all(reader)) == list(range(30))
            assert not await reader.has_message_available()
            waiting = asyncio.create_task(reader.read())
            await asyncio.sleep(10)
            assert not waiting.done()
            await produce(client, 30)
            assert (await waiting).value == b"30"
            assert not await reader.has_message_available()
        assert all(not pulsar.topic(name).subscriptions for name in pulsar.topics), "nothing stays"


async def test_only_what_comes() -> None:
    """Also with the configuration of a consumer that begins paused: a reader has no `resume`."""
    async with embedded() as (_, client):
        await produce(client, 1, 2)
        async with client.reader("t", config=PulsarConsumerConfig(start_paused=True)) as reader:
            assert not await reader.has_message_available()
            await produce(client, 3)
            assert await read_all(reader) == [3]


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize(("inclusive", "first"), [(False, 11), (True, 10)])
async def test_from_a_message_on(batching: bool, inclusive: bool, first: int) -> None:
    async with embedded() as (_, client):
        ids = await produce(client, *range(20), batching=batching)
        async with client.reader("t", ids[10], inclusive=inclusive) as reader:
            assert await read_all(reader) == list(range(first, 20))
            await reader.seek(ids[5], inclusive=inclusive)
            assert await read_all(reader) == list(range(first - 5, 20))
        async with client.reader("t", ids[19]) as reader:
            assert not await reader.has_message_available()


@pytest.mark.parametrize("partitions", [0, 2])
async def test_from_a_time_on(partitions: int) -> None:
    async with embedded(default_partitions=partitions) as (_, client):
        await produce(client, 1, 2)
        await asyncio.sleep(10)
        time = datetime.fromtimestamp(now_ms() / 1000, UTC)
        await asyncio.sleep(10)
        await produce(client, 3, 4)
        async with client.reader("t", time) as reader:
            assert sorted(await read_all(reader)) == [3, 4]
            await reader.seek("earliest")
            assert sorted(await read_all(reader)) == [1, 2, 3, 4]
            await reader.seek(time + timedelta(seconds=60))
            assert await read_all(reader) == []
            await reader.seek(EARLIEST)
            assert len(await read_all(reader)) == 4
            await reader.seek(LATEST)
            assert await read_all(reader) == []


async def test_it_goes_on_where_it_was_after_a_reconnect() -> None:
    async with embedded() as (pulsar, client):
        await produce(client, *range(10), batching=False)
        async with client.reader("t", "earliest") as reader:
            assert [int((await reader.read()).value or b"") for _ in range(4)] == [0, 1, 2, 3]
            pulsar.cut(1)
            assert await reader.read_batch(max_messages=2) != []
            await asyncio.sleep(5)
            pulsar.unload("t")
            await asyncio.sleep(5)
            rest = await read_all(reader)
            assert rest == list(range(10))[10 - len(rest) :]
            assert len(rest) == 4


async def test_readers_know_nothing_of_each_other() -> None:
    async with embedded() as (_, client):
        await produce(client, *range(5))
        async with client.reader("t", "earliest") as first, client.reader("t", "earliest") as second:
            assert await read_all(first) == await read_all(second) == list(range(5))
            assert [message async for message in _some(first, 0)] == []
            [last] = await first.last_message_ids()
            assert last.batch_index == 4


async def _some(reader: PulsarReader, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await reader.read()


async def test_iteration_ends_with_the_reader() -> None:
    async with embedded() as (_, client):
        await produce(client, *range(5))
        async with client.reader("t", "earliest") as reader:
            found = []
            async for message in reader:
                found.append(message.value)
                if len(found) == 5:
                    asyncio.get_running_loop().call_later(1, lambda: asyncio.ensure_future(reader.aclose()))
            assert len(found) == 5
        with pytest.raises(ClosedError):
            await reader.read()


async def test_positions_that_are_none() -> None:
    async with embedded(default_partitions=2) as (_, client):
        for start in ("first", 5, datetime(2026, 1, 1), None):  # noqa: DTZ001  without a time zone
            with pytest.raises(
                ConfigError, match=r"'earliest', 'latest', a MessageId, or a datetime with a time zone"
            ):
                client.reader("t", start)  # type: ignore[arg-type]
        [message_id] = await produce(client, 1)
        with pytest.raises(UsageError, match="a message id is of one partition"):
            async with client.reader("t", message_id):
                pass
        async with client.reader("t", EARLIEST) as reader:
            with pytest.raises(UsageError, match="a message id is of one partition"):
                await reader.seek(message_id)
            with pytest.raises(ConfigError):
                await reader.seek("soon")
            assert await read_all(reader) == [1]


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("position", ["latest", "time", "seek to latest", "seek to a time"])
async def test_what_was_read_before_a_reconnect_without_a_message_is_not_read_again(
    position: str, partitions: int
) -> None:
    """Before it has read any message it goes on where it has begun, after the seek or at the start."""
    async with embedded(default_partitions=partitions) as (pulsar, client):
        await produce(client, *range(6))
        await asyncio.sleep(10)
        now = datetime.fromtimestamp(now_ms() / 1000, UTC)
        start = {"latest": "latest", "time": now}.get(position, "earliest")
        async with client.reader("t", start) as reader:
            if position.startswith("seek"):
                assert len(await read_all(reader)) == 6
                await reader.seek(now if position.endswith("time") else "latest")
            for _ in range(2):
                pulsar.cut(1)
                await asyncio.sleep(10)
            await pulsar.stop_broker(1)
            await asyncio.sleep(1)
            pulsar.produce("t", b"6", b"7")
            await pulsar.start_broker(1)
            await asyncio.sleep(10)
            assert sorted(await read_all(reader)) == [6, 7]


async def test_a_seek_to_the_first_message_before_a_reconnect() -> None:
    async with embedded() as (pulsar, client):
        async with client.reader("t") as reader:
            await reader.seek("earliest")
            await pulsar.stop_broker(1)
            await asyncio.sleep(1)
            pulsar.produce("t", b"1")
            await pulsar.start_broker(1)
            assert (await reader.read()).value == b"1"
