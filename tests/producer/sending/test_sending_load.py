"""Small batches to many partitions: how long they linger when sending takes the event loop's time, and which go together."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.producer.batches.batch import COMPRESS_OFF_LOOP
from asyncgroup.producer.sending.timing import MAX_DELAY, SendingLoad
from tests.producer.batches.test_accumulator import made, put
from tests.producer.support import TOPIC, now, produced, writing
from tests.stories.virtual import block

LINGER = 0.005


@given(st.lists(st.tuples(st.floats(0, 0.1), st.floats(0, 0.1)), max_size=30))
def test_what_is_owed_is_the_time_taken_less_the_time_left(turns: list[tuple[float, float]]) -> None:
    load, time, owed = SendingLoad(), 0.0, 0.0
    for taken, left in turns:
        load.add(time, time + taken)
        time += taken
        owed = min(owed + taken, MAX_DELAY)
        assert load.owed(time) == pytest.approx(owed)
        time += left
        owed = max(owed - left, 0.0)
        assert load.owed(time) == pytest.approx(owed, abs=1e-9)


def planned(accumulator: RecordAccumulator, at: float, owed: float = 0.0) -> tuple[list[int], float]:
    """Return the partitions whose batches are sent at a loop time, and when the next plan is due."""
    plan = accumulator.schedule.plan(at, lambda _: 0, (), owed=owed)
    return [batch.tp.partition for batch in plan.requests.get(0, ())], plan.wake_at


def filled(**config: Any) -> RecordAccumulator:
    """Return an accumulator whose partitions 0 to 9 each have a batch that began a millisecond after the one before."""
    accumulator, time = made(enable_idempotence=False, **config)
    for number in range(10):
        time.now = number / 1000
        put(accumulator, TopicPartition("t", number), b"x")
    return accumulator


def test_a_batch_that_has_lingered_takes_others_along() -> None:
    accumulator = filled(linger=0.010)
    partitions, wake_at = planned(accumulator, 0.0099)
    assert partitions == []
    assert wake_at == pytest.approx(0.010)
    partitions, wake_at = planned(accumulator, 0.0101)
    assert partitions == [0, 1, 2, 3, 4, 5]
    assert wake_at == pytest.approx(0.016)
    partitions, wake_at = planned(accumulator, 0.016)
    assert partitions == [6, 7, 8, 9]
    assert wake_at == pytest.approx(120, abs=1)


def test_only_batches_of_its_node_go_along() -> None:
    """Even partitions belong to node 0, odd ones to node 1."""
    accumulator = filled(linger=0.010)
    plan = accumulator.schedule.plan(0.010, lambda tp: tp.partition % 2, ())
    assert {node: [batch.tp.partition for batch in batches] for node, batches in plan.requests.items()} == {
        0: [0, 2, 4]
    }
    assert plan.wake_at == pytest.approx(0.011)


def test_a_full_batch_takes_none_along() -> None:
    accumulator = filled(linger=0.010, batch_size=1000)
    put(accumulator, TopicPartition("t", 9), b"." * 1100)
    assert planned(accumulator, 0.0099)[0] == [9]


def test_batches_that_compress_on_a_thread_do_not_go_along() -> None:
    accumulator, time = made(linger=0.010, compression_type="lz4", batch_size=1 << 20, buffer_bytes=1 << 21)
    accumulator.set_producer_id(1)
    put(accumulator, TopicPartition("t", 0), b"x")
    time.now = 0.001
    put(accumulator, TopicPartition("t", 1), b"." * COMPRESS_OFF_LOOP)
    put(accumulator, TopicPartition("t", 2), b"x")
    plan = accumulator.schedule.plan(0.010, lambda _: 0, ())
    assert [batch.tp.partition for batch in plan.requests[0]] == [0, 2]
    assert not plan.to_compress
    (large,) = accumulator.schedule.plan(0.011, lambda _: 0, ()).to_compress
    assert large.tp.partition == 1


def test_without_linger_no_batch_waits_for_the_load() -> None:
    accumulator, time = made(linger=0.0, enable_idempotence=False)
    put(accumulator, TopicPartition("t", 0), b"x")
    assert planned(accumulator, time.now, owed=0.2)[0] == [0]


@example(1.7215400323407826, 0.06490293310490863, 0.018905413911078445)
@given(st.floats(0, 1e6), st.floats(0, 0.25), st.floats(0, 0.25))
def test_a_plan_at_the_time_of_the_last_one_sends(begun: float, taken: float, later: float) -> None:
    """Else a clock that stands still, as in virtual time, would have the same plan again and again."""
    accumulator, time = made(linger=LINGER, enable_idempotence=False)
    load = SendingLoad()
    load.add(begun, begun + taken)
    time.now = begun + taken
    put(accumulator, TopicPartition("t", 0), b"x")
    at = time.now + later
    for _ in range(3):
        partitions, wake_at = planned(accumulator, at, load.owed(at))
        if partitions:
            break
        assert wake_at > at
        at = wake_at
    else:
        raise AssertionError(at)


def test_the_others_are_sent_a_few_milliseconds_early_at_most() -> None:
    accumulator = filled(linger=1.0)
    partitions, wake_at = planned(accumulator, 1.0)
    assert partitions == [0, 1, 2, 3, 4, 5]
    assert wake_at == pytest.approx(1.006)


def test_batches_linger_longer_while_sending_takes_the_time() -> None:
    accumulator = filled(linger=0.010)
    partitions, wake_at = planned(accumulator, 0.011, owed=0.030)
    assert partitions == []
    assert wake_at == pytest.approx((0.010 + 0.011 + 0.020) / 2)
    # no longer than they would without any load
    assert planned(accumulator, 0.011, owed=0.010)[0] == [0, 1, 2, 3, 4, 5, 6]


def test_neither_full_batches_nor_those_of_a_flush_wait() -> None:
    accumulator, time = made(linger=LINGER, batch_size=200, enable_idempotence=False)
    put(accumulator, TopicPartition("t", 0), b"." * 150)
    put(accumulator, TopicPartition("t", 0), b"." * 150)
    put(accumulator, TopicPartition("t", 1), b"x")
    assert planned(accumulator, time.now, owed=0.2)[0] == [0]
    accumulator.close_open()
    assert planned(accumulator, time.now, owed=0.2)[0] == [1]


async def test_batches_of_a_thousand_partitions_get_more_than_one_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record takes 8 µs of the event loop and a batch 60, as measured: hardly more than one record a batch before."""
    succeed = RecordAccumulator.succeed

    def slow(*args: Any) -> None:
        block(60e-6)
        succeed(*args)

    def clock() -> int:
        block(8e-6)
        return 1_700_000_000_000

    async with writing(nodes=1, partitions=1000, linger=LINGER, clock=clock) as (cluster, producer):
        for partition in range(1000):
            await producer.enqueue(TOPIC, b"known", partition=partition)
        await producer.flush()
        monkeypatch.setattr(RecordAccumulator, "succeed", slow)
        earlier, begun = len(produced(cluster)), now()
        for number in range(20_000):
            await producer.enqueue(TOPIC, b"v", partition=number % 1000)
        await producer.flush()
        requests = produced(cluster)[earlier:]
        batches = sum(len(topic.partition_data) for each in requests for topic in each.request.topic_data)
        assert batches < 20_000 / 3
        assert now() - begun < 20_000 * 30e-6
        assert len(requests) < batches / 20


