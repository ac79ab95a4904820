"""pulsar-client without asyncio: `send_async` with a callback and `flush`, `receive` and `acknowledge`."""

from __future__ import annotations

from typing import Any

import pulsar

from benchmarks.pulsar.load import Load

__all__ = ["run"]


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Run a case; return the figures."""
    load = Load(given)
    case = load.settings.case
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(load.settings.service_url, logger=logger)
    try:
        if case == "receive":
            _receive(load, _subscribe(load, client))
        elif case == "memory":
            load.before_filling()
            consumer = _subscribe(load, client)
            consumer.receive()
            load.fill_blocking()
        elif case == "latency":
            load.call_blocking(client.create_producer(load.settings.topic).send)
        else:
            # batches are off by default
            options = {"batching_enabled": True, "block_if_queue_full": True}
            _produce(load, client.create_producer(load.settings.topic, **options))
    finally:
        client.close()
    return load.figures()


def _subscribe(load: Load, client: Any) -> Any:
    return client.subscribe(
        load.settings.topic,
        load.settings.subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )


def _produce(load: Load, producer: Any) -> None:
    failed = []

    def done(result: Any, _: Any) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    value = load.value
    producer.send(value)
    load.begin()
    for key in load.all_keys():
        producer.send_async(value, done, partition_key=key)
    producer.flush()
    load.end(load.settings.messages)
    if failed:
        raise RuntimeError(f"{len(failed)} messages have failed: {failed[0]}")


def _receive(load: Load, consumer: Any) -> None:
    first = consumer.receive()
    load.begin()
    consumer.acknowledge(first)
    for _ in range(load.settings.messages - 1):
        message = consumer.receive()
        load.bytes += len(message.data())
        consumer.acknowledge(message)
    load.end(load.settings.messages - 1)
