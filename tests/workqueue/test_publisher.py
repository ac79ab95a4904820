"""TopicPublisher with a producer that is answered by hand, and with a broker: nothing is acknowledged before its copy."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import pytest_asyncio

from asyncgroup.ack_window import AckWindow
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.delivery_headers import DELIVER_AT
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    ConfigError,
    CopyFailedError,
    DeadLetterRateError,
    ErrorCode,
    InvalidRecordError,
    RequestTimedOut,
    UsageError,
)
from asyncgroup.model import Header, Record, RecordMetadata, TopicPartition
from asyncgroup.producer import Producer
from asyncgroup.producer.arguments import check_headers
from asyncgroup.workqueue.copies import (
    DLQ_DELIVERY_COUNT,
    DLQ_MESSAGE,
    RECONSUMETIMES,
    CopyHeaders,
)
from asyncgroup.workqueue.delivery import AckOutcome, Delivery, DeliveryState, Publisher
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.group_engine.copy_writer import DirectCopies
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.policies import Breaker
from asyncgroup.workqueue.publisher import TopicPublisher
from asyncgroup.workqueue.statistics import QueueCounts

pytestmark = pytest.mark.usefixtures("no_asyncio_errors")

RETRY, DLQ = "orders-billing-RETRY", "orders-billing-DLQ"
NOW = 1_700_000_000_000
TP = TopicPartition("orders", 0)


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class HandProducer:
    """A producer whose records are acknowledged, or fail, when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes | None, dict[str, bytes | None]]] = []
        self.open: list[asyncio.Future[RecordMetadata]] = []
        self.is_stubborn = False
        """Whether `send` returns the metadata in spite of a cancellation, after a second."""

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: list[Header],
        timestamp: int | None,
    ) -> RecordMetadata:
        self.sent.append((topic, value, dict(headers)))
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self.open.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if not self.is_stubborn:
                raise
            await asyncio.sleep(1)
            return RecordMetadata(topic, 0, 0, 0)

    def acknowledge(self, index: int = 0) -> None:
        self.open.pop(index).set_result(RecordMetadata(self.sent[index][0], 0, len(self.sent), 0))

    def fail(self, error: Exception, index: int = 0) -> None:
        self.open.pop(index).set_exception(error)


class Queue:
    """A queue that checks that each delivery ends once, and counts."""

    def __init__(self) -> None:
        self.counts = QueueCounts()
        self.calls: list[tuple[str, int]] = []
        self.publishing: set[int] = set()
        self.lost: set[int] = set()
        self.before_finish: Callable[[], None] = lambda: None

    def begin_publishing(self, delivery: Delivery) -> None:
        assert delivery.record.offset not in self.publishing
        self.publishing.add(delivery.record.offset)
        delivery.state = DeliveryState.PUBLISHING

    def finish(self, delivery: Delivery) -> AckOutcome:
        self.before_finish()
        self._end("finish", delivery)
        return AckOutcome.LOST if delivery.record.offset in self.lost else AckOutcome.ACKED

    def give_back(self, delivery: Delivery) -> None:
        self._end("give back", delivery)

    def report_end(self, delivery: Delivery, outcome: str, error: BaseException | None = None) -> None:
        pass

    def _end(self, call: str, delivery: Delivery) -> None:
        self.publishing.remove(delivery.record.offset)
        self.calls.append((call, delivery.record.offset))


