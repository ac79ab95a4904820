"""The stories of the work queue's face: what a queue does with a record, from any source. They run on each engine.

A story is a coroutine function of a Side (`queue_engines`), and of a mode if it holds in several; STORIES has a case of each.
An engine passes them all before it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest

from asyncgroup import Delivery, UsageError, WorkQueue
from asyncgroup.model import Record
from asyncgroup.workqueue import AckOutcome, BatchPolicy, QueueInterceptor
from tests.stories.queue_engines import Side
from tests.stories.virtual import now

__all__ = ["STORIES"]

MODES = ("shared", "key_shared", "failover", "exclusive")
IN_ORDER = ("failover", "exclusive")

STORIES: Final[dict[str, Callable[[Side], Awaitable[None]]]] = {}
"""By the name of the function, and the mode."""


def story(*modes: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Add a story, for each of the modes."""

    def add(tell: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        for mode in modes:
            STORIES[f"{tell.__name__}-{mode}"] = partial(tell, mode=mode)
        if not modes:
            STORIES[tell.__name__] = tell
        return tell

    return add


@asynccontextmanager
async def running(queue: WorkQueue, handle: Callable[[Delivery], Awaitable[object]]) -> AsyncIterator[None]:
    """Run a handler on an open queue until the end of the block."""
    run = asyncio.create_task(queue.run(handle))
    try:
        yield
    finally:
        await queue.aclose()
        await run


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.05)


async def left(side: Side, **settings: Any) -> list[tuple[bytes | None, int]]:
    """Return values and delivery numbers of the records that a further queue delivers: those that are not acknowledged."""
    found: list[tuple[bytes | None, int]] = []
    async with side.queue(**settings) as queue:
        while len(batch := await queue.batch_receive(BatchPolicy(max_records=100, timeout=side.quiet))):
            found += [(delivery.value, delivery.attempt) for delivery in batch]
            async with batch:
                pass
    return found


@story(*MODES)
async def what_is_acknowledged_does_not_come_again(side: Side, mode: str) -> None:
    await side.send(b"a", b"b", b"c", b"d")
    async with side.queue(mode=mode) as queue:
        taken = [await queue.receive() for _ in range(4)]
        assert [each.value for each in taken] == [b"a", b"b", b"c", b"d"]
        assert [each.attempt for each in taken] == [1] * 4
        for each in (taken[0], taken[2]):
            assert await each.ack()
        assert queue.statistics().counts.acked == 2
    assert [value for value, _ in await left(side, mode=mode)] == [b"b", b"d"]
    assert await left(side, mode=mode) == []


@story()
async def a_durable_acknowledgement(side: Side) -> None:
    await side.send(b"a")
    async with side.queue() as queue:
        assert await (await queue.receive()).ack(durable=True) is AckOutcome.COMMITTED


@story()
async def a_nack_delivers_again_after_its_delay(side: Side) -> None:
    await side.send(b"a")
    async with side.queue(nack_backoff=7) as queue:
        first = await queue.receive()
        began = now()
        assert await first.nack()
        second = await queue.receive()
        assert 7.0 <= now() - began < 8.0 + side.slack
        assert (second.value, second.attempt, second.redelivery_count) == (b"a", 2, 1)
        await second.nack(delay=30)
        third = await queue.receive()
        assert 37.0 <= now() - began < 39.0 + side.slack
        assert third.attempt == 3
        await third.ack()


@story(*MODES)
async def a_record_that_fails_each_time_is_a_dead_letter(side: Side, mode: str) -> None:
    attempts: list[int] = []
    done: list[bytes | None] = []

    async def handle(delivery: Delivery) -> None:
        if delivery.value == b"bad":
            attempts.append(delivery.attempt)
            raise ValueError("no such order")
        done.append(delivery.value)

    await side.send(b"a", b"bad", b"b")
    async with side.queue(mode=mode, nack_backoff=0, dead_letter=2) as queue, running(queue, handle):
        await until(lambda: bool(side.dead_letters()) and len(done) == 2)
    await until(lambda: bool(side.dead_letters()))
    ((value, headers),) = side.dead_letters()
    assert (value, attempts, done) == (b"bad", [1, 2, 3], [b"a", b"b"])
    assert headers["__dlq.errors.message"] == b"ValueError: no such order"
    assert headers["__dlq.errors.delivery.count"] == b"3"
    assert await left(side, mode=mode) == []


@story()
async def reject(side: Side) -> None:
    await side.send(b"a")
    async with side.queue(dead_letter=True) as queue:
        assert await (await queue.receive()).reject("wrong currency")
    await until(lambda: bool(side.dead_letters()))
    ((value, headers),) = side.dead_letters()
    assert (value, headers["__dlq.errors.message"]) == (b"a", b"wrong currency")


