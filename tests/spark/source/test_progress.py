"""The offsets of a streaming query over several calls, without Spark."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from asyncgroup import ConsumerConfig
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver import broker_lookups
from asyncgroup.spark.source.driver.progress import StreamProgress
from asyncgroup.spark.source.errors import DataLossError, SourceError
from asyncgroup.spark.source.options.settings import (
    Assign,
    AtTimestamp,
    Latest,
    Specific,
    Subscribe,
    SubscribePattern,
)
from asyncgroup.testing import KafkaServer
from tests.broker.internals import complete_delayed_operations, partition_in
from tests.broker.transactional import Writer
from tests.spark.source.driver_support import TOPIC, Queries, offsets, produce, tp

pytestmark = pytest.mark.kafka(topics={TOPIC: 2})


def ranges(progress: StreamProgress, start: Any, end: Any) -> list[OffsetRange]:
    return sorted(piece for task in progress.tasks(start, end) for piece in task)


def test_batch_after_batch(kafka_server: KafkaServer, query: Queries) -> None:
    produce(kafka_server, 10)
    progress = query()
    start = progress.initial_offsets()
    assert start == offsets(0, 0)
    end = progress.next_end(start)
    assert end == offsets(10, 0) == progress.latest
    assert ranges(progress, start, end) == [OffsetRange(TOPIC, 0, 0, 10)]
    assert progress.next_end(end) == end
    produce(kafka_server, 3, partition=1)
    assert progress.next_end(end) == offsets(10, 3)
    assert progress.initial_offsets() == start


def test_limits_of_rows(kafka_server: KafkaServer, query: Queries) -> None:
    produce(kafka_server, 30)
    produce(kafka_server, 10, partition=1)
    progress = query(max_offsets_per_trigger=20)
    end = progress.next_end(progress.initial_offsets())
    assert end == offsets(15, 5)
    assert progress.latest == offsets(30, 10)
    assert progress.next_end(end, limited=False) == offsets(30, 10)


def test_a_batch_is_delayed_until_it_has_enough_rows(kafka_server: KafkaServer, query: Queries) -> None:
    produce(kafka_server, 5)
    progress = query(min_offsets_per_trigger=10, max_trigger_delay=600.0)
    first = progress.next_end(progress.initial_offsets())
    assert first == offsets(5, 0)  # the first batch is never delayed
    produce(kafka_server, 9)
    assert progress.next_end(first) == first
    produce(kafka_server, 1)
    assert progress.next_end(first) == offsets(15, 0)


def test_limits_of_bytes(kafka_server: KafkaServer, query: Queries) -> None:
    produce(kafka_server, 400, size=1000)
    progress = query(max_bytes_per_trigger=100_000)
    start, sizes = progress.initial_offsets(), []
    while (end := progress.next_end(start)) != start:
        sizes.append(end[tp(0)] - start[tp(0)])
        start = end
    assert start == offsets(400, 0)
    assert len(sizes) >= 4
    assert all(80 <= size <= 105 for size in sizes[:-1]), sizes


def test_the_first_batch_of_a_start_that_is_not_reproducible_is_empty(
    kafka_server: KafkaServer, query: Queries, caplog: pytest.LogCaptureFixture
) -> None:
    produce(kafka_server, 10)
    progress = query(starting=Latest())
    start = progress.initial_offsets()
    produce(kafka_server, 5)
    assert progress.next_end(start) == start
    assert ranges(progress, start, start) == []
    # killed before the first batch was finished, and restarted later: Spark repeats the batch
    produce(kafka_server, 5)
    again = query(starting=Latest())
    assert again.initial_offsets() == offsets(20, 0)
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        assert ranges(again, again.initial_offsets(), start) == []
    assert (
        "if another source has written the checkpoint, rows of this batch are skipped: orders-0"
        in caplog.text
    )
    end = again.next_end(start)
    assert ranges(again, start, end) == [OffsetRange(TOPIC, 0, 10, 20)]


def test_trigger_once_reads_in_its_first_batch(kafka_server: KafkaServer, query: Queries) -> None:
    produce(kafka_server, 10, at=1_000)
    progress = query(starting=AtTimestamp(1_000, "latest"))
    assert progress.next_end(progress.initial_offsets(), limited=False) == offsets(10, 0)


def test_available_now_reads_up_to_the_offsets_found_at_its_start(
    kafka_server: KafkaServer, query: Queries
) -> None:
    produce(kafka_server, 10)
    progress = query(max_offsets_per_trigger=6, min_offsets_per_trigger=5)
    progress.prepare_available_now()
    produce(kafka_server, 10)
    first = progress.next_end(progress.initial_offsets())
    assert first == offsets(6, 0)
    assert ranges(progress, progress.initial_offsets(), first) == [OffsetRange(TOPIC, 0, 0, 6)]
    last = progress.next_end(first)
    assert (
        last == offsets(10, 0) == progress.latest
    )  # four more, fewer than the minimum that would otherwise apply
    assert ranges(progress, first, last) == [OffsetRange(TOPIC, 0, 6, 10)]
    assert progress.next_end(last) == last


@pytest.mark.parametrize(
    "starting",
    [Latest(), Specific(offsets(-1, 0)), Specific({}, {TOPIC: -1}), AtTimestamp(2**62, "latest")],
)
def test_available_now_from_the_end(kafka_server: KafkaServer, query: Queries, starting: Any) -> None:
    """Records produced between the start of the trigger and the lookup of the query's start belong to the next run."""
    produce(kafka_server, 5)
    progress = query(starting=starting)
    progress.prepare_available_now()
    produce(kafka_server, 5)
    kafka_server.create_partitions(TOPIC, 3)
    if isinstance(starting, Specific):
        starting.offsets[tp(2)] = 0  # type: ignore[index]
    start = progress.initial_offsets()
    assert start == offsets(5, 0)
    assert progress.next_end(start) == start
    assert progress.tasks(start, start) == []
    assert progress.next_end(start) == start


