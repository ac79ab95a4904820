"""Transactions in one partition's log: the last stable offset, aborted transactions, markers, fencing."""

from __future__ import annotations

import pytest

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import ControlType, read_control_type
from tests.broker.batches import append, batch, offsets, sequenced
from tests.broker.transactional import Writer, transactional

LIMIT = 1 << 20


@pytest.fixture
def log() -> PartitionLog:
    return PartitionLog("t", 0)


def test_the_last_stable_offset_is_where_the_oldest_open_transaction_begins(log):
    first, second = Writer(log, 1), Writer(log, 2)
    append(log, batch(b"plain"), 0)
    assert log.last_stable_offset == log.high_watermark == 1
    first.write(b"a")
    second.write(b"b", b"c")
    first.write(b"d")
    assert (log.last_stable_offset, log.high_watermark) == (1, 5)
    first.commit()
    assert (log.last_stable_offset, log.high_watermark) == (2, 6)
    first.write(b"e")
    assert log.last_stable_offset == 2
    second.abort()
    assert log.last_stable_offset == 6  # the first one's new transaction
    first.abort()
    assert log.last_stable_offset == log.high_watermark == 9


def test_reading_up_to_the_last_stable_offset(log):
    append(log, batch(b"plain"), 0)
    writer = Writer(log, 1)
    writer.write(b"a")
    end = log.last_stable_offset
    assert offsets(log.read(0, LIMIT, end=end)) == [(0, 0)]
    assert offsets(log.read(0, 1, at_least_one=True, end=end)) == [(0, 0)]
    assert log.read(1, LIMIT, at_least_one=True, end=end) == b""
    assert log.bytes_from(0, end) == len(log.read(0, LIMIT, end=end))
    assert log.bytes_from(1, end) == 0 < log.bytes_from(1)
    assert offsets(log.read(0, LIMIT)) == [(0, 0), (1, 1)]


def test_a_marker_is_a_control_batch_that_clients_can_read(log):
    writer = Writer(log, 7)
    writer.write(b"a")
    assert writer.abort() == 1
    data = log.read(1, LIMIT)
    (marker,) = iter_batches(data)
    assert marker.is_control
    assert marker.is_transactional
    assert (marker.base_offset, marker.record_count, marker.producer_id) == (1, 1, 7)
    assert (marker.producer_epoch, marker.base_sequence) == (0, -1)
    assert read_control_type(marker) is ControlType.ABORT
    assert [record.value for record in read_records(log)] == [b"a"]


def test_aborted_transactions_that_overlap_a_read(log):
    one, two = Writer(log, 1), Writer(log, 2)
    one.write(b"a")  # 0
    two.write(b"b")  # 1
    one.abort()  # 2
    two.write(b"c")  # 3
    one.write(b"d")  # 4
    two.abort()  # 5
    one.commit()  # 6
    one.write(b"e")  # 7
    one.abort()  # 8

    def listed(offset: int, end: int) -> list[tuple[int, ...]]:
        data = log.read(offset, LIMIT, end=end)
        return [tuple(aborted) for aborted in log.aborted_transactions(offset, data)]

    first, second, third = (1, 0, 2), (2, 1, 5), (1, 7, 8)
    assert listed(0, 9) == [first, second, third]
    assert listed(0, 1) == [first]
    assert listed(0, 2) == [first, second]
    assert listed(3, 6) == [second]
    assert listed(3, 9) == [second, third]
    assert listed(6, 7) == []
    assert listed(8, 9) == [third]
    assert log.aborted_transactions(9, b"") == []


def test_a_marker_without_records_changes_no_state(log):
    Writer(log, 1).abort()
    assert log.end_offset == log.last_stable_offset == 1
    assert log.aborted_transactions(0, log.read(0, LIMIT)) == []
    append(log, transactional(b"a", producer_id=1), 0)


def test_sequence_numbers_go_on_after_a_marker_of_the_same_epoch(log):
    writer = Writer(log, 1)
    writer.write(b"a", b"b")
    writer.commit()
    with pytest.raises(AppendError) as caught:
        append(log, transactional(b"x", producer_id=1, sequence=5), 0)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert writer.write(b"c") == 3
    again = transactional(b"c", producer_id=1, sequence=2)
    assert append(log, again, 0) == (3, 3, True, 1000)


def test_sequence_numbers_restart_after_a_marker_of_a_newer_epoch(log):
    """This happens after fencing, and with every transaction under KIP-890."""
    writer = Writer(log, 1)
    writer.write(b"a", b"b")
    log.append_marker(ControlType.ABORT, 1, 1, 0)
    assert log.last_stable_offset == log.end_offset
    for epoch, sequence, code in (
        (0, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, 2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ):
        with pytest.raises(AppendError) as caught:
            append(log, transactional(b"c", producer_id=1, epoch=epoch, sequence=sequence), 0)
        assert caught.value.code is code
    append(log, transactional(b"c", producer_id=1, epoch=1), 0)
    with pytest.raises(AppendError) as caught:
        log.append_marker(ControlType.COMMIT, 1, 0, 0)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_nontransactional_batch_within_a_transaction_is_refused(log):
    Writer(log, 1).write(b"a")
    with pytest.raises(AppendError) as caught:
        append(log, sequenced(1, producer_id=1), 0)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    assert log.producers.is_open(1, 0)
    assert not log.producers.is_open(1, 1)
    assert not log.producers.is_open(2, 0)
