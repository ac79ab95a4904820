"""Work queues whose membership is lost, and whose log changes, while deliveries are acquired.

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
from tests.stories import queue_members
from tests.stories.queue_members import Gates, acked, label, opened, send, working
from tests.stories.virtual import VirtualEnvironment


async def healed(env: VirtualEnvironment, name: str) -> None:
    """Let the packets of the member through again."""
    env.network.heal(env._hosts[name])


@in_each_protocol
async def test_lost_membership(gates: Gates, env: VirtualEnvironment):
    """Deliveries are lost and their handlers cancelled; the queue joins again, and nothing is acknowledged twice."""
    await send(env, b"0", b"1")
    async with working(env, "ann", gates) as ann:
        await ann.until_count("begin", 2)
        queue_members.cut_off(env, "ann")
        await asyncio.sleep(2.0)
        async with working(env, "bob") as bob:
            await bob.until_count("end", 2)
            await ann.until_count("cancelled", 2)
            await asyncio.sleep(1.0)
            assert await acked(env) == [0, 1]
            first = ann.deliveries["0@0#1"]
            assert first.state is DeliveryState.LOST
            assert await first.ack() is AckOutcome.LOST
            assert not await first.nack()
        gates.open()
        await healed(env, "ann")
        for partition in range(4):
            await send(env, b"2", partition=partition)
        await ann.until_count("end", 4)
        assert sorted(ann.of("end")) == ["0@2#1", "1@0#1", "2@0#1", "3@0#1"]
        assert bob.of("end") == ["0@0#1", "0@1#1"]
    assert await acked(env) == [0, 1, 2]


@in_each_protocol
async def test_acknowledged_while_the_membership_is_lost(env: VirtualEnvironment):
    """Acknowledged records that are not committed are delivered again; the durable acknowledgement raises or returns LOST."""
    await send(env, b"0", b"1")
    async with opened(env, "ann", config={"commit_retry_max": 2}) as queue:
        first, second = await queue.receive(), await queue.receive()
        queue_members.cut_off(env, "ann")
        assert await first.ack() is AckOutcome.ACKED
        acking = asyncio.create_task(second.ack(durable=True))
        async with working(env, "bob") as bob:
            await bob.until_count("end", 2)
            await healed(env, "ann")
            await asyncio.sleep(30.0)
            await asyncio.wait([acking])
            assert acking.exception() is not None or acking.result() is AckOutcome.LOST
    assert await acked(env) == [0, 1]


async def test_a_batch_is_gathered_while_the_membership_is_lost(env: VirtualEnvironment):
    """Lost deliveries are left out of the batch."""
    from asyncgroup.workqueue import BatchPolicy

    await send(env, b"0", b"1")
    async with opened(env, "ann") as queue:
        gathering = asyncio.create_task(queue.batch_receive(BatchPolicy(max_records=10, timeout=60.0)))
        await asyncio.sleep(2.0)
        queue_members.cut_off(env, "ann")
        async with working(env, "bob") as bob:
            await bob.until_count("end", 2)
            await healed(env, "ann")
            batch = await gathering
            assert list(batch) == []


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED, Mode.FAILOVER])
async def test_the_log_is_truncated(gates: Gates, env: VirtualEnvironment, mode: Mode):
    """Deliveries of records that are no longer in the log are lost; the records written instead are delivered."""
    await send(env, (b"k", b"old 0"))
    for number in (1, 2):
        await send(env, (b"k%d" % number, b"old %d" % number))
    async with working(env, "ann", gates, mode=mode) as ann:
        await ann.until_count("begin", 1 if mode.in_order else 3)
        await asyncio.sleep(1.0)
        leader = env.cluster.leader("orders", 0)
        env.cluster.truncate("orders", 0, 1, leader % 3 + 1)
        await send(env, (b"k1", b"new 1"), (b"k", b"new 2"))
        await env.bell.until(lambda: len(env.cluster.records("orders", 0)) == 3, "new records", env.limit)
        if not mode.in_order:
            await ann.until_count("cancelled", 2)
            assert sorted(ann.of("cancelled")) == ["0@1#1", "0@2#1"]
        gates.open()
        await ann.until("end 0@0#1", "end 0@1#1", "end 0@2#1")
        assert ann.deliveries["0@1#1"].value == b"new 1"
        assert ann.deliveries["0@2#1"].value == b"new 2"
    assert await acked(env) == [0, 1, 2]


async def test_the_log_is_truncated_while_a_copy_is_written(env: VirtualEnvironment):
    """The end of the copy does not acknowledge the record that is at its offset now."""
    await send(env, b"old 0")
    await send(env, b"old 1")
    async with opened(env, dead_letter=DeadLetter()) as queue:
        first, second = await queue.receive(), await queue.receive()
        held = env.cluster.faults.on("Produce", topic=queue.dead_letter_topic).hold()
        rejecting = asyncio.create_task(second.reject("bad"))
        await held.wait_hit()
        env.cluster.truncate("orders", 0, 1, env.cluster.leader("orders", 0) % 3 + 1)
        await send(env, b"new 1")
        async with asyncio.timeout(120.0):
            delivery = await queue.receive()
        assert (label(delivery), delivery.value) == ("0@1#1", b"new 1")
        held.release()
        assert await rejecting is AckOutcome.LOST
        assert delivery.state is DeliveryState.ACQUIRED
        await first.ack(durable=True)
        assert await acked(env) == [0]
        await delivery.ack()
    assert await acked(env) == [0, 1]


async def test_the_log_is_truncated_while_the_handler_of_an_expired_delivery_ends(env: VirtualEnvironment):
    """The old record is not delivered again."""
    cancelled = asyncio.Event()

    async def work(delivery: Delivery) -> None:
        if delivery.value == b"old 1":
            try:
                await asyncio.sleep(1000.0)
            finally:
                cancelled.set()
                await asyncio.sleep(100.0)

    await send(env, b"old 0")
    await send(env, b"old 1")
    async with working(env, "ann", work, ack_timeout=5.0) as ann:
        await cancelled.wait()
        env.cluster.truncate("orders", 0, 1, env.cluster.leader("orders", 0) % 3 + 1)
        await send(env, b"new 1")
        await ann.until("end 0@1#1")
        assert ann.deliveries["0@1#1"].value == b"new 1"
        await asyncio.sleep(200.0)
        assert ann.of("begin") == ["0@0#1", "0@1#1", "0@1#1"]
    assert await acked(env) == [0, 1]


async def test_the_topic_is_recreated(gates: Gates, env: VirtualEnvironment):
    """Deliveries of the deleted topic are lost; the new one is read from its beginning."""
    await send(env, b"old 0", b"old 1", b"old 2")
    gates.open(0)
    async with working(env, "ann", gates) as ann:
        await ann.until("end 0@0#1", "begin 0@1#1", "begin 0@2#1")
        await asyncio.sleep(1.0)
        env.cluster.delete_topic("orders")
        env.cluster.create_topic("orders", 4)
        await send(env, b"new 0", b"new 1")
        await env.bell.until(lambda: ann.of("begin").count("0@0#1") == 2, "the new record", env.limit)
        gates.open()
        await env.bell.until(lambda: ann.of("end").count("0@1#1") == 1, "the new record", env.limit)
        assert ann.deliveries["0@0#1"].value == b"new 0"
        assert ann.deliveries["0@1#1"].value == b"new 1"
        assert sorted(ann.of("cancelled")) == ["0@1#1", "0@2#1"]
        await asyncio.sleep(10.0)
    assert await acked(env) == [0, 1]


async def test_a_stuck_loop_loses_its_claim(env: VirtualEnvironment):
    """A delivery that is never ended does not make the member leave: the claim feeds on; a nack comes by the ack timeout."""
    await send(env, b"0", b"1")
    options: dict[str, Any] = {"config": {"max_poll_interval": 10.0}}
    async with opened(env, "ann", **options) as queue:
        first = await queue.receive()
        began = now()
        await asyncio.sleep(100.0)
        assert first.state is DeliveryState.ACQUIRED
        assert queue.health().state == "stable"
        second = await queue.receive()
        assert await second.ack(durable=True) is AckOutcome.COMMITTED
        assert await first.ack(durable=True) is AckOutcome.COMMITTED
        assert now() - began >= 100.0


async def test_partitions_are_added(env: VirtualEnvironment):
    """The queue gets them with a rebalance, and reads them from the beginning."""
    async with working(env, "ann") as ann:
        await send(env, b"0")
        await ann.until("end 0@0#1")
        env.cluster.create_partitions("orders", 6)
        await send(env, b"0", partition=5)
        await ann.until("end 5@0#1")
    assert await acked(env, 5) == [0]
