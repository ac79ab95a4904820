"""The producer: records in, batches out, and where each record went."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from asyncgroup.cluster import Cluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import ClosedError, DeliveryFailedError, QueueFull
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import BackgroundTasks, add_note, wait_shielded
from asyncgroup.model import Header, RecordMetadata
from asyncgroup.producer.accumulator import RecordAccumulator
from asyncgroup.producer.arguments import measure_record
from asyncgroup.producer.batch import ProducerBatch
from asyncgroup.producer.buffer_memory import BufferMemory
from asyncgroup.producer.delivery_tracker import DeliveryTracker
from asyncgroup.producer.router import Router
from asyncgroup.producer.sender import Sender

__all__ = ["Producer"]

_log = logging.getLogger("asyncgroup.producer")

Clock = Callable[[], int]


def _wall_clock() -> int:
    """Milliseconds since 1970: the timestamp of a record is the one thing here that means the world's time."""
    return time.time_ns() // 1_000_000


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class Producer:
    """Writes records to topics, in batches by partition.

        async with Producer("localhost:9092") as producer:
            where = await producer.send("orders", b"one dozen", key=b"eggs")

    - `send` waits until the record is in the log and says where.
    - `send_nowait` never waits: it returns a future, or raises QueueFull when the buffer is full.
    - `enqueue` waits for room in the buffer only; what fails later is raised by `flush` or `aclose`.

    Records of one partition keep their order, whatever is retried. A batch whose response got lost is sent again, so
    its records may be in the log twice; a later release makes the producer idempotent. Given a Cluster, the producer
    shares it and leaves it open.

    `clock` gives the timestamp (ms since 1970) of records that bring none; `hooks` are told of `on_produce` and
    `on_delivered`, and of everything on the connections if the cluster is the producer's own. `rng` is the source of
    its random choices. Not thread-safe: all calls belong to one loop.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Cluster,
        config: ProducerConfig | None = None,
        *,
        hooks: Iterable[object] = (),
        clock: Clock = _wall_clock,
        rng: random.Random | None = None,
    ) -> None:
        self.config = ProducerConfig.of(config)
        self._hooks = hooks if isinstance(hooks, Hooks) else Hooks(hooks)
        self._owns_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = (
            bootstrap_servers
            if isinstance(bootstrap_servers, Cluster)
            else Cluster(bootstrap_servers, self.config, hooks=self._hooks, rng=rng)
        )
        self._clock = clock
        self._max_size = self.config.max_request_size
        self._tasks = BackgroundTasks("Producer", self._on_failure)
        self._accumulator = RecordAccumulator(self.config, _loop_time)
        self._memory = BufferMemory(self._accumulator.reserve, self._accumulator.release)
        self._deliveries = DeliveryTracker()
        spawn = self._tasks.spawn
        self._sender = Sender(self.cluster, self.config, self._accumulator, spawn, self._on_batch_done)
        self._router = Router(
            self.cluster,
            self.config,
            self._accumulator,
            spawn=spawn,
            rng=rng or self.cluster.random,
            on_lost=self._deliveries.add_lost,
            on_memory_freed=self._on_memory_freed,
            on_batch_ready=self._sender.wake,
        )
        self._open = False
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        buffer = self._accumulator
        return (
            f"<Producer {state}: {buffer.records} records in {len(buffer.incomplete)} batches, "
            f"{buffer.used_bytes} of {buffer.buffer_bytes} bytes, {len(self._memory)} callers waiting>"
        )

    # --- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._owns_cluster:
            await self.cluster.__aenter__()
        try:
            await self._tasks.start()
        except BaseException:
            if self._owns_cluster:
                await self.cluster.aclose()
            raise
        self._sender.start()
        self._tasks.spawn(self._router.forget_idle, name="forget idle topics")
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except DeliveryFailedError as lost:
            if error is None:
                raise
            _log.error("%s", lost)
            add_note(error, str(lost))

    async def aclose(self) -> None:
        """Send what is left, for at most `close_timeout` seconds, and close; safe to call twice.

        What is still not acknowledged then fails with ClosedError. Raises DeliveryFailedError for records of `enqueue`
        that were lost since the last `flush`. Carried to its end even if the caller is cancelled meanwhile.
        """
        if self._closing is not None:
            await asyncio.wait([self._closing])
            return
        self._open = False
        self._closing = asyncio.create_task(self._close(), name="Producer: close")
        await wait_shielded(self._closing)

    async def _close(self) -> None:
        self._memory.fail(self._closed_error)
        try:
            async with asyncio.timeout(self.config.close_timeout):
                await self._wait_until_done()
        except TimeoutError:
            _log.warning("%r was closed before all its records were acknowledged", self)
        try:
            await self._tasks.stop()
        finally:
            self._abort_incomplete()
            self._router.close()
            if self._owns_cluster:
                await self.cluster.aclose()
        if (lost := self._deliveries.drain_lost()) is not None:
            raise lost

    def _abort_incomplete(self) -> None:
        batches, waiting = self._accumulator.incomplete, self._router.waiting
        if not batches and not waiting:
            return
        count = self._accumulator.records + waiting
        partitions = len({batch.tp for batch in batches})
        error = ClosedError(
            f"the producer was closed with {count} records for {partitions} partitions not acknowledged"
            f" (close_timeout={self.config.close_timeout:g} s)"
        )
        self._sender.fail_all(error)
        self._router.fail_all(error)

    def _on_failure(self, error: Exception) -> None:
        """A task of the producer died of a bug: nothing will be sent any more, and nobody may wait for it."""
        self._open = False
        self._memory.fail(self._closed_error)
        self._sender.fail_all(error)
        self._router.fail_all(error)

    def _closed_error(self) -> ClosedError:
        return ClosedError("the producer is closed, or was never entered by `async with`")

    # --- records in ---------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Write a record and wait until it is acknowledged; says where it went (offset -1 with acks=0).

        Without `partition` the key decides (as Java's producer would), without a key a partition is chosen that fills
        batches well. `timestamp` counts ms since 1970. A caller that is cancelled while it waits for room takes the
        record back; later the record is on its way and stays so.

        Raises ConfigError for arguments that cannot be, BrokerError for what the broker refuses, RequestTimedOut when
        `delivery_timeout` is over, ClosedError.
        """
        size = measure_record(value, key, headers, partition, timestamp, self._max_size)
        if not self._memory.try_reserve(size):
            await self._wait_for_memory(size)
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self._put(topic, timestamp, key, value, headers, partition, size, future)
        return await future

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """As `send`, but returns a future of the metadata at once.

        Raises QueueFull when the buffer has no room, ConfigError, ClosedError. Cancelling the future does not take the
        record back.
        """
        size = measure_record(value, key, headers, partition, timestamp, self._max_size)
        if not self._memory.try_reserve(size):
            raise QueueFull(f"no room for {size} bytes: {self!r}")
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self._put(topic, timestamp, key, value, headers, partition, size, future)
        return future

    async def enqueue(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Hand over a record, waiting for room in the buffer only; the fastest way to write many.

        What becomes of the record is for `flush` to say. A caller that is cancelled while it waits for room takes the
        record back. Raises ConfigError for arguments that cannot be, ClosedError.
        """
        size = measure_record(value, key, headers, partition, timestamp, self._max_size)
        if not self._memory.try_reserve(size):
            await self._wait_for_memory(size)
        if self._put(topic, timestamp, key, value, headers, partition, size, None):
            await asyncio.sleep(0)  # whoever never has to wait must not keep the loop for itself

    async def _wait_for_memory(self, size: int) -> None:
        if not self._open:
            raise self._closed_error()
        # whoever waits for room must not wait for a batch that lingers
        self._sender.skip_linger = True
        self._sender.wake()
        await self._memory.reserve(size)

    def _put(
        self,
        topic: str,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        size: int,
        future: asyncio.Future[RecordMetadata] | None,
    ) -> bool:
        """Add a record for which `size` bytes are reserved; True if the sender has something new to do."""
        stamp = self._clock() if timestamp is None else timestamp
        try:
            if not self._open:
                raise self._closed_error()
            began_batch = self._router.put(topic, stamp, key, value, headers, partition, size, future)
        except BaseException:
            self._accumulator.release(size)
            self._on_memory_freed()
            raise
        if began_batch:
            self._sender.wake()
        return began_batch

    # --- what became of them ------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send everything that was handed over before this call, without lingering, and wait until it is done.

        Raises DeliveryFailedError if records of `enqueue` were lost since the last flush; records of `send` and
        `send_nowait` tell by themselves.
        """
        await self._wait_until_done()
        if (lost := self._deliveries.drain_lost()) is not None:
            raise lost

    async def _wait_until_done(self) -> None:
        if lookups := self._router.lookups():
            await asyncio.wait(lookups)
        self._accumulator.close_open()
        self._sender.wake()
        await self._deliveries.wait(self._accumulator.incomplete)

    def _on_batch_done(self, batch: ProducerBatch, error: Exception | None) -> None:
        silent = batch.count - len(batch.futures)
        if error is not None and silent:
            self._deliveries.add_lost(batch.tp, silent, error)
        self._deliveries.on_batch_done(batch)
        self._on_memory_freed()
        self._hooks.emit("on_produce", *batch.tp, batch.count, error)
        if error is None:
            self._hooks.emit("on_delivered", *batch.tp, batch.base_offset, batch.count)

    def _on_memory_freed(self) -> None:
        self._memory.grant_waiters()
        self._sender.skip_linger = bool(self._memory)
