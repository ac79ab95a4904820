"""Entries with random contents: none raises in the connection, and what follows them is delivered with the permits that are left."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from asyncgroup import Delivery, WorkQueue
from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.compression import compress_body
from asyncgroup.pulsar.wire.frames import encode_send
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.profiles import thinned
from tests.pulsar.consumer.support import batch_body
from tests.pulsar.scripted import BrokerConnection, ScriptedPulsar

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

LARGEST = (1 << 31) - 1
ENTRIES = 30


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return bytes of which some are changed, left out or added."""
    found = bytearray(data)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(3):
            case 0:
                found[at : at + 1] = bytes([rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])])
            case 1:
                del found[at : at + rng.randrange(1, 4)]
            case _:
                found[at:at] = rng.randbytes(rng.randrange(1, 4))
    return bytes(found)


def random_entry(rng: random.Random, consumer: int, number: int) -> bytes:
    """Return the frame of an entry with a valid checksum: single messages, batches, chunks, compressed ones, markers."""
    body, fields = rng.randbytes(rng.randrange(50)), dict[str, object]()
    match rng.randrange(4):
        case 0:
            values = [rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(1, 5))]
            body = batch_body(values, partition_key=["k"] * len(values))
            fields["num_messages_in_batch"] = rng.choice([len(values)] * 3 + [0, -1, 5, LARGEST])
        case 1:
            fields |= {"uuid": rng.choice("ab"), "chunk_id": rng.choice([0, 1, 2, -1, LARGEST])}
            fields |= {"num_chunks_from_msg": rng.choice([2, 3, 1, -5, LARGEST])}
            fields["total_chunk_msg_size"] = rng.choice([len(body), 2 * len(body), -1, LARGEST])
        case 2 if rng.random() < 0.3:
            fields |= rng.choice([{"marker_type": 10}, {"compacted_batch_indexes": [0, 5, -1, LARGEST]}])
    if rng.random() < 0.3:
        kind, size = rng.randrange(7), len(body)
        fields |= {"compression": kind, "uncompressed_size": rng.choice([size, 0, (1 << 32) - 1, 100 << 20])}
        body = bytes(compress_body(kind, body)) if 0 < kind < 5 else body
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, **fields).encode()  # type: ignore[arg-type]
    command: c.Command = c.CommandMessage(
        consumer_id=consumer,
        message_id=c.MessageIdData(ledger_id=rng.choice([7, 7, 1 << 63, (1 << 64) - 1]), entry_id=number),
        redelivery_count=rng.choice([0, 1, (1 << 32) - 1]),
        ack_set=rng.choice([(), (), (-1,), (0,), (5, 7)]),
        consumer_epoch=rng.choice([None, 0, 1, (1 << 64) - 1]),
    )
    if rng.random() < 0.6:
        metadata = mutated(rng, metadata)
    if rng.random() < 0.4:
        body = mutated(rng, body)
    return b"".join(encode_send(command, metadata, body))  # type: ignore[arg-type]


async def attached(pulsar: ScriptedPulsar) -> tuple[BrokerConnection, int]:
    """Return the connection of the consumer, and its id there."""
    async with asyncio.timeout(60):
        while not (found := [one for one in pulsar.connections if one.consumers]):
            await asyncio.sleep(0.05)
    return found[0], next(iter(found[0].consumers))


async def push_all(pulsar: ScriptedPulsar, rng: random.Random) -> None:
    for number in range(ENTRIES):
        connection, consumer = await attached(pulsar)
        connection.write(random_entry(rng, consumer, number))
        if rng.random() < 0.3:
            await asyncio.sleep(0.1)
    await asyncio.sleep(10)
    connection, consumer = await attached(pulsar)
    connection.push_entry(consumer, b"end", entry_id=1000, ledger_id=9)


@pytest.mark.parametrize("seed", thinned(range(100)))
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_entries_of_a_consumer(
    pulsar: ScriptedPulsar, kind: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    async with PulsarClient(pulsar.url) as client, client.subscribe("orders", "s", type=kind) as consumer:
        pushing = asyncio.create_task(push_all(pulsar, rng))
        async with asyncio.timeout(60):
            async for message in consumer:
                with suppress(DecodeError):
                    assert repr((message, message.headers, message.ordering_key, message.event_time))
                consumer.ack(message)
                if message.value == b"end":
                    break
        await pushing
        (part,) = consumer.partitions
        assert part.permits.queued == 0
        assert part.permits.open > 0
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("seed", thinned(range(100, 200)))
async def test_entries_of_a_work_queue(
    pulsar: ScriptedPulsar, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    handled = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        assert repr((delivery, delivery.headers, delivery.key, delivery.ordering_key))
        if delivery.value == b"end":
            handled.set()

    async with WorkQueue(PulsarSource(pulsar.url, "s", "orders"), mode="key_shared") as queue:
        run = asyncio.create_task(queue.run(handle))
        await push_all(pulsar, random.Random(seed))
        await asyncio.wait_for(handled.wait(), 60)
        await queue.aclose()
        await run
    assert not [record for record in caplog.records if record.exc_info]