def test_available_now_detects_a_deleted_topic(kafka_server: KafkaServer, query: Queries) -> None:
    produce(kafka_server, 10)
    progress = query()
    progress.prepare_available_now()
    start = progress.initial_offsets()
    end = progress.next_end(start)
    kafka_server.delete_topic(TOPIC)
    with pytest.raises(SourceError) as caught:
        progress.tasks(start, end)
    assert caught.value.code == "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW"


def test_new_partitions_are_read_from_their_start(kafka_server: KafkaServer, query: Queries) -> None:
    progress = query(starting=Latest())
    start = progress.initial_offsets()
    kafka_server.create_partitions(TOPIC, 3)
    produce(kafka_server, 4, partition=2)
    assert progress.next_end(start) == start
    assert ranges(progress, start, start) == []
    end = progress.next_end(start)
    assert end == offsets(0, 0, 4)
    assert ranges(progress, start, end) == [OffsetRange(TOPIC, 2, 0, 4)]


@pytest.mark.parametrize("fail", [True, False])
def test_a_deleted_topic(
    kafka_server: KafkaServer, query: Queries, caplog: pytest.LogCaptureFixture, fail: bool
) -> None:
    kafka_server.create_topic("other", 1)
    produce(kafka_server, 5)
    progress = query(strategy=Subscribe((TOPIC, "other")), fail_on_data_loss=fail)
    start = progress.next_end(progress.initial_offsets())
    kafka_server.delete_topic(TOPIC)
    end = progress.next_end(start)
    assert end == offsets(0, topic="other")
    if fail:
        with pytest.raises(DataLossError, match=r"^\[KAFKA_DATA_LOSS.PARTITIONS_DELETED\]"):
            progress.tasks(start, end)
    else:
        with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
            assert progress.tasks(start, end) == []
        assert "KAFKA_DATA_LOSS.PARTITIONS_DELETED" in caplog.text


@pytest.mark.parametrize("rows", [3, 8])
def test_a_recreated_topic_is_read_from_its_start(
    kafka_server: KafkaServer, query: Queries, rows: int
) -> None:
    """This includes a new topic with more records than were read of the old one, which Spark's source does not detect."""
    produce(kafka_server, 5)
    strict, lenient = query(), query(fail_on_data_loss=False)
    starts = [progress.next_end(progress.initial_offsets()) for progress in (strict, lenient)]
    kafka_server.delete_topic(TOPIC)
    kafka_server.create_topic(TOPIC, 2)
    produce(kafka_server, rows)
    end = strict.next_end(starts[0])
    with pytest.raises(DataLossError, match=r"^\[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED\]"):
        strict.tasks(starts[0], end)
    end = lenient.next_end(starts[1])
    assert end == offsets(0, 0)
    assert lenient.tasks(starts[1], end) == []
    last = lenient.next_end(end)
    assert ranges(lenient, end, last) == [OffsetRange(TOPIC, 0, 0, rows)]
    assert lenient.next_end(last) == last


