"""Members of work queues that never get a record: without a partition, or for the records before the first commit."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from asyncgroup.workqueue import Delivery, Mode, RetryTopic
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.queue_members import opened, send, working
from tests.stories.virtual import VirtualEnvironment

MOVING = 60.0
"""Seconds for which partitions may move: `rebalance_timeout`, by default."""


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of the work queues, and forget them."""
    found = [each for each in caplog.records if each.name == "asyncgroup.workqueue"]
    caplog.clear()
    return [each.getMessage() for each in found if each.levelno == logging.WARNING]


@pytest.mark.parametrize("mode", [Mode.SHARED, pytest.param(Mode.KEY_SHARED, marks=pytest.mark.full)])
async def test_a_member_without_partitions(
    env: VirtualEnvironment, mode: Mode, caplog: pytest.LogCaptureFixture
):
    """It is a problem after a while, and gone when another member leaves."""
    await env.create_topic("narrow", 1)
    async with opened(env, "zoe", topics="narrow", mode=mode) as zoe:
        async with opened(env, "ann", topics="narrow", mode=mode) as ann:
            await asyncio.sleep(MOVING - 5.0)
            assert zoe.health().is_healthy
            assert ann.health().is_healthy
            await asyncio.sleep(20.0)
            (idle,) = [queue for queue in (zoe, ann) if not queue.statistics().partitions]
            (problem,) = idle.health().problems
            assert problem == (
                "this member has no partition, and gets no records: other members have the only partition of the topics; a "
                "group has work for as many members as partitions at most"
            )
            assert lines(caplog) == [f"group {env.group_id}: {problem}"]
            await asyncio.sleep(2 * MOVING)
            assert lines(caplog) == []
        assert "this member has no partition" not in str(ann.health().problems), "it is closed"
        await asyncio.sleep(30.0)
        assert len(zoe.statistics().partitions) == 1
        assert zoe.health().is_healthy


@in_each_protocol
async def test_partitions_that_move_later(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture):
    """A member that gets partitions when the handlers of their former holder have ended is healthy all the time."""

    async def slow(_delivery: Delivery) -> None:
        await asyncio.sleep(0.5 * MOVING)

    for partition in range(4):
        await send(env, b"0", partition=partition)
    config = {"rebalance_timeout": MOVING, "close_timeout": 1.0}
    async with working(env, "zoe", slow, config=config) as zoe:
        await zoe.until_count("begin", 4)
        async with opened(env, "ann", config=config) as ann:
            for _ in range(int(MOVING)):
                assert not [each for each in ann.health().problems if "no partition" in each]
                await asyncio.sleep(1.0)
            assert len(ann.statistics().partitions) == 2
    assert lines(caplog) == []


async def test_a_pattern_without_topics(env: VirtualEnvironment):
    """Nothing is said of other members: there may be none."""
    async with opened(env, "zoe", topics=re.compile("nothing.*")) as zoe:
        await asyncio.sleep(2 * MOVING)
        assert "this member has no partition, and gets no records" in zoe.health().problems


async def test_standbys_have_no_partitions_on_purpose(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    await env.create_topic("narrow", 1)
    async with (
        opened(env, "zoe", topics="narrow", mode=Mode.FAILOVER) as zoe,
        opened(env, "ann", topics="narrow", mode=Mode.FAILOVER) as ann,
    ):
        await asyncio.sleep(60.0)
        assert len(zoe.statistics().partitions) + len(ann.statistics().partitions) == 1
        assert zoe.health().is_healthy
        assert ann.health().is_healthy
    assert lines(caplog) == []


async def test_a_queue_without_a_commit_begins_at_the_end(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    """Said once: for partitions with records, before the first commit."""
    await send(env, b"0", b"1")
    options = {"initial_position": "latest", "retry": RetryTopic(partitions=1)}
    expected = (
        f"group {env.group_id}: no commit for orders-0: it begins at the end, and the records before are not delivered; "
        "initial_position='earliest' begins with them"
    )
    for found in ([expected], []):
        async with opened(env, "ann", **options):
            await asyncio.sleep(5.0)
            assert lines(caplog) == found


async def test_a_queue_that_begins_at_the_start_says_nothing(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    await send(env, b"0", b"1")
    async with opened(env, "ann"):
        await asyncio.sleep(5.0)
    assert lines(caplog) == []
