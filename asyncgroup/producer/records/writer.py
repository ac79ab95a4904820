"""RecordWriter: measure a record, reserve memory for it, and append it to its batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from asyncgroup.errors import QueueFull
from asyncgroup.interceptor import ProducerRecord
from asyncgroup.model import Header
from asyncgroup.producer.arguments import (
    RecordFields,
    check_fields,
    check_records,
    check_topic_name,
    copy_headers,
    measure_record,
)
from asyncgroup.producer.batches.results import ResultReceiver
from asyncgroup.producer.records.chunks import ChunkWriter
from asyncgroup.producer.records.pipeline import RecordPipeline, loop_time
from asyncgroup.producer.records.route import Route

__all__ = ["RecordWriter"]

MAX_TURN: Final = 0.005
"""Seconds for which callers of `enqueue` that need not wait keep the event loop, as long as records linger by default.

A batch that has lingered is sent at the end of a turn. So it gets the records of one turn or two, and the more records a batch
has, the less each of them costs.
"""


UNTIMED: Final = 8
"""Records between two looks at the clock, which cost as much as a twentieth of a record."""


class RecordWriter:
    """Writes records while `pipeline` accepts them.

    Almost all take `put` alone, at the least cost. One that it returns None for goes on to `put_waiting` or, if its caller does
    not wait, to `put_at_once`. `SendSteps` has the same methods, for producers whose records need more steps.
    """

    def __init__(self, pipeline: RecordPipeline, chunks: ChunkWriter) -> None:
        self._pipeline = pipeline
        self._clock = pipeline.clock
        self._memory = pipeline.memory
        self._reserve = pipeline.memory.try_reserve
        self._wake = pipeline.sender.timer.wake
        self._router = pipeline.router
        self._routes = pipeline.router.routes
        self._network = pipeline.router.network
        self._chunks = chunks
        self._max_size = chunks.max_size
        self._time: Callable[[], float] = loop_time
        self._turn_ends_at = 0.0  # loop time
        self._untimed = 0  # records until the next look at the clock
        self._resting = 0  # callers in `rest`

    def __repr__(self) -> str:
        return f"<RecordWriter {'accepting' if self._pipeline.is_accepting else 'refusing'} records>"

    def start(self) -> None:
        """Use the clock of the running event loop."""
        self._time = asyncio.get_running_loop().time

    def turn_is_over(self) -> bool:
        """Return whether callers have kept the event loop for long enough; called after each record."""
        self._untimed -= 1
        if self._untimed > 0:
            return False
        self._untimed = UNTIMED
        return self._time() >= self._turn_ends_at

    async def rest(self) -> None:
        """Let other tasks run, and the sender, then begin the next turn: all callers that rest share MAX_TURN."""
        self._resting += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._turn_ends_at = self._time() + MAX_TURN / self._resting
            self._resting -= 1

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        timestamp: int | None,
        future: ResultReceiver | None,
        reserved: int = 0,
    ) -> bool | None:
        """Append a record; True if it filled a batch, None if it was not accepted: there is no room for it, or it is too large.

        `reserved`: the bytes reserved for it before this call. They are freed if it raises.
        """
        size = reserved
        if not size:
            size = measure_record(value, key, headers, partition, timestamp)
            if size > self._max_size or not self._reserve(size):
                return None
        try:
            stamp = self._clock() if timestamp is None else timestamp
            if not self._pipeline.is_accepting:
                raise self._pipeline.refusal()
            route = self._routes.get(topic)
            # as `Router.current_route`, without a call for each record
            if (
                route is not None
                and not route.lookups
                and route.view is self._network.view
                and (partition or 0) < route.partition_count
            ):
                route.recently_used = True
                return route.put(value, key, headers, partition, stamp, size, future)
            return self._router.put(topic, value, key, headers, partition, stamp, size, future)
        except TypeError:
            self._memory.release(size)
            check_topic_name(topic)  # a list, for example, has no hash
            raise
        except BaseException:
            self._memory.release(size)
            raise

    async def put_waiting(self, record: ProducerRecord, future: ResultReceiver | None) -> bool | None:
        """Append a record when there is memory for it, or in chunks; True if it filled a batch."""
        topic, value, key, headers, partition, timestamp = record
        size = measure_record(value, key, headers, partition, timestamp)
        if size > self._max_size:
            await self._chunks.write(record, size, future)
            return False
        if not self._pipeline.is_accepting:
            raise self._pipeline.refusal()
        self._wake()  # lingering batches hold what the caller waits for
        if headers or type(headers) is not tuple:
            headers = copy_headers(headers)
        await self._memory.reserve(size)
        return self.put(topic, value, key, headers, partition, timestamp, future, size)

    def put_at_once(self, record: ProducerRecord, future: ResultReceiver | None) -> None:
        """Append a record in chunks if there is memory for all of them; raise QueueFull otherwise."""
        size = measure_record(*record[1:])
        if size <= self._max_size:
            raise QueueFull(f"no room for {size} bytes: {self._memory.shortage(size)}")
        self._chunks.write_nowait(record, size, future)

    async def put_all(self, records: Iterable[RecordFields]) -> None:
        """Append records without futures.

        Other tasks run whenever a batch is full, and at the end of a turn. If it raises, the earlier records are appended.
        """
        check_records(records)
        reserve, clock, router = self._reserve, self._clock, self._router
        size = 0  # bytes reserved for a record that is not appended yet
        route_topic: str | None = None  # the topic of `route`; None after other tasks have run
        route: Route | None = None
        try:
            for record in records:
                try:
                    topic, value, key, headers, partition, timestamp = record
                except (TypeError, ValueError):
                    check_fields(record)
                    raise
                needed = measure_record(value, key, headers, partition, timestamp)
                if needed > self._max_size:
                    large = ProducerRecord(topic, value, key, headers, partition, timestamp)
                    await self.put_waiting(large, None)
                    route_topic = None
                    continue
                if not reserve(needed):
                    headers = await self._pipeline.wait_for_memory(needed, headers)
                    route_topic = None
                size = needed
                if topic is not route_topic:
                    self._pipeline.check_accepting()
                    route_topic, route = topic, router.current_route(topic)
                stamp = clock() if timestamp is None else timestamp
                # not by `put`: that spares two calls for each record
                if route is not None and (partition or 0) < route.partition_count:
                    is_filled = route.put(value, key, headers, partition, stamp, size, None)
                else:
                    is_filled = router.put(topic, value, key, headers, partition, stamp, size, None)
                size = 0
                if is_filled or self.turn_is_over():
                    await self.rest()
                    route_topic = None
        finally:
            if size:
                self._memory.release(size)
