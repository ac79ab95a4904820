"""Work queues over special logs: values in chunks, transactions, retention, patterns; static members, breakers.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from asyncgroup import Producer, ProducerConfig
from asyncgroup.errors import DeadLetterRateError
from asyncgroup.workqueue import (
    AckOutcome,
    Breaker,
    DeadLetter,
    Delivery,
    DeliveryState,
    Mode,
    RetryTopic,
)
from tests.scenario.support import now
from tests.stories import queue_members
from tests.stories.queue_members import Gates, acked, label, opened, send, stored, window_of, working
from tests.stories.virtual import VirtualEnvironment

CHUNKS: dict[str, Any] = {"config": {"chunks": "assemble"}}


async def send_large(env: VirtualEnvironment, *values: bytes) -> None:
    """Write values in chunks of 1 KiB to partition 0."""
    config = ProducerConfig(chunking=True, max_chunk_size=1024)
    async with Producer(env.bootstrap_servers, config) as producer:
        for value in values:
            await producer.send("orders", value, key=b"k", partition=0)


# --- values in chunks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode))
async def test_values_in_chunks(env: VirtualEnvironment, mode: Mode):
    values = [b"a" * 5000, b"b", b"c" * 3000]
    await send_large(env, *values)
    async with working(env, "ann", mode=mode, **CHUNKS) as ann:
        await ann.until_count("end", 3)
        assert [delivery.value for delivery in ann.deliveries.values()] == values
    end = env.cluster.partition("orders", 0).log_end_offset
    assert end > 6
    assert (await window_of(env)).base == end


async def test_a_value_in_chunks_is_delivered_again_after_a_restart(env: VirtualEnvironment):
    """Its chunks are read again, although records after it were acknowledged."""
    values = [b"a" * 5000, b"b", b"c" * 3000, b"d"]
    await send_large(env, *values)

    async def work(delivery: Delivery) -> None:
        if len(delivery.value or b"") > 1:
            raise ValueError("later")

    async with working(env, "ann", work, **CHUNKS) as ann:
        await ann.until_count("end", 2)
        await ann.until_count("error", 2)
    async with working(env, "bob", **CHUNKS) as bob:
        await bob.until_count("end", 2)
        assert [delivery.value for delivery in bob.deliveries.values()] == [values[0], values[2]]
        assert [text.split("#")[1] for text in bob.of("begin")] == ["2", "2"]
    assert (await window_of(env)).base == env.cluster.partition("orders", 0).log_end_offset


async def test_a_value_in_chunks_acquired_at_a_crash(env: VirtualEnvironment):
    await send_large(env, b"a" * 5000, b"b")
    async with opened(env, "ann", config={"chunks": "assemble", "close_timeout": 1.0}) as queue:
        large, small = await queue.receive(), await queue.receive()
        assert await small.ack(durable=True) is AckOutcome.COMMITTED
        queue_members.cut_off(env, "ann")
    assert large.value == b"a" * 5000
    async with working(env, "bob", **CHUNKS) as bob:
        await bob.until_count("end", 1)
        assert [delivery.value for delivery in bob.deliveries.values()] == [b"a" * 5000]
    assert (await window_of(env)).base == env.cluster.partition("orders", 0).log_end_offset


async def test_large_values_go_to_the_dead_letter_topic_in_chunks(env: VirtualEnvironment):
    await send_large(env, b"a" * 5000)
    config = ProducerConfig(chunking=True, max_chunk_size=1024)
    async with opened(env, dead_letter=DeadLetter(), producer_config=config, **CHUNKS) as queue:
        delivery = await queue.receive()
        assert await delivery.reject("no") is AckOutcome.ACKED
        topic = queue.dead_letter_topic
    env.topic, env.group_id = topic or "", "readers"
    async with working(env, "bob", **CHUNKS) as bob:
        await bob.until_count("end", 1)
        (found,) = bob.deliveries.values()
        assert found.value == b"a" * 5000
        assert dict(found.headers)["__dlq.errors.message"] == b"no"


# --- transactions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED, Mode.EXCLUSIVE])
async def test_markers_and_aborted_records_count_as_done(env: VirtualEnvironment, mode: Mode):
    async with Producer(env.bootstrap_servers, ProducerConfig(transactional_id="t")) as producer:
        for number in range(6):
            try:
                async with producer.transaction():
                    await producer.send("orders", b"%d" % number, key=b"k", partition=0)
                    if number % 2:
                        raise ValueError("abort")
            except ValueError:
                pass
    config = {"isolation_level": "read_committed"}
    async with working(env, "ann", mode=mode, config=config) as ann:
        await ann.until_count("end", 3)
        assert [delivery.value for delivery in ann.deliveries.values()] == [b"0", b"2", b"4"]
        await asyncio.sleep(5.0)
        await send(env, (b"k", b"last"))
        await ann.until_count("end", 4)
    window = await window_of(env)
    assert (window.base, window.runs) == (env.cluster.partition("orders", 0).log_end_offset, [])


# --- retention --------------------------------------------------------------------------------------------------------------


async def test_records_that_retention_has_deleted(gates: Gates, env: VirtualEnvironment):
    """Acquired records stay valid; after a restart the queue begins at the log start."""
    env.cluster.create_topic("short", 1, configs={"retention.ms": "1000", "segment.bytes": "1048576"})
    env.topic = "short"
    for number in range(6):
        await send(env, b"%d" % number * 600_000)
    gates.open(1, 2)
    async with working(env, "ann", gates, config={"close_timeout": 2.0}) as ann:
        await ann.until_count("end", 2)
        await asyncio.sleep(30.0)
        env.cluster.apply_retention()
        start = env.cluster.partition("short", 0).log_start_offset
        assert start >= 3
        gates.open(0)
        await ann.until("end 0@0#1")
        await asyncio.sleep(1.0)
        assert (await window_of(env)).base == 3
    async with working(env, "bob") as bob:
        await send(env, b"new")
        await bob.until("end 0@6#1")
        assert bob.of("begin") == [f"0@{offset}#1" for offset in range(max(start, 3), 7)]
    assert (await window_of(env)).base == 7


# --- topics -----------------------------------------------------------------------------------------------------------------


async def test_a_pattern_and_its_retry_topic(env: VirtualEnvironment):
    """The retry topic is read beside the topics that match, and new topics are found."""
    pattern = re.compile("orders.*")
    hops: list[str] = []

    async def work(delivery: Delivery) -> None:
        hops.append(delivery.record.topic)
        if delivery.attempt == 1:
            await delivery.reconsume_later(1.0)

    options: dict[str, Any] = {"retry": RetryTopic("again"), "dead_letter": DeadLetter(topic="dead")}
    async with working(env, "ann", work, topics=pattern, **options) as ann:
        await send(env, b"0")
        await ann.until_count("end", 2)
        env.cluster.create_topic("orders-2", 1)
        await send(env, b"0", topic="orders-2")
        await ann.until_count("end", 4)
        assert hops == ["orders", "again", "orders-2", "again"]


async def test_several_topics(env: VirtualEnvironment):
    env.cluster.create_topic("others", 2)
    options: dict[str, Any] = {"retry": RetryTopic(), "dead_letter": DeadLetter()}
    async with working(env, "ann", topics=["others", "orders"], **options) as ann:
        assert ann.queue.retry_topic == "orders-g-RETRY"
        await send(env, b"0")
        await send(env, b"1", topic="others")
        await ann.until_count("end", 2)
    assert await acked(env, topic="others") == [0]


# --- members ---------------------------------------------------------------------------------------------------------------


async def test_static_members(gates: Gates, env: VirtualEnvironment):
    """A restart within the session timeout moves no partition, and goes on with the window."""
    config = {"group_instance_id": "desk-a", "close_timeout": 2.0}
    gates.open(1)
    await send(env, b"0", b"1", b"2")
    async with working(env, "bob", config={"group_instance_id": "desk-b"}) as bob:
        await asyncio.sleep(15.0)
        async with working(env, "ann", gates, config=config) as ann:
            await asyncio.sleep(15.0)
            calls = [*ann.calls, *bob.calls]
        generation = env.cluster.group("g").generation
        async with working(env, "ann", config=config) as again:
            await asyncio.sleep(15.0)
            assert env.cluster.group("g").generation == generation
            handled = [*bob.of("end"), *ann.of("end"), *again.of("end")]
            assert sorted(handled) == ["0@0#1", "0@1#1", "0@2#1"], calls


async def test_several_tasks_receive_and_the_last_one_closes(env: VirtualEnvironment):
    """Its own delivery is given back; it waits until the others have ended theirs."""
    await send(env, b"0", b"1")
    async with opened(env, "ann") as queue:
        taken: list[Delivery] = []

        async def other() -> AckOutcome:
            delivery = await queue.receive()
            taken.append(delivery)
            await asyncio.sleep(3.0)
            return await delivery.ack()

        task = asyncio.create_task(other())
        await env.bell.until(lambda: len(taken) == 1, "taken", env.limit)
        mine = await queue.receive()
        await queue.aclose()
        assert mine.state is DeliveryState.RELEASED
        assert task.done()
        assert await task is AckOutcome.ACKED
    async with working(env, "bob") as bob:
        await bob.until_count("end", 1)
        assert bob.of("begin") == ["0@1#1"]


# --- breaker ------------------------------------------------------------------------------------------------------------------


async def test_a_breaker(env: VirtualEnvironment):
    """Too many dead letters stop the queue; no record is lost, and none is copied twice after a restart with a mended handler."""

    async def fails(_delivery: Delivery) -> None:
        await asyncio.sleep(0.1)
        raise ValueError("bad deployment")

    await send(env, *[b"%d" % number for number in range(50)])
    dead = DeadLetter(0, breaker=Breaker(share=0.5, minimum=5, window=60.0))
    with pytest.raises(DeadLetterRateError, match=r"dead letters, more than share=0\.5"):
        async with working(env, "ann", fails, concurrency=2, dead_letter=dead) as ann:
            assert ann.run is not None
            await asyncio.wait([ann.run])
            with pytest.raises(DeadLetterRateError):
                await ann.queue.receive()
    copies = {record.value for record in env.cluster.records("orders-g-DLQ")}
    assert 5 <= len(copies) <= 8
    window = await window_of(env)
    assert window.base + sum(end - start for start, end in window.runs) == len(copies)
    assert now() < 60.0
    async with working(env, "bob", dead_letter=DeadLetter(5)) as bob:
        await bob.until_count("end", 50 - len(copies))
        values = {delivery.value for delivery in bob.deliveries.values()}
    assert values | copies == {b"%d" % number for number in range(50)}
    assert values & copies == set()
    assert await stored(env) is not None
    assert label(next(iter(bob.deliveries.values())))


# --- values in chunks that hold back the commit ---------------------------------------------------------------------------


async def test_a_value_in_chunks_that_the_second_owner_has_not_read_is_not_lost(
    env: VirtualEnvironment,
) -> None:
    """Its first chunks count as acknowledged, and the commit must not move to its last one."""
    config = ProducerConfig(chunking=True, max_chunk_size=1024)
    async with Producer(env.bootstrap_servers, config) as producer:
        for value in (b"first", b"x" * 5000, b"last"):
            await producer.send("orders", value, partition=0)
    options: dict[str, Any] = {"receiver_queue": 0, "config": {"chunks": "assemble", "close_timeout": 1.0}}
    async with opened(env, "ann", **options) as queue:
        found = [await queue.receive() for _ in range(3)]
        assert [each.value for each in found] == [b"first", b"x" * 5000, b"last"]
        assert await found[2].ack(durable=True)
    async with opened(env, "bob", **options) as queue:
        assert await (await queue.receive()).ack(durable=True)
    async with opened(env, "carl", **options) as queue, asyncio.timeout(100.0):
        assert (await queue.receive()).value == b"x" * 5000


async def test_a_value_in_chunks_that_a_seek_has_gone_back_to_is_not_lost(env: VirtualEnvironment) -> None:
    """It is delivered again, and the queue closes before its acknowledgement."""
    config = ProducerConfig(chunking=True, max_chunk_size=1024)
    async with Producer(env.bootstrap_servers, config) as producer:
        await producer.send("orders", b"x" * 5000, partition=0)
    options: dict[str, Any] = {"config": {"chunks": "assemble", "close_timeout": 1.0}}
    async with opened(env, "ann", **options) as queue:
        assert await (await queue.receive()).ack(durable=True)
    async with opened(env, "bob", **options) as queue:
        while not queue.statistics().partitions:
            await asyncio.sleep(0.1)
        await queue.seek("earliest")
        assert (await queue.receive()).value == b"x" * 5000
    async with opened(env, "carl", **options) as queue, asyncio.timeout(100.0):
        assert (await queue.receive()).value == b"x" * 5000
