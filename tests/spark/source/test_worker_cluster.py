"""Records fetched ahead and clusters that are kept between tasks."""

from __future__ import annotations

import pytest

from asyncgroup.columns import RecordColumns
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.model import TopicPartition
from asyncgroup.security import Security, Tls
from asyncgroup.spark.source.executor import worker_cluster
from asyncgroup.spark.source.executor.range_progress import RangeProgress
from asyncgroup.spark.source.executor.worker_cluster import FetchedAhead, WorkerCluster
from tests.consumer.support import batch
from tests.spark.source.reading import TOPIC, part, settings


def read(end: int, *, partition: int = 0) -> RangeProgress:
    """Return a range that was read up to `end`, from a buffer with 20 records in two batches."""
    progress = RangeProgress(part(0, end, partition), ConsumerConfig())
    records = FetchedRecords(batch(0, count=10) + batch(10, count=10), 20, 0, zero_copy=True)
    progress.partition.fetched(records)
    while progress.read_into(RecordColumns()):
        pass
    return progress


def test_fetched_records_are_used_by_the_range_that_begins_there() -> None:
    left, tp = FetchedAhead(), TopicPartition(TOPIC, 0)
    left.put(read(7), 100.0)
    assert repr(left).startswith("<FetchedAhead of 1 partitions: ")
    ahead = left.pop(tp, 7, 110.0)
    assert ahead is not None
    assert (ahead.position, ahead.fetch_offset) == (7, 20)
    assert left.pop(tp, 7, 110.0) is None
    assert repr(left) == "<FetchedAhead of 0 partitions: 0 bytes>"


@pytest.mark.parametrize(("offset", "time"), [(6, 110.0), (8, 110.0), (7, 161.0)])
def test_fetched_records_are_dropped_for_any_other_range(offset: int, time: float) -> None:
    left, tp = FetchedAhead(), TopicPartition(TOPIC, 0)
    left.put(read(7), 100.0)
    assert left.pop(tp, offset, time) is None
    assert left.pop(tp, 7, 110.0) is None


def test_nothing_is_kept_of_an_unfinished_range() -> None:
    left = FetchedAhead()
    left.put(read(20), 1.0)
    left.put(read(25), 1.0)
    assert repr(left) == "<FetchedAhead of 0 partitions: 0 bytes>"


def test_fetched_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    size = read(7).partition.buffer.bytes
    monkeypatch.setattr(worker_cluster, "MAX_AHEAD_BYTES", 3 * size)
    left = FetchedAhead()
    for number in range(5):
        left.put(read(7, partition=number), 1.0)
    left.put(read(7, partition=4), 1.0)
    kept = [number for number in range(5) if left.pop(TopicPartition(TOPIC, number), 7, 1.0) is not None]
    assert kept == [2, 3, 4]


def test_matching_settings() -> None:
    home = WorkerCluster(settings("127.0.0.1:1"))
    assert home.matches(settings("127.0.0.1:1"))
    assert home.matches(
        settings("127.0.0.1:1", fail_on_data_loss=False, poll_timeout=3.0, include_headers=True)
    )
    assert not home.matches(settings("127.0.0.1:2"))
    assert not home.matches(settings("127.0.0.1:1", fetch_bytes=1000))
    assert not home.matches(settings("127.0.0.1:1", config={"security": Security(tls=Tls())}))
    assert repr(home) == "<WorkerCluster 127.0.0.1:1: 0 users, <FetchedAhead of 0 partitions: 0 bytes>>"


def test_settings_that_cannot_be_compared_do_not_match() -> None:
    def connector(host: str, port: int) -> object:
        raise NotImplementedError

    mine = settings("127.0.0.1:1", config={"connector": connector})
    assert WorkerCluster(mine).matches(mine)
    assert not WorkerCluster(mine).matches(settings("127.0.0.1:1"))


def test_the_fetch_configuration_of_a_worker() -> None:
    home = WorkerCluster(settings("127.0.0.1:1", fetch_bytes=5 << 20, config={"fetch_min_bytes": 1 << 20}))
    config = home._config
    assert (config.fetch_min_bytes, config.fetch_max_bytes, config.allow_auto_topic_creation) == (
        1,
        5 << 20,
        False,
    )
    small = WorkerCluster(settings("127.0.0.1:1", config={"max_response_size": 1000}))
    assert small._config.fetch_max_bytes == 500
