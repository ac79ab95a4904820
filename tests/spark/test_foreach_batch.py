"""ForeachBatch over fake claims: order, commits, failures, rebalances, interruptions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup.errors import (
    BrokerError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    GroupClosed,
    MemberLost,
    OffsetOutOfRangeError,
    Rebalanced,
    RequestTimedOut,
    UsageError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.spark import BatchId, ForeachBatch, OffsetRange
from tests.spark.fakes import TOPIC, FakeClaim, FakeSession, FakeSpark

pytestmark = pytest.mark.asyncio

CLOSED = GroupClosed("closed")
REBALANCED = Rebalanced("rebalance")
LOST = MemberLost("lost")


class Rig:
    """A ForeachBatch with one session over fake claims; `calls` holds what `fn` was called with."""

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
        async with asyncio.timeout(10):
            while not is_so():
                await asyncio.sleep(0.001)

    async def finish(self) -> None:
        self.session.end(CLOSED)
        async with asyncio.timeout(10):
            await asyncio.gather(*self.tasks)
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        assert repr(self.handler) == f"<ForeachBatch {self._called.__qualname__}: no session>"
        assert not self.spark.sparkContext.tags
        left = [t.name for t in threading.enumerate() if t.name.startswith("asyncgroup-")]
        assert left == []

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        return [(r.partition, r.start, r.end) for _, batch_id in self.calls for r in batch_id.ranges]


def gate() -> tuple[threading.Event, threading.Event, Callable[[Any, BatchId], None]]:
    """A function that says when it began and waits until it is let go."""
    begun, go = threading.Event(), threading.Event()

    def fn(_df: Any, _batch_id: BatchId) -> None:
        begun.set()
        assert go.wait(10)

    return begun, go, fn


def tp(partition: int) -> TopicPartition:
    return TopicPartition(TOPIC, partition)


def refusal(partition: int, error: Exception) -> CommitFailedError:
    return CommitFailedError("g", {tp(partition): error})  # type: ignore[dict-item]


# -- the ordinary way ----------------------------------------------------------------------------------------------------


async def test_records_of_all_claims_make_one_frame_and_are_committed() -> None:
    rig = Rig(0, 1, max_wait=0.05)
    rig.claims[0].feed(0, 30)
    rig.claims[1].feed(0, 20)
    rig.start()
    await rig.until(lambda: len(rig.session.commits) == 1)
    ((df, batch_id),) = rig.calls
    assert batch_id == 0
    assert batch_id.ranges == (OffsetRange(TOPIC, 0, 0, 30), OffsetRange(TOPIC, 1, 0, 20))
    assert df.column_names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert df["partition"].to_pylist() == [0] * 30 + [1] * 20
    assert df["offset"].to_pylist() == [*range(30), *range(20)]
    assert df["value"][31].as_py() == b"v1"
    assert rig.session.commits == [{tp(0): 30, tp(1): 20}]
    await rig.finish()


async def test_fn_runs_off_the_event_loop_in_one_thread() -> None:
    rig = Rig(0, max_rows=5)
    rig.claims[0].feed(0, 20)
    rig.start()
    await rig.until(lambda: len(rig.session.commits) == 4)
    assert len(rig.threads) == 1
    assert threading.current_thread().name not in rig.threads
    assert rig.spark.sparkContext.descriptions[1] == "batch 1: flights-0[5, 10)"
    await rig.finish()


async def test_the_next_batch_starts_only_after_the_commit() -> None:
    rig = Rig(0, max_rows=10)
    begun_at_commit: list[int] = []
    rig.session.on_commit = lambda: begun_at_commit.append(len(rig.calls))
    rig.claims[0].feed(0, 50)
    rig.start()
    await rig.until(lambda: len(rig.session.commits) == 5)
    assert begun_at_commit == [1, 2, 3, 4, 5]
    assert rig.ranges == [(0, start, start + 10) for start in range(0, 50, 10)]
    await rig.finish()


async def test_claims_gather_while_fn_runs_and_stop_when_the_batch_is_full() -> None:
    begun, go, fn = gate()
    rig = Rig(0, fn=fn, max_rows=10)
    rig.claims[0].feed(0, 100)
    rig.start()
    await rig.until(lambda: begun.is_set() and rig.claims[0].handed_out == 20)
    for _ in range(20):
        await asyncio.sleep(0)
    assert rig.claims[0].handed_out == 20
    go.set()
    await rig.until(lambda: len(rig.session.commits) == 10)
    await rig.finish()


async def test_max_wait_lets_a_batch_grow() -> None:
    rig = Rig(0, max_wait=0.2)
    rig.claims[0].feed(0, 1)
    rig.start()
    await rig.until(lambda: rig.claims[0].handed_out == 1)
    rig.claims[0].feed(1, 9)
    await rig.until(lambda: bool(rig.session.commits))
    assert rig.ranges == [(0, 0, 10)]
    await rig.finish()


async def test_a_range_starts_at_the_committed_offset_also_where_the_log_has_gaps() -> None:
    rig = Rig(0)
    rig.claims[0].initial_offset = 5
    rig.claims[0].feed(8, 2)
    rig.start()
    await rig.until(lambda: len(rig.session.commits) == 1)
    rig.claims[0].feed(15, 2)
    await rig.until(lambda: len(rig.session.commits) == 2)
    assert rig.ranges == [(0, 5, 10), (0, 10, 17)]
    await rig.finish()


async def test_headers_come_on_request() -> None:
    rig = Rig(0, include_headers=True)
    rig.claims[0].feed(0, 1)
    rig.start()
    await rig.until(lambda: bool(rig.session.commits))
    assert rig.calls[0][0]["headers"].to_pylist() == [None]
    await rig.finish()


async def test_numbers_go_on_over_sessions() -> None:
    rig = Rig(0)
    for session in range(2):
        rig.claims = [FakeClaim(0, initial_offset=session)]
        rig.session = FakeSession(*rig.claims)
        rig.claims[0].feed(session, 1)
        rig.start()
        await rig.until(lambda: bool(rig.session.commits))
        await rig.finish()
    assert [int(batch_id) for _, batch_id in rig.calls] == [0, 1]


# -- failures ------------------------------------------------------------------------------------------------------------


async def test_an_exception_of_fn_leaves_one_claim_as_itself_and_nothing_is_committed() -> None:
    def fn(_df: Any, batch_id: BatchId) -> None:
        if batch_id == 1:
            raise LookupError("no such warehouse")

    rig = Rig(0, 1, fn=fn)
    rig.claims[0].feed(0, 5)
    tasks = rig.start()
    await rig.until(lambda: len(rig.session.commits) == 1)
    rig.claims[0].feed(5, 5)
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert done == {tasks[0]}
    with pytest.raises(LookupError, match="no such warehouse") as caught:
        tasks[0].result()
    assert caught.value.__notes__ == ["while delivering <BatchId 1: flights-0[5, 10)>"]
    rig.session.end(CLOSED)
    await asyncio.gather(*pending)
    assert rig.session.commits == [{tp(0): 5}]
    assert rig.session.marks == {tp(0): 5}
    rig.assert_nothing_left()


@pytest.mark.parametrize("error", [StopIteration("x"), SystemExit(3), ValueError("x")])
async def test_any_kind_of_exception_comes_through(error: BaseException) -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        raise error

    rig = Rig(0, fn=fn)
    rig.claims[0].feed(0, 5)
    with pytest.raises((type(error), RuntimeError)) as caught:
        await rig.handler.consume_claim(rig.session, rig.claims[0])  # type: ignore[arg-type]
    assert error in (caught.value, caught.value.__cause__)
    assert rig.session.commits == []
    rig.assert_nothing_left()


async def test_an_error_of_the_claims_iterator_is_raised_after_the_batch_under_way() -> None:
    begun, go, fn = gate()
    rig = Rig(0, fn=fn)
    rig.claims[0].feed(0, 5)
    (task,) = rig.start()
    await rig.until(begun.is_set)
    rig.claims[0].fail(OffsetOutOfRangeError("the log begins at 7"))
    await rig.until(lambda: rig.claims[0].error is not None)
    assert not task.done()
    go.set()
    with pytest.raises(OffsetOutOfRangeError):
        await task
    assert rig.session.commits == [{tp(0): 5}]
    rig.assert_nothing_left()


async def test_a_commit_that_heals_is_tried_again_before_the_next_batch() -> None:
    rig = Rig(0, max_rows=5)
    rig.session.refusals.append(refusal(0, RequestTimedOut("no answer")))
    rig.session.refusals.append(refusal(0, BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, "commit")))
    rig.session.refusals.append(refusal(0, BrokerError(ErrorCode.NOT_COORDINATOR, "commit")))
    begun_at_commit: list[int] = []
    rig.session.on_commit = lambda: begun_at_commit.append(len(rig.calls))
    rig.claims[0].feed(0, 10)
    rig.start()
    await rig.until(lambda: len(rig.session.commits) == 2)
    assert begun_at_commit == [1, 1, 1, 1, 2]
    assert rig.ranges == [(0, 0, 5), (0, 5, 10)]
    await rig.finish()


async def test_a_commit_that_cannot_heal_is_raised() -> None:
    rig = Rig(0, max_rows=5)
    rig.session.refusals.append(refusal(0, BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")))
    rig.claims[0].feed(0, 10)
    (task,) = rig.start()
    with pytest.raises(CommitFailedError, match="GROUP_AUTHORIZATION_FAILED"):
        await task
    assert rig.ranges == [(0, 0, 5)]
    rig.assert_nothing_left()


async def test_whatever_else_a_commit_raises_comes_through() -> None:
    def over() -> None:
        raise UsageError("the session is over")

    rig = Rig(0)
    rig.session.on_commit = over
    rig.claims[0].feed(0, 10)
    (task,) = rig.start()
    with pytest.raises(UsageError, match="over"):
        await task
    rig.assert_nothing_left()


async def test_a_refused_commit_of_somebody_elses_partition_is_not_ours() -> None:
    rig = Rig(0)
    rig.session.refusals.append(refusal(7, BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")))
    rig.claims[0].feed(0, 5)
    rig.start()
    await rig.until(lambda: not rig.session.refusals)
    await rig.finish()


# -- the end of claims ---------------------------------------------------------------------------------------------------


async def test_at_a_rebalance_the_batch_under_way_is_committed_and_what_is_gathered_dropped() -> None:
    begun, go, fn = gate()
    rig = Rig(0, 1, fn=fn, max_rows=10)
    rig.claims[0].feed(0, 30)
    tasks = rig.start()
    await rig.until(lambda: begun.is_set() and rig.claims[0].handed_out == 20)
    rig.session.end(REBALANCED)
    await asyncio.wait({tasks[1]}, timeout=10)
    assert tasks[1].done(), "a claim without records in the batch ends at once"
    assert not tasks[0].done()
    go.set()
    await asyncio.gather(*tasks)
    assert rig.ranges == [(0, 0, 10)]
    assert rig.session.commits == [{tp(0): 10}]
    rig.assert_nothing_left()


async def test_a_claim_that_is_revoked_alone_leaves_the_others_at_work() -> None:
    begun, go, fn = gate()
    rig = Rig(0, 1, fn=fn, max_rows=10)
    rig.claims[0].feed(0, 20)
    tasks = rig.start()
    await rig.until(lambda: begun.is_set() and rig.claims[0].handed_out == 20)
    rig.claims[1].feed(0, 10)
    await rig.until(lambda: rig.claims[1].handed_out == 10)
    rig.claims[0].end(REBALANCED)
    go.set()
    await tasks[0]
    await rig.until(lambda: len(rig.session.commits) == 2)
    assert rig.ranges == [(0, 0, 10), (1, 0, 10)]
    await rig.finish()


async def test_a_lost_member_marks_nothing_and_its_jobs_are_cancelled() -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        assert rig.spark.sparkContext.cancelled.wait(10)
        raise RuntimeError("job cancelled")

    rig = Rig(0, fn=fn)
    rig.claims[0].feed(0, 5)
    tasks = rig.start()
    await rig.until(lambda: bool(rig.calls))
    rig.session.end(LOST)
    await asyncio.gather(*tasks)
    assert rig.session.marks == {}
    assert rig.session.commits == []
    rig.assert_nothing_left()


async def test_a_session_lost_while_it_drains_is_noticed() -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        assert rig.spark.sparkContext.cancelled.wait(10)

    rig = Rig(0, fn=fn)
    rig.claims[0].feed(0, 5)
    tasks = rig.start()
    await rig.until(lambda: bool(rig.calls))
    rig.session.end(REBALANCED)
    for _ in range(5):
        await asyncio.sleep(0)
    rig.session.end(LOST)
    await asyncio.gather(*tasks)
    assert rig.session.marks == {}
    rig.assert_nothing_left()


async def test_a_cancelled_claim_waits_for_its_thread_and_the_others_get_their_records_again() -> None:
    cancelled = 0

    def fn(_df: Any, batch_id: BatchId) -> None:
        nonlocal cancelled
        if batch_id == 0:
            assert rig.spark.sparkContext.cancelled.wait(10)
            cancelled += 1
            raise RuntimeError("job cancelled")

    rig = Rig(0, 1, fn=fn, max_wait=0.05)
    rig.claims[0].feed(0, 5)
    rig.claims[1].feed(0, 7)
    tasks = rig.start()
    await rig.until(lambda: bool(rig.calls))
    assert rig.ranges == [(0, 0, 5), (1, 0, 7)]
    rig.claims[0].end(REBALANCED)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert cancelled == 1
    await rig.until(lambda: bool(rig.session.commits))
    assert rig.calls[1][1].ranges == (OffsetRange(TOPIC, 1, 0, 7),)
    assert rig.session.commits == [{tp(1): 7}]
    rig.session.end(CLOSED)
    await tasks[1]
    rig.assert_nothing_left()


async def test_cancelled_during_the_commit_the_claim_ends_and_the_mark_stays() -> None:
    rig = Rig(0)
    for _ in range(100):
        rig.session.refusals.append(refusal(0, RequestTimedOut("no answer")))
    rig.claims[0].feed(0, 5)
    (task,) = rig.start()
    await rig.until(lambda: len(rig.session.refusals) < 99)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.session.marks == {tp(0): 5}
    assert len(rig.calls) == 1
    rig.assert_nothing_left()


# -- arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"max_rows": 0}, "max_rows=0"),
        ({"max_rows": True}, "max_rows=True"),
        ({"max_bytes": -1}, "max_bytes=-1"),
        ({"max_wait": -0.1}, "max_wait=-0.1"),
        ({"max_wait": float("nan")}, "max_wait=nan"),
        ({"max_wait": None}, "max_wait=None"),
    ],
)
async def test_bad_limits_are_refused(limits: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Rig(0, **limits)


async def test_an_async_fn_is_refused() -> None:
    async def fn(df: Any, batch_id: BatchId) -> None: ...

    with pytest.raises(ConfigError, match="plain function"):
        ForeachBatch(FakeSpark(), fn)  # type: ignore[arg-type]
