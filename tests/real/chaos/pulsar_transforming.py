"""A process that transforms messages on Pulsar in transactions: `python -m tests.real.chaos.pulsar_transforming SETTINGS` (JSON).

The output of a message is `<value>!` with the same key. SIGTERM ends it after the transaction that is open.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consume_transform_produce import PulsarConsumeTransformProduce, PulsarTransactionOutput
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from tests.stories.proxy import connector_to

__all__ = ["PulsarTransformSettings"]

LONGEST_WORK = 0.05


@dataclass(frozen=True, kw_only=True)
class PulsarTransformSettings:
    """What a process reads and writes."""

    url: str
    proxy: int
    """The port on this machine through which all connections go."""
    subscription: str
    source: str
    target: str
    kind: str
    timeout: float
    """Seconds of a transaction: that of a killed process ends then."""


async def transform_until_sigterm(settings: PulsarTransformSettings) -> None:
    """Transform until SIGTERM."""
    rng = random.Random()

    async def transform(batch: Sequence[PulsarMessage], output: PulsarTransactionOutput) -> None:
        for message in batch:
            await output.enqueue(settings.target, (message.value or b"") + b"!", key=message.key)
        await asyncio.sleep(rng.uniform(0, LONGEST_WORK))

    config = PulsarConfig(connector=connector_to(settings.proxy), retry_backoff_max=2.0)
    handler = PulsarConsumeTransformProduce(
        transform,
        consumer_config=PulsarConsumerConfig(initial_position="earliest", receiver_queue_size=200),
        timeout=settings.timeout,
        max_records=50,
        max_failures=1000,  # as many as an outage takes
    )
    async with PulsarClient(settings.url, config) as client:
        closing = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, closing.set)
        run = asyncio.create_task(
            handler.run(client, settings.source, settings.subscription, type=settings.kind)
        )
        print("ready", flush=True)
        waiting = asyncio.create_task(closing.wait())
        await asyncio.wait([run, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if run.done():
            await run  # it has failed
        run.cancel()
        await asyncio.wait([run])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(transform_until_sigterm(PulsarTransformSettings(**json.loads(sys.argv[1]))))
