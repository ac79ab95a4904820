"""Random changes of logs (transactions, truncation, retention, recreation), with a record of their content over time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from uuid import UUID

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.broker.metadata.topics import Partition
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import BatchBuilder, ControlType
from tests.broker.batches import append
from tests.broker.internals import complete_delayed_operations, controller_of, partition_in

__all__ = ["RandomLogs"]


class RandomLogs:
    """Writes records with unique values to the partitions of a cluster, and tracks all their past content.

    `written` holds all values that an offset ever had, `empty` the offsets that at some time had no record to deliver:
    a transaction marker, or a record of an aborted transaction. `committed_values` are all values ever committed.
    """

    def __init__(self, cluster: EmbeddedCluster, rng: random.Random, *, committed_only: bool) -> None:
        self.cluster = cluster
        self.rng = rng
        self._committed_only = committed_only
        self.written: defaultdict[TopicPartition, defaultdict[int, set[bytes]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self.empty: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        self.committed_values: set[bytes] = set()
        self._records = 0
        self._producers = 1 << 20
        self._open: dict[TopicPartition, tuple[int, int, list[tuple[int, bytes]]]] = {}
        """The open transaction of each partition: producer id, next sequence number, its records so far."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(name, number) for name, number in self._places()]

    def _places(self) -> Iterator[tuple[str, int]]:
        for name, topic in sorted(controller_of(self.cluster).topics.items()):
            if not topic.is_internal:
                yield from ((name, partition.index) for partition in topic.partitions)

    def partition_of(self, tp: TopicPartition) -> Partition:
        return partition_in(self.cluster, *tp)

    def topic_id(self, tp: TopicPartition) -> UUID:
        """Return the id of the current topic of this name."""
        return self.cluster.topic(tp.topic).id

    # --- writing ------------------------------------------------------------------------------------------------

    def append(self, tp: TopicPartition, records: int, size: int = 0, producer: int = -1) -> None:
        """Append a batch with this number of records; `producer` is the producer id of its transaction, -1 for none."""
        place, sequence = self.partition_of(tp), self._open[tp][1] if producer >= 0 else -1
        builder = BatchBuilder(
            self.rng.choice(["none", "none", "gzip"]),
            1 << 30,
            transactional=producer >= 0,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )
        values = []
        for _ in range(records):
            self._records += 1
            values.append(b"%08d" % self._records + self.rng.randbytes(size))
            assert builder.append(1000, None, values[-1])
        first = append(place.log, builder.build(), place.leader_epoch).base_offset
        for offset, value in enumerate(values, first):
            self.written[tp][offset].add(value)
        if producer >= 0:
            self._open[tp][2].extend(enumerate(values, first))
            self._open[tp] = (producer, sequence + records, self._open[tp][2])
        else:
            self.committed_values.update(values)
        self._wake(place)

    def begin(self, tp: TopicPartition, records: int) -> None:
        """Append a batch to the partition's transaction; begin one if none is open."""
        if tp not in self._open:
            self._producers += 1
            self._open[tp] = (self._producers, 0, [])
        self.append(tp, records, producer=self._open[tp][0])

    def end(self, tp: TopicPartition, *, commit: bool) -> None:
        """End the partition's transaction, if one is open."""
        if tp not in self._open:
            return
        producer, _, records = self._open.pop(tp)
        self._mark_end(tp, producer, commit=commit)
        if commit:
            self.committed_values.update(value for _, value in records)
        else:
            self._aborted(tp, [offset for offset, _ in records])

    def _mark_end(self, tp: TopicPartition, producer: int, *, commit: bool) -> None:
        place = self.partition_of(tp)
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        offset = place.log.append_marker(kind, producer, 0, place.leader_epoch).base_offset
        self.empty[tp].add(offset)
        self._wake(place)

    def _aborted(self, tp: TopicPartition, offsets: list[int]) -> None:
        if self._committed_only:
            self.empty[tp].update(offsets)

    def _wake(self, place: Partition) -> None:
        complete_delayed_operations(self.cluster, place)

    # --- deleting -----------------------------------------------------------------------------------------------

    def truncate(self, tp: TopicPartition, offset: int, leader: int) -> int | None:
        """Truncate the log at the batch with `offset`, aborting its transaction; return the new end, None if unchanged."""
        log = self.partition_of(tp).log
        bases = [
            batch.base_offset for batch in log.segments.batch_index.batches if batch.base_offset <= offset
        ]
        if not bases or bases[-1] < log.start_offset or offset >= log.end_offset:
            return None
        self.end(tp, commit=False)
        self.cluster.truncate(*tp, offset, leader)
        self._abort_reopened(tp)
        return bases[-1]

    def _abort_reopened(self, tp: TopicPartition) -> None:
        """Abort transactions whose markers were truncated, as their coordinator would do."""
        log = self.partition_of(tp).log
        for producer in list(log.producers._open):
            records = [offset for offset, _, one in self._batches(tp) if one == producer]
            self._mark_end(tp, producer, commit=False)
            self._aborted(tp, records)

    def delete_records(self, tp: TopicPartition, offset: int) -> None:
        """Delete the records before `offset`, as retention does."""
        log = self.partition_of(tp).log
        log.start_offset = max(log.start_offset, min(offset, log.last_stable_offset))

    def recreate(self, topic: str, partitions: int) -> None:
        """Delete a topic and create it again."""
        for tp in [tp for tp in self._open if tp.topic == topic]:
            del self._open[tp]
        self.cluster.delete_topic(topic)
        self.cluster.create_topic(topic, partitions)

    def forget_open(self, topic: str) -> None:
        """Drop the open transactions of a topic that is deleted."""
        for tp in [tp for tp in self._open if tp.topic == topic]:
            del self._open[tp]

    # --- reading -----------------------------------------------------------------------------------------------

    def _batches(self, tp: TopicPartition) -> Iterator[tuple[int, bytes, int]]:
        """Yield offset, value and producer id (-1 outside of transactions) of every record in the log."""
        log = self.partition_of(tp).log
        producers = {}
        for stored in log.segments.batch_index.batches:
            batch = stored.read()
            for offset in range(batch.base_offset, batch.next_offset):
                producers[offset] = batch.producer_id if batch.is_transactional else -1
        for record in read_records(log):
            assert record.value is not None
            yield record.offset, record.value, producers[record.offset]

    def expected(self, tp: TopicPartition) -> dict[int, bytes]:
        """Return the records, by offset, that a reader must receive from the current log."""
        log = self.partition_of(tp).log
        aborted = {
            (one.producer_id, offset)
            for one in log._aborted
            for offset in range(one.first_offset, one.last_offset)
        }
        end = log.last_stable_offset if self._committed_only else log.end_offset
        return {
            offset: value
            for offset, value, producer in self._batches(tp)
            if log.start_offset <= offset < end
            and not (self._committed_only and (producer, offset) in aborted)
        }

    def finish(self) -> None:
        """End all transactions, then append two records to every partition."""
        for tp in self.partitions:
            self.end(tp, commit=self.rng.random() < 0.5)
        for tp in self.partitions:
            self.append(tp, 2)
