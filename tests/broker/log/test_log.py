"""A partition's log: appends, reads, timestamps, leader epochs, idempotent producers."""

from __future__ import annotations

import itertools
import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asyncgroup.broker.errors import AppendError, PartitionError
from asyncgroup.broker.log import record_reader
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.producer_state import ProducerStateManager
from asyncgroup.broker.log.record_reader import find_timestamp, latest_timestamp, read_records
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.batch_view import BatchView, batch_at
from tests.broker.batches import append, batch, offsets, sequenced, with_crc
from tests.broker.transactional import transactional


def log_with(*counts: int) -> PartitionLog:
    log = PartitionLog("t", 0)
    for count in counts:
        append(log, batch(*(b"x" * 10 for _ in range(count))), 0)
    return log


# -- appending -----------------------------------------------------------------------------------------------


def test_offsets_count_records(log):
    assert append(log, batch(b"a", b"b", b"c"), 0) == (0, 2, False, 1000)
    assert append(log, batch(b"d"), 0) == (3, 3, False, 1000)
    assert (log.start_offset, log.end_offset, log.high_watermark) == (0, 4, 4)
    assert [(r.offset, r.value) for r in read_records(log)] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert [r.offset for r in read_records(log, 2)] == [2, 3]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_keep_their_codec(log, codec):
    data = batch(*[b"abc" * 100] * 5, codec=codec)
    append(log, data, 3)
    found = batch_at(log.read(0, 1 << 20))
    assert found is not None
    assert found.size == len(data)
    assert found.leader_epoch == 3
    assert [r.value for r in read_records(log)] == [b"abc" * 100] * 5
    assert {r.leader_epoch for r in read_records(log)} == {3}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch()[:40], ErrorCode.INVALID_RECORD),
        (batch()[:-1], ErrorCode.INVALID_RECORD),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (batch()[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (batch()[:16] + b"\x09" + batch()[17:], ErrorCode.CORRUPT_MESSAGE),
        (batch()[:16] + b"\x01" + batch()[17:], ErrorCode.INVALID_RECORD),
        (with_crc(batch(), 57, struct.pack(">i", 2)), ErrorCode.INVALID_RECORD),  # record count
        (with_crc(batch(), 57, struct.pack(">i", 0)), ErrorCode.INVALID_RECORD),
        (with_crc(batch(), 23, struct.pack(">i", 5)), ErrorCode.INVALID_RECORD),  # last offset delta
        (with_crc(batch(), 21, struct.pack(">h", 0x20)), ErrorCode.INVALID_RECORD),  # control
        (
            with_crc(batch(), 43, struct.pack(">q", 5)),
            ErrorCode.INVALID_RECORD,
        ),  # producer id without sequence
    ],
)
def test_refused_settings(log, data, error):
    with pytest.raises(AppendError) as caught:
        append(log, data, 0)
    assert caught.value.code == error
    assert (log.end_offset, log.size) == (0, 0)


def test_a_batch_above_max_message_bytes(log):
    largest = len(batch(b"x" * 100))
    append(log, batch(b"x" * 100), 0, max_batch_bytes=largest)
    with pytest.raises(AppendError) as caught:
        append(log, batch(b"x" * 101), 0, max_batch_bytes=largest)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


# -- reading -------------------------------------------------------------------------------------------------


def test_a_read_starts_with_the_batch_that_holds_the_offset():
    log = log_with(3, 2, 4)
    assert offsets(log.read(0, 1 << 20)) == [(0, 2), (3, 4), (5, 8)]
    assert offsets(log.read(2, 1 << 20)) == [(0, 2), (3, 4), (5, 8)]
    assert offsets(log.read(4, 1 << 20)) == [(3, 4), (5, 8)]
    assert offsets(log.read(8, 1 << 20)) == [(5, 8)]
    assert log.read(9, 1 << 20) == b""


def test_a_read_gives_whole_batches_only():
    log = log_with(1, 1, 1)
    size = log.size // 3
    assert offsets(log.read(0, 3 * size)) == [(0, 0), (1, 1), (2, 2)]
    assert offsets(log.read(0, 3 * size - 1)) == [(0, 0), (1, 1)]
    assert offsets(log.read(0, size)) == [(0, 0)]
    assert log.read(0, size - 1) == b""
    assert offsets(log.read(0, 0, at_least_one=True)) == [(0, 0)]
    assert offsets(log.read(1, 1, at_least_one=True)) == [(1, 1)]