async def test_the_time_of_callers_is_no_load() -> None:
    """A caller keeps the loop for 30 ms after each result, and records of others linger for 5 ms."""
    async with writing(nodes=1, partitions=2, linger=None) as (_, producer):
        for _ in range(5):
            await producer.send(TOPIC, b"v", partition=0)
            block(0.030)
        begun = now()
        await producer.send_nowait(TOPIC, b"v", partition=1)
        assert now() - begun == pytest.approx(0.005, abs=1e-4)


async def test_at_a_moderate_rate_batches_linger_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 records a second, a batch each: sending takes an eighth of the time, and no record waits for longer."""
    succeed = RecordAccumulator.succeed

    def slow(*args: Any) -> None:
        block(60e-6)
        succeed(*args)

    async with writing(nodes=1, partitions=1000, linger=LINGER) as (_, producer):
        await producer.send(TOPIC, b"known", partition=0)
        monkeypatch.setattr(RecordAccumulator, "succeed", slow)
        waited: list[float] = []

        def add_wait(begun: float, _: object) -> None:
            waited.append(now() - begun)

        for number in range(1_000):
            begun = now()
            future = producer.send_nowait(TOPIC, b"v", partition=number)
            future.add_done_callback(partial(add_wait, begun))
            await asyncio.sleep(0.0005)
        await producer.flush()
        assert len(waited) == 1_000
        assert max(waited) < 0.007
