"""The requests at the start and end of a session, and the order of the handler's methods.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncgroup import Claim, CommitFailedError, ConsumerGroup, ErrorCode, Session
from asyncgroup.consumer.fetch_session import INITIAL_EPOCH
from asyncgroup.errors import Rebalanced
from tests.broker.internals import nodes_of
from tests.group.parts import end_session
from tests.scenario.support import WorkHandler, committed, member, running
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

MANY = 200


# -- requests ------------------------------------------------------------------------------------------------------------


class ClaimCounter(WorkHandler):
    """Counts claims; reads nothing."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        self.note("claim")
        await claim.wait_ended()


def requests(env: VirtualEnvironment, since: int) -> tuple[Counter[str], Counter[int]]:
    """Return the member's requests since then, by API, and its ListOffsets requests by node."""
    new = [e for e in list(env.cluster.history)[since:] if e.client_id == "ann"]
    return Counter(e.api for e in new), Counter(e.node_id for e in new if e.api == "ListOffsets")


@asynccontextmanager
async def started(
    env: VirtualEnvironment, policy: str
) -> AsyncIterator[tuple[Session, Counter[str], Counter[int]]]:
    """Start a member that claims all partitions of `wide`; yield its session, and its requests as `requests` does."""
    handler = ClaimCounter(env)
    async with member(env, auto_offset_reset=policy) as group:
        since = len(list(env.cluster.history))
        async with running(group.run("wide", handler)):
            await handler.until("claim", MANY)
            yield handler.sessions[0], *requests(env, since)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_two_hundred_partitions_cost_one_request_a_broker(env: VirtualEnvironment, policy: str):
    """There is one OffsetFetch, and one ListOffsets per leader of partitions without a commit (sarama: 3 per partition)."""
    env.cluster.create_topic("wide", MANY)
    assert {env.cluster.leader("wide", p) for p in range(MANY)} == {1, 2, 3}
    async with started(env, policy) as (session, apis, nodes):
        assert apis["OffsetFetch"] == 1
        assert nodes == {1: 1, 2: 1, 3: 1}
        for claim in session.claims:
            claim.seek(0)
            session.mark_offset("wide", claim.partition, 1)
        await session.commit()
    async with started(env, policy) as (_, apis, nodes):
        assert apis["OffsetFetch"] == 1
        assert not nodes, "every partition has a commit"


async def test_rebalances_close_old_fetch_sessions(env: VirtualEnvironment):
    """A node has a thousand fetch sessions for all clients: each session of a member must close the previous one."""
    handler = ClaimCounter(env)
    async with member(env) as group, running(group.run(env.topic, handler)):
        for turn in range(1, 5):
            await handler.until("setup", turn)
            await asyncio.sleep(2)
            assert [len(node.fetch_sessions) for node in nodes_of(env.cluster)] == [1, 1, 1]
            end_session(handler.sessions[-1], Rebalanced("so the test wants it"))
        asked = [e.request for e in env.cluster.history.of("Fetch", client_id="ann", node=1)]
        first, *others = [request.session_id for request in asked if request.session_epoch == INITIAL_EPOCH]
        assert first == 0
        assert len(others) >= 3
        assert all(others), "the request opens a new fetch session in place of the old one"


async def test_a_single_partition_without_a_commit_costs_one_request(env: VirtualEnvironment):
    env.cluster.create_topic("wide", MANY)
    handler = ClaimCounter(env)
    async with member(env) as group, running(group.run("wide", handler)):
        await handler.until("claim", MANY)
        for claim in handler.sessions[0].claims[1:]:
            handler.sessions[0].mark_offset("wide", claim.partition, 1)
        await handler.sessions[0].commit()
    again = ClaimCounter(env)
    async with member(env) as group:
        since = len(list(env.cluster.history))
        async with running(group.run("wide", again)):
            await again.until("claim", MANY)
            assert requests(env, since)[1] == {env.cluster.leader("wide", 0): 1}


# -- the order of the handler's methods ----------------------------------------------------------------------------------


class OrderHandler(WorkHandler):
    """Records commits among its calls, and may commit in its methods."""

    def __init__(self, env: VirtualEnvironment) -> None:
        super().__init__(env)
        self.error: Exception | None = None

    def on_commit(self, _group: str, offsets: object, _errors: object) -> None:
        self.note(f"commit {sorted((tp.partition, c.offset) for tp, c in offsets.items())}")  # type: ignore[attr-defined]

    def on_session_start(self, _session: Session) -> None:
        self.note("session starts")

    def on_session_end(self, _session: Session, _cause: object) -> None:
        self.note("session ends")

    async def on_revoked(self, session: Session, partitions) -> None:
        await super().on_revoked(session, partitions)
        session.mark_offset("orders", 3, 7)
        await session.commit()

    async def on_lost(self, session: Session, partitions) -> None:
        await super().on_lost(session, partitions)
        session.mark_offset("orders", 3, 7)
        try:
            await session.commit()
        except CommitFailedError as error:
            self.error = error

    async def cleanup(self, session: Session) -> None:
        await super().cleanup(session)
        session.mark_offset("orders", 2, 5)


