"""The calls of a delivery act at once: a forgotten `await` loses nothing but the result.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from asyncgroup.errors import UsageError
from asyncgroup.workqueue import AckOutcome, DeadLetter, Delivery, DeliveryState, Mode, RetryTopic
from asyncgroup.workqueue.delivery_result import Known, Outstanding
from tests.stories.queue_members import acked, opened, send, working
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.usefixtures("no_asyncio_errors")


CALLS: dict[str, tuple[Callable[[Delivery], object], DeliveryState]] = {
    "ack": (lambda delivery: delivery.ack(), DeliveryState.ACKED),
    "ack durably": (lambda delivery: delivery.ack(durable=True), DeliveryState.ACKED),
    "ack_cumulative": (lambda delivery: delivery.ack_cumulative(), DeliveryState.ACKED),
    "ack_cumulative durably": (lambda delivery: delivery.ack_cumulative(durable=True), DeliveryState.ACKED),
    "nack": (lambda delivery: delivery.nack(delay=2.0), DeliveryState.NACKED),
    "reject": (lambda delivery: delivery.reject("bad"), DeliveryState.PUBLISHING),
    "reconsume_later": (lambda delivery: delivery.reconsume_later(5.0), DeliveryState.PUBLISHING),
}


@pytest.mark.parametrize("call", CALLS)
async def test_without_await_the_delivery_ends_at_once(env: VirtualEnvironment, call: str) -> None:
    """Also at the end of the process: nothing is delivered again but what was nacked or put into the retry topic."""
    act, state = CALLS[call]
    await send(env, b"0")
    async with opened(env, mode=Mode.FAILOVER, retry=RetryTopic(), dead_letter=DeadLetter()) as queue:
        delivery = await queue.receive()
        act(delivery)
        gc.collect()  # a coroutine that was never awaited is reported here
        assert delivery.state is state
        with pytest.raises(UsageError, match="ended before"):
            act(delivery)
        await asyncio.sleep(1.0)  # the group of acknowledgements is committed
        if state is not DeliveryState.NACKED:
            assert await acked(env) == [0]
        if call in ("nack", "reconsume_later"):
            again = await queue.receive()
            assert (again.attempt, again.value) == (2, b"0")
            again.ack()
        assert queue.statistics().counts.dead_lettered == (call == "reject")


async def test_renew_without_await(env: VirtualEnvironment) -> None:
    await send(env, b"0")
    async with opened(env, ack_timeout=10.0) as queue:
        delivery = await queue.receive()
        await asyncio.sleep(9.0)
        delivery.renew()
        await asyncio.sleep(9.0)
        assert await delivery.ack() is AckOutcome.ACKED


async def test_a_handler_that_forgets_await(env: VirtualEnvironment) -> None:
    """Its return acknowledges what it has not ended; it has."""

    async def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            delivery.nack(delay=1.0)

    await send(env, b"0")
    async with working(env, "ann", handle) as ann:
        await ann.until("end 0@0#2")
    assert await acked(env) == [0]


async def test_results(env: VirtualEnvironment) -> None:
    """With await, as before; a call that comes too late has no effect."""
    await send(env, *[b"%d" % number for number in range(5)])
    async with opened(env, ack_timeout=10.0, dead_letter=DeadLetter()) as queue:
        one, two, three, four, late = [await queue.receive() for _ in range(5)]
        assert await one.ack() is AckOutcome.ACKED
        assert await two.ack(durable=True) is AckOutcome.COMMITTED
        assert await three.reject("bad") is AckOutcome.ACKED
        assert await four.renew() is True
        assert await four.nack() is True
        await asyncio.sleep(20.0)
        assert await late.ack() is AckOutcome.EXPIRED
        assert await late.ack(durable=True) is AckOutcome.EXPIRED
        assert [await late.nack(), await late.renew()] == [False, False]


async def test_errors_are_raised_at_the_call(env: VirtualEnvironment) -> None:
    await send(env, b"0")
    async with opened(env) as queue:
        delivery = await queue.receive()
        for call in (delivery.ack_cumulative, delivery.reject, lambda: delivery.reconsume_later(1.0)):
            with pytest.raises(UsageError):
                call()
        assert delivery.state is DeliveryState.ACQUIRED


async def test_the_commit_is_waited_for_in_any_way(env: VirtualEnvironment) -> None:
    """In a task, with a time limit, in a gather; later; and twice."""
    await send(env, *[b"%d" % number for number in range(6)])
    async with opened(env) as queue:
        waits: list[Callable[[Coroutine[Any, Any, AckOutcome]], Awaitable[AckOutcome]]] = [
            asyncio.create_task,
            asyncio.ensure_future,
            lambda result: asyncio.wait_for(result, 5.0),
            lambda result: asyncio.shield(result),
        ]
        for wait in waits:
            assert await wait((await queue.receive()).ack(durable=True)) is AckOutcome.COMMITTED
        later = (await queue.receive()).ack(durable=True)
        assert repr(later) == "<DeliveryResult: not waited for>"
        await asyncio.sleep(5.0)
        assert [await later, await later] == [AckOutcome.COMMITTED] * 2
        plain = (await queue.receive()).ack()
        assert await asyncio.gather(plain, asyncio.create_task(plain), plain) == [AckOutcome.ACKED] * 3
        assert repr(plain) == "<DeliveryResult: AckOutcome.ACKED>"


async def test_tasks_that_are_cancelled() -> None:
    """A task of a result is cancelled as one of a coroutine is, before its first step and while it waits."""
    begun = ended = 0

    async def wait() -> int:
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.sleep(60.0)
        finally:
            ended += 1
        return 1

    for turns in (0, 1):
        for result in (Known(1), Outstanding(wait)):
            task = asyncio.create_task(result)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() is not (turns and isinstance(result, Known))
            result.close()
    assert begun == ended == 1
