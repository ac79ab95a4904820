"""Two queues of one subscription on a real Pulsar: what goes back to the broker, and what it counts."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from asyncgroup import Delivery, WorkQueue
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.apache_pulsar import RunningPulsar

pytestmark = pytest.mark.real


async def test_messages_that_failed_go_to_another_consumer_with_their_numbers(
    apache_pulsar: RunningPulsar,
) -> None:
    """Of a batch only the last one that is not acknowledged; when a queue closes, those that wait."""
    topic = f"returned-{uuid.uuid4().hex[:12]}"
    async with PulsarClient(apache_pulsar.service_url) as client, asyncio.timeout(90):

        def queue() -> WorkQueue:
            source = PulsarSource(client, "s", topic)
            return WorkQueue(source, initial_position="earliest", receiver_queue=0)

        config = PulsarProducerConfig(batching_max_delay=1.0)
        async with queue() as second, queue() as first:
            receiving: asyncio.Task[Delivery] = asyncio.create_task(first.receive())
            async with PulsarProducer(client, topic, config) as producer:
                for value in (b"a", b"b"):
                    producer.send_nowait(value)
                await producer.flush()
            one, other = await receiving, await first.receive()
            assert [one.value, other.value, one.attempt] == [b"a", b"b", 1]
            assert one.record.message_id[:2] == other.record.message_id[:2]  # type: ignore[attr-defined]
            await other.ack()
            await one.nack(delay=0.2)
            again = await second.receive()
            assert (again.value, again.attempt) == (b"a", 2)
            await again.nack(delay=0.0)
            again = await first.receive()
            assert (again.value, again.attempt) == (b"a", 3)
            await again.nack(delay=1000.0)
            receiving = asyncio.create_task(second.receive())
            await first.aclose()
            again = await receiving
            assert (again.value, again.attempt) == (b"a", 4)
            await again.ack(durable=True)
