"""RecordWriter: the short way of a record: wait for memory, append it to its batch, wake the sender.

`chunks` and `send_steps` also use it; `producer` decides which way a record takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import Header, MillisClock
from asyncgroup.producer.arguments import (
    RecordFields,
    check_fields,
    check_records,
    copy_headers,
    measure_record,
)
from asyncgroup.producer.records.pipeline import RecordPath, loop_time
from asyncgroup.producer.records.route import RecordFuture, Route

__all__ = ["RecordWriter"]

MAX_TURN: Final = 0.005
"""Seconds for which callers of `enqueue` that need not wait keep the event loop, as long as records linger by default.

A batch that has lingered is sent at the end of a turn. So it gets the records of one turn or two, and the more records a batch
has, the less each of them costs.
"""


UNTIMED: Final = 8
"""Records between two looks at the clock, which cost as much as a twentieth of a record."""


class RecordWriter:
    """Appends records to the batches of `path` while `is_accepting`.

    `clock` returns the timestamp (ms) of records that have none, `max_size` is the largest record in bytes, and `refusal()`
    returns the error for callers while no record is accepted.
    """

    def __init__(
        self, path: RecordPath, *, clock: MillisClock, max_size: int, refusal: Callable[[], AsyncGroupError]
    ) -> None:
        self.clock = clock
        self.max_size = max_size
        self.is_accepting = False
        """Whether records are accepted: the producer is open and, with a transactional id, in a transaction."""
        self._refusal = refusal
        self._memory = path.memory
        self._router = path.router
        self._wake = path.sender.wake
        self._time: Callable[[], float] = loop_time
        self._turn_ends_at = 0.0  # loop time
        self._untimed = 0  # records until the next look at the clock
        self._resting = 0  # callers in `rest`

    def __repr__(self) -> str:
        return f"<RecordWriter {'accepting' if self.is_accepting else 'refusing'} records>"

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

    def check_accepting(self) -> None:
        """Raise unless records are accepted."""
        if not self.is_accepting:
            raise self._refusal()

    def before_wait(self) -> None:
        """Raise unless records are accepted; send lingering batches, because they hold what the caller waits for."""
        self.check_accepting()
        self._wake()

    async def wait_for_memory(self, size: int, headers: Sequence[Header] = ()) -> Sequence[Header]:
        """Wait until `size` bytes are reserved for a record; return its headers as they are now."""
        self.before_wait()
        headers = copy_headers(headers)
        await self._memory.reserve(size)
        return headers

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        timestamp: int | None,
        size: int,
        future: RecordFuture,
    ) -> bool:
        """Append a record for which `size` bytes are reserved; True if it filled a batch. Frees them if it raises."""
        try:
            stamp = self.clock() if timestamp is None else timestamp
            if not self.is_accepting:
                raise self._refusal()
            route = self._router.current_route(topic)
            if route is not None and (partition or 0) < route.partition_count:
                return route.put(value, key, headers, partition, stamp, size, future)
            return self._router.put(topic, value, key, headers, partition, stamp, size, future)
        except BaseException:
            self._memory.release(size)
            raise

    async def put_all(
        self, records: Iterable[RecordFields], write_large: Callable[..., Awaitable[Any]]
    ) -> None:
        """Append records without futures; `write_large` (`Producer.enqueue`) gets those above `max_size`.

        Other tasks run whenever a batch is full, and at the end of a turn. If it raises, the earlier records are appended.
        """
        check_records(records)
        reserve, clock, router = self._memory.try_reserve, self.clock, self._router
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
                if needed > self.max_size:
                    await write_large(
                        topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
                    )
                    route_topic = None
                    continue
                if not reserve(needed):
                    headers = await self.wait_for_memory(needed, headers)
                    route_topic = None
                size = needed
                if topic is not route_topic:
                    self.check_accepting()
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
