"""Cancellation and close of a work queue: no record is lost, and none is acknowledged by accident."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncgroup.workqueue import (
    AckOutcome,
    BatchPolicy,
    Delivery,
    DeliveryState,
    Mode,
    QueueInterceptor,
    WorkQueue,
)
from tests.profiles import thinned
from tests.scenario.ends.test_every_loop_iteration import LoopIterations, iterations
from tests.stories.queue_members import Gates, QueueMember, acked, label, opened, send, working
from tests.stories.virtual import VirtualEnvironment
from tests.work_queues import core_of

__all__ = ["iterations"]

SHORT = {"config": {"close_timeout": 5.0}}


async def by_receive(queue: WorkQueue, taken: list[Delivery]) -> None:
    while True:
        taken.append(await queue.receive())
        await asyncio.sleep(0)


async def by_iteration(queue: WorkQueue, taken: list[Delivery]) -> None:
    async for delivery in queue:
        taken.append(delivery)
        await asyncio.sleep(0)


async def by_batches(queue: WorkQueue, taken: list[Delivery]) -> None:
    while True:
        taken.extend(await queue.batch_receive(BatchPolicy(max_records=2, timeout=0.01)))
        await asyncio.sleep(0)


async def rest(queue: WorkQueue, taken: list[Delivery], count: int) -> None:
    """Take deliveries until there are `count`."""
    async with asyncio.timeout(30.0):
        while len(taken) < count:
            taken.append(await queue.receive())


@pytest.mark.parametrize("way", [by_receive, by_iteration, by_batches])
async def test_a_cancelled_receiver_loses_nothing(
    env: VirtualEnvironment, iterations: LoopIterations, way: Callable[..., Awaitable[None]]
):
    """Cancelled after each number of loop iterations: what it has not got is delivered to others, once."""
    await send(env, b"a", b"b", b"c")
    async with opened(env, receiver_queue=2) as queue:
        before, whole = iterations.count, list[Delivery]()
        task = asyncio.create_task(way(queue, whole))
        await env.bell.until(lambda: len(whole) == 3, "all", env.limit)
        lasted = iterations.count - before
        task.cancel()
        await asyncio.wait([task])
        for delivery in whole:
            await delivery.ack()
        for iteration in thinned(range(1, lasted + 5)):
            taken: list[Delivery] = []
            task = asyncio.create_task(way(queue, taken))
            iterations.after(iteration, task.cancel)
            await send(env, b"a", b"b", b"c")
            await asyncio.wait([task])
            assert task.cancelled()
            await rest(queue, taken, 3)
            offsets = sorted(delivery.record.offset for delivery in taken)
            assert offsets == list(range(offsets[0], offsets[0] + 3)), f"after {iteration} iterations"
            assert {delivery.attempt for delivery in taken} == {1}
            assert {await delivery.ack() for delivery in taken} == {AckOutcome.ACKED}


@pytest.mark.parametrize("waiters", [1, 3])
async def test_a_receiver_cancelled_when_its_record_arrives(env: VirtualEnvironment, waiters: int):
    """Woken and cancelled in the same iteration of the loop: another one takes the record."""
    async with opened(env) as queue:
        await asyncio.sleep(5.0)
        receiving = [asyncio.create_task(queue.receive()) for _ in range(waiters + 1)]
        await asyncio.sleep(0)
        demand = core_of(queue).dispatcher.ready.demand
        wake = demand.wake

        def cancels(records: int) -> None:
            wake(records)
            receiving[0].cancel()

        demand.wake = cancels  # type: ignore[method-assign]
        await send(env, b"v")
        async with asyncio.timeout(10.0):
            await asyncio.wait(
                receiving[1:] if waiters == 1 else receiving, return_when=asyncio.FIRST_COMPLETED
            )
            while not (done := [each for each in receiving if each.done() and not each.cancelled()]):
                await asyncio.sleep(0.1)
        (first,) = done
        assert receiving[0].cancelled()
        assert first.result().record.value == b"v"
        await first.result().ack()
        for task in receiving:
            task.cancel()
        await asyncio.wait(receiving)


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_cancelled_run(env: VirtualEnvironment, mode: Mode):
    """Its handlers are cancelled, and their records are delivered again with the same number; others take over."""
    await send(env, *[(b"k%d" % number, b"v") for number in range(5)])
    async with opened(env, mode=mode) as queue:
        first = QueueMember(env, "ann", queue, Gates())
        run = asyncio.create_task(queue.run(first.handle))
        expected = 1 if mode.in_order else 5
        await first.until_count("begin", expected)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert len(first.of("cancelled")) == expected
        taken: list[Delivery] = []
        await rest(queue, taken, 5)
        assert [delivery.record.offset for delivery in taken] == list(range(5)) or not mode.in_order
        assert sorted(map(label, taken)) == [f"0@{offset}#1" for offset in range(5)]
        for delivery in taken:
            await delivery.ack()
    assert await acked(env) == list(range(5))


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.EXCLUSIVE])
async def test_run_cancelled_at_each_iteration(
    env: VirtualEnvironment, iterations: LoopIterations, mode: Mode
):
    """Records whose handler has ended are acknowledged, the others are delivered again."""

    async def work(_delivery: Delivery) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async with opened(env, mode=mode) as queue:
        await asyncio.sleep(1.0)
        for iteration in thinned(range(1, 60)):
            member = QueueMember(env, "ann", queue, work)
            run = asyncio.create_task(queue.run(member.handle))
            await send(env, b"a", b"b", b"c")
            iterations.after(iteration, run.cancel)
            await asyncio.wait([run])
            assert run.cancelled()
            ended = member.of("end")
            taken: list[Delivery] = []
            await rest(queue, taken, 3 - len(ended))
            found = sorted([*ended, *map(label, taken)], key=lambda text: int(text[2:-2]))
            first = int(found[0][2:-2])
            assert found == [f"0@{first + number}#1" for number in range(3)], f"after {iteration} iterations"
            for delivery in taken:
                await delivery.ack()


class Refuses(QueueInterceptor):
    """Raises in each method, for the deliveries with these labels."""

    def __init__(self, **labels: str) -> None:
        self.labels = labels
        self.calls: list[str] = []

    def _call(self, method: str, delivery: Delivery) -> None:
        self.calls.append(f"{method} {label(delivery)}")
        if self.labels.get(method) == label(delivery):
            raise ValueError(method)

    def before_consume(self, delivery: Delivery) -> None:
        self._call("consume", delivery)

    def on_acknowledge(self, delivery: Delivery) -> None:
        self._call("acknowledge", delivery)

    def on_negative_ack(self, delivery: Delivery, error: BaseException | None) -> None:
        self._call("nack", delivery)


@pytest.mark.parametrize("by", ["run", "loop"])
async def test_interceptors_that_raise(env: VirtualEnvironment, by: str):
    """The record is not acknowledged, and is delivered again."""
    await send(env, b"0", b"1", b"2")
    refuses = Refuses(consume="0@0#1", acknowledge="0@1#1", nack="0@1#1")
    options: dict[str, Any] = {"interceptors": [refuses], "nack_backoff": 1.0}
    if by == "run":
        async with working(env, "ann", **options) as ann:
            await ann.until_count("end", 4)
            assert ann.of("begin") == ["0@1#1", "0@2#1", "0@0#2", "0@1#2"]
    else:
        async with opened(env, **options) as queue:
            for expected in ("0@1#1", "0@2#1", "0@0#2", "0@1#2"):
                delivery = await queue.receive()
                assert label(delivery) == expected
                if expected == "0@1#1":
                    with pytest.raises(ValueError, match="acknowledge"):
                        await delivery.ack()
                    assert delivery.state is DeliveryState.NACKED
                else:
                    await delivery.ack()
    assert "nack 0@0#1" in refuses.calls
    assert await acked(env) == [0, 1, 2]


class GoesOn(BaseException):
    """No Exception, as GeneratorExit and what some libraries raise to stop a program."""


async def test_a_handler_that_raises_another_base_exception(gates: Gates, env: VirtualEnvironment):
    """`run` raises it; the record is not acknowledged, and is delivered again in the same queue."""
    await send(env, b"0", b"1")

    async def work(delivery: Delivery) -> None:
        if delivery.record.offset == 0:
            raise GoesOn("stop")
        await gates(delivery)

    async with opened(env) as queue:
        member = QueueMember(env, "ann", queue, work)
        with pytest.raises(GoesOn, match="stop"):
            await queue.run(member.handle)
        taken: list[Delivery] = []
        await rest(queue, taken, 2)
        assert sorted(map(label, taken)) == ["0@0#1", "0@1#1"]
    assert await acked(env) == []
