"""QueueForeachBatch over work queues in virtual time: outcomes of rows, failures, rebalances, closes, long batches."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup import ConsumerConfig, Producer
from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.model import Record
from asyncgroup.spark import FailedRows, QueueForeachBatch, Retry
from asyncgroup.spark.bridge import queue_batch, queue_foreach_batch
from asyncgroup.spark.requirements import SparkUnavailable
from asyncgroup.testing import VirtualKafka
from asyncgroup.workqueue import (
    Backoff,
    DeadLetter,
    Delivery,
    Mode,
    QueueInterceptor,
    RetryTopic,
    WorkQueue,
)
from tests.spark.bridge.fakes import FakeSpark, LoopJobs
from tests.spark.bridge.virtual import until

pytestmark = [
    pytest.mark.virtual,
    pytest.mark.kafka(topics={"numbers": 4, "numbers-lake-DLQ": 1, "numbers-lake-RETRY": 1}),
    pytest.mark.usefixtures("jobs"),
]

GROUP = "lake"
DEAD = "numbers-lake-DLQ"

Rows = list[tuple[str, int, int]]


class Function:
    """The function of a test: `result(rows, call)` returns or raises; the call takes `seconds(call)`. Calls count from 1."""

    def __init__(
        self,
        result: Callable[[Rows, int], Any] = lambda *_: None,
        seconds: Callable[[int], float] = lambda _: 0.1,
    ) -> None:
        self.result = result
        self.seconds = seconds
        self.calls: list[tuple[float, int, list[Any]]] = []
        """Time, number and Arrow batches of each call."""

    def __call__(self, batches: list[Any], batch_id: int) -> Any:
        assert type(batch_id) is int
        self.calls.append((asyncio.get_running_loop().time(), batch_id, batches))
        return self.result(rows_of(batches), len(self.calls))

    @property
    def rows(self) -> list[list[int]]:
        """The values of each call."""
        return [
            sorted(int(value) for batch in batches for value in batch["value"].to_pylist())
            for *_, batches in self.calls
        ]


def rows_of(batches: list[Any]) -> Rows:
    columns = ([batch[name].to_pylist() for name in ("topic", "partition", "offset")] for batch in batches)
    return [row for batch in columns for row in zip(*batch, strict=True)]


def named(*numbers: int) -> Callable[[Rows], Rows]:
    """Select the rows of these numbers: number n is in partition n % 4 at offset n // 4."""
    return lambda rows: [row for row in rows if row[0] == "numbers" and row[2] * 4 + row[1] in numbers]


class QueueJobs(LoopJobs):
    """As LoopJobs, for the function that a QueueForeachBatch calls; an error of the function comes at the end of the call."""

    def __init__(self, spark: Any, fn: Any) -> None:
        def call(batches: list[Any], batch_id: Any) -> float:
            function: Function = fn.__self__._fn
            seconds = function.seconds(len(function.calls) + 1)
            fn(batches, batch_id)
            return seconds

        super().__init__(spark, call)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_foreach_batch, "SparkJobs", QueueJobs)


def foreach_of(function: Function, **options: Any) -> QueueForeachBatch:
    made = QueueForeachBatch(FakeSpark(), function, **{"max_wait": 0.05, **options})  # type: ignore[arg-type]
    made._random.seed(1)
    return made


async def produce(kafka: VirtualKafka, count: int, start: int = 0, **more: Any) -> None:
    async with Producer(kafka.bootstrap_servers) as producer:
        for number in range(start, start + count):
            await producer.enqueue("numbers", b"%d" % number, partition=number % 4, **more)
        await producer.flush()


def queue_of(kafka: VirtualKafka, *, config: dict[str, Any] | None = None, **options: Any) -> WorkQueue:
    settings = ConsumerConfig(
        **{
            "assignors": ("cooperative-sticky",),
            "auto_offset_reset": "earliest",
            "rebalance_timeout": 30.0,
            "close_timeout": 40.0,
            **(config or {}),
        }
    )
    return WorkQueue(
        kafka.bootstrap_servers, GROUP, "numbers", config=settings, **{"nack_backoff": 5.0, **options}
    )


