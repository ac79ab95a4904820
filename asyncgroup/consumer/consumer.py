"""Consumer: read partitions without a consumer group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final, NamedTuple, Self, TypeAlias

from asyncgroup.checks import check_clock, check_group_id, check_partition, check_partitions
from asyncgroup.cluster import Cluster, as_cluster, start_tasks
from asyncgroup.cluster.bootstrap import BootstrapServers
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.requests.list_offsets import EARLIEST, LATEST
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetcher import Fetcher
from asyncgroup.consumer.foreign_names import CONSUMER
from asyncgroup.consumer.interceptors import Interceptors
from asyncgroup.consumer.list_offsets import StartOffset, list_offsets, look_up_offsets, parse_start
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import ClosedError, ConfigError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.interceptor import ConsumeInterceptor
from asyncgroup.lifecycle import BackgroundTasks, copy_error
from asyncgroup.model import MillisClock, TopicPartition, wall_clock
from asyncgroup.named_arguments import ClientArguments
from asyncgroup.offsets.fetch_offsets import fetch_offsets
from asyncgroup.offsets.partition_offsets import CommittedOffset
from asyncgroup.topic_partition import Partitions

__all__ = ["Consumer", "OffsetAndTimestamp"]

_NUMBERS = count(1)
Times: TypeAlias = Mapping[TopicPartition, datetime | int] | Mapping[tuple[str, int], datetime | int]
"""By partition: a datetime with a time zone, or ms since 1970."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time; Java's class of the same name."""

    offset: int
    timestamp: int
    """In ms since 1970."""
    leader_epoch: int = -1
    """The leader epoch of the record's batch; -1 if unknown."""

    @property
    def time(self) -> datetime:
        """The timestamp as an aware datetime in UTC."""
        return _EPOCH + timedelta(milliseconds=self.timestamp)


