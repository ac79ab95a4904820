"""Situations that must not cause a reported loss, duplicates or delays of a streaming query; without Spark."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from typing import Any

import pytest

from asyncgroup.cluster.requests.list_offsets import is_retriable_error
from asyncgroup.errors import TransportError
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver import broker_lookups, group_committer, retry_policy
from asyncgroup.spark.source.driver.progress import StreamProgress
from asyncgroup.spark.source.errors import DataLossError
from asyncgroup.spark.source.executor import poll_timer, workers
from asyncgroup.spark.source.options.settings import Earliest, FromGroup, Latest, SubscribePattern
from asyncgroup.spark.source.readers import AsyncGroupStreamReader
from asyncgroup.testing import KafkaServer
from tests.spark.source.driver_support import TOPIC, Queries, committed, offsets, produce, settings, tp

pytestmark = pytest.mark.kafka(topics={TOPIC: 2})


def ranges(progress: StreamProgress, start: Any, end: Any) -> list[OffsetRange]:
    return sorted(piece for task in progress.tasks(start, end) for piece in task)


@pytest.mark.parametrize("starting", [Earliest(), Latest()], ids=["earliest", "latest"])
def test_the_first_batch_is_repeated_when_there_are_more_partitions(
    kafka_server: KafkaServer, query: Queries, starting: Any
) -> None:
    """The driver died in its first batch, and its topics grew: new partitions belong to the next batch, without a loss."""
    produce(kafka_server, 5)
    options = {"starting": starting, "strategy": SubscribePattern("orders.*")}
    died = query(**options)
    end = died.next_end(died.initial_offsets())
    kafka_server.create_partitions(TOPIC, 3)
    kafka_server.create_topic("orders-too", 1)
    produce(kafka_server, 3, partition=2)
    produce(kafka_server, 4, partition=0, topic="orders-too")
    again = query(**options)
    start = again.initial_offsets()
    expected = [OffsetRange(TOPIC, 0, 0, 5)] if starting == Earliest() else []
    assert ranges(again, start, end) == expected
    last = again.next_end(end)
    assert last == offsets(5, 0, 3) | {tp(0, "orders-too"): 4}
    assert ranges(again, end, last) == [OffsetRange(TOPIC, 2, 0, 3), OffsetRange("orders-too", 0, 0, 4)]


@pytest.mark.parametrize("restart", [False, True])
def test_the_fallback_does_not_apply_to_partitions_added_later(
    kafka_server: KafkaServer, query: Queries, restart: bool
) -> None:
    """`groupFallback=latest` applies to the start of a query; partitions added later are read from their start."""
    options = {"starting": FromGroup("latest"), "group_id": "reports"}
    produce(kafka_server, 4)
    progress = query(**options)
    start = progress.initial_offsets()
    assert start == progress.next_end(start) == offsets(4, 0)
    assert progress.tasks(start, start) == []
    kafka_server.create_partitions(TOPIC, 3)
    produce(kafka_server, 2, partition=2)
    if restart:
        progress.stop()
        progress = query(**options)
    end = progress.next_end(start)
    assert end == offsets(4, 0, 2)
    assert ranges(progress, start, end) == [OffsetRange(TOPIC, 2, 0, 2)]


# --- topics that are deleted, or seem to be ---------------------------------------------------------------------------


def forget_topics(response: Any) -> Any:
    """Answer like a broker that has just started."""
    for topic in response.topics:
        topic.error_code, topic.partitions = 3, []
    return response


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("fail", [True, False])
def test_a_broker_that_temporarily_does_not_know_the_topics(
    kafka_server: KafkaServer, query: Queries, fail: bool, available_now: bool
) -> None:
    """Otherwise the query would fail, or read the whole topic a second time."""
    produce(kafka_server, 5)
    progress = query(fail_on_data_loss=fail)
    start = offsets(3, 0)
    if available_now:
        kafka_server.faults.on("Metadata", nth=2, mutate=forget_topics)
        progress.prepare_available_now()
    else:
        assert progress.next_end(start) == offsets(5, 0)
        kafka_server.faults.on("Metadata", mutate=forget_topics)
    end = progress.next_end(start)
    assert end == offsets(5, 0)
    assert ranges(progress, start, end) == [OffsetRange(TOPIC, 0, 3, 5)]


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_recreated_between_the_plan_and_its_tasks(
    kafka_server: KafkaServer, query: Queries, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    """The new records are not read in place of the old ones; the next batches read them from the start, each once."""
    monkeypatch.setattr(poll_timer, "GONE_AFTER", 0.1)
    reader = AsyncGroupStreamReader(settings(kafka_server, fail_on_data_loss=fail))
    made: list[bool] = []

    def batch(start: Any) -> tuple[Any, list[bytes]]:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
        if not made:
            made.append(True)
            kafka_server.delete_topic(TOPIC)
            kafka_server.create_topic(TOPIC, 2)
            produce(kafka_server, 9, size=2)
        values = [value for part in parts for read in reader.read(part) for value in read.column("value")]
        return end, [value.as_py() for value in values]

    produce(kafka_server, 5)
    try:
        start = reader.initialOffset()
        if fail:
            with pytest.raises(DataLossError, match=r"COULD_NOT_READ_OFFSET_RANGE.*recreated"):
                batch(start)
            return
        values: list[bytes] = []
        for _ in range(4):
            start, more = batch(start)
            values += more
        assert (start, values) == ({TOPIC: {"0": 9, "1": 0}}, [b"vv"] * 9)
    finally:
        reader.stop()
        workers.close()


# --- ends below the start, which was read already (KAFKA-7703) --------------------------------------------------------


def stale_ends(response: Any) -> Any:
    """Answer like a new leader that does not know its high watermark yet."""
    for topic in response.topics:
        for part in topic.partitions:
            part.offset = min(part.offset, 3)
    return response


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("available_now", [False, True])
def test_an_end_below_the_start_is_looked_up_again(
    kafka_server: KafkaServer, query: Queries, available_now: bool, fail: bool
) -> None:
    """Otherwise it would be stored: its records would be read twice, or each restart would fail."""
    produce(kafka_server, 10)
    progress = query(fail_on_data_loss=fail)
    start = offsets(8, 0)
    fault = kafka_server.faults.on("ListOffsets", mutate=stale_ends)
    if available_now:
        progress.prepare_available_now()
    end = progress.next_end(start)
    assert fault.hits == 1
    assert end == offsets(10, 0)
    assert ranges(progress, start, end) == [OffsetRange(TOPIC, 0, 8, 10)]
    assert progress.next_end(end) == end


def test_a_stale_end_while_a_batch_of_available_now_is_planned(
    kafka_server: KafkaServer, query: Queries
) -> None:
    produce(kafka_server, 10)
    progress = query()
    progress.prepare_available_now()
    end = progress.next_end(offsets(8, 0))
    fault = kafka_server.faults.on("ListOffsets", mutate=stale_ends)
    assert ranges(progress, offsets(8, 0), end) == [OffsetRange(TOPIC, 0, 8, 10)]
    assert fault.hits == 1


@pytest.mark.parametrize("available_now", [False, True])
def test_an_end_that_stays_below_the_start_fails_before_it_is_stored(
    kafka_server: KafkaServer, query: Queries, available_now: bool
) -> None:
    produce(kafka_server, 6)
    progress = query()
    if available_now:
        progress.prepare_available_now()
    with pytest.raises(DataLossError, match=r"^\[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED\].*orders-0"):
        progress.next_end(offsets(10, 0))
    produce(kafka_server, 6)
    again = query()
    if available_now:
        again.prepare_available_now()
    end = again.next_end(offsets(10, 0))
    assert ranges(again, offsets(10, 0), end) == [OffsetRange(TOPIC, 0, 10, 12)]


def test_available_now_never_ends_below_its_start(
    kafka_server: KafkaServer, query: Queries, caplog: pytest.LogCaptureFixture
) -> None:
    """Without failOnDataLoss the partition stays where it is, and the others are read."""
    produce(kafka_server, 6)
    produce(kafka_server, 4, partition=1)
    progress = query(fail_on_data_loss=False)
    progress.prepare_available_now()
    start = offsets(10, 0)
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        end = progress.next_end(start)
    assert end == offsets(10, 4)
    assert "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED" in caplog.text
    assert ranges(progress, start, end) == [OffsetRange(TOPIC, 1, 0, 4)]
    assert progress.next_end(end) == end
    # the batch failed before its commit: Spark repeats it as it was stored, in a new process
    again = query(fail_on_data_loss=False)
    again.prepare_available_now()
    assert ranges(again, start, end) == [OffsetRange(TOPIC, 1, 0, 4)]
    assert again.next_end(end) == end


# --- unavailable brokers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["DescribeGroups", "OffsetFetch"])
@pytest.mark.parametrize("fault", [{"disconnect": "before"}, {"error": "COORDINATOR_NOT_AVAILABLE"}])
def test_an_unreachable_coordinator_does_not_fail_a_query(
    kafka_server: KafkaServer,
    query: Queries,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: dict[str, Any],
    api: str,
) -> None:
    """With commitFailure=warn: only the commits need the coordinator."""
    produce(kafka_server, 5)
    progress = query(group_id="reports", api_timeout=0.2)
    held = kafka_server.faults.on(api, times=None, **fault)
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        end = progress.next_end(progress.initial_offsets())
    assert end == offsets(5, 0)
    assert "group 'reports'" in caplog.text
    held.cancel()
    assert progress.next_end(end) == end
    assert committed(kafka_server, "reports") == offsets(5, 0)


def test_a_coordinator_that_does_not_answer_delays_no_records(
    kafka_server: KafkaServer, query: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_committer, "INITIAL_WAIT", 0.1)
    monkeypatch.setattr(group_committer, "COMMIT_WAIT", 0.1)
    produce(kafka_server, 5)
    progress = query(group_id="reports")
    held = kafka_server.faults.on("DescribeGroups", hold=True)
    end = progress.next_end(progress.initial_offsets())
    assert end == offsets(5, 0) == progress.next_end(end)
    assert committed(kafka_server, "reports") == {}
    monkeypatch.setattr(group_committer, "COMMIT_WAIT", 60.0)
    held.release()
    progress.next_end(end)
    assert committed(kafka_server, "reports") == offsets(5, 0)


def test_connections_closed_between_two_calls_are_not_used(
    kafka_server: KafkaServer, query: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trigger interval may be an hour, and brokers close connections that are idle for ten minutes."""
    monkeypatch.setattr(broker_lookups, "METADATA_MAX_AGE", 60.0)
    failures: list[BaseException] = []

    def seen(error: BaseException) -> bool:
        failures.append(error)
        return is_retriable_error(error)

    monkeypatch.setattr(retry_policy, "is_retriable_error", seen)
    monkeypatch.setattr(broker_lookups, "may_be_listed_later", seen)
    progress = query()
    start = progress.initial_offsets()
    kafka_server.stop_node(1)
    kafka_server.start_node(1)
    assert progress.next_end(start) == start
    assert not [error for error in failures if isinstance(error, TransportError)]


@pytest.mark.parametrize("api", ["DescribeGroups", "ListOffsets"])
def test_spark_stops_a_query_that_waits_for_a_response(
    kafka_server: KafkaServer, query: Queries, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_committer, "COMMIT_WAIT", 0.1)
    progress = query(group_id="reports", commit_failure="fail")
    start = progress.initial_offsets()
    kafka_server.call(lambda cluster: cluster.history.clear())
    held = kafka_server.faults.on(api, times=None, hold=True)
    ended: list[float] = []

    def end() -> None:
        kafka_server.history.wait_for(api, timeout=60)
        assert progress.interrupt()
        ended.append(asyncio.run(_now()))

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(asyncio.CancelledError):
        progress.next_end(start)
    progress.stop()
    ending.join()
    assert asyncio.run(_now()) - ended[0] < 15
    held.cancel()


async def _now() -> float:
    return asyncio.get_running_loop().time()
