"""Entries without a message: each is acknowledged or left to others, its permits return, and what follows is delivered."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asyncgroup.model import now_ms
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.wire.commands import CommandAck, CommandRedeliverUnacknowledgedMessages
from asyncgroup.pulsar.wire.metadata import EncryptionKeys
from tests.pulsar.consumer.broker import Broker
from tests.pulsar.consumer.support import metadata

CORRUPT: dict[str, tuple[dict[str, Any], bytes, int | None]] = {
    "compressed": ({"compression": 1, "uncompressed_size": 100}, b"garbage", 1),
    "too large": ({"compression": 1, "uncompressed_size": 1 << 31}, b"garbage", 0),
    "batch": ({"num_messages_in_batch": 3}, b"too short", 3),
    "encrypted": ({"encryption_keys": [EncryptionKeys(key="k", value=b"v")]}, b"secret", None),
    "marker": ({"marker_type": 10}, b"", None),
}
"""Fields of the metadata, a body, and the number that the acknowledgement has."""


@pytest.mark.parametrize("kind", CORRUPT)
async def test_what_cannot_be_read_stops_nothing(
    broker: Broker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields, body, number = CORRUPT[kind]
    for _ in range(7):
        broker.store("t", metadata(**fields), body)
    broker.add("t", b"good")
    config = PulsarConsumerConfig(initial_position="earliest", receiver_queue_size=2)
    async with (
        PulsarClient(broker.url) as client,
        client.subscribe("t", "s", type="shared", config=config) as consumer,
    ):
        async with asyncio.timeout(10):
            message = await consumer.receive()
        assert message.value == b"good"
        assert {ack.validation_error for ack in broker.of(CommandAck)} - {None} == {number} - {None}
        await consumer.flush()
        expected = set() if kind == "encrypted" else set(range(7))
        assert broker.subscription("t").acked == expected
        [part] = consumer.partitions
        assert part.permits.dropped == (21 if kind == "batch" else 7)
    assert (kind == "marker") == (not [each for each in caplog.records if each.levelno == logging.WARNING])


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_chunks_without_a_first_one_are_acknowledged_in_the_end(broker: Broker, kind: str) -> None:
    fields = {"uuid": "u", "num_chunks_from_msg": 3, "total_chunk_msg_size": 6, "uncompressed_size": 6}
    for number in (1, 2):
        broker.store("t", metadata(chunk_id=number, publish_time=now_ms(), **fields), b"..")
    broker.add("t", b"good")
    config = PulsarConsumerConfig(initial_position="earliest", receiver_queue_size=1, chunk_expiry=10)
    async with (
        PulsarClient(broker.url) as client,
        client.subscribe("t", "s", type=kind, config=config) as consumer,
    ):
        consumer.ack(await consumer.receive())
        await asyncio.sleep(30)
        assert broker.subscription("t").acked == {0, 1, 2}
        again = broker.of(CommandRedeliverUnacknowledgedMessages)
        assert bool(again) == (kind == "shared"), "in order they cannot come later"
        assert len(again) < 15


async def test_a_value_whose_chunks_stop_expires(broker: Broker) -> None:
    fields = {"uuid": "u", "num_chunks_from_msg": 3, "total_chunk_msg_size": 6, "uncompressed_size": 6}
    for number in (0, 1):
        broker.store("t", metadata(chunk_id=number, **fields), b"..")
    config = PulsarConsumerConfig(initial_position="earliest", chunk_expiry=10)
    async with (
        PulsarClient(broker.url) as client,
        client.subscribe("t", "s", type="shared", config=config) as consumer,
    ):
        assert consumer.queued == 0
        await asyncio.sleep(9)
        assert broker.subscription("t").acked == set()
        await asyncio.sleep(2)
        assert broker.subscription("t").acked == {0, 1}