@contextlib.asynccontextmanager
async def running(
    kafka: VirtualKafka, foreach: QueueForeachBatch, **options: Any
) -> AsyncIterator[tuple[WorkQueue, asyncio.Task[None]]]:
    """Run a member until the end of the block, then close its queue and raise what ended it."""
    async with queue_of(kafka, **options) as queue:
        run = asyncio.create_task(foreach.run(queue))
        try:
            yield queue, run
        finally:
            await queue.aclose()
            await asyncio.wait([run])
    if not run.cancelled():
        await run


def committed(kafka: VirtualKafka) -> dict[int, int]:
    offsets = kafka.group(GROUP).offsets
    return {tp.partition: found.offset for tp, found in offsets.items() if tp.topic == "numbers"}


def values(kafka: VirtualKafka, topic: str) -> list[int]:
    return sorted(int(record.value or b"") for record in kafka.records(topic))


def headers(record: Record) -> dict[str, bytes | None]:
    return dict(record.headers)


# -- outcomes ------------------------------------------------------------------------------------------------------------


async def test_all_rows_are_acknowledged_if_the_function_returns(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 40)
    function = Function()
    foreach = foreach_of(function)
    async with running(virtual_kafka, foreach) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 40)
        assert sorted(itertools.chain(*function.rows)) == [*range(40)]
        assert [number for _, number, _ in function.calls] == [*range(len(function.calls))]
        (batch, *_) = function.calls[0][2]
        assert batch.schema.names == [
            *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        ]
        assert rows_of(function.calls[0][2]) == sorted(rows_of(function.calls[0][2]))
        statistics = foreach.statistics()
        assert (statistics.rows, statistics.batches, statistics.running) == (40, len(function.calls), None)
        assert statistics.bytes > 40
    assert committed(virtual_kafka) == dict.fromkeys(range(4), 10)


async def test_a_batch_has_at_most_max_rows_and_max_bytes(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 40)
    small, light = Function(), Function()
    async with running(virtual_kafka, foreach_of(small, max_rows=6)) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 40)
    assert max(map(len, small.rows)) == 6
    await produce(virtual_kafka, 40, 100)
    async with running(virtual_kafka, foreach_of(light, max_bytes=10)) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 40)
    assert max(map(len, light.rows)) == 3


async def test_headers(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 1, headers=[("h", b"1")])
    function = Function()
    async with running(virtual_kafka, foreach_of(function, include_headers=True)):
        await until(lambda: len(function.calls) == 1)
    assert function.calls[0][2][0]["headers"].to_pylist() == [[{"key": "h", "value": b"1"}]]


RESULTS: dict[str, Callable[[Rows], Any]] = {
    "returned": lambda rows: FailedRows(rows, delay=20),
    "list": lambda rows: [FailedRows(rows[:1], delay=20), FailedRows(rows[1:], delay=20.0), FailedRows([])],
    "records": lambda rows: FailedRows((Record(*row) for row in rows), delay=20),
    "dataframe": lambda rows: FailedRows(frame(rows), delay=20),
    "twice": lambda rows: FailedRows([*rows, *rows]),
}


def frame(rows: Rows) -> Any:
    """Return an object with the methods of a DataFrame that are used."""
    fields = ("topic", "partition", "offset")
    found = [SimpleNamespace(**dict(zip(fields, row, strict=True))) for row in rows]
    return SimpleNamespace(
        columns=[*fields, "reason"], select=lambda *_: SimpleNamespace(collect=lambda: found), collect=None
    )


