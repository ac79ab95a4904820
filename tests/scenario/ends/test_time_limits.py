"""Time limits of the end of a session: before the next join is due, and one limit for a whole close.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from asyncgroup import Claim, Record, Session
from asyncgroup.group.sessions.life import SessionLife
from tests.profiles import thinned
from tests.scenario.support import (
    Gate,
    SessionEndHook,
    WorkHandler,
    committed,
    member,
    now,
    running,
    stubborn,
    working,
)
from tests.stories.log import RecordingHandler
from tests.stories.members import LocalMember
from tests.stories.virtual import VirtualEnvironment


class SlowHooks(WorkHandler):
    """A handler whose on_revoked and cleanup use all the time they have."""

    async def on_revoked(self, session: Session, partitions) -> None:
        await super().on_revoked(session, partitions)
        await asyncio.sleep(1000.0)

    async def cleanup(self, session: Session) -> None:
        await super().cleanup(session)
        await asyncio.sleep(1000.0)


# -- a rebalance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler_type", "later", "rebalance_timeout"),
    thinned(itertools.product([WorkHandler, SlowHooks], [0.2, 1.5, 2.9], [5.0, 20.0, 60.0]), every=5),
)
async def test_a_handler_that_uses_all_of_its_time_does_not_lose_the_membership(
    env: VirtualEnvironment, handler_type: type[WorkHandler], later: float, rebalance_timeout: float
):
    """It is cancelled, its finished work is committed, and the member joins before the coordinator removes it.

    Regression test: the time started when the member learned of the rebalance, up to a heartbeat after its beginning,
    so the cancellation came after the coordinator had removed the member.
    """
    gate, ends = Gate(0, 2), SessionEndHook()
    handler = handler_type(env, gate)
    await env.produce(5, [0])
    async with (
        member(env, hooks=(ends,), rebalance_timeout=rebalance_timeout) as group,
        running(group.run("orders", handler)),
    ):
        await gate.reached.wait()
        await asyncio.sleep(later)
        bob = await env.member("bob", rebalance_timeout=rebalance_timeout)
        await handler.until("cancelled 0")
        gate.open.set()
        await handler.until("assigned [0, 1]")
        first, second = handler.sessions
        assert second.member_id == first.member_id
        assert second.generation_id == first.generation_id + 1
        assert ends.names == ["Rebalanced"]
        assert committed(env)[0] == 2
        await handler.until("done 0@4")
        assert bob.log.handled == []
        await bob.leave()


async def test_the_limit_of_a_rebalance_started_by_the_member_counts_from_now(env: VirtualEnvironment):
    """Partitions were added: the group rebalances only when the leader joins, so no member waits for it yet."""
    async with working(env, rebalance_timeout=20.0) as (_group, _running, handler, gate):
        env.cluster.create_partitions("orders", 5)
        await env.bell.until(lambda: handler.sessions[0].ended, "the growth seen", env.limit)
        ended_at = now()
        await handler.until("cancelled 0")
        assert now() - ended_at == pytest.approx(20.0 * 0.8)
        gate.open.set()


# -- a close ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler_type", [WorkHandler, SlowHooks])
@pytest.mark.parametrize("silent", [False, True])
async def test_close_timeout_is_one_limit_for_all(
    env: VirtualEnvironment, handler_type: type[WorkHandler], silent: bool
):
    """Handlers, cleanup, commit and leave together never take longer, even if no broker answers."""
    gate = Gate(0, 2)
    handler = handler_type(env, gate)
    await env.produce(5, [0])
    async with (
        member(env, close_timeout=10.0, auto_commit_interval=3000.0, session_timeout=60.0) as group,
        running(group.run("orders", handler)) as consuming,
    ):
        await gate.reached.wait()
        if silent:
            env.network.blackhole("10.2.0.1")
        began = now()
        await group.aclose()
        assert 8.0 <= now() - began <= 10.01
        await consuming
        assert handler.calls[-4:] == ["cancelled 0", "end 0", "revoked [0, 1, 2, 3]", "cleanup"]
        assert committed(env) == ({} if silent else {0: 2})
        env.network.cut("10.2.0.1")
        env.network.heal()


async def test_steps_after_a_handler_that_ignores_its_cancellation_still_have_some_time(
    env: VirtualEnvironment,
):
    """The close waits for it; its work is committed, and the member leaves."""

    handler = WorkHandler(env, stubborn(40.0))
    await env.produce(1, [0])
    async with member(env, close_timeout=10.0) as group, running(group.run("orders", handler)):
        await handler.until("record 0@0")
        began = now()
        await group.aclose()
        assert now() - began == pytest.approx(48.0, abs=0.1)
        assert committed(env) == {0: 1}
        assert env.cluster.group("g").members == {}


# -- a slow joiner ------------------------------------------------------------------------------------------------------


async def nothing() -> AsyncIterator[Record]:
    """Yield no records."""
    for record in ():
        yield record


class Slow(RecordingHandler):
    """Processes 45 seconds of work in its first session, even if revoked: one second per record, marked when done."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        taken: list[Record] = []
        async for record in claim if session.generation_id == 2 else nothing():
            taken.append(record)
            if len(taken) == 45:
                break
        for record in taken:
            await asyncio.sleep(1.0)
            self.report("record", topic=record.topic, partition=record.partition, offset=record.offset)
            claim.mark(record)
        await super().consume_claim(session, claim)