class Desk:
    """A publisher over a hand-driven producer, and what it reported."""

    def __init__(self, **options: Any) -> None:
        self.producer = HandProducer()
        self.queue = Queue()
        self.errors: list[AsyncGroupError] = []
        self.trips: list[DeadLetterRateError] = []
        self.dead: list[tuple[int, str]] = []
        settings: dict[str, Any] = {"retry_topic": RETRY, "dead_letter_topic": DLQ, "max_redeliveries": 2}
        self.publisher = TopicPublisher(
            DirectCopies(cast(Producer, self.producer)),
            CopyHeaders("billing", lambda: NOW, check_headers),
            "billing",
            on_error=self.errors.append,
            on_dead_letter=lambda delivery, _, reason: self.dead.append((delivery.record.offset, reason)),
            on_trip=self.trips.append,
            **(settings | options),
        )

    def delivery(self, offset: int = 0, attempt: int = 1, partition: int = 0) -> Delivery:
        record = Record("orders", partition, offset, NOW - 1, key=b"ann", value=b"%d" % offset)
        return Delivery(record, attempt, None, cast(Any, None), cast(Any, self.queue))

    def start(self, offset: int = 0, reason: str = "nacked", partition: int = 0) -> Delivery:
        """Begin a dead letter as the dispatcher does."""
        delivery = self.delivery(offset, 3, partition)
        self.queue.begin_publishing(delivery)
        self.publisher.start_dead_letter(delivery, reason)
        return delivery

    @property
    def calls(self) -> list[tuple[str, int]]:
        return self.queue.calls


@asynccontextmanager
async def desk(**options: Any) -> AsyncIterator[Desk]:
    made = Desk(**options)
    try:
        yield made
    finally:
        await made.publisher.aclose()
        assert not made.queue.publishing
        assert not made.publisher.publishing


