"""Modes of work queues in virtual time: Exclusive, Failover, Shared and Key_Shared.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asyncgroup import ConsumerBusy, Header, Record
from asyncgroup.workqueue import DeadLetter, Delivery, Mode
from tests.scenario.support import now
from tests.stories import queue_members, queues
from tests.stories.queue_members import Gates, acked, opened, read_topic, send, working
from tests.stories.virtual import VirtualEnvironment


async def test_exclusive(env: VirtualEnvironment):
    await queues.exclusive(env)
    assert (
        len(env.cluster.history.of("JoinGroup", client_id="bob")) == 2
    )  # only the one that entered has joined


async def test_failover(env: VirtualEnvironment):
    await queues.failover(env)


async def test_keys_in_order(env: VirtualEnvironment):
    await queues.keys_in_order(env)


async def test_closes_and_reopens(env: VirtualEnvironment):
    await queues.closes_and_reopens(env)


async def test_two_exclusive_consumers_that_enter_at_once(env: VirtualEnvironment):
    """Exactly one consumer gets the group, and entering the other one raises."""
    outcomes: dict[str, str] = {}
    leave = asyncio.Event()

    async def enter(name: str) -> None:
        try:
            async with opened(env, name, mode=Mode.EXCLUSIVE):
                outcomes[name] = "entered"
                await leave.wait()
        except ConsumerBusy:
            outcomes[name] = "busy"

    entering = [asyncio.create_task(enter(name)) for name in ("ann", "bob")]
    await env.bell.until(lambda: len(outcomes) == 2, "both know", env.limit)
    assert sorted(outcomes.values()) == ["busy", "entered"]
    leave.set()
    await asyncio.gather(*entering)


async def test_an_exclusive_consumer_after_one_that_died(env: VirtualEnvironment):
    """It is refused until the session of the dead one has expired."""
    async with working(env, "ann", mode=Mode.EXCLUSIVE) as ann:
        await send(env, b"a")
        await ann.until("end 0@0#1")
        await asyncio.sleep(1.0)
        queue_members.cut_off(env, "ann")
        with pytest.raises(ConsumerBusy):
            async with opened(env, "bob", mode=Mode.EXCLUSIVE):
                pytest.fail("it entered")
        await asyncio.sleep(env.session_timeout + 1.0)
        async with working(env, "bob", mode=Mode.EXCLUSIVE) as bob:
            await send(env, b"b")
            await bob.until("end 0@1#1")
            assert bob.calls == ["begin 0@1#1", "end 0@1#1"]


async def test_shared_handles_a_partition_at_the_same_time(gates: Gates, env: VirtualEnvironment):
    await send(env, *[(b"k", b"%d" % number) for number in range(5)])
    async with working(env, "ann", gates, concurrency=3) as ann:
        await ann.until_count("begin", 3)
        await asyncio.sleep(5.0)
        assert ann.of("begin") == ["0@0#1", "0@1#1", "0@2#1"]  # concurrency is the limit
        gates.open(2)
        await ann.until("begin 0@3#1")
        gates.open()
        await ann.until_count("end", 5)
    assert await acked(env) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.FAILOVER])
async def test_modes_in_order_handle_one_record_of_a_partition_at_a_time(env: VirtualEnvironment, mode: Mode):
    """Records of other partitions are handled at the same time."""
    gates = Gates()
    for partition in (0, 1):
        await send(env, b"0", b"1", b"2", partition=partition)
    async with working(env, "ann", gates, mode=mode) as ann:
        await ann.until("begin 0@0#1", "begin 1@0#1")
        await asyncio.sleep(5.0)
        assert len(ann.calls) == 2
        gates.open()
        await ann.until_count("end", 6)
        for partition in (0, 1):
            assert [call for call in ann.calls if f" {partition}@" in call] == [
                f"{kind} {partition}@{offset}#1" for offset in range(3) for kind in ("begin", "end")
            ]


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.FAILOVER])
async def test_a_failed_record_keeps_its_place_in_modes_in_order(env: VirtualEnvironment, mode: Mode):
    began = 0.0

    async def work(delivery: Delivery) -> None:
        nonlocal began
        if delivery.record.offset == 1 and delivery.attempt < 3:
            began = now()
            raise ValueError("not yet")
        if delivery.record.offset == 1:
            assert now() - began >= 2.0

    await send(env, b"0", b"1", b"2")
    async with working(env, "ann", work, mode=mode, nack_backoff=2.0) as ann:
        await ann.until("end 0@2#1")
        assert ann.of("begin") == ["0@0#1", "0@1#1", "0@1#2", "0@1#3", "0@2#1"]


async def test_key_shared_allows_out_of_order(gates: Gates, env: VirtualEnvironment):
    """A record that waits after a nack does not hold the next ones of its key; one in flight does."""

    async def work(delivery: Delivery) -> None:
        if delivery.record.offset == 0 and delivery.attempt == 1:
            raise ValueError("later")
        await gates(delivery)

    await send(env, *[(b"k", b"%d" % number) for number in range(3)])
    options = {"mode": Mode.KEY_SHARED, "nack_backoff": 10.0, "allow_out_of_order": True}
    async with working(env, "ann", work, **options) as ann:
        await ann.until("begin 0@1#1")
        await asyncio.sleep(15.0)
        assert ann.of("begin") == ["0@0#1", "0@1#1"]
        gates.open(0, 1, 2)
        await ann.until_count("end", 3)
        assert sorted(ann.of("begin")) == ["0@0#1", "0@0#2", "0@1#1", "0@2#1"]


async def test_records_without_a_key_have_no_order(gates: Gates, env: VirtualEnvironment):
    await send(env, b"0", b"1", (b"", b"2"), (b"", b"3"))
    async with working(env, "ann", gates, mode=Mode.KEY_SHARED) as ann:
        await ann.until_count("begin", 3)
        await asyncio.sleep(1.0)
        assert ann.of("begin") == ["0@0#1", "0@1#1", "0@2#1"]  # the empty key is one
        gates.open()
        await ann.until("end 0@3#1")


async def test_ordering_keys(env: VirtualEnvironment):
    """The header `ag-ordering-key` replaces the record's key, and the function of the queue both."""
    gates = Gates()
    await send(env, (b"a", b"0"), (b"b", b"1"), ordering_key=b"same")
    await send(env, (b"a", b"2"))
    async with working(env, "ann", gates, mode=Mode.KEY_SHARED) as ann:
        await ann.until("begin 0@0#1", "begin 0@2#1")
        await asyncio.sleep(1.0)
        assert ann.of("begin") == ["0@0#1", "0@2#1"]
        assert ann.deliveries["0@0#1"].ordering_key == b"same"
        assert ann.deliveries["0@2#1"].ordering_key == b"a"
        gates.open()
        await ann.until_count("end", 3)
    await send(env, (b"a", b"x"), (b"b", b"x"), (b"c", b"y"))
    gates = Gates()
    options = {"mode": Mode.KEY_SHARED, "ordering_key": lambda record: record.value}
    async with working(env, "bob", gates, **options) as bob:
        await bob.until("begin 0@3#1", "begin 0@5#1")
        await asyncio.sleep(1.0)
        assert bob.of("begin") == ["0@3#1", "0@5#1"]
        gates.open()
        await bob.until_count("end", 3)


