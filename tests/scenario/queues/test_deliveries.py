"""Deliveries of a work queue in a loop: `async with`, revocations beyond the grace, and where a new group begins.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.workqueue import AckOutcome, DeadLetter, Delivery, DeliveryState, Mode
from tests.scenario.support import now
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.queue_members import Gates, acked, label, opened, send, window_of, working
from tests.stories.virtual import VirtualEnvironment

GRACE: dict[str, Any] = {"config": {"rebalance_timeout": 10.0, "close_timeout": 2.0}}


async def test_blocks(env: VirtualEnvironment):
    """`async with` acknowledges at the end, nacks after an exception, gives back when cancelled; an end inside counts."""
    await send(env, *[b"%d" % number for number in range(5)])
    async with opened(env, nack_backoff=5.0) as queue:
        deliveries = [await queue.receive() for _ in range(5)]
        async with deliveries[0] as same:
            assert same is deliveries[0]
        with pytest.raises(ValueError, match="no"):
            async with deliveries[1]:
                raise ValueError("no")
        with pytest.raises(asyncio.CancelledError):
            async with deliveries[2]:
                raise asyncio.CancelledError
        async with deliveries[3]:
            await deliveries[3].nack(delay=1.0)
        with pytest.raises(ValueError, match="after"):
            async with deliveries[4]:
                await deliveries[4].ack()
                raise ValueError("after")
        states = [delivery.state.name for delivery in deliveries]
        assert states == ["ACKED", "NACKED", "RELEASED", "NACKED", "ACKED"]
        again = [await queue.receive() for _ in range(3)]
        assert [label(delivery) for delivery in again] == ["0@2#1", "0@3#2", "0@1#2"]
    window = await window_of(env)
    assert (window.base, window.runs, window.attempts) == (1, [(4, 5)], {1: 1, 3: 1})


@in_each_protocol
@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
async def test_a_loop_that_does_not_end_its_deliveries_in_the_grace(env: VirtualEnvironment, mode: Mode):
    """They are lost, and delivered by the new owner; those of partitions that come back begin again here."""
    for partition in range(4):
        await send(env, (b"k", b"0"), partition=partition)
    async with opened(env, "ann", mode=mode, **GRACE) as queue:
        taken = [await queue.receive() for _ in range(4)]
        began = now()
        async with working(env, "bob", mode=mode) as bob:
            await bob.until_count("end", 2)
            assert now() - began < 30.0
            lost = [delivery for delivery in taken if delivery.state is DeliveryState.LOST]
            assert len(lost) >= 2
            assert {await delivery.ack() for delivery in lost} == {AckOutcome.LOST}
            kept = [delivery for delivery in taken if delivery.state is DeliveryState.ACQUIRED]
            kept += [await queue.receive() for _ in range(2 - len(kept))]
            assert {await delivery.ack() for delivery in kept} == {AckOutcome.ACKED}
    assert [await acked(env, partition) for partition in range(4)] == [[0]] * 4


@in_each_protocol
async def test_a_nack_during_the_grace_is_counted(gates: Gates, env: VirtualEnvironment):
    """The next owner goes on with its number."""

    async def work(delivery: Delivery) -> None:
        await gates(delivery)
        raise ValueError("fails")

    for partition in range(4):
        await send(env, b"0", partition=partition)
    async with working(env, "ann", work, nack_backoff=1000.0) as ann:
        await ann.until_count("begin", 4)
        async with working(env, "bob", nack_backoff=1000.0) as bob:
            await asyncio.sleep(8.0)
            gates.open()
            await bob.until_count("end", 2)
            assert {text.split("#")[1] for text in bob.of("end")} == {"2"}


@in_each_protocol
async def test_a_last_nack_during_the_grace_is_a_dead_letter(gates: Gates, env: VirtualEnvironment):
    """The copy is written before the partition moves, and the next owner does not deliver the record."""

    async def work(delivery: Delivery) -> None:
        await gates(delivery)
        raise ValueError("fails")

    for partition in range(4):
        await send(env, b"0", partition=partition)
    dead: dict[str, Any] = {"dead_letter": DeadLetter(0)}
    async with working(env, "ann", work, **dead) as ann:
        await ann.until_count("begin", 4)
        async with working(env, "bob", work, **dead) as bob:
            await asyncio.sleep(8.0)
            gates.open()
            await env.bell.until(lambda: len(env.cluster.records("orders-g-DLQ")) == 4, "all", env.limit)
            await asyncio.sleep(30.0)
            assert len([*ann.of("begin"), *bob.of("begin")]) == 4
    assert len(env.cluster.records("orders-g-DLQ")) == 4
    assert [await acked(env, partition) for partition in range(4)] == [[0]] * 4


@pytest.mark.parametrize("position", ["earliest", "latest"])
async def test_where_a_new_group_begins(env: VirtualEnvironment, position: Any):
    """`initial_position` counts without a commit only."""
    await send(env, b"old")
    async with working(env, "ann", initial_position=position) as ann:
        await asyncio.sleep(5.0)
        await send(env, b"new")
        await ann.until("end 0@1#1")
        expected = ["0@0#1", "0@1#1"] if position == "earliest" else ["0@1#1"]
        assert ann.of("end") == expected
    await send(env, b"in between")
    async with working(env, "bob", initial_position="latest") as bob:
        await bob.until("end 0@2#1")


async def test_the_same_queue_twice_in_one_process(env: VirtualEnvironment):
    """Two members of the group share the partitions, and close at the same time."""
    for partition in range(4):
        await send(env, *[b"v"] * 20, partition=partition)

    async def work(_delivery: Delivery) -> None:
        await asyncio.sleep(0.1)

    async with (
        working(env, "ann", work, concurrency=2) as ann,
        working(env, "bob", work, concurrency=2) as bob,
    ):
        await env.bell.until(lambda: len({*ann.of("end"), *bob.of("end")}) == 80, "all", env.limit)
        await asyncio.gather(ann.queue.aclose(), bob.queue.aclose())
        handled = [*ann.of("end"), *bob.of("end")]
        assert len(handled) == len(set(handled)) == 80
    assert [await acked(env, partition) for partition in range(4)] == [list(range(20))] * 4
