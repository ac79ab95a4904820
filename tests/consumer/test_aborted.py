"""Records of a `read_committed` reader, for random interleavings of producers and random fetch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.broker.log.control_batches import control_batch
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.decoding import AbortedTransactions
from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import BatchView, assign_offsets, update_crc
from asyncgroup.wire.records import ControlType
from tests.broker.batches import append, batch
from tests.broker.transactional import Writer, transactional
from tests.consumer.support import TP, make_consumer, pop
from tests.profiles import examples

pytestmark = pytest.mark.real

LIMIT = 1 << 20
ListedTransaction = m.FetchResponse.AbortedTransaction


class Step(NamedTuple):
    """One step of the log's history: producer 1, 2 or 3 writes inside or outside a transaction, or ends it."""

    producer: int
    what: str
    count: int


steps = st.lists(
    st.builds(
        Step,
        st.integers(1, 3),
        st.sampled_from(["write", "write", "plain", "idempotent", "commit", "abort"]),
        st.integers(1, 3),
    ),
    max_size=40,
)


class Model:
    """A log and the visibility of its offsets: what a reader has to get, computed without the log's transaction index."""

    def __init__(self, made: list[Step]) -> None:
        self.log = PartitionLog("orders", 3)
        self.writers = {number: Writer(self.log, number) for number in (1, 2, 3)}
        self.open: dict[int, list[int]] = {}
        self.visible: list[int] = []
        self.aborted: list[tuple[int, int, int]] = []
        for step in made:
            self._do(step)

    def _do(self, step: Step) -> None:
        writer = self.writers[step.producer]
        values = [b"%d" % step.producer] * step.count
        pending = self.open.get(step.producer)
        offsets = range(self.log.end_offset, self.log.end_offset + step.count)
        if step.what == "write":
            writer.write(*values)
            self.open.setdefault(step.producer, []).extend(offsets)
        elif step.what in ("commit", "abort"):
            if step.what == "commit":
                writer.commit()
                self.visible += pending or []
            else:
                marker = writer.abort()
                if pending:
                    self.aborted.append((step.producer, pending[0], marker))
            self.open.pop(step.producer, None)
        else:
            if step.what == "plain" or pending:
                append(self.log, batch(*values), 0)
            else:
                writer.write_plain(*values)
            self.visible += offsets

    @property
    def stable(self) -> int:
        return min((offsets[0] for offsets in self.open.values()), default=self.log.end_offset)

    def seen_from(self, offset: int) -> list[int]:
        return [seen for seen in sorted(self.visible) if offset <= seen < self.stable]


def answers(log: PartitionLog, buffer: RecordBuffer, sizes: Iterator[int]) -> None:
    """Fetch to the end, in steps of the next size in bytes and at least one batch."""
    end = log.last_stable_offset
    while buffer.fetch_offset < end:
        offset = buffer.fetch_offset
        data = log.read(offset, next(sizes), at_least_one=True, end=end)
        # brokers may list them in any order
        listed = [
            ListedTransaction(one.producer_id, one.first_offset)
            for one in reversed(log.aborted_transactions(offset, data))
        ]
        buffer.add(data, zero_copy=True, aborted=listed)
        assert buffer.fetch_offset > offset


def handed_out(buffer: RecordBuffer) -> list[int]:
    found = []
    while buffer.decoded or buffer.advance():
        if (record := pop(buffer)) is not None:
            found.append(record.offset)
    return found


def cycle(sizes: list[int]) -> Iterator[int]:
    while True:
        yield from sizes


@settings(max_examples=examples(300), deadline=None)
@given(steps, st.lists(st.integers(1, 400), min_size=1, max_size=5), st.data())
def test_exactly_the_committed_records_are_handed_out(made, sizes, data):
    model = Model(made)
    log = model.log
    assert log.last_stable_offset == model.stable
    start = data.draw(st.integers(0, log.end_offset), label="start")
    buffer = RecordBuffer(TP, start, check_crcs=True)
    answers(log, buffer, cycle(sizes))
    end = max(start, model.stable)
    assert buffer.fetch_offset == end
    last = max((offset for offset in model.seen_from(start)), default=start - 1)
    assert last < buffer.records_end <= end
    assert handed_out(buffer) == model.seen_from(start)
    assert buffer.position == end


@settings(max_examples=examples(200), deadline=None)
@given(steps, st.data())
def test_a_broker_lists_the_aborted_transactions_of_a_fetch(made, data):
    model = Model(made)
    log = model.log
    start = data.draw(st.integers(0, log.end_offset), label="start")
    read = log.read(start, data.draw(st.integers(1, 1000), label="bytes"), at_least_one=True)
    buffer = RecordBuffer(TP, start, check_crcs=True)
    buffer.add(read, zero_copy=True)
    end = buffer.fetch_offset
    listed = [tuple(one) for one in log.aborted_transactions(start, read)]
    expected = [one for one in model.aborted if one[2] >= start and one[1] < end] if read else []
    assert listed == expected


@settings(max_examples=examples(100), deadline=None)
@given(steps)
def test_read_uncommitted_gets_all_records_but_no_markers(made):
    model = Model(made)
    log = model.log
    buffer = RecordBuffer(TP, 0, check_crcs=True)
    while buffer.fetch_offset < log.end_offset:
        buffer.add(log.read(buffer.fetch_offset, LIMIT), zero_copy=True)
    everything = model.visible + [offset for offsets in model.open.values() for offset in offsets]
    gone = [record.offset for record in read_records(log)]
    assert handed_out(buffer) == gone
    assert set(everything) <= set(gone)


