"""Members of work queues that never get a record: without a partition, or for the records before the first commit."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncgroup.workqueue import Mode, RetryTopic
from tests.stories.queue_members import opened, send
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.asyncio


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
            await asyncio.sleep(5.0)
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
            await asyncio.sleep(60.0)
            assert lines(caplog) == []
        await asyncio.sleep(30.0)
        assert len(zoe.statistics().partitions) == 1
        assert zoe.health().is_healthy


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
