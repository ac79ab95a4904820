"""Topics recreated between two runs of a query, detected by the topic ids in the group's commits; without Spark."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import UUID

import pytest

from asyncgroup import OffsetManager
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver import broker_lookups
from asyncgroup.spark.source.driver.progress import StreamProgress
from asyncgroup.spark.source.driver.recreated_topics import QueryTopics
from asyncgroup.spark.source.errors import DataLossError
from asyncgroup.spark.source.options.settings import FromGroup, SubscribePattern
from asyncgroup.testing import KafkaServer
from tests.spark.source.driver_support import TOPIC, Queries, committed, offsets, produce, tp

pytestmark = pytest.mark.kafka(topics={TOPIC: 2})

GROUP = {"group_id": "reports"}
LACKS = r"^\[ASYNCGROUP_GROUP_LACKS_OFFSETS\] .*orders-0@10.*reports.*missingCommits=ignore"


@pytest.fixture(autouse=True)
def _metadata_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_lookups, "METADATA_MAX_AGE", 0.0)
    monkeypatch.setattr(broker_lookups, "METADATA_AGE_FACTOR", 0)


def ranges(progress: StreamProgress, start: Any, end: Any) -> list[OffsetRange]:
    return sorted(piece for task in progress.tasks(start, end) for piece in task)


def first_run(kafka: KafkaServer, query: Queries, *, available_now: bool = False, **options: Any) -> Any:
    """Run a query that reads ten records; return the offsets in its checkpoint."""
    produce(kafka, 10)
    progress = query(**options)
    if available_now:
        progress.prepare_available_now()
    start = progress.initial_offsets()
    end = progress.next_end(start)
    assert ranges(progress, start, end) == [OffsetRange(TOPIC, 0, 0, 10)]
    assert progress.next_end(end) == end == offsets(10, 0)
    progress.stop()
    return end


def recreate(kafka: KafkaServer, rows: int) -> None:
    kafka.delete_topic(TOPIC)
    kafka.create_topic(TOPIC, 2)
    produce(kafka, rows)


def commit(kafka: KafkaServer, offset: int, metadata: str) -> None:
    """Commit offsets like another program or an earlier run."""

    async def send() -> None:
        async with OffsetManager(kafka.bootstrap_servers, "reports") as manager:
            (await manager.manage(TOPIC, 0)).mark_offset(offset, metadata)
            await manager.commit()

    asyncio.run(send())


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("rows", [4, 10, 15])
def test_a_recreated_topic_is_read_from_its_start_or_refused(
    kafka_server: KafkaServer,
    query: Queries,
    caplog: pytest.LogCaptureFixture,
    available_now: bool,
    rows: int,
) -> None:
    """Kafka deletes a group's offsets with the topic: offsets that only the checkpoint has belong to a deleted topic."""
    start = first_run(kafka_server, query, available_now=available_now, **GROUP)
    recreate(kafka_server, rows)
    strict, lenient = query(**GROUP), query(**GROUP, fail_on_data_loss=False)
    for progress in (strict, lenient):
        if available_now:
            progress.prepare_available_now()
    with pytest.raises(DataLossError, match=LACKS):
        strict.next_end(start)
    strict.stop()
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        end = lenient.next_end(start)
    assert "ASYNCGROUP_GROUP_LACKS_OFFSETS" in caplog.text
    assert (end, lenient.tasks(start, end)) == (offsets(0, 0), [])
    last = lenient.next_end(end)
    assert ranges(lenient, end, last) == [OffsetRange(TOPIC, 0, 0, rows)]
    assert lenient.next_end(last) == last == offsets(rows, 0)
    assert committed(kafka_server, "reports") == last
    lenient.stop()
    assert (
        query(**GROUP).next_end(last) == last
    )  # the next run, with failOnDataLoss again, finds the new topic's id


@pytest.mark.parametrize("available_now", [False, True])
def test_an_id_of_another_topic_in_the_groups_commit(
    kafka_server: KafkaServer, query: Queries, available_now: bool
) -> None:
    """If a broker has kept or restored the offsets of the old topic."""
    produce(kafka_server, 15)
    commit(kafka_server, 10, encode_metadata(tp(0), 10, CommitMetadata("", UUID(int=7))))
    start = offsets(10, 0)
    strict, lenient = query(**GROUP), query(**GROUP, fail_on_data_loss=False)
    for progress in (strict, lenient):
        if available_now:
            progress.prepare_available_now()
    end = strict.next_end(start)
    with pytest.raises(DataLossError, match=r"^\[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED\].*recreated"):
        strict.tasks(start, end)
    end = lenient.next_end(start)
    assert (end, lenient.tasks(start, end)) == (offsets(0, 0), [])
    last = lenient.next_end(end)
    assert ranges(lenient, end, last) == [OffsetRange(TOPIC, 0, 0, 15)]


def test_a_new_query_does_not_start_at_offsets_of_a_deleted_topic(
    kafka_server: KafkaServer, query: Queries
) -> None:
    produce(kafka_server, 15)
    commit(kafka_server, 10, encode_metadata(tp(0), 10, CommitMetadata("", UUID(int=7))))
    assert query(**GROUP, starting=FromGroup("earliest")).initial_offsets() == offsets(0, 0)


@pytest.mark.parametrize("metadata", ["", "a text", "foreachBatch/1:3@10"])
def test_commits_without_an_id_are_trusted(kafka_server: KafkaServer, query: Queries, metadata: str) -> None:
    """Such as those of earlier releases, of kafka-consumer-groups and of other clients."""
    produce(kafka_server, 15)
    commit(kafka_server, 10, metadata)
    progress = query(**GROUP)
    end = progress.next_end(offsets(10, 0))
    assert ranges(progress, offsets(10, 0), end) == [OffsetRange(TOPIC, 0, 10, 15)]


