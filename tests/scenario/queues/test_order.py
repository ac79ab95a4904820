"""Exclusive and Failover queues in a loop: a nack repeats all that is unacknowledged, in order; cumulative acks."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import UsageError
from asyncgroup.workqueue import AckOutcome, BatchPolicy, DeadLetter, Delivery, DeliveryState, Mode, WorkQueue
from tests.scenario.support import now
from tests.stories.queue_members import acked, label, opened, send, window_of, working
from tests.stories.virtual import VirtualEnvironment

in_order = pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.FAILOVER])


async def take(queue: WorkQueue, count: int) -> list[Delivery]:
    """Return the next deliveries."""
    return [await queue.receive() for _ in range(count)]


def labels(deliveries: list[Delivery]) -> list[str]:
    return [label(delivery) for delivery in deliveries]


@in_order
async def test_a_nack_repeats_all_that_is_unacknowledged(env: VirtualEnvironment, mode: Mode):
    """The nacked record is counted, and the ones that follow are delivered with the same number."""
    await send(env, *[b"%d" % number for number in range(6)])
    async with opened(env, mode=mode) as queue:
        taken = await take(queue, 4)
        await taken[2].ack()
        assert await taken[1].nack(delay=3.0)
        began = now()
        early = asyncio.create_task(take(queue, 2))
        await early
        again = await take(queue, 5)
        assert now() - began >= 3.0 - 1e-9
        assert labels(again) == ["0@0#1", "0@1#2", "0@3#1", "0@4#1", "0@5#1"]
        assert {taken[0].state, taken[3].state} == {DeliveryState.EXPIRED}
        assert await taken[0].ack() is AckOutcome.EXPIRED
        assert [await each.ack() for each in again] == [AckOutcome.ACKED] * 5
    assert await acked(env) == [0, 1, 2, 3, 4, 5]


@in_order
async def test_two_nacks(env: VirtualEnvironment, mode: Mode):
    """The earlier time counts for both, in their order."""
    await send(env, *[b"%d" % number for number in range(4)])
    async with opened(env, mode=mode) as queue:
        taken = await take(queue, 4)
        began = now()
        await taken[0].nack(delay=10.0)
        await taken[2].nack(delay=2.0)
        again = await take(queue, 4)
        assert 2.0 - 1e-9 <= now() - began < 3.0
        assert labels(again) == ["0@0#2", "0@1#1", "0@2#2", "0@3#1"]
        await again[3].ack_cumulative()
        await asyncio.sleep(20.0)  # the longer delay has no effect any more
        receiving = asyncio.create_task(queue.receive())
        await asyncio.sleep(1.0)
        assert not receiving.done()
        receiving.cancel()
        await asyncio.wait([receiving])
    assert await acked(env) == [0, 1, 2, 3]


@in_order
async def test_cumulative_acknowledgement(env: VirtualEnvironment, mode: Mode):
    await send(env, *[b"%d" % number for number in range(5)])
    async with opened(env, mode=mode) as queue:
        taken = await take(queue, 5)
        assert await taken[3].ack_cumulative(durable=True) is AckOutcome.COMMITTED
        assert [each.state for each in taken] == [DeliveryState.ACKED] * 4 + [DeliveryState.ACQUIRED]
        assert await acked(env) == [0, 1, 2, 3]
        with pytest.raises(UsageError, match="ended before"):
            await taken[1].ack()
        assert await taken[4].ack_cumulative() is AckOutcome.ACKED


@in_order
async def test_cumulative_acknowledgement_of_nacked_records(env: VirtualEnvironment, mode: Mode):
    """All before it are done, also one that waits after a nack."""
    await send(env, *[b"%d" % number for number in range(3)])
    async with opened(env, mode=mode) as queue:
        taken = await take(queue, 3)
        await taken[0].nack(delay=5.0)
        assert await taken[2].ack_cumulative(durable=True) is AckOutcome.COMMITTED
        assert await acked(env) == [0, 1, 2]
        receiving = asyncio.create_task(queue.receive())
        await asyncio.sleep(20.0)
        assert not receiving.done()
        receiving.cancel()
        await asyncio.wait([receiving])
        statistics = queue.statistics().partitions[0]
        assert (statistics.waiting, statistics.acquired) == (0, 0)


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
async def test_cumulative_acknowledgement_without_an_order(env: VirtualEnvironment, mode: Mode):
    """It is refused, and the delivery stays open."""
    await send(env, b"0", b"1")
    async with opened(env, mode=mode) as queue:
        first, second = await take(queue, 2)
        with pytest.raises(UsageError, match="has no order: acknowledge each record by itself"):
            await second.ack_cumulative()
        assert second.state is DeliveryState.ACQUIRED
        await second.ack(durable=True)
        window = await window_of(env)
        assert (window.base, window.runs) == (0, [(1, 2)])
        await first.ack()
    assert await acked(env) == [0, 1]


@in_order
async def test_an_expired_delivery_repeats_all_that_is_unacknowledged(env: VirtualEnvironment, mode: Mode):
    await send(env, *[b"%d" % number for number in range(3)])
    async with opened(env, mode=mode, ack_timeout=5.0) as queue:
        first = await queue.receive()
        await asyncio.sleep(2.0)
        second = await queue.receive()
        await asyncio.sleep(4.0)
        assert (first.state, second.state) == (DeliveryState.EXPIRED,) * 2
        again = await take(queue, 3)
        assert labels(again) == ["0@0#2", "0@1#1", "0@2#1"]
        for delivery in again:
            await delivery.ack()
    assert await acked(env) == [0, 1, 2]


@in_order
async def test_dead_letters_keep_their_place(env: VirtualEnvironment, mode: Mode):
    """A record that was nacked too often is copied; the others are not counted by its nacks."""
    await send(env, *[b"%d" % number for number in range(3)])
    async with opened(env, mode=mode, dead_letter=DeadLetter(2), nack_backoff=1.0) as queue:
        for attempt in (1, 2, 3):
            taken = await take(queue, 3)
            assert labels(taken) == ["0@0#1", f"0@1#{attempt}", "0@2#1"]
            await taken[1].nack()
            if attempt == 3:
                await taken[0].ack()
                await taken[2].ack()
        topic = queue.dead_letter_topic or ""
        await env.bell.until(lambda: len(env.cluster.records(topic)) == 1, "the dead letter", env.limit)
    assert await acked(env) == [0, 1, 2]


@in_order
async def test_other_partitions_are_not_repeated(env: VirtualEnvironment, mode: Mode):
    for partition in (0, 1):
        await send(env, b"0", b"1", partition=partition)
    async with opened(env, mode=mode) as queue:
        taken = await take(queue, 4)
        (nacked,) = (each for each in taken if label(each) == "0@1#1")
        await nacked.nack(delay=1.0)
        again = await take(queue, 2)
        assert labels(again) == ["0@0#1", "0@1#2"]
        states = {label(each): each.state for each in taken if each.record.partition == 1}
        assert states == dict.fromkeys(("1@0#1", "1@1#1"), DeliveryState.ACQUIRED)
        for delivery in again:
            await delivery.ack()


@pytest.mark.parametrize("mode", [Mode.KEY_SHARED, Mode.FAILOVER])
async def test_a_handler_that_goes_on_after_its_ack_holds_the_next_record(
    env: VirtualEnvironment, mode: Mode
):
    """The same holds after `reject`, which acknowledges the record when its copy is written."""
    running: set[bytes | None] = set()

    async def work(delivery: Delivery) -> None:
        assert delivery.key not in running
        running.add(delivery.key)
        if delivery.record.offset % 2:
            await delivery.reject("odd")
        else:
            await delivery.ack(durable=True)
        await asyncio.sleep(1.0)
        running.discard(delivery.key)

    await send(env, *[(b"k", b"%d" % number) for number in range(6)])
    async with working(env, "ann", work, mode=mode, dead_letter=DeadLetter(3)) as ann:
        await ann.until_count("end", 6)
        assert ann.of("error") == []
        assert [text.split("#")[0] for text in ann.of("end")] == [f"0@{number}" for number in range(6)]


# --- the order holds over restarts and records that are given back ------------------------------------------------------


@in_order
async def test_a_restored_window(env: VirtualEnvironment, mode: Mode):
    """A later record was nacked by the former owner: the ones before it still come first."""
    await send(env, *[b"%d" % number for number in range(6)])
    async with opened(env, mode=mode, nack_backoff=60.0) as queue:
        await (await take(queue, 3))[2].nack()
        await asyncio.sleep(1.0)
    async with opened(env, mode=mode) as queue:
        assert labels(await take(queue, 6)) == ["0@0#1", "0@1#1", "0@2#2", "0@3#1", "0@4#1", "0@5#1"]


@in_order
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
async def test_cancelled_blocks(env: VirtualEnvironment, mode: Mode, order: tuple[int, ...]):
    """In any order in which they give their records back."""

    async def hold(delivery: Delivery) -> None:
        async with delivery:
            await asyncio.sleep(1000.0)

    await send(env, *[b"%d" % number for number in range(4)])
    async with opened(env, mode=mode) as queue:
        tasks = [asyncio.create_task(hold(delivery)) for delivery in await take(queue, 3)]
        await asyncio.sleep(1.0)
        for number in order:
            tasks[number].cancel()
        await asyncio.wait(tasks)
        assert labels(await take(queue, 4)) == ["0@0#1", "0@1#1", "0@2#1", "0@3#1"]


@in_order
async def test_a_block_of_a_local_consumer_is_cancelled(env: VirtualEnvironment, mode: Mode):
    """Records in the inbox come after the record that was given back."""
    await send(env, *[b"%d" % number for number in range(4)])
    async with opened(env, mode=mode) as queue:
        one = queue.consumer("one")
        await asyncio.sleep(5.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0), await one.receive():
                await asyncio.sleep(100.0)
        assert [(await one.receive()).record.offset for _ in range(4)] == [0, 1, 2, 3]


@in_order
async def test_a_batch_of_a_local_consumer_is_full(env: VirtualEnvironment, mode: Mode):
    """The record that did not fit is the first one of the next batch."""
    await send(env, *[b"%d" % number * 100 for number in range(6)])
    async with opened(env, mode=mode) as queue:
        one = queue.consumer("one")
        await asyncio.sleep(5.0)
        found = []
        for _ in range(3):
            async with await one.batch_receive(BatchPolicy(max_bytes=250, timeout=1.0)) as batch:
                found.append([each.record.offset for each in batch])
        assert found == [[0, 1], [2, 3], [4, 5]]


@in_order
async def test_a_local_consumer_whose_inbox_is_repeated(env: VirtualEnvironment, mode: Mode):
    """A nack ends all deliveries of a full inbox; they are delivered again, and the consumer does not sleep beside them."""
    await send(env, *[b"%d" % number for number in range(6)])
    async with opened(env, mode=mode, nack_backoff=1.0) as queue:
        one = queue.consumer("one", receiver_queue=2)
        await (await one.receive()).nack()
        await asyncio.sleep(5.0)
        async with asyncio.timeout(10.0):
            assert [label(await one.receive()) for _ in range(3)] == ["0@0#2", "0@1#1", "0@2#1"]
