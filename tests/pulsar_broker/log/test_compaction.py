"""Compaction of a topic: the last value of each key, in virtual time."""

from __future__ import annotations

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar_broker.internals import runtime_of

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

VALUES = [
    (b"1", "a"),
    (b"2", "b"),
    (b"3", "a"),
    (b"4", None),
    (b"5", "c"),
    (None, "b"),
    (b"7", "d"),
    (b"8", "c"),
]


async def read(client: PulsarClient, count: int, name: str = "s") -> list[tuple[bytes | None, bytes | None]]:
    config = PulsarConsumerConfig(initial_position="earliest", read_compacted=True)
    found = []
    async with client.subscribe("t", name, config=config) as consumer:
        for _ in range(count):
            message = await consumer.receive()
            consumer.ack(message)
            found.append((message.value, message.key))
        await consumer.flush()
    return found


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_the_last_value_of_each_key(compression: str, *, batching: bool) -> None:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar,
        PulsarClient(pulsar.service_url) as client,
    ):
        config = PulsarProducerConfig(batching=batching, compression=compression)  # type: ignore[arg-type]
        async with client.producer("t", config) as producer:
            for value, key in VALUES:
                await producer.enqueue(value, key=key)
            await producer.flush()
            runtime_of(pulsar).topic("t").compact()
            await producer.send(b"9", key="a")
            await producer.send(b"10")
        kept = [(b"3", b"a"), (b"7", b"d"), (b"8", b"c")]
        assert await read(client, 5) == [*kept, (b"9", b"a"), (b"10", None)]
        runtime_of(pulsar).topic("t").compact()
        assert await read(client, 3, "again") == [(b"7", b"d"), (b"8", b"c"), (b"9", b"a")]
        log = runtime_of(pulsar).topic("t").log
        assert len(log) == (3 if batching else len(VALUES) + 2), "the topic itself keeps everything"
