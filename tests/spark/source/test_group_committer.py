"""Commits of a query's offsets to its group, without Spark."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, Handler
from asyncgroup.spark.source.driver import broker_lookups, group_committer
from asyncgroup.spark.source.driver.progress import StreamProgress
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.options.settings import FromGroup, Latest, Subscribe
from asyncgroup.testing import KafkaServer
from tests.spark.source.driver_support import TOPIC, committed, offsets, produce, settings, tp

pytestmark = pytest.mark.kafka(topics={TOPIC: 2})

GROUP = "reports"


@pytest.fixture(autouse=True)
def _metadata_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_lookups, "METADATA_MAX_AGE", 0.0)
    monkeypatch.setattr(broker_lookups, "METADATA_AGE_FACTOR", 0)
    monkeypatch.setattr(group_committer, "RETRY_PAUSE", 0.0)


@contextlib.contextmanager
def query(kafka: KafkaServer, **options: Any) -> Iterator[StreamProgress]:
    progress = StreamProgress(settings(kafka, group_id=GROUP, **options))
    try:
        yield progress
    finally:
        progress.stop()


class Idle(Handler):
    """A handler that reads nothing."""

    async def consume_claim(self, session: Any, claim: Any) -> None:
        await claim.wait_ended()


@contextlib.contextmanager
def member(kafka: KafkaServer) -> Iterator[None]:
    """Run a member of the group, on another thread."""
    left = threading.Event()

    async def live() -> None:
        config = ConsumerConfig(client_id="the other one", heartbeat_interval=0.1)
        async with ConsumerGroup(kafka.bootstrap_servers, GROUP, config) as group:
            running = asyncio.create_task(group.run(TOPIC, Idle()))
            await asyncio.to_thread(left.wait)
            running.cancel()
            await asyncio.wait([running])

    thread = threading.Thread(target=asyncio.run, args=(live(),), name="member", daemon=True)
    thread.start()
    try:
        kafka.history.wait_for("SyncGroup", group=GROUP)
        kafka.history.wait_for("Heartbeat", group=GROUP)
        yield
    finally:
        left.set()
        thread.join(30)
        assert not thread.is_alive()


def test_every_finished_batch_is_committed_including_the_last_one(kafka_server: KafkaServer) -> None:
    produce(kafka_server, 10)
    with query(kafka_server, max_offsets_per_trigger=6) as progress:
        start = progress.initial_offsets()
        first = progress.next_end(start)
        assert committed(kafka_server, GROUP) == offsets(
            0, 0
        )  # lag tools see the query before its first batch is finished
        last = progress.next_end(first)
        assert committed(kafka_server, GROUP) == first == offsets(6, 0)
        assert progress.next_end(last) == last
        assert committed(kafka_server, GROUP) == offsets(10, 0)
    assert kafka_server.group(GROUP).state == "Empty"


def test_commits_are_repeated_only_after_the_commit_interval(kafka_server: KafkaServer) -> None:
    def count() -> int:
        return len(kafka_server.history.of("OffsetCommit"))

    with query(kafka_server) as progress:
        start = progress.initial_offsets()
        for _ in range(4):
            progress.next_end(start)
        assert count() == 1
    with query(kafka_server, commit_interval=0.05) as progress:
        before = count()
        for _ in range(8):  # these calls take 0.3 s, as the query is idle
            progress.next_end(start)
        assert count() >= before + 2


@pytest.mark.parametrize("options", [{"commit_offsets": False}, {"group_id": None}])
def test_nothing_is_committed_without_a_group_or_with_commits_off(
    kafka_server: KafkaServer, options: dict[str, Any]
) -> None:
    progress = StreamProgress(settings(kafka_server, **{"group_id": GROUP} | options))
    progress.next_end(progress.initial_offsets())
    progress.stop()
    assert kafka_server.groups == []


def test_a_new_checkpoint_starts_at_the_groups_offsets(kafka_server: KafkaServer) -> None:
    produce(kafka_server, 10)
    with query(kafka_server, max_offsets_per_trigger=6) as progress:
        progress.next_end(progress.next_end(progress.initial_offsets()))
    with query(kafka_server, starting=FromGroup("error")) as progress:
        start = progress.initial_offsets()
        assert start == offsets(6, 0)
        assert progress.next_end(start) == start  # the first batch stores the start
        assert progress.tasks(start, start) == []
        assert progress.next_end(start) == offsets(10, 0)


def test_partitions_without_a_commit_start_at_the_fallback(kafka_server: KafkaServer) -> None:
    produce(kafka_server, 10)
    with (
        pytest.raises(SourceError, match="ASYNCGROUP_NO_COMMITTED_OFFSET"),
        query(kafka_server, starting=FromGroup("error")) as progress,
    ):
        progress.initial_offsets()
    with query(kafka_server, starting=FromGroup("latest")) as progress:
        assert progress.initial_offsets() == offsets(10, 0)


def test_a_group_with_a_member_is_in_use(kafka_server: KafkaServer) -> None:
    with member(kafka_server), query(kafka_server) as progress:
        start = progress.initial_offsets()
        with pytest.raises(SourceError) as caught:
            progress.next_end(start)
    assert caught.value.code == "ASYNCGROUP_GROUP_IN_USE"
    assert "the other one" in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


@pytest.mark.parametrize("failure", ["warn", "fail"])
def test_a_member_that_joins_later(
    kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture, failure: str
) -> None:
    produce(kafka_server, 5)
    with query(kafka_server, commit_failure=failure) as progress:
        end = progress.next_end(progress.initial_offsets())
        with member(kafka_server):
            if failure == "fail":
                with pytest.raises(SourceError, match=r"^\[ASYNCGROUP_GROUP_IN_USE\] .*the other one"):
                    progress.next_end(end)
                return
            with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
                assert progress.next_end(end) == end
                progress.next_end(end)
            assert caplog.text.count("in use by") == 1
            assert "the other one" in caplog.text
            assert committed(kafka_server, GROUP) == offsets(0, 0)
        progress.next_end(end)  # the member has left
        assert committed(kafka_server, GROUP) == offsets(5, 0)


def test_an_older_checkpoint_resets_the_groups_offsets_with_a_warning(
    kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    produce(kafka_server, 10)
    with query(kafka_server) as progress:
        progress.next_end(progress.next_end(progress.initial_offsets()))
    assert committed(kafka_server, GROUP) == offsets(10, 0)
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"), query(kafka_server) as progress:
        progress.next_end(offsets(4, 0))
    assert "orders-0 from 10 to 4" in caplog.text
    assert committed(kafka_server, GROUP) == offsets(4, 0)


@pytest.mark.parametrize(
    "fault",
    [
        {"error": "NOT_COORDINATOR"},
        {"error": "COORDINATOR_LOAD_IN_PROGRESS"},
        {"disconnect": "before"},
        {"disconnect": "after"},
    ],
)
def test_retriable_errors_are_retried(kafka_server: KafkaServer, fault: dict[str, Any]) -> None:
    produce(kafka_server, 5)
    with query(kafka_server, commit_failure="fail") as progress:
        end = progress.next_end(progress.initial_offsets())
        kafka_server.faults.on("OffsetCommit", times=2, **fault)
        for _ in range(30):  # a batch waits for its commit, but only for a second
            assert progress.next_end(end) == end
            if committed(kafka_server, GROUP) == offsets(5, 0):
                break
        assert committed(kafka_server, GROUP) == offsets(5, 0)


def test_a_coordinator_that_does_not_answer_delays_no_batch(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_committer, "COMMIT_WAIT", 0.05)
    produce(kafka_server, 5)
    with query(kafka_server) as progress:
        end = progress.next_end(progress.initial_offsets())
        held = kafka_server.faults.on("OffsetCommit", hold=True)
        produce(kafka_server, 5)
        assert progress.next_end(end) == offsets(10, 0)
        held.release()
        assert progress.next_end(offsets(10, 0)) == offsets(10, 0)
        progress.next_end(offsets(10, 0))
        assert committed(kafka_server, GROUP) == offsets(10, 0)


@pytest.mark.parametrize("failure", ["warn", "fail"])
def test_commits_that_keep_failing(
    kafka_server: KafkaServer,
    caplog: pytest.LogCaptureFixture,
    failure: str,
) -> None:
    produce(kafka_server, 5)
    with query(kafka_server, commit_failure=failure) as progress:
        end = progress.next_end(progress.initial_offsets())
        committer = progress._client._commits
        assert committer is not None
        committer._settings = replace(committer._settings, api_timeout=0.0)
        kafka_server.faults.on("OffsetCommit", times=None, error="COORDINATOR_LOAD_IN_PROGRESS")
        if failure == "fail":
            with pytest.raises(SourceError, match=r"^\[ASYNCGROUP_COMMIT_FAILED\]"):
                progress.next_end(end)
        else:
            with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
                assert progress.next_end(end) == end
            assert "the query continues" in caplog.text


@pytest.mark.kafka(topics={TOPIC: 2, "other": 1})
def test_a_deleted_topic_is_not_committed_any_more(kafka_server: KafkaServer) -> None:
    with query(kafka_server, strategy=Subscribe((TOPIC, "other")), fail_on_data_loss=False) as progress:
        end = progress.next_end(progress.initial_offsets())
        kafka_server.delete_topic("other")
        produce(kafka_server, 3)
        assert progress.next_end(end) == offsets(3, 0)
        assert progress.next_end(end) == offsets(3, 0)
        progress.next_end(offsets(3, 0))
    assert committed(kafka_server, GROUP) == offsets(3, 0)


def test_a_query_that_stops_during_a_commit(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_committer, "COMMIT_WAIT", 0.05)
    with query(kafka_server) as progress:
        start = progress.initial_offsets()
        kafka_server.faults.on("OffsetCommit", hold=True)
        assert progress.next_end(start) == start
    assert committed(kafka_server, GROUP) == {}


@pytest.mark.parametrize("failure", ["warn", "fail"])
def test_a_group_without_authorization(
    kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture, failure: str
) -> None:
    for api in ("DescribeGroups", "OffsetFetch", "OffsetCommit"):
        kafka_server.faults.on(api, times=None, error="GROUP_AUTHORIZATION_FAILED", optional=True)
    with query(kafka_server, commit_failure=failure) as progress:
        start = progress.initial_offsets()
        if failure == "fail":
            with pytest.raises(
                SourceError, match=r"^\[ASYNCGROUP_COMMIT_FAILED\] .*GROUP_AUTHORIZATION_FAILED"
            ):
                progress.next_end(start)
        else:
            with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
                assert progress.next_end(start) == start
            assert "GROUP_AUTHORIZATION_FAILED" in caplog.text


def test_a_recreated_topic_is_committed_from_its_start(kafka_server: KafkaServer) -> None:
    produce(kafka_server, 5)
    with query(kafka_server, fail_on_data_loss=False) as progress:
        end = progress.next_end(progress.initial_offsets())
        progress.next_end(end)
        assert committed(kafka_server, GROUP) == offsets(5, 0)
        kafka_server.delete_topic(TOPIC)
        kafka_server.create_topic(TOPIC, 2)
        produce(kafka_server, 3)
        again = progress.next_end(end)
        assert (
            committed(kafka_server, GROUP) == {}
        )  # offsets of the old topic are meaningless for the new one
        progress.tasks(end, again)
        last = progress.next_end(again)
        assert committed(kafka_server, GROUP) == offsets(0, 0)
        progress.next_end(last)
        assert committed(kafka_server, GROUP) == offsets(3, 0)


def test_the_start_is_committed_at_once(kafka_server: KafkaServer) -> None:
    produce(kafka_server, 5)
    with query(kafka_server, starting=Latest()) as progress:
        progress.next_end(progress.initial_offsets())
    assert committed(kafka_server, GROUP) == {tp(0): 5, tp(1): 0}