@pytest.mark.parametrize("kind", [*RESULTS, "raised"])
async def test_named_rows_are_nacked_and_the_rest_is_committed(
    virtual_kafka: VirtualKafka, kind: str
) -> None:
    await produce(virtual_kafka, 40)

    def result(rows: Rows, call: int) -> Any:
        bad = named(0, 9, 38)(rows) if call == 1 else []
        if kind == "raised" and call == 1:
            raise FailedRows(bad)
        return RESULTS.get(kind, FailedRows)(bad)

    function = Function(result)
    foreach = foreach_of(function, max_wait=1.0, durable=True)
    async with running(virtual_kafka, foreach) as (queue, _):
        await until(lambda: len(function.calls) == 2)
        assert function.rows == [[*range(40)], [0, 9, 38]]
        delay = 5 if kind in ("twice", "raised") else 20
        assert function.calls[1][0] - function.calls[0][0] == pytest.approx(delay + 0.1, abs=1.3)
        await until(lambda: queue.statistics().counts.acked == 40)
        assert queue.statistics().counts.nacked == 3
        assert foreach.statistics().failures == 0
    assert committed(virtual_kafka) == dict.fromkeys(range(4), 10)


async def test_acknowledgements_of_a_failed_batch_survive_a_restart(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 40)
    first = Function(lambda rows, _: FailedRows(named(0, 9)(rows), delay=1000))
    async with running(virtual_kafka, foreach_of(first, max_wait=1.0)) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 38)
    assert committed(virtual_kafka) == {0: 0, 1: 2, 2: 10, 3: 10}
    second = Function()
    async with running(virtual_kafka, foreach_of(second)) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 2)
    assert sorted(itertools.chain(*second.rows)) == [0, 9]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_durable_batch_is_committed_before_the_next_one(
    virtual_kafka: VirtualKafka, durable: bool
) -> None:
    await produce(virtual_kafka, 12)
    done: list[int] = []
    function = Function(lambda *_: done.append(sum(committed(virtual_kafka).values())))
    foreach = foreach_of(function, max_rows=4, durable=durable)
    async with running(virtual_kafka, foreach, ack_group_time=1000.0) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 12)
    assert done == ([0, 4, 8] if durable else [0, 0, 0])
    assert sum(committed(virtual_kafka).values()) == 12


async def test_named_rows_go_to_the_dead_letter_and_the_retry_topic(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 40)

    def result(rows: Rows, _: int) -> Any:
        return [
            FailedRows(named(1, 2)(rows), reject="not a number"),
            FailedRows(named(3, 4)(rows), reconsume_later=60),
            FailedRows(named(5)(rows), delay=2),
        ]

    function = Function(lambda rows, call: result(rows, call) if call == 1 else None)
    foreach = foreach_of(function, max_wait=1.0)
    options = {"retry": RetryTopic(), "dead_letter": DeadLetter(3)}
    async with running(virtual_kafka, foreach, **options) as (queue, _):
        await until(lambda: len(function.calls) == 3)
        assert function.rows[1:] == [[5], [3, 4]]
        assert function.calls[2][0] - function.calls[0][0] >= 60
        await until(lambda: not queue.statistics().acquired)
    assert values(virtual_kafka, DEAD) == [1, 2]
    assert {headers(record)["__dlq.errors.message"] for record in virtual_kafka.records(DEAD)} == {
        b"not a number"
    }
    assert committed(virtual_kafka) == dict.fromkeys(range(4), 10)


async def test_a_copy_counts_before_the_next_batch_begins(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 8)
    copies: list[int] = []

    def result(rows: Rows, call: int) -> Any:
        copies.append(len(values(virtual_kafka, DEAD)) if call > 1 else 0)
        return FailedRows(rows, reject="bad")

    async with running(
        virtual_kafka, foreach_of(Function(result), max_rows=4), dead_letter=DeadLetter(3)
    ) as (queue, _):
        await until(lambda: queue.statistics().counts.dead_lettered == 8)
    assert copies == [0, 4]


# -- failures ------------------------------------------------------------------------------------------------------------


