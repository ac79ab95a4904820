"""The retry topic of a group does not grow without end: what is done is deleted from it, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asyncgroup import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.workqueue import Delivery, RetryTopic
from asyncgroup.workqueue.group_engine.retry_topics import INTERVAL
from tests.stories.queue_members import QueueMember, send, stored, working
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.full

RETRY = "orders-g-RETRY"
OPTIONS: dict[str, Any] = {"retry": RetryTopic(partitions=1)}


async def later(delivery: Delivery) -> None:
    """Retry each record once, and one of them for a long time."""
    if delivery.attempt == 1:
        await delivery.reconsume_later(10_000.0 if delivery.value == b"slow" else 1.0)


def log_start(env: VirtualEnvironment, topic: str = RETRY) -> int:
    return env.cluster.topic(topic).partitions[0].log_start_offset


def requests(env: VirtualEnvironment) -> int:
    return len(env.cluster.history.of("DeleteRecords"))


async def retried(member: QueueMember, count: int) -> None:
    await member.until_count("end", 2 * count)
    await asyncio.sleep(INTERVAL + 3.0)


async def test_what_is_committed_is_deleted(env: VirtualEnvironment):
    """A copy that waits stays, and those after it."""
    await send(env, b"0", b"1", b"slow", b"3")
    async with working(env, "ann", later, **OPTIONS) as ann:
        await ann.until_count("end", 7)
        await asyncio.sleep(INTERVAL + 3.0)
        committed = await stored(env, topic=RETRY)
        assert committed is not None
        assert log_start(env) == committed.committed.offset
        (slow,) = [record for record in env.cluster.records(RETRY) if record.value == b"slow"]
        assert slow.offset == log_start(env)
        count = requests(env)
        await asyncio.sleep(100.0)
        assert requests(env) == count, "nothing is asked while nothing is committed"


async def test_copies_do_not_come_back_when_the_offsets_of_the_group_have_expired(env: VirtualEnvironment):
    await send(env, *[b"%d" % number for number in range(10)])
    async with working(env, "ann", later, **OPTIONS) as ann:
        await retried(ann, 10)
    cluster = env.admin.cluster
    response = await cluster.coordinators.request(env.group_id, m.DeleteGroupsRequest([env.group_id]))
    assert not response.results[0].error_code
    async with working(env, "bob", later, **OPTIONS) as bob:
        await bob.until_count("end", 20)
        await asyncio.sleep(5.0)
        handled = [bob.deliveries[call].record for call in bob.of("begin")]
        again = sorted(record.offset for record in handled if record.topic == RETRY)
        assert again == list(range(10, 20)), "those that bob has written, and no earlier ones"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
async def test_refused(env: VirtualEnvironment, code: ErrorCode, caplog: pytest.LogCaptureFixture):
    """Without the permission the topic stays as it is, with one log line; a leader that has moved or failed is asked later."""
    env.cluster.faults.on("DeleteRecords").error(code)
    async with working(env, "ann", later, **OPTIONS) as ann:
        await send(env, b"0")
        await retried(ann, 1)
        await send(env, b"1")
        await retried(ann, 2)
        assert ann.queue.health().problems == ()
    lines = [record.getMessage() for record in caplog.records if "are not deleted" in record.getMessage()]
    if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR):
        assert (log_start(env), lines) == (2, [])
    else:
        assert log_start(env) == 0
        assert requests(env) == 1
        assert len(lines) == 1
        assert code.name in lines[0]


@pytest.mark.parametrize(
    "options",
    [
        {"retry": RetryTopic(names="spring", partitions=1)},
        {"retry": RetryTopic("orders-retry", partitions=1)},
        {**OPTIONS, "config": {"out_of_range_reset": "latest"}},
    ],
)
async def test_a_topic_that_others_may_use_stays_as_it_is(
    env: VirtualEnvironment, options: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    await send(env, b"0")
    caplog.set_level(logging.INFO, "asyncgroup.workqueue")
    async with working(env, "ann", later, **options) as ann:
        await retried(ann, 1)
    assert requests(env) == 0
    assert len([record for record in caplog.records if "nothing is deleted" in record.getMessage()]) == 1


async def test_nothing_is_deleted_that_is_not_committed(env: VirtualEnvironment):
    async with working(env, "ann", later, **OPTIONS) as ann:
        await send(env, b"0")
        await retried(ann, 1)
        assert log_start(env) == 1
        fault = env.cluster.faults.on("OffsetCommit", client_id="ann", times=None)
        fault.error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        await send(env, b"1")
        await retried(ann, 2)
        assert log_start(env) == 1
        fault.cancel()
        await send(env, b"2")
        await retried(ann, 3)
        assert log_start(env) == 3
