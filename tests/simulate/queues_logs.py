"""The logs of a run of work queues, decoded once: records by offset, and their copies in other topics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from asyncgroup import Record, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.workqueue.copies import DLQ_DELIVERY_COUNT, deliver_at, earlier_attempts
from tests.broker.internals import controller_of
from tests.simulate.queues_setting import DEAD_TOPIC, RETRY_TOPIC

__all__ = ["Logs"]


class Logs:
    """Reads the replicated records of a cluster; `topics` are those of the queues, without their copies."""

    def __init__(self, cluster: Callable[[], EmbeddedCluster], topics: Mapping[str, int]) -> None:
        self._cluster = cluster
        self._topics = [*topics, RETRY_TOPIC]
        self._records: dict[TopicPartition, list[Record]] = defaultdict(list)
        self._offsets: dict[tuple[TopicPartition, bytes | None], list[int]] = defaultdict(list)
        self._retried: dict[bytes, int] = {}  # by value: the largest number of deliveries before a copy
        self._dead: dict[bytes, list[int]] = {}  # by value: the delivery counts of its dead letters

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic, none if it does not exist."""
        cluster = self._cluster()
        if topic not in controller_of(cluster).topics:
            return []
        return [TopicPartition(topic, one.partition) for one in cluster.topic(topic).partitions]

    @property
    def sources(self) -> list[TopicPartition]:
        """The partitions that the queues read."""
        return [tp for topic in self._topics for tp in self.partitions(topic)]

    def end(self, tp: TopicPartition) -> int:
        """Return the offset after the last replicated record."""
        return self._cluster().partition(*tp).high_watermark

    def _read(self, tp: TopicPartition) -> list[Record]:
        known = self._records[tp]
        if len(known) < (end := self.end(tp)):
            for record in self._cluster().records(*tp)[len(known) : end]:
                assert record.offset == len(known)
                known.append(record)
                self._offsets[tp, None].append(record.offset)
                if record.key is not None:
                    self._offsets[tp, record.key].append(record.offset)
                self._note(record)
        return known

    def _note(self, record: Record) -> None:
        value = record.value or b""
        if record.topic == RETRY_TOPIC:
            self._retried[value] = max(self._retried.get(value, 0), earlier_attempts(record))
        if record.topic == DEAD_TOPIC:
            self._dead.setdefault(value, []).append(int(dict(record.headers)[DLQ_DELIVERY_COUNT] or b"0"))

    def _record(self, tp: TopicPartition, offset: int) -> Record | None:
        known = self._records[tp]
        if offset >= len(known):
            known = self._read(tp)
        return known[offset] if offset < len(known) else None

    def value(self, tp: TopicPartition, offset: int) -> bytes:
        """Return a record's value."""
        record = self._record(tp, offset)
        return b"" if record is None else record.value or b""

    def offsets(self, tp: TopicPartition, key: bytes | None) -> list[int]:
        """Return the offsets of all records with a key; None: of all."""
        self._read(tp)
        return self._offsets[tp, key]

    def reconsumed(self, tp: TopicPartition, offset: int) -> int:
        """Return how often a record was delivered before this copy in the retry topic; 0 elsewhere."""
        record = self._record(tp, offset) if tp.topic == RETRY_TOPIC else None
        return 0 if record is None else earlier_attempts(record)

    def due(self, tp: TopicPartition, offset: int) -> int | None:
        """Return the delivery time of a copy in the retry topic, in ms."""
        record = self._record(tp, offset) if tp.topic == RETRY_TOPIC else None
        return None if record is None else deliver_at(record)

    def is_copied(self, tp: TopicPartition, offset: int, *, is_dead: bool | None = None) -> bool:
        """Return whether the record has a dead letter, or a copy in the retry topic with more deliveries than itself."""
        value = self.value(tp, offset)
        for topic in (RETRY_TOPIC, DEAD_TOPIC):
            for other in self.partitions(topic):
                self._read(other)
        is_retried = self._retried.get(value, 0) > self.reconsumed(tp, offset)
        if is_dead is not None:
            return value in self._dead if is_dead else is_retried
        return value in self._dead or is_retried

    def dead_letters(self) -> Mapping[bytes, list[int]]:
        """Return the delivery counts of the dead letters of each value."""
        for tp in self.partitions(DEAD_TOPIC):
            self._read(tp)
        return self._dead
