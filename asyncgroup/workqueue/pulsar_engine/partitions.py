"""SubscribedPartitions: the partitions of a queue, each with its consumer. One that its broker refuses ends alone.

A partition is attached, or on its way to a broker, or refused: its topic was deleted or is not allowed, or no broker was found
when it was opened. A refused one is forgotten, and tried again when the numbers of partitions are looked up. The queue ends
with the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from asyncgroup.errors import AsyncGroupError, ClosedError, ConsumerBusy
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import TopicPartition
from asyncgroup.pulsar.consumer.topics.topic_discovery import TopicDiscovery
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.workqueue.engine import OpenQueue
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.pulsar_engine.partition_consumers import PartitionConsumers
from asyncgroup.workqueue.pulsar_engine.queue_partition import PartitionOwner, QueuePartition
from asyncgroup.workqueue.pulsar_engine.source import PulsarPlan
from asyncgroup.workqueue.receive_limits import ReceiveLimits
from asyncgroup.workqueue.settings import QueueSettings

__all__ = ["SubscribedPartitions"]

OTHERS: Final = 10.0
"""Seconds that a queue which is opened waits for its other partitions when one is attached."""

_CONSUMER_BUSY: Final = 5


def _full_name(tp: TopicPartition) -> str:
    return tp.topic if tp.partition < 0 else f"{tp.topic}-partition-{tp.partition}"


class _Members:
    """The partitions of a queue, as TopicDiscovery sees them."""

    def __init__(self, partitions: SubscribedPartitions) -> None:
        self._partitions = partitions

    def names(self) -> Collection[TopicName]:
        return self._partitions.names_of_pattern()

    def start(self, core: ClientCore, names: Iterable[TopicName], *, is_new: bool) -> None:  # noqa: ARG002
        self._partitions.start_of_pattern(names, is_new=is_new)

    async def wait(self, names: Iterable[TopicName]) -> None:
        """Nothing waits: each partition begins alone."""

    async def remove(self, names: Iterable[TopicName]) -> None:
        self._partitions.drop_deleted(names)


class SubscribedPartitions(PartitionOwner):
    """The partitions of one queue; `report(error)` is called for what is tried again.

    Those that are attached share the limits of the queue, also when others are added or refused.
    """

    def __init__(
        self,
        plan: PulsarPlan,
        settings: QueueSettings,
        core: Callable[[], ClientCore],
        report: Callable[[Exception], object],
    ) -> None:
        """`core` returns what an open client shares."""
        self.readers: dict[TopicPartition, QueuePartition] = {}
        """All but the refused ones."""
        self.refused: dict[TopicPartition, Exception] = {}
        """The partitions that their brokers have refused, with the reasons."""
        self._plan = plan
        self._name = plan.source.subscription
        self._settings = settings
        self._limits = ReceiveLimits(settings)
        self._consumers = PartitionConsumers(plan, settings, self._limits)
        self._core = core
        self._report = report
        self._queue: OpenQueue
        self._begins_early: dict[TopicPartition, bool] = {}  # of all that were ever added
        self._looking: set[object] = set()  # topics whose partitions are not known yet, and a pattern
        self._lookups: list[asyncio.Task[None]] = []
        self._starting: set[QueuePartition] = set()  # neither attached nor refused yet
        self._unasked: dict[QueuePartition, None] = {}  # without a permit; used without a receiver queue
        self._closes: set[asyncio.Task[None]] = set()  # of the consumers of refused partitions
        self._changed = asyncio.Event()
        self._pattern: TopicDiscovery | None = None
        if plan.pattern is not None:
            period = plan.source.pattern_auto_discovery_period
            self._pattern = TopicDiscovery(plan.pattern, _Members(self), period)
        self._is_opening = True
        self._is_closed = False
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<SubscribedPartitions: {len(self.readers)}, and {len(self.refused)} refused>"

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self, queue: OpenQueue, topics: Sequence[TopicName]) -> None:
        """Subscribe to all partitions; return when one is attached, and the others are or have had `OTHERS` seconds.

        A topic that is slow, or cannot be found, delays no other. Raises why all are refused, in Mode.EXCLUSIVE also ConsumerBusy
        for one of them: another consumer has it.
        """
        self._queue = queue
        self._check_open()
        self._looking = set(topics)
        self._lookups = [
            start_task(self._look_up(topic), name=f"work queue {self._name}: lookup of {topic}")
            for topic in topics
        ]
        if self._pattern is not None:
            self._looking.add(self._pattern)
            find = self._find(self._pattern)
            self._lookups.append(start_task(find, name=f"work queue {self._name}: lookup of topics"))
        try:
            await self._wait()
        finally:
            self._is_opening = False
        if self._failure is not None:
            raise self._failure
        self._check_open()

    async def _look_up(self, topic: TopicName) -> None:
        """Begin with the partitions of a topic; one that fails is tried again by `watch`."""
        error: Exception | None = None
        try:
            count = await self._core().clusters.partitions_of(topic)
        except Exception as raised:  # noqa: BLE001  `open` raises it, or it is reported
            error = raised
        self._looking.discard(topic)
        if self._is_closed:
            return
        if error is None:
            self._start(((topic, number) for number in (range(count) if count else (-1,))), is_new=False)
        elif self.readers or self._looking:
            self._report(error)
        else:
            self._fail(error)
        self._changed.set()

    async def _find(self, pattern: TopicDiscovery) -> None:
        """Begin with the topics of a pattern that there are."""
        try:
            await pattern.find(self._core())
        except Exception as error:  # noqa: BLE001  `open` raises it
            self._fail(error)
        self._looking.discard(pattern)
        self._changed.set()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"work queue {self._name}: it is closed")

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(None) as limit:
                while (self._starting or self._looking) and self._failure is None and not self._is_closed:
                    if limit.when() is None and any(
                        part.consumer.is_attached for part in self.readers.values()
                    ):
                        limit.reschedule(asyncio.get_running_loop().time() + OTHERS)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass  # the others go on

    async def aclose(self) -> None:
        """End the lookups; wait for the ends of the consumers of refused partitions. The others are closed by the engine."""
        await cancel_and_wait(*self._lookups)
        if self._closes:
            await asyncio.wait(self._closes)

    def end_open(self) -> None:
        """Let `open` raise ClosedError."""
        self._is_closed = True
        for lookup in self._lookups:
            lookup.cancel()
        self._changed.set()

    async def watch(self, topics: Sequence[TopicName]) -> None:
        """Read partitions that are added to a topic, and try those again that were refused."""
        core = self._core()
        while interval := core.config.partitions_update_interval:
            await asyncio.sleep(interval)
            for topic in topics:
                alone = TopicPartition(str(topic), -1)
                if alone in self.readers:
                    continue
                try:
                    count = await core.clusters.partitions_of(topic, create=False)
                except AsyncGroupError as error:
                    self._report(error)
                    continue
                was_found = any(tp.topic == str(topic) for tp in self._begins_early)
                is_single = alone in self._begins_early or not (count or was_found)
                numbers: Iterable[int] = (-1,) if is_single else range(count)
                known = {tp.partition for tp in self.readers if tp.topic == str(topic)}
                self._start(((topic, number) for number in numbers if number not in known), is_new=True)

    async def watch_pattern(self) -> None:
        """Read topics of a pattern that are created, and try those again that were refused."""
        if self._pattern is not None:
            await self._pattern.watch(self._core(), f"work queue {self._name}")

    def _start(self, partitions: Iterable[tuple[TopicName, int]], *, is_new: bool) -> None:
        """Begin to attach partitions; -1 is a topic without any. Each gets its share of the limits, and so do the open ones.

        `is_new`: they were not there when the queue was opened.
        """
        found = list(partitions)
        if not found:
            return
        self._limits.share_by(len(self.readers) + len(found))
        added = [self._add(topic, number, is_new=is_new) for topic, number in found]
        self._share()
        for reader in added:
            self._queue.add(reader.work)
            reader.consumer.start()

    def _add(self, topic: TopicName, number: int, *, is_new: bool) -> QueuePartition:
        tp = TopicPartition(str(topic), number)
        has_copies = tp.topic == self._plan.retry_topic
        reader = QueuePartition(self._queue, self._name, tp, self._limits, self, has_copies=has_copies)
        # a partition that was added later, or a copy, is not skipped
        early = self._begins_early.setdefault(tp, has_copies or is_new)
        reader.consumer = self._consumers.create(
            self._core(),
            topic if number < 0 else topic.of_partition(number),
            reader,
            begins_early=early,
            creates_topic=not self._is_of_pattern(tp),
        )
        self.readers[tp] = reader
        self.refused.pop(tp, None)
        self._starting.add(reader)
        return reader

    def _share(self) -> None:
        self._limits.share_by(len(self.readers))
        for reader in self.readers.values():
            self._consumers.limit(reader.consumer)

    # --- called by the partitions ---------------------------------------------------------------------------------------

    def report(self, error: Exception) -> None:
        """Something failed that is tried again."""
        self._report(error)

    def attached(self, reader: QueuePartition) -> None:
        """A partition is registered at its broker, at first or again."""
        self._unasked[reader] = None
        self._starting.discard(reader)
        self._changed.set()

    def refused_by_broker(self, reader: QueuePartition, error: Exception) -> None:
        """A partition has ended; the others go on. The queue ends with the last one."""
        if self._is_closed:
            return
        if isinstance(error, PulsarServerError) and error.code == _CONSUMER_BUSY:
            busy = ConsumerBusy(self._name, error.text)
            busy.__cause__ = error
            error = busy
        tp = reader.work.tp
        self._drop(reader)
        if self._pattern is not None and self._is_of_pattern(tp):
            self._pattern.on_end(reader.consumer.topic, error)
            if isinstance(error, PulsarServerError) and error.code == ServerError.TOPIC_NOT_FOUND:
                self._begins_early.pop(tp, None)
                self._share()
                self._changed.set()
                return
        self.refused[tp] = error
        is_taken = isinstance(error, ConsumerBusy) and self._settings.mode is Mode.EXCLUSIVE
        is_last = not (self.readers or self._looking) and (self._pattern is None or self._is_opening)
        if is_last or (self._is_opening and is_taken):
            self._fail(error)
        else:
            self._report(error)
            self._share()
        self._changed.set()

    def _drop(self, reader: QueuePartition) -> None:
        """Read a partition no longer."""
        tp = reader.work.tp
        del self.readers[tp]
        self._starting.discard(reader)
        self._unasked.pop(reader, None)
        self._queue.lose(reader.work)
        self._queue.became_inactive(tp)
        close = start_task(reader.consumer.aclose(), name=f"work queue {self._name}: close of {tp}")
        self._closes.add(close)
        close.add_done_callback(self._closes.discard)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        if not self._is_opening:
            self._queue.end(error)

    # --- a pattern ------------------------------------------------------------------------------------------------------

    def _is_of_pattern(self, tp: TopicPartition) -> bool:
        return self._pattern is not None and tp.topic != self._plan.retry_topic

    @property
    def has_no_topics(self) -> bool:
        """Whether there is a list of the topics that match the pattern, and it is empty."""
        pattern = self._pattern
        return pattern is not None and not (self.readers or self._looking or pattern.errors)

    def names_of_pattern(self) -> list[TopicName]:
        """Return the topics and partitions of the pattern that are read."""
        return [reader.consumer.topic for tp, reader in self.readers.items() if self._is_of_pattern(tp)]

    def start_of_pattern(self, names: Iterable[TopicName], *, is_new: bool) -> None:
        """Begin to attach topics and partitions of the pattern."""
        found = [(name.whole, name.partition) for name in names]
        known = self.readers.keys()
        self._start(
            (
                (topic, number)
                for topic, number in found
                if (tp := TopicPartition(str(topic), number)) not in known and self._is_of_pattern(tp)
            ),
            is_new=is_new,
        )

    def drop_deleted(self, names: Iterable[TopicName]) -> None:
        """Topics and partitions of the pattern were deleted, or have ended."""
        errors = {} if self._pattern is None else self._pattern.errors
        for tp in [tp for tp in self.refused if self._is_of_pattern(tp) and _full_name(tp) not in errors]:
            del self.refused[tp]
        for name in names:
            tp = TopicPartition(str(name.whole), name.partition)
            reader = self.readers.get(tp)
            if reader is not None and self._is_of_pattern(tp):
                self._drop(reader)
                self._begins_early.pop(tp, None)
        if self.readers:
            self._share()

    # --- without a receiver queue ---------------------------------------------------------------------------------------

    def unasked(self, reader: QueuePartition) -> None:
        """A partition has no permit at its broker: it is asked when a task waits."""
        self._unasked[reader] = None

    async def watch_demand(self) -> None:
        """Ask for a message when a task waits for one; partitions that were asked before and have sent none are not asked again."""
        if not self._limits.on_demand:
            return
        on_demand = self._queue.on_demand
        while True:
            await on_demand.wait()
            on_demand.clear()
            unasked, self._unasked = self._unasked, {}
            for reader in unasked:
                reader.ask_on_demand()
