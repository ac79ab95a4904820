"""The producers of an executor's Python process: one for each set of `kafka.*` options, kept between tasks.

Spark uses its Python workers again, and runs one task at a time in each, so connections and metadata are found ready
by the next task. Their event loop runs while a task writes and stands still in between: whatever a broker closed
meanwhile is noticed by the first request and made anew.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from asyncgroup.cluster.backoff import Backoff
from asyncgroup.errors import AsyncGroupError, DeliveryFailedError, TransportError
from asyncgroup.model import TopicPartition
from asyncgroup.producer import Producer
from asyncgroup.spark.sink.write_settings import WriteSettings

__all__ = ["AckRecorder", "OpenProducer", "ProducerCache", "WrittenRange", "producer_cache"]

_log = logging.getLogger("asyncgroup.spark")

T = TypeVar("T")

OPEN_TIMEOUT: Final = 60.0
"""Seconds that brokers may be out of reach when a task begins (`max.block.ms` of kafka-clients)."""

IDLE_TIMEOUT: Final = 600.0
"""Seconds after which a producer that no task used is closed (`spark.kafka.producer.cache.timeout`)."""


class WrittenRange(NamedTuple):
    """Records of one partition: where the first and the last of them stand (-1 with acks=0), and how many they are.

    Records of other producers may lie in between.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


class AckRecorder:
    """A producer's hook: adds up where the records of a task were put, and notices the first failure."""

    def __init__(self) -> None:
        self._ranges: dict[TopicPartition, WrittenRange] = {}
        self.failed = False

    def __repr__(self) -> str:
        return f"<AckRecorder: {sum(each.records for each in self._ranges.values())} records>"

    def on_delivered(self, topic: str, partition: int, base_offset: int, records: int) -> None:
        """A batch stands in the log."""
        tp = TopicPartition(topic, partition)
        last = base_offset + records - 1 if base_offset >= 0 else -1
        if (before := self._ranges.get(tp)) is None:
            self._ranges[tp] = WrittenRange(topic, partition, base_offset, last, records)
        else:
            # a partition's batches go one after another, so offsets only grow
            self._ranges[tp] = before._replace(last_offset=last, records=before.records + records)

    def on_produce(self, topic: str, partition: int, records: int, error: Exception | None) -> None:  # noqa: ARG002
        """A batch is done, one way or the other."""
        self.failed |= error is not None

    def pop_ranges(self) -> tuple[WrittenRange, ...]:
        """What was written since the last call, sorted; and forget it, and any failure."""
        written, self._ranges, self.failed = self._ranges, {}, False
        return tuple(sorted(written.values()))


class OpenProducer(NamedTuple):
    """A producer that runs, and what it tells of its records."""

    producer: Producer
    acks: AckRecorder


class ProducerCache:
    """Opens, keeps and closes producers. For one thread; none of its methods may be called from a coroutine."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = rng or random.Random()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producers: dict[tuple[tuple[str, str], ...], OpenProducer] = {}
        self._last_used: dict[tuple[tuple[str, str], ...], float] = {}
        self._pid = 0

    def __repr__(self) -> str:
        return f"<ProducerCache: {len(self._producers)} open>"

    def run(self, settings: WriteSettings, work: Callable[[OpenProducer], Awaitable[T]]) -> T:
        """Await `work(open_producer)` with the producer of these settings, which is opened if there is none.

        A producer whose work failed is closed, so that nothing of it can turn up among the records of another task;
        records that were not delivered are gone from it already.
        """
        loop = self._process_loop()
        return loop.run_until_complete(self._run(settings, work))

    async def _run(self, settings: WriteSettings, work: Callable[[OpenProducer], Awaitable[T]]) -> T:
        key, now = settings.properties, asyncio.get_running_loop().time()
        for other in [other for other, used in self._last_used.items() if now - used > IDLE_TIMEOUT]:
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
            if key in self._producers:
                self._last_used[key] = asyncio.get_running_loop().time()

    async def _open(self, settings: WriteSettings) -> OpenProducer:
        """Open a producer, and wait for brokers that are away: a task that fails may end its query."""
        loop, config = asyncio.get_running_loop(), settings.config
        deadline = loop.time() + OPEN_TIMEOUT
        backoff = Backoff(config.retry_backoff, config.retry_backoff_max, self._random)
        while True:
            acks = AckRecorder()
            producer = Producer(settings.bootstrap_servers, config, hooks=[acks])
            try:
                return OpenProducer(await producer.__aenter__(), acks)
            except TransportError as error:
                pause = backoff.next()
                if loop.time() + pause > deadline:
                    raise
                _log.warning("%s; trying again for %.0f s more", error, deadline - loop.time())
                await asyncio.sleep(pause)

    async def _discard(self, key: tuple[tuple[str, str], ...]) -> None:
        self._last_used.pop(key, None)
        open_producer = self._producers.pop(key, None)
        if open_producer is None:
            return
        try:
            await open_producer.producer.aclose()
        except AsyncGroupError as error:
            _log.warning("a producer was closed: %s", error)

    def _process_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._pid != os.getpid():
            # a process that was forked has copies of our sockets, which are its parent's to use
            self._producers, self._last_used, self._pid = {}, {}, os.getpid()
            self._loop = asyncio.new_event_loop()
            atexit.register(self.close)
        return self._loop

    def close(self) -> None:
        """Close all producers and the loop; the next `run` begins anew."""
        loop, self._loop = self._loop, None
        atexit.unregister(self.close)
        if loop is None or self._pid != os.getpid():
            return
        with contextlib.closing(loop):
            for key in list(self._producers):
                loop.run_until_complete(self._discard(key))
            loop.run_until_complete(loop.shutdown_default_executor())


producer_cache: Final = ProducerCache()
"""Those of this process."""
