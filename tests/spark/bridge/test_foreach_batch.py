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
from tests.spark.bridge.rig import CLOSED, Rig, gate, refusal, tp

pytestmark = pytest.mark.asyncio


# -- without failures ----------------------------------------------------------------------------------------------------


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


async def test_claims_queue_records_while_fn_runs_until_two_batches_are_queued() -> None:
    begun, go, fn = gate()
    rig = Rig(0, fn=fn, max_rows=10)
    rig.claims[0].feed(0, 100)
    rig.start()
    await rig.until(lambda: begun.is_set() and rig.claims[0].handed_out == 30)
    for _ in range(20):
        await asyncio.sleep(0)
    assert rig.claims[0].handed_out == 30
    go.set()
    await rig.until(lambda: len(rig.session.commits) == 10)
    await rig.finish()


async def test_a_batch_collects_records_for_max_wait() -> None:
    rig = Rig(0, max_wait=0.2)
    rig.claims[0].feed(0, 1)
    rig.start()
    await rig.until(lambda: rig.claims[0].handed_out == 1)
    rig.claims[0].feed(1, 9)
    await rig.until(lambda: bool(rig.session.commits))
    assert rig.ranges == [(0, 0, 10)]
    await rig.finish()


async def test_a_range_starts_at_the_last_commit_even_if_the_log_has_a_gap() -> None:
    rig = Rig(0)
    rig.claims[0].position = 5
    rig.claims[0].feed(8, 2)
    rig.start()
    await rig.until(lambda: len(rig.session.commits) == 1)
    rig.claims[0].feed(15, 2)
    await rig.until(lambda: len(rig.session.commits) == 2)
    assert rig.ranges == [(0, 5, 10), (0, 10, 17)]
    await rig.finish()


@pytest.mark.parametrize(
    ("back", "delivered"),
    [(0, [*range(5)]), (40, [*range(40, 45)]), (45, [*range(40, 50)]), (55, [*range(40, 60)])],
)
async def test_a_backward_seek_drops_queued_records_from_there_on(back: int, delivered: list[int]) -> None:
    """Also after a truncation of the log: a range over both would include offsets that were not read."""
    rig = Rig(0, max_wait=0.2)
    rig.claims[0].position = 40
    for start, count in ((40, 10), (50, 10), (back, 5)):
        before = rig.claims[0].handed_out
        rig.claims[0].feed(start, count)
        if not rig.tasks:
            rig.start()
        await rig.until(lambda: rig.claims[0].handed_out == before + count)  # noqa: B023  it is awaited here
    await rig.until(lambda: len(rig.session.commits) == 1)
    assert rig.ranges == [(0, min(back, 40), back + 5)]
    assert rig.calls[0][0]["offset"].to_pylist() == delivered
    await rig.finish()


async def test_an_interrupted_batch_is_redelivered_up_to_a_backward_seek() -> None:
    begun, go, fn = gate()
    rig = Rig(0, 1, fn=fn, max_wait=0.1)
    rig.claims[0].position = 40
    rig.claims[0].feed(40, 10)
    rig.claims[1].feed(0, 10)
    tasks = rig.start()
    await rig.until(begun.is_set)
    rig.claims[0].feed(45, 10)
    await rig.until(lambda: rig.claims[0].handed_out == 20)
    rig.claims[1].end(CLOSED)
    tasks[1].cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks.pop()
    await rig.until(lambda: len(rig.session.commits) == 1)
    assert rig.ranges == [(0, 40, 50), (1, 0, 10), (0, 40, 55)]
    assert rig.calls[1][0]["offset"].to_pylist() == [*range(40, 55)]
    await rig.finish()


async def test_a_batch_interrupted_after_a_backward_seek_is_not_redelivered() -> None:
    def fn(_df: Any, batch_id: BatchId) -> None:
        if batch_id == 0:
            assert rig.spark.sparkContext.cancelled.wait(10)
            raise RuntimeError("job cancelled")

    rig = Rig(0, 1, fn=fn, max_wait=0.1)
    rig.claims[0].position = 40
    rig.claims[0].feed(40, 10)
    rig.claims[1].feed(0, 10)
    tasks = rig.start()
    await rig.until(lambda: len(rig.calls) == 1)
    rig.claims[0].feed(0, 5)
    await rig.until(lambda: rig.claims[0].handed_out == 15)
    rig.claims[1].end(CLOSED)
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks.pop()
    await rig.until(lambda: len(rig.session.commits) == 1)
    assert rig.ranges == [(0, 40, 50), (1, 0, 10), (0, 0, 5)]
    await rig.finish()


async def test_headers_are_optional() -> None:
    rig = Rig(0, include_headers=True)
    rig.claims[0].feed(0, 1)
    rig.start()
    await rig.until(lambda: bool(rig.session.commits))
    assert rig.calls[0][0]["headers"].to_pylist() == [None]
    await rig.finish()