class Consumer(ClientArguments):
    """Reads partitions without joining a group; nothing is committed. As sarama's `Consumer`.

        async with Consumer("localhost:9092") as consumer:
            async for record in await consumer.partition("orders", 0, "earliest"):
                ...

    `bootstrap_servers` may be an existing Cluster, which then stays open. `interceptors` are called for each record once,
    when it is delivered. `clock` returns the time of day in ms; only starts, resets and seeks by duration use it.

    Retriable failures (unavailable brokers, leaders that move) are retried without end and reported to `errors()` of the
    partitions concerned; without a reader there they are logged. Other errors are raised by the partition's iterator:
    BrokerError, OffsetOutOfRangeError with the policy `error`, CorruptRecordsError, and RetriesExhausted if
    `fetch_retry_max` is set. A reader may catch them, and seek or simply continue.
    """

    _CONFIG = "ConsumerConfig"

    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        config: ConsumerConfig | None = None,
        *,
        hooks: Iterable[object] = (),
        interceptors: Iterable[ConsumeInterceptor] = (),
        clock: MillisClock = wall_clock,
    ) -> None:
        check_clock(clock)
        self.config = ConsumerConfig.of(config)
        self.cluster, self._owns_cluster = as_cluster(bootstrap_servers, self.config, hooks)
        self._client = self.cluster._inner
        self._interceptors = Interceptors(interceptors)
        self._clock = clock
        self._tasks = BackgroundTasks("Consumer", self._on_bug)
        self._fetcher = Fetcher(
            self._client,
            self.config,
            self._tasks.spawn,
            lane_suffix=f"-consumer-{next(_NUMBERS)}",
            clock=clock,
        )
        self._partitions: dict[TopicPartition, PartitionConsumer] = {}

    def __repr__(self) -> str:
        return (
            f"<Consumer: {'open' if self._tasks.is_open else 'closed'}, {len(self._partitions)} partitions>"
        )

    async def __aenter__(self) -> Self:
        await start_tasks(self._tasks, self.cluster if self._owns_cluster else None)
        self._fetcher.start()
        self.cluster.hooks.emit("on_open", self)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every partition's iterator and close; safe to call twice.

        The partitions' `errors()` end after their unread errors; an error that an iterator has not raised yet is logged.
        """
        for consumer in self._partitions.values():
            consumer._inner.end()
            consumer._inner.end_processing()
        try:
            await self._tasks.stop()
        finally:
            self.cluster.untrack(tp.topic for tp in self._partitions)
            self._partitions.clear()
            self._fetcher.retire_lanes()
            if self._owns_cluster:
                await self.cluster.aclose()

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(await self.cluster.all_topics())

    async def partitions(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic, which is not created; raise BrokerError if it is unknown."""
        return await self.cluster.partitions(topic)

    async def partition(
        self, topic: str, partition: int, offset: StartOffset = "latest"
    ) -> PartitionConsumer:
        """Start reading a partition at `offset`:

        - a number: at this offset; `out_of_range_reset` applies if it is not in the log;
        - `"earliest"`, `"latest"`: at the log's start or end;
        - a datetime with a time zone: at the first record of this time or later;
        - a timedelta: at the first record that is not older than that (KIP-1106).

        A time after the last record means the log's end. A partition can be read by one PartitionConsumer at a time, and
        again once that is closed. Raises ConfigError for a partition that is being read or an offset of another type,
        BrokerError for an unknown partition, ClosedError if the consumer is not open.
        """
        tp = TopicPartition(topic, partition)
        self._check_free(tp)
        parse_start(offset, self._clock)  # refuse a bad offset before the first request
        await self._client.find_partitions([tp], creates=True)
        start, timestamp = parse_start(offset, self._clock)  # a duration counts from now
        if timestamp is not None:
            start = (await list_offsets(self._client, {tp: timestamp}, self.config.isolation_level))[tp]
        self._check_free(tp)  # a concurrent call may have been faster
        consumer = PartitionConsumer(
            tp,
            start,
            self.config,
            self._fetcher.budget,
            self.cluster.hooks,
            self._interceptors,
            on_close=lambda: self._forget(consumer),
        )
        self.cluster.track([topic])
        self._partitions[tp] = consumer
        self._fetcher.add(consumer)
        return consumer

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the high watermark of each consumed partition, as of its last fetch; -1 before it.

        The values are of different times, so do not compare those of several partitions (sarama's `HighWaterMarks`).
        """
        return {tp: self._partitions[tp].high_watermark for tp in sorted(self._partitions)}

    # --- offsets ------------------------------------------------------------------------------------------------

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition. As Java's `beginningOffsets`.

        Sends one ListOffsets request to each leader, as do the next two methods; the partitions need not be consumed, and no
        topic is created.
        Raises OffsetLookupError with an error for each partition that failed (for example one that does not exist),
        ConfigError for an invalid topic name, TransportError, ClosedError.
        """
        return await self._listed(dict.fromkeys(check_partitions(partitions), EARLIEST))

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the end offset of each partition: that after the last readable record. As Java's `endOffsets`.

        With `isolation_level="read_committed"` that is the last stable offset. Raises as `beginning_offsets`.
        """
        return await self._listed(dict.fromkeys(check_partitions(partitions), LATEST))

    async def offsets_for_times(self, times: Times) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return for each partition the first record with the given timestamp or a later one; None without such a record.

        Times are datetimes with a time zone, or ms since 1970 as in `Record.timestamp`. As Java's `offsetsForTimes`.
        Raises ConfigError for other values, and as `beginning_offsets`.
        """
        wanted = _timestamps_of(times)
        check_partitions(list(wanted))
        self._check_open()
        found = await look_up_offsets(self._client, wanted, self.config.isolation_level)
        return {tp: None if found[tp].offset < 0 else OffsetAndTimestamp(*found[tp]) for tp in wanted}

    async def committed(
        self, group_id: str, partitions: Partitions | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return a group's committed offsets for `partitions`, or for all; partitions without a commit are left out.

        Waits at most a minute for open transactions that commit offsets of the group, as Java does (KIP-447). Raises
        ConfigError for an invalid group id or topic, BrokerError naming group and partition, TransportError, ClosedError.
        """
        check_group_id(group_id)
        wanted = None if partitions is None else check_partitions(partitions)
        self._check_open()
        if wanted == []:
            return {}
        return await fetch_offsets(self._client, group_id, wanted, lane=CONTROL, require_stable=True)

    async def _listed(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self._check_open()
        found = await look_up_offsets(self._client, wanted, self.config.isolation_level)
        return {tp: found[tp].offset for tp in wanted}

    def _check_open(self) -> None:
        if not self._tasks.is_open:
            raise ClosedError("the Consumer is not open: use `async with Consumer(…)`")

    # --- pauses -------------------------------------------------------------------------------------------------

    def pause(self, partitions: Partitions) -> None:
        """Stop iteration and fetching of one or several partitions until `resume`; those that are not consumed are ignored.

        Raises ConfigError for values that are not partitions, and for invalid topics, as `resume` does.
        """
        for consumer in self._consumed(partitions):
            consumer.pause()

    def resume(self, partitions: Partitions) -> None:
        """Undo `pause` for these partitions."""
        for consumer in self._consumed(partitions):
            consumer.resume()

    def pause_all(self) -> None:
        """Pause every partition that is consumed now."""
        self.pause(list(self._partitions))

    def resume_all(self) -> None:
        """Undo every pause."""
        self.resume(list(self._partitions))

    def _consumed(self, partitions: Partitions) -> list[PartitionConsumer]:
        return [self._partitions[tp] for tp in check_partitions(partitions) if tp in self._partitions]

    def _check_free(self, tp: TopicPartition) -> None:
        self._check_open()
        try:
            is_read = tp in self._partitions
        except TypeError:  # a list, for example, has no hash
            check_partition(tp)
            raise
        if is_read:
            allowed = (
                "a partition that this Consumer does not read already: close its PartitionConsumer first"
            )
            raise ConfigError("partition", str(tp), allowed)

    def _forget(self, consumer: PartitionConsumer) -> None:
        # a second close must not remove the one that reads the partition since
        if self._partitions.get(consumer.tp) is consumer:
            del self._partitions[consumer.tp]
            self._fetcher.remove(consumer)
            self.cluster.untrack([consumer.topic])

    def _on_bug(self, error: Exception) -> None:
        """Raise the error of a failed background task to all readers: no more records will arrive."""
        for consumer in self._partitions.values():
            # each reader raises it with another traceback
            consumer._inner.fail(copy_error(error))


# --- arguments -------------------------------------------------------------------------------------------------------


def _timestamps_of(
    times: Times,
) -> dict[TopicPartition, int]:
    """Return each partition's time in ms since 1970; raise ConfigError for other values and for naive datetimes."""
    if not isinstance(times, Mapping):
        raise ConfigError("times", times, 'times by partition, as {("orders", 0): time}')
    found = {}
    for place, when in times.items():
        tp = check_partition(place)
        if isinstance(when, datetime) and when.utcoffset() is not None:
            timestamp = parse_start(when, wall_clock).timestamp
        else:
            timestamp = when if isinstance(when, int) and not isinstance(when, bool) and when >= 0 else None
        if timestamp is None:
            allowed = "a datetime with a time zone, or ms since 1970 (0 or more)"
            raise ConfigError(f"the time of {tp}", when, allowed)
        found[tp] = timestamp
    return found


add_foreign_names(Consumer, CONSUMER)