async def test_a_slow_joiner(env: VirtualEnvironment):
    """A rebalance of 45 s completes: the fast members wait in their joins for longer than request_timeout, the slow
    member continues to send heartbeats and commits, and no record is lost or repeated.
    """
    ann = await env.member("ann", request_timeout=30.0)
    await env.settled(ann)
    bob = env._make("bob", env.config("bob", request_timeout=30.0), frail=False)
    assert isinstance(bob, LocalMember)
    bob.handler = Slow(bob.report)
    env.members.append(bob)
    await bob.start(["orders"])
    await env.settled(ann, bob)
    await env.produce(50, range(4))
    await env.bell.until(lambda: len(bob.log.handled) >= 2, "bob is at work", env.limit)
    env.requests()
    began = now()
    carol = await env.member("carol", request_timeout=30.0)
    settled = await env.settled(ann, bob, carol)
    assert 40.0 < now() - began < 50.0
    assert settled.generation == 3
    await env.all_handled()
    await env.all_committed()
    everything = ann.log.handled + bob.log.handled + carol.log.handled
    assert len(everything) == len(set(everything)) == 200
    assert {s.cause for m in (ann, bob, carol) for s in m.log.sessions} == {None, "Rebalanced"}
    exchanges = [
        e for e in env.cluster.history.of("Heartbeat", "OffsetCommit", client_id="bob") if e.time > began
    ]
    during = [e for e in exchanges if e.time < began + 40.0]
    commits = [e for e in during if e.api == "OffsetCommit"]
    assert len(commits) >= 35, "bob's work is committed while the group waits for him"
    assert all(not p.error_code for e in commits for t in e.response.topics for p in t.partitions)
    beats = [e.time for e in during if e.api == "Heartbeat"]
    assert len(beats) >= 12
    assert max(b - a for a, b in pairwise(beats)) == pytest.approx(env.heartbeat_interval, abs=0.01)
    assert len(env.cluster.history.of("JoinGroup", client_id="ann")) == 4, (
        "joins for the id, the first join, bob's and carol's: none repeated"
    )


# -- heartbeats in step -------------------------------------------------------------------------------------------------


async def test_members_send_heartbeats_at_the_same_time_and_learn_of_a_rebalance_together(
    env: VirtualEnvironment,
):
    """The gap of an eager rebalance is therefore one round trip, instead of up to a heartbeat interval."""
    ann = await env.member("ann")
    await asyncio.sleep(0.7)
    bob = await env.member("bob")
    await asyncio.sleep(1.1)
    carol = await env.member("carol")
    await env.settled(ann, bob, carol)
    await asyncio.sleep(4 * env.heartbeat_interval)
    beats = env.cluster.history.of("Heartbeat")[-9:]
    for turn in range(0, 9, 3):
        together = beats[turn : turn + 3]
        assert {e.client_id for e in together} == {"ann", "bob", "carol"}
        assert together[-1].time - together[0].time < 0.01
    dave = await env.member("dave")
    await env.settled(ann, bob, carol, dave)
    joins = [e.time for e in env.cluster.history.of("JoinGroup")[-3:]]
    assert max(joins) - min(joins) < 0.01


async def test_a_member_that_starts_late_keeps_the_common_heartbeat_times(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
):
    """Its event loop was busy between the SyncGroup response and the session: heartbeat times count from the response."""
    run = SessionLife.run

    async def run_late(life: SessionLife) -> None:
        if life.session.member_id.startswith("bob"):
            await asyncio.sleep(0.7)
        await run(life)

    monkeypatch.setattr(SessionLife, "run", run_late)
    ann, bob = await env.member("ann"), await env.member("bob")
    await env.settled(ann, bob)
    await asyncio.sleep(4 * env.heartbeat_interval)
    beats = env.cluster.history.of("Heartbeat")[-2:]
    assert {e.client_id for e in beats} == {"ann", "bob"}
    assert beats[1].time - beats[0].time < 0.01


