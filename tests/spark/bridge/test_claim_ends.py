"""ForeachBatch with fake claims: the running batch when claims end, are lost or cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import (
    CallerCancelled,
    HandlerFailed,
    MemberLost,
    PartitionsChanged,
    Rebalanced,
    RequestTimedOut,
    SessionEnd,
    TopicsChanged,
)
from asyncgroup.spark import BatchId, BatchInterrupted, OffsetRange
from asyncgroup.spark.bridge.session_bridge import Bridge
from tests.spark.bridge.fakes import TOPIC, FakeClaim
from tests.spark.bridge.harness import CLOSED, Harness, blocking_function, refusal, tp

REBALANCED = Rebalanced("rebalance")
LOST = MemberLost("lost")


async def test_a_rebalance_commits_the_running_batch_and_drops_queued_records() -> None:
    begun, go, fn = blocking_function()
    harness = Harness(0, 1, fn=fn, max_rows=10)
    harness.claims[0].feed(0, 30)
    tasks = harness.start()
    await harness.until(lambda: begun.is_set() and harness.claims[0].handed_out == 30)
    harness.session.end(REBALANCED)
    await asyncio.wait({tasks[1]}, timeout=60)
    assert tasks[1].done(), "a claim without records in the batch ends at once"
    assert not tasks[0].done()
    go.set()
    await asyncio.gather(*tasks)
    assert harness.ranges == [(0, 0, 10)]
    assert harness.session.commits == [{tp(0): 10}]
    harness.assert_nothing_left()


async def test_other_claims_continue_after_one_is_revoked() -> None:
    begun, go, fn = blocking_function()
    harness = Harness(0, 1, fn=fn, max_rows=10)
    harness.claims[0].feed(0, 20)
    tasks = harness.start()
    await harness.until(lambda: begun.is_set() and harness.claims[0].handed_out == 20)
    harness.claims[1].feed(0, 10)
    await harness.until(lambda: harness.claims[1].handed_out == 10)
    harness.claims[0].end(REBALANCED)
    go.set()
    await tasks[0]
    await harness.until(lambda: len(harness.session.commits) == 2)
    assert harness.ranges == [(0, 0, 10), (1, 0, 10)]
    await harness.finish()


async def test_a_lost_member_marks_nothing_and_its_jobs_are_cancelled() -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        assert harness.spark.sparkContext.cancelled.wait(60)
        raise RuntimeError("job cancelled")

    harness = Harness(0, fn=fn)
    harness.claims[0].feed(0, 5)
    tasks = harness.start()
    await harness.until(lambda: bool(harness.calls))
    harness.session.end(LOST)
    await asyncio.gather(*tasks)
    assert harness.session.marks == {}
    assert harness.session.commits == []
    harness.assert_nothing_left()


async def test_a_session_lost_during_the_drain_interrupts_the_batch() -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        assert harness.spark.sparkContext.cancelled.wait(60)

    harness = Harness(0, fn=fn)
    harness.claims[0].feed(0, 5)
    tasks = harness.start()
    await harness.until(lambda: bool(harness.calls))
    harness.session.end(REBALANCED)
    for _ in range(5):
        await asyncio.sleep(0)
    harness.session.end(LOST)
    await asyncio.gather(*tasks)
    assert harness.session.marks == {}
    harness.assert_nothing_left()


async def test_a_cancelled_claim_waits_for_the_thread_and_the_others_get_their_records_again() -> None:
    cancelled = 0

    def fn(_df: Any, batch_id: BatchId) -> None:
        nonlocal cancelled
        if batch_id == 0:
            assert harness.spark.sparkContext.cancelled.wait(60)
            cancelled += 1
            raise RuntimeError("job cancelled")

    harness = Harness(0, 1, fn=fn, max_wait=0.05)
    harness.claims[0].feed(0, 5)
    harness.claims[1].feed(0, 7)
    tasks = harness.start()
    await harness.until(lambda: bool(harness.calls))
    assert harness.ranges == [(0, 0, 5), (1, 0, 7)]
    harness.claims[0].end(REBALANCED)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert cancelled == 1
    await harness.until(lambda: bool(harness.session.commits))
    assert harness.calls[1][1].ranges == (OffsetRange(TOPIC, 1, 0, 7),)
    assert harness.session.commits == [{tp(1): 7}]
    harness.session.end(CLOSED)
    await tasks[1]
    harness.assert_nothing_left()


@pytest.mark.parametrize(
    ("cause", "raised"),
    [
        (REBALANCED, BatchInterrupted),
        (PartitionsChanged("numbers has 8 partitions"), BatchInterrupted),
        (TopicsChanged("another pattern"), BatchInterrupted),
        (CLOSED, asyncio.CancelledError),
        (CallerCancelled("cancelled"), asyncio.CancelledError),
        (HandlerFailed("another claim"), asyncio.CancelledError),
    ],
)
async def test_an_interrupted_batch_is_an_error_only_after_a_rebalance(
    cause: SessionEnd, raised: type[BaseException]
) -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        assert harness.spark.sparkContext.cancelled.wait(60)
        raise RuntimeError("job cancelled")

    harness = Harness(0, 1, fn=fn, max_wait=0.05)
    for claim in harness.claims:
        claim.feed(0, 5)
    tasks = harness.start()
    await harness.until(lambda: bool(harness.calls))
    harness.session.end(cause)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(type(error).__name__ for error in found) == sorted([raised.__name__, "CancelledError"]), (
        "one claim raises for both"
    )
    assert harness.session.marks == {}
    harness.assert_nothing_left()


async def test_a_failure_at_the_same_time_as_a_cancellation_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the error would be lost, and the other claims would wait indefinitely."""

    def fn(_df: Any, _batch_id: BatchId) -> None:
        raise LookupError("no such warehouse")

    def fail(*arguments: Any) -> None:
        original(*arguments)
        tasks[0].cancel()

    original = Bridge._fail
    monkeypatch.setattr(Bridge, "_fail", fail)
    harness = Harness(0, 1, fn=fn)
    harness.claims[0].feed(0, 5)
    tasks = harness.start()
    with pytest.raises(LookupError, match="no such warehouse"):
        await tasks[0]
    harness.session.end(CLOSED)
    await tasks[1]
    harness.assert_nothing_left()


