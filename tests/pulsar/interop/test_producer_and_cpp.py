"""Messages of PulsarProducer at a real Pulsar, read by pulsar-client (C++), and at its broker: deduplication, ends, moves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pulsar as pulsar_library
import pytest

from asyncgroup.errors import ConnectionLost, DeliveryFailedError, InvalidRecordError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.testing.apache_pulsar import PulsarAdminError
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.interop.messages import CONTENTS, key_of, new_topic, producer

pytestmark = pytest.mark.real

TIMEOUT: Final = 20_000
"""Milliseconds that a C++ consumer waits for a message."""


@pytest.fixture(scope="module")
def cpp(apache_pulsar: RunningPulsar) -> Iterator[Any]:
    """A client of pulsar-client."""
    client = pulsar_library.Client(
        apache_pulsar.service_url, logger=pulsar_library.ConsoleLogger(pulsar_library.LoggerLevel.Error)
    )
    yield client
    client.close()


async def read(client: Any, topic: str, count: int, **options: Any) -> list[Any]:
    """Return the first messages of a topic, as pulsar-client receives them, without a further one."""

    def receive() -> list[Any]:
        consumer = client.subscribe(
            topic, "reads", initial_position=pulsar_library.InitialPosition.Earliest, **options
        )
        try:
            found = [consumer.receive(timeout_millis=TIMEOUT) for _ in range(count)]
            with pytest.raises(pulsar_library.Timeout):
                consumer.receive(timeout_millis=200)
            return found
        finally:
            consumer.close()

    return await asyncio.to_thread(receive)


def shown(message: Any) -> tuple[Any, ...]:
    """Return what a C++ consumer sees of a message."""
    value = None if message.has_null_value() else message.data()
    return (
        value,
        message.partition_key(),
        message.ordering_key(),
        dict(message.properties()),
        message.event_timestamp(),
    )


def expected(contents: dict[str, Any]) -> tuple[Any, ...]:
    key = key_of(contents) or b""
    shown = "/wD+" if key == b"\xff\x00\xfe" else key.decode()  # the C++ client shows base64 as it is
    return (
        contents["value"],
        shown,
        contents.get("ordering_key", ""),
        contents.get("properties", {}),
        contents.get("event_time", 0),
    )


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
async def test_another_client_reads_every_kind_of_message(
    apache_pulsar: RunningPulsar, cpp: Any, compression: str
) -> None:
    for options in ({"batching": False}, {"batching": True}, {"key_based_batching": True}):
        topic = new_topic()
        async with producer(
            apache_pulsar, topic, compression=compression, compression_min_size=0, **options
        ) as sends:
            sent = [sends.send_nowait(**each) for each in CONTENTS]
            ids = [await each for each in sent]
        messages = await read(cpp, topic, len(CONTENTS))
        found = {
            (each.message_id().entry_id(), max(each.message_id().batch_index(), -1)): shown(each)
            for each in messages
        }
        assert [found[each.entry_id, each.batch_index] for each in ids] == [
            expected(each) for each in CONTENTS
        ]
        assert {each.producer_name() for each in messages} == {sends.name}
        if "key_based_batching" not in options:
            assert [shown(each) for each in messages] == [expected(each) for each in CONTENTS]


@pytest.mark.full
@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_another_client_puts_chunks_together(
    apache_pulsar: RunningPulsar, cpp: Any, compression: str
) -> None:
    topic = new_topic()
    values = [
        b"small",
        bytes(number % 251 for number in range(100_000)) * 130,
        uuid.uuid4().bytes * 700_000,
        b"after",
    ]
    async with producer(apache_pulsar, topic, chunking=True, compression=compression) as sends:
        ids = [await each for each in [sends.send_nowait(value, key="k") for value in values]]
    messages = await read(cpp, topic, len(values))
    assert [each.data() for each in messages] == values
    if compression == "none":
        assert [each.message_id().entry_id() for each in messages] == [each.entry_id for each in ids]
        assert ids[-1].entry_id > 5


@pytest.mark.full
async def test_partitions_are_used_soon_after_they_were_added(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    await apache_pulsar.admin.create_partitioned_topic(topic, 1)
    config = PulsarConfig(partitions_update_interval=0.5)
    async with PulsarClient(apache_pulsar.service_url, config) as client:
        async with PulsarProducer(client, topic, PulsarProducerConfig(batching=False)) as sends:
            await sends.send(b"v")
            await apache_pulsar.admin.update_partitions(topic, 3)
            async with asyncio.timeout(30):
                while sends.partitions < 3:
                    await asyncio.sleep(0.1)
            ids = [await sends.send(b"v") for _ in range(6)]
    assert {each.partition for each in ids} == {0, 1, 2}


@pytest.mark.full
async def test_a_delayed_message_is_delivered_later(apache_pulsar: RunningPulsar, cpp: Any) -> None:
    topic = new_topic()

    def receive() -> list[bytes]:
        consumer = cpp.subscribe(topic, "shared", consumer_type=pulsar_library.ConsumerType.Shared)
        try:
            return [consumer.receive(timeout_millis=TIMEOUT).data() for _ in range(2)]
        finally:
            consumer.close()

    reading = asyncio.create_task(asyncio.to_thread(receive))
    async with asyncio.timeout(30):
        while "shared" not in await subscriptions(apache_pulsar, topic):
            await asyncio.sleep(0.1)
    async with producer(apache_pulsar, topic) as sends:
        await sends.enqueue(b"later", deliver_after=2.5)
        await sends.enqueue(b"now")
    assert await reading == [b"now", b"later"]


async def subscriptions(pulsar: RunningPulsar, topic: str) -> list[str]:
    try:
        return await pulsar.admin.subscriptions(topic)
    except PulsarAdminError:
        return []


# --- deduplication ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deduplicating(apache_pulsar: RunningPulsar) -> str:
    """A namespace whose broker drops duplicates."""
    name = f"public/dedup-{uuid.uuid4().hex[:8]}"

    async def create() -> None:
        await apache_pulsar.admin.create_namespace(name)
        await apache_pulsar.admin.set_policy(name, "deduplication", True)

    asyncio.run(create())
    return name


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"batching": False}, {"key_based_batching": True}])
async def test_each_message_is_stored_once_through_resets_and_moves(
    apache_pulsar: RunningPulsar, cpp: Any, deduplicating: str, options: dict[str, Any]
) -> None:
    topic = f"{deduplicating}/{new_topic()}"
    count = 3000
    config = {
        "producer_name": "p",
        "send_timeout": 0,
        "batching_max_messages": 20,
        "initial_subscription": "reads",
    }
    async with producer(apache_pulsar, topic, **config, **options) as sends:
        futures = []

        async def disturb() -> None:
            for number in range(12):
                await asyncio.sleep(0.15)  # messages are in flight then
                if number % 4 == 3:
                    await apache_pulsar.admin.unload(topic)
                else:
                    for each in sends._partitions.producers:
                        if (connection := each._connection) is not None:
                            connection.close(ConnectionLost("by the test"))

        disturbing = asyncio.create_task(disturb())
        for number in range(count):
            futures.append(sends.send_nowait(b"%d" % number, key=str(number % 7)))
            if number % 20 == 0:
                await asyncio.sleep(0.015)
        await disturbing
        await asyncio.gather(*futures)
        assert sends.last_sequence_id == count - 1
    values = [int(each.data()) for each in await read(cpp, f"persistent://{topic}", count)]
    assert sorted(values) == list(range(count))
    for key in range(7):
        own = [value for value in values if value % 7 == key]
        assert own == sorted(own)
    if "key_based_batching" not in options:
        assert values == sorted(values)


@pytest.mark.full
async def test_messages_with_numbers_can_be_repeated(
    apache_pulsar: RunningPulsar, cpp: Any, deduplicating: str
) -> None:
    topic = f"{deduplicating}/{new_topic()}"
    for last in (20, 30):
        async with producer(apache_pulsar, topic, producer_name="p") as sends:
            sent = [sends.send_nowait(b"%d" % number, sequence_id=number) for number in range(last)]
            ids = [await each for each in sent]
    assert ids[:20] == [MessageId(-1, -1)] * 20
    assert all(each.ledger_id >= 0 for each in ids[20:])
    async with producer(apache_pulsar, topic, producer_name="p") as sends:
        assert sends.last_sequence_id == 29
        await sends.send(b"30")
    values = [int(each.data()) for each in await read(cpp, f"persistent://{topic}", 31)]
    assert values == list(range(31))


# --- what a broker refuses or ends --------------------------------------------------------------------------------------


@pytest.mark.full
async def test_access_modes(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with producer(apache_pulsar, topic, access_mode="exclusive") as first:
        await first.send(b"v")
        with pytest.raises(PulsarServerError, match=r"ProducerFenced|ProducerBusy"):
            async with producer(apache_pulsar, topic, access_mode="exclusive"):
                pytest.fail("two exclusive producers")
        with pytest.raises(PulsarServerError, match="ProducerBusy"):
            async with producer(apache_pulsar, topic):
                pytest.fail("a shared one beside an exclusive one")
        waiting = producer(apache_pulsar, topic, access_mode="wait_for_exclusive")
        entering = asyncio.create_task(waiting.__aenter__())
        await asyncio.sleep(1)
        assert not entering.done()
    await asyncio.wait_for(entering, 20)
    await waiting.send(b"w")
    await waiting.aclose()


@pytest.mark.full
async def test_a_fenced_producer_ends_or_waits_again(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with producer(apache_pulsar, topic, access_mode="exclusive") as fenced:
        await fenced.send(b"v")
        async with producer(apache_pulsar, topic, access_mode="exclusive_with_fencing") as fencing:
            with pytest.raises(PulsarServerError, match="ProducerFenced"):
                await asyncio.wait_for(fenced.send(b"late"), 20)
            await fencing.send(b"w")
    async with producer(apache_pulsar, topic, access_mode="wait_for_exclusive") as waiting:
        async with producer(apache_pulsar, topic, access_mode="exclusive_with_fencing"):
            late = asyncio.create_task(waiting.send(b"late"))
            await asyncio.sleep(0.5)
            assert not late.done()
        await asyncio.wait_for(late, 20)


@pytest.mark.full
async def test_a_terminated_topic_ends_its_producer(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with producer(apache_pulsar, topic) as sends:
        await sends.send(b"v")
        await apache_pulsar.admin.terminate(topic)
        with pytest.raises(PulsarServerError, match="TopicTerminatedError"):
            await asyncio.wait_for(sends.send(b"w"), 20)
        with pytest.raises(PulsarServerError, match="TopicTerminatedError"):
            sends.send_nowait(b"x")


@pytest.mark.full
async def test_two_producers_of_one_name(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with producer(apache_pulsar, topic, producer_name="only") as sends:
        with pytest.raises(PulsarServerError, match="ProducerBusy"):
            async with producer(apache_pulsar, topic, producer_name="only"):
                pytest.fail("two producers of a name")
        await sends.send(b"v")


@pytest.mark.full
async def test_a_namespace_that_is_missing(apache_pulsar: RunningPulsar) -> None:
    config = PulsarConfig(operation_timeout=3)
    async with PulsarClient(apache_pulsar.service_url, config) as client:
        with pytest.raises(PulsarServerError) as caught:
            async with PulsarProducer(client, "public/missing/orders"):
                pytest.fail("it was opened")
    assert "public/missing" in str(caught.value)


@pytest.mark.full
async def test_a_message_above_the_brokers_limit(apache_pulsar: RunningPulsar) -> None:
    async with producer(apache_pulsar, new_topic()) as sends:
        with pytest.raises(InvalidRecordError, match="the broker's limit"):
            await sends.send(bytes(6 << 20))
        largest = (5 << 20) - 200
        await sends.send(bytes(largest))


@pytest.mark.full
async def test_lost_messages_are_reported_by_flush(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with producer(apache_pulsar, topic) as sends:
        await sends.send(b"v")
        await apache_pulsar.admin.terminate(topic)
        await sends.enqueue(b"w")
        with pytest.raises(DeliveryFailedError, match="TopicTerminatedError"):
            await sends.flush()
