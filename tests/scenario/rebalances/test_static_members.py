"""Static members (KIP-345): a restart within the session costs no rebalance.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import BrokerError, ErrorCode
from tests.scenario.support import SessionEndHook, WorkHandler, committed, member, running
from tests.scenario.three_protocols import in_each_protocol
from tests.stories import membership
from tests.stories.environment import Group
from tests.stories.members import Member
from tests.stories.virtual import VirtualEnvironment, lines


async def desks(env: VirtualEnvironment) -> tuple[Member, Member, int]:
    """Return two static members, ann, the leader, and bob, and their generation."""
    ann = await env.member("ann", group_instance_id="desk-a")
    await env.settled(ann)
    bob = await env.member("bob", group_instance_id="desk-b")
    before = await env.settled(ann, bob)
    shares = {"ann": {"orders": [0, 1]}, "bob": {"orders": [2, 3]}}
    assert before == Group(before.generation, env.leader("ann"), shares)
    return ann, bob, before.generation


async def test_the_leader_restarts(env: VirtualEnvironment):
    """JoinGroup tells the returning leader to skip the assignment: its SyncGroup has none."""
    await membership.static_leader_restarts(env)
    assert [line for line in env.chapters["ann restarts"] if not line.startswith("bob")] == lines("""
        ann OffsetCommit
        ann-again FindCoordinator
        ann-again JoinGroup
        ann-again SyncGroup
        ann-again OffsetFetch
    """)


@in_each_protocol
async def test_a_follower_restarts(env: VirtualEnvironment):
    ann, bob, generation = await desks(env)
    sessions = len(ann.log.sessions)
    await bob.leave()
    again = await env.member("bob-again", group_instance_id="desk-b")
    group = await env.settled(ann, again)
    shares = {"ann": {"orders": [0, 1]}, "bob-again": {"orders": [2, 3]}}
    assert group == Group(generation, env.leader("ann"), shares)
    assert len(ann.log.sessions) == sessions


@in_each_protocol
async def test_a_member_that_does_not_return(env: VirtualEnvironment):
    """Its partitions stay unread until its session expires, then other members get them."""
    ann, bob, generation = await desks(env)
    await bob.leave()
    await env.produce(5, range(4))
    alone = {"ann": {"orders": [0, 1, 2, 3]}}
    assert await env.settled(ann) == Group(generation + 1, env.leader("ann"), alone)
    await env.all_handled()


# -- the instance id in requests --------- --------------------------------------------------------------------------------


async def test_every_request_of_a_member_carries_its_instance_id(env: VirtualEnvironment):
    handler = WorkHandler(env)
    await env.produce(3, [0])
    async with member(env, group_instance_id="desk-1") as group, running(group.run("orders", handler)):
        await handler.until("done 0@2")
        await asyncio.sleep(4.0)
        await group.aclose(leave=True)
    for api in ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit"):
        exchanges = env.cluster.history.of(api, client_id="ann")
        assert exchanges, api
        assert {e.request.group_instance_id for e in exchanges} == {"desk-1"}, api
    (left,) = env.cluster.history.of("LeaveGroup")
    assert [m.group_instance_id for m in left.request.members] == ["desk-1"]


# -- leaving or staying --------------------------------------------------------------------------------------------------


@in_each_protocol
@pytest.mark.parametrize(
    ("instance", "leave", "gone"),
    [
        (None, None, True),
        (None, True, True),
        (None, False, False),
        ("desk-1", None, False),
        ("desk-1", False, False),
        ("desk-1", True, True),
    ],
)
async def test_which_members_leave(
    handler: WorkHandler, env: VirtualEnvironment, instance: str | None, leave: bool | None, gone: bool
):
    """By default a dynamic member leaves and a static one stays; both can be changed (KIP-1092)."""
    async with member(env, group_instance_id=instance) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        await group.aclose(leave=leave)
    assert bool(env.cluster.group("g").members) is not gone
    await asyncio.sleep(1.1 * env.session_timeout)
    assert env.cluster.group("g").members == {}, "the session timeout removes the member later"


@in_each_protocol
async def test_a_cancelled_static_member_stays(handler: WorkHandler, env: VirtualEnvironment):
    async with member(env, group_instance_id="desk-1") as group:
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("claim 3@0")
            consuming.cancel()
        assert env.cluster.history.of("LeaveGroup") == []


@in_each_protocol
async def test_a_restart_within_the_session_is_no_rebalance(env: VirtualEnvironment):
    """The other members' session continues, and the returning member gets the same partitions."""
    ann, bob, generation = await desks(env)
    sessions = len(ann.log.sessions)
    for number in range(3):
        await bob.leave()
        await asyncio.sleep(0.8 * env.session_timeout)
        bob = await env.member(f"bob-{number}", group_instance_id="desk-b")
        await env.settled(ann, bob)
    assert env.cluster.group("g").generation == generation
    assert len(ann.log.sessions) == sessions


