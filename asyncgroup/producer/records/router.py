"""Route records to partitions, and look up the metadata of topics and partitions that are not known yet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, RequestTimedOut, TransportError
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import Header, TopicPartition
from asyncgroup.producer.arguments import check_topic_name, copy_headers
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.producer.batches.results import ResultReceiver, is_silent
from asyncgroup.producer.records.route import Lookup, PendingRecord, Placement, Route
from asyncgroup.producer.sending.errors import named_error

__all__ = ["Router"]

IDLE_CHECKS: Final = 10
"""Checks for idle topics per `metadata_max_idle`."""


class Router:
    """Routes each record to its partition. Records of an unknown topic wait for its lookup, in order.

    So do records that name a partition which the metadata lacks, as it may have been added just now; the others of their
    topic do not wait for it. Java's `waitOnMetadata` does the same for one caller.

    `spawn` runs coroutine functions in tasks that the producer ends. `on_lost(tp, count, error)` is called for records
    without a future that cannot be routed, `on_failed(error)` for every record that cannot, and `on_batch_ready()` when there
    may be batches to send.
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
        on_failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self.network = cluster.network
        """Its `view` is read for each record: `cluster.view` is one call more."""
        self._config = config
        self._accumulator = accumulator
        self._random = rng
        self._spawn = spawn
        self._on_lost = on_lost
        self._on_batch_ready = on_batch_ready
        self._on_failed = on_failed
        self.routes: dict[str, Route] = {}
        """The topics of records, by name; with the view of `network` and without lookups a route takes records itself."""
        self._routing: tuple[Route, Lookup] | None = None  # whose records are put into their partitions now

    def __repr__(self) -> str:
        return f"<Router {len(self.routes)} topics, {self.waiting} records waiting for a lookup>"

    @property
    def waiting(self) -> int:
        """The number of records that wait for a lookup."""
        return sum(route.waiting for route in self.routes.values())

    async def wait_for_lookups(self) -> None:
        """Wait until no record accepted so far waits for a lookup: for that of its topic, then for that of its partition."""
        for _ in range(2):  # records of a topic that is known now may wait for their partition next
            lookups = [lookup.done for route in self.routes.values() for lookup in route.lookups.values()]
            if lookups:
                await asyncio.wait(lookups)

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        timestamp: int,
        size: int,
        future: ResultReceiver | None,
        placement: Placement | None = None,
    ) -> bool:
        """Route a record for which `size` bytes are reserved; True if it filled a batch.

        The first chunk with a `placement` determines the partition of the others. If it raises, the record was not accepted:
        InvalidRecordError for an invalid topic name, ConfigError if the partitioner returns an invalid partition.
        """
        route = self._route(topic)
        route.recently_used = True
        self._update(route)
        if placement is not None:
            partition = placement.partition
            if route.is_known(
                None
            ):  # else the partition is chosen after the lookup, which the later chunks wait for as well
                partition, placement = route.place(placement, key), None
        if route.is_known(partition):
            return route.put(value, key, headers, partition, timestamp, size, future)
        deadline = asyncio.get_running_loop().time() + self._config.delivery_timeout
        fixed = copy_headers(headers)  # the caller may modify its list
        pending = PendingRecord(value, key, fixed, partition, timestamp, size, future, deadline, placement)
        self._wait(route, pending)
        return False

    def _route(self, topic: str) -> Route:
        """Return the route of a topic, a new one if there is none. Raises InvalidRecordError for an invalid name."""
        try:
            return self.routes.get(topic) or self._add(topic)
        except TypeError:
            check_topic_name(topic)  # a list, for example, has no hash
            raise

    def _wait(self, route: Route, record: PendingRecord) -> None:
        """Let a record wait for the lookup of its topic or partition; begin that if it is not under way."""
        number = route.lookup_for(record.partition)
        lookup = route.lookups.get(number)
        if lookup is None:
            lookup = route.begin_lookup(number)
            self._spawn(self._look_up, route, lookup, name=f"look up {_place(route, lookup)}")
        lookup.backlog.append(record)
        lookup.has_unplaced |= record.partition is None

    def knows(self, tp: TopicPartition) -> bool:
        """Return whether a record for this partition need not wait for a lookup."""
        route = self.routes.get(tp.topic)
        return route is not None and self._update(route).is_known(tp.partition)

    def choose(
        self,
        topic: str,
        key: bytes | None,
        partition: int | None,
        size: int,
        is_full: Callable[[TopicPartition, int], bool],
    ) -> TopicPartition | None:
        """Return the partition for a record of `size` bytes; None while its topic, or the given partition, is not known.

        `is_full(tp, size)` says which partitions get no record whose key leaves the choice, while others do. Raises as
        `put`.
        """
        route = self._route(topic)
        if not self._update(route).is_known(partition):
            return None
        number = route.choose(key, size, is_full) if partition is None else partition
        return TopicPartition(topic, number)

    def without_leader(self, topic: str) -> set[TopicPartition]:
        """Return the partitions of a topic that have no leader by the present metadata."""
        view = self.network.view
        info = view.topics.get(topic)
        partitions = [] if info is None else [TopicPartition(topic, number) for number in info.partitions]
        return {tp for tp in partitions if view.leader(tp) < 0}

    def _update(self, route: Route) -> Route:
        if route.view is not self.network.view:
            route.update(self.network.view)
        return route

    def current_route(self, topic: str) -> Route | None:
        """Return the route that takes records for a topic, until other tasks run; None if `put` has to be called."""
        try:
            route = self.routes.get(topic)
        except TypeError:
            check_topic_name(topic)
            raise
        if route is None or route.lookups or not route.partition_count:
            return None
        route.recently_used = True
        return route if route.view is self.network.view else None

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
            for route in list(self.routes.values()):
                if route.recently_used or not route.is_idle:
                    route.recently_used, route.last_used_at = False, now
                elif now - route.last_used_at >= limit:
                    self._forget(route)

    def _forget(self, route: Route) -> None:
        del self.routes[route.topic]
        self._accumulator.forget(route.topic)
        self._cluster.untrack([route.topic])

    def _add(self, topic: str) -> Route:
        check_topic_name(topic)
        route = Route(topic, self._accumulator, self._config, self._random)
        self.routes[topic] = route
        self._cluster.track([topic])
        return route

    async def _look_up(self, route: Route, lookup: Lookup) -> None:
        try:
            await self._wait_for_metadata(route, lookup)
        except AsyncGroupError as error:
            self._fail_backlog(route, lookup, self._missing_partition(route, lookup, error) or error)
        finally:  # a task that is cancelled leaves its records to `fail_all`
            if not lookup.done.done():
                lookup.done.set_result(None)
        route.end_lookup(lookup)
        self._route_backlog(route, lookup)

    def _missing_partition(self, route: Route, lookup: Lookup, error: Exception) -> Exception | None:
        """Return the error of records for a partition that the topic does not have; None if a lookup failed otherwise."""
        is_unknown = isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if lookup.partition is None or not is_unknown:
            return None
        count = self._update(route).partition_count
        return route.missing_partition(lookup.partition) if 0 < count <= lookup.partition else None

    async def _wait_for_metadata(self, route: Route, lookup: Lookup) -> None:
        """Return when the topic, and the partition, is known, or when every record has failed at its own delivery timeout."""
        wanted = TopicPartition(route.topic, lookup.partition or 0)
        retry = self._cluster.retry()
        reason: Exception | None = None
        while lookup.backlog:
            try:
                async with asyncio.timeout_at(lookup.backlog[0].deadline):
                    try:
                        await self._cluster.find_partitions([wanted])
                        return
                    except TransportError as error:
                        reason = error
                        await retry.wait()
            except TimeoutError:
                self._expire(route, lookup, reason)

    def _route_backlog(self, route: Route, lookup: Lookup) -> None:
        """Put the records into their partitions; those of a partition that the topic lacks wait for another lookup."""
        route.update(self.network.view)
        self._routing = (
            route,
            lookup,
        )  # it is in no route any more, but a partitioner's error may fail all records
        while lookup.backlog:
            record = lookup.backlog.popleft()
            if not route.is_known(record.partition):
                self._wait(route, record)
                continue
            try:
                self._put_pending(route, record)
            except (StopIteration, asyncio.CancelledError) as error:
                # a future does not accept the first one, and the second would end this task
                failure = RuntimeError(f"the partitioner raised {describe_error(error)}")
                failure.__cause__ = error
                self._fail_record(route, lookup, record, failure)
            except Exception as error:  # noqa: BLE001  a partitioner is user code: only its own record fails
                self._fail_record(route, lookup, record, error)
        self._routing = None
        self._on_batch_ready()

    def _put_pending(self, route: Route, record: PendingRecord) -> None:
        """Put a record that has waited for the lookup into its partition, even if that is full."""
        limits = self._accumulator.partition_limits
        number = record.partition
        if limits is None:
            route.put_pending(record)
            return
        if number is None:
            number = route.choose(record.key, record.size, limits.is_full)
        tp = TopicPartition(route.topic, number)
        limits.of(tp).force(record.size)
        try:
            route.put_pending(record._replace(partition=number))
        except BaseException:
            limits.release(tp, record.size)
            raise

    def _expire(self, route: Route, lookup: Lookup, reason: Exception | None) -> None:
        now = asyncio.get_running_loop().time()
        limit = f"delivery_timeout={self._config.delivery_timeout:g} s"
        error = RequestTimedOut(f"{_place(route, lookup)} could not be looked up within {limit}: {reason}")
        error.__cause__ = reason
        # in the order of their deadlines, as all have the same timeout
        while lookup.backlog and lookup.backlog[0].deadline <= now:
            self._fail_record(route, lookup, lookup.backlog.popleft(), error)

    def _fail_backlog(self, route: Route, lookup: Lookup, error: Exception) -> None:
        while lookup.backlog:
            self._fail_record(route, lookup, lookup.backlog.popleft(), error)

    def _fail_record(self, route: Route, lookup: Lookup, record: PendingRecord, error: Exception) -> None:
        self._accumulator.memory.release(record.size)
        number = lookup.partition
        tp = TopicPartition(route.topic, -1 if number is None else number)
        if is_silent(record.future):
            self._on_lost(tp, 1, error)
        if record.future is not None and not record.future.done():
            record.future.set_exception(named_error(error, route.topic if number is None else tp))
        if self._on_failed is not None:
            self._on_failed(error)

    def fail_all(self, error: Exception) -> None:
        """Fail every record that waits for a lookup, and the rest of the backlog that is put into its partitions now."""
        if self._routing is not None:
            self._fail_backlog(*self._routing, error)
        for route in self.routes.values():
            for lookup in route.lookups.values():
                self._fail_backlog(route, lookup, error)

    def close(self) -> None:
        """Remove the topics from the cluster's metadata refreshes."""
        self._cluster.untrack(self.routes)
        self.routes.clear()


def _place(route: Route, lookup: Lookup) -> str:
    """Return what is looked up, in words."""
    if lookup.partition is None:
        return f"topic {route.topic!r}"
    return f"partition {TopicPartition(route.topic, lookup.partition)}"
