"""Random operations on a partition's log and on a model of it, a list of records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from asyncgroup.broker.log.file_segments import FileStore
from asyncgroup.broker.log.open_files import OpenFiles
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.record_reader import (
    decode_stored_batch,
    find_timestamp,
    latest_timestamp,
    read_records,
)
from asyncgroup.broker.log.recovery import recover
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import BatchBuilder, ControlType, decode_batch, read_control_type
from tests.broker.batches import append

__all__ = ["NOW", "Driver", "FileLog", "MemoryLog", "operations"]

NOW = 1_000_000_000
KEYS = [b"a", b"b", b"c", b"d"]
RETENTION = 100_000


@dataclass
class ModelRecord:
    """A record of the model."""

    offset: int
    key: bytes
    value: bytes | None
    producer: int
    state: str
    """`open`, `committed` or `aborted`."""
    end: int = -1
    """The offset of its transaction's marker, -1 if there is none."""


class MemoryLog:
    """A log in memory; reopening has no effect."""

    def __init__(self, segment_bytes: int) -> None:
        self.log = PartitionLog("t", 0)
        self.log.segments.segment_bytes = segment_bytes

    def reopen(self) -> None:
        pass

    def close(self) -> None:
        pass


class FileLog:
    """A log in files; `start` is the log start offset that the metadata log would store."""

    def __init__(self, segment_bytes: int, directory: Path) -> None:
        self.files = OpenFiles(max_open=3)
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.start = 0
        self.log = self._empty()

    def _empty(self) -> PartitionLog:
        log = PartitionLog("t", 0)
        log.segments.segment_bytes = self.segment_bytes
        log.segments.store = FileStore(self.files, self.directory, self._moved)
        return log

    def _moved(self, offset: int) -> None:
        self.start = offset

    def reopen(self) -> None:
        """Reopen the log as after kill -9, without closing the old one."""
        self.files.close()
        epochs = self.log.epochs
        self.log = self._empty()
        found = recover(self.files, self.directory)
        self.log.restore(found.segments, found.batches, start_offset=self.start, epochs=epochs)

    def close(self) -> None:
        self.files.close()


