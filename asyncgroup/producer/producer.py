"""Producer: write records to topics, batched per partition."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from asyncgroup.cluster import Cluster, client_of, start_tasks
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import ClosedError, DeliveryFailedError, QueueFull
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import BackgroundTasks, add_note, wait_shielded
from asyncgroup.model import Header, MillisClock, RecordMetadata, wall_clock
from asyncgroup.producer.accumulator import RecordAccumulator
from asyncgroup.producer.arguments import RecordFields, measure_record
from asyncgroup.producer.batch import ProducerBatch
from asyncgroup.producer.delivery_tracker import DeliveryTracker
from asyncgroup.producer.route import Route
from asyncgroup.producer.router import Router
from asyncgroup.producer.sender import Sender

__all__ = ["Producer"]

_log = logging.getLogger("asyncgroup.producer")


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class Producer:
    """Writes records to topics, in batches by partition.

        async with Producer("localhost:9092") as producer:
            where = await producer.send("orders", b"one dozen", key=b"eggs")

    - `send` waits until the record is acknowledged and returns its metadata.
    - `send_nowait` never waits: it returns a future, or raises QueueFull when the buffer is full.
    - `enqueue` waits only for buffer memory, and so does `enqueue_all` for many records; `flush` or `aclose` raises what
      fails later.

    Records of one partition keep their order through retries, and an acknowledged one is in the log exactly once: the
    producer is idempotent (KIP-98), unless `acks` or `enable_idempotence` say otherwise. A Cluster that is passed in is
    shared and stays open.

    `clock` returns the timestamp (ms since 1970) of records that have none. `hooks` receive `on_produce` and
    `on_delivered`, and all events of the connections if the producer creates the cluster. `rng` is the source of its
    random choices. Not thread-safe: use it in one event loop only.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Cluster,
        config: ProducerConfig | None = None,
        *,
        hooks: Iterable[object] = (),
        clock: MillisClock = wall_clock,
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
        self._client = client_of(self.cluster)
        self._clock = clock
        self._max_size = self.config.max_request_size
        self._tasks = BackgroundTasks("Producer", self._on_failure)
        self._accumulator = RecordAccumulator(self.config, _loop_time)
        self._memory = self._accumulator.memory
        self._deliveries = DeliveryTracker()
        spawn = self._tasks.spawn
        self._sender = Sender(
            self._client,
            self.config,
            self._accumulator,
            spawn,
            self._on_batch_done,
            self._deliveries.on_batch_split,
        )
        self._router = Router(
            self._client,
            self.config,
            self._accumulator,
            spawn=spawn,
            rng=rng or self._client.random,
            on_lost=self._deliveries.add_lost,
            on_batch_ready=self._sender.wake,
        )
        self._open = False
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        buffer, memory = self._accumulator, self._memory
        return (
            f"<Producer {state}: {buffer.records} records in {len(buffer.incomplete)} batches, "
            f"{memory.used} of {memory.limit} bytes, {memory.waiting} callers waiting>"
        )

    # --- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await start_tasks(self._tasks, self.cluster if self._owns_cluster else None)
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
        """Send the remaining records for at most `close_timeout` seconds, then close. Safe to call twice.

        Records that are not acknowledged by then fail with ClosedError. Raises DeliveryFailedError for records of
        `enqueue` that were lost since the last `flush`. Runs to its end even if the caller is cancelled.
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
        """A task of the producer failed because of a bug: nothing is sent any more, so fail all waiting callers."""
        self._open = False
        self._memory.fail(self._closed_error)
        self._sender.fail_all(error)
        self._router.fail_all(error)

    def _closed_error(self) -> ClosedError:
        return ClosedError("the producer is closed, or was never entered with `async with`")

    # --- send --------------------------------------------------------------------------------------------------

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
        """Write a record and wait until it is acknowledged; return its metadata (offset -1 with acks=0).

        Without `partition` the key determines it (as in Java's producer); without a key too, the sticky partition is
        used. `timestamp` is in ms since 1970. Cancellation while waiting for buffer memory withdraws the record; after
        that the record is sent all the same.

        Raises ConfigError for invalid arguments, BrokerError for an error of the broker, RequestTimedOut after
        `delivery_timeout`, ClosedError.
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
        """Write a record as `send` does, but return a future of its metadata without waiting.

        Raises QueueFull when the buffer is full, ConfigError, ClosedError. Cancelling the future does not withdraw the
        record.
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
        """Write a record, waiting only for buffer memory; the fastest way to write many.

        A later failure is raised by `flush`. Cancellation while waiting for buffer memory withdraws the record. Raises
        ConfigError for invalid arguments, ClosedError.
        """
        size = measure_record(value, key, headers, partition, timestamp, self._max_size)
        if not self._memory.try_reserve(size):
            await self._wait_for_memory(size)
        if self._put(topic, timestamp, key, value, headers, partition, size, None):
            await asyncio.sleep(0)  # a caller that never has to wait must still let other tasks run

    async def enqueue_all(self, records: Iterable[RecordFields]) -> None:
        """Write records as `enqueue` does, at about half its cost for each.

        A record is a tuple of the arguments of `send` in their order: topic, value, key, headers, partition, timestamp. The
        iterable must not block. Other tasks run whenever a batch begins. If it raises, the earlier records are written.
        """
        reserve, clock, limit, router = self._memory.try_reserve, self._clock, self._max_size, self._router
        size = 0  # bytes reserved for a record that is not appended yet
        route_topic: str | None = None  # the topic of `route`; None after other tasks have run
        route: Route | None = None
        try:
            for topic, value, key, headers, partition, timestamp in records:
                needed = measure_record(value, key, headers, partition, timestamp, limit)
                if not reserve(needed):
                    await self._wait_for_memory(needed)
                    route_topic = None
                size = needed
                if topic is not route_topic:
                    if not self._open:
                        raise self._closed_error()
                    route_topic, route = topic, router.current_route(topic)
                stamp = clock() if timestamp is None else timestamp
                if route is not None and partition is None:  # spares a call for each record
                    began_batch = route.put(stamp, key, value, headers, None, size, None)
                else:
                    began_batch = router.put(topic, stamp, key, value, headers, partition, size, None)
                size = 0
                if began_batch:
                    self._sender.wake()
                    await asyncio.sleep(0)
                    route_topic = None
        finally:
            if size:
                self._memory.release(size)

    async def _wait_for_memory(self, size: int) -> None:
        if not self._open:
            raise self._closed_error()
        self._sender.wake()  # lingering batches hold the memory that this caller waits for
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
        """Append a record for which `size` bytes are reserved; True if it began or filled a batch. Frees them if it raises."""
        stamp = self._clock() if timestamp is None else timestamp
        try:
            if not self._open:
                raise self._closed_error()
            began_batch = self._router.put(topic, stamp, key, value, headers, partition, size, future)
        except BaseException:
            self._memory.release(size)
            raise
        if began_batch:
            self._sender.wake()
        return began_batch

    # --- flush ------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send all records written before this call, without lingering, and wait until they are done.

        Raises DeliveryFailedError if records of `enqueue` were lost since the last flush; those of `send` and
        `send_nowait` raise from their own call or future.
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
        self._hooks.emit("on_produce", *batch.tp, batch.count, error)
        if error is None:
            self._hooks.emit("on_delivered", *batch.tp, batch.base_offset, batch.count)
