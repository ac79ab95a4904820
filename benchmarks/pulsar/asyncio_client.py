"""`pulsar.asyncio` of pulsar-client: as many sends at a time as its queue has room for, `receive` and `acknowledge`."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any, Final

import pulsar
import pulsar.asyncio

from benchmarks.pulsar.load import Load

__all__ = ["run", "run_single"]

AT_A_TIME: Final = 1000
"""Sends that wait for their receipts: the client's `max_pending_messages`, and the messages of a batch."""

ALL_PARTITIONS: Final = 50_000
"""The client's `max_pending_messages_across_partitions`, which the partitions share: another send fails."""

_THREADS_END: Final = 0.5
"""Seconds for the threads of a closed client to end: at exit they would abort the process."""


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """Run a case; return the figures."""
    return await _run(given)


async def run_single(given: dict[str, Any]) -> dict[str, Any]:
    """Run a case without batches, which would delay a message by ten milliseconds."""
    return await _run(given, batching_enabled=False)


async def _run(given: dict[str, Any], **options: Any) -> dict[str, Any]:
    load = Load(given)
    case = load.settings.case
    client = pulsar.asyncio.Client(load.settings.service_url, logger=_logger())
    try:
        if case == "receive":
            await _receive(load, await _subscribe(load, client))
        elif case == "memory":
            load.before_filling()
            consumer = await _subscribe(load, client)
            await consumer.receive()
            await load.fill()
        else:
            producer = await client.create_producer(load.settings.topic, **options)
            if case == "latency":
                await load.call(producer.send)
            else:
                await _produce(load, producer)
    finally:
        await client.close()
        await asyncio.sleep(_THREADS_END)
    return load.figures()


def _logger() -> Any:
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


async def _subscribe(load: Load, client: Any) -> Any:
    return await client.subscribe(
        load.settings.topic,
        load.settings.subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )


async def _produce(load: Load, producer: Any) -> None:
    value = load.value
    await producer.send(value)
    load.begin()
    keys = load.all_keys()
    at_a_time = min(AT_A_TIME, ALL_PARTITIONS // max(load.settings.partitions, 1))
    while some := list(islice(keys, at_a_time)):
        await asyncio.gather(*(producer.send(value, partition_key=key) for key in some))
    await producer.flush()
    load.end(load.settings.messages)


async def _receive(load: Load, consumer: Any) -> None:
    first = await consumer.receive()
    load.begin()
    await consumer.acknowledge(first)
    for _ in range(load.settings.messages - 1):
        message = await consumer.receive()
        load.bytes += len(message.data())
        await consumer.acknowledge(message)
    load.end(load.settings.messages - 1)
