"""Route records to partitions, and look up the metadata of topics that are not known yet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from asyncgroup.checks import check_topic
from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import AsyncGroupError, RequestTimedOut, TransportError
from asyncgroup.lifecycle import copy_error, describe_error
from asyncgroup.model import Header, TopicPartition
from asyncgroup.producer.accumulator import RecordAccumulator
from asyncgroup.producer.route import PendingRecord, RecordFuture, Route

__all__ = ["Router"]

IDLE_CHECKS: Final = 10
"""Checks for idle topics per `metadata_max_idle`."""


class Router:
    """Routes each record to its partition. Records of an unknown topic wait for its lookup, in order.

    `spawn` runs coroutine functions in the owner's task group. `on_lost(tp, count, error)` is called for records
    without a future that cannot be routed, and `on_batch_ready()` when there may be batches to send.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        *,
        spawn: Callable[..., None],
        rng: random.Random,
        on_lost: Callable[[TopicPartition, int, Exception], None],
        on_batch_ready: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._network = cluster.network
        self._config = config
        self._accumulator = accumulator
        self._random = rng
        self._spawn = spawn
        self._on_lost = on_lost
        self._on_batch_ready = on_batch_ready
        self._routes: dict[str, Route] = {}  # by topic

    def __repr__(self) -> str:
        return f"<Router {len(self._routes)} topics, {self.waiting} records waiting for a lookup>"

    @property
    def waiting(self) -> int:
        """The number of records that wait for a lookup."""
        return sum(len(route.backlog) for route in self._routes.values())

    def lookups(self) -> list[asyncio.Future[None]]:
        """Return a future for each lookup under way, done when its records were routed or have failed."""
        return [route.lookup for route in self._routes.values() if route.lookup is not None]

    def put(
        self,
        topic: str,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        size: int,
        future: RecordFuture,
    ) -> bool:
        """Route a record for which `size` bytes are reserved; True if it began or filled a batch.

        If it raises, the record was not accepted: ConfigError for an invalid topic name or if the partitioner returns
        an invalid partition.
        """
        route = self._routes.get(topic) or self._add(topic)
        route.recently_used = True
        if route.view is not self._network.view:
            route.update(self._network.view)
        if route.lookup is None and route.partition_count > (partition or 0):
            return route.put(timestamp, key, value, headers, partition, size, future)
        deadline = asyncio.get_running_loop().time() + self._config.delivery_timeout
        route.backlog.append(PendingRecord(timestamp, key, value, headers, partition, size, future, deadline))
        if route.lookup is None:
            route.lookup = asyncio.get_running_loop().create_future()
            self._spawn(self._look_up, route, name=f"look up {topic}")
        return False

    def current_route(self, topic: str) -> Route | None:
        """Return the route that takes records for a topic, until other tasks run; None if `put` has to be called."""
        route = self._routes.get(topic)
        if route is None or route.lookup is not None or not route.partition_count:
            return None
        route.recently_used = True
        return route if route.view is self._network.view else None

    async def forget_idle(self) -> None:
        """Forget topics to which nothing was produced for `metadata_max_idle`; runs while the producer is open.

        As `ProducerMetadata.retainTopic` (KIP-526): otherwise each metadata refresh would request them, and brokers
        with `auto.create.topics.enable` would recreate deleted ones. A topic with records that are not done is in
        use.
        """
        loop, limit = asyncio.get_running_loop(), self._config.metadata_max_idle
        while True:
            await asyncio.sleep(limit / IDLE_CHECKS)
            now = loop.time()
            for route in list(self._routes.values()):
                if route.recently_used or not route.is_idle:
                    route.recently_used, route.last_used_at = False, now
                elif now - route.last_used_at >= limit:
                    self._forget(route)

    def _forget(self, route: Route) -> None:
        del self._routes[route.topic]
        self._accumulator.forget(route.topic)
        self._cluster.untrack([route.topic])

    def _add(self, topic: str) -> Route:
        check_topic(topic)
        route = Route(topic, self._accumulator, self._config.partitioner, self._random)
        self._routes[topic] = route
        self._cluster.track([topic])
        return route

    async def _look_up(self, route: Route) -> None:
        try:
            # the current metadata lacks the topic, or the partition that a record names
            await self._wait_for_metadata(route)
        except AsyncGroupError as error:
            while route.backlog:
                self._fail_record(route, route.backlog.popleft(), error)
        finally:
            lookup, route.lookup = route.lookup, None
            if lookup is not None and not lookup.done():
                lookup.set_result(None)
        self._route_backlog(route)

    async def _wait_for_metadata(self, route: Route) -> None:
        """Return when the topic is known, or when every record has failed at its own delivery timeout."""
        retry = self._cluster.retry()
        reason: Exception | None = None
        while route.backlog:
            try:
                async with asyncio.timeout_at(route.backlog[0].deadline):
                    try:
                        await self._cluster.refresh()
                        await self._cluster.topics([route.topic])
                        return
                    except TransportError as error:
                        reason = error
                        await retry.wait()
            except TimeoutError:
                self._expire(route, reason)

    def _route_backlog(self, route: Route) -> None:
        route.update(self._cluster.view)
        while route.backlog:
            record = route.backlog.popleft()
            try:
                route.put(*record[:-1])
            except (StopIteration, asyncio.CancelledError) as error:
                # a future does not accept the first one, and the second would end this task
                failure = RuntimeError(f"the partitioner raised {describe_error(error)}")
                failure.__cause__ = error
                self._fail_record(route, record, failure)
            except Exception as error:  # noqa: BLE001  a partitioner is user code: only its own record fails
                self._fail_record(route, record, error)
        self._on_batch_ready()

    def _expire(self, route: Route, reason: Exception | None) -> None:
        now = asyncio.get_running_loop().time()
        limit = f"delivery_timeout={self._config.delivery_timeout:g} s"
        error = RequestTimedOut(f"topic {route.topic!r} could not be looked up within {limit}: {reason}")
        error.__cause__ = reason
        while route.backlog and route.backlog[0].deadline <= now:
            self._fail_record(route, route.backlog.popleft(), error)

    def _fail_record(self, route: Route, record: PendingRecord, error: Exception) -> None:
        self._accumulator.memory.release(record.size)
        if record.future is None:
            self._on_lost(TopicPartition(route.topic, -1), 1, error)
        elif not record.future.done():
            record.future.set_exception(copy_error(error))

    def fail_all(self, error: Exception) -> None:
        """Fail every record that waits for a lookup."""
        for route in self._routes.values():
            while route.backlog:
                self._fail_record(route, route.backlog.popleft(), error)

    def close(self) -> None:
        """Remove the topics from the cluster's metadata refreshes."""
        self._cluster.untrack(self._routes)
        self._routes.clear()