def key_or_error(record: Record) -> Any:
    """The key of a record; for some values an error or a key that is none."""
    match record.value:
        case b"raises":
            raise ValueError("no such field")
        case b"text":
            return "text"
        case b"list":
            return [b"k"]
    return record.key


@pytest.mark.parametrize("headers", [(), [("a", b"b")]], ids=["plain", "headers"])
async def test_a_record_without_an_ordering_key_becomes_a_dead_letter(
    env: VirtualEnvironment, headers: Sequence[Header]
):
    """It holds up no other one, and is not delivered."""
    await send(env, b"0", b"raises", b"text", b"list", b"4", headers=headers)
    options: dict[str, Any] = {"ordering_key": key_or_error, "dead_letter": DeadLetter(1)}
    async with working(env, "ann", mode=Mode.KEY_SHARED, **options) as ann:
        await ann.until("end 0@0#1", "end 0@4#1")
        topic = ann.queue.dead_letter_topic
        assert topic is not None
        reasons = [text for each in await read_topic(env, topic, 3) for _, text in each.headers if text]
        for text in (
            b"no such field",
            b"returned 'text'; allowed are bytes",
            b"returned [b'k']; allowed are",
        ):
            assert any(b"has no ordering key" in reason and text in reason for reason in reasons), text
        assert ann.of("begin") == ["0@0#1", "0@4#1"]
    assert await acked(env) == [0, 1, 2, 3, 4]


async def test_an_ordering_key_that_raises_ends_a_queue_without_dead_letters(env: VirtualEnvironment):
    """The error names the record, which is not acknowledged."""
    await send(env, b"0", b"raises", b"2")
    async with opened(env, ordering_key=key_or_error, mode=Mode.KEY_SHARED) as queue:
        with pytest.raises(ValueError, match="no such field") as caught:
            await queue.run(queue_members.no_work)
    assert any(f"raised by ordering_key for {env.topic}-0@1" in note for note in caught.value.__notes__)
    assert 1 not in await acked(env)