async def turn(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


UNHEALTHY = RequestTimedOut("no answer")

# --- what follows a copy ------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def made() -> AsyncIterator[Desk]:
    """A desk with the default options."""
    async with desk() as made:
        yield made


async def test_it_is_the_publisher_of_a_dispatcher() -> None:
    publisher: Publisher = Desk().publisher
    assert [publisher.is_last(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    endless: Publisher = Desk(max_redeliveries=None).publisher
    assert not endless.is_last(10**9)


async def test_a_dead_letter_is_acknowledged_after_its_copy(made: Desk) -> None:
    made.start(7, "ValueError: no")
    await asyncio.sleep(1000)
    assert made.calls == []
    topic, value, headers = made.producer.sent[0]
    assert (topic, value, headers[DLQ_MESSAGE], headers[DLQ_DELIVERY_COUNT]) == (
        DLQ,
        b"7",
        b"ValueError: no",
        b"3",
    )
    made.producer.acknowledge()
    await made.publisher.wait_idle(TP)
    assert made.calls == [("finish", 7)]
    assert (made.dead, made.queue.counts.dead_lettered, made.errors) == ([(7, "ValueError: no")], 1, [])


async def test_reject_returns_the_outcome_after_the_copy(made: Desk) -> None:
    rejection = asyncio.create_task(made.publisher.reject(made.delivery(4), "bad"))
    await asyncio.sleep(1000)
    assert not rejection.done()
    assert made.calls == []
    made.producer.acknowledge()
    assert await rejection is AckOutcome.ACKED
    made.queue.lost.add(5)
    rejection = asyncio.create_task(made.publisher.reject(made.delivery(5), "bad"))
    await turn()
    made.producer.acknowledge()
    assert await rejection is AckOutcome.LOST
    assert made.calls == [("finish", 4), ("finish", 5)]


async def test_reconsume_later_copies_to_the_retry_topic(made: Desk) -> None:
    call = made.publisher.reconsume_later(made.delivery(4, attempt=2), 30, [("why", b"busy")])
    reconsumed = asyncio.create_task(call)
    await asyncio.sleep(1000)  # the delay counts from the call, however long the copy takes
    topic, _, headers = made.producer.sent[0]
    assert (topic, headers[RECONSUMETIMES], headers["why"]) == (RETRY, b"2", b"busy")
    assert headers[DELIVER_AT] == b"%d" % (NOW + 30_000)
    assert made.calls == []
    made.producer.acknowledge()
    assert await reconsumed is AckOutcome.ACKED
    assert (made.queue.counts.reconsumed, made.queue.counts.dead_lettered) == (1, 0)
    assert made.dead == []


async def test_the_last_delivery_is_not_reconsumed_but_a_dead_letter(made: Desk) -> None:
    reconsumed = asyncio.create_task(made.publisher.reconsume_later(made.delivery(4, attempt=3), 30, []))
    await turn()
    assert made.producer.sent[0][0] == DLQ
    made.producer.acknowledge()
    assert await reconsumed is AckOutcome.ACKED
    assert made.dead == [(4, "reconsumed after the last of 3 deliveries")]
    assert (made.queue.counts.reconsumed, made.queue.counts.dead_lettered) == (0, 1)


async def test_calls_that_the_queue_does_not_allow_change_nothing() -> None:
    async with desk(retry_topic=None, dead_letter_topic=None, max_redeliveries=None) as made:
        with pytest.raises(UsageError, match=r"reject\(\) of .*orders-0@4.* no dead letter topic"):
            await made.publisher.reject(made.delivery(4), "bad")
        with pytest.raises(UsageError, match=r"reconsume_later\(\) of .*orders-0@4.* no retry topic"):
            await made.publisher.reconsume_later(made.delivery(4), 1, [])
    async with desk() as made:
        with pytest.raises(InvalidRecordError, match="headers="):
            await made.publisher.reconsume_later(made.delivery(4), 1, [("why", cast(bytes, "text"))])
        assert (made.calls, made.producer.sent, made.queue.publishing) == ([], [], set())
    with pytest.raises(
        ConfigError, match="max_redeliveries=3 is not allowed: None without a dead letter topic"
    ):
        Desk(dead_letter_topic=None, max_redeliveries=3)


# --- failures -----------------------------------------------------------------------------------------------------------


async def test_a_failed_copy_is_reported_and_tried_again_with_growing_delays(made: Desk) -> None:
    made.start(7)
    times = []
    for tries in range(1, 13):
        await turn()
        times.append(loop_time())
        made.producer.fail(RequestTimedOut("no answer"))
        while not made.producer.open:
            await asyncio.sleep(0.01)
        error = made.errors[-1]
        assert isinstance(error, CopyFailedError)
        assert (error.topic, error.offset, error.tries, len(made.errors)) == (DLQ, 7, tries, tries)
        assert isinstance(error.__cause__, RequestTimedOut)
        assert made.calls == []
    delays = [later - earlier for earlier, later in itertools.pairwise(times)]
    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]
    assert delays == pytest.approx(expected, abs=0.02)
    assert len({str(headers) for _, _, headers in made.producer.sent}) == 1
    made.producer.acknowledge()
    await made.publisher.wait_idle(TP)
    assert made.calls == [("finish", 7)]


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(ErrorCode.MESSAGE_TOO_LARGE, "topic"),
        BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic"),
        ConfigError("a record of 2000000 bytes is too large"),
        ZeroDivisionError("a partitioner's own error"),
    ],
)
async def test_an_error_that_a_retry_does_not_heal_is_tried_again_after_a_long_delay(
    error: Exception,
) -> None:
    async with desk() as made:
        made.start(7)
        for _ in range(3):
            await turn()
            made.producer.fail(error)
            await asyncio.sleep(29.9)
            assert not made.producer.open
            await asyncio.sleep(0.2)
        assert len(made.errors) == 3
        assert made.calls == []
        made.producer.acknowledge()
        await turn()
        assert made.calls == [("finish", 7)]


async def test_a_closed_producer_gives_the_record_back(made: Desk) -> None:
    rejection = asyncio.create_task(made.publisher.reject(made.delivery(4), "bad"))
    await turn()
    made.producer.fail(ClosedError("the producer is closed"))
    assert await rejection is AckOutcome.LOST
    assert made.calls == [("give back", 4)]
    assert not made.errors[0].retriable