def fails(call: int) -> Callable[[Rows, int], None]:
    """Raise until this call."""

    def result(_: Rows, number: int) -> None:
        if number < call:
            raise ValueError(f"call {number}")

    return result


async def test_another_exception_nacks_all_rows(
    virtual_kafka: VirtualKafka, caplog: pytest.LogCaptureFixture
) -> None:
    await produce(virtual_kafka, 40)
    function = Function(fails(2))
    foreach = foreach_of(function, max_wait=1.0)
    async with running(virtual_kafka, foreach) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 40)
        assert queue.statistics().counts.nacked == 40
        assert function.rows[:2] == [[*range(40)], [*range(40)]]
        assert function.calls[1][0] - function.calls[0][0] >= 5
        assert (foreach.statistics().failures, foreach.statistics().last_error) == (1, "ValueError: call 1")
    assert any("its records are nacked" in text for text in caplog.messages)


async def test_the_last_delivery_goes_to_the_dead_letter_topic_with_the_error(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 4)
    foreach = foreach_of(Function(fails(99)))
    options = {"dead_letter": DeadLetter(1), "nack_backoff": Backoff.fixed(1)}
    async with running(virtual_kafka, foreach, **options) as (queue, _):
        await until(lambda: queue.statistics().counts.dead_lettered == 4)
        await until(lambda: committed(virtual_kafka) == dict.fromkeys(range(4), 1))
    assert values(virtual_kafka, DEAD) == [0, 1, 2, 3]
    (message,) = {headers(record)["__dlq.errors.message"] for record in virtual_kafka.records(DEAD)}
    assert message is not None
    assert message.startswith(b"ValueError: call ")


async def test_retries_with_the_same_rows_count_no_delivery(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 40)
    function = Function(fails(3))
    foreach = foreach_of(function, max_wait=1.0, on_error=Retry(times=2, backoff=1))
    async with running(virtual_kafka, foreach) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 40)
        assert (queue.statistics().counts.delivered, queue.statistics().counts.nacked) == (40, 0)
    assert [number for _, number, _ in function.calls] == [0, 0, 0]
    assert function.rows == [[*range(40)]] * 3
    assert foreach.statistics().failures == 2


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (FailedRows([("numbers", 0, 3), ("numbers", 7, 0), ("other", 0, 0)]), "numbers-7@0, other-0@0"),
        (FailedRows([("numbers", 9, offset) for offset in range(20)]), "numbers-9@4 and 15 more"),
        (FailedRows([("numbers", 0)]), "a DataFrame with the columns topic, partition and offset"),
        (FailedRows([("numbers", None, 1)]), "none null"),
        (FailedRows("numbers"), "a DataFrame with"),
        (FailedRows(3), "rows of type int"),
        (FailedRows(frame([]), reject="bad"), "dead_letter=DeadLetter"),
        (FailedRows([("numbers", 0, 0)], reject="bad"), "dead_letter=DeadLetter"),
        (FailedRows([("numbers", 0, 0)], reconsume_later=1), "retry=RetryTopic"),
        ([FailedRows([("numbers", 0, 0)]), FailedRows([("numbers", 0, 0)], delay=1)], "no other FailedRows"),
        ([("numbers", 0, 0)], "None, a FailedRows, or a list"),
        (True, "result of the function of type bool"),
    ],
)
async def test_a_result_that_makes_no_sense_nacks_all_rows(
    virtual_kafka: VirtualKafka, result: Any, text: str
) -> None:
    await produce(virtual_kafka, 16)
    function = Function(lambda _, call: result if call == 1 else None)
    foreach = foreach_of(function, max_wait=1.0)
    async with running(virtual_kafka, foreach) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 16)
        assert queue.statistics().counts.nacked == 16
        error = foreach.statistics().last_error
        assert error is not None
        assert text in error


