"""Hooks for each delivery of a work queue: one start and one end, with the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncgroup import Delivery, GroupSource, Producer, WorkQueue
from asyncgroup.broker import EmbeddedCluster


class Pairs:
    """Notes starts and ends, and that each delivery has one of both."""

    def __init__(self) -> None:
        self.open: dict[int, Delivery] = {}
        self.ends: list[tuple[bytes | None, int, str, str]] = []

    def on_delivery_start(self, delivery: Delivery) -> None:
        assert id(delivery) not in self.open
        self.open[id(delivery)] = delivery

    def on_delivery_end(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
        assert self.open.pop(id(delivery)) is delivery
        self.ends.append((delivery.value, delivery.attempt, outcome, "" if error is None else repr(error)))


@asynccontextmanager
async def opened(*values: bytes, **settings: Any) -> AsyncIterator[tuple[Pairs, WorkQueue]]:
    """Open a queue with records; in the end each delivery that has begun has ended."""
    pairs = Pairs()
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", 1)
        async with Producer(cluster.bootstrap_servers) as producer:
            for value in values:
                await producer.send("orders", value)
        source = GroupSource(cluster.bootstrap_servers, "g", "orders", hooks=[pairs])
        async with WorkQueue(source, initial_position="earliest", **settings) as queue:
            yield pairs, queue
    assert not pairs.open


async def test_each_outcome() -> None:
    async with opened(
        b"a", b"n", b"r", b"c", b"t", nack_backoff=1, retry=True, dead_letter=5, ack_timeout=60
    ) as (
        pairs,
        queue,
    ):
        a, n, r, c, _ = [await queue.receive() for _ in range(5)]
        await a.ack()
        await n.nack()
        await r.reject("no")
        await c.reconsume_later(1000)
        assert pairs.ends == [
            (b"a", 1, "acknowledged", ""),
            (b"n", 1, "nacked", ""),
            (b"r", 1, "dead letter", ""),
            (b"c", 1, "retry", ""),
        ]
        assert len(pairs.open) == 1
        again = await queue.receive()
        assert (again.value, again.attempt) == (b"n", 2)
        await again.ack()
        await asyncio.sleep(70)
        assert pairs.ends[4:] == [(b"n", 2, "acknowledged", ""), (b"t", 1, "expired", "")]
        last = await queue.receive()
    assert (last.value, pairs.ends[-1]) == (b"t", (b"t", 2, "released", ""))


async def test_the_error_of_a_handler() -> None:
    async def handle(_delivery: Delivery) -> None:
        raise ValueError("no")

    async with opened(b"a", nack_backoff=1, dead_letter=1) as (pairs, queue):
        running = asyncio.create_task(queue.run(handle))
        while len(pairs.ends) < 2:
            await asyncio.sleep(0.1)
        await queue.aclose()
        await running
    assert pairs.ends == [
        (b"a", 1, "nacked", "ValueError('no')"),
        (b"a", 2, "dead letter", "ValueError('no')"),
    ]


async def test_consumers_of_one_process() -> None:
    """A delivery begins when it leaves the inbox."""
    async with opened(b"a", b"b") as (pairs, queue), queue.consumer("one") as one:
        first = await one.receive()
        assert list(pairs.open.values()) == [first]
        await first.ack()
    assert [end[::2] for end in pairs.ends] == [(b"a", "acknowledged")]


async def test_in_order_those_that_follow_end_with_a_nack() -> None:
    async with opened(b"a", b"b", mode="failover", nack_backoff=1) as (pairs, queue):
        first, _second = await queue.receive(), await queue.receive()
        await first.nack()
        again = [await queue.receive() for _ in range(2)]
        for each in again:
            await each.ack()
    assert sorted(end[::2] for end in pairs.ends) == [
        (b"a", "acknowledged"),
        (b"a", "nacked"),
        (b"b", "acknowledged"),
        (b"b", "expired"),
    ]