@pytest.mark.parametrize(("at_heartbeat", "stands_still"), [(False, (1.5, 3.0)), (True, (0.0, 0.3))])
async def test_a_member_may_leave_at_the_heartbeat(
    env: VirtualEnvironment, at_heartbeat: bool, stands_still: tuple[float, float]
):
    """Its partitions wait until the others learn of it: up to a heartbeat interval, or only a moment."""
    ann, bob = await env.member("ann"), await env.member("bob")
    await env.settled(ann, bob)
    beats = len(env.cluster.history.of("Heartbeat"))
    await env.bell.until(
        lambda: len(env.cluster.history.of("Heartbeat")) >= beats + 2, "a beat of both", env.limit
    )
    await asyncio.sleep(0.5)
    assert isinstance(ann, LocalMember)
    begun = now()
    with ann.source():
        closing = asyncio.create_task(ann.group.aclose(at_heartbeat=at_heartbeat))
    if at_heartbeat:
        await env.produce(5, range(4))
        await env.all_handled()
        assert ann.log.handled, "it continues to work until the heartbeat"
    await closing
    left = now()
    assert left - begun <= env.heartbeat_interval
    await env.settled(bob)
    least, most = stands_still
    assert least <= now() - left < most
    assert ann.log.sessions[-1].cause == "GroupClosed"


async def test_when_leaving_at_the_heartbeat_does_not_wait(env: VirtualEnvironment):
    """It does not wait if aclose() is also called without it, without a session, or if it is cancelled."""
    ann = await env.member("ann", heartbeat_interval=8.0)
    assert isinstance(ann, LocalMember)
    await env.settled(ann)
    begun = now()
    patient = asyncio.create_task(ann.group.aclose(at_heartbeat=True))
    await asyncio.sleep(1.0)
    await ann.group.aclose()
    await patient
    assert now() - begun < 1.5

    bob = await env.member("bob", heartbeat_interval=8.0)
    assert isinstance(bob, LocalMember)
    await env.settled(bob)
    patient = asyncio.create_task(bob.group.aclose(at_heartbeat=True))
    await asyncio.sleep(1.0)
    patient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await patient
    assert bob.log.sessions[-1].cause == "GroupClosed"
    begun = now()
    await bob.group.aclose(at_heartbeat=True)
    assert now() == begun


async def test_heartbeats_keep_a_member_that_waits_for_the_assignment(env: VirtualEnvironment):
    """Computing the assignment takes longer than the session timeout: both members stay, and the session starts."""
    held = env.cluster.faults.on("SyncGroup", client_id="ann", nth=2, times=None).hold()
    ann = await env.member("ann")
    await env.settled(ann)
    bob = await env.member("bob")
    await held.wait_hit()
    began = now()
    await asyncio.sleep(2.5 * env.session_timeout)
    assert "syncing" in str(ann.group.health())
    beats = [e for e in env.cluster.history.of("Heartbeat", client_id="ann") if e.time > began]
    assert len(beats) == 8
    assert not any(e.response.error_code for e in beats)
    held.release()
    settled = await env.settled(ann, bob)
    assert settled.generation == 2
    assert now() - began < 2.5 * env.session_timeout + 0.1


# -- no broker answers, by the consumer protocol ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["silent", "down"])
async def test_the_session_timeout_of_the_group_limits_every_pause(ends: SessionEndHook, how: str) -> None:
    """The member is lost when no broker has answered for the group's session timeout, not an attempt later."""
    options: dict[str, Any] = {
        "group_protocol": "consumer",
        "session_timeout": None,
        "heartbeat_interval": None,
        "retry_backoff_max": 20.0,
    }
    made = VirtualEnvironment.made(
        nodes=3, group_consumer_session_timeout=6.0, group_consumer_heartbeat_interval=1.0
    )
    async with made as env:
        handler = WorkHandler(env)
        async with member(env, hooks=(ends,), **options) as group, running(group.run("orders", handler)):
            await handler.until("claim 3@0")
            await asyncio.sleep(10.0)
            if how == "silent":
                env.network.blackhole("10.2.0.1")
            for node_id in (1, 2, 3) if how == "down" else ():
                await env.kill_node(node_id)
            await env.bell.until(lambda: bool(ends.causes), "the loss", 100.0)
            last_response_at = group.cluster._inner.last_response_at
            assert 6.0 <= now() - last_response_at <= 6.01
            env.network.heal()