@story()
async def reconsume_later(side: Side) -> None:
    await side.send(b"a")
    async with side.queue(retry=True, dead_letter=1) as queue:
        first = await queue.receive()
        began = now()
        assert await first.reconsume_later(20, [("why", b"busy")])
        second = await queue.receive()
        assert 20.0 <= now() - began < 22.0 + side.slack
        assert (second.value, second.attempt, dict(second.headers)["why"]) == (b"a", 2, b"busy")
        assert await second.reconsume_later(20)
    await until(lambda: bool(side.dead_letters()))
    ((value, headers),) = side.dead_letters()
    assert (value, headers["REAL_TOPIC"]) == (b"a", side.topic.encode())
    assert await left(side, retry=True) == []


@story()
async def a_queue_without_copies_has_none(side: Side) -> None:
    await side.send(b"a")
    async with side.queue() as queue:
        delivery = await queue.receive()
        with pytest.raises(UsageError, match="dead_letter"):
            await delivery.reject()
        with pytest.raises(UsageError, match="retry"):
            await delivery.reconsume_later(1)


@story(*MODES)
async def the_ack_timeout(side: Side, mode: str) -> None:
    await side.send(b"a")
    async with side.queue(mode=mode, ack_timeout=5) as queue:
        first = await queue.receive()
        began = now()
        second = await queue.receive()
        assert 5.0 <= now() - began < 7.0 + side.slack
        assert second.attempt == 2
        assert await first.ack() is AckOutcome.EXPIRED
        await asyncio.sleep(3)
        assert await second.renew()
        await asyncio.sleep(3)
        assert await second.ack()


@story()
async def a_handler_that_takes_too_long_is_cancelled(side: Side) -> None:
    seen: list[str] = []

    async def handle(delivery: Delivery) -> None:
        try:
            await asyncio.sleep(0 if delivery.attempt == 2 else 100)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        seen.append("done")

    await side.send(b"a")
    async with side.queue(ack_timeout=5) as queue, running(queue, handle):
        await until(lambda: seen == ["cancelled", "done"])


@story(*IN_ORDER)
async def in_order_a_nack_repeats_all_that_follow(side: Side, mode: str) -> None:
    await side.send(b"a", b"b", b"c")
    async with side.queue(mode=mode, nack_backoff=3) as queue:
        a, b, c = [await queue.receive() for _ in range(3)]
        await a.ack()
        await b.nack()
        again = [await queue.receive() for _ in range(2)]
        assert [(each.value, each.attempt) for each in again] == [(b"b", 2), (b"c", 1)]
        assert await c.ack() is AckOutcome.EXPIRED
        for each in again:
            assert await each.ack()


@story(*IN_ORDER)
async def cumulative_acknowledgements(side: Side, mode: str) -> None:
    await side.send(b"a", b"b", b"c", b"d")
    async with side.queue(mode=mode) as queue:
        taken = [await queue.receive() for _ in range(4)]
        assert await taken[2].ack_cumulative()
    assert [value for value, _ in await left(side, mode=mode)] == [b"d"]


@story()
async def without_an_order_nothing_is_acknowledged_cumulatively(side: Side) -> None:
    await side.send(b"a")
    async with side.queue() as queue:
        delivery = await queue.receive()
        with pytest.raises(UsageError, match="mode shared has no order"):
            await delivery.ack_cumulative()


@story()
async def records_of_a_key_one_after_another(side: Side) -> None:
    await side.send(b"a1", b"a2", key=b"a")
    await side.send(b"b1", key=b"b")
    async with side.queue(mode="key_shared", nack_backoff=5) as queue:
        first, other = await queue.receive(), await queue.receive()
        assert (first.value, other.value) == (b"a1", b"b1")
        waiting = asyncio.create_task(queue.receive())
        await asyncio.sleep(1)
        assert not waiting.done()
        await first.nack()
        again = await waiting
        assert (again.value, again.attempt) == (b"a1", 2)
        await again.ack()
        assert (await queue.receive()).value == b"a2"


@story()
async def a_delivery_time(side: Side) -> None:
    due = side.time_of_day() + 30_000
    await side.send(b"later", deliver_at=due)
    await side.send(b"now")
    async with side.queue() as queue:
        assert (await queue.receive()).value == b"now"
        assert (await queue.receive()).value == b"later"
        assert side.time_of_day() >= due - side.early_ms


@story()
async def batches(side: Side) -> None:
    await side.send(*(b"%d" % number for number in range(5)))
    async with side.queue() as queue:
        batch = await queue.batch_receive(BatchPolicy(max_records=3, timeout=10.0))
        assert [each.value for each in batch] == [b"0", b"1", b"2"]
        async with batch:
            await batch[1].nack(delay=0)
        rest = await queue.batch_receive(BatchPolicy(max_records=3, timeout=10.0))
        assert sorted((each.value, each.attempt) for each in rest) == [(b"1", 2), (b"3", 1), (b"4", 1)]
        async with rest:
            pass
    assert await left(side) == []


