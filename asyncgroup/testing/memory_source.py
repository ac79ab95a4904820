"""MemorySource: records in memory as the source of a work queue, to test handlers without a broker."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from asyncgroup.ack_window import AckWindow
from asyncgroup.checks import check_count, check_duration_or_zero, check_group_id, check_topic
from asyncgroup.errors import ConfigError
from asyncgroup.hashing.murmur2 import partition_for_key
from asyncgroup.model import Record, RecordMetadata, TopicPartition
from asyncgroup.workqueue.engine import Engine, EngineFeatures, OutgoingCopy
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.topic_names import DEAD_LETTER_NAMES, RETRY_NAMES, TopicNames, check_copy_topics

if TYPE_CHECKING:
    from asyncgroup.config import ConsumerConfig

__all__ = ["MemoryLog", "MemoryLogs", "MemoryPlan", "MemorySource"]

FEATURES: Final = EngineFeatures(
    modes=tuple(Mode),
    redelivers="queue",
    keeps_key_order="queue",
    counts_deliveries=True,
    copies=True,
    delays=True,
    transactions=False,
    cumulative=True,
    durable=True,
    seek=True,
    offsets=True,
)

_ENGINE: Final = "asyncgroup.testing.memory_engine"  # by name: it imports this file

_RECORDS: Final = "values (bytes or None), pairs of a key and a value, or Record objects"

RecordLike: TypeAlias = bytes | tuple[bytes | None, bytes | None] | Record | None


class MemoryLog:
    """The records of one partition, in offset order, and which of them are acknowledged."""

    def __init__(self, tp: TopicPartition, *, is_retry: bool = False) -> None:
        self.tp = tp
        self.is_retry = is_retry
        """Whether the records are copies in the retry topic."""
        self.records: list[Record] = []
        self.window = AckWindow(0)

    def __repr__(self) -> str:
        return f"<MemoryLog {self.tp}: {len(self.records)} records, {self.window!r}>"

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.records[-1].offset + 1 if self.records else 0

    def append(self, record: Record) -> None:
        """Add a record. Raises ConfigError if its offset is not above those before it."""
        if record.offset < self.end:
            raise ConfigError("records", record, f"offsets of {self.tp} that grow: {self.end} or more")
        self.records.append(record)

    def read(self, position: int, count: int) -> list[Record]:
        """Return at most `count` records from an offset on."""
        first = bisect_left(self.records, position, key=lambda each: each.offset)
        return self.records[first : first + count]


class MemoryLogs:
    """The logs of a MemorySource, what was copied, and the engine that reads."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.reader: Any = None
        """The engine that reads the source now, if one does."""
        self.changed = asyncio.Event()
        self.dead_letters: list[OutgoingCopy] = []
        self.retried: list[OutgoingCopy] = []

    def __repr__(self) -> str:
        return f"<MemoryLogs: {len(self.logs)} partitions>"

    def log(self, tp: TopicPartition, *, is_retry: bool = False) -> MemoryLog:
        """Return the log of a partition, made at the first call."""
        if (log := self.logs.get(tp)) is None:
            log = self.logs[tp] = MemoryLog(tp, is_retry=is_retry)
        return log

    def open(self, reader: Any) -> list[MemoryLog]:
        """Return the logs for an engine that begins to read."""
        self.reader = reader
        return list(self.logs.values())

    def append(self, log: MemoryLog, record: Record) -> None:
        """Add a record; an engine that reads delivers it."""
        log.append(record)
        # before the engine: a task that waits looks at the logs, and not at the queue
        self.changed.set()
        if self.reader is not None:
            self.reader.on_records(log)

    def write_copy(self, copy: OutgoingCopy, *, is_retry: bool) -> RecordMetadata:
        """Write a copy to the retry or dead letter topic."""
        topic, value, key, headers, timestamp = copy
        if not is_retry:
            self.dead_letters.append(copy)
            return RecordMetadata(topic, 0, len(self.dead_letters) - 1, timestamp or -1)
        self.retried.append(copy)
        log = self.log(TopicPartition(topic, 0), is_retry=True)
        record = Record(topic, 0, log.end, -1 if timestamp is None else timestamp, 0, key, value, headers)
        self.append(log, record)
        return RecordMetadata(topic, 0, record.offset, record.timestamp)


