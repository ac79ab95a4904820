"""`asyncgroup consume` on a topic of Pulsar: with --group in a subscription of this name, otherwise without a trace."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from asyncgroup.cli.connection_options import ConnectionOptions
from asyncgroup.cli.printing import Printer
from asyncgroup.cli.pulsar_options import pulsar_config
from asyncgroup.cli.start_positions import LogOffset
from asyncgroup.lifecycle import run_until

if TYPE_CHECKING:
    from asyncgroup.pulsar.client import PulsarClient
    from asyncgroup.pulsar.config import PulsarConfig
    from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer

__all__ = ["PulsarReading"]

BATCH_MESSAGES: Final = 500
"""The maximum of messages that are printed and acknowledged together."""
BATCH_WAIT: Final = 0.02
"""Seconds after the first message in which others may come."""


@dataclass(frozen=True, slots=True)
class PulsarReading:
    """A topic to print, and where to begin."""

    service_url: str
    config: PulsarConfig
    topic: str
    subscription: str | None
    """Messages that were printed are acknowledged in it; None acknowledges nothing."""
    start: str | datetime
    """`earliest`, `latest`, or a time."""

    @classmethod
    def of(
        cls, options: argparse.Namespace, given: ConnectionOptions, service_url: str, group: str | None
    ) -> PulsarReading:
        """Return what the options ask for; exit with a usage error for those that Pulsar does not have. Raises ConfigError."""
        usage: argparse.ArgumentParser = options.usage
        if options.partitions:
            first = f"{options.topic}-partition-{options.partitions[0]}"
            usage.error(f"--partition is for Kafka: a partition of Pulsar is a topic, -t {first}")
        if isinstance(options.offset, LogOffset):
            usage.error("--offset is for Kafka: messages of Pulsar have no offsets; use --from")
        if options.missing_topics is not None:
            usage.error("--missing-topics is for Kafka")
        if options.metrics_port is not None:
            usage.error("--metrics-port is for Kafka here; `asyncgroup work` has it on Pulsar")
        start = options.offset or options.start or "latest"
        if isinstance(start, timedelta):
            start = datetime.now(UTC) - start
        if group is not None and isinstance(start, datetime):
            usage.error(
                "--from with a time is not for --group: it would move the subscription, which other consumers read"
            )
        return cls(service_url, pulsar_config(given), options.topic, group, start)

    async def read(self, printer: Printer, stop: asyncio.Event, signaled: asyncio.Event) -> None:
        """Print messages until `stop`; a signal also ends the attempt to connect.

        Raises PulsarServerError for a topic that does not exist, TransportError, AuthenticationError, RequestTimedOut of the
        last acknowledgements.
        """
        from asyncgroup.pulsar.client import PulsarClient

        async with PulsarClient(self.service_url, self.config) as client:
            opening = await run_until(signaled.wait(), self._open(client), "open")
            if opening.cancelled():
                return
            consumer = opening.result()
            async with aclosing(consumer):
                await self._print(consumer, printer, stop)

    async def _open(self, client: PulsarClient) -> PulsarTopicConsumer:
        from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig

        # to subscribe would create a topic that does not exist
        await client.partitions(self.topic)
        is_time = isinstance(self.start, datetime)
        config = PulsarConsumerConfig(
            initial_position="latest" if is_time else str(self.start),
            durable=self.subscription is not None,
        )
        name = self.subscription or f"asyncgroup-consume-{uuid4().hex[:8]}"
        kind = "failover" if self.subscription is not None else "exclusive"
        consumer = await client.subscribe(self.topic, name, type=kind, config=config).__aenter__()
        try:
            if isinstance(self.start, datetime):
                await consumer.seek(round(self.start.timestamp() * 1000))
        except BaseException:
            await consumer.aclose()
            raise
        return consumer

    async def _print(self, consumer: PulsarTopicConsumer, printer: Printer, stop: asyncio.Event) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            where = f"subscription {self.subscription!r}" if self.subscription else "no subscription"
            print(f"{self.topic}: {where}, press Ctrl-C to stop", file=sys.stderr)
        while not printer.finished.is_set():
            receiving = await run_until(
                stop.wait(), consumer.receive_batch(BATCH_MESSAGES, max_wait=BATCH_WAIT), "receive"
            )
            if receiving.cancelled():
                break
            messages = receiving.result()
            printed = await printer.print(messages)
            if self.subscription is not None:
                for message in messages[:printed]:
                    consumer.ack(message)
        if self.subscription is not None:
            await consumer.flush()