async def test_cancellation_during_the_commit_ends_the_claim_and_keeps_the_mark() -> None:
    harness = Harness(0)
    for _ in range(100):
        harness.session.refusals.append(refusal(0, RequestTimedOut("no answer")))
    harness.claims[0].feed(0, 5)
    (task,) = harness.start()
    await harness.until(lambda: len(harness.session.refusals) < 99)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.session.marks == {tp(0): 5}
    assert len(harness.calls) == 1
    harness.assert_nothing_left()


async def test_a_partition_that_comes_back_before_the_function_ends_is_handled() -> None:
    """A function that does no Spark work cannot be stopped: the session gives the claim up, and its handler still runs."""
    begun, go, fn = blocking_function()
    harness = Harness(0, 1, fn=fn, max_wait=0.05)
    harness.claims[0].feed(0, 5)
    harness.claims[1].feed(0, 7)
    tasks = harness.start()
    await harness.until(begun.is_set)
    harness.claims[0].end(REBALANCED)
    tasks[0].cancel()
    back = await come_back(harness, offset=10)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks.pop(0)
    await harness.until(lambda: len(harness.session.commits) == 1)
    back.feed(15, 5)
    await harness.until(lambda: len(harness.session.commits) == 2)
    assert harness.ranges == [(0, 0, 5), (1, 0, 7), (0, 10, 15), (1, 0, 7), (0, 15, 20)]
    assert harness.session.marks == {tp(0): 20, tp(1): 7}
    await harness.finish()


async def come_back(harness: Harness, offset: int) -> FakeClaim:
    """Assign partition 0 again, after other members have committed `offset`; wait until its records are queued."""
    back = FakeClaim(0, initial_offset=offset)
    harness.session.claims = [harness.claims[1], back]
    harness.tasks.append(asyncio.create_task(harness.handler.consume_claim(harness.session, back)))  # type: ignore[arg-type]
    back.feed(offset, 5)
    await harness.until(lambda: back.handed_out == 5)
    return back