class Refuses(QueueInterceptor):
    """Refuses the first acknowledgement of a value."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def on_acknowledge(self, delivery: Delivery) -> None:
        if delivery.value == self.value and delivery.attempt == 1:
            raise ValueError("refused")


async def test_an_acknowledgement_that_an_interceptor_refuses(
    virtual_kafka: VirtualKafka, caplog: pytest.LogCaptureFixture
) -> None:
    await produce(virtual_kafka, 16)
    function = Function()
    async with running(virtual_kafka, foreach_of(function, max_wait=1.0), interceptors=[Refuses(b"5")]) as (
        queue,
        _,
    ):
        await until(lambda: queue.statistics().counts.acked == 16)
    assert function.rows == [[*range(16)], [5]]
    assert any("was refused" in text for text in caplog.messages)


async def test_the_end_of_spark_ends_the_run_and_counts_no_delivery(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 16)
    first = foreach_of(Function(raises(SparkUnavailable("Java has ended"))), on_error=Retry(times=50))
    attempts: list[int] = []
    async with queue_of(virtual_kafka) as queue:
        with pytest.raises(SparkUnavailable, match="Java has ended"):
            await first.run(queue)
        assert first.statistics().failures == 1
        attempts += [delivery.attempt for delivery in await queue.batch_receive()]
        assert queue.statistics().counts.nacked == 0
    assert attempts == [1] * 16


def raises(error: Exception) -> Callable[[Rows, int], None]:
    def result(_: Rows, __: int) -> None:
        raise error

    return result


# -- rebalances, closes, cancellation ------------------------------------------------------------------------------------


async def test_a_rebalance_waits_for_the_batch(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 40)
    function = Function(seconds=lambda call: 20.0 if call == 1 else 0.1)
    first, second = (foreach_of(function, max_wait=1.0) for _ in range(2))
    async with running(virtual_kafka, first) as (queue, _):
        await until(lambda: len(function.calls) == 1)
        async with running(virtual_kafka, second) as (other, _):
            await until(lambda: len(other.statistics().partitions) == 2)
            assert asyncio.get_running_loop().time() - function.calls[0][0] == pytest.approx(20, abs=5)
            assert queue.statistics().counts.acked == 40
    assert sorted(itertools.chain(*function.rows)) == [*range(40)], "no row was delivered again"
    assert first.statistics().interrupted == 0


async def test_the_outcome_of_lost_rows_is_discarded(
    virtual_kafka: VirtualKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The rebalance does not wait longer: rows of partitions that stay are acknowledged, the others delivered again."""
    await produce(virtual_kafka, 40)
    function = Function(
        lambda rows, call: FailedRows(rows[:1] + rows[-1:]) if call == 1 else None,
        seconds=lambda call: 120.0 if call == 1 else 0.1,
    )
    other = Function()
    async with running(virtual_kafka, foreach_of(function, max_wait=1.0)) as (queue, _):
        await until(lambda: len(function.calls) == 1)
        async with running(virtual_kafka, foreach_of(other)) as (second, _):
            await until(lambda: second.statistics().counts.acked == 20)
            await until(lambda: queue.statistics().counts.acked == 20)
            assert queue.statistics().counts.nacked in (0, 1, 2)
    assert function.rows[0] == [*range(40)]
    assert len(other.rows[0]) <= 20
    assert any("20 of its records are delivered again" in text for text in caplog.messages)
    assert committed(virtual_kafka) == dict.fromkeys(range(4), 10)


async def test_a_batch_that_has_lost_all_rows_is_interrupted(virtual_kafka: VirtualKafka) -> None:
    """After an eager rebalance nothing of the batch stays."""
    await produce(virtual_kafka, 40)
    function = Function(seconds=lambda call: 1000.0 if call == 1 else 0.1)
    first, second = (foreach_of(function, max_wait=1.0) for _ in range(2))
    eager = {"assignors": ("range",)}
    async with running(virtual_kafka, first, config=eager) as (queue, _):
        await until(lambda: len(function.calls) == 1)
        async with running(virtual_kafka, second, config=eager) as (other, _):
            await until(
                lambda: queue.statistics().counts.acked + other.statistics().counts.acked == 40, limit=200
            )
    assert first.statistics().interrupted == 1
    assert sorted(itertools.chain(*function.rows[1:])) == [*range(40)]