@story()
async def what_runs_at_the_close_is_finished_or_comes_again(side: Side) -> None:
    began: list[bytes | None] = []

    async def handle(delivery: Delivery) -> None:
        began.append(delivery.value)
        await asyncio.sleep(2 if delivery.value == b"short" else 1000)

    await side.send(b"short", b"long")
    async with side.queue() as queue:
        run = asyncio.create_task(queue.run(handle))
        await until(lambda: len(began) == 2)
        await queue.aclose()
        await run
    assert await left(side) == [(b"long", 1)]


@story()
async def numbers_of_deliveries_go_on(side: Side) -> None:
    await side.send(b"a")
    async with side.queue(nack_backoff=1) as queue:
        await (await queue.receive()).nack()
    assert await left(side) == [(b"a", 2 if side.counts_deliveries else 1)]


@story()
async def seek(side: Side) -> None:
    await side.send(b"a", b"b")
    async with side.queue() as queue:
        for _ in range(2):
            await (await queue.receive()).ack()
        await queue.seek("earliest")
        assert [(await queue.receive()).value for _ in range(2)] == [b"a", b"b"]


@story()
async def pause(side: Side) -> None:
    async with side.queue() as queue:
        queue.pause()
        await side.send(b"a")
        receiving = asyncio.create_task(queue.receive())
        await asyncio.sleep(5)
        assert not receiving.done()
        queue.resume()
        assert await (await receiving).ack()


@story()
async def a_record_that_cannot_be_decoded(side: Side) -> None:
    await side.send(b"12", b"x", b"7")
    async with side.queue(decode=lambda record: int(record.value or b""), dead_letter=3) as queue:
        decoded = []
        for _ in range(2):
            delivery = await queue.receive()
            decoded.append(delivery.decoded)
            await delivery.ack()
        await until(lambda: bool(side.dead_letters()))
    assert decoded == [12, 7]
    assert side.dead_letters()[0][1]["__dlq.errors.message"] == (
        b"cannot be decoded: ValueError: invalid literal for int() with base 10: b'x'"
    )


class Calls(QueueInterceptor):
    """Notes what happens, and refuses one acknowledgement."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def before_consume(self, delivery: Delivery) -> None:
        self.seen.append(f"consume {delivery.attempt}")

    def on_acknowledge(self, delivery: Delivery) -> None:
        self.seen.append(f"ack {delivery.attempt}")
        if delivery.attempt == 1:
            raise ValueError("not yet")

    def on_negative_ack(self, delivery: Delivery, error: BaseException | None) -> None:
        self.seen.append(f"nack {delivery.attempt}: {error!r}")


@story()
async def interceptors(side: Side) -> None:
    calls = Calls()
    await side.send(b"a")
    async with side.queue(interceptors=[calls], nack_backoff=0) as queue:
        with pytest.raises(ValueError, match="not yet"):
            await (await queue.receive()).ack()
        await (await queue.receive()).ack()
    assert calls.seen == ["consume 1", "ack 1", "nack 1: ValueError('not yet')", "consume 2", "ack 2"]


@story()
async def consumers_of_one_process(side: Side) -> None:
    await side.send(*(b"%d" % number for number in range(4)))
    async with side.queue() as queue:
        async with (
            queue.consumer("fast", priority=0, receiver_queue=2) as fast,
            queue.consumer("slow", priority=1) as slow,
        ):
            first = [await fast.receive() for _ in range(2)]
            assert [each.value for each in first] == [b"0", b"1"]
            for each in first:
                await each.ack()
            for _ in range(2):
                done, _pending = await asyncio.wait(
                    tasks := [asyncio.create_task(each.receive()) for each in (fast, slow)],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    await task.result().ack()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        assert queue.statistics().counts.acked >= 3


@story()
async def health_and_errors(side: Side) -> None:
    await side.send(b"a")
    async with side.queue() as queue:
        await (await queue.receive()).ack()
        assert queue.health().is_healthy
        assert queue.health().state == "stable"
        errors = queue.errors()
        await errors.aclose()
        (partition,) = queue.statistics().partitions
        assert (partition.base, partition.queued, partition.acquired) == (1, 0, 0)


@story()
async def an_ordering_key_that_cannot_be_computed(side: Side) -> None:
    """Without a dead letter topic the queue ends with the error."""

    def key_of(record: Record) -> bytes:
        raise ValueError("no customer")

    await side.send(b"a")
    async with side.queue(mode="key_shared", ordering_key=key_of) as queue:
        with pytest.raises(ValueError, match="no customer"):
            await queue.receive()