def test_a_checkpoint_is_trusted_on_request(kafka_server: KafkaServer, query: Queries) -> None:
    """For the first start with another group, or after the group's offsets have expired."""
    produce(kafka_server, 15)
    progress = query(**GROUP, trusts_checkpoint=True)
    end = progress.next_end(offsets(10, 0))
    assert ranges(progress, offsets(10, 0), end) == [OffsetRange(TOPIC, 0, 10, 15)]
    progress.stop()
    again = query(**GROUP)  # from now on the group has the offsets
    assert again.next_end(end) == end


def test_a_checkpoint_at_the_start_of_the_log_loses_nothing(
    kafka_server: KafkaServer, query: Queries
) -> None:
    produce(kafka_server, 15)
    progress = query(**GROUP)
    assert progress.next_end(offsets(0, 0)) == offsets(15, 0)


@pytest.mark.parametrize("fail", [True, False])
def test_a_repeated_batch_reads_nothing_of_a_recreated_topic(
    kafka_server: KafkaServer, query: Queries, caplog: pytest.LogCaptureFixture, fail: bool
) -> None:
    """The driver died in a batch; Spark's first call then plans the same batch."""
    start = first_run(kafka_server, query, **GROUP)
    produce(kafka_server, 5)
    died = query(**GROUP)
    end = died.next_end(start)
    died.stop()
    recreate(kafka_server, 30)
    again = query(**GROUP, fail_on_data_loss=fail)
    if fail:
        with pytest.raises(DataLossError, match=LACKS):
            again.tasks(start, end)
        return
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        assert again.tasks(start, end) == []
    assert "COULD_NOT_READ_OFFSET_RANGE" in caplog.text
    back = again.next_end(end)
    assert (back, again.tasks(end, back)) == (offsets(0, 0), [])
    assert ranges(again, back, again.next_end(back)) == [OffsetRange(TOPIC, 0, 0, 30)]


def test_a_repeated_batch_of_the_same_topic(kafka_server: KafkaServer, query: Queries) -> None:
    start = first_run(kafka_server, query, **GROUP)
    produce(kafka_server, 5)
    died = query(**GROUP)
    end = died.next_end(start)
    died.stop()
    again = query(**GROUP)
    assert ranges(again, start, end) == [OffsetRange(TOPIC, 0, 10, 15)]
    assert again.next_end(end) == end


def test_a_driver_that_died_after_the_first_batch_of_a_new_topic(
    kafka_server: KafkaServer, query: Queries
) -> None:
    """The start of a new topic is committed to the group before the batch starts, so that the checkpoint is trusted."""
    options = {"strategy": SubscribePattern("orders.*"), **GROUP}
    start = first_run(kafka_server, query, **options)
    died = query(**options)
    assert died.next_end(start) == start
    kafka_server.create_topic("orders-too", 1)
    produce(kafka_server, 4, topic="orders-too")
    end = died.next_end(start)
    new = TopicPartition("orders-too", 0)
    assert end == {**start, new: 4}
    died.stop()
    assert committed(kafka_server, "reports") == {**start, new: 0}
    again = query(**options)
    assert again.next_end(end) == end


def test_added_partitions_of_a_known_topic_need_no_commit(kafka_server: KafkaServer, query: Queries) -> None:
    start = first_run(kafka_server, query, **GROUP)
    kafka_server.create_partitions(TOPIC, 3)
    produce(kafka_server, 6, partition=2)
    assert query(**GROUP).next_end({**start, tp(2): 5}) == {**start, tp(2): 6}


@pytest.mark.parametrize("options", [{}, {**GROUP, "commit_offsets": False}], ids=["no group", "no commits"])
def test_without_commits_a_warning_says_that_recreation_cannot_be_detected(
    kafka_server: KafkaServer, query: Queries, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    produce(kafka_server, 15)
    progress = query(**options)
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        for _ in range(3):
            assert progress.next_end(offsets(10, 0)) == offsets(15, 0)
    assert caplog.text.count("cannot be detected") == 1
    assert "kafka.group.id" in caplog.text
    caplog.clear()
    fresh = query(**options)
    fresh.next_end(fresh.initial_offsets())
    assert "cannot be detected" not in caplog.text


def test_a_warning_if_the_groups_offsets_are_unknown(
    kafka_server: KafkaServer, query: Queries, caplog: pytest.LogCaptureFixture
) -> None:
    produce(kafka_server, 15)
    for api in ("DescribeGroups", "OffsetFetch", "OffsetCommit"):
        kafka_server.faults.on(api, times=None, error="GROUP_AUTHORIZATION_FAILED", optional=True)
    progress = query(**GROUP)
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        assert progress.next_end(offsets(10, 0)) == offsets(15, 0)
    assert "cannot be detected" in caplog.text


def test_a_topic_recreated_in_a_run_is_known_until_a_batch_starts_at_its_first_offset() -> None:
    old, new, a0 = UUID(int=1), UUID(int=2), TopicPartition("a", 0)
    topics = QueryTopics()
    assert topics.recreated({a0: 5}, {a0: old}) == []
    assert topics.recreated({a0: 5}, {}) == [], "deleted, but not recreated"
    assert topics.recreated({a0: 5}, {a0: new}) == [a0]
    assert topics.without_start([a0]) == [a0]
    topics.add_starts({a0: 0})
    assert topics.without_start([a0]) == []
    assert topics.resets({a0: 5}, {a0: new}) == {a0: 0}
    assert topics.ids == {a0: old}
    assert topics.resets({a0: 0}, {a0: new}) == {}
    assert topics.ids == {a0: new}
    assert topics.recreated({a0: 3}, {a0: new}) == []