async def test_a_close_waits_for_the_batch(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 16)
    function = Function(lambda rows, _: FailedRows(named(3)(rows)), seconds=lambda _: 20.0)
    async with running(virtual_kafka, foreach_of(function, max_wait=1.0)):
        await until(lambda: len(function.calls) == 1)
    assert len(function.calls) == 1
    assert committed(virtual_kafka) == {0: 4, 1: 4, 2: 4, 3: 0}


async def test_a_batch_that_outlasts_the_close_is_interrupted(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 16)
    function = Function(seconds=lambda _: 1000.0)
    foreach = foreach_of(function, max_wait=1.0)
    async with running(virtual_kafka, foreach):
        await until(lambda: len(function.calls) == 1)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began <= 42
    assert (foreach.statistics().interrupted, foreach.statistics().failures) == (1, 0)
    assert not sum(committed(virtual_kafka).values())


async def test_a_cancelled_run_gives_the_batch_back(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 16)
    function = Function(lambda rows, _: FailedRows(rows), seconds=lambda _: 1000.0)
    foreach = foreach_of(function, max_wait=1.0)
    async with queue_of(virtual_kafka) as queue:
        run = asyncio.create_task(foreach.run(queue))
        await until(lambda: len(function.calls) == 1)
        assert repr(foreach).endswith("16 deliveries>>")
        assert foreach.statistics().running == 0
        began = asyncio.get_running_loop().time()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert asyncio.get_running_loop().time() - began <= 1
        assert (foreach.statistics().interrupted, foreach.statistics().failures) == (1, 0)
        assert repr(foreach).endswith(": not running>")
        batch = await queue.batch_receive()
        assert [(delivery.attempt, delivery.state.name) for delivery in batch] == [(1, "ACQUIRED")] * 16
        assert (queue.statistics().counts.acked, queue.statistics().counts.nacked) == (0, 0)


