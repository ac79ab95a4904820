"""A queue on a subscription that is not durable: its reconnects begin after what it has, on a model of a broker in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncgroup import WorkQueue
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.pulsar.consumer.broker import Broker

pytestmark = pytest.mark.virtual(max_virtual_time=10_000)

TOPIC = "orders"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as found:
        yield found


def queue_on(broker: Broker, **settings: Any) -> WorkQueue:
    config = PulsarConfig(retry_backoff_max=1)
    source = PulsarSource(broker.url, "s", TOPIC, config=config, durable=False)
    return WorkQueue(source, **{"initial_position": "earliest"} | settings)


@pytest.mark.parametrize("mode", ["shared", "key_shared", "failover", "exclusive"])
async def test_no_message_is_lost_or_delivered_twice(broker: Broker, mode: str) -> None:
    """Queued, open, failed: the broker forgets the subscription, and gives none of them again."""
    for number in range(10):
        broker.add(TOPIC, b"%d" % number, partition_key="k" if number % 2 else "l")
    async with queue_on(broker, mode=mode, nack_backoff=5) as queue:
        done, attempts = [], dict[bytes | None, int]()
        first = await queue.receive()
        await first.nack()
        for number in range(20):
            delivery = await queue.receive()
            attempts[delivery.value] = delivery.attempt
            if number % 3 == 0:
                broker.cut()
            if number == 4:
                await asyncio.sleep(10)
            if await delivery.ack():  # in order, the repetition of the first one has overtaken one
                done.append(delivery.value)
            if len(done) == 10:
                break
        assert sorted(done) == [b"%d" % number for number in range(10)]
        assert (attempts[b"0"], attempts[b"9"]) == (2, 1)
        broker.add(TOPIC, b"new")
        async with asyncio.timeout(100):
            assert (await queue.receive()).value == b"new"
