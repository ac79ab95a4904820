"""Reasons of joins and leaves, sent to the broker (KIP-800)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.scenario.support import WorkHandler, member, running
from tests.stories.members import LocalMember
from tests.stories.virtual import VirtualEnvironment


def reasons(env: VirtualEnvironment, name: str) -> Iterator[str]:
    for exchange in env.cluster.history.of("JoinGroup", "LeaveGroup", client_id=name):
        request = exchange.request
        if exchange.api == "LeaveGroup":
            yield request.members[0].reason
        elif request.member_id:
            yield request.reason


async def test_joins_and_leaves_send_their_reason(env: VirtualEnvironment) -> None:
    """KIP-800: JoinGroup and LeaveGroup requests have a reason."""
    ann = await env.member("ann")
    await env.settled(ann)
    bob = await env.member("bob")
    await env.settled(ann, bob)
    await env.create_topic("more", 1)
    assert isinstance(ann, LocalMember)
    await ann.change_topics(["orders", "more"])
    await env.settled(ann, bob)
    await bob.leave()
    await env.settled(ann)
    await ann.leave()
    assert list(reasons(env, "ann")) == [
        "joining",
        "rebalance: a member joined, left or changed its topics",
        "closing: the task that consumes was cancelled",
        "topics changed: +more",
        "rebalance: a member joined, left or changed its topics",
        "closing: the group object was closed",
    ]
    assert list(reasons(env, "bob"))[-1] == "closing: the group object was closed"


async def test_the_reason_of_a_lost_member(handler: WorkHandler, env: VirtualEnvironment) -> None:
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("setup")
        env.cluster.faults.on("Heartbeat").error(25)  # UNKNOWN_MEMBER_ID
        await handler.until("setup", 2)
    reasons = [e.request.reason for e in env.cluster.history.of("JoinGroup")]
    assert reasons[-1].startswith("membership lost: ")
    assert "UNKNOWN_MEMBER_ID" in reasons[-1]


async def test_the_reason_of_a_retried_join_is_the_failure(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("SyncGroup").error(27)  # REBALANCE_IN_PROGRESS
    handler = WorkHandler(env)
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("setup")
    reasons = [e.request.reason for e in env.cluster.history.of("JoinGroup")]
    assert reasons[:2] == ["joining", "joining"]
    assert reasons[-1].startswith("retry after: ")
    assert "REBALANCE_IN_PROGRESS" in reasons[-1]
