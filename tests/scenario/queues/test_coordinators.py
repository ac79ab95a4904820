"""Work queues open, commit and close although the coordinator refuses, does not answer, or loses the member."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import ErrorCode, NoBrokersError
from asyncgroup.errors import AsyncGroupError, CommitFailedError
from asyncgroup.workqueue import AckOutcome, DeadLetter, Delivery, Mode, WorkQueue
from tests.scenario.support import now
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.queue_members import acked, opened, send, working
from tests.stories.virtual import VirtualEnvironment


@in_each_protocol
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
    ],
)
async def test_a_commit_that_refuses_the_member(env: VirtualEnvironment, code: ErrorCode):
    """The queue goes on, in a new session if need be; each record is acknowledged in the end."""
    done: set[bytes | None] = set()

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(0.5)
        done.add(delivery.value)

    await send(env, *[b"%d" % number for number in range(30)])
    fault = env.cluster.faults.on("OffsetCommit", client_id="ann", nth=2).error(code)
    async with working(env, "ann", work, concurrency=3) as ann:
        await fault.wait_hit()
        await env.bell.until(lambda: len(done) == 30, "all", env.limit)
        await asyncio.sleep(2.0)
        assert await acked(env) == list(range(30))
        assert len(ann.of("end")) <= 30 + 12


async def test_a_durable_acknowledgement_while_the_member_is_refused(env: VirtualEnvironment):
    """It does not return as committed unless it was."""
    await send(env, b"0")
    async with opened(env, ack_group_time=60.0) as queue:
        delivery = await queue.receive()
        env.cluster.faults.on("OffsetCommit", client_id="ann").error(ErrorCode.UNKNOWN_MEMBER_ID)
        outcome: object
        try:
            outcome = await delivery.ack(durable=True)
        except CommitFailedError:
            outcome = None
        committed = await acked(env) == [0]
        assert committed == (outcome is AckOutcome.COMMITTED)


async def test_all_brokers_are_stopped(env: VirtualEnvironment):
    """A queue that cannot be opened raises, and no task or connection is left."""
    for node in (1, 2, 3):
        await env.cluster.stop_node(node)
    with pytest.raises(NoBrokersError):
        async with opened(env, mode=Mode.EXCLUSIVE, dead_letter=DeadLetter()):
            pytest.fail("it entered")
    for node in (1, 2, 3):
        await env.cluster.start_node(node)


async def test_the_coordinator_is_away_at_the_start(env: VirtualEnvironment):
    """The queue is opened, and receives when it is back."""
    await send(env, b"0")
    fault = env.cluster.faults.on("FindCoordinator", client_id="ann", times=None)
    fault.error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    async with opened(env) as queue:
        receiving = asyncio.create_task(queue.receive())
        await asyncio.sleep(20.0)
        assert not receiving.done()
        fault.cancel()
        await (await receiving).ack()
    assert await acked(env) == [0]


@pytest.mark.parametrize("api", ["FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch", "ListOffsets"])
@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.EXCLUSIVE])
async def test_closed_while_a_request_is_unanswered(env: VirtualEnvironment, api: str, mode: Mode):
    """The close ends in its time; also the entering of an exclusive queue can be cancelled."""
    env.cluster.faults.on(api, client_id="ann", times=None).hold().optional()

    async def run() -> None:
        async with opened(env, mode=mode, config={"close_timeout": 5.0}):
            await asyncio.sleep(1e6)

    running = asyncio.create_task(run())
    await asyncio.sleep(3.0)
    began = now()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert now() - began < 10.0
    env.cluster.faults.clear()


async def test_the_group_is_refused(env: VirtualEnvironment):
    """`receive()` raises the error; for an exclusive queue `async with` raises it."""
    refuse = {"client_id": "ann", "times": None}
    env.cluster.faults.on("JoinGroup", **refuse).error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    async with opened(env) as queue:
        with pytest.raises(AsyncGroupError, match="GROUP_AUTHORIZATION_FAILED"):
            await queue.receive()
    with pytest.raises(AsyncGroupError, match="GROUP_AUTHORIZATION_FAILED"):
        async with opened(env, mode=Mode.EXCLUSIVE):
            pytest.fail("it entered")


async def test_brokers_restart_one_after_the_other(env: VirtualEnvironment):
    """Dead letters, retries and acknowledgements go on."""

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(0.2)
        if delivery.record.offset % 5 == 0:
            raise ValueError("poison")

    await send(env, *[b"%d" % number for number in range(100)])
    options: dict[str, Any] = {"dead_letter": DeadLetter(2), "nack_backoff": 1.0, "concurrency": 4}
    async with working(env, "ann", work, **options) as ann:
        topic = ann.queue.dead_letter_topic or ""
        for node in (1, 2, 3):
            await asyncio.sleep(1.0)
            await env.cluster.stop_node(node)
            await asyncio.sleep(3.0)
            await env.cluster.start_node(node)
        await env.bell.until(lambda: len({text.split("#")[0] for text in ann.of("end")}) == 80, "all", 600.0)
        await env.bell.until(
            lambda: len({record.value for record in env.cluster.records(topic)}) == 20, "the DLQ", 600.0
        )
    assert await acked(env) == list(range(100))


async def test_a_queue_of_an_unreachable_cluster(env: VirtualEnvironment):
    queue = WorkQueue("10.9.9.9:9092", "g", "orders")
    with pytest.raises(NoBrokersError):
        async with queue:
            pytest.fail("it entered")