async def test_order_when_revoked(env: VirtualEnvironment):
    """on_revoked is called after the claims and before cleanup; both may mark, on_revoked may commit, and the last commit
    includes the rest (as Java's ConsumerRebalanceListener, which commits before its partitions are revoked).
    """
    handler = OrderHandler(env)
    await env.produce(2, [0])
    async with member(env, hooks=(handler,), auto_commit_interval=3000.0) as group:
        async with running(group.run("orders", handler)):
            await handler.until("done 0@1")
            await handler.until("claim 3@0")
            await group.aclose()
    assert [call for call in handler.calls if not call.startswith(("claim", "record", "done", "end"))] == [
        "session starts",
        "setup",
        "assigned [0, 1, 2, 3]",
        "revoked [0, 1, 2, 3]",
        "commit [(0, 2), (3, 7)]",
        "cleanup",
        "commit [(2, 5)]",
        "session ends",
    ]
    assert handler.calls.index("end 0") < handler.calls.index("revoked [0, 1, 2, 3]")
    assert handler.calls.index("assigned [0, 1, 2, 3]") < handler.calls.index("claim 0@0")
    assert committed(env) == {0: 2, 2: 5, 3: 7}


async def test_order_when_lost(env: VirtualEnvironment):
    """on_lost is called instead, and no commit is sent any more, not even an explicit one."""
    handler = OrderHandler(env)
    await env.produce(2, [0])
    async with member(env, hooks=(handler,), auto_commit_interval=3000.0) as group:
        async with running(group.consume("orders", handler)) as consuming:
            await handler.until("done 0@1")
            await handler.until("claim 3@0")
            await env.admin.remove_member("g", handler.sessions[0].member_id)
            await consuming
    assert handler.calls[-3:] == ["lost [0, 1, 2, 3]", "cleanup", "session ends"]
    assert handler.error is not None
    assert committed(env) == {}
    assert env.cluster.history.of("OffsetCommit", client_id="ann") == []


async def test_a_member_without_partitions_gets_no_on_revoked(handler: WorkHandler, env: VirtualEnvironment):
    await env.create_topic("narrow", 1)
    await env.settled(await env.member("bob", ["narrow"]))
    async with member(env, "zoe") as group:
        async with running(group.run("narrow", handler)):
            await handler.until("assigned []")
            await asyncio.sleep(1.0)
    assert handler.calls == ["setup", "assigned []", "cleanup"]


# -- pauses and errors ---------------------------------------------------------------------------------------------------


@in_each_protocol
async def test_a_pause_of_an_unassigned_partition_is_remembered(env: VirtualEnvironment):
    """sarama ignores such a pause; here it does not depend on the time of the call."""
    handler = WorkHandler(env)
    await env.produce(2, range(4))
    async with member(env) as group:
        group.pause([("orders", 1)])
        async with running(group.run("orders", handler)):
            await handler.until("done 3@1")
            await asyncio.sleep(2.0)
            assert "record 1@0" not in handler.calls
            assert [str(tp) for tp in group.health().paused] == ["orders-1"]
            bob = await env.member("bob")
            await env.bell.until(lambda: len(partitions_of(group)) == 2, "half of them", env.limit)
            group.pause([("orders", 3)])
            await bob.leave()
            await env.bell.until(lambda: len(partitions_of(group)) == 4, "all again", env.limit)
            await env.produce(1, range(4))
            await handler.until("done 2@2")
            assert [str(tp) for tp in group.health().paused] == ["orders-1", "orders-3"]
            assert "record 3@2" not in handler.calls
            group.resume([("orders", 1)])
            await handler.until("done 1@2")
            group.resume_all()
            await handler.until("done 3@2")


async def test_the_buffer_of_errors_is_configured(env: VirtualEnvironment):
    async with member(env, error_buffer=2) as group:
        await _fail_heartbeats(env, group, 5)


async def _fail_heartbeats(env: VirtualEnvironment, group: ConsumerGroup, count: int) -> None:
    handler = WorkHandler(env)
    errors = group.errors()
    async with running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        env.cluster.faults.on("Heartbeat", times=count).error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        await asyncio.sleep(6.0)
        assert errors.dropped == count - 2
        await group.aclose()
        assert len([error async for error in errors]) == 2
