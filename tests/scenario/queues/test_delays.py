"""Delayed delivery of work queues in virtual time: `deliver_at` and `deliver_after` of the producer.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import Producer
from asyncgroup.workqueue import Delivery, Mode, RetryTopic
from tests.scenario.support import now
from tests.stories.queue_members import acked, clock_of, opened, send, window_of, working
from tests.stories.virtual import VirtualEnvironment

LATE = 0.256


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
async def test_delayed_records_do_not_hold_others(env: VirtualEnvironment, mode: Mode):
    times: dict[bytes | None, float] = {}
    async with working(env, "ann", mode=mode) as ann:
        await asyncio.sleep(1.0)
        began = now()

        async def work(delivery: object) -> None:
            times[delivery.value] = now() - began  # type: ignore[attr-defined]

        ann.work = work
        await send(env, (b"a", b"30"), deliver_after=30.0)
        await send(env, (b"b", b"10"), deliver_after=10.0)
        await send(env, (b"c", b"20"), deliver_at=clock_of(env)() + 20_000)
        await send(env, (b"d", b"0"))
        await send(env, (b"e", b"past"), deliver_at=1000)
        await ann.until_count("end", 5)
        assert list(times) == [b"0", b"past", b"10", b"20", b"30"]
        for value in (b"10", b"20", b"30"):
            assert int(value) - 0.001 <= times[value] <= int(value) + LATE
        assert all(call.endswith("#1") for call in ann.of("end"))
    assert await acked(env) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.FAILOVER])
async def test_delays_are_ignored_in_modes_in_order(env: VirtualEnvironment, mode: Mode):
    await send(env, b"0", deliver_after=1000.0)
    await send(env, b"1")
    async with working(env, "ann", mode=mode) as ann:
        await ann.until("end 0@1#1")
        assert ann.of("end") == ["0@0#1", "0@1#1"]
        assert now() < 100.0


async def test_delayed_records_survive_a_restart(env: VirtualEnvironment):
    """Acknowledged records after them are not delivered again; the delayed ones wait for the rest of their time."""
    await send(env, b"0", deliver_after=60.0)
    await send(env, b"1", b"2")
    async with working(env, "ann") as ann:
        await ann.until_count("end", 2)
    window = await window_of(env)
    assert (window.base, window.runs) == (0, [(1, 3)])
    began = now()
    async with working(env, "bob") as bob:
        await bob.until("end 0@0#1")
        assert 50.0 <= now() - began <= 61.0
        assert bob.of("begin") == ["0@0#1"]
    assert await acked(env) == [0, 1, 2]


async def test_a_delayed_record_is_nacked(env: VirtualEnvironment):
    """After its first delivery the backoff counts, not its time."""
    async with opened(env, nack_backoff=5.0) as queue:
        await send(env, b"0", deliver_after=20.0)
        delivery = await queue.receive()
        began = now()
        await delivery.nack()
        again = await queue.receive()
        assert (again.attempt, 5.0 - 1e-9 <= now() - began < 6.0) == (2, True)
        await again.ack()


async def test_a_key_keeps_its_order_over_a_delay(env: VirtualEnvironment):
    """A record after a delayed one of its key waits for it."""
    async with working(env, "ann", mode=Mode.KEY_SHARED) as ann:
        await send(env, (b"k", b"0"), deliver_after=20.0)
        await send(env, (b"k", b"1"), (b"other", b"2"))
        await ann.until_count("end", 3)
        assert ann.of("end") == ["0@2#1", "0@0#1", "0@1#1"]


async def test_broken_delivery_times_are_left_out(env: VirtualEnvironment):
    values = [b"", b"soon", b"-1", b"9" * 30, "१".encode()]
    async with Producer(env.bootstrap_servers) as producer:
        for value in values:
            await producer.send("orders", value, partition=0, headers=[("ag-deliver-at", value)])
    async with working(env, "ann") as ann:
        await ann.until_count("end", len(values))
        assert now() < 60.0


async def test_a_time_far_away(env: VirtualEnvironment):
    """The record waits; the others go on, and the close is not late."""
    async with Producer(env.bootstrap_servers) as producer:
        await producer.send("orders", b"0", partition=0, headers=[("ag-deliver-at", b"9223372036854775807")])
    await send(env, b"1")
    async with working(env, "ann") as ann:
        await ann.until("end 0@1#1")
        await asyncio.sleep(200.0)
        assert ann.of("begin") == ["0@1#1"]
    assert (await window_of(env)).runs == [(1, 2)]


class Clock:
    """The time of day: that of the event loop, and what it was set to since."""

    def __init__(self, env: VirtualEnvironment) -> None:
        self._clock = clock_of(env)
        self.step = 0.0

    def __call__(self) -> int:
        return self._clock() + round(self.step * 1000)


@pytest.mark.parametrize(
    "step",
    [60.0, -30.0],
    ids=["the machine was suspended, or its clock was set forward", "the clock was set back"],
)
@pytest.mark.parametrize("retried", [False, pytest.param(True, marks=pytest.mark.full)])
async def test_the_clock_is_set(env: VirtualEnvironment, step: float, retried: bool):
    """A delivery time is a time of day: records are not delivered before it, nor much later, also if the clock is set in between."""
    clock = Clock(env)

    async def work(delivery: Delivery) -> None:
        if retried and delivery.attempt == 1:
            await delivery.reconsume_later(100.0)

    options: dict[str, Any] = {"clock": clock, "retry": RetryTopic(partitions=1)}
    async with working(env, "ann", work, **options) as ann:
        await (send(env, b"0") if retried else send(env, b"0", deliver_after=100.0))
        if retried:
            await ann.until("end 0@0#1")
        began = now()
        await asyncio.sleep(10.0)
        clock.step = step
        await asyncio.sleep(100.0 - 10.0 - step - 1.0)
        assert len(ann.of("begin")) == int(retried)
        await ann.until_count("end", 1 + int(retried))
        assert 100.0 - step - 1.0 <= now() - began <= 100.0 - step + 6.0


@pytest.mark.full
async def test_a_clock_that_is_set_forward_beyond_the_time(env: VirtualEnvironment):
    """The record is delivered within a few seconds, and a nacked one waits for the time that it was given."""
    clock = Clock(env)
    async with opened(env, clock=clock) as queue:
        await send(env, b"0", deliver_after=100.0)
        await send(env, b"1")
        nacked = await queue.receive()
        assert nacked.value == b"1"
        await nacked.nack(delay=50.0)
        await asyncio.sleep(10.0)
        clock.step, began = 500.0, now()
        delivery = await queue.receive()
        assert (delivery.value, now() - began < 6.0) == (b"0", True)
        await delivery.ack()
        again = await queue.receive()
        assert (again.value, 39.0 < now() - began < 42.0) == (b"1", True)
        await again.ack()