def test_an_unreadable_marker_is_an_error():
    bad = bytearray(control_batch(ControlType.ABORT, 1, 0))
    bad[65] = 0x7E  # the length of its key
    update_crc(bad)
    aborted = AbortedTransactions([ListedTransaction(1, 0)], check_crcs=True)
    with pytest.raises(CorruptRecordsError, match="control batch at offset 0"):
        aborted.advance_to(BatchView(bytes(bad)))


@pytest.mark.parametrize("check_crcs", [True, False])
def test_a_batch_with_a_wrong_checksum_is_not_hidden(check_crcs):
    """Its header cannot be trusted: the batch may belong to any producer. Without checksum checks it is trusted."""
    bad = bytearray(transactional(b"lost", producer_id=1))
    marker = bytearray(control_batch(ControlType.ABORT, 1, 0))
    assign_offsets(marker, 1, 0)
    for data in (bad, marker):
        data[20] ^= 1  # in the checksum
    buffer = RecordBuffer(TP, 0, check_crcs=check_crcs)
    buffer.add(bytes(bad + marker), zero_copy=True, aborted=[ListedTransaction(1, 0)])
    assert buffer.fetch_offset == 2
    assert bool(buffer) is check_crcs
    if check_crcs:
        with pytest.raises(CorruptRecordsError, match="CRC"):
            buffer.advance()
        buffer.seek(1)
        buffer.add(bytes(marker), zero_copy=True)
        with pytest.raises(CorruptRecordsError, match="CRC"):
            buffer.advance()


def test_a_commit_marker_does_not_end_an_aborted_transaction():
    """A list with a too early first offset is the broker's mistake; Kafka's client treats it the same way."""
    log = PartitionLog("orders", 3)
    writer = Writer(log, 1)
    writer.write(b"a")
    writer.commit()
    writer.write(b"b")
    buffer = RecordBuffer(TP, 0, check_crcs=True)
    buffer.add(log.read(0, LIMIT), zero_copy=True, aborted=[ListedTransaction(1, 0)])
    assert handed_out(buffer) == []


def test_the_marker_of_an_empty_transaction_before_an_aborted_one():
    """Batches are looked at ahead to find runs; the marker ends no transaction that begins after it."""
    log = PartitionLog("orders", 3)
    writer = Writer(log, 1)
    writer.write_plain(b"seen")
    writer.abort()
    for value in (b"a", b"b", b"c"):
        writer.write(value)
    writer.abort()
    writer.write_plain(b"seen")
    buffer = RecordBuffer(TP, 0, check_crcs=True)
    answers(log, buffer, cycle([LIMIT]))
    assert handed_out(buffer) == [0, 6]


# -- positions and lag -------------------------------------------------------------------------------------------------


def consumer_of(log: PartitionLog, offset: int = 0):
    """Return a `read_committed` consumer after one response, and the list of ranges that it skipped."""
    consumer = make_consumer(offset, config=ConsumerConfig(isolation_level="read_committed"))
    passed: list[tuple[int, int, int]] = []
    consumer._inner.listener.on_skipped_range = lambda *gap: passed.append(gap)
    feed(consumer, log)
    return consumer, passed


def feed(consumer, log: PartitionLog) -> None:
    offset, end = consumer._inner.fetch_offset, log.last_stable_offset
    data = log.read(offset, LIMIT, end=end)
    aborted = [ListedTransaction(*one[:2]) for one in log.aborted_transactions(offset, data)]
    consumer._inner.fetched(
        FetchedRecords(data, log.high_watermark, 0, zero_copy=True, last_stable_offset=end, aborted=aborted)
    )


async def test_lag_counts_up_to_the_last_stable_offset():
    log = PartitionLog("orders", 3)
    writer = Writer(log, 1)
    append(log, batch(b"a", b"b"), 0)
    writer.write(b"c", b"d")
    consumer, passed = consumer_of(log)
    assert (consumer.high_watermark, consumer.last_stable_offset, consumer.lag) == (4, 2, 2)
    assert [(await anext(consumer)).offset for _ in range(2)] == [0, 1]
    assert (consumer.lag, passed) == (0, [])
    writer.abort()
    feed(consumer, log)
    assert (consumer.high_watermark, consumer.last_stable_offset) == (5, 5)
    assert (consumer.position, consumer.lag, passed) == (5, 0, [(2, 5, 0)])


async def test_only_a_skipped_range_at_the_end_is_reported():
    """A marker between records is not reported: the records after it will be marked."""
    log = PartitionLog("orders", 3)
    writer = Writer(log, 1)
    writer.write(b"a")
    writer.commit()
    writer.write(b"b")
    writer.commit()
    consumer, passed = consumer_of(log)
    assert passed == [(3, 4, 0)]
    assert [(await anext(consumer)).offset for _ in range(2)] == [0, 2]
    assert consumer.position == 4


async def test_lag_of_a_read_uncommitted_reader_counts_up_to_the_high_watermark(consumer):
    consumer._inner.fetched(FetchedRecords(batch(b"a"), 3, 0, zero_copy=True, last_stable_offset=1))
    assert consumer.lag == 3
