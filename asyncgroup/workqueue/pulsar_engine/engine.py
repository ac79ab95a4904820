"""PulsarEngine: the Engine of a work queue over a subscription of Pulsar."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

from asyncgroup.consumer.error_stream import ErrorReader, ErrorStream
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.escaping import escaping_logger
from asyncgroup.group.health.health import Health
from asyncgroup.hooks import Hooks, delivery_listeners
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import MillisClock, Record, TopicPartition
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.partition.seeking import seek
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topics.partition_calls import call_each
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.workqueue.closing import end_partitions
from asyncgroup.workqueue.engine import CopyWriter, OpenQueue
from asyncgroup.workqueue.pulsar_engine.copies import PulsarCopyFormat, due_at
from asyncgroup.workqueue.pulsar_engine.copy_transactions import PulsarCopyTransactions
from asyncgroup.workqueue.pulsar_engine.copy_writer import PulsarCopyWriter
from asyncgroup.workqueue.pulsar_engine.partitions import SubscribedPartitions
from asyncgroup.workqueue.pulsar_engine.queue_partition import QueuePartition
from asyncgroup.workqueue.pulsar_engine.source import FEATURES, PulsarPlan
from asyncgroup.workqueue.pulsar_engine.subscription_health import SubscriptionHealth
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.statistics import PartitionStatistics

__all__ = ["PulsarEngine"]

ERROR_BUFFER: Final = 256
"""Errors that a reader of `errors()` may leave unread."""

_log = escaping_logger("asyncgroup.pulsar")


class PulsarEngine:
    """The Engine of a queue on a PulsarSource, with its SubscribedPartitions."""

    features = FEATURES

    def __init__(self, plan: PulsarPlan, settings: QueueSettings, clock: MillisClock) -> None:
        self.name = plan.source.subscription
        self.retry_topic = plan.retry_topic
        self.dead_letter_topic = plan.dead_letter_topic
        given = plan.source.service_url
        self._owns_client = not isinstance(given, PulsarClient)
        of_queue = plan.source.hooks
        self.hooks = given.hooks.joined(of_queue) if isinstance(given, PulsarClient) else Hooks(of_queue)
        self.listeners = delivery_listeners(self.hooks)
        self.copy_format = PulsarCopyFormat(self.name)
        created, dead = plan.source.dead_letter_subscription, plan.dead_letter_topic
        writer = PulsarCopyWriter(
            lambda: self._client,
            {dead: created} if created is not None and dead is not None else {},
            plan.source.close_timeout,
            clock,
        )
        self.copies: CopyWriter = writer
        if plan.source.transactional_copies:
            self.copies = PulsarCopyTransactions(lambda: self._client, writer, self._partition_of)
        self._client = (
            given
            if isinstance(given, PulsarClient)
            else PulsarClient(given, plan.source.config, hooks=self.hooks)
        )
        self._plan = plan
        self._source = plan.source
        self._settings = settings
        self._clock = clock
        self._partitions = SubscribedPartitions(plan, settings, lambda: self._client._inner, self._on_error)
        self._readers = self._partitions.readers
        self._queue: OpenQueue | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._errors = ErrorStream(ERROR_BUFFER)
        self._at_close: tuple[PartitionStatistics, ...] = ()
        self._health = SubscriptionHealth(self.name)

    def __repr__(self) -> str:
        return f"<PulsarEngine {self.name!r}, {self._client!r}>"

    def _partition_of(self, tp: TopicPartition) -> QueuePartition | None:
        return self._readers.get(tp)

    def ordering_key(self, record: Record) -> bytes | None:
        """Return the ordering key, else the key."""
        message = cast("PulsarMessage", record)
        return message.ordering_key or message.key

    def due_at(self, record: Record) -> int | None:
        """Return the time of a copy in the retry topic; other delays are the broker's."""
        return due_at(self.retry_topic, cast("PulsarMessage", record))

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self, queue: OpenQueue) -> None:
        """Subscribe to all partitions: each begins alone, see `SubscribedPartitions.open`.

        Raises ConsumerBusy, PulsarServerError, TransportError, AuthenticationError.
        """
        self._queue = queue
        if self._owns_client:
            await self._client.__aenter__()
        if isinstance(self.copies, PulsarCopyTransactions):
            await self.copies.check()
        self._health.opened()
        topics = [TopicName.parse(topic) for topic in self._topics]
        await self._partitions.open(queue, topics)
        self._spawn(self._partitions.watch(topics), "partitions")
        self._spawn(self._partitions.watch_demand(), "demand")
        self._spawn(self._partitions.watch_pattern(), "topics")

    @property
    def _topics(self) -> list[str]:
        return [*self._plan.topics, *([] if self.retry_topic is None else [self.retry_topic])]

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(start_task(work, name=f"work queue {self.name}: {name}"))

    async def leave(self) -> None:
        """Wait until the open deliveries have ended, or cancel their handlers after `close_timeout`; then close the consumers."""
        queue = self._queue
        if queue is None:
            return
        self._at_close = self.statistics()[0]
        self._partitions.end_open()
        await cancel_and_wait(*self._tasks)
        readers = list(self._readers.values())
        for reader in readers:
            reader.consumer.pause()
            reader.give_back_failed()
            queue.close(reader.work)
        try:
            await end_partitions(queue, readers, self._source.close_timeout)
        finally:
            await asyncio.gather(*(reader.consumer.aclose() for reader in readers), return_exceptions=True)
            await self._partitions.aclose()
            self._readers.clear()

    async def aclose(self) -> None:
        """Close the producers of copies and the connections."""
        await self.copies.aclose()
        if self._owns_client:
            await self._client.aclose()
        self._errors.close()

    # --- use ------------------------------------------------------------------------------------------------------------

    def seek(self, target: Any, *, inclusive: bool) -> Coroutine[Any, Any, None]:
        """Continue at `earliest`, `latest`, a time, or a MessageId of a topic without partitions. Raises ConfigError for another target."""
        position = self._position(target)
        if isinstance(position, MessageId) and position not in (EARLIEST, LATEST) and len(self._readers) > 1:
            raise ConfigError(
                "position", str(target), "'earliest', 'latest' or a time: a message id is of one partition"
            )
        return self._seek(position, inclusive=inclusive)

    def _position(self, target: Any) -> MessageId | int:
        if isinstance(target, MessageId):
            return target
        if target in ("earliest", "latest"):
            return EARLIEST if target == "earliest" else LATEST
        if isinstance(target, datetime) and target.tzinfo is not None:
            return round(target.timestamp() * 1000)
        if isinstance(target, timedelta):
            return self._clock() - round(target.total_seconds() * 1000)
        raise ConfigError(
            "position",
            target,
            "'earliest', 'latest', a datetime with a time zone, a timedelta, or a MessageId",
        )

    async def _seek(self, position: MessageId | int, *, inclusive: bool) -> None:
        readers = list(self._readers.values())
        for reader in readers:
            reader.forget()
        await call_each(
            lambda consumer: seek(consumer, position, inclusive=inclusive),
            [reader.consumer for reader in readers],
            lambda: True,
        )

    def report(self, error: AsyncGroupError) -> None:
        """Give an error to the readers of `errors`, and to the health."""
        self._health.note(error)
        self._errors.put(error)

    def errors(self) -> ErrorReader:
        """Return a new iterator of errors."""
        return self._errors.reader()

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, AsyncGroupError):
            self.report(error)
        else:
            self._health.note(error)
            _log.warning("%s: %s", self.name, error)

    def health(self, problems: Sequence[str]) -> Health:
        """Return a health with the problems of the queue and its partitions."""
        is_open = self._queue is not None and not self._queue.is_ended
        return self._health.health(
            self._readers.values(),
            self._partitions.refused,
            problems,
            is_open=is_open,
            has_no_topics=self._partitions.has_no_topics,
        )

    def statistics(self) -> tuple[tuple[PartitionStatistics, ...], tuple[PartitionStatistics, ...]]:
        """Return the partitions, and those that a closed queue had last."""
        now = asyncio.get_running_loop().time()
        return tuple(self._readers[tp].statistics(now) for tp in sorted(self._readers)), self._at_close
