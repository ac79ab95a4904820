"""DeleteRecords, retention and compaction of one log, each by itself; `test_log_model` tests combinations."""

from __future__ import annotations

import math

import pytest

from asyncgroup.broker.errors import AppendError, KafkaStorageError, PartitionError
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.record_reader import find_timestamp, latest_timestamp, read_records
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.batch_view import iter_batches
from tests.broker.batches import append, batch, keyed, offsets, sequenced
from tests.broker.transactional import Writer

LIMIT = 1 << 20
DAY = 86_400_000


def contents(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in read_records(log)]


def headers(log: PartitionLog):
    position, found = log.start_offset, []
    while data := log.read(position, LIMIT, at_least_one=True):
        assert all(one.crc_is_valid() for one in iter_batches(data))
        found += list(iter_batches(bytes(data)))
        position = found[-1].next_offset
    return found


# -- DeleteRecords -------------------------------------------------------------------------------------------


def test_records_are_deleted_up_to_an_offset(log):
    for _ in range(4):
        append(log, batch(b"a", b"b"), 0)
    assert log.delete_records(3) == 3
    assert (log.start_offset, log.end_offset) == (3, 8)
    assert [record.offset for record in read_records(log)] == [3, 4, 5, 6, 7]
    assert offsets(log.read(3, LIMIT)) == [(2, 3), (4, 5), (6, 7)], "whole batches are returned"
    with pytest.raises(PartitionError):
        log.check_offset(2)
    assert log.delete_records(1) == 3, "the log start offset never moves back"
    assert log.delete_records(-1) == 8
    assert (contents(log), log.size, log.end_offset) == ([], 0, 8)
    assert append(log, batch(b"c"), 0).base_offset == 8


@pytest.mark.parametrize("offset", [-2, 3])
def test_delete_records_out_of_range(log, offset):
    append(log, batch(b"a", b"b"), 0)
    with pytest.raises(PartitionError) as caught:
        log.delete_records(offset)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_timestamps_and_epochs_begin_where_the_log_does(log):
    log.start_epoch(0)
    append(log, batch(b"a", b"b", timestamp=500, step=10), 0)
    log.start_epoch(3)
    append(log, batch(b"c", timestamp=100), 3)
    log.delete_records(1)
    found = find_timestamp(log, 0)
    assert found is not None
    assert (found.offset, log.first_epoch(), log.epochs) == (1, 0, [(0, 1), (3, 2)])
    log.delete_records(2)
    latest = latest_timestamp(log)
    assert latest is not None
    assert (latest.offset, log.epochs) == (2, [(3, 2)])


def test_the_last_stable_offset_is_not_before_the_log_start(log):
    Writer(log, 1).write(b"a", b"b")
    append(log, batch(b"c"), 0)
    log.delete_records(2)
    assert (log.last_stable_offset, log.high_watermark) == (2, 3)


# -- retention -----------------------------------------------------------------------------------------------


def segmented(*timestamps: int) -> PartitionLog:
    """Return a log with one batch in each segment."""
    log = PartitionLog("t", 0)
    for timestamp in timestamps:
        log.roll()
        append(log, batch(b"v", timestamp=timestamp), 0)
    return log


def test_old_segments_are_deleted_from_the_front():
    log = segmented(100, 200, 900, 300)
    assert log.delete_old_segments(1000, 700, -1) == 2
    assert (log.start_offset, log.end_offset) == (2, 4), "an old segment after a younger one is kept"
    assert log.delete_old_segments(1000, 700, -1) == 0


def test_the_active_segment_is_deleted_only_with_all_others(log):
    append(log, batch(b"v", timestamp=100), 0)
    append(log, batch(b"v", timestamp=900), 0)
    assert log.delete_old_segments(1000, 500, -1) == 0
    assert log.delete_old_segments(1401, 500, -1) == 1
    assert (log.start_offset, log.end_offset, log.size) == (2, 2, 0)
    assert append(log, batch(b"w"), 0).base_offset == 2
    assert log.delete_old_segments(10**9, -1, -1) == 0, "-1: no limit"


def test_retention_bytes_deletes_whole_segments():
    log = segmented(*range(5))
    one = log.size // 5
    assert log.delete_old_segments(0, -1, 3 * one + 1) == 1, (
        "segments are deleted only while at least retention_bytes remain"
    )
    assert log.delete_old_segments(0, -1, 3 * one + 1) == 0
    assert log.delete_old_segments(0, -1, 3 * one) == 1
    assert log.start_offset == 2
    assert log.delete_old_segments(0, -1, 0) == 3
    assert (log.start_offset, log.size) == (5, 0)


def test_segments_before_the_log_start_are_always_deleted():
    log = segmented(1, 2, 3)
    log.delete_records(2)
    assert len(log.segments) == 3
    assert log.delete_old_segments(10, -1, -1) == 2
    assert len(log.segments) == 1


