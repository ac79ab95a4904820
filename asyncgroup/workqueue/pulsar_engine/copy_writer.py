"""PulsarCopyWriter: the producers of retry and dead letter topics, one for each topic, opened with the first copy.

As in Java's client, copies are sent without batches, and a large one in chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from asyncgroup.delivery_times import LAST_TIME
from asyncgroup.errors import AsyncGroupError, ClosedError
from asyncgroup.lifecycle import cancel_and_wait, mark_retrieved, start_task, wait_shielded
from asyncgroup.model import MillisClock, RecordMetadata, TopicPartition
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.connection.pool import await_unless_closed
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.workqueue.engine import OnWritten, OutgoingCopy
from asyncgroup.workqueue.pulsar_engine.copies import PulsarCopy

__all__ = ["PulsarCopyWriter"]

_NO_OFFSET: Final = -1
"""A message has no offset; its time is the broker's."""


class PulsarCopyWriter:
    """The CopyWriter of a subscription; `initial_subscriptions` are created with the topics that they are given for.

    `clock` gives the times from which the delays of copies count. At the end it waits `close_timeout` seconds for a broker, and for none that has not registered its producer yet.
    """

    is_transactional = False

    def __init__(
        self,
        client: Callable[[], PulsarClient],
        initial_subscriptions: Mapping[str, str],
        close_timeout: float,
        clock: MillisClock,
    ) -> None:
        self._client = client
        self._initial_subscriptions = initial_subscriptions
        self._close_timeout = close_timeout
        self._clock = clock
        self._producers: dict[str, asyncio.Task[PulsarProducer]] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<PulsarCopyWriter {len(self._producers)} producers>"

    async def aclose(self) -> None:
        """Close the producers."""
        self._is_closed = True
        openings = list(self._producers.values())
        await cancel_and_wait(*(each for each in openings if not each.done()))
        opened = [each.result() for each in openings if not each.cancelled() and each.exception() is None]
        await wait_shielded(asyncio.gather(*(producer.aclose(drain=False) for producer in opened)))

    async def write(
        self,
        tp: TopicPartition,  # noqa: ARG002
        offset: int,  # noqa: ARG002
        copy: OutgoingCopy,
        on_written: OnWritten,  # noqa: ARG002
        *,
        alone: bool,  # noqa: ARG002
    ) -> RecordMetadata:
        """Return when the copy is stored. Raises PulsarServerError, TransportError, ClosedError, and for an invalid copy InvalidRecordError."""
        return await self.send(copy)

    async def send(self, copy: OutgoingCopy, transaction: PulsarTransaction | None = None) -> RecordMetadata:
        """Send a copy, perhaps in a transaction. Raises as `write`."""
        assert isinstance(copy, PulsarCopy)
        producer = await self._producer(copy.topic)
        message, delay = copy.original, copy.deliver_after_ms
        stored = await producer.send(
            message.value,
            key=message.key,
            properties=dict(copy.properties),
            ordering_key=message.ordering_key,
            event_time=_valid_time(message.event_time),
            deliver_after=delay / 1000 if delay else None,
            transaction=transaction,
        )
        return RecordMetadata(copy.topic, stored.partition, _NO_OFFSET, _NO_OFFSET)

    async def _producer(self, topic: str) -> PulsarProducer:
        """Return the producer of a topic; it is opened once, also for copies of the same time, and again after a failure."""
        if self._is_closed:
            raise ClosedError("the queue is closed")
        opening = self._producers.get(topic)
        if opening is None:
            opening = self._producers[topic] = start_task(
                self._open(topic), name=f"producer of copies to {topic}"
            )
            opening.add_done_callback(mark_retrieved)
        return await await_unless_closed(opening)

    async def _open(self, topic: str) -> PulsarProducer:
        config = PulsarProducerConfig(
            batching=False,
            chunking=TopicName.parse(topic).domain == "persistent",
            initial_subscription=self._initial_subscriptions.get(topic),
            close_timeout=self._close_timeout,
        )
        try:
            return await PulsarProducer(self._client(), topic, config, clock=self._clock).__aenter__()
        except BaseException:
            del self._producers[topic]
            raise

    def abandon(self, tp: TopicPartition, offset: int, *, is_over: bool) -> None:
        """Nothing waits here."""

    def passes(self, error: Exception) -> bool:
        """Whether it may pass soon."""
        return isinstance(error, AsyncGroupError) and error.retriable


def _valid_time(event_time: int | None) -> int | None:
    """Return the event time, None for one that no producer can give: its copy could never be written."""
    return None if event_time is None or event_time > LAST_TIME else event_time
