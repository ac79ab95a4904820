"""The leader's watch over partition counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup.errors import ErrorCode, NoBrokersError, PartitionsChanged, SessionEnd
from asyncgroup.group.watch import watch_partitions
from tests.offsets.fakes import FakeCluster, now

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


class Metadata(FakeCluster):
    """A cluster whose metadata the test writes; `seen` is what the next refresh will see."""

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
        """A refresh that somebody made."""
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


async def watched(cluster: Metadata, planned: dict[str, int]) -> tuple[asyncio.Task[None], list[SessionEnd]]:
    ends: list[SessionEnd] = []
    task = asyncio.ensure_future(watch_partitions(cluster, planned, ends.append))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    return task, ends


async def gone(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_equal_counts_are_no_news() -> None:
    cluster = Metadata(a=4, b=1)
    task, ends = await watched(cluster, {"a": 4, "b": 1})
    for _ in range(5):
        cluster.update()
        await asyncio.sleep(1)
    assert ends == []
    assert cluster.refreshes == 0
    await gone(task)


@pytest.mark.parametrize(("now_there", "text"), [(6, "has 6 partitions"), (0, "has 0 partitions")])
async def test_another_count_is_told_once(now_there: int, text: str) -> None:
    cluster = Metadata(a=4, b=1)
    task, ends = await watched(cluster, {"a": 4, "b": 1})
    cluster.set(a=now_there, b=9)
    cluster.update()
    await task
    (cause,) = ends
    assert isinstance(cause, PartitionsChanged)
    assert str(cause) == f"topic 'a' {text}, the plan was made for 4"


async def test_a_change_before_the_watch_began_is_seen() -> None:
    task, ends = await watched(Metadata(a=5), {"a": 4})
    await task
    assert len(ends) == 1
    assert now() == 1


async def test_a_topic_that_is_deleted_and_one_that_appears() -> None:
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


async def test_a_topic_in_trouble_is_left_alone() -> None:
    """A topic without a leader for a moment has an error code, and perhaps no partitions."""
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


async def test_a_topic_that_was_not_tracked_for_a_moment_is_no_change() -> None:
    """Found by review: another client's refresh, between the plan and the session, had forgotten the topics of other
    members; the watch took that for their deletion, and the group rebalanced for nothing.
    """
    cluster = Metadata(a=4)
    cluster.view = SimpleNamespace(topics={})
    cluster.failures = [NoBrokersError("none"), NoBrokersError("none")]
    task, ends = await watched(cluster, {"a": 4})
    assert ends == []
    assert cluster.refreshes == 3
    await gone(task)
