"""Small batches to many partitions: how long they linger when sending takes the event loop's time, and which go together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.model import TopicPartition
from asyncgroup.producer.accumulator import RecordAccumulator
from asyncgroup.producer.sending_load import MAX_DELAY, SendingLoad
from asyncgroup.testing import VirtualTimeLoop
from tests.producer.support import TOPIC, now, produced, writing
from tests.producer.test_accumulator import made, put

LINGER = 0.005


def block(seconds: float) -> None:
    """Keep the event loop busy: its clock moves, and nothing else runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._set_time(now() + seconds)


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
    plan = accumulator.plan(at, lambda _: 0, (), owed=owed)
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
    assert planned(accumulator, 0.0099) == ([], pytest.approx(0.010))
    assert planned(accumulator, 0.0101) == ([0, 1, 2, 3, 4, 5], pytest.approx(0.016))
    assert planned(accumulator, 0.016) == ([6, 7, 8, 9], pytest.approx(120, abs=1))


def test_the_others_are_sent_a_few_milliseconds_early_at_most() -> None:
    accumulator = filled(linger=1.0)
    assert planned(accumulator, 1.0) == ([0, 1, 2, 3, 4, 5], pytest.approx(1.006))


def test_batches_linger_longer_while_sending_takes_the_time() -> None:
    accumulator = filled(linger=0.010)
    assert planned(accumulator, 0.011, owed=0.030) == ([], pytest.approx((0.010 + 0.011 + 0.020) / 2))
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


@pytest.mark.asyncio
@pytest.mark.virtual
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


@pytest.mark.asyncio
@pytest.mark.virtual
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
        for number in range(1_000):
            begun = now()
            future = producer.send_nowait(TOPIC, b"v", partition=number)
            future.add_done_callback(lambda _, begun=begun: waited.append(now() - begun))
            await asyncio.sleep(0.0005)
        await producer.flush()
        assert len(waited) == 1_000
        assert max(waited) < 0.007
