"""A retry topic that several groups share: each copy belongs to the group that wrote it.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncgroup.workqueue import DeadLetter, Delivery, Mode, RetryTopic
from tests.stories.queue_members import QueueMember, Work, acked, read_topic, send, window_of, working
from tests.stories.virtual import VirtualEnvironment

SPRING: dict[str, Any] = {"retry": RetryTopic(names="spring", partitions=1)}


async def later(delivery: Delivery) -> None:
    """Retry each record once."""
    if delivery.attempt == 1:
        await delivery.reconsume_later(1.0)


async def at_once(_delivery: Delivery) -> None:
    """Nothing is to do."""


async def until_no_lag(env: VirtualEnvironment, member: QueueMember) -> None:
    """Wait until all that the member reads is acknowledged."""
    await env.bell.until(lambda: member.queue.statistics().lag == 0, "no lag", env.limit)


@contextlib.asynccontextmanager
async def of_group(
    env: VirtualEnvironment, group: str, name: str, work: Work, **options: Any
) -> AsyncIterator[QueueMember]:
    """Open a queue of another group."""
    own, env.group_id = env.group_id, group
    try:
        opening = working(env, name, work, **options)
        member = await opening.__aenter__()
    finally:
        env.group_id = own
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_exit(opening)
        yield member


@pytest.mark.parametrize(
    "options", [SPRING, pytest.param({"retry": RetryTopic("again", partitions=1)}, marks=pytest.mark.full)]
)
async def test_a_copy_is_delivered_to_its_own_group_only(env: VirtualEnvironment, options: dict[str, Any]):
    """Copies of other groups count as done on arrival, and are committed."""
    topic = options["retry"].topic or "orders-retry"
    await send(env, b"0", b"1")
    async with (
        working(env, "ann", later, **options) as ann,
        of_group(env, "h", "bob", at_once, **options) as bob,
    ):
        await ann.until_count("end", 4)
        await bob.until_count("end", 2)
        assert sorted(ann.of("begin")) == ["0@0#1", "0@0#2", "0@1#1", "0@1#2"]
        assert sorted(bob.of("begin")) == ["0@0#1", "0@1#1"]
        assert {call.record.topic for call in bob.deliveries.values()} == {"orders"}
        env.group_id = "h"
        await until_no_lag(env, bob)
    assert (await window_of(env, topic=topic)).base == 2
    env.group_id = "g"
    assert await acked(env, topic=topic) == [0, 1]


async def test_a_topic_of_its_own_name_may_be_chosen_by_another_group(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    """The copies of the other group are left to it, and from then on nothing is deleted."""

    async def much_later(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            await delivery.reconsume_later(120.0)

    await send(env, b"0")
    async with (
        working(env, "ann", later, retry=RetryTopic(partitions=1)) as ann,
        of_group(env, "h", "bob", much_later, retry=RetryTopic("orders-g-RETRY", partitions=1)) as bob,
    ):
        assert ann.queue.retry_topic == "orders-g-RETRY"
        await ann.until_count("end", 2)
        await asyncio.sleep(100.0)
        assert sorted(ann.of("begin")) == ["0@0#1", "0@0#2"]
        assert caplog.text.count("it has copies of other groups") == 1
        await bob.until_count("end", 2)
        assert sorted(bob.of("begin")) == ["0@0#1", "0@1#2"]


@pytest.mark.full
async def test_a_new_group_gets_no_copies_of_others(env: VirtualEnvironment):
    await send(env, b"0", b"1")
    async with working(env, "ann", later, **SPRING) as ann:
        await ann.until_count("end", 4)
    async with of_group(env, "h", "bob", at_once, mode=Mode.FAILOVER, **SPRING) as bob:
        await bob.until_count("end", 2)
        await until_no_lag(env, bob)
        assert sorted(bob.of("begin")) == ["0@0#1", "0@1#1"]


@pytest.mark.full
async def test_a_dead_letter_of_another_group_that_is_retried_belongs_to_the_group_that_retries(
    env: VirtualEnvironment,
):
    """The copies of a queue that reads the dead letters of another group name its own group."""
    await send(env, b"0")

    async def fails(_delivery: Delivery) -> None:
        raise ValueError("broken")

    async with working(env, "ann", fails, dead_letter=DeadLetter(0, partitions=1)) as ann:
        await read_topic(env, ann.queue.dead_letter_topic or "", 1)
    async with of_group(env, "h", "bob", later, topics="orders-g-DLQ", retry=RetryTopic("again")) as bob:
        await bob.until_count("end", 2)
        assert bob.of("begin") == ["0@0#1", "0@0#2"]


@pytest.mark.full
async def test_default_names_that_are_equal_by_accident(env: VirtualEnvironment):
    """Topic `a` with group `b-c`, and topic `a-b` with group `c`, have the same retry topic."""
    env.cluster.create_topic("a", 1)
    env.cluster.create_topic("a-b", 1)
    await send(env, b"0", topic="a")
    await send(env, b"0", topic="a-b")
    options: dict[str, Any] = {"retry": RetryTopic(partitions=1)}
    async with (
        of_group(env, "b-c", "ann", later, topics="a", **options) as ann,
        of_group(env, "c", "bob", later, topics="a-b", **options) as bob,
    ):
        assert ann.queue.retry_topic == bob.queue.retry_topic == "a-b-c-RETRY"
        for member in (ann, bob):
            await member.until_count("end", 2)
            await until_no_lag(env, member)
            assert [call.rsplit("#")[1] for call in member.of("begin")] == ["1", "2"]


@pytest.mark.full
async def test_records_without_a_group_are_for_all(env: VirtualEnvironment):
    """For example records that a program writes directly into the retry topic."""
    env.cluster.create_topic("orders-retry", 1)
    await send(env, b"by hand", topic="orders-retry")
    async with (
        working(env, "ann", at_once, **SPRING) as ann,
        of_group(env, "h", "bob", at_once, **SPRING) as bob,
    ):
        await ann.until("end 0@0#1")
        await bob.until("end 0@0#1")
