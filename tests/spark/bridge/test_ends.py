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
from tests.spark.bridge.fakes import TOPIC
from tests.spark.bridge.rig import CLOSED, Rig, gate, refusal, tp

pytestmark = pytest.mark.asyncio

REBALANCED = Rebalanced("rebalance")
LOST = MemberLost("lost")


async def test_a_rebalance_commits_the_running_batch_and_drops_queued_records() -> None:
    begun, go, fn = gate()
    rig = Rig(0, 1, fn=fn, max_rows=10)
    rig.claims[0].feed(0, 30)
    tasks = rig.start()
    await rig.until(lambda: begun.is_set() and rig.claims[0].handed_out == 30)
    rig.session.end(REBALANCED)
    await asyncio.wait({tasks[1]}, timeout=10)
    assert tasks[1].done(), "a claim without records in the batch ends at once"
    assert not tasks[0].done()
    go.set()
    await asyncio.gather(*tasks)
    assert rig.ranges == [(0, 0, 10)]
    assert rig.session.commits == [{tp(0): 10}]
    rig.assert_nothing_left()


async def test_other_claims_continue_after_one_is_revoked() -> None:
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


async def test_a_session_lost_during_the_drain_interrupts_the_batch() -> None:
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


async def test_a_cancelled_claim_waits_for_the_thread_and_the_others_get_their_records_again() -> None:
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
        assert rig.spark.sparkContext.cancelled.wait(60)
        raise RuntimeError("job cancelled")

    rig = Rig(0, 1, fn=fn, max_wait=0.05)
    for claim in rig.claims:
        claim.feed(0, 5)
    tasks = rig.start()
    await rig.until(lambda: bool(rig.calls))
    rig.session.end(cause)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(type(error).__name__ for error in found) == sorted([raised.__name__, "CancelledError"]), (
        "one claim raises for both"
    )
    assert rig.session.marks == {}
    rig.assert_nothing_left()


async def test_a_failure_at_the_same_time_as_a_cancellation_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the error would be lost, and the other claims would wait indefinitely."""

    def fn(_df: Any, _batch_id: BatchId) -> None:
        raise LookupError("no such warehouse")

    def fail(*arguments: Any) -> None:
        told(*arguments)
        tasks[0].cancel()

    told = Bridge._fail
    monkeypatch.setattr(Bridge, "_fail", fail)
    rig = Rig(0, 1, fn=fn)
    rig.claims[0].feed(0, 5)
    tasks = rig.start()
    with pytest.raises(LookupError, match="no such warehouse"):
        await tasks[0]
    rig.session.end(CLOSED)
    await tasks[1]
    rig.assert_nothing_left()


async def test_cancellation_during_the_commit_ends_the_claim_and_keeps_the_mark() -> None:
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
