"""Leader epochs of commits (KIP-320): the epoch of the last marked record is committed, and read at the next start.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncgroup import Claim, CommitFailedError, ConsumerGroup, ErrorCode, Session
from tests.scenario.support import WorkHandler, committed, member, orders, running
from tests.stories.virtual import VirtualEnvironment


def stored(env: VirtualEnvironment, partition: int = 0) -> tuple[int, int]:
    """Return offset and leader epoch as stored by the coordinator."""
    found = env.cluster.group(env.group_id).offsets[orders(partition)]
    return found.offset, found.leader_epoch


def epoch(env: VirtualEnvironment) -> int:
    """Return the current leader epoch of partition 0."""
    return env.cluster.partition("orders", 0).leader_epoch


async def next_epoch(env: VirtualEnvironment) -> int:
    """Move partition 0 to another leader."""
    env.cluster.move_leader("orders", 0, env.cluster.leader("orders", 0) % 3 + 1)
    return epoch(env)


async def test_the_epoch_of_the_last_record_is_committed(handler: WorkHandler, env: VirtualEnvironment):
    """Not that of the session's start, with which others would detect a truncation that never happened (sarama #3418)."""
    first = epoch(env)
    await env.produce(2, [0])
    async with member(env, auto_commit=False) as group, running(group.run("orders", handler)):
        await handler.until("done 0@1")
        (session,) = handler.sessions
        await session.commit()
        assert stored(env) == (2, first)
        second = await next_epoch(env)
        await session.commit()
        assert stored(env) == (2, first), "nothing new was read under it"
        await env.produce(1, [0])
        await handler.until("done 0@2")
        await session.commit()
        assert stored(env) == (3, second)
        assert second > first
        session.mark_offset("orders", 0, 7)
        await session.commit()
        assert stored(env) == (7, -1), "the record of this offset is unknown"
        session.reset_offset("orders", 0, 1)
        await session.commit()
        assert stored(env) == (1, -1)


async def test_a_batch_has_the_epoch_of_its_last_record(env: VirtualEnvironment):
    class Batches(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            async for batch in claim.batches(max_wait=1.0):
                claim.mark(batch)
                assert batch.leader_epoch == batch[-1].leader_epoch
                self.note(f"batch to {batch.last_offset}")

    handler = Batches(env)
    await env.produce(2, [0])
    second = await next_epoch(env)
    await env.produce(2, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("batch to 3")
        await group.aclose()
    assert stored(env) == (4, second)


@asynccontextmanager
async def slow_commits(
    env: VirtualEnvironment, *, count: int, delay: float
) -> AsyncIterator[tuple[ConsumerGroup, Session]]:
    """Run a member that has handled `count` records and committed nothing; the next commit is answered after `delay`."""
    handler = WorkHandler(env)
    await env.produce(count, [0])
    async with member(env, auto_commit=False) as group, running(group.run("orders", handler)):
        await handler.until(f"done 0@{count - 1}")
        (session,) = handler.sessions
        env.cluster.faults.on("OffsetCommit").delay(delay)
        yield group, session


async def test_a_commit_whose_caller_is_cancelled_is_completed(env: VirtualEnvironment):
    async with slow_commits(env, count=3, delay=2.0) as (_, session):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await session.commit()
        assert committed(env) == {}
        await session.commit()
        assert committed(env) == {0: 3}
        assert len(env.cluster.history.of("OffsetCommit")) == 1, (
            "its response completed the second call as well"
        )


async def test_a_pending_commit_ends_with_the_session(env: VirtualEnvironment):
    """The caller and the session have ended: the task of the commit must end too, with any result."""
    async with slow_commits(env, count=1, delay=5.0) as (group, session):
        call = asyncio.create_task(session.commit())
        await asyncio.sleep(1.0)
        call.cancel()
        await group.aclose()
        assert not [task for task in asyncio.all_tasks() if "commits of" in task.get_name()]


async def test_a_topic_that_the_broker_does_not_know_is_reported_once(env: VirtualEnvironment):
    """Automatic commits are not repeated without end (sarama #1095), and other partitions are committed."""
    handler = WorkHandler(env)
    await env.create_topic("payments", 1)
    await env.produce(1, [0])
    async with member(env) as group, running(group.run(["orders", "payments"], handler)):
        errors = group.errors()
        await handler.until("done 0@0")
        await asyncio.sleep(2.0)
        fault = env.cluster.faults.on("OffsetCommit", topic="payments", times=4).error(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        handler.sessions[0].mark_offset("payments", 0, 5)
        await asyncio.sleep(10.0)
        assert fault.hits == 4
        error = await anext(errors)
        assert isinstance(error, CommitFailedError)
        assert [str(tp) for tp in error.errors] == ["payments-0"]
        sent = len(env.cluster.history.of("OffsetCommit"))
        await env.produce(1, [0])
        await asyncio.sleep(5.0)
        assert committed(env) == {0: 2}
        assert len(env.cluster.history.of("OffsetCommit")) == sent + 1


async def test_a_pending_automatic_commit_at_the_end_is_no_failure(
    handler: WorkHandler, env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    """Regression test: its task got an error because commits were closed, and reported it as a bug."""
    await env.produce(1, [0])
    async with member(env, close_timeout=2.0) as group, running(group.run("orders", handler)) as run:
        await handler.until("done 0@0")
        env.cluster.faults.on("OffsetCommit").delay(60.0)
        await asyncio.sleep(2.0)
        await group.aclose()
        await run
    assert "the last commit took too long" in caplog.text
    assert "failed" not in caplog.text.replace("metadata refresh failed", "")


async def test_a_recreated_topic_gets_no_mark_of_the_old_one(handler: WorkHandler, env: VirtualEnvironment):
    """Committing the old marks fails, and the next session reads the new topic from its start."""
    await env.produce(3, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        errors = group.errors()
        await handler.until("done 0@2")
        await asyncio.sleep(2.0)
        handler.sessions[0].mark_offset("orders", 0, 500)
        env.cluster.delete_topic("orders")
        env.cluster.create_topic("orders", 4)
        while not isinstance(error := await anext(errors), CommitFailedError):
            pass
        assert "orders-0: commit of orders-0 at 500" in str(error)
        assert "deleted and recreated" in str(error)
        await handler.until("claim 0@0", times=2)
        assert committed(env) == {}
        await env.produce(2, [0])
        await handler.until("done 0@1", times=2)
        await asyncio.sleep(2.0)
        assert committed(env) == {0: 2}