def test_segments_roll_by_size_and_age(log):
    log.segments.segment_bytes = 2 * len(batch(b"v"))
    for timestamp in (100, 200, 300):
        append(log, batch(b"v", timestamp=timestamp), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    log.segments.segment_ms = 50
    append(log, batch(b"v", timestamp=351), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]


# -- compaction ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compaction_keeps_the_last_record_of_each_key(log, codec):
    append(log, keyed((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), codec=codec), 0)
    append(log, keyed((b"a", b"4"), (None, b"no key"), (b"c", b"5"), codec=codec), 0)
    append(log, keyed((b"d", b"6"), codec=codec), 0)
    log.compact(DAY, DAY)
    assert contents(log) == [(1, b"b", b"2"), (3, b"a", b"4"), (5, b"c", b"5"), (6, b"d", b"6")]
    assert offsets(log.read(0, LIMIT)) == [(0, 2), (3, 5), (6, 6)], "batches keep their offsets"
    assert [list(record.headers) for record in read_records(log)] == [[("h", b"x")]] * 4
    assert [record.timestamp for record in read_records(log)] == [1001, 1000, 1002, 1000]
    assert {header.codec for header in headers(log)} == {headers(log)[0].codec}
    assert log.end_offset == 7
    assert append(log, batch(b"x"), 0).base_offset == 7


def test_reading_over_a_gap(log):
    for number in range(6):
        append(log, keyed((b"a" if number < 5 else b"b", b"%d" % number)), 0)
    log.compact(DAY, DAY)
    assert contents(log) == [(4, b"a", b"4"), (5, b"b", b"5")]
    for offset in range(5):
        log.check_offset(offset)
        assert offsets(log.read(offset, LIMIT)) == [(4, 4), (5, 5)]
        assert log.bytes_from(offset) == log.size
    found = find_timestamp(log, 0)
    assert found is not None
    assert found.offset == 4


def test_the_active_segment_is_not_cleaned(log):
    append(log, keyed((b"a", b"1"), (b"a", b"2")), 0)
    log.clean(DAY, log.to_clean(DAY, 0).end_offset, DAY)
    assert len(contents(log)) == 2
    log.roll()
    append(log, keyed((b"a", b"3")), 0)
    before = log.size
    log.clean(DAY, log.to_clean(DAY, 0).end_offset, DAY)
    assert contents(log) == [(1, b"a", b"2"), (2, b"a", b"3")], "keys of the active segment are ignored"
    assert log.size < before


def test_young_segments_are_not_cleaned():
    log = segmented(100, 200, 900)
    log.roll()
    log.clean(1000, log.to_clean(1000, 500).end_offset, DAY)
    assert [offset for offset, _, _ in contents(log)] == [1, 2]


def test_a_tombstone_is_kept_until_its_delete_horizon(log):
    append(log, keyed((b"a", b"1"), timestamp=10**6), 0)
    append(log, keyed((b"a", None), (b"b", b"2"), timestamp=10**6), 0)
    now = 10**7
    log.compact(now, 5000)
    assert contents(log) == [(1, b"a", None), (2, b"b", b"2")]
    assert [header.delete_horizon for header in headers(log)] == [now + 5000]
    assert [record.timestamp for record in read_records(log)] == [10**6, 10**6 + 1], (
        "the records' timestamps, not the delete horizon"
    )
    log.compact(now + 4999, 5000)
    assert len(contents(log)) == 2
    log.compact(now + 5000, 5000)
    assert contents(log) == [(2, b"b", b"2")]
    assert log.end_offset == 3


def test_small_segments_are_merged():
    log = segmented(*range(10))
    log.roll()
    log.compact(DAY, DAY)
    assert len(log.segments) == 2
    assert [offset for offset, _, _ in contents(log)] == [9]


# -- compaction and producers --------------------------------------------------------------------------------


def test_the_last_sequence_number_of_a_producer_is_kept(log):
    for number in range(3):
        append(log, sequenced(number), 0)
    append(log, batch(b"other"), 0)  # the same key
    log.compact(2000, DAY)
    assert [(h.base_offset, h.record_count, h.base_sequence) for h in headers(log)] == [(2, 0, 2), (3, 1, -1)]
    assert append(log, sequenced(3), 0).base_offset == 4
    with pytest.raises(AppendError):
        append(log, sequenced(5), 0)


def test_producers_expire_after_a_day(log):
    append(log, sequenced(0), 0)
    append(log, batch(b"other"), 0)
    log.compact(1000 + DAY, DAY)
    assert [h.base_offset for h in headers(log)] == [1]
    append(log, sequenced(17), 0)


def test_aborted_records_are_removed_and_then_their_marker(log):
    writer = Writer(log, 1)
    writer.write(b"a")  # 0
    writer.abort()  # 1
    writer.write(b"b")  # 2
    writer.commit()  # 3
    append(log, keyed((b"else", b"c")), 0)  # 4
    now = 10_000
    log.compact(now, 100)
    assert contents(log) == [(2, b"k", b"b"), (4, b"else", b"c")]
    assert [h.base_offset for h in headers(log)] == [1, 2, 3, 4], "the first pass keeps the marker"
    assert log.aborted_transactions(0, log.read(0, LIMIT)) == [(1, 0, 1)]
    log.compact(now, 100)
    assert log.aborted_transactions(0, log.read(0, LIMIT)) == [], "none of its records is left"
    assert [h.base_offset for h in headers(log)] == [1, 2, 3, 4], "the marker now has a delete horizon"
    log.compact(now + 100, 100)
    assert [h.base_offset for h in headers(log)] == [2, 3, 4]


def test_an_aborted_record_does_not_replace_an_older_one(log):
    append(log, batch(b"committed"), 0)
    writer = Writer(log, 1)
    writer.write(b"aborted")
    writer.abort()
    log.compact(DAY // 2, DAY)
    assert contents(log) == [(0, b"k", b"committed")]


def test_unstable_records_are_not_cleaned(log):
    append(log, keyed((b"a", b"1")), 0)
    log.roll()
    append(log, keyed((b"a", b"2")), 0)
    Writer(log, 1).write(b"open")
    append(log, keyed((b"a", b"3")), 0)
    log.compact(DAY // 2, DAY)
    assert [offset for offset, _, _ in contents(log)] == [0, 1, 2, 3], (
        "offset 1 is in the same segment as the open transaction"
    )


def test_dirty_ratio():
    log = segmented(1, 2, 3)
    assert log.to_clean(DAY, 0).ratio == 1.0
    log.roll()
    log.compact(DAY, DAY)
    assert log.to_clean(DAY, 0)[1:] == (log.size, 0, math.inf)
    append(log, batch(b"v", timestamp=7), 0)
    assert log.to_clean(DAY, 0).ratio == 0.0, "the active segment cannot be cleaned"
    log.roll()
    assert log.to_clean(DAY, 0)[2:] == (log.size // 2, 7)
    assert log.to_clean(DAY, 0).ratio == 0.5
    assert log.to_clean(DAY, DAY - 7).ratio == 0.5
    assert log.to_clean(DAY, DAY - 6).ratio == 0.0, "the segment is too young"
    Writer(log, 1).write(b"open")
    log.roll()
    append(log, batch(b"v", timestamp=8), 0)
    log.roll()
    assert log.to_clean(DAY, 0).ratio == 0.5, "unstable records cannot be cleaned"
    log.truncate(2)
    append(log, batch(b"v", timestamp=9), 0)
    log.roll()
    assert log.to_clean(DAY, 0).ratio == 1.0, "the cleaned part has been deleted"


def test_a_log_that_starts_within_its_active_segment_has_nothing_to_clean(log):
    append(log, keyed((b"a", b"1")), 0)
    append(log, keyed((b"a", b"2")), 0)
    log.delete_records(1)
    found = log.to_clean(DAY, 0)
    assert found[1:] == (0, 0, math.inf)
    log.clean(DAY, found.end_offset, DAY)
    assert len(headers(log)) == 1


def test_a_disk_error_during_cleaning_leaves_a_readable_log(log, monkeypatch):
    log.segments.segment_bytes = 1
    for number in range(6):
        append(log, keyed((b"a", b"%d" % number), (b"k%d" % number, b"x")), 0)
    rewrite, calls = log.segments.store.rewrite, []

    def fail(old, batches):
        calls.append(1)
        if len(calls) == 3:
            raise OSError("no space")
        return rewrite(old, batches)

    monkeypatch.setattr(log.segments.store, "rewrite", fail)
    with pytest.raises(KafkaStorageError):
        log.compact(DAY, DAY)
    assert [offset for offset, _, _ in contents(log)] == [1, 3, *range(4, 12)]
    log.compact(DAY, DAY)
    assert [offset for offset, _, _ in contents(log)] == [1, 3, 5, 7, 9, 10, 11]


def test_the_last_batch_before_the_active_segment_is_kept_even_if_empty(log):
    append(log, keyed((b"a", b"1")), 0)
    append(log, keyed((None, b"no key"), (None, b"no key")), 0)
    log.compact(DAY, DAY)
    assert [(h.base_offset, h.last_offset, h.record_count) for h in headers(log)] == [(0, 0, 1), (1, 2, 0)]
    append(log, keyed((b"b", b"2")), 0)
    log.compact(DAY, DAY)
    assert [(h.base_offset, h.record_count) for h in headers(log)] == [(0, 1), (3, 1)]


def test_truncation_does_not_go_before_the_log_start(log):
    append(log, batch(b"a", b"b", b"c"), 0)
    log.delete_records(1)
    log.truncate(2)
    assert (log.start_offset, log.end_offset, log.size) == (1, 1, 0)
    assert append(log, batch(b"d"), 0).base_offset == 1
    assert [record.value for record in read_records(log)] == [b"d"]


def test_truncation_recomputes_segment_sizes():
    log = segmented(1, 2, 3)
    append(log, batch(b"v"), 0)
    size = log.size
    log.truncate(2)
    assert (log.end_offset, len(log.segments), log.size) == (2, 3, size // 2)
    append(log, batch(b"w", timestamp=50), 0)
    assert [segment.max_timestamp for segment in log.segments] == [1, 2, 50]
    log.truncate(1)
    assert [segment.base_offset for segment in log.segments] == [0, 1]
