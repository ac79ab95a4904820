"""Stories of work queues that run in virtual time and on Apache Kafka.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from asyncgroup import ConsumerBusy
from asyncgroup.workqueue import DeadLetter, Delivery, Mode, RetryTopic
from tests.stories.environment import Environment
from tests.stories.queue_members import Gates, acked, opened, read_topic, send, window_of, working

__all__ = [
    "closes_and_reopens",
    "dead_letters",
    "exclusive",
    "failover",
    "keys_in_order",
    "rebalance_while_handlers_run",
    "reconsumed",
]


async def exclusive(env: Environment) -> None:
    """A second consumer is refused and the first is not interrupted; when that has closed, the next one may enter."""
    async with working(env, "ann", mode=Mode.EXCLUSIVE) as ann:
        await send(env, b"a")
        await ann.until("end 0@0#1")
        for _ in range(2):
            with pytest.raises(ConsumerBusy):
                async with opened(env, "bob", mode=Mode.EXCLUSIVE):
                    pytest.fail("it entered")
        await send(env, b"b")
        await ann.until("end 0@1#1")
        assert ann.calls == ["begin 0@0#1", "end 0@0#1", "begin 0@1#1", "end 0@1#1"]
    async with working(env, "bob", mode=Mode.EXCLUSIVE) as bob:
        await send(env, b"c")
        await bob.until("end 0@2#1")
        assert bob.calls == ["begin 0@2#1", "end 0@2#1"]


async def failover(env: Environment) -> None:
    """The highest priority is active, then the first name; a standby takes over where the active one has ended."""
    mode = {"mode": Mode.FAILOVER}
    async with working(env, "low", priority=1, name="a", **mode) as low:
        await send(env, b"0")
        await low.until("end 0@0#1")
        async with contextlib.AsyncExitStack() as exits:
            high = await exits.enter_async_context(working(env, "high", priority=0, name="z", **mode))
            await all_owned(env, "high")
            await send(env, b"1")
            await high.until("end 0@1#1")
            assert low.calls == ["begin 0@0#1", "end 0@0#1"]
            # with the same priority the partitions go to all, in the order of the names
            async with working(env, "first", priority=0, name="b", **mode) as first:
                await env.bell.until_known(
                    lambda: shares(env, {"first": 2, "high": 2}), "two each", env.limit
                )
                await send(env, b"2")
                await first.until("end 0@2#1")
            await all_owned(env, "high")
        await all_owned(env, "low")
        await send(env, b"3")
        await low.until("end 0@3#1")
        assert low.of("begin") == ["0@0#1", "0@3#1"]
        assert high.of("begin") == ["0@1#1"]


async def all_owned(env: Environment, name: str) -> None:
    """Wait until this member has all partitions."""
    await env.bell.until_known(lambda: shares(env, {name: 4}), f"{name} has all partitions", env.limit)


async def shares(env: Environment, expected: dict[str, int]) -> bool:
    """Whether each of these client ids has its given number of partitions, and the others none."""
    found = await (env.admin.describe if env.has_leader else env.admin.describe_consumers)(env.group_id)
    if found is None or found.state != "Stable":
        return False
    counts = {
        found.client_ids[member]: sum(map(len, assignment.values()))
        for member, assignment in found.members.items()
    }
    return {name: count for name, count in counts.items() if count} == expected


async def keys_in_order(env: Environment) -> None:
    """One record of a key is acquired at a time, in order also over nacks; those of other keys go on."""
    busy: dict[bytes | None, int] = {}
    failures = {1: 2, 4: 1}  # by offset

    async def work(delivery: Delivery) -> None:
        key = delivery.key
        busy[key] = busy.get(key, 0) + 1
        assert busy[key] == 1, key
        try:
            await asyncio.sleep(0.01)
            if delivery.attempt <= failures.get(delivery.record.offset, 0):
                raise ValueError("not yet")
        finally:
            busy[key] -= 1

    await send(env, *[(b"ab"[number % 2 : number % 2 + 1], b"%d" % number) for number in range(10)])
    async with working(env, "ann", work, mode=Mode.KEY_SHARED, nack_backoff=1.0) as ann:
        await ann.until_count("end", 10)
        calls = [int(text.split("@")[1].split("#")[0]) for text in ann.of("end")]
        assert [offset for offset in calls if offset % 2] == [1, 3, 5, 7, 9]
        assert [offset for offset in calls if not offset % 2] == [0, 2, 4, 6, 8]
        assert sorted(ann.of("error")) == ["0@1#1", "0@1#2", "0@4#1"]
        assert calls.index(8) < calls.index(3), "key a waited for key b"
    assert await acked(env) == list(range(10))


async def closes_and_reopens(env: Environment) -> None:
    """What was acknowledged out of order is not delivered again after a close; the attempts of the others go on."""
    gates = Gates()
    gates.open(1, 2, 3, 5)

    async def work(delivery: Delivery) -> None:
        if delivery.record.offset == 3:
            raise ValueError("fails")
        await gates(delivery)

    await send(env, *[b"%d" % number for number in range(6)])
    async with working(env, "ann", work, nack_backoff=600.0, config={"close_timeout": 2.0}) as ann:
        await ann.until("end 0@1#1", "end 0@2#1", "error 0@3#1", "end 0@5#1", "begin 0@0#1", "begin 0@4#1")
    assert sorted(ann.of("cancelled")) == ["0@0#1", "0@4#1"]
    window = await window_of(env)
    assert (window.base, window.runs, window.attempts) == (0, [(1, 3), (5, 6)], {3: 1})
    async with working(env, "bob") as bob:
        await bob.until_count("end", 3)
        assert sorted(bob.of("begin")) == ["0@0#1", "0@3#2", "0@4#1"]
    window = await window_of(env)
    assert (window.base, window.runs, window.attempts) == (6, [], {})


async def dead_letters(env: Environment) -> None:
    """A record that fails each time is delivered `max_redeliveries` + 1 times, then copied and acknowledged."""

    async def work(delivery: Delivery) -> None:
        if delivery.value == b"poison":
            raise ValueError("broken")
        if delivery.value == b"rejected":
            assert await delivery.reject("no good")

    await send(env, (b"k", b"good"), (b"k", b"poison"), (b"k", b"rejected"), headers=[("h", b"1")])
    async with working(env, "ann", work, nack_backoff=0.1, dead_letter=DeadLetter(2)) as ann:
        topic = ann.queue.dead_letter_topic
        assert topic == f"{env.topic}-{env.group_id}-DLQ"
        copies = await read_topic(env, topic, 2)
    assert ann.of("error") == ["0@1#1", "0@1#2", "0@1#3"]
    assert sorted(ann.of("end")) == ["0@0#1", "0@2#1"]
    assert await acked(env) == [0, 1, 2]
    found = {copy.value: dict(copy.headers) for copy in copies}
    assert len(copies) == len(found) == 2
    assert {copy.key for copy in copies} == {b"k"}
    for value, offset, attempts, reason in (
        (b"poison", 1, b"3", b"ValueError: broken"),
        (b"rejected", 2, b"1", b"no good"),
    ):
        headers = found[value]
        assert headers["h"] == b"1"
        assert headers["__dlq.errors.delivery.count"] == attempts
        assert headers["__dlq.errors.message"] == reason
        assert headers["ORIGIN_MESSAGE_ID"] == f"{env.topic}-0@{offset}".encode()
        assert headers["REAL_SUBSCRIPTION"] == env.group_id.encode()


async def reconsumed(env: Environment) -> None:
    """A record hops through the retry topic with its count, its delay and headers, then to the dead letter topic."""
    loop = asyncio.get_running_loop()
    times: list[float] = []

    async def work(delivery: Delivery) -> None:
        times.append(loop.time())
        await delivery.reconsume_later(1.0, headers=[("hop", b"%d" % delivery.attempt)])

    await send(env, (b"k", b"v"), headers=[("h", b"1")])
    options: dict[str, Any] = {"retry": RetryTopic(), "dead_letter": DeadLetter(2)}
    async with working(env, "ann", work, **options) as ann:
        retry, dead = ann.queue.retry_topic, ann.queue.dead_letter_topic
        assert retry is not None
        assert dead is not None
        (copy,) = await read_topic(env, dead, 1)
    assert [text.split("#")[1] for text in ann.of("end")] == ["1", "2", "3"]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert [wait > 0.999 for wait in waits] == [True, True]  # delivery times are whole milliseconds
    hops = await read_topic(env, retry, 2)
    assert sorted((dict(hop.headers)["RECONSUMETIMES"], dict(hop.headers)["hop"]) for hop in hops) == [
        (b"1", b"1"),
        (b"2", b"2"),
    ]
    headers = dict(copy.headers)
    assert (copy.key, copy.value, headers["h"], headers["hop"]) == (b"k", b"v", b"1", b"2")
    assert headers["__dlq.errors.delivery.count"] == b"3"
    assert headers["ORIGIN_MESSAGE_ID"] == f"{env.topic}-0@0".encode()
    assert await acked(env) == [0]


async def rebalance_while_handlers_run(env: Environment) -> None:
    """A second consumer joins: handlers in flight end in their time, and what they have done is not delivered again."""
    gates = Gates()
    gates.open(1, 3)
    for partition in range(4):
        await send(env, *[b"%d" % number for number in range(4)], partition=partition)
    async with working(env, "ann", gates) as ann:
        await ann.until_count("end", 8)
        await ann.until_count("begin", 16)
        async with contextlib.AsyncExitStack() as exits:
            bob = await exits.enter_async_context(working(env, "bob", gates))
            await asyncio.sleep(env.heartbeat_interval)
            gates.open(0, 2)
            await env.bell.until_known(lambda: shares(env, {"ann": 2, "bob": 2}), "two each", env.limit)
            assert len(ann.of("end")) == 16
            for partition in range(4):
                await send(env, b"4", partition=partition)
            gates.open()
            await ann.until_count("end", 18)
            await bob.until_count("end", 2)
            assert all("@4#1" in call for call in bob.of("begin"))
    assert [await acked(env, partition) for partition in range(4)] == [list(range(5))] * 4
