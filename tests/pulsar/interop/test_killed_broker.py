"""A producer whose broker is killed and started again: with deduplication each message is stored once, in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar as pulsar_library
import pytest

from asyncgroup.testing.apache_pulsar import ApachePulsar
from tests.pulsar.interop.messages import new_topic, producer

pytestmark = [pytest.mark.real, pytest.mark.full]

COUNT = 2000


async def test_each_message_is_stored_once_while_the_broker_is_killed(pulsar_to_break: ApachePulsar) -> None:
    namespace, topic = f"public/{new_topic()}", new_topic()
    await pulsar_to_break.admin.create_namespace(namespace)
    await pulsar_to_break.admin.set_policy(namespace, "deduplication", True)
    name = f"{namespace}/{topic}"
    options: dict[str, Any] = {
        "producer_name": "p",
        "send_timeout": 0,
        "batching_max_messages": 10,
        "initial_subscription": "reads",
    }
    async with producer(pulsar_to_break, name, **options) as sends:
        futures = [sends.send_nowait(b"%d" % number) for number in range(COUNT // 2)]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(pulsar_to_break.kill)
        futures += [sends.send_nowait(b"%d" % number) for number in range(COUNT // 2, COUNT)]
        await asyncio.sleep(1)
        assert not sends.is_connected
        assert sends.errors()
        await asyncio.to_thread(pulsar_to_break.start)
        ids = await asyncio.wait_for(asyncio.gather(*futures), 90)
        assert sends.last_sequence_id == COUNT - 1
        assert sends.errors() == {}
    assert len(ids) == COUNT
    assert await asyncio.to_thread(read, pulsar_to_break.service_url, name) == list(range(COUNT))


def read(url: str, name: str) -> list[int]:
    logger = pulsar_library.ConsoleLogger(pulsar_library.LoggerLevel.Error)
    client = pulsar_library.Client(url, logger=logger)
    try:
        consumer = client.subscribe(f"persistent://{name}", "reads")
        found = [int(consumer.receive(timeout_millis=40_000).data()) for _ in range(COUNT)]
        with pytest.raises(pulsar_library.Timeout):
            consumer.receive(timeout_millis=500)
        return found
    finally:
        client.close()