async def test_the_log_is_limited_and_counts_what_it_omits(caplog: pytest.LogCaptureFixture) -> None:
    async with desk() as made:
        for offset in range(50):
            made.start(offset)
        with caplog.at_level(logging.WARNING, "asyncgroup.workqueue"):
            await turn()
            for _ in range(50):
                made.producer.fail(BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic"))
            await asyncio.sleep(30.1)
            made.producer.fail(BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic"))
            await turn()
        first, second = caplog.messages
        assert (
            "orders-0@0: copy to topic 'orders-billing-DLQ' failed (1): BrokerError: topic: TOPIC_AUTH"
            in first
        )
        assert second.endswith("(49 more failures since the last message)")
        assert len(made.errors) == 51


async def test_callbacks_that_raise_do_not_end_a_copy(caplog: pytest.LogCaptureFixture) -> None:
    def bad(*_: object) -> None:
        raise ZeroDivisionError

    async with desk(breaker=Breaker(minimum=1)) as made:
        made.publisher._on_error = made.publisher._on_dead_letter = made.publisher._on_trip = bad
        made.start(1)
        await turn()
        made.producer.fail(UNHEALTHY)
        await asyncio.sleep(1)
        made.producer.acknowledge()
        await turn()
        assert made.calls == [("finish", 1)]
        assert sum("a callback raised" in message for message in caplog.messages) == 3


async def test_a_bug_in_the_queue_is_reported(made: Desk) -> None:
    made.start(1)
    await turn()

    def bug() -> None:
        made.queue.publishing.clear()
        raise ZeroDivisionError

    made.queue.before_finish = bug
    made.producer.acknowledge()
    await turn()
    assert isinstance(made.errors[0].__cause__, ZeroDivisionError)
    assert made.publisher.publishing == 0


# --- cancelled callers, and partitions that are given up ----------------------------------------------------------------


@pytest.mark.parametrize("failures", [0, 2])
async def test_a_cancelled_caller_does_not_stop_the_copy(made: Desk, failures: int) -> None:
    for offset, call in enumerate(
        (
            lambda: made.publisher.reject(made.delivery(0), "bad"),
            lambda: made.publisher.reconsume_later(made.delivery(1), 5, []),
        )
    ):
        caller = asyncio.create_task(call())
        await turn()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        for _ in range(failures):
            made.producer.fail(UNHEALTHY)
            await asyncio.sleep(1)
        assert len(made.calls) == offset
        made.producer.acknowledge()
        await made.publisher.wait_idle(TP)
    assert made.calls == [("finish", 0), ("finish", 1)]


async def test_a_wait_that_is_cancelled_before_it_runs_does_not_stop_the_copy(made: Desk) -> None:
    caller = asyncio.create_task(made.publisher.reject(made.delivery(0), "bad"))
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (made.calls, made.queue.publishing) == ([], {0})
    await turn()
    made.producer.acknowledge()
    await made.publisher.wait_idle(TP)
    assert made.calls == [("finish", 0)]


@pytest.mark.parametrize("when", ["at once", "while sending", "between retries", "just acknowledged"])
async def test_an_abandoned_partition_gives_its_records_back_and_keeps_the_others(when: str) -> None:
    async with desk() as made:
        rejection = asyncio.create_task(made.publisher.reject(made.delivery(0), "bad"))
        await asyncio.sleep(0)
        made.start(1)
        made.start(9, partition=1)
        if when != "at once":
            await turn()
        if when == "between retries":
            made.producer.fail(UNHEALTHY)
            made.producer.fail(UNHEALTHY)
            await turn()
        if when == "just acknowledged":  # but its task has not run yet
            made.producer.acknowledge()
            made.producer.acknowledge()
        made.publisher.abandon(TP)
        assert sorted(made.calls) == [("give back", 0), ("give back", 1)]
        made.publisher.abandon(TP)
        assert await rejection is AckOutcome.LOST
        await asyncio.sleep(100)
        await made.publisher.wait_idle(TP)
        assert len(made.calls) == 2
        made.producer.acknowledge(-1)
        await made.publisher.wait_idle(TopicPartition("orders", 1))
        assert made.calls[2:] == [("finish", 9)]
        made.start(0)  # the partition is assigned again
        await turn()
        made.producer.acknowledge(-1)
        await turn()
        assert made.calls[3:] == [("finish", 0)]


async def test_closing_waits_for_no_broker_and_gives_all_back() -> None:
    made = Desk()
    made.start(0)
    made.start(1, partition=1)
    rejection = asyncio.create_task(made.publisher.reject(made.delivery(2), "bad"))
    await turn()
    begun = loop_time()
    await made.publisher.aclose()
    assert loop_time() == begun
    assert sorted(made.calls) == [("give back", 0), ("give back", 1), ("give back", 2)]
    assert await rejection is AckOutcome.LOST
    made.start(3)
    assert await made.publisher.reject(made.delivery(4), "bad") is AckOutcome.LOST
    assert await made.publisher.reconsume_later(made.delivery(5), 1, []) is AckOutcome.LOST
    assert sorted(made.calls)[3:] == [("give back", 3), ("give back", 4), ("give back", 5)]
    assert len(made.producer.sent) == 3
    await made.publisher.aclose()


async def test_a_copy_that_ends_after_its_record_was_given_back_acknowledges_nothing(made: Desk) -> None:
    made.producer.is_stubborn = True
    made.start(0)
    await turn()
    made.publisher.abandon(TP)
    await asyncio.sleep(2)
    assert (made.calls, made.errors) == ([("give back", 0)], [])
    assert made.queue.counts.dead_lettered == 0


async def test_closing_waits_until_its_tasks_have_ended() -> None:
    made = Desk()
    made.producer.is_stubborn = True
    made.start(0)
    await turn()
    made.publisher.abandon(TP)
    await asyncio.sleep(0)
    assert len(made.publisher._tasks) == 1
    await made.publisher.aclose()
    assert not made.publisher._tasks


async def test_wait_idle_waits_for_copies_that_begin_in_the_meantime(made: Desk) -> None:
    await made.publisher.wait_idle(TP)
    made.start(0)
    waiting = asyncio.create_task(made.publisher.wait_idle(TP))
    await turn()
    made.start(1)
    made.producer.acknowledge()
    await turn(5)
    assert not waiting.done()
    made.producer.acknowledge()
    await waiting
    assert made.calls == [("finish", 0), ("finish", 1)]


async def test_a_task_that_is_cancelled_from_outside_gives_its_record_back(made: Desk) -> None:
    made.start(0)
    (task,) = made.publisher._tasks
    task.cancel()  # as asyncio.run does at its end, here before the task's first step
    await made.publisher.wait_idle(TP)
    assert made.calls == [("give back", 0)]


# --- breaker ------------------------------------------------------------------------------------------------------------


async def test_a_tripped_breaker_writes_no_dead_letter_and_loses_no_record() -> None:
    async with desk(breaker=Breaker(share=0.5, minimum=3, window=60), clock=lambda: 0.0) as made:
        for _ in range(2):
            made.publisher.note_ack()
        for offset in range(4):
            made.start(offset)
        await turn()
        for _ in range(3):
            made.producer.acknowledge()
        made.producer.fail(UNHEALTHY)
        await turn()
        assert len(made.trips) == 1
        assert (made.trips[0].dead, made.trips[0].ended) == (3, 5)
        await asyncio.sleep(1)
        assert made.calls[3:] == [("give back", 3)]  # it waited for its next attempt
        made.start(4)
        assert await made.publisher.reject(made.delivery(5), "bad") is AckOutcome.LOST
        assert made.calls[4:] == [("give back", 4), ("give back", 5)]
        assert len(made.producer.sent) == 4
        reconsumed = asyncio.create_task(made.publisher.reconsume_later(made.delivery(6), 1, []))
        await turn()
        made.producer.acknowledge()
        assert await reconsumed is AckOutcome.ACKED
        assert len(made.trips) == 1


async def test_retries_and_acknowledged_records_count_as_ended() -> None:
    async with desk(breaker=Breaker(share=0.4, minimum=1, window=60)) as made:
        made.publisher.note_ack()
        reconsumed = asyncio.create_task(made.publisher.reconsume_later(made.delivery(0), 1, []))
        await turn()
        made.producer.acknowledge()
        await reconsumed
        made.start(1)
        await turn()
        made.producer.acknowledge()
        await turn()
        assert made.publisher.breaker is not None
        assert (made.publisher.breaker.dead, made.publisher.breaker.ended) == (1, 3)
        assert made.trips == []
    async with desk() as made:
        made.publisher.note_ack()  # without a breaker nothing is counted


# --- with a dispatcher and a broker -------------------------------------------------------------------------------------


class Bench:
    """A dispatcher with records of `orders-0`, and a publisher on an embedded cluster."""

    def __init__(self, cluster: EmbeddedCluster, producer: Producer, max_redeliveries: int = 0) -> None:
        self.cluster = cluster
        self.errors: list[AsyncGroupError] = []
        self.producer = producer
        self.publisher = TopicPublisher(
            DirectCopies(producer),
            CopyHeaders("billing", lambda: NOW, check_headers),
            "billing",
            retry_topic=RETRY,
            dead_letter_topic=DLQ,
            max_redeliveries=max_redeliveries,
            on_error=self.errors.append,
        )
        self.dispatcher = Dispatcher(Mode.SHARED, loop_time, self.publisher, lambda _: 1.0)
        self.work = PartitionWork(TP, AckWindow(0))
        self.dispatcher.add_partition(self.work)

    def take(self, count: int, value: bytes = b"a lamp") -> list[Delivery]:
        """Let records arrive, and take them."""
        first = self.work.position
        offsets = range(first, first + count)
        self.dispatcher.offer(
            self.work, [Record("orders", 0, at, NOW, 0, b"%d" % at, value) for at in offsets]
        )
        return [taken for taken in iter(self.dispatcher.take, None) if taken.record.offset in offsets]

    def copied(self, topic: str = DLQ) -> list[int]:
        """Return the offsets of the records whose copies are in the log."""
        return sorted(int(record.key or b"-1") for record in self.cluster.records(topic))

    @property
    def acked(self) -> list[int]:
        return [offset for offset in range(self.work.position) if offset in self.work.window]

    def check(self) -> None:
        """A record is acknowledged only if its copy is in the log."""
        assert set(self.acked) <= {*self.copied(DLQ), *self.copied(RETRY)}


@asynccontextmanager
async def bench(
    nodes: int = 1, *, topics: bool = True, max_redeliveries: int = 0, **config: Any
) -> AsyncIterator[Bench]:
    async with EmbeddedCluster(nodes=nodes, seed=1) as cluster:
        if topics:
            cluster.create_topic(RETRY, 2)
            cluster.create_topic(DLQ, 1)
        settings: dict[str, Any] = {"linger": 0.0, "delivery_timeout": 40.0, "request_timeout": 10.0}
        async with Producer(
            cluster.bootstrap_servers, ProducerConfig(**(settings | config)), rng=random.Random(1)
        ) as producer:
            made = Bench(cluster, producer, max_redeliveries)
            try:
                yield made
            finally:
                await made.publisher.aclose()


async def until(condition: Callable[[], bool], made: Bench, seconds: float = 300.0) -> None:
    """Wait for a condition; at each step no record is acknowledged without a copy."""
    limit = loop_time() + seconds
    while not condition():
        assert loop_time() < limit, (made.acked, made.errors[-3:])
        made.check()
        await asyncio.sleep(0.05)
    made.check()


async def test_records_of_a_nack_a_rejection_and_a_retry_are_in_their_topics() -> None:
    async with bench(max_redeliveries=1) as made:
        first, second, third = made.take(3)
        assert await second.reject("bad") is AckOutcome.ACKED
        assert await third.reconsume_later(30, [("why", b"busy")]) is AckOutcome.ACKED
        await first.nack(delay=0)
        made.dispatcher.wake()
        again = made.dispatcher.take()
        assert again is not None
        await again.nack()
        await made.publisher.wait_idle(TP)
        assert (made.copied(DLQ), made.copied(RETRY), made.work.window.base) == ([0, 1], [2], 3)
        dead = {record.key: dict(record.headers) for record in made.cluster.records(DLQ)}
        assert (dead[b"0"][DLQ_DELIVERY_COUNT], dead[b"0"][DLQ_MESSAGE]) == (b"2", b"nacked")
        assert (dead[b"1"][DLQ_DELIVERY_COUNT], dead[b"1"][DLQ_MESSAGE]) == (b"1", b"bad")
        assert all(record.timestamp == NOW for record in made.cluster.records(DLQ))
        assert (made.dispatcher.counts.dead_lettered, made.dispatcher.counts.reconsumed) == (2, 1)
        with pytest.raises(UsageError, match="ended before"):
            await second.reject("twice")


@pytest.mark.parametrize(
    ("code", "longest"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", 31),
        ("MESSAGE_TOO_LARGE", 31),
        ("INVALID_TIMESTAMP", 31),
        ("NOT_ENOUGH_REPLICAS", 5),
        ("KAFKA_STORAGE_ERROR", 5),
    ],
)
async def test_a_broker_that_refuses_for_a_while(code: str, longest: float) -> None:
    async with bench() as made:
        made.cluster.faults.on("Produce", times=3).error(code)
        taken = made.take(2)
        rejection = asyncio.create_task(taken[0].reject("bad"))
        await taken[1].nack()
        await until(lambda: made.acked == [0, 1], made, 4 * longest)
        assert await rejection is AckOutcome.ACKED
        assert made.copied() == [0, 1]
        assert all(isinstance(error, CopyFailedError) for error in made.errors)


async def test_a_topic_that_does_not_exist_yet() -> None:
    async with bench(topics=False, metadata_retry_max=1) as made:
        (taken,) = made.take(1)
        rejection = asyncio.create_task(taken.reject("bad"))
        await asyncio.sleep(120)
        assert made.acked == []
        error = made.errors[-1]
        assert isinstance(error.__cause__, BrokerError)
        assert error.__cause__.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        made.cluster.create_topic(RETRY, 1)
        made.cluster.create_topic(DLQ, 1)
        assert await rejection is AckOutcome.ACKED
        assert made.copied() == [0]


async def test_a_copy_that_is_larger_than_the_producer_allows_stays_unacknowledged() -> None:
    async with bench(max_request_size=5000) as made:
        (large,) = made.take(1, b"." * 4950)  # its copy has headers
        (small,) = made.take(1)
        rejection = asyncio.create_task(large.reject("bad"))
        assert await small.reject("bad") is AckOutcome.ACKED
        await asyncio.sleep(100)
        assert (made.acked, made.copied(), len(made.errors)) == ([1], [1], 4)
        assert "max_request_size" in str(made.errors[0])
        made.publisher.abandon(TP)
        assert await rejection is AckOutcome.LOST


async def test_a_broker_that_stops_and_starts() -> None:
    async with bench() as made:
        taken = made.take(6)
        assert await taken[0].reject("bad") is AckOutcome.ACKED
        await made.cluster.stop_node(1)
        await taken[1].nack()
        calls = [taken[2].reject("bad"), taken[3].reconsume_later(1), taken[4].reject("bad")]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(1)
        tasks[0].cancel()
        await asyncio.sleep(100)  # beyond the delivery timeout
        assert made.acked == [0]
        assert {type(error.__cause__) for error in made.errors} == {RequestTimedOut}
        await made.cluster.start_node(1)
        await until(lambda: made.acked == [0, 1, 2, 3, 4], made)
        assert await asyncio.gather(*tasks[1:]) == [AckOutcome.ACKED] * 2
        assert tasks[0].cancelled()
        assert set(made.copied()) == {0, 1, 2, 3, 4}  # the last delivery is not reconsumed


async def test_a_revocation_while_the_broker_is_silent() -> None:
    async with bench() as made:
        held = made.cluster.faults.on("Produce").hold()
        taken = made.take(2)
        rejection = asyncio.create_task(taken[0].reject("bad"))
        await taken[1].nack()
        await held.wait_hit()
        made.dispatcher.close_partition(made.work)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await made.publisher.wait_idle(TP)
        made.publisher.abandon(TP)
        assert await rejection is AckOutcome.LOST
        assert (made.acked, made.work.is_idle) == ([], True)
        assert [delivery.state for delivery in taken] == [DeliveryState.LOST] * 2
        held.release()
        await asyncio.sleep(5)
        assert made.acked == []  # there are copies, but the next owner does not know


async def test_a_revocation_waits_for_copies_within_its_grace() -> None:
    async with bench() as made:
        made.cluster.faults.on("Produce").delay(0.5)
        taken = made.take(3)
        for delivery in taken:
            await delivery.nack()
        made.dispatcher.close_partition(made.work)
        async with asyncio.timeout(1):
            await made.publisher.wait_idle(TP)
        assert (made.acked, made.copied()) == ([0, 1, 2], [0, 1, 2])


async def test_a_lost_response_writes_one_copy() -> None:
    async with bench() as made:
        made.cluster.faults.on("Produce").disconnect("after")
        (taken,) = made.take(1)
        assert await taken.reject("bad") is AckOutcome.ACKED
        assert (made.copied(), made.errors) == ([0], [])


async def test_a_producer_that_was_closed_gives_back() -> None:
    async with bench() as made:
        await made.producer.aclose()
        (taken,) = made.take(1)
        assert await taken.reject("bad") is AckOutcome.LOST
        assert (made.acked, made.copied()) == ([], [])
        assert isinstance(made.errors[0].__cause__, ClosedError)


CODES = ("NOT_LEADER_OR_FOLLOWER", "TOPIC_AUTHORIZATION_FAILED", "REQUEST_TIMED_OUT", "MESSAGE_TOO_LARGE")


@pytest.mark.parametrize("seed", range(10))
async def test_random_failures(seed: int) -> None:
    rng = random.Random(seed)
    async with bench(nodes=3, max_redeliveries=1) as made:
        for nth in range(1, 30, 3):
            fault = made.cluster.faults.on("Produce", nth=nth).optional()
            match rng.randrange(3):
                case 0:
                    fault.error(rng.choice(CODES))
                case 1:
                    fault.disconnect()
                case _:
                    fault.drop()
        callers = []
        for delivery in made.take(40):
            call = delivery.reject("bad") if rng.random() < 0.5 else delivery.reconsume_later(rng.random())
            callers.append(asyncio.create_task(call))
            if rng.random() < 0.2:
                await asyncio.sleep(rng.random())
            if rng.random() < 0.2:
                rng.choice(callers).cancel()
        node = rng.randrange(1, 4)
        await made.cluster.stop_node(node)
        await asyncio.sleep(rng.uniform(0, 50))
        await made.cluster.start_node(node)
        await asyncio.wait(callers, timeout=300)
        await until(lambda: not made.publisher.publishing, made)
        # a call that was cancelled before its first step leaves its delivery open
        assert sorted([*made.acked, *made.work.acquired]) == list(range(40))
        outcomes = [caller.result() for caller in callers if not caller.cancelled()]
        assert outcomes == [AckOutcome.ACKED] * len(outcomes)
        assert len(outcomes) >= 20