def test_bytes_from_an_offset():
    log = log_with(2, 3, 1)
    assert log.bytes_from(0) == log.bytes_from(1) == log.size
    assert log.bytes_from(5) == len(log.read(5, 1 << 20))
    assert log.bytes_from(6) == 0


@pytest.mark.parametrize(("offset", "fits"), [(-1, False), (0, True), (3, True), (4, False)])
def test_offset_out_of_range(offset, fits):
    log = log_with(3)
    if fits:
        log.check_offset(offset)
    else:
        with pytest.raises(PartitionError) as caught:
            log.check_offset(offset)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_read_data_does_not_change_while_the_log_grows():
    log = log_with(1)
    view = log.read(0, 1 << 20)
    before = bytes(view)
    for _ in range(2000):
        append(log, batch(b"y" * 500), 0)
    assert bytes(view) == before
    with pytest.raises(TypeError):
        view[0] = 1


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from([1, 300, 9000, 40_000])), min_size=1, max_size=25
    ),
    limit=st.sampled_from([1, 200, 10_000, 100_000, 1 << 22]),
)
def test_consecutive_reads_return_every_record_once(sizes, limit):
    log = PartitionLog("t", 0)
    expected = []
    for number, (count, size) in enumerate(sizes):
        values = [b"%d-%d-" % (number, i) + b"z" * size for i in range(count)]
        append(log, batch(*values), 0)
        expected += values
    assert [r.value for r in read_records(log)] == expected
    position, found = 0, []
    while position < log.end_offset:
        data = log.read(position, limit, at_least_one=True)
        headers = offsets(data)
        assert headers[0][0] <= position <= headers[0][1]
        assert len(data) <= limit or len(headers) == 1
        found += headers
        position = headers[-1][1] + 1
    assert found == sorted(set(found))
    assert found[0][0] == 0
    assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(found))


# -- timestamps ----------------------------------------------------------------------------------------------


def test_looking_up_timestamps(log):
    assert find_timestamp(log, 0) is None
    assert latest_timestamp(log) is None
    append(log, batch(b"a", b"b", b"c", timestamp=100, step=10), 0)  # 100, 110, 120
    append(log, batch(b"d", b"e", timestamp=90, step=60), 0)  # 90, 150
    append(log, batch(b"f", timestamp=150), 0)
    found = {
        wanted: getattr(find_timestamp(log, wanted), "offset", None)
        for wanted in (0, 100, 101, 120, 121, 151)
    }
    assert found == {0: 0, 100: 0, 101: 1, 120: 2, 121: 4, 151: None}
    latest = latest_timestamp(log)
    assert latest is not None
    assert (latest.offset, latest.timestamp) == (4, 150)


def test_a_timestamp_lookup_does_not_visit_every_batch(log, monkeypatch):
    """Neither the lookup by time nor that of the latest timestamp; ListOffsets runs them on large logs."""
    for number in range(3000):
        append(log, batch(b"a", timestamp=number if number % 3 else 5), 0)
    decoded, looked_at = [], 0

    class Watched(list):
        def __iter__(self):
            nonlocal looked_at
            looked_at += len(self)
            return super().__iter__()

        def __getitem__(self, place):
            nonlocal looked_at
            looked_at += 1
            return super().__getitem__(place)

    monkeypatch.setattr(log.segments.batch_index, "batches", Watched(log.segments.batch_index.batches))
    decode = record_reader.decode_stored_batch
    monkeypatch.setattr(
        record_reader,
        "decode_stored_batch",
        lambda log, one, **kw: decoded.append(one.base_offset) or decode(log, one, **kw),
    )
    for wanted, offset in ((0, 0), (6, 7), (2000, 2000), (2999, 2999), (3000, None)):
        assert getattr(find_timestamp(log, wanted), "offset", None) == offset
    assert latest_timestamp(log).offset == 2999
    assert decoded == [0, 7, 2000, 2999, 2999]
    assert looked_at < 20


def in_transaction(producer_id: int) -> BatchView:
    """A batch of one record in a transaction of this producer."""
    return BatchView(transactional(b"v", producer_id=producer_id))


