"""`asyncgroup consume` on a topic of Pulsar: with --group in a subscription of this name, otherwise without a trace."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from asyncgroup.cli.connection_options import ConnectionOptions
from asyncgroup.cli.printing import Printer
from asyncgroup.cli.pulsar_options import pulsar_consumer_config
from asyncgroup.cli.start_positions import LogOffset
from asyncgroup.cli.telemetry_options import CommandMetrics
from asyncgroup.group.health.health import Health
from asyncgroup.group.health.problems import MemberProblem, ProblemKind
from asyncgroup.lifecycle import run_until

if TYPE_CHECKING:
    from asyncgroup.pulsar.client import PulsarClient
    from asyncgroup.pulsar.config import PulsarConfig
    from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
    from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
    from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer

__all__ = ["PulsarReading", "SubscriptionMember"]

BATCH_MESSAGES: Final = 500
"""The maximum of messages that are printed and acknowledged together."""
BATCH_WAIT: Final = 0.02
"""Seconds after the first message in which others may come."""


@dataclass(frozen=True, slots=True)
class PulsarReading:
    """A topic to print, and where to begin."""

    service_url: str
    config: PulsarConfig
    consumer_config: PulsarConsumerConfig
    kind: str
    """The type of the subscription."""
    topic: str
    subscription: str | None
    """Messages that were printed are acknowledged in it; None acknowledges nothing."""
    start: str | datetime
    """`earliest`, `latest`, or a time."""
    metrics: CommandMetrics

    @classmethod
    def of(
        cls, options: argparse.Namespace, given: ConnectionOptions, service_url: str, group: str | None
    ) -> PulsarReading:
        """Return what the options ask for; exit with a usage error for those that Pulsar does not have. Raises ConfigError."""
        from asyncgroup.pulsar.consumer.config import SUBSCRIPTION_TYPES

        usage: argparse.ArgumentParser = options.usage
        if options.partitions:
            first = f"{options.topic}-partition-{options.partitions[0]}"
            usage.error(f"--partition is for Kafka: a partition of Pulsar is a topic, -t {first}")
        if isinstance(options.offset, LogOffset):
            usage.error("--offset is for Kafka: messages of Pulsar have no offsets; use --from")
        if options.missing_topics is not None:
            usage.error("--missing-topics is for Kafka")
        config, consumer_config, kind = pulsar_consumer_config(given)
        start = options.offset or options.start or str(consumer_config.initial_position)
        if isinstance(start, timedelta):
            start = datetime.now(UTC) - start
        if group is not None and isinstance(start, datetime):
            usage.error(
                "--from with a time is not for --group: it would move the subscription, which other consumers read"
            )
        metrics = CommandMetrics(options)
        # a group has one of the types; what reads alone gets everything
        kind = "exclusive" if group is None else kind or "failover"
        consumer_config.check_type(SUBSCRIPTION_TYPES[kind])
        return cls(service_url, config, consumer_config, kind, options.topic, group, start, metrics)

    async def read(self, printer: Printer, stop: asyncio.Event, signaled: asyncio.Event) -> None:
        """Print messages until `stop`; a signal also ends the attempt to connect.

        Raises PulsarServerError for a topic that does not exist, TransportError, AuthenticationError, RequestTimedOut of the
        last acknowledgements, OSError if the port of the metrics is in use.
        """
        from asyncgroup.pulsar.client import PulsarClient

        async with PulsarClient(self.service_url, self.config, hooks=self.metrics.hooks) as client:
            opening = await run_until(signaled.wait(), self._open(client), "open")
            if opening.cancelled():
                return
            consumer = opening.result()
            # as on Kafka, only a member of a group has a health
            probed = () if self.subscription is None else (SubscriptionMember(consumer),)
            async with aclosing(consumer), self.metrics.serving(*probed):
                await self._print(consumer, printer, stop)

    async def _open(self, client: PulsarClient) -> PulsarTopicConsumer:
        # to subscribe would create a topic that does not exist
        await client.partitions(self.topic)
        is_time = isinstance(self.start, datetime)
        config = replace(
            self.consumer_config,
            initial_position="latest" if is_time else str(self.start),
            durable=self.subscription is not None,
            start_paused=False,
        )
        name = self.subscription or f"asyncgroup-consume-{uuid4().hex[:8]}"
        consumer = await client.subscribe(self.topic, name, type=self.kind, config=config).__aenter__()
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
            else:
                consumer.ack_read(messages)
        if self.subscription is not None:
            await consumer.flush()


class SubscriptionMember:
    """A consumer in a subscription, as the probes see it."""

    def __init__(self, consumer: PulsarTopicConsumer) -> None:
        self._consumer = consumer
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()

    def health(self) -> Health:
        """Return a health with the partitions that are not attached to a broker."""
        now, partitions = self._loop.time(), list(self._consumer.partitions)
        apart = [each for each in partitions if not each.is_attached]
        problems = [
            MemberProblem(ProblemKind.NO_BROKER, seconds, names=[str(each.topic)], text=text)
            for each, (seconds, text) in ((each, _outage(each, now)) for each in apart)
        ]
        is_connected = len(apart) < len(partitions)
        not_ready = None if is_connected else _not_connected(apart, now)
        return Health(
            group_id=self._consumer.subscription,
            state="connecting" if apart else "stable",
            state_age=now - self._opened_at,
            member_id="",
            generation_id=-1,
            group_protocol="pulsar",
            last_heartbeat=None,
            last_fetch=None,
            claims=(),
            waits_for=None,
            problems=tuple(problems),
            errors=(),
            not_ready=not_ready,
        )


def _outage(consumer: PulsarConsumer, now: float) -> tuple[float, str]:
    """Return since how many seconds a partition has no broker, and why."""
    since, error = consumer.history.detached_since, consumer.history.error
    seconds = 0.0 if since is None else now - since
    return seconds, "the first attempt has no result yet" if error is None else str(error)


def _not_connected(apart: Sequence[PulsarConsumer], now: float) -> MemberProblem:
    # the shortest outage is how long there is no partition
    seconds, text = min(_outage(each, now) for each in apart)
    return MemberProblem(ProblemKind.NOT_CONNECTED, seconds, text=text)
