"""PulsarEngine: the Engine of a work queue over a subscription of Pulsar."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

from asyncgroup.consumer.error_stream import ErrorReader, ErrorStream
from asyncgroup.errors import AsyncGroupError, ConfigError, ConsumerBusy
from asyncgroup.escaping import escaping_logger
from asyncgroup.group.health.health import Health
from asyncgroup.hooks import Hooks, delivery_listeners
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import MillisClock, Record, TopicPartition
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.seeking import seek
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.workqueue.engine import OpenQueue
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.pulsar_engine.copies import PulsarCopyFormat, due_at
from asyncgroup.workqueue.pulsar_engine.copy_writer import PulsarCopyWriter
from asyncgroup.workqueue.pulsar_engine.queue_partition import QueuePartition
from asyncgroup.workqueue.pulsar_engine.source import FEATURES, PulsarPlan
from asyncgroup.workqueue.receive_limits import ReceiveLimits
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.statistics import PartitionStatistics

__all__ = ["PulsarEngine"]

ERROR_BUFFER: Final = 256
"""Errors that a reader of `errors()` may leave unread."""

_CONSUMER_BUSY: Final = 5

_TYPES: Final = {
    Mode.EXCLUSIVE: SubscriptionType.EXCLUSIVE,
    Mode.SHARED: SubscriptionType.SHARED,
    Mode.FAILOVER: SubscriptionType.FAILOVER,
    Mode.KEY_SHARED: SubscriptionType.KEY_SHARED,
}

_log = escaping_logger("asyncgroup.pulsar")


class PulsarEngine:
    """The Engine of a queue on a PulsarSource: a consumer for each partition."""

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
        self.copies = PulsarCopyWriter(
            lambda: self._client,
            {dead: created} if created is not None and dead is not None else {},
            plan.source.close_timeout,
        )
        self._client = (
            given
            if isinstance(given, PulsarClient)
            else PulsarClient(given, plan.source.config, hooks=self.hooks)
        )
        self._plan = plan
        self._source = plan.source
        self._settings = settings
        self._clock = clock
        self._limits = ReceiveLimits(settings)
        self._queue: OpenQueue | None = None
        self._readers: dict[TopicPartition, QueuePartition] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._errors = ErrorStream(ERROR_BUFFER)
        self._at_close: tuple[PartitionStatistics, ...] = ()
        self._opened_at = 0.0

    def __repr__(self) -> str:
        return f"<PulsarEngine {self.name!r}, {self._client!r}>"

    def ordering_key(self, record: Record) -> bytes | None:
        """Return the ordering key, else the key."""
        message = cast("PulsarMessage", record)
        return message.ordering_key or message.key

    def due_at(self, record: Record) -> int | None:
        """Return the time of a copy in the retry topic; other delays are the broker's."""
        return due_at(self.retry_topic, cast("PulsarMessage", record))

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self, queue: OpenQueue) -> None:
        """Subscribe to all partitions. Raises ConsumerBusy, PulsarServerError, TransportError, AuthenticationError."""
        self._queue = queue
        self._opened_at = asyncio.get_running_loop().time()
        if self._owns_client:
            await self._client.__aenter__()
        core = self._client._inner
        names = [TopicName.parse(topic) for topic in self._topics]
        counts = await asyncio.gather(*(core.lookup.partitions_of(name) for name in names))
        found = {name: range(count) if count else (-1,) for name, count in zip(names, counts, strict=True)}
        await self._start(self._add(queue, found))
        self._spawn(self._watch_partitions(queue, names), "partitions")
        if self._limits.on_demand:
            self._spawn(self._watch_demand(queue), "demand")

    @property
    def _topics(self) -> list[str]:
        return [*self._plan.topics, *([] if self.retry_topic is None else [self.retry_topic])]

    def _add(
        self, queue: OpenQueue, partitions: Mapping[TopicName, Iterable[int]], *, is_new: bool = False
    ) -> list[QueuePartition]:
        """Add partitions; -1 is a topic without any. All of them are known before the first one gets its share of the limits."""
        added = dict[QueuePartition, TopicName]()
        for topic, numbers in partitions.items():
            for number in numbers:
                tp = TopicPartition(str(topic), number)
                reader = self._readers[tp] = QueuePartition(
                    queue,
                    self.name,
                    tp,
                    self._limits,
                    self._on_error,
                    has_copies=str(topic) == self.retry_topic,
                )
                added[reader] = topic
        self._limits.share_by(len(self._readers))
        for reader, topic in added.items():
            reader.consumer = self._consumer(topic, reader, is_new=is_new)
        return list(added)

    def _consumer(self, topic: TopicName, reader: QueuePartition, *, is_new: bool) -> PulsarConsumer:
        settings, source, number = self._settings, self._source, reader.work.tp.partition
        is_failover = settings.mode is Mode.FAILOVER
        # a partition that was added later, or a copy, is not skipped
        begins_early = is_new or reader.has_copies
        config = PulsarConsumerConfig(
            consumer_name=(settings.name or source.consumer_name) if is_failover else source.consumer_name,
            initial_position="earliest" if begins_early else settings.initial_position or "latest",
            priority_level=settings.priority if is_failover else source.priority_level,
            durable=source.durable,
            key_ranges=source.key_ranges,
            allow_out_of_order=settings.allow_out_of_order,
            ack_group_time=settings.ack_group_time,
            ack_group_size=settings.ack_group_size,
            index_acks=source.index_acks,
            close_timeout=source.close_timeout,
            receiver_queue_bytes=self._limits.bytes,
        )
        return PulsarConsumer(
            self._client._inner,
            topic if number < 0 else topic.of_partition(number),
            self.name,
            _TYPES[settings.mode],
            config,
            reader,
            queue_size=0 if self._limits.on_demand else self._limits.records,
        )

    async def _start(self, readers: list[QueuePartition]) -> None:
        assert self._queue is not None
        for reader in readers:
            self._queue.add(reader.work)
            reader.consumer.start()
        found = await asyncio.gather(
            *(reader.consumer.wait_attached() for reader in readers), return_exceptions=True
        )
        for error in found:
            if isinstance(error, PulsarServerError) and error.code == _CONSUMER_BUSY:
                raise ConsumerBusy(self.name, error.text) from error
            if isinstance(error, BaseException):
                raise error

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(start_task(work, name=f"work queue {self.name}: {name}"))

    async def _watch_partitions(self, queue: OpenQueue, topics: list[TopicName]) -> None:
        """Read partitions that are added to a topic."""
        core = self._client._inner
        while interval := core.config.partitions_update_interval:
            await asyncio.sleep(interval)
            for topic in topics:
                known = sum(tp.topic == str(topic) and tp.partition >= 0 for tp in self._readers)
                if not known:
                    continue
                try:
                    count = await core.lookup.partitions_of(topic, create=False)
                    if count > known:
                        await self._start(self._add(queue, {topic: range(known, count)}, is_new=True))
                except AsyncGroupError as error:
                    self.report(error)

    async def _watch_demand(self, queue: OpenQueue) -> None:
        """Without a receiver queue a message is asked for when a task waits for one."""
        while True:
            await queue.on_demand.wait()
            queue.on_demand.clear()
            for reader in self._readers.values():
                reader.ask_on_demand()

    async def leave(self) -> None:
        """Wait until the open deliveries have ended, or cancel their handlers after `close_timeout`; then close the consumers."""
        queue = self._queue
        if queue is None:
            return
        self._at_close = self.statistics()[0]
        await cancel_and_wait(*self._tasks)
        readers = list(self._readers.values())
        for reader in readers:
            reader.consumer.pause()
            reader.give_back_failed()
            queue.close(reader.work)
        try:
            async with asyncio.timeout(self._source.close_timeout):
                for reader in readers:
                    await reader.wait_idle()
        except TimeoutError:
            for reader in readers:
                queue.lose(reader.work)
                queue.interrupt_all(reader.work)
            for reader in readers:
                await reader.wait_idle()
        finally:
            for reader in readers:
                queue.remove(reader.work)
                queue.became_inactive(reader.work.tp)
            await asyncio.gather(*(reader.consumer.aclose() for reader in readers), return_exceptions=True)
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
                "position", target, "'earliest', 'latest' or a time: a message id is of one partition"
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
        # a partition that cannot be moved stops no other
        found = await asyncio.gather(
            *(seek(reader.consumer, position, inclusive=inclusive) for reader in readers),
            return_exceptions=True,
        )
        for error in found:
            if error is not None:
                raise error

    def report(self, error: AsyncGroupError) -> None:
        """Give an error to the readers of `errors`."""
        self._errors.put(error)

    def errors(self) -> ErrorReader:
        """Return a new iterator of errors."""
        return self._errors.reader()

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, AsyncGroupError):
            self.report(error)
        else:
            _log.warning("%s: %s", self.name, error)

    def health(self, problems: Sequence[str]) -> Health:
        """Return a health with the partitions that are not attached to a broker."""
        is_open = self._queue is not None and not self._queue.is_ended
        apart = [
            f"{tp.topic}-{tp.partition} is not connected to its broker"
            for tp, reader in sorted(self._readers.items())
            if not reader.consumer.is_attached
        ]
        is_alone = len(apart) == len(self._readers)
        return Health(
            group_id=self.name,
            state="closed" if not is_open else "connecting" if apart else "stable",
            state_age=asyncio.get_running_loop().time() - self._opened_at,
            member_id="",
            generation_id=-1,
            group_protocol="pulsar",
            last_heartbeat=None,
            last_fetch=None,
            claims=(),
            waits_for=None,
            problems=(*problems, *apart),
            errors=(),
            not_ready="no partition is connected to its broker" if apart and is_alone else None,
        )

    def statistics(self) -> tuple[tuple[PartitionStatistics, ...], tuple[PartitionStatistics, ...]]:
        """Return the partitions, and those that a closed queue had last."""
        now = asyncio.get_running_loop().time()
        return tuple(self._readers[tp].statistics(now) for tp in sorted(self._readers)), self._at_close
