"""ForeachBatch with fake claims: order, commits, failures, arguments."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup.errors import (
    BrokerError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    OffsetOutOfRangeError,
    RequestTimedOut,
    UsageError,
)
from asyncgroup.spark import BatchId, ForeachBatch, OffsetRange, Retry
from asyncgroup.spark.requirements import SparkUnavailable
from tests.spark.bridge.fakes import TOPIC, FakeClaim, FakeSession, FakeSpark
from tests.spark.bridge.harness import CLOSED, Harness, blocking_function, refusal, tp

# -- without failures ----------------------------------------------------------------------------------------------------


async def test_records_of_all_claims_make_one_frame_and_are_committed() -> None:
    harness = Harness(0, 1, max_wait=0.05)
    harness.claims[0].feed(0, 30)
    harness.claims[1].feed(0, 20)
    harness.start()
    await harness.until(lambda: len(harness.session.commits) == 1)
    ((df, batch_id),) = harness.calls
    assert batch_id == 0
    assert batch_id.ranges == (OffsetRange(TOPIC, 0, 0, 30), OffsetRange(TOPIC, 1, 0, 20))
    assert df.column_names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert df["partition"].to_pylist() == [0] * 30 + [1] * 20
    assert df["offset"].to_pylist() == [*range(30), *range(20)]
    assert df["value"][31].as_py() == b"v1"
    assert harness.session.commits == [{tp(0): 30, tp(1): 20}]
    await harness.finish()


async def test_fn_runs_off_the_event_loop_in_one_thread() -> None:
    harness = Harness(0, max_rows=5)
    harness.claims[0].feed(0, 20)
    harness.start()
    await harness.until(lambda: len(harness.session.commits) == 4)
    assert len(harness.threads) == 1
    assert threading.current_thread().name not in harness.threads
    assert harness.spark.sparkContext.descriptions[1] == "batch 1: flights-0[5, 10)"
    await harness.finish()


async def test_the_next_batch_starts_only_after_the_commit() -> None:
    harness = Harness(0, max_rows=10)
    batches_begun_at_commit: list[int] = []
    harness.session.on_commit = lambda: batches_begun_at_commit.append(len(harness.calls))
    harness.claims[0].feed(0, 50)
    harness.start()
    await harness.until(lambda: len(harness.session.commits) == 5)
    assert batches_begun_at_commit == [1, 2, 3, 4, 5]
    assert harness.ranges == [(0, start, start + 10) for start in range(0, 50, 10)]
    await harness.finish()


async def test_claims_queue_records_while_fn_runs_until_two_batches_are_queued() -> None:
    begun, go, fn = blocking_function()
    harness = Harness(0, fn=fn, max_rows=10)
    harness.claims[0].feed(0, 100)
    harness.start()
    await harness.until(lambda: begun.is_set() and harness.claims[0].handed_out == 30)
    for _ in range(20):
        await asyncio.sleep(0)
    assert harness.claims[0].handed_out == 30
    go.set()
    await harness.until(lambda: len(harness.session.commits) == 10)
    await harness.finish()


async def test_a_batch_collects_records_for_max_wait() -> None:
    harness = Harness(0, max_wait=0.2)
    harness.claims[0].feed(0, 1)
    harness.start()
    await harness.until(lambda: harness.claims[0].handed_out == 1)
    harness.claims[0].feed(1, 9)
    await harness.until(lambda: bool(harness.session.commits))
    assert harness.ranges == [(0, 0, 10)]
    await harness.finish()


async def test_a_range_starts_at_the_last_commit_even_if_the_log_has_a_gap() -> None:
    harness = Harness(0)
    harness.claims[0].position = 5
    harness.claims[0].feed(8, 2)
    harness.start()
    await harness.until(lambda: len(harness.session.commits) == 1)
    harness.claims[0].feed(15, 2)
    await harness.until(lambda: len(harness.session.commits) == 2)
    assert harness.ranges == [(0, 5, 10), (0, 10, 17)]
    await harness.finish()


@pytest.mark.parametrize(
    ("back", "delivered"),
    [(0, [*range(5)]), (40, [*range(40, 45)]), (45, [*range(40, 50)]), (55, [*range(40, 60)])],
)
async def test_a_backward_seek_drops_queued_records_from_there_on(back: int, delivered: list[int]) -> None:
    """As after a truncation of the log. One range over old and new records would include offsets that were not read."""
    harness = Harness(0, max_wait=0.2)
    harness.claims[0].position = 40
    for start, count in ((40, 10), (50, 10), (back, 5)):
        before = harness.claims[0].handed_out
        harness.claims[0].feed(start, count)
        if not harness.tasks:
            harness.start()
        await harness.until(lambda: harness.claims[0].handed_out == before + count)  # noqa: B023  it is awaited here
    await harness.until(lambda: len(harness.session.commits) == 1)
    assert harness.ranges == [(0, min(back, 40), back + 5)]
    assert harness.calls[0][0]["offset"].to_pylist() == delivered
    await harness.finish()


async def test_an_interrupted_batch_is_redelivered_up_to_a_backward_seek() -> None:
    begun, go, fn = blocking_function()
    harness = Harness(0, 1, fn=fn, max_wait=0.1)
    harness.claims[0].position = 40
    harness.claims[0].feed(40, 10)
    harness.claims[1].feed(0, 10)
    tasks = harness.start()
    await harness.until(begun.is_set)
    harness.claims[0].feed(45, 10)
    await harness.until(lambda: harness.claims[0].handed_out == 20)
    harness.claims[1].end(CLOSED)
    tasks[1].cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks.pop()
    await harness.until(lambda: len(harness.session.commits) == 1)
    assert harness.ranges == [(0, 40, 50), (1, 0, 10), (0, 40, 55)]
    assert harness.calls[1][0]["offset"].to_pylist() == [*range(40, 55)]
    await harness.finish()


async def test_a_batch_interrupted_after_a_backward_seek_is_not_redelivered() -> None:
    def fn(_df: Any, batch_id: BatchId) -> None:
        if batch_id == 0:
            assert harness.spark.sparkContext.cancelled.wait(60)
            raise RuntimeError("job cancelled")

    harness = Harness(0, 1, fn=fn, max_wait=0.1)
    harness.claims[0].position = 40
    harness.claims[0].feed(40, 10)
    harness.claims[1].feed(0, 10)
    tasks = harness.start()
    await harness.until(lambda: len(harness.calls) == 1)
    harness.claims[0].feed(0, 5)
    await harness.until(lambda: harness.claims[0].handed_out == 15)
    harness.claims[1].end(CLOSED)
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks.pop()
    await harness.until(lambda: len(harness.session.commits) == 1)
    assert harness.ranges == [(0, 40, 50), (1, 0, 10), (0, 0, 5)]
    await harness.finish()


async def test_headers_are_optional() -> None:
    harness = Harness(0, include_headers=True)
    harness.claims[0].feed(0, 1)
    harness.start()
    await harness.until(lambda: bool(harness.session.commits))
    assert harness.calls[0][0]["headers"].to_pylist() == [None]
    await harness.finish()


async def test_batch_numbers_continue_over_sessions() -> None:
    harness = Harness(0)
    for session in range(2):
        harness.claims = [FakeClaim(0, initial_offset=session)]
        harness.session = FakeSession(*harness.claims)
        harness.claims[0].feed(session, 1)
        harness.start()
        await harness.until(lambda: bool(harness.session.commits))
        await harness.finish()
    assert [int(batch_id) for _, batch_id in harness.calls] == [0, 1]


# -- failures ------------------------------------------------------------------------------------------------------------


async def test_one_claim_raises_the_exception_of_fn_unchanged_and_the_batch_is_not_committed() -> None:
    def fn(_df: Any, batch_id: BatchId) -> None:
        if batch_id == 1:
            raise LookupError("no such warehouse")

    harness = Harness(0, 1, fn=fn)
    harness.claims[0].feed(0, 5)
    tasks = harness.start()
    await harness.until(lambda: len(harness.session.commits) == 1)
    harness.claims[0].feed(5, 5)
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    assert done == {tasks[0]}
    with pytest.raises(LookupError, match="no such warehouse") as caught:
        tasks[0].result()
    assert caught.value.__notes__ == ["while delivering <BatchId 1: flights-0[5, 10)>"]
    harness.session.end(CLOSED)
    await asyncio.gather(*pending)
    assert harness.session.commits == [{tp(0): 5}]
    assert harness.session.marks == {tp(0): 5}
    harness.assert_nothing_left()


@pytest.mark.parametrize(
    "error", [StopIteration("x"), SystemExit(3), ValueError("x"), asyncio.CancelledError("x")]
)
async def test_any_kind_of_exception_is_raised(error: BaseException) -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        raise error

    harness = Harness(0, fn=fn)
    harness.claims[0].feed(0, 5)
    with pytest.raises((type(error), RuntimeError)) as caught:
        await harness.handler.consume_claim(harness.session, harness.claims[0])  # type: ignore[arg-type]
    assert error in (caught.value, caught.value.__cause__)
    assert harness.session.commits == []
    harness.assert_nothing_left()


async def test_an_exception_of_fn_is_raised_even_if_the_job_tag_cannot_be_removed() -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        harness.spark.sparkContext.tags.clear()
        raise LookupError("Java is gone")

    harness = Harness(0, fn=fn)
    harness.claims[0].feed(0, 5)
    (task,) = harness.start()
    with pytest.raises(LookupError, match="Java is gone"):
        await task
    harness.assert_nothing_left()


@pytest.mark.parametrize("on_error", ["raise", Retry(times=50)])
async def test_a_jvm_that_ends_during_a_batch_ends_the_run_at_once(on_error: Any) -> None:
    """The original exception is the cause. There is no retry, as it would fail as well."""

    def refuse() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    def fn(_df: Any, _batch_id: BatchId) -> None:
        calls.append(1)
        harness.spark.sparkContext._jsc = SimpleNamespace(sc=refuse)
        raise broken

    calls: list[int] = []

    broken = ConnectionResetError("Answer from Java side is empty")
    harness = Harness(0, fn=fn, on_error=on_error)
    harness.claims[0].feed(0, 5)
    (task,) = harness.start()
    with pytest.raises(SparkUnavailable, match=r"Java process has ended: .*Answer from Java side") as caught:
        await task
    assert caught.value.__cause__ is broken
    assert len(calls) == 1
    assert harness.session.commits == []
    harness.assert_nothing_left()


async def test_a_batch_whose_function_stops_spark_is_committed_and_the_next_one_fails() -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        harness.spark.sparkContext.tags.clear()
        harness.spark.sparkContext._jsc = None

    harness = Harness(0, fn=fn, max_rows=5)
    harness.claims[0].feed(0, 10)
    (task,) = harness.start()
    with pytest.raises(SparkUnavailable, match="was stopped"):
        await task
    assert harness.session.commits == [{tp(0): 5}]
    harness.assert_nothing_left()


async def test_a_jvm_that_does_not_answer_raises_spark_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_tag: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    harness = Harness(0)
    monkeypatch.setattr(harness.spark.sparkContext, "addJobTag", refuse)
    harness.claims[0].feed(0, 5)
    await harness.fail(SparkUnavailable, match="Spark does not answer: ConnectionRefusedError")


async def test_an_error_of_the_claims_iterator_is_raised_after_the_running_batch() -> None:
    begun, go, fn = blocking_function()
    harness = Harness(0, fn=fn)
    harness.claims[0].feed(0, 5)
    (task,) = harness.start()
    await harness.until(begun.is_set)
    harness.claims[0].fail(OffsetOutOfRangeError("the log begins at 7"))
    await harness.until(lambda: harness.claims[0].error is not None)
    assert not task.done()
    go.set()
    with pytest.raises(OffsetOutOfRangeError):
        await task
    assert harness.session.commits == [{tp(0): 5}]
    harness.assert_nothing_left()


async def test_a_retriable_commit_error_is_retried_before_the_next_batch() -> None:
    harness = Harness(0, max_rows=5)
    harness.session.refusals.append(refusal(0, RequestTimedOut("no answer")))
    harness.session.refusals.append(refusal(0, BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, "commit")))
    harness.session.refusals.append(refusal(0, BrokerError(ErrorCode.NOT_COORDINATOR, "commit")))
    batches_begun_at_commit: list[int] = []
    harness.session.on_commit = lambda: batches_begun_at_commit.append(len(harness.calls))
    harness.claims[0].feed(0, 10)
    harness.start()
    await harness.until(lambda: len(harness.session.commits) == 2)
    assert batches_begun_at_commit == [1, 1, 1, 1, 2]
    assert harness.ranges == [(0, 0, 5), (0, 5, 10)]
    await harness.finish()


async def test_a_final_commit_error_is_raised() -> None:
    harness = Harness(0, max_rows=5)
    harness.session.refusals.append(refusal(0, BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")))
    harness.claims[0].feed(0, 10)
    (task,) = harness.start()
    with pytest.raises(CommitFailedError, match="GROUP_AUTHORIZATION_FAILED"):
        await task
    assert harness.ranges == [(0, 0, 5)]
    harness.assert_nothing_left()


async def test_other_errors_of_a_commit_are_raised() -> None:
    def fail() -> None:
        raise UsageError("the session is over")

    harness = Harness(0)
    harness.session.on_commit = fail
    harness.claims[0].feed(0, 10)
    await harness.fail(UsageError, match="over")


async def test_a_commit_error_of_another_partition_is_ignored() -> None:
    harness = Harness(0)
    harness.session.refusals.append(refusal(7, BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")))
    harness.claims[0].feed(0, 5)
    harness.start()
    await harness.until(lambda: not harness.session.refusals)
    await harness.finish()


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
        Harness(0, **limits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "skip"}, "on_error='skip'.*'raise' or a Retry"),
        ({"start_from": 7}, "start_from=7.*a sync function"),
    ],
)
async def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Harness(0, **options)


async def test_an_async_fn_is_refused() -> None:
    async def fn(df: Any, batch_id: BatchId) -> None: ...

    with pytest.raises(ConfigError, match="sync function"):
        ForeachBatch(FakeSpark(), fn)  # type: ignore[arg-type]