@dataclass
class Driver:
    """Applies operations to a log and to the model, and compares them."""

    place: MemoryLog | FileLog
    model: list[ModelRecord] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)
    end: int = 0
    now: int = NOW
    cleaned: bool = False

    @property
    def log(self) -> PartitionLog:
        return self.place.log

    # -- operations ----------------------------------------------------------------------------------------------

    def append(self, producer: int, codec: str, records: list[tuple[int, int]], transactional: bool) -> None:
        """Append records of a producer (-1: without producer id); value 0 is a tombstone."""
        if producer < 0:
            transactional = False
        elif self.is_open(producer):
            transactional = True
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        builder = BatchBuilder(
            codec,
            1 << 20,
            transactional=transactional,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )
        for number, (key, value) in enumerate(records):
            data = b"%d" % value * 20 if value else None
            builder.append(self.now, KEYS[key], data, [("h", b"%d" % value)])
            state = "open" if transactional else "committed"
            self.model.append(ModelRecord(self.end + number, KEYS[key], data, producer, state))
        appended = append(self.log, builder.build(), 0)
        assert (appended.base_offset, appended.duplicate) == (self.end, False)
        self.end += len(records)
        if producer >= 0:
            self.sequences[producer] = sequence + len(records)
        self.now += 1000

    def is_open(self, producer: int) -> bool:
        return any(one.producer == producer and one.state == "open" for one in self.model)

    def finish(self, producer: int, commit: bool) -> None:
        """Append a marker, also for a producer that wrote nothing."""
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        self.log.append_marker(kind, producer, 0, 0, timestamp=self.now)
        for one in self.model:
            if one.producer == producer and one.state == "open":
                one.state, one.end = "committed" if commit else "aborted", self.end
        self.end += 1
        self.now += 1000

    def delete_records(self, share: int) -> None:
        """Delete `share` percent of the stable part of the log."""
        offset = self.log.start_offset + (self.log.last_stable_offset - self.log.start_offset) * share // 100
        assert self.log.delete_records(offset) == offset
        self._starts_at(offset)

    def delete_old_segments(self, retention_ms: int, retention_bytes: int) -> None:
        if any(one.state == "open" for one in self.model):
            return  # the model does not cover open transactions whose first records are deleted
        self.log.delete_old_segments(self.now, retention_ms, retention_bytes)
        self._starts_at(self.log.start_offset)
        if retention_bytes >= 0:
            assert self.log.size <= retention_bytes + 2 * self.log.segments.segment_bytes

    def _starts_at(self, offset: int) -> None:
        self.model = [one for one in self.model if one.offset >= offset]

    def compact(self, passed: int) -> None:
        """Advance the time by `passed` ms, then compact."""
        self.now += passed
        table = self.table()
        stable = self.log.last_stable_offset
        tombstones = {one.key for one in self.model if one.value is None}
        self.log.compact(self.now, RETENTION)
        left = self.visible()
        self.model = [one for one in self.model if one.offset in left or one.offset >= stable]
        after = self.table()
        assert {k: v for k, v in after.items() if v is not None} == {
            k: v for k, v in table.items() if v is not None
        }
        assert set(table) - set(after) <= tombstones, "only keys with a tombstone may disappear"
        self.cleaned = True

    def truncate(self, share: int) -> None:
        """Truncate the log at `share` percent; skipped after a compaction."""
        if self.cleaned or not self.model:
            return
        offset = self.log.start_offset + (self.end - self.log.start_offset) * share // 100
        self.log.truncate(offset)
        self.end = self.log.end_offset
        self.model = [one for one in self.model if one.offset < self.end]
        for one in self.model:
            if one.end >= self.end:
                one.state, one.end = "open", -1
        counts = {one.producer: 0 for one in self.model}
        self.sequences = {p: self._next_sequence(p) for p in counts if p >= 0}

    def _next_sequence(self, producer: int) -> int:
        entry = self.log.producers._producers.get(producer)
        return entry.batches[-1].last_sequence + 1 if entry is not None and entry.batches else 0

    # -- checks --------------------------------------------------------------------------------------------------

    def visible(self) -> set[int]:
        return {record.offset for record in read_records(self.log)}

    def table(self) -> dict[bytes, bytes | None]:
        """Return the newest committed value of each key."""
        return {one.key: one.value for one in self.model if one.state == "committed"}

    def check(self) -> None:
        log = self.log
        assert log.end_offset == self.end
        expected = [(one.offset, one.key, one.value) for one in self.model if one.state != "aborted"]
        found = [(r.offset, r.key, r.value) for r in read_records(log)]
        everything = {(one.offset, one.key, one.value) for one in self.model}
        assert set(found) <= everything
        assert found == sorted(found, key=lambda one: one[0])
        if not self.cleaned:
            assert found == sorted(everything, key=lambda one: one[0])
        open_offsets = [one.offset for one in self.model if one.state == "open"]
        assert log.last_stable_offset == min([*open_offsets, self.end])
        stable = log.last_stable_offset
        committed = [one for one in expected if one[0] < stable]
        self.check_timestamps()
        for limit in (200, 1 << 20):
            assert self.read_committed(limit) == committed

    def check_timestamps(self) -> None:
        """Compare the timestamp lookups of ListOffsets with a scan of all records."""
        log = self.log
        every = [
            record
            for batch in log.segments.batch_index.batches
            for record in decode_stored_batch(log, batch, markers=True)
        ]
        there = [record for record in every if record.offset >= log.start_offset]
        for wanted in {0, NOW, NOW + 3000, *(record.timestamp + 1 for record in there[::5])}:
            assert find_timestamp(log, wanted) == next((r for r in there if r.timestamp >= wanted), None)
        newest = max((record.timestamp for record in there), default=None)
        assert latest_timestamp(log) == next((r for r in there if r.timestamp == newest), None)

    def read_committed(self, limit: int) -> list[tuple[int, bytes | None, bytes | None]]:
        """Read the log as a read_committed client does (KIP-98)."""
        log, position, stable = self.log, self.log.start_offset, self.log.last_stable_offset
        found = []
        while True:
            data = log.read(position, limit, at_least_one=True, end=stable)
            assert len(data) <= log.bytes_from(position, stable)
            if not data:
                return found
            coming = sorted(log.aborted_transactions(position, data), key=lambda one: one.first_offset)
            aborting: set[int] = set()
            for batch in iter_batches(data):
                while coming and coming[0].first_offset <= batch.last_offset:
                    aborting.add(coming.pop(0).producer_id)
                if batch.is_control:
                    if read_control_type(batch) is ControlType.ABORT:
                        aborting.discard(batch.producer_id)
                elif batch.record_count and not (batch.is_transactional and batch.producer_id in aborting):
                    records = decode_batch("t", 0, batch)
                    found += [(r.offset, r.key, r.value) for r in records if r.offset >= position]
                assert batch.next_offset > position
                position = batch.next_offset


def operations() -> st.SearchStrategy[Callable[[Driver], None]]:
    """Return a strategy of single operations on a log."""
    record = st.tuples(st.integers(0, len(KEYS) - 1), st.integers(0, 9))
    producer = st.sampled_from([1, 2])
    codec = st.sampled_from(["none", "none", "none", "gzip", "snappy", "lz4", "zstd"])
    return st.one_of(
        *[
            st.builds(
                lambda *args: lambda d: d.append(*args),
                st.sampled_from([-1, -1, 1, 2]),
                codec,
                st.lists(record, min_size=1, max_size=4),
                st.booleans(),
            )
        ]
        * 4,
        st.builds(lambda *args: lambda d: d.finish(*args), producer, st.booleans()),
        st.builds(lambda share: lambda d: d.delete_records(share), st.integers(0, 60)),
        st.builds(
            lambda *args: lambda d: d.delete_old_segments(*args),
            st.sampled_from([-1, 5000, 20_000, 10**9]),
            st.sampled_from([-1, 0, 600, 5000]),
        ),
        st.builds(lambda passed: lambda d: d.compact(passed), st.sampled_from([0, 1, RETENTION + 1])),
        st.builds(lambda share: lambda d: d.truncate(share), st.integers(50, 100)),
        st.just(lambda d: d.log.roll()),
        st.just(lambda d: d.place.reopen()),
    )