# -- fencing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "config"),
    [
        ("Heartbeat", {"auto_commit_interval": 3000.0}),
        ("OffsetCommit", {"heartbeat_interval": 9.0, "auto_commit_interval": 2.0}),
    ],
)
@pytest.mark.parametrize("how", ["run", "consume"])
async def test_a_second_member_with_the_same_instance_id_fences_the_first(
    env: VirtualEnvironment, api: str, config: dict[str, float], how: str
):
    """The first member's next request is refused: its call raises the error, and nothing more is committed."""
    handler, ends, second = WorkHandler(env), SessionEndHook(), WorkHandler(env)
    await env.produce(3, [0])
    async with member(env, hooks=(ends,), group_instance_id="desk-1", **config) as group:
        async with running(getattr(group, how)("orders", handler)) as consuming:
            await handler.until("record 0@0")
            async with (
                member(env, "bob", group_instance_id="desk-1", auto_commit_interval=3000.0) as other,
                running(other.run("orders", second)),
            ):
                await second.until("claim 0@0")
                with pytest.raises(BrokerError) as caught:
                    await consuming
                assert caught.value.code == ErrorCode.FENCED_INSTANCE_ID
                assert api.lower().removeprefix("offset") in str(caught.value)
                assert "lost [0, 1, 2, 3]" in handler.calls
                assert not any(call.startswith("revoked") for call in handler.calls)
                assert ends.names == ["MemberLost"]
                assert handler.sessions[0].is_lost
                assert committed(env) == {}
                assert "FENCED_INSTANCE_ID" in str(group.health())
                before = len(env.cluster.history.of("OffsetCommit", "JoinGroup", client_id="ann"))
                await group.aclose()
                assert len(env.cluster.history.of("OffsetCommit", "JoinGroup", client_id="ann")) == before
                assert env.cluster.history.of("LeaveGroup") == [], "the other member has its instance id"
                assert not second.sessions[0].ended


@pytest.mark.parametrize(("api", "nth"), [("JoinGroup", 2), ("SyncGroup", 1), ("SyncGroup", 2)])
async def test_fenced_while_joining(handler: WorkHandler, env: VirtualEnvironment, api: str, nth: int):
    """Without a session on_lost is not called: the error is raised, at the first join or a later one."""
    await env.produce(3, [0])
    fault = env.cluster.faults.on(api, nth=nth, client_id="ann").error(ErrorCode.FENCED_INSTANCE_ID)
    async with member(env, group_instance_id="desk-1") as group:
        async with running(group.run("orders", handler)) as consuming:
            if (api, nth) != ("SyncGroup", 1):
                await handler.until("done 0@2")
                await env.member("bob")
            with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
                await consuming
    assert fault.hits == 1
    assert not any(call.startswith("lost") for call in handler.calls)
    assert committed(env) == ({} if (api, nth) == ("SyncGroup", 1) else {0: 3})
