"""Retry and dead letter topics of work queues in virtual time: a record is acknowledged after its copy.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import ConfigError, CopyFailedError, ErrorCode, ProducerConfig
from asyncgroup.workqueue import (
    AckOutcome,
    DeadLetter,
    Delivery,
    DeliveryState,
    Mode,
    QueueInterceptor,
    RetryTopic,
    WorkQueue,
)
from tests.scenario.support import now
from tests.stories import queue_members, queues
from tests.stories.queue_members import Gates, acked, opened, send, window_of, working
from tests.stories.virtual import VirtualEnvironment


async def fails(_delivery: Delivery) -> None:
    raise ValueError("broken")


async def test_dead_letters(env: VirtualEnvironment):
    await queues.dead_letters(env)


async def test_reconsumed(env: VirtualEnvironment):
    await queues.reconsumed(env)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("redeliveries", [0, 3])
async def test_the_number_of_deliveries(env: VirtualEnvironment, mode: Mode, redeliveries: int):
    """`max_redeliveries` + 1, by nacks of the handler, in each mode; records after it are delivered."""

    async def work(delivery: Delivery) -> None:
        if delivery.value == b"poison":
            raise ValueError("broken")

    await send(env, (b"k", b"0"), (b"k", b"poison"), (b"k", b"2"))
    options: dict[str, Any] = {"mode": mode, "nack_backoff": 0.5, "dead_letter": DeadLetter(redeliveries)}
    async with working(env, "ann", work, **options) as ann:
        await ann.until("end 0@2#1")
        await env.bell.until(
            lambda: len(env.cluster.records(ann.queue.dead_letter_topic)) == 1, "DLQ", env.limit
        )
        assert ann.of("error") == [f"0@1#{attempt}" for attempt in range(1, redeliveries + 2)]
        if mode is not Mode.SHARED:
            assert ann.calls[-2:] == ["begin 0@2#1", "end 0@2#1"]  # its place in the order was kept
    assert await acked(env) == [0, 1, 2]


async def test_ack_timeouts_count(env: VirtualEnvironment):
    await send(env, b"v")
    async with working(env, "ann", Gates(), ack_timeout=2.0, dead_letter=DeadLetter(1)) as ann:
        (copy,) = await queue_members.read_topic(env, ann.queue.dead_letter_topic or "", 1)
        assert dict(copy.headers)["__dlq.errors.message"] == b"not acknowledged within 2 s"
        assert ann.of("cancelled") == ["0@0#1", "0@0#2"]


async def test_the_last_delivery_is_reconsumed_later(env: VirtualEnvironment):
    """It goes to the dead letter topic instead."""

    async def work(delivery: Delivery) -> None:
        assert await delivery.reconsume_later(0.5) is AckOutcome.ACKED

    await send(env, b"v")
    async with working(env, "ann", work, retry=RetryTopic(), dead_letter=DeadLetter(0)) as ann:
        await queue_members.read_topic(env, ann.queue.dead_letter_topic or "", 1)
        assert env.cluster.records(ann.queue.retry_topic) == []
        assert ann.calls == ["begin 0@0#1", "end 0@0#1"]


async def test_attempts_of_both_ways_are_summed(env: VirtualEnvironment):
    """Nacks in place and hops through the retry topic count together, also over restarts."""

    async def work(delivery: Delivery) -> None:
        if delivery.attempt % 2:
            raise ValueError("odd")
        await delivery.reconsume_later(0.1)

    await send(env, b"v")
    options: dict[str, Any] = {"retry": RetryTopic(), "dead_letter": DeadLetter(5), "nack_backoff": 1.0}
    async with working(env, "ann", work, **options) as ann:
        await ann.until_count("error", 2)
    async with working(env, "bob", work, **options) as bob:
        await queue_members.read_topic(env, bob.queue.dead_letter_topic or "", 1)
        await bob.until_count("end", 2)
        attempts = [call.split("#")[1] for call in [*ann.calls, *bob.calls] if call.startswith("begin")]
        assert attempts == ["1", "2", "3", "4", "5", "6"]


async def test_retries_wait_in_the_retry_topic(env: VirtualEnvironment):
    """Each copy waits for its own time, and a short delay does not wait for a longer one."""
    delays = {b"a": 60.0, b"b": 5.0, b"c": 20.0}
    times: dict[bytes | None, float] = {}
    began = now()

    async def work(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            await delivery.reconsume_later(delays[delivery.value or b""])
        else:
            assert delivery.record.topic == ann.queue.retry_topic
            times[delivery.value] = now() - began

    await send(env, *delays)
    async with working(env, "ann", work, retry=RetryTopic(partitions=1)) as ann:
        await ann.until_count("end", 6)
    assert list(times) == [b"b", b"c", b"a"]
    assert [delay <= times[value] < delay + 3.0 for value, delay in delays.items()] == [True] * 3


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.FAILOVER])
async def test_a_long_retry_does_not_hold_a_short_one_in_modes_in_order(env: VirtualEnvironment, mode: Mode):
    delays = {b"a": 1000.0, b"b": 5.0}
    began = now()

    async def work(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            await delivery.reconsume_later(delays[delivery.value or b""])
        elif delivery.value == b"b":
            assert 5.0 <= now() - began < 10.0

    await send(env, *delays)
    async with working(env, "ann", work, mode=mode, retry=RetryTopic(partitions=1)) as ann:
        await ann.until_count("end", 3)
        assert ann.of("error") == []


async def test_a_nack_in_the_retry_topic_does_not_bring_others_forward(env: VirtualEnvironment):
    """In a loop over a mode in order a nack repeats what was delivered, not copies whose time has not come."""
    delays = {b"a": 2.0, b"b": 500.0}
    await send(env, *delays)
    async with opened(env, mode=Mode.EXCLUSIVE, retry=RetryTopic(partitions=1)) as queue:
        for _ in delays:
            delivery = await queue.receive()
            await delivery.reconsume_later(delays[delivery.value or b""])
        began = now()
        first = await queue.receive()
        assert (first.value, first.attempt) == (b"a", 2)
        await first.nack(delay=1.0)
        again = await queue.receive()
        assert (again.value, again.attempt) == (b"a", 3)
        await again.ack()
        last = await queue.receive()
        assert (last.value, last.attempt) == (b"b", 2)
        assert now() - began >= 490.0
        await last.ack()


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NOT_ENOUGH_REPLICAS])
async def test_a_dead_letter_topic_that_refuses_records(env: VirtualEnvironment, code: ErrorCode):
    """Nothing is acknowledged, the error is reported, and the copy is written when that is possible again."""
    await send(env, (b"k", b"v"), (b"k", b"w"))
    options: dict[str, Any] = {
        "mode": Mode.KEY_SHARED,
        "dead_letter": DeadLetter(0),
        "producer_config": ProducerConfig(delivery_timeout=5.0, request_timeout=2.0),
    }

    async def work(delivery: Delivery) -> None:
        if delivery.record.offset == 0:
            raise ValueError("broken")

    async with working(env, "ann", work, **options) as ann:
        topic = ann.queue.dead_letter_topic or ""
        fault = env.cluster.faults.on("Produce", topic=topic, times=None).error(code)
        errors = ann.queue.errors()
        error = await anext(errors)
        assert isinstance(error, CopyFailedError)
        assert (error.topic, error.record_topic, error.partition, error.offset) == (topic, "orders", 0, 0)
        await asyncio.sleep(20.0)
        assert (await window_of(env)).base == 0
        assert ann.calls == ["begin 0@0#1", "error 0@0#1"]  # the key waits
        assert ann.queue.statistics().partitions[0].publishing == 1
        fault.cancel()
        await ann.until("end 0@1#1")
        assert len(env.cluster.records(topic)) == 1
        assert ann.queue.statistics().counts.dead_lettered == 1
    assert await acked(env) == [0, 1]


async def test_all_brokers_of_the_dead_letter_topic_are_stopped(env: VirtualEnvironment):
    """A close does not wait for the copy; the record is delivered to the next consumer, with its count."""
    await send(env, b"v")
    async with opened(env, "ann", dead_letter=DeadLetter(1), nack_backoff=0.0) as queue:
        topic = queue.dead_letter_topic or ""
        for number in (1, 2):
            delivery = await queue.receive()
            assert delivery.attempt == number
            if number == 2:
                env.cluster.faults.on("Produce", topic=topic, times=None).drop()
            await delivery.nack()
        assert delivery.state is DeliveryState.PUBLISHING
        await asyncio.sleep(1.0)
        began = now()
        await queue.aclose()
        assert now() - began < 31.0
    assert env.cluster.records(topic) != []  # it was written, but not acknowledged
    window = await window_of(env)
    assert (window.base, window.attempts) == (0, {0: 2})
    env.cluster.faults.clear()
    async with working(env, "bob", queue_members.no_work, dead_letter=DeadLetter(1)) as bob:
        await env.bell.until(lambda: len(env.cluster.records(topic)) == 2, "a second copy", env.limit)
        assert bob.calls == []
    assert await acked(env) == [0]


class AckOrder(QueueInterceptor):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_dead_letter(self, delivery: Delivery, reason: str) -> None:
        self.calls.append(f"{delivery.state.value}, {reason}")


async def test_rejected(env: VirtualEnvironment):
    """`reject` returns when the copy is acknowledged; a cancelled caller does not stop it."""
    await send(env, b"v", b"w")
    notes = AckOrder()
    async with opened(env, dead_letter=DeadLetter(), interceptors=[notes]) as queue:
        topic = queue.dead_letter_topic or ""
        held = env.cluster.faults.on("Produce", topic=topic).hold()
        delivery = await queue.receive()
        rejecting = asyncio.create_task(delivery.reject("bad"))
        await held.wait_hit()
        assert delivery.state is DeliveryState.PUBLISHING
        assert (await window_of(env)).base == 0
        held.release()
        assert await rejecting is AckOutcome.ACKED
        assert len(env.cluster.records(topic)) == 1
        assert notes.calls == ["acknowledged, bad"]
        held = env.cluster.faults.on("Produce", topic=topic).hold()
        other = await queue.receive()
        rejecting = asyncio.create_task(other.reject("worse"))
        await held.wait_hit()
        rejecting.cancel()
        await asyncio.wait([rejecting])
        held.release()
        await env.bell.until(lambda: len(notes.calls) == 2, "the second copy", env.limit)
        assert other.state is DeliveryState.ACKED
    assert await acked(env) == [0, 1]


async def test_a_partition_is_revoked_while_its_copy_is_written(env: VirtualEnvironment):
    """The rebalance waits for the copy within the grace; one that takes longer is given up, and written by the next owner."""
    await send(env, b"v", partition=0)
    dead = {"dead_letter": DeadLetter(0)}
    async with opened(env, "ann", config={"rebalance_timeout": 10.0}, **dead) as queue:
        topic = queue.dead_letter_topic or ""
        held = env.cluster.faults.on("Produce", topic=topic, client_id="ann").hold()
        delivery = await queue.receive()
        rejecting = asyncio.create_task(delivery.reject("bad"))
        await held.wait_hit()
        async with working(env, "bob", fails, **dead) as bob:
            await env.bell.until(lambda: rejecting.done(), "given up", env.limit)
            assert rejecting.result() is AckOutcome.LOST
            again = asyncio.create_task(_ack_next(queue))
            await env.bell.until(lambda: again.done() or bob.calls, "delivered again", env.limit)
            held.release()
            again.cancel()
            await asyncio.wait([again])


async def _ack_next(queue: WorkQueue) -> None:
    delivery = await queue.receive()
    assert delivery.record.offset == 0
    await delivery.ack()


async def test_the_topics_are_created_like_the_source(env: VirtualEnvironment):
    async with opened(env, retry=RetryTopic(), dead_letter=DeadLetter(topic="dead", partitions=1)) as queue:
        assert queue.retry_topic == "orders-g-RETRY"
        assert len(env.cluster.topic("orders-g-RETRY").partitions) == 4
        assert len(env.cluster.topic("dead").partitions) == 1


async def test_the_dead_letter_topic_cannot_be_created(env: VirtualEnvironment):
    """The queue opens nevertheless; the error is reported, and the first copy waits for the topic."""
    env.cluster.faults.on("CreateTopics").error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    await send(env, b"v")
    config = ProducerConfig(delivery_timeout=5.0, request_timeout=2.0)
    async with working(env, "ann", fails, dead_letter=DeadLetter(0), producer_config=config) as ann:
        errors = ann.queue.errors()
        await ann.until("error 0@0#1")
        error = await anext(errors)
        assert isinstance(error, CopyFailedError)
        assert (await window_of(env)).base == 0
        env.cluster.create_topic("orders-g-DLQ", 1)
        await env.bell.until(lambda: len(env.cluster.records("orders-g-DLQ")) == 1, "the copy", env.limit)
    assert await acked(env) == [0]


async def test_the_reasons_of_loops(env: VirtualEnvironment):
    """A text, or the exception at hand: of the loop's own `except` block, not of one that runs the event loop."""
    await send(env, b"0", b"1", b"2", b"3", b"4", b"5")
    options: dict[str, Any] = {"retry": RetryTopic(), "dead_letter": DeadLetter(0)}

    async def fails() -> None:
        raise ValueError("broken")

    async with opened(env, "ann", **options) as queue:
        deliveries = [await queue.receive() for _ in range(6)]
        await deliveries[0].nack(reason="busy")
        for delivery, call in zip(deliveries[1:4], ("nack", "reject", "reconsume_later"), strict=True):
            try:
                await fails()
            except ValueError:
                await getattr(delivery, call)(*[1.0] * (call == "reconsume_later"))
        try:
            await fails()
        except ValueError:
            await deliveries[4].nack(reason="why")
        await deliveries[5].nack()
        with pytest.raises(ConfigError, match="reason"):
            await deliveries[5].nack(reason=ValueError("broken"))  # type: ignore[arg-type]
        copies = await queue_members.read_topic(env, queue.dead_letter_topic or "", 6)
    reasons = {copy.value: dict(copy.headers)["__dlq.errors.message"] or b"" for copy in copies}
    assert [reasons[b"%d" % number].decode() for number in range(6)] == [
        "busy",
        "ValueError: broken",
        "ValueError: broken",
        "reconsumed after its only delivery: ValueError: broken",
        "why",
        "nacked",
    ]
