"""pulsar-client, the C++ client, against the embedded Pulsar."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar_broker.internals import runtime_of

TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
    "key_shared": pulsar.ConsumerType.KeyShared,
}
EARLIEST = pulsar.InitialPosition.Earliest


async def with_client(use: Callable[[Any, EmbeddedPulsar], Any], **options: Any) -> Any:
    """Run a function of a client, which blocks, on a thread."""
    async with EmbeddedPulsar(**options) as embedded:
        client = pulsar.Client(
            embedded.service_url,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=10,
        )
        try:
            return await asyncio.to_thread(use, client, embedded)
        finally:
            await asyncio.to_thread(client.close)


def produce(client: Any, topic: str, count: int, **options: Any) -> list[Any]:
    ids: list[Any] = []
    producer = client.create_producer(topic, **options)
    for number in range(count):
        producer.send_async(
            b"%d" % number,
            lambda result, message_id: ids.append((result, message_id)),
            partition_key=f"k{number % 5}",
            properties={"n": str(number)},
        )
    producer.flush()
    producer.close()
    assert {result for result, _ in ids} == {pulsar.Result.Ok}
    return [message_id for _, message_id in ids]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("partitions", [0, 3])
async def test_messages_are_delivered_nacked_and_acknowledged(kind: str, partitions: int) -> None:
    def use(client: Any, _: EmbeddedPulsar) -> list[bytes]:
        produce(client, "t", 100, batching_enabled=True, compression_type=pulsar.CompressionType.LZ4)
        consumer = client.subscribe(
            "t",
            "s",
            consumer_type=TYPES[kind],
            initial_position=EARLIEST,
            negative_ack_redelivery_delay_ms=100,
            batch_index_ack_enabled=True,
        )
        found: set[bytes] = set()
        nacked: set[bytes] = set()
        while len(found) < 100:
            message = consumer.receive(10_000)
            value = message.data()
            assert message.properties() == {"n": value.decode()}
            if value.endswith(b"7") and value not in nacked:
                nacked.add(value)
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
                found.add(value)
        consumer.close()
        return sorted(found, key=int)

    found = await with_client(use, default_partitions=partitions)
    assert found == [b"%d" % number for number in range(100)]


async def test_a_reader_a_seek_and_the_last_message() -> None:
    def use(client: Any, _: EmbeddedPulsar) -> None:
        ids = produce(client, "t", 50, batching_enabled=False)
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        values = []
        while reader.has_message_available():
            values.append(reader.read_next(10_000).data())
        assert values == [b"%d" % number for number in range(50)]
        reader.seek(ids[20])
        assert reader.read_next(10_000).data() == b"21"
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        assert consumer.receive(10_000).data() == b"0"
        consumer.seek(ids[30])
        assert consumer.receive(10_000).data() == b"31", "it leaves out the message itself"
        assert consumer.get_last_message_id() == ids[-1]
        consumer.unsubscribe()

    await with_client(use)


async def test_a_value_in_chunks() -> None:
    value = bytes(range(256)) * 1024 * 30  # above the limit of 5 MiB

    def use(client: Any, embedded: EmbeddedPulsar) -> None:
        producer = client.create_producer("t", chunking_enabled=True, batching_enabled=False)
        producer.send(value)
        assert len(runtime_of(embedded).topic("t").log) == 2
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        message = consumer.receive(20_000)
        assert message.data() == value
        consumer.acknowledge(message)
        consumer.close()

    await with_client(use)


async def test_a_broker_that_restarts() -> None:
    async with EmbeddedPulsar() as embedded:
        url, node = embedded.service_url, runtime_of(embedded).nodes[1]
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = await asyncio.to_thread(client.create_producer, "t")
        consumer = await asyncio.to_thread(client.subscribe, "t", "s", initial_position=EARLIEST)
        await asyncio.to_thread(producer.send, b"before")
        await node.stop()
        sending = asyncio.create_task(asyncio.to_thread(producer.send, b"after"))
        await node.start()
        await sending
        found = [(await asyncio.to_thread(consumer.receive, 20_000)).data() for _ in range(2)]
        assert set(found) <= {b"before", b"after"}
        await asyncio.to_thread(client.close)


@pytest.mark.full
async def test_credentials() -> None:
    """Lookups by HTTP are refused at once, connections until the operation times out."""
    good: list[Any] = [
        pulsar.AuthenticationToken("token"),
        pulsar.AuthenticationBasic("ann", "secret"),
        pulsar.AuthenticationBasic("ann", "secret", "basic"),
    ]
    bad: list[Any] = [
        None,
        pulsar.AuthenticationToken("unknown"),
        pulsar.AuthenticationBasic("ann", "wrong"),
    ]
    other_method = pulsar.AuthenticationBasic("ann", "secret", "unknown")  # it is not in requests by HTTP

    def send(url: str, authentication: Any) -> None:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(url, authentication, operation_timeout_seconds=1, logger=logger)
        try:
            client.create_producer("t").send(b"1")
        finally:
            client.close()

    async with EmbeddedPulsar(admin=True, tokens={"token": "ann"}, users={"ann": "secret"}) as embedded:
        for authentication in good:
            for url in (embedded.service_url, embedded.admin_url):
                await asyncio.to_thread(send, url, authentication)
        assert embedded.topic("t").messages == 6
        for authentication in bad:
            with pytest.raises(pulsar.ConnectError):
                await asyncio.to_thread(send, embedded.admin_url, authentication)
        for authentication in (*bad, other_method):
            with pytest.raises(pulsar.Timeout):
                await asyncio.to_thread(send, embedded.service_url, authentication)
        assert embedded.topic("t").messages == 6