def test_the_cost_of_the_last_stable_offset_does_not_depend_on_the_order_of_transactions():
    """Ending transactions in the order in which they began costs no more than in reverse order."""

    def drain(order) -> float:
        states = ProducerStateManager()
        for producer_id in range(40_000):
            states.update(in_transaction(producer_id), producer_id)
        began = time.thread_time()
        for number, producer_id in enumerate(order, 1):
            states.end_transaction(producer_id, 0, 40_000 + number, committed=True)
            _ = states.first_unstable_offset
        assert states.first_unstable_offset is None
        return time.thread_time() - began

    assert in_transaction(0).is_transactional
    assert drain(range(40_000)) < 6 * drain(range(39_999, -1, -1))


def test_ended_transactions_take_no_memory_while_an_older_one_is_open():
    states = ProducerStateManager()
    states.update(in_transaction(1), 0)
    for number in range(1, 1000):
        states.update(in_transaction(2), 2 * number)
        assert states.first_unstable_offset == 0
        states.end_transaction(2, 0, 2 * number + 1, committed=True)
    assert len(states._begun) < 100
    states.update(in_transaction(3), 3000)
    states.end_transaction(1, 0, 4000, committed=True)
    assert states.first_unstable_offset == 3000


# -- leader epochs -------------------------------------------------------------------------------------------


def test_where_leader_epochs_end(log):
    log.start_epoch(0)
    append(log, batch(b"a", b"b"), 0)
    log.start_epoch(2)  # epoch 1 never appended
    append(log, batch(b"c"), 2)
    log.start_epoch(5)
    assert log.epochs == [(0, 0), (2, 2), (5, 3)]
    ends = {epoch: log.end_offset_for_epoch(epoch) for epoch in (-1, 0, 1, 2, 3, 4, 5, 6)}
    assert ends == {
        -1: (-1, -1),
        0: (0, 2),
        1: (0, 2),
        2: (2, 3),
        3: (2, 3),
        4: (2, 3),
        5: (5, 3),
        6: (-1, -1),
    }
    assert log.first_epoch() == 0


def test_an_epoch_without_records_is_replaced_by_the_next(log):
    for epoch in range(4):
        log.start_epoch(epoch)
    assert log.epochs == [(3, 0)]
    assert log.end_offset_for_epoch(2) == (2, 0)


# -- idempotent producers ------------------------------------------------------------------------------------


def refused(log: PartitionLog, data: bytes) -> ErrorCode:
    with pytest.raises(AppendError) as caught:
        append(log, data, 0)
    return caught.value.code


def test_a_duplicate_batch_keeps_its_offset(log):
    sent = [sequenced(number * 3, 3) for number in range(5)]
    for data in sent:
        append(log, data, 0)
    for number, data in enumerate(sent):
        assert append(log, data, 0) == (number * 3, number * 3 + 2, True, 1000)
    assert log.end_offset == 15


def test_an_old_duplicate_is_out_of_order(log):
    for number in range(6):
        append(log, sequenced(number), 0)
    assert refused(log, sequenced(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_gaps_are_refused(log):
    append(log, sequenced(0, 2), 0)
    assert refused(log, sequenced(3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, sequenced(2), 0)


def test_an_unknown_producer_may_start_with_any_sequence_number(log):
    append(log, sequenced(17, producer_id=8), 0)
    append(log, sequenced(18, producer_id=8), 0)
    assert [record.offset for record in read_records(log)] == [0, 1]


def test_epochs_of_a_producer(log):
    append(log, sequenced(0, epoch=1), 0)
    assert refused(log, sequenced(1, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(log, sequenced(1, epoch=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, sequenced(0, epoch=2), 0)
    append(log, sequenced(1, epoch=2), 0)
    assert refused(log, sequenced(1, epoch=1)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequence_numbers_wrap_around():
    log = PartitionLog("t", 0)
    append(log, sequenced(2**31 - 2, 3), 0)  # 2**31 - 2, 2**31 - 1, 0
    assert refused(log, sequenced(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, sequenced(1), 0)
    log = PartitionLog("t", 0)
    append(log, sequenced(2**31 - 1), 0)
    append(log, sequenced(0), 0)