async def test_batch_numbers_continue_over_sessions() -> None:
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


async def test_one_claim_raises_the_exception_of_fn_unchanged_and_nothing_is_committed() -> None:
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


@pytest.mark.parametrize(
    "error", [StopIteration("x"), SystemExit(3), ValueError("x"), asyncio.CancelledError("x")]
)
async def test_any_kind_of_exception_is_raised(error: BaseException) -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        raise error

    rig = Rig(0, fn=fn)
    rig.claims[0].feed(0, 5)
    with pytest.raises((type(error), RuntimeError)) as caught:
        await rig.handler.consume_claim(rig.session, rig.claims[0])  # type: ignore[arg-type]
    assert error in (caught.value, caught.value.__cause__)
    assert rig.session.commits == []
    rig.assert_nothing_left()


async def test_an_exception_of_fn_is_raised_even_if_the_job_tag_cannot_be_removed() -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        rig.spark.sparkContext.tags.clear()
        raise LookupError("Java is gone")

    rig = Rig(0, fn=fn)
    rig.claims[0].feed(0, 5)
    (task,) = rig.start()
    with pytest.raises(LookupError, match="Java is gone"):
        await task
    rig.assert_nothing_left()


@pytest.mark.parametrize("on_error", ["raise", Retry(times=50)])
async def test_a_jvm_that_ends_during_a_batch_ends_the_run_at_once(on_error: Any) -> None:
    """The original exception is the cause; there is no retry, which would fail as well."""

    def refuse() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    def fn(_df: Any, _batch_id: BatchId) -> None:
        calls.append(1)
        rig.spark.sparkContext._jsc = SimpleNamespace(sc=refuse)
        raise broken

    calls: list[int] = []

    broken = ConnectionResetError("Answer from Java side is empty")
    rig = Rig(0, fn=fn, on_error=on_error)
    rig.claims[0].feed(0, 5)
    (task,) = rig.start()
    with pytest.raises(SparkUnavailable, match=r"Java process has ended: .*Answer from Java side") as caught:
        await task
    assert caught.value.__cause__ is broken
    assert len(calls) == 1
    assert rig.session.commits == []
    rig.assert_nothing_left()


async def test_a_batch_whose_function_stops_spark_is_committed_and_the_next_one_fails() -> None:
    def fn(_df: Any, _batch_id: BatchId) -> None:
        rig.spark.sparkContext.tags.clear()
        rig.spark.sparkContext._jsc = None

    rig = Rig(0, fn=fn, max_rows=5)
    rig.claims[0].feed(0, 10)
    (task,) = rig.start()
    with pytest.raises(SparkUnavailable, match="was stopped"):
        await task
    assert rig.session.commits == [{tp(0): 5}]
    rig.assert_nothing_left()


async def test_a_jvm_that_does_not_answer_raises_spark_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_tag: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    rig = Rig(0)
    monkeypatch.setattr(rig.spark.sparkContext, "addJobTag", refuse)
    rig.claims[0].feed(0, 5)
    (task,) = rig.start()
    with pytest.raises(SparkUnavailable, match="Spark does not answer: ConnectionRefusedError"):
        await task
    rig.assert_nothing_left()


async def test_an_error_of_the_claims_iterator_is_raised_after_the_running_batch() -> None:
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


async def test_a_retriable_commit_error_is_retried_before_the_next_batch() -> None:
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


async def test_a_final_commit_error_is_raised() -> None:
    rig = Rig(0, max_rows=5)
    rig.session.refusals.append(refusal(0, BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")))
    rig.claims[0].feed(0, 10)
    (task,) = rig.start()
    with pytest.raises(CommitFailedError, match="GROUP_AUTHORIZATION_FAILED"):
        await task
    assert rig.ranges == [(0, 0, 5)]
    rig.assert_nothing_left()


async def test_other_errors_of_a_commit_are_raised() -> None:
    def over() -> None:
        raise UsageError("the session is over")

    rig = Rig(0)
    rig.session.on_commit = over
    rig.claims[0].feed(0, 10)
    (task,) = rig.start()
    with pytest.raises(UsageError, match="over"):
        await task
    rig.assert_nothing_left()


async def test_a_commit_error_of_another_partition_is_ignored() -> None:
    rig = Rig(0)
    rig.session.refusals.append(refusal(7, BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")))
    rig.claims[0].feed(0, 5)
    rig.start()
    await rig.until(lambda: not rig.session.refusals)
    await rig.finish()


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_error": "skip"}, "on_error='skip'.*'raise' or a Retry"),
        ({"start_from": 7}, "start_from=7.*a sync function"),
    ],
)
async def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Rig(0, **options)


async def test_an_async_fn_is_refused() -> None:
    async def fn(df: Any, batch_id: BatchId) -> None: ...

    with pytest.raises(ConfigError, match="sync function"):
        ForeachBatch(FakeSpark(), fn)  # type: ignore[arg-type]
