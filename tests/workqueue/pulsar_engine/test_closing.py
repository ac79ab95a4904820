"""Closing a work queue on Pulsar brokers that do not answer: it takes a few times `close_timeout`, and nothing is left."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from asyncgroup import AsyncGroupError, Delivery, WorkQueue
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.workqueue import DeadLetter
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.pulsar.scripted import Answerer, Call, ScriptedPulsar, no_answer
from tests.pulsar.support import now

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

CLOSE_TIMEOUT = 1.0


def freeze(call: Call) -> None:
    """Answer nothing more, also on other connections."""
    call.broker.freeze()


STOPS: dict[str, Answerer] = {"silent": no_answer, "frozen": freeze, "cut": Call.cut}
KINDS = (
    c.CommandPartitionedTopicMetadata,
    c.CommandLookupTopic,
    c.CommandFlow,
    c.CommandAck,
    c.CommandProducer,
    c.CommandSend,
    c.CommandCloseProducer,
    c.CommandCloseConsumer,
)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_broker_that_stops_at_a_command(kind: type[c.Command], stop: str) -> None:
    """One message is acknowledged, and one is copied to the dead letter topic, or waits for its producer."""

    async def handle(delivery: Delivery) -> None:
        if delivery.value == b"bad":
            raise ValueError("it fails")

    async with ScriptedPulsar("10.0.0.1") as pulsar:
        before = asyncio.all_tasks()
        source = PulsarSource(pulsar.url, "billing", "orders", close_timeout=CLOSE_TIMEOUT)
        queue = WorkQueue(source, dead_letter=DeadLetter(0))
        await queue.__aenter__()
        pulsar.script[kind] = STOPS[stop]
        run = asyncio.create_task(queue.run(handle))
        (connection,) = pulsar.connections
        for number, value in enumerate((b"bad", b"good")):
            connection.push_entry(next(iter(connection.consumers)), value, entry_id=number)
        await asyncio.sleep(2)
        closing = now()
        await queue.aclose()
        # the deliveries, the acknowledgements, the consumer, and the producer of copies
        assert now() - closing <= 4 * CLOSE_TIMEOUT
        with suppress(AsyncGroupError):
            await run
        await asyncio.sleep(0.1)
        pulsar.first.thaw()
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() == before
        assert pulsar.connections == []