def test_a_truncated_log_is_read_from_its_new_end(kafka_server: KafkaServer, query: Queries) -> None:
    produce(kafka_server, 6)
    produce(kafka_server, 4)
    progress = query(fail_on_data_loss=False)
    start = progress.next_end(progress.initial_offsets())
    kafka_server.call(lambda cluster: cluster.truncate(TOPIC, 0, 6))
    end = progress.next_end(start)
    assert end == offsets(6, 0)
    assert progress.tasks(start, end) == []
    produce(kafka_server, 2)
    assert ranges(progress, end, progress.next_end(end)) == [OffsetRange(TOPIC, 0, 6, 8)]


def test_read_committed_ends_before_an_open_transaction(kafka_server: KafkaServer, query: Queries) -> None:
    """A task that reads further would wait for the end of the transaction, and fail if that takes too long."""
    writers: list[Writer] = []

    def write(cluster: EmbeddedCluster) -> None:
        place = partition_in(cluster, TOPIC, 0)
        writers.append(Writer(place.log, 1))
        writers[0].write(b"a", b"b")
        complete_delayed_operations(cluster, place)

    def commit(cluster: EmbeddedCluster) -> None:
        writers[0].commit()
        complete_delayed_operations(cluster, partition_in(cluster, TOPIC, 0))

    produce(kafka_server, 3)
    kafka_server.call(write)
    produce(kafka_server, 4)
    careful, careless = query(config=ConsumerConfig(isolation_level="read_committed")), query()
    start = careful.initial_offsets()
    assert careless.next_end(careless.initial_offsets()) == offsets(9, 0)
    assert careful.next_end(start) == careful.latest == offsets(3, 0)
    kafka_server.call(commit)
    assert careful.next_end(offsets(3, 0)) == offsets(10, 0)


def test_assigned_partitions_only(kafka_server: KafkaServer, query: Queries) -> None:
    produce(kafka_server, 3)
    produce(kafka_server, 4, partition=1)
    progress = query(strategy=Assign((tp(1), tp(7))), starting=Specific({tp(1): 2}))
    start = progress.initial_offsets()
    end = progress.next_end(start)
    assert ranges(progress, start, end) == [OffsetRange(TOPIC, 1, 2, 4)]


def test_a_pattern_finds_new_topics(kafka_server: KafkaServer, query: Queries) -> None:
    progress = query(strategy=SubscribePattern("^ord"))
    start = progress.initial_offsets()
    assert start == offsets(0, 0)
    kafka_server.create_topic("ordinary", 1)
    kafka_server.create_topic("border", 1)
    produce(kafka_server, 2, topic="ordinary")
    assert progress.next_end(start) == {**start, TopicPartition("ordinary", 0): 2}


@pytest.mark.kafka(topics={TOPIC: 2}, unknown_topics=True)
@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_that_has_never_existed_is_an_error(
    kafka_server: KafkaServer, query: Queries, available_now: bool
) -> None:
    progress = query(strategy=Subscribe((TOPIC, "nowhere")))
    if available_now:
        progress.prepare_available_now()
    with pytest.raises(SourceError, match=r"^\[ASYNCGROUP_TOPICS_NOT_FOUND\] .*nowhere"):
        progress.initial_offsets()
    asked = kafka_server.history.of("Metadata", topic="nowhere")
    assert asked
    assert not any(exchange.request.allow_auto_topic_creation for exchange in asked)


@pytest.mark.kafka(topics={TOPIC: 2}, unknown_topics=True)
@pytest.mark.parametrize("available_now", [False, True])
def test_a_checkpoint_may_have_deleted_topics(
    kafka_server: KafkaServer, query: Queries, available_now: bool
) -> None:
    """A missing topic is then a data loss, not an error of the options."""
    progress = query(strategy=Subscribe((TOPIC, "gone")), fail_on_data_loss=False)
    if available_now:
        progress.prepare_available_now()
    start = offsets(0, 0) | offsets(7, topic="gone")
    end = progress.next_end(start)
    assert end == offsets(0, 0)
    assert progress.tasks(start, end) == []


def test_an_idle_query_makes_few_requests(
    kafka_server: KafkaServer, query: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark calls all the time; offsets are requested twenty times a second, metadata once a second."""
    monkeypatch.setattr(broker_lookups, "METADATA_MAX_AGE", 60.0)
    progress = query()
    start = progress.next_end(progress.initial_offsets())
    kafka_server.call(lambda cluster: cluster.history.clear())
    began, used = time.perf_counter(), time.thread_time()
    for _ in range(12):
        assert progress.next_end(start) == start
    assert time.perf_counter() - began >= 0.4
    assert time.thread_time() - used < 0.3
    assert len(kafka_server.history.of("ListOffsets")) == 12
    assert kafka_server.history.of("Metadata") == []
