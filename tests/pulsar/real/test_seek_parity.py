"""What a real Pulsar does after seeks into a batch; the embedded one does the same (`tests/pulsar_broker/subscriptions/test_seeks.py`)."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from asyncgroup.pulsar import EARLIEST, PulsarClient
from tests.apache_pulsar import RunningPulsar
from tests.pulsar_broker.subscriptions.seek_stories import (
    positions,
    positions_expected,
    seeks,
    seeks_expected,
)
from tests.pulsar_broker.support import early
from tests.pulsar_broker.wire_client import WireClient

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]


async def test_what_is_pushed_after_a_seek_into_a_batch(apache_pulsar: RunningPulsar) -> None:
    async with WireClient.of(apache_pulsar.service_url) as client:
        assert await seeks(client, f"seeks-{uuid.uuid4().hex[:8]}") == seeks_expected()
        assert await positions(client, f"seeks-{uuid.uuid4().hex[:8]}") == positions_expected()


async def test_messages_of_a_batch_come_again_after_a_seek_and_a_redelivery(
    apache_pulsar: RunningPulsar,
) -> None:
    """Each acknowledgement of one message of the batch would be the last for the broker, which pushes none of the others then."""
    topic = f"seeks-{uuid.uuid4().hex[:8]}"
    async with PulsarClient(apache_pulsar.service_url) as client:
        async with client.producer(topic) as producer:
            await asyncio.gather(*(producer.send(b"%d" % number) for number in range(3)))
        async with (
            client.subscribe(topic, "s", type="shared", config=early()) as consumer,
            asyncio.timeout(60),
        ):
            found = [await consumer.receive() for _ in range(3)]
            assert {message.message_id.entry_id for message in found} == {0}
            for message in found[:2]:
                consumer.ack(message)
            await consumer.flush()
            await consumer.seek(EARLIEST)
            found = [await consumer.receive() for _ in range(3)]
            consumer.ack(found[2])
            await consumer.flush()
            consumer.redeliver_all()
            assert {(await consumer.receive()).value for _ in range(2)} == {b"0", b"1"}
