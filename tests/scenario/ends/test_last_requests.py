"""A member's last commit and LeaveGroup with brokers that answer late or never.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import Claim, CommitFailedError, Session
from asyncgroup.errors import ClosedError
from tests.scenario.support import WorkHandler, committed, member, orders, running
from tests.stories.virtual import VirtualEnvironment, now


class MarkOnlyHandler(WorkHandler):
    """Marks all records and commits nothing; another task calls `commit()`."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            self.note(f"done {record.partition}@{record.offset}")


async def test_an_end_waits_for_a_commit_from_outside(env: VirtualEnvironment):
    """A user's task commits while the session ends: it gets the result, although nothing else is committed."""
    handler = MarkOnlyHandler(env)
    await env.produce(5, [0])
    async with (
        member(env, auto_commit=False) as group,
        running(group.consume("orders", handler)) as consuming,
    ):
        await handler.until("done 0@4")
        env.cluster.faults.on("OffsetCommit").delay(0.5)
        commit = asyncio.create_task(handler.sessions[0].commit())
        await asyncio.sleep(0.1)
        await group.aclose()
        await consuming
        await commit
    assert committed(env) == {0: 5}
    assert env.cluster.group("g").members == {}


async def test_a_commit_that_the_end_cannot_wait_for(env: VirtualEnvironment):
    """The commit fails for each partition, and the member leaves in time without waiting for it."""
    handler = MarkOnlyHandler(env)
    await env.produce(5, [0])
    config = {"auto_commit": False, "close_timeout": 5.0, "request_timeout": 100.0}
    async with member(env, **config) as group, running(group.consume("orders", handler)) as consuming:
        await handler.until("done 0@4")
        env.cluster.faults.on("OffsetCommit").hold()
        commit = asyncio.create_task(handler.sessions[0].commit())
        await asyncio.sleep(0.1)
        begun = now()
        await group.aclose()
        assert now() - begun < 5.0
        await consuming
        with pytest.raises(CommitFailedError, match="orders-0") as caught:
            await commit
        assert isinstance(caught.value.errors[orders(0)], ClosedError)
        assert env.cluster.group("g").members == {}


async def test_the_leave_does_not_wait_for_an_unanswered_commit(env: VirtualEnvironment):
    """Otherwise the group would assign the partitions to others only after the session timeout."""
    handler = MarkOnlyHandler(env)
    await env.produce(5, [0])
    config = {"close_timeout": 5.0, "request_timeout": 100.0, "auto_commit_interval": 3000.0}
    async with member(env, **config) as group, running(group.consume("orders", handler)) as consuming:
        await handler.until("done 0@4")
        env.cluster.faults.on("OffsetCommit", times=None).hold()
        begun = now()
        await group.aclose()
        assert now() - begun < 5.0
        await consuming
    (leave,) = env.cluster.history.of("LeaveGroup")
    assert leave.response.error_code == 0
    assert env.cluster.group("g").members == {}
