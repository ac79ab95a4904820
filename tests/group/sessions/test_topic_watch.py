"""Watching topics: partition counts by the leader, the own subscription by every member."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import ErrorCode, NoBrokersError, PartitionsChanged, SessionEnd, TopicsChanged
from asyncgroup.group.sessions.topic_watch import (
    CALM,
    ChangePauses,
    watch_absent,
    watch_partitions,
    watch_pattern,
    watch_topics,
)
from asyncgroup.group.topics.topics import Absence
from tests.offsets.fakes import FakeCluster, now


class Metadata(FakeCluster):
    """A fake cluster with metadata set by the test; `seen` is what the next refresh returns."""

    def __init__(self, **counts: int) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {}
        self.refreshes = 0
        self.failures: list[Exception] = []
        self._updated = asyncio.Event()
        self.set(**counts)
        self.view = SimpleNamespace(topics=dict(self.seen))

    def set(self, **counts: int) -> None:
        for topic, count in counts.items():
            self.seen[topic] = SimpleNamespace(partitions=dict.fromkeys(range(count)), error_code=0)

    def update(self) -> None:
        """Replace the metadata, as a refresh by another client."""
        self.view = SimpleNamespace(topics=dict(self.seen))
        self._updated.set()
        self._updated = asyncio.Event()

    async def refresh(self) -> None:
        self.refreshes += 1
        await asyncio.sleep(0.1)
        if self.failures:
            raise self.failures.pop(0)
        self.update()

    async def wait_updated(self) -> None:
        await self._updated.wait()


async def watched(cluster: Metadata, counts: dict[str, int]) -> tuple[asyncio.Task[None], list[SessionEnd]]:
    ends: list[SessionEnd] = []
    task = asyncio.ensure_future(watch_partitions(cluster, counts, ends.append))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    return task, ends


async def gone(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_equal_counts_change_nothing() -> None:
    cluster = Metadata(a=4, b=1)
    task, ends = await watched(cluster, {"a": 4, "b": 1})
    for _ in range(5):
        cluster.update()
        await asyncio.sleep(1)
    assert ends == []
    assert cluster.refreshes == 0
    await gone(task)


@pytest.mark.parametrize(("now_there", "text"), [(6, "has 6 partitions"), (0, "has 0 partitions")])
async def test_a_changed_count_is_reported_once(now_there: int, text: str) -> None:
    cluster = Metadata(a=4, b=1)
    task, ends = await watched(cluster, {"a": 4, "b": 1})
    cluster.set(a=now_there, b=9)
    cluster.update()
    await task
    (cause,) = ends
    assert isinstance(cause, PartitionsChanged)
    assert str(cause) == f"topic 'a' {text}, the assignment was made for 4"


async def test_a_change_before_the_watch_is_reported() -> None:
    task, ends = await watched(Metadata(a=5), {"a": 4})
    await task
    assert len(ends) == 1
    assert now() == 1


async def test_a_created_and_a_deleted_topic() -> None:
    cluster = Metadata(a=4)
    task, ends = await watched(cluster, {"a": 4, "later": 0})
    assert ends == []
    cluster.set(later=3)
    cluster.update()
    await task
    assert "'later' has 3" in str(ends[0])
    task, ends = await watched(cluster, {"a": 4})
    del cluster.seen["a"]
    cluster.update()
    await task
    assert "'a' has 0" in str(ends[0])


@pytest.mark.parametrize("count", [None, 0, 2])
async def test_one_response_with_fewer_partitions_is_no_change(count: int | None) -> None:
    """A broker that has just restarted may not know every topic yet, or not all of its partitions."""
    cluster = Metadata(a=4)
    task, ends = await watched(cluster, {"a": 4})
    good = cluster.seen.pop("a")
    if count is not None:
        cluster.set(a=count)
    cluster.update()
    cluster.seen["a"] = good
    await asyncio.sleep(5)
    assert cluster.refreshes == 1
    assert ends == []
    await gone(task)


async def test_a_topic_with_an_error_code_is_ignored() -> None:
    """A topic without a leader has an error code, and possibly no partitions."""
    cluster = Metadata(a=4)
    task, ends = await watched(cluster, {"a": 4})
    cluster.seen["a"] = SimpleNamespace(partitions={}, error_code=ErrorCode.LEADER_NOT_AVAILABLE)
    cluster.update()
    await asyncio.sleep(1)
    cluster.set(a=4)
    cluster.update()
    await asyncio.sleep(1)
    assert ends == []
    await gone(task)


async def test_a_topic_untracked_for_a_moment_is_no_change() -> None:
    """Found by review: a refresh by another client between assignment and session dropped the topics of other
    members; that was taken for their deletion and caused a rebalance.
    """
    cluster = Metadata(a=4)
    cluster.view = SimpleNamespace(topics={})
    cluster.failures = [NoBrokersError("none"), NoBrokersError("none")]
    task, ends = await watched(cluster, {"a": 4})
    assert ends == []
    assert cluster.refreshes == 3
    await gone(task)


# -- a member's own topics ----------------------------------------------------------------------------------------------


class Topics(Metadata):
    """Topics with ids; `looks` counts the calls of `all_topics`."""

    def __init__(self, **ids: int) -> None:
        super().__init__()
        self.config = ConsumerConfig(metadata_refresh_interval=5.0, retry_backoff=0.1)
        self.all: dict[str, Any] = {}
        self.looks = 0
        self.set_ids(**ids)
        self.view = SimpleNamespace(topics=dict(self.seen))

    def set_ids(self, **ids: int) -> None:
        for topic, number in ids.items():
            self.seen[topic] = SimpleNamespace(
                partitions={0: None}, error_code=0, topic_id=UUID(int=number), is_internal=False
            )

    async def all_topics(self) -> dict[str, Any]:
        self.looks += 1
        if self.failures:
            raise self.failures.pop(0)
        return dict(self.seen)


def ids(**numbers: int) -> dict[str, UUID]:
    return {topic: UUID(int=number) for topic, number in numbers.items()}


async def watching(coroutine: Any) -> asyncio.Task[None]:
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0.01)
    return task


async def test_a_deleted_topic_is_reported_after_a_second_lookup() -> None:
    cluster, ends = Topics(a=1, b=2), []
    task = await watching(watch_topics(cluster, ids(a=1, b=2), (), ends.append))  # type: ignore[arg-type]
    gone_entry = cluster.seen.pop("b")
    cluster.update()
    cluster.seen["b"] = gone_entry
    await asyncio.sleep(1)
    assert ends == [], "one broker did not know it for a moment"
    del cluster.seen["b"]
    cluster.failures = [NoBrokersError("none")]
    cluster.update()
    await asyncio.sleep(1)
    assert [str(end) for end in ends] == ["topic 'b' was deleted"]
    await task


async def test_a_recreated_topic_is_reported() -> None:
    cluster, ends = Topics(a=1), []
    task = await watching(watch_topics(cluster, ids(a=1), (), ends.append))  # type: ignore[arg-type]
    cluster.set_ids(a=0)  # a broker without ids
    cluster.update()
    await asyncio.sleep(1)
    assert ends == []
    cluster.set_ids(a=7)
    cluster.update()
    await task
    assert isinstance(ends[0], PartitionsChanged)
    assert str(ends[0]) == "topic 'a' was deleted and recreated"


async def test_a_missing_topic_that_exists_again_is_reported() -> None:
    """However long that takes, and also if no broker responds for a while."""
    cluster, ends = Topics(), []
    cluster.failures = [NoBrokersError("none") for _ in range(20)]
    task = await watching(watch_absent(cluster, {name: Absence(0.0) for name in ("a", "b")}, ends.append))  # type: ignore[arg-type]
    await asyncio.sleep(3600)
    assert 1000 < cluster.refreshes < 3600, "every retry_backoff_max"
    cluster.set_ids(b=2)
    await asyncio.sleep(3)
    await task
    assert [str(end) for end in ends] == ["topic 'b' can be read now"]


async def test_a_missing_topic_that_may_not_be_described_exists_once_it_may() -> None:
    cluster, ends = Topics(a=1), []
    cluster.seen["a"].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    cluster.update()
    task = await watching(watch_absent(cluster, {"a": Absence(0.0)}, ends.append))  # type: ignore[arg-type]
    await asyncio.sleep(60)
    assert ends == []
    cluster.set_ids(a=1)
    await asyncio.sleep(3)
    await task
    assert [str(end) for end in ends] == ["topic 'a' can be read now"]


async def test_a_topic_with_an_error_is_reported_if_nothing_of_it_is_assigned() -> None:
    for assigned, expected in (((), ["topic 'a' cannot be used: TOPIC_AUTHORIZATION_FAILED"]), (("a",), [])):
        cluster, ends = Topics(a=1), []
        task = await watching(watch_topics(cluster, ids(a=1), assigned, ends.append))  # type: ignore[arg-type]
        cluster.seen["a"].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        cluster.update()
        await asyncio.sleep(5)
        assert [str(end) for end in ends] == expected
        await gone(task)


async def test_an_assigned_topic_that_is_missing_once_and_then_has_an_error_is_no_change() -> None:
    cluster, ends = Topics(a=1), []
    task = await watching(watch_topics(cluster, ids(a=1), ("a",), ends.append))  # type: ignore[arg-type]
    topic = cluster.seen.pop("a")
    cluster.update()
    topic.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    cluster.seen["a"] = topic
    await asyncio.sleep(5)
    assert ends == []
    await gone(task)


async def test_a_denied_topic_that_one_broker_does_not_know_is_not_deleted() -> None:
    cluster, ends = Topics(a=1), []
    denied = {"a": Absence(0.0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    cluster.seen["a"].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = cluster.seen.pop("a")
    cluster.update()
    cluster.seen["a"] = topic
    task = await watching(watch_absent(cluster, denied, ends.append))  # type: ignore[arg-type]
    await asyncio.sleep(60)
    assert ends == []
    await gone(task)


async def test_a_denied_topic_that_is_deleted_is_a_change() -> None:
    cluster, ends = Topics(a=1), []
    cluster.seen["a"].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    cluster.update()
    denied = {"a": Absence(0.0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    task = await watching(watch_absent(cluster, denied, ends.append))  # type: ignore[arg-type]
    await asyncio.sleep(60)
    assert ends == []
    del cluster.seen["a"]
    await asyncio.sleep(3)
    await task
    assert [str(end) for end in ends] == ["topic 'a' was deleted"]


async def test_changes_in_a_row_have_growing_pauses() -> None:
    pauses = ChangePauses(0.1, random.Random(1))
    at, found = 100.0, []
    for _ in range(12):
        found.append(pauses.next(at))
        at += found[-1] + 1.0
    assert found[0] == 0.0
    assert 0.05 < found[1] < 0.2
    assert all(0 < before < after * 1.5 for before, after in itertools.pairwise(found[1:]))
    assert 20.0 < found[-1] <= CALM * 1.2
    assert pauses.next(at + CALM + 1.0) == 0.0


async def test_a_pattern_is_matched_every_interval() -> None:
    cluster, ends = Topics(log_a=1, other=2), []
    pattern = re.compile("log_")
    task = await watching(watch_pattern(cluster, pattern, ["log_a"], ends.append))  # type: ignore[arg-type]
    await asyncio.sleep(16)
    assert cluster.looks == 3
    assert ends == []
    cluster.set_ids(log_b=3, log_c=4)
    del cluster.seen["log_a"]
    cluster.failures = [NoBrokersError("none")]
    await asyncio.sleep(5)
    await task
    assert isinstance(ends[0], TopicsChanged)
    assert str(ends[0]) == "the pattern 'log_' matches log_b, log_c and no longer matches log_a"
    assert cluster.looks == 6, "after a failure sooner than the interval; a second lookup for a missing topic"


async def test_a_pattern_reports_deleted_topics_and_ignores_internal_ones() -> None:
    cluster, ends = Topics(log_a=1, log_b=2), []
    pattern = re.compile(".*log_")
    task = await watching(watch_pattern(cluster, pattern, ["log_a", "log_b"], ends.append))  # type: ignore[arg-type]
    cluster.set_ids(__log_state=3)
    cluster.seen["__log_state"].is_internal = True
    await asyncio.sleep(11)
    assert ends == []
    del cluster.seen["log_a"]
    await asyncio.sleep(5)
    await task
    assert [str(end) for end in ends] == ["the pattern '.*log_' no longer matches log_a"]


async def test_an_interval_of_zero_disables_the_watch() -> None:
    cluster = Topics()
    cluster.config = ConsumerConfig(metadata_refresh_interval=0)
    await watch_pattern(cluster, re.compile("x"), [], lambda _end: None)  # type: ignore[arg-type]
    assert cluster.looks == 0
