"""Test harness: a ForeachBatch with fake Spark, session and claims."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup.errors import CommitFailedError, GroupClosed
from asyncgroup.model import TopicPartition
from asyncgroup.spark import BatchId, ForeachBatch
from tests.spark.bridge.fakes import TOPIC, FakeClaim, FakeSession, FakeSpark

CLOSED = GroupClosed("closed")


class Harness:
    """A ForeachBatch with one session and fake claims; `calls` has the arguments of `fn`'s calls."""

    def __init__(
        self, *partitions: int, fn: Callable[[Any, BatchId], None] | None = None, **limits: Any
    ) -> None:
        self.spark = FakeSpark()
        self.claims = [FakeClaim(partition) for partition in partitions]
        self.session = FakeSession(*self.claims)
        self.calls: list[tuple[Any, BatchId]] = []
        self.threads: set[str] = set()
        self._fn = fn
        self.handler = ForeachBatch(self.spark, self._called, **{"max_wait": 0.0, **limits})  # type: ignore[arg-type]
        self.tasks: list[asyncio.Task[None]] = []

    def _called(self, df: Any, batch_id: BatchId) -> None:
        assert len(self.spark.sparkContext.tags) == 1
        self.threads.add(threading.current_thread().name)
        self.calls.append((df, batch_id))
        if self._fn is not None:
            self._fn(df, batch_id)

    def start(self) -> list[asyncio.Task[None]]:
        self.tasks = [
            asyncio.create_task(self.handler.consume_claim(self.session, claim))  # type: ignore[arg-type]
            for claim in self.claims
        ]
        return self.tasks

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                await asyncio.sleep(0.001)

    async def finish(self) -> None:
        self.session.end(CLOSED)
        async with asyncio.timeout(60):
            await asyncio.gather(*self.tasks)
        self.assert_nothing_left()

    async def fail(self, error: type[Exception], match: str) -> None:
        """Start the handler's only task, and check that it fails with this error and leaves nothing behind."""
        (task,) = self.start()
        with pytest.raises(error, match=match):
            await task
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        assert repr(self.handler) == f"<ForeachBatch {self._called.__qualname__}: no session>"
        assert not self.spark.sparkContext.tags
        left = [t.name for t in threading.enumerate() if t.name.startswith("asyncgroup-")]
        assert left == []

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        return [(r.partition, r.start, r.end) for _, batch_id in self.calls for r in batch_id.ranges]


def blocking_function() -> tuple[threading.Event, threading.Event, Callable[[Any, BatchId], None]]:
    """Return an event set when the function starts, an event that lets it return, and the function."""
    begun, go = threading.Event(), threading.Event()

    def fn(_df: Any, _batch_id: BatchId) -> None:
        begun.set()
        assert go.wait(60)

    return begun, go, fn


def tp(partition: int) -> TopicPartition:
    return TopicPartition(TOPIC, partition)


def refusal(partition: int, error: Exception) -> CommitFailedError:
    return CommitFailedError("g", {tp(partition): error})  # type: ignore[dict-item]
