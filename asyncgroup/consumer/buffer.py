"""What a partition holds between the fetch and its reader: whole record batches, decoded one at a time.

Pure state without any waiting.
"""

from __future__ import annotations

from collections import deque

from asyncgroup.consumer.taken import Chunk, Taken
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import Record, TopicPartition
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, check_batch, decode_batch, iter_batch_headers

__all__ = ["RecordBuffer"]


class RecordBuffer:
    """A queue of undecoded record batches, with the rest of the one that is being read in front.

    `fetch_offset` is the next offset to ask the broker for; `bytes` is what waits, a batch counting whole until its
    last record is handed out. `decoded` holds the rest of the batch in front in reverse order, so that its `pop()` is
    the next record: whoever calls that itself (the iterator, which has no time to lose) calls `release` behind the
    last one.
    """

    __slots__ = (
        "_check_crcs",
        "_chunks",
        "_floor",
        "_size",
        "_tp",
        "_undecoded",
        "bytes",
        "decoded",
        "fetch_offset",
        "turns",
    )

    def __init__(self, tp: TopicPartition, offset: int, check_crcs: bool) -> None:
        self._tp, self._check_crcs = tp, check_crcs
        self.turns = 0
        self._chunks: deque[Chunk] = deque()
        self.seek(offset)

    def __repr__(self) -> str:
        return f"<RecordBuffer {self._tp}: {self.records} records, {self.bytes} bytes, at {self.position}>"

    def seek(self, offset: int) -> None:
        """Drop everything and go on at `offset`."""
        self._chunks.clear()
        self.decoded: list[Record] = []
        self._size = self._undecoded = 0
        self.bytes = 0
        self.fetch_offset = self._floor = offset
        self.turns += 1

    def __bool__(self) -> bool:
        return bool(self.decoded or self._chunks)

    @property
    def records(self) -> int:
        """Records that wait; of undecoded batches as their headers count them, too many after a compaction."""
        return len(self.decoded) + self._undecoded

    @property
    def position(self) -> int:
        """The offset of the next record to hand out; gaps of compaction and transaction markers are passed over."""
        if self.decoded:
            return self.decoded[-1].offset
        if not self._chunks:
            return self.fetch_offset
        header = self._chunks[0].header
        # an old compressed message set is known by its last offset only
        return max(self._floor, header.base_offset) if header.magic >= 2 else self._floor

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever a record is handed out; read by a timer, so that nobody has to count records."""
        return self.turns, len(self.decoded)

    def add(self, data: Buffer, *, own: bool) -> None:
        """Take in the record batches of one response; control batches (transaction markers) are passed over.

        `own` says that the response holds this partition alone; otherwise `data` is copied, so that a slow
        partition does not keep the whole response in memory. Raises CorruptRecordsError for bytes that are no
        batches; what stood before them is taken in.
        """
        view = memoryview(data if own else bytes(data))
        for header in iter_batch_headers(view):
            if header.magic >= 2:
                if header.last_offset_delta < 0 or header.record_count < 0:
                    # it would be passed over as an old one, and be fetched again and again
                    raise CorruptRecordsError(f"batch at offset {header.base_offset}: impossible counts")
                if header.next_offset <= self.fetch_offset:
                    continue
            if header.magic < 2 or not header.is_control:
                self._chunks.append(Chunk(header, view[header.start : header.start + header.size]))
                self.bytes += header.size
                self._undecoded += header.record_count
            self.fetch_offset = max(self.fetch_offset, header.next_offset)

    def pop(self) -> Record | None:
        """The next record of the batch in front, None if it has no more (then `advance`)."""
        if not self.decoded:
            return None
        record = self.decoded.pop()
        if not self.decoded:
            self.release()
        return record

    def release(self) -> None:
        """The last record of the batch in front was handed out: its bytes count no more."""
        self.bytes -= self._size
        self._size = 0

    def advance(self) -> bool:
        """Decode the next batch when the one in front is used up; False if there is none.

        The batch may turn out to hold nothing of ours. Raises CorruptRecordsError or UnsupportedVersionError; the
        batch then stays where it is.
        """
        if not self._chunks:
            return False
        header, data = self._chunks[0]
        records = decode_batch(self._tp.topic, self._tp.partition, data, header, self._check_crcs)
        self._chunks.popleft()
        self._undecoded -= header.record_count
        self._size = header.size
        self.turns += 1
        end = max(header.next_offset, records[-1].offset + 1 if records else 0)
        # a fetch in the middle of a batch returns all of it: what lies before the asked offset is not ours
        if records and records[0].offset < self._floor:
            records = [record for record in records if record.offset >= self._floor]
        self._floor = max(self._floor, end)
        records.reverse()
        self.decoded = records
        if not records:
            self.release()
        return True

    def take(self, max_records: int, max_bytes: int) -> Taken:
        """Up to `max_records` records of up to `max_bytes` wire bytes, at least one if any waits.

        Bytes are counted by record batches: a batch that would go beyond the limit stays for the next call.
        Raises as `advance` does, if nothing could be taken before.
        """
        taken = Taken(self._tp)
        used = self._size
        while (room := max_records - len(taken)) > 0:
            if not self.decoded:
                if not self._chunks or (taken and used + self._chunks[0].header.size > max_bytes):
                    break
                used += self._chunks[0].header.size
                try:
                    self._next_within(room, taken)
                except Exception:
                    if taken:
                        break  # hand out the good records first; the next call meets the bad batch
                    raise
            else:
                self._take_decoded(room, taken)
        return taken

    def _next_within(self, room: int, taken: Taken) -> None:
        """Hand the batch in front out as it is if nothing has to be left out of it, else decode it."""
        header, data = self._chunks[0]
        if header.record_count > room or not self._is_ours_alone(header):
            self.advance()
            return
        check_batch(*self._tp, data, header, self._check_crcs)
        taken.add_chunk(self._chunks.popleft())
        self._undecoded -= header.record_count
        self.bytes -= header.size
        self._floor = header.next_offset
        self.turns += 1

    def _is_ours_alone(self, header: BatchHeader) -> bool:
        """Whether every offset of a batch has a record, and none lies before the asked one."""
        whole = header.magic >= 2 and header.record_count == header.last_offset_delta + 1
        return whole and header.base_offset >= self._floor

    def _take_decoded(self, room: int, taken: Taken) -> None:
        part = self.decoded[-room:]
        del self.decoded[-room:]
        part.reverse()
        taken.add_records(part)
        if not self.decoded:
            self.release()
