"""Nacks, backoffs and ack timeouts of work queues in virtual time: never early, none waits for another one.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from asyncgroup.workqueue import AckOutcome, Backoff, Delivery, DeliveryState, Mode, QueueInterceptor
from tests.scenario.support import now
from tests.stories.queue_members import Gates, acked, label, opened, send, window_of, working
from tests.stories.virtual import VirtualEnvironment

EARLY = -1e-9  # the sum of two floats is rounded
LATE = 0.256
"""Seconds that a redelivery may be late."""


async def test_delays_are_kept_and_do_not_wait_for_longer_ones(env: VirtualEnvironment):
    delays = {0: 100.0, 1: 0.5, 2: 30.0, 3: 0.0, 4: 2.25, 5: 1.0}
    nacked: dict[int, float] = {}
    waited: dict[int, float] = {}

    async def work(delivery: Delivery) -> None:
        offset = delivery.record.offset
        if delivery.attempt == 1:
            nacked[offset] = now()
            assert await delivery.nack(delay=delays[offset])
        else:
            waited[offset] = now() - nacked[offset]

    await send(env, *[b"%d" % number for number in range(6)])
    async with working(env, "ann", work) as ann:
        await ann.until_count("end", 12)
    assert {
        offset: EARLY <= waited[offset] - delay <= LATE for offset, delay in delays.items()
    } == dict.fromkeys(delays, True)
    assert await acked(env) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED, Mode.EXCLUSIVE])
async def test_backoff(env: VirtualEnvironment, mode: Mode):
    times: list[float] = []

    async def work(delivery: Delivery) -> None:
        times.append(now())
        if delivery.attempt < 7:
            raise ValueError("again")

    await send(env, (b"k", b"v"))
    options = {"mode": mode, "nack_backoff": Backoff(initial=1, factor=3, maximum=20)}
    async with working(env, "ann", work, **options) as ann:
        await ann.until("end 0@0#7")
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    expected = [1, 3, 9, 20, 20, 20]
    assert [EARLY <= wait - delay <= LATE for wait, delay in zip(waits, expected, strict=True)] == [True] * 6


async def test_endless_nacks_do_not_hold_fresh_records(env: VirtualEnvironment):
    """With concurrency 10 and a share of 0.3, at most three handlers are busy with records that failed before."""
    poison = 50
    busy: set[int] = set()
    most = 0

    async def work(delivery: Delivery) -> None:
        nonlocal most
        if delivery.attempt > 1:
            busy.add(delivery.record.offset)
            most = max(most, len(busy))
        try:
            await asyncio.sleep(0.1)
        finally:
            busy.discard(delivery.record.offset)
        if delivery.record.offset < poison:
            raise ValueError("poison")

    await send(env, *[b"p"] * poison)
    async with working(env, "ann", work, nack_backoff=0.0, concurrency=10) as ann:
        await ann.until_count("error", 2 * poison)
        began = now()
        await send(env, *[b"f"] * 100)
        await ann.until_count("end", 100)
        assert now() - began < 100 / 7 * 0.1 * 1.3
        assert most == 3
        window = await window_of(env)
        assert window.base == 0
        assert set(window.attempts) == set(range(poison))


class TimeoutNotes(QueueInterceptor):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_ack_timeout(self, delivery: Delivery) -> None:
        self.calls.append(label(delivery))


async def test_the_ack_timeout_counts_from_the_hand_out(env: VirtualEnvironment):
    """Records that are held ready do not expire; a delivery does, and its late acknowledgement has no effect."""
    await send(env, b"0", b"1")
    notes = TimeoutNotes()
    async with opened(env, ack_timeout=5.0, interceptors=[notes]) as queue:
        first = await queue.receive()
        taken_at = now()
        assert first.deadline == taken_at + 5.0
        await asyncio.sleep(4.0)
        second = await queue.receive()
        again = await queue.receive()
        assert (again.record.offset, again.attempt, again.redelivery_count) == (0, 2, 1)
        assert 5.0 <= now() - taken_at <= 5.0 + LATE
        assert first.state is DeliveryState.EXPIRED
        assert await first.ack() is AckOutcome.EXPIRED
        assert not await first.nack()
        assert not await first.renew()
        assert await second.ack() is AckOutcome.ACKED
        assert notes.calls == ["0@0#1"]
        assert await again.ack(durable=True) is AckOutcome.COMMITTED
        assert await acked(env) == [0, 1]
        assert queue.statistics().counts.expired == 1


async def test_a_renewed_delivery_lives_longer(env: VirtualEnvironment):
    await send(env, b"0", b"1")
    async with opened(env, ack_timeout=5.0) as queue:
        first, second = await queue.receive(), await queue.receive()
        for _ in range(5):
            await asyncio.sleep(4.0)
            assert await first.renew()
        assert second.state is DeliveryState.EXPIRED
        again = await queue.receive()
        assert label(again) == "0@1#2"
        await asyncio.sleep(4.0)
        assert first.state is DeliveryState.ACQUIRED
        await asyncio.sleep(1.5)
        assert first.state is DeliveryState.EXPIRED


async def test_an_expired_delivery_cancels_its_handler(env: VirtualEnvironment):
    """The record is delivered again after the handler has ended, and its worker goes on."""
    ended: list[float] = []

    async def work(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            try:
                await asyncio.sleep(1000.0)
            finally:
                await asyncio.sleep(3.0)
                ended.append(now())
        else:
            assert now() >= ended[0]

    await send(env, b"0")
    async with working(env, "ann", work, ack_timeout=5.0, concurrency=1) as ann:
        await ann.until("end 0@0#2")
        assert ann.calls == ["begin 0@0#1", "cancelled 0@0#1", "begin 0@0#2", "end 0@0#2"]
        await send(env, b"1")
        await ann.until("cancelled 0@1#1", "end 0@1#2")
    assert await acked(env) == [0, 1]


async def test_an_expired_delivery_leaves_its_handler_alone(gates: Gates, env: VirtualEnvironment):
    """With `redeliver`, as in Pulsar: two handlers have the same record, and the first one's return has no effect."""
    await send(env, b"0")
    async with working(env, "ann", gates, ack_timeout=5.0, on_ack_timeout="redeliver") as ann:
        await ann.until("begin 0@0#2")
        assert ann.calls == ["begin 0@0#1", "begin 0@0#2"]
        gates.open()
        await ann.until("end 0@0#1", "end 0@0#2")
        assert ann.deliveries["0@0#1"].state is DeliveryState.EXPIRED
    assert await acked(env) == [0]


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.FAILOVER])
async def test_an_expired_delivery_in_modes_in_order(env: VirtualEnvironment, mode: Mode):
    """While a cancelled handler ends, no later record of the partition is handled, also one that arrives then."""
    cancelled = asyncio.Event()

    async def work(delivery: Delivery) -> None:
        if label(delivery) == "0@0#1":
            try:
                await asyncio.sleep(1000.0)
            finally:
                cancelled.set()
                await asyncio.sleep(3.0)

    await send(env, b"0", b"1")
    async with working(env, "ann", work, mode=mode, ack_timeout=5.0) as ann:
        await cancelled.wait()
        await send(env, b"2")
        await ann.until_count("end", 3)
        assert ann.of("begin") == ["0@0#1", "0@0#2", "0@1#1", "0@2#1"]
    assert await acked(env) == [0, 1, 2]