async def test_a_cancellation_waits_for_the_acknowledgements_of_a_finished_batch(
    virtual_kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written in several steps; the rows have been stored, so none should be delivered again."""
    monkeypatch.setattr(queue_batch, "OUTCOMES_IN_A_STEP", 2)
    await produce(virtual_kafka, 16)
    foreach = foreach_of(Function(), max_wait=1.0)

    class Cancels(QueueInterceptor):
        def on_acknowledge(self, delivery: Delivery) -> None:
            if delivery.value == b"4":
                run.cancel()

    async with queue_of(virtual_kafka, interceptors=[Cancels()]) as queue:
        run = asyncio.create_task(foreach.run(queue))
        await asyncio.wait({run})
        assert run.cancelled()
        assert queue.statistics().counts.acked == 16
        assert foreach.statistics().interrupted == 0


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancellation_at_any_time_acknowledges_only_what_is_done(
    virtual_kafka: VirtualKafka, turns: int
) -> None:
    await produce(virtual_kafka, 16)
    function = Function(lambda rows, _: FailedRows(rows[:1], reject="bad"), seconds=lambda _: 0.0)
    foreach = foreach_of(function, max_wait=1.0)
    async with queue_of(virtual_kafka, dead_letter=DeadLetter(3)) as queue:
        run = asyncio.create_task(foreach.run(queue))
        await until(lambda: bool(function.calls))
        for _ in range(turns):
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait({run})
        await until(lambda: not any(part.publishing for part in queue.statistics().partitions))
        counts = queue.statistics().counts
        assert (counts.acked, counts.dead_lettered) in ((0, 0), (15, 0), (15, 1))
        again = await queue.batch_receive()
        assert len(again) == 16 - counts.acked - counts.dead_lettered


# -- long batches --------------------------------------------------------------------------------------------------------


async def test_deliveries_do_not_expire_while_the_function_runs(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 16)
    function = Function(fails(2), seconds=lambda _: 100.0)
    foreach = foreach_of(function, max_wait=0.9, on_error=Retry(backoff=20, backoff_max=20))
    async with running(virtual_kafka, foreach, ack_timeout=1) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 16)
        assert queue.statistics().counts.expired == 0
    assert function.rows == [[*range(16)]] * 2


async def test_the_claims_of_a_long_batch_are_not_stuck(virtual_kafka: VirtualKafka) -> None:
    """Their receiver queues are full, so that nothing is read while the function runs."""
    await produce(virtual_kafka, 120)
    function = Function(seconds=lambda call: 200.0 if call == 1 else 0.1)
    foreach = foreach_of(function, max_rows=20)
    config = {"max_poll_interval": 60.0}
    async with running(virtual_kafka, foreach, config=config, receiver_queue=4) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 120)
        assert queue.health().problems == ()
    assert sorted(itertools.chain(*function.rows)) == [*range(120)], "no row was delivered again"


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.FAILOVER, Mode.KEY_SHARED])
async def test_modes_with_an_order(virtual_kafka: VirtualKafka, mode: Mode) -> None:
    await produce(virtual_kafka, 40, key=b"k")
    function = Function(lambda rows, call: FailedRows(named(0)(rows), reject="bad") if call == 1 else None)
    config = {"assignors": None if mode is not Mode.KEY_SHARED else ("cooperative-sticky",)}
    async with running(
        virtual_kafka, foreach_of(function, max_wait=1.0), mode=mode, config=config, dead_letter=DeadLetter(3)
    ) as (queue, _):
        await until(lambda: queue.statistics().counts.acked == 39)
    assert values(virtual_kafka, DEAD) == [0]
    delivered = [n for rows in function.rows for n in rows]
    assert [[n for n in delivered if n % 4 == part] for part in range(4)] == [
        [*range(part, 40, 4)] for part in range(4)
    ]
    assert (len(function.rows[0]) == 40) is mode.in_order, (
        "with KEY_SHARED one record of the key in each partition"
    )


# -- arguments -----------------------------------------------------------------------------------------------------------


def store(_df: Any, _batch_id: int) -> None:
    raise AssertionError


class NeedsRanges:
    _needs_ranges = True

    def __call__(self, _df: Any, _batch_id: int) -> None:
        raise AssertionError


async def async_store(_df: Any, _batch_id: int) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fn": async_store}, "fn=.*a sync function"),
        ({"fn": None}, "fn=None.*a sync function"),
        ({"fn": NeedsRanges()}, "fn=.*needs no offset ranges"),
        ({"max_rows": 0}, "max_rows=0.*1 or more"),
        ({"max_bytes": -1}, "max_bytes=-1.*1 or more"),
        ({"max_wait": 0}, "max_wait=0.*above 0"),
        ({"max_wait": float("nan")}, "max_wait=nan.*above 0"),
        ({"on_error": "raise"}, "on_error='raise'.*'nack' or a Retry"),
    ],
)
async def test_invalid_arguments(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        QueueForeachBatch(FakeSpark(), **{"fn": store, **options})  # type: ignore[arg-type]


async def test_runs_that_are_refused(virtual_kafka: VirtualKafka) -> None:
    foreach = foreach_of(Function())
    with pytest.raises(ConfigError, match=r"queue='numbers'.*a WorkQueue"):
        await foreach.run("numbers")  # type: ignore[arg-type]
    with pytest.raises(ClosedError, match="not open"):
        await foreach.run(queue_of(virtual_kafka))
    async with running(virtual_kafka, foreach) as (queue, _):
        await until(lambda: repr(foreach).endswith(": idle>"))
        with pytest.raises(UsageError, match="it runs already"):
            await foreach.run(queue)
    await foreach.run(queue)  # it is closed: returns at once
