"""Closing a work queue: handlers and other tasks end their deliveries in time, and exactly what they ended is committed.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from asyncgroup.errors import ClosedError, UsageError
from asyncgroup.workqueue import (
    AckOutcome,
    BatchPolicy,
    Delivery,
    DeliveryState,
)
from tests.profiles import thinned
from tests.scenario.ends.test_every_loop_iteration import LoopIterations, iterations
from tests.scenario.queues.test_cancellation import by_iteration
from tests.scenario.support import now
from tests.stories.queue_members import Gates, QueueMember, acked, opened, send, window_of, working
from tests.stories.virtual import VirtualEnvironment

__all__ = ["iterations"]

SHORT = {"config": {"close_timeout": 5.0}}


async def test_a_loop_that_is_left(env: VirtualEnvironment):
    """After a `break` the delivery is still open; when the same task closes the queue, it is given back at once."""
    await send(env, b"0", b"1", b"2")
    async with opened(env) as queue:
        async for delivery in queue:
            if delivery.record.offset == 1:
                break
            await delivery.ack()
        assert delivery.state is DeliveryState.ACQUIRED
        began = now()
    assert now() - began < 1.0
    assert delivery.state is DeliveryState.RELEASED
    assert await acked(env) == [0]
    async with working(env, "bob") as bob:
        await bob.until_count("end", 2)
        assert bob.of("begin") == ["0@1#1", "0@2#1"]


@pytest.mark.parametrize("way", ["receive", "batch", "iteration"])
async def test_another_task_ends_its_deliveries_during_the_close(env: VirtualEnvironment, way: str):
    """The close waits for them."""
    await send(env, b"0", b"1")
    taken: list[Delivery] = []

    async def read() -> list[AckOutcome]:
        if way == "receive":
            taken.extend([await queue.receive(), await queue.receive()])
        elif way == "batch":
            taken.extend(await queue.batch_receive(BatchPolicy(max_records=2, timeout=None)))
        else:
            async for delivery in queue:
                taken.append(delivery)
                if len(taken) == 2:
                    break
        await asyncio.sleep(2.0)
        return [await delivery.ack() for delivery in taken]

    async with opened(env) as queue:
        reading = asyncio.create_task(read())
        await env.bell.until(lambda: len(taken) == 2, "taken", env.limit)
    assert await reading == [AckOutcome.ACKED] * 2
    assert await acked(env) == [0, 1]


async def test_a_task_that_does_not_end_its_deliveries(env: VirtualEnvironment):
    """The close ends in its time, and they are lost."""
    await send(env, b"0")

    async def read() -> Delivery:
        async for delivery in queue:
            await asyncio.sleep(100.0)
            return delivery
        raise AssertionError

    async with opened(env, **SHORT) as queue:
        reading = asyncio.create_task(read())
        await asyncio.sleep(5.0)
        began = now()
        await queue.aclose()
        assert now() - began <= 6.0
        delivery = await reading
        assert delivery.state is DeliveryState.LOST
        assert await delivery.ack() is AckOutcome.LOST
    assert await acked(env) == []


async def test_closed_while_handlers_run(env: VirtualEnvironment):
    """A handler that ends within the limit acknowledges its record; one that takes longer is cancelled."""
    await send(env, b"0", b"1")

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(2.0 if delivery.record.offset == 0 else 100.0)

    async with opened(env, **SHORT) as queue:
        member = QueueMember(env, "ann", queue, work)
        run = asyncio.create_task(queue.run(member.handle))
        await member.until_count("begin", 2)
        began = now()
        await asyncio.gather(queue.aclose(), queue.aclose())
        await queue.aclose()
        assert now() - began <= 6.0
        await run
        assert member.calls[2:] == ["end 0@0#1", "cancelled 0@1#1"]
        assert env.cluster.group("g").members == {}
        with pytest.raises(ClosedError):
            await queue.receive()
        with pytest.raises(ClosedError):
            await queue.run(member.handle)
    assert await acked(env) == [0]


async def test_handlers_that_work_on_after_their_acknowledgement(env: VirtualEnvironment):
    """A close and a rebalance do not wait for them beyond the grace: they are also cancelled."""
    await send(env, b"0")

    async def work(delivery: Delivery) -> None:
        await delivery.ack()
        await asyncio.sleep(1000.0)

    async with working(env, "ann", work, **SHORT) as ann:
        await ann.until("begin 0@0#1")
        began = now()
        await ann.queue.aclose()
        assert now() - began <= 6.0
        assert ann.calls == ["begin 0@0#1", "cancelled 0@0#1"]
    assert await acked(env) == [0]


async def test_expired_handlers_that_are_left_alone(env: VirtualEnvironment):
    """They are cancelled when the time of the close has passed."""
    await send(env, b"0")
    async with working(env, "ann", Gates(), ack_timeout=5.0, on_ack_timeout="redeliver", **SHORT) as ann:
        await ann.until("begin 0@0#3")
        began = now()
        await ann.queue.aclose()
        assert now() - began <= 6.0
        assert len(ann.of("cancelled")) == 3
    assert await acked(env) == []


async def test_closed_by_a_handler(env: VirtualEnvironment):
    """It only begins the close, which waits for the handler."""
    await send(env, b"0", b"1")

    async def work(delivery: Delivery) -> None:
        if delivery.record.offset == 0:
            await asyncio.sleep(1.0)
            await ann.queue.aclose()
            await asyncio.sleep(1.0)
        else:
            await asyncio.sleep(3.0)

    async with working(env, "ann", work) as ann:
        assert ann.run is not None
        async with asyncio.timeout(20.0):
            await ann.run
        assert sorted(ann.of("end")) == ["0@0#1", "0@1#1"]
    assert await acked(env) == [0, 1]


async def test_closed_by_a_task_that_a_handler_waits_for(env: VirtualEnvironment):
    """It ends in the time of the close; the record is delivered again."""
    await send(env, b"0")

    async def work(_delivery: Delivery) -> None:
        await asyncio.create_task(ann.queue.aclose())

    async with working(env, "ann", work, **SHORT) as ann:
        assert ann.run is not None
        began = now()
        async with asyncio.timeout(20.0):
            await ann.run
        assert now() - began < 8.0


async def test_closed_while_tasks_wait(env: VirtualEnvironment):
    async with opened(env) as queue:
        receiving = asyncio.create_task(queue.receive())
        batching = asyncio.create_task(queue.batch_receive(BatchPolicy(timeout=100.0)))
        looping = asyncio.create_task(by_iteration(queue, []))
        running = asyncio.create_task(queue.run(Gates()))
        await asyncio.sleep(3.0)
        began = now()
        await queue.aclose()
        assert now() - began < 1.0
        await asyncio.wait([receiving, batching, looping, running])
        assert isinstance(receiving.exception(), ClosedError)
        assert isinstance(batching.exception(), ClosedError)
        assert looping.exception() is None
        assert running.exception() is None


async def test_closed_at_each_iteration(env: VirtualEnvironment, iterations: LoopIterations):
    """Exactly what the handlers ended is committed, and no task is left."""

    async def work(_delivery: Delivery) -> None:
        await asyncio.sleep(0.01)

    await send(env, *[b"v"] * 5)
    for iteration in thinned(range(1, 300, 3)):
        env.group_id = f"g{iteration}"
        before = asyncio.all_tasks()
        async with opened(env) as queue:
            member = QueueMember(env, "ann", queue, work)
            run = asyncio.create_task(queue.run(member.handle))
            closed: list[asyncio.Task[None]] = []
            iterations.after(iteration, lambda: closed.append(asyncio.create_task(queue.aclose())))  # noqa: B023
            async with asyncio.timeout(60.0):
                await run
                await closed[0]
        ended = sorted(int(text[2:-2]) for text in member.of("end"))
        assert await acked(env) == ended, f"after {iteration} iterations"
        assert member.of("cancelled") == []
        assert asyncio.all_tasks() == before


async def test_entered_twice(env: VirtualEnvironment):
    async with opened(env) as queue:
        with pytest.raises(ClosedError, match="entered before"):
            await queue.__aenter__()
        running = asyncio.create_task(queue.run(Gates()))
        await asyncio.sleep(1.0)
        with pytest.raises(UsageError, match="twice"):
            await queue.run(Gates())
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_the_body_of_the_queue_raises(env: VirtualEnvironment):
    """Handlers end in their time, and what they have done is committed."""
    await send(env, b"0")
    with pytest.raises(ValueError, match="body"):
        async with working(env, "ann", lambda _delivery: asyncio.sleep(1.0)) as ann:
            await ann.until("begin 0@0#1")
            raise ValueError("body")
    assert ann.calls == ["begin 0@0#1", "end 0@0#1"]
    window = await window_of(env)
    assert window.base == 1


async def test_the_statistics_of_a_closed_queue(gates: Gates, env: VirtualEnvironment):
    """The lag is the one after the last acknowledgement, including deliveries that end while the queue closes."""
    await send(env, *[b"%d" % number for number in range(10)])
    async with opened(env, "ann", concurrency=4) as queue:
        member = QueueMember(env, "ann", queue, gates)
        run = asyncio.create_task(queue.run(member.handle))
        await member.until_count("begin", 4)
        assert (queue.statistics().lag, queue.statistics().at_close) == (10, ())
        closing = asyncio.create_task(queue.aclose())
        await asyncio.sleep(1.0)
        gates.open(0, 1, 3)
        await asyncio.wait([closing, run])
        closed = queue.statistics()
    assert (closed.counts.acked, closed.partitions) == (3, ())
    (partition, *_) = closed.at_close
    assert (partition.tp.partition, partition.base, partition.lag) == (0, 2, 7)
    assert (partition.queued, partition.acquired, partition.waiting, partition.publishing) == (0, 0, 0, 0)
    assert sum(each.lag for each in closed.at_close) == 7


async def test_the_health_of_a_queue_that_does_not_read_speaks_of_the_queue(env: VirtualEnvironment):
    """The health names no method of a group that a queue does not have."""
    async with opened(env) as queue:
        entered = queue.health()
        await env.bell.until(lambda: queue.health().is_healthy, "it reads", env.limit)
    closed = queue.health()
    assert (entered.problems, entered.not_ready) == (
        ("the queue reads nothing: its group member does not run",),
        "the queue reads nothing: its group member does not run",
    )
    assert (closed.problems, closed.not_ready) == (("the queue is closed",), "the queue is closed")