async def test_run_is_cancelled_while_the_handler_of_an_expired_delivery_ends(env: VirtualEnvironment):
    """The record is delivered again, in the same queue."""
    cancelled = asyncio.Event()

    async def handle(_delivery: Delivery) -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            cancelled.set()
            await asyncio.sleep(3.0)

    await send(env, b"0")
    async with opened(env, ack_timeout=5.0) as queue:
        run = asyncio.create_task(queue.run(handle))
        await cancelled.wait()
        run.cancel()
        await asyncio.wait([run])
        async with asyncio.timeout(60.0):
            again = await queue.receive()
        assert label(again) == "0@0#2"
        await again.ack()


async def test_a_handler_that_suppresses_its_cancellation(env: VirtualEnvironment):
    """Its delivery expires; the handler's calls after that have no effect."""
    outcomes: list[object] = []

    async def work(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            try:
                await asyncio.sleep(1000.0)
            except asyncio.CancelledError:
                outcomes.append(await delivery.ack())

    await send(env, b"0")
    async with working(env, "ann", work, ack_timeout=5.0) as ann:
        await ann.until("end 0@0#2")
        assert outcomes == [AckOutcome.EXPIRED]
        assert ann.calls == ["begin 0@0#1", "end 0@0#1", "begin 0@0#2", "end 0@0#2"]


async def test_the_handler_decides_before_it_returns_or_raises(env: VirtualEnvironment):
    """The method that the handler called counts, not how the handler ended."""

    async def work(delivery: Delivery) -> None:
        if delivery.record.offset == 0 and delivery.attempt == 1:
            await delivery.nack(delay=1.0)
        if delivery.record.offset == 1:
            await delivery.ack()
            raise ValueError("after the acknowledgement")

    await send(env, b"0", b"1")
    async with working(env, "ann", work) as ann:
        await ann.until("end 0@0#2", "error 0@1#1")
        await asyncio.sleep(200.0)
        assert sorted(ann.of("begin")) == ["0@0#1", "0@0#2", "0@1#1"]
    assert await acked(env) == [0, 1]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("delay", [0.0, 30.0])
async def test_a_handler_goes_on_after_its_nack(env: VirtualEnvironment, mode: Mode, delay: float):
    """Its record is delivered again after its end, and not before the delay; so no record is in two handlers."""
    began: dict[str, float] = {}
    ended: dict[str, float] = {}

    async def handle(delivery: Delivery) -> None:
        name = label(delivery)
        began[name] = now()
        if name == "0@0#1":
            await delivery.nack(delay=delay)
            await asyncio.sleep(10.0)
        ended[name] = now()

    await send(env, (b"k", b"0"), (b"k", b"1"))
    async with opened(env, mode=mode) as queue:
        run = asyncio.create_task(queue.run(handle))
        await asyncio.sleep(60.0)
        await queue.aclose()
        await run
    assert ended.keys() == {"0@0#1", "0@0#2", "0@1#1"}
    assert began["0@0#2"] >= ended["0@0#1"]
    assert max(delay, 10.0) + EARLY <= began["0@0#2"] - began["0@0#1"] <= max(delay, 10.0) + LATE
    assert mode is Mode.SHARED or began["0@1#1"] >= ended["0@0#2"]
    assert await acked(env) == [0, 1]
