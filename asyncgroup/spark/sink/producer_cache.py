"""Cache of producers in an executor's Python worker: one for each set of `kafka.*` options, kept between tasks.

Spark reuses its Python workers and runs one task at a time in each, so the next task finds open connections and metadata.
The producers' event loop runs only while a task writes: connections that brokers close in between are replaced at the
first request.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from asyncgroup.cluster.requests.actions import RequestAction
from asyncgroup.cluster.requests.repeat import retry_errors
from asyncgroup.errors import AsyncGroupError, DeliveryFailedError, NoBrokersError, TransportError
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.producer import Producer
from asyncgroup.spark.api_timeout import API_TIMEOUT
from asyncgroup.spark.sink.write_settings import WriteSettings

__all__ = ["AckRecorder", "OpenProducer", "ProducerCache", "WrittenRange", "open_retrying", "producer_cache"]

_log = logging.getLogger("asyncgroup.spark")

T = TypeVar("T")
Client = TypeVar("Client", bound=AbstractAsyncContextManager[Any])

IDLE_TIMEOUT: Final = 600.0
"""Seconds after which an unused producer is closed (`spark.kafka.producer.cache.timeout`)."""


class WrittenRange(NamedTuple):
    """The records that a task has written to one partition. Records of other producers may be in between."""

    topic: str
    partition: int
    first_offset: int
    """-1 with acks=0."""
    last_offset: int
    """-1 with acks=0."""
    records: int
    """The number of records."""


class AckRecorder:
    """A producer hook that records the offsets of a task's records, and whether any batch has failed."""

    def __init__(self) -> None:
        self._ranges: dict[TopicPartition, WrittenRange] = {}
        self.failed = False
        """Whether a batch has failed; the task then sends no more records."""

    def __repr__(self) -> str:
        return f"<AckRecorder: {sum(each.records for each in self._ranges.values())} records>"

    def on_delivered(self, topic: str, partition: int, base_offset: int, records: int) -> None:
        """Record a batch that was written to the log."""
        tp = TopicPartition(topic, partition)
        last = base_offset + records - 1 if base_offset >= 0 else -1
        if (before := self._ranges.get(tp)) is None:
            self._ranges[tp] = WrittenRange(topic, partition, base_offset, last, records)
        else:
            # batches of a partition are written in order, so offsets only increase
            self._ranges[tp] = before._replace(last_offset=last, records=before.records + records)

    def on_produce(self, topic: str, partition: int, records: int, error: Exception | None) -> None:  # noqa: ARG002
        """Record whether a batch has failed."""
        self.failed |= error is not None

    def pop_ranges(self) -> tuple[WrittenRange, ...]:
        """Return what was written since the last call, sorted; reset it and `failed`."""
        written, self._ranges, self.failed = self._ranges, {}, False
        return tuple(sorted(written.values()))


@dataclass
class OpenProducer:
    """An open producer and its hook."""

    producer: Producer
    acks: AckRecorder
    last_used: float = 0.0
    """The loop's time at the end of its last task."""


async def open_retrying(
    settings: WriteSettings, create: Callable[[], Client], rng: random.Random | None = None
) -> Client:
    """Create and enter a client; retry for `api_timeout` seconds while no broker can be reached. Raises TransportError."""
    limit = API_TIMEOUT if settings.api_timeout is None else settings.api_timeout
    retry = RetryLoop(RetryBackoff.configured(settings.config, rng or random.Random()), timeout=limit)

    async def attempt() -> Client:
        client = create()
        await client.__aenter__()
        return client

    try:
        return await retry_errors(
            attempt,
            retry,
            decide=lambda error: (
                RequestAction.RETRY if isinstance(error, TransportError) else RequestAction.FAIL
            ),
            is_cut=True,
            on_error=lambda error: _log.warning("%s; retrying for up to %.0f s", error, retry.left),
        )
    except TransportError as error:
        where = f"no broker of {settings.bootstrap_servers} has answered"
        raise NoBrokersError(f"{where} within {limit:g} s ({settings.timeout_option}): {error}") from error


class ProducerCache:
    """Opens, keeps and closes producers. For use by one thread; its methods must not be called from a coroutine."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = rng or random.Random()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producers: dict[tuple[tuple[str, str], ...], OpenProducer] = {}
        """By `WriteSettings.properties`."""
        self._pid = 0
        """The process that the loop and the producers belong to."""

    def __repr__(self) -> str:
        return f"<ProducerCache: {len(self._producers)} open>"

    def run(self, settings: WriteSettings, work: Callable[[OpenProducer], Awaitable[T]]) -> T:
        """Run `work(open_producer)` with the producer of these settings, which is opened if necessary.

        If the work fails, the producer is closed, so that its records cannot be sent during another task. It is kept
        after DeliveryFailedError, since undelivered records have been removed from it.
        """
        loop = self._process_loop()
        return loop.run_until_complete(self._run(settings, work))

    async def _run(self, settings: WriteSettings, work: Callable[[OpenProducer], Awaitable[T]]) -> T:
        key, time = settings.properties, asyncio.get_running_loop().time
        for other, kept in list(self._producers.items()):
            if time() - kept.last_used > IDLE_TIMEOUT:
                await self._discard(other)
        open_producer = self._producers.get(key)
        if open_producer is None:
            open_producer = self._producers[key] = await self._open(settings)
        open_producer.acks.pop_ranges()
        try:
            return await work(open_producer)
        except DeliveryFailedError:
            raise
        except BaseException:
            await self._discard(key)
            raise
        finally:
            open_producer.last_used = time()

    async def _open(self, settings: WriteSettings) -> OpenProducer:
        """Open a producer; retry while no broker can be reached, as a failed task may end its query."""
        acks = AckRecorder()
        servers, config = settings.bootstrap_servers, settings.config
        producer = await open_retrying(
            settings, lambda: Producer(servers, config, hooks=[acks]), self._random
        )
        return OpenProducer(producer, acks)

    async def _discard(self, key: tuple[tuple[str, str], ...]) -> None:
        try:
            await self._producers.pop(key).producer.aclose()
        except AsyncGroupError as error:
            _log.warning("an error while closing a producer: %s", error)

    def _process_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._pid != os.getpid():
            # a forked process inherits its parent's sockets, which only the parent may use
            self._producers, self._pid = {}, os.getpid()
            self._loop = asyncio.new_event_loop()
            atexit.register(self.close)
        return self._loop

    def close(self) -> None:
        """Close all producers and the loop; the next `run` creates new ones."""
        loop, self._loop = self._loop, None
        atexit.unregister(self.close)
        if loop is None or self._pid != os.getpid():
            return
        with contextlib.closing(loop):
            for key in list(self._producers):
                loop.run_until_complete(self._discard(key))
            loop.run_until_complete(loop.shutdown_default_executor())


producer_cache: Final = ProducerCache()
"""The cache of this process."""
