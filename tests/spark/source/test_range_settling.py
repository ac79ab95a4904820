"""What a range does about the errors for which its partition is not fetched; pure state, without a broker."""

from __future__ import annotations

import logging
import uuid

import pytest

from asyncgroup.columns import RecordColumns
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import EpochEndOffset, FetchedRecords
from asyncgroup.consumer.offset_resets import LogRange
from asyncgroup.consumer.validation import complete_validation
from asyncgroup.errors import (
    BrokerError,
    ErrorCode,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.errors import DataLossError
from asyncgroup.spark.source.executor.range_progress import LEAST_FETCH, RangeProgress, Sizes
from asyncgroup.wire.messages import NO_UUID
from tests.consumer.support import batch
from tests.spark.source.reading import TOPIC, part

TP = TopicPartition(TOPIC, 0)
IDS = [uuid.UUID(int=number) for number in (1, 2)]
OUT_OF_RANGE = OffsetOutOfRangeError("not in the log")


def make(
    start: int = 10, end: int = 40, topic_id: uuid.UUID = NO_UUID, *, fail: bool = False
) -> RangeProgress:
    return RangeProgress(part(start, end), ConsumerConfig(), topic_id=topic_id, fail_on_data_loss=fail)


def fetched(progress: RangeProgress, first: int, count: int, **log: int) -> None:
    """Give a range the records of a response."""
    before = progress.fetch_offset
    records = FetchedRecords(batch(first, count=count, epoch=3), 100, log.get("start", 0), zero_copy=True)
    progress.partition.fetched(records)
    progress.answered(records, before, 1.0)


def recover(progress: RangeProgress, error: Exception, log: LogRange | None = None) -> None:
    progress.partition.fail(error)
    progress.recover(log)


@pytest.mark.parametrize(
    ("log", "lost", "goes_on_at"),
    [
        (LogRange(25, 90), "[10, 25)", 25),
        (LogRange(40, 90), "[10, 40)", 40),
        (LogRange(60, 90), "[10, 40)", 40),
        (LogRange(0, 10), "[10, 40)", 40),
        (LogRange(0, 0), "[10, 40)", 40),
        (LogRange(0, 11), None, 10),
    ],
)
def test_an_offset_that_is_not_in_the_log(
    log: LogRange, lost: str | None, goes_on_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    progress = make(topic_id=IDS[0])
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        recover(progress, OUT_OF_RANGE, log)
    assert (progress.fetch_offset, progress.position) == (goes_on_at, goes_on_at)
    assert progress.partition.error is None
    assert progress.partition.fetch_source.topic_id == IDS[0], "of the same topic"
    assert (lost in caplog.text) if lost else not caplog.text
    if lost:
        with pytest.raises(DataLossError, match="COULD_NOT_READ_OFFSET_RANGE"):
            recover(make(fail=True), OUT_OF_RANGE, log)


def test_records_that_are_fetched_are_read_before_lost_ones() -> None:
    progress = make()
    fetched(progress, 10, 5)
    recover(progress, OUT_OF_RANGE, LogRange(25, 90))
    assert (progress.position, progress.fetch_offset, progress.is_done) == (10, 25, False)
    recover(progress, OUT_OF_RANGE, LogRange(60, 90))
    assert (progress.has_data, progress.is_done) == (True, False)
    while progress.read_into(RecordColumns()):
        pass
    assert progress.is_done


def test_a_truncated_log() -> None:
    progress, strict = make(), make(fail=True)
    fetched(progress, 10, 5)
    fetched(strict, 10, 5)
    with pytest.raises(DataLossError, match=r"\[10, 40\).*truncated at offset 8"):
        recover(strict, LogTruncatedError(TP, 10, 8))
    recover(progress, LogTruncatedError(TP, 10, 8))
    assert (progress.position, progress.fetch_offset) == (10, 10), "what is there now is fetched"
    assert progress.partition.fetched_epoch == -1, "the epoch of the lost record would be refused again"


def test_a_log_that_lost_only_records_that_were_not_read_yet() -> None:
    """A consumer would fetch the records that replace them; but the driver has not planned these records."""
    progress = make()
    fetched(progress, 10, 20)
    assert complete_validation(progress.partition, EpochEndOffset(2, 25)) is None
    error = progress.partition.error
    assert isinstance(error, LogTruncatedError)
    assert (error.position, error.divergent_offset) == (10, 25)


def test_a_recreated_topic_is_certain_only_for_an_id_that_a_broker_has_confirmed() -> None:
    planned, confirmed, assumed = make(topic_id=IDS[0], fail=True), make(fail=True), make(fail=True)
    for progress in (confirmed, assumed):
        progress.partition.adopt_topic_id(IDS[0])
    fetched(confirmed, 10, 5)
    for progress in (planned, confirmed, assumed):
        recover(progress, TopicRecreatedError(TP, 10))
        assert progress.partition.error is None, "tried again: the metadata may be older than the plan"
    assert [progress.is_other(IDS[1]) for progress in (planned, confirmed, assumed)] == [True, True, False]
    assert assumed.partition.fetch_source.topic_id == NO_UUID


@pytest.mark.parametrize("error", [BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "fetch"), OUT_OF_RANGE])
def test_other_errors_are_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        recover(make(), error)


@pytest.mark.parametrize(
    ("first", "log_start", "lost"),
    [(30, 30, "[10, 30)"), (30, 20, "[10, 20)"), (60, 60, "[10, 40)"), (30, 10, None), (8, 8, None)],
    ids=["deleted", "partly compacted", "all deleted", "compaction", "a batch from the middle"],
)
def test_a_gap_is_a_loss_only_if_the_log_starts_after_it(
    first: int, log_start: int, lost: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        fetched(make(), first, 5, start=log_start)
    assert (f"{lost}: the log now starts at offset {log_start}" in caplog.text) if lost else not caplog.text
    if lost:
        with pytest.raises(DataLossError, match="COULD_NOT_READ_OFFSET_RANGE"):
            fetched(make(fail=True), first, 5, start=log_start)


def test_a_fetch_asks_for_the_rest_of_the_range() -> None:
    config = ConsumerConfig(fetch_max_bytes=1 << 20)
    unknown = RangeProgress(part(0, 100), config)
    assert unknown.budget.fetch_size == 100 * 2048 * 1.05
    known = RangeProgress(part(0, 1000), config, Sizes(100.0, 5000))
    assert known.budget.fetch_size == 1000 * 100 * 1.05 + 5000
    assert RangeProgress(part(0, 1), config, Sizes(1.0, 1)).budget.fetch_size == LEAST_FETCH
    assert RangeProgress(part(0, 1 << 40), config).budget.fetch_size == 1 << 20