class MemorySource:
    """Records in memory, `WorkQueue(MemorySource([b"a", b"b"]), dead_letter=2)`.

        source = MemorySource([b"1", b"2", b"x"])
        async with WorkQueue(source, nack_backoff=0, dead_letter=1) as queue:
            running = asyncio.create_task(queue.run(handle))
            await source.wait_done()                    # all records are acknowledged, or dead letters
        assert [record.value for record in source.acked] == [b"1", b"2", b"x"]
        assert [copy.value for copy in source.dead_letters] == [b"x"]

    The queue delivers as on a consumer group, in all modes, with delays, retry topics and dead letters, in real or virtual time. The
    source keeps what is acknowledged: a further queue on it continues there, with the numbers of deliveries, as after a restart.
    One queue at a time may be open on it.

    `records` are values, pairs of a key and a value, or Record objects, which have topics, partitions and offsets; values and pairs
    are spread over `partitions` of `topic`, by key as Java's producer does, else in turn. `close_timeout` is the time in
    seconds that handlers have when the queue closes. Raises ConfigError.
    """

    def __init__(
        self,
        records: Iterable[RecordLike] = (),
        *,
        topic: str = "memory",
        partitions: int = 1,
        subscription: str = "memory",
        close_timeout: float = 30.0,
    ) -> None:
        check_topic(topic)
        check_count("partitions", partitions)
        self._subscription = check_group_id(subscription)
        check_duration_or_zero("close_timeout", close_timeout)
        self.topic = topic
        self.partitions = partitions
        self.close_timeout = close_timeout
        self._inner = MemoryLogs()
        self.dead_letters = self._inner.dead_letters
        """Copies in the dead letter topic, in the order in which they were written."""
        self.retried = self._inner.retried
        """Copies in the retry topic, in the same way; the queue reads them."""
        for partition in range(partitions):
            self._inner.log(TopicPartition(topic, partition))
        self._turn = 0
        self.add(*_checked(records))

    def __repr__(self) -> str:
        return f"<MemorySource {self.topic!r}: {sum(len(log.records) for log in self._inner.logs.values())} records>"

    # --- records --------------------------------------------------------------------------------------------------------

    def add(self, *records: RecordLike) -> None:
        """Add records at the end; an open queue delivers them. Raises ConfigError for other objects."""
        for each in records:
            record = self._record(each)
            self._inner.append(self._inner.log(TopicPartition(record.topic, record.partition)), record)

    @property
    def acked(self) -> list[Record]:
        """The records that are acknowledged, by partition and offset; those that were copied too, as their originals are."""
        return [
            record
            for _, log in sorted(self._inner.logs.items())
            if not log.is_retry
            for record in log.records
            if record.offset in log.window
        ]

    @property
    def is_done(self) -> bool:
        """Whether every record is acknowledged, copies in the retry topic included."""
        return all(log.window.base >= log.end for log in self._inner.logs.values())

    async def wait_done(self) -> None:
        """Wait until every record is acknowledged, or copied to the dead letter topic."""
        while not self.is_done:
            # after the check: what changes from here on ends the wait
            self._inner.changed.clear()
            await self._inner.changed.wait()

    def _record(self, given: Any) -> Record:
        if isinstance(given, Record):
            return given
        # a tuple of two is a pair; bytes have no parts
        key, value = given if isinstance(given, tuple) and len(given) == 2 else (None, given)
        if not all(isinstance(each, bytes | None) for each in (key, value)):
            raise ConfigError("records", given, _RECORDS)
        # as a producer does: in turn without a key, by its hash with one
        if key is None:
            partition, self._turn = self._turn % self.partitions, self._turn + 1
        else:
            partition = partition_for_key(key, self.partitions)
        tp = TopicPartition(self.topic, partition)
        return Record(self.topic, partition, self._inner.log(tp).end, key=key, value=value)

    # --- Source ---------------------------------------------------------------------------------------------------------

    @property
    def features(self) -> EngineFeatures:
        """Everything but transactions."""
        return FEATURES

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._subscription

    def plan(self, settings: QueueSettings) -> MemoryPlan:
        """Return the plan of a queue with these settings. Raises ConfigError for topics of copies that are not allowed."""
        retry, policy = settings.retry, settings.dead_letter_policy
        retry_topic = None if retry is None else retry.topic or self._name(RETRY_NAMES, retry.names)
        dead_letter_topic = (
            None if policy is None else policy.topic or self._name(DEAD_LETTER_NAMES, policy.names)
        )
        for name in (retry_topic, dead_letter_topic):
            if name is not None:
                check_topic(name)
        sources = {log.tp.topic for log in self._inner.logs.values() if not log.is_retry}
        check_copy_topics(sources, retry_topic, dead_letter_topic)
        return MemoryPlan(self, retry_topic, dead_letter_topic)

    def _name(self, presets: Any, names: TopicNames) -> str:
        made: str = (presets[names] if isinstance(names, str) else names)(self.topic, self._subscription)
        return made


class MemoryPlan(NamedTuple):
    """A source that was checked for a queue."""

    source: MemorySource
    retry_topic: str | None
    dead_letter_topic: str | None

    @property
    def config(self) -> ConsumerConfig | None:
        """None: there is no consumer group."""
        return None

    async def load_engine(self) -> type[Engine]:
        """Return the class of the engine."""
        engine: type[Engine] = import_module(_ENGINE).MemoryEngine
        return engine


def _checked(records: Any) -> Iterable[RecordLike]:
    # bytes would be taken for a list of numbers
    if isinstance(records, str | bytes) or not isinstance(records, Iterable):
        raise ConfigError("records", records, f"a list of {_RECORDS}")
    return records
