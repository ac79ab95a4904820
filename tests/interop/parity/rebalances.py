"""Stories about rebalances: commits during them, missing syncs, changed subscriptions, leaving members."""

from __future__ import annotations

from typing import Any

from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import encode_versioned
from tests.interop.parity.asks import (
    ASSIGNED,
    RANGE,
    commit,
    heartbeat,
    join,
    joined,
    leave,
    offset_fetch,
    sync,
)
from tests.interop.parity.groups import describe, listed
from tests.interop.parity.offsets import offset_delete
from tests.interop.parity.scene import Scene, Sent

__all__ = [
    "changed_subscriptions",
    "commits_during_a_rebalance",
    "groups_of_all_kinds",
    "members_that_do_not_sync",
    "several_leaving_members",
]


async def asked(scene: Scene, who: str, group: str, **fields: Any) -> str:
    """Return the id of a new member; from version 4 on it needs a first JoinGroup."""
    if scene.version("JoinGroup") < 4 or fields.get("instance"):
        return ""
    answer = await scene.ask(f"{who} asks", join(scene, group, **fields), via=who)
    return str(answer.member_id)


async def joined_by_another(scene: Scene, group: str) -> tuple[str, Sent]:
    """Let a member join and sync, then another one join; return the first one's id and the parked JoinGroup."""
    first = await joined(scene, "first joins", group)
    me = first.member_id
    await scene.ask("first syncs", sync(scene, group, 1, me, {me: ASSIGNED}))
    other = await asked(scene, "second", group)
    waiting = await scene.send("second joins", join(scene, group, other), via="second")
    await scene.ask(
        "first hears of it", heartbeat(scene, group, 1, me), until=lambda answer: answer.error_code
    )
    return me, waiting


async def commits_during_a_rebalance(scene: Scene) -> None:
    """Requests of members while others join: the current generation is valid until the next one begins."""
    topic, group = await scene.topic("meanwhile", 2), await scene.group("meanwhile")
    me, waiting = await joined_by_another(scene, group)
    cases = {
        "the member commits": commit(scene, group, {(topic, 0): 3}, member_id=me, generation=1),
        "nobody commits": commit(scene, group, {(topic, 0): 4}, member_id="nobody", generation=1),
        "the next generation commits": commit(scene, group, {(topic, 0): 5}, member_id=me, generation=2),
        "somebody outside commits": commit(scene, group, {(topic, 0): 6}),
        "somebody outside reads": offset_fetch(scene, group, {topic: [0, 1]}),
        "somebody deletes an offset": offset_delete(group, {topic: [0]}),
        "somebody deletes the group": m.DeleteGroupsRequest([group]),
        "heartbeat of the next generation": heartbeat(scene, group, 2, me),
        "sync of the next generation": sync(scene, group, 2, me),
        "a foreign protocol": join(scene, group, protocols=(("sticky", b""),)),
    }
    for label, request in cases.items():
        await scene.ask(f"preparing: {label}", request)
    await listed(scene, "preparing", group)
    again = await scene.ask("first joins again", join(scene, group, me))
    second = (await scene.receive(waiting)).member_id
    generation = again.generation_id
    cases = {
        "the member commits": commit(scene, group, {(topic, 0): 7}, member_id=me, generation=generation),
        "the generation before commits": commit(scene, group, {(topic, 0): 8}, member_id=me, generation=1),
        "somebody outside commits": commit(scene, group, {(topic, 0): 9}),
        "somebody reads": offset_fetch(scene, group, {topic: [0, 1]}),
        "heartbeat": heartbeat(scene, group, generation, me),
        "heartbeat of the generation before": heartbeat(scene, group, 1, me),
        "the follower joins again": join(scene, group, second),
        "the leader joins again": join(scene, group, me),
        "an unknown member joins": join(scene, group, "nobody"),
    }
    for label, request in cases.items():
        await scene.ask(f"completing: {label}", request)
    await listed(scene, "completing", group)
    await scene.ask("the plan is made", sync(scene, group, generation, me, {me: b"1", second: b"2"}))
    await scene.ask("second syncs", sync(scene, group, generation, second), via="second")
    await scene.ask("second syncs again", sync(scene, group, generation, second), via="second")
    await scene.ask(
        "it commits", commit(scene, group, {(topic, 1): 5}, member_id=second, generation=generation)
    )
    await listed(scene, "stable", group)


async def members_that_do_not_sync(scene: Scene) -> None:
    """A member that sends no SyncGroup within the rebalance timeout is removed, and the parked syncs are answered."""
    if scene.version("JoinGroup") < 1:
        return  # without a rebalance timeout the session's is taken
    group, limits = await scene.group("idle"), {"rebalance_timeout_ms": 600}
    first = await joined(scene, "first joins", group, **limits)
    me = first.member_id
    await scene.ask("first syncs", sync(scene, group, 1, me, {me: ASSIGNED}))
    other = await asked(scene, "second", group, **limits)
    waiting = await scene.send("second joins", join(scene, group, other, **limits), via="second")
    await scene.ask(
        "first hears of it", heartbeat(scene, group, 1, me), until=lambda answer: answer.error_code
    )
    again = await scene.ask("first joins again", join(scene, group, me, **limits))
    second = (await scene.receive(waiting)).member_id
    # The leader sends no assignment, and the follower's SyncGroup is parked.
    await scene.ask("second waits in vain", sync(scene, group, again.generation_id, second), via="second")
    alone = await scene.ask("second joins again", join(scene, group, second, **limits), via="second")
    await scene.ask("the leader is out", heartbeat(scene, group, again.generation_id, me))
    await scene.ask("its late plan", sync(scene, group, again.generation_id, me, {me: b"1", second: b"2"}))
    await describe(scene, "second leads", group)
    plan = {second: ASSIGNED}
    await scene.ask("second syncs", sync(scene, group, alone.generation_id, second, plan), via="second")
    await describe(scene, "second alone", group)


async def changed_subscriptions(scene: Scene) -> None:
    """A follower that rejoins with the same metadata gets the same generation; a leader starts a rebalance."""
    group = await scene.group("changing")
    me, waiting = await joined_by_another(scene, group)
    await scene.ask("first joins again", join(scene, group, me))
    second = (await scene.receive(waiting)).member_id
    await scene.ask("first syncs again", sync(scene, group, 2, me, {me: b"1", second: b"2"}))
    await scene.ask("second syncs", sync(scene, group, 2, second), via="second")
    await scene.ask("second joins again", join(scene, group, second), via="second")
    await scene.ask("first goes on", heartbeat(scene, group, 2, me))
    wanted = encode_versioned(m.ConsumerProtocolSubscription(topics=["something", "else"]), 1)
    more = (("range", wanted), ("sticky", b""))
    waiting = await scene.send(
        "second wants something else", join(scene, group, second, protocols=more), via="second"
    )
    await scene.ask(
        "first hears of that", heartbeat(scene, group, 2, me), until=lambda answer: answer.error_code
    )
    await describe(scene, "while second waits", group)
    waited = join(scene, group, me, session_timeout_ms=20_000)
    await scene.ask("first joins with another timeout", waited)
    await scene.receive(waiting)
    # An assignment that leaves out a member, and contains an unknown one.
    await scene.ask("a plan with gaps", sync(scene, group, 3, me, {me: b"1", "nobody": b"x"}))
    await scene.ask("what second gets", sync(scene, group, 3, second), via="second")
    await describe(scene, "the plan", group)


async def several_leaving_members(scene: Scene) -> None:
    """LeaveGroup of several members: known, unknown, pending ids, static ones by group instance id."""
    if scene.version("LeaveGroup") < 3:
        return
    group = await scene.group("leaving")
    first = await joined(scene, "first joins", group)
    me = first.member_id
    await scene.ask("first syncs", sync(scene, group, 1, me, {me: ASSIGNED}))
    static: dict[str, Any] = {"instance": "one"} if scene.version("JoinGroup") >= 5 else {}
    other = await asked(scene, "second", group, **static)
    waiting = await scene.send("second joins", join(scene, group, other, **static), via="second")
    await scene.ask(
        "first hears of it", heartbeat(scene, group, 1, me), until=lambda answer: answer.error_code
    )
    pending = await asked(scene, "third", group)
    gone = [("nobody", None), ("", "two"), ("", None), ("", ""), (me, "one"), (pending or "x", None)]
    await scene.ask("some that are not there", _leave_with_reasons(scene, group, gone))
    await scene.ask("first joins again", join(scene, group, me))
    second = (await scene.receive(waiting)).member_id
    everybody = [(me, None), (me, None), (second, None)]
    await scene.ask("nobody", leave_nobody(group))
    await scene.ask("all of them, one of them twice", _leave_with_reasons(scene, group, everybody))
    await describe(scene, "nobody is left", group)
    await scene.ask("once more", leave(scene, group, *everybody))
    if scene.version("JoinGroup") >= 9:
        await joined(scene, "with a reason", group, reason="because")


def leave_nobody(group: str) -> m.LeaveGroupRequest:
    """LeaveGroup with an empty list."""
    return m.LeaveGroupRequest(group, members=[])


def _leave_with_reasons(
    scene: Scene, group: str, members: list[tuple[str, str | None]]
) -> m.LeaveGroupRequest:
    request = leave(scene, group, *members)
    if scene.version("LeaveGroup") >= 5:
        for number, member in enumerate(request.members):
            member.reason = "because" * number
    return request


async def groups_of_all_kinds(scene: Scene) -> None:
    """Groups of all types, and unknown ones: described, listed, emptied, deleted together."""
    topic = await scene.topic("kinds", 1)
    connect, simple, gone = [await scene.group(name) for name in ("connect", "simple", "gone")]
    worker = await joined(
        scene, "a worker joins", connect, protocol_type="connect", protocols=(("default", b"w"),)
    )
    await scene.ask("an offset of the simple one", commit(scene, simple, {(topic, 0): 1}))
    await scene.ask("an offset of the worker's group", commit(scene, connect, {(topic, 0): 1}))
    request = m.DescribeGroupsRequest([connect, simple, gone])
    await scene.ask("all three", request)
    await scene.ask("twice the same", m.DescribeGroupsRequest([simple, simple]))
    await scene.ask("nothing", m.DescribeGroupsRequest([]))
    for group in (connect, simple, gone):
        await listed(scene, f"list of {group.partition('-')[0]}", group)
    await scene.ask("a consumer joins the workers", join(scene, connect, protocols=RANGE))
    if scene.version("SyncGroup") >= 5:
        me = worker.member_id
        wrong = sync(scene, connect, 1, me, {me: b""}, protocol_type="consumer", protocol="default")
        await scene.ask("sync as a consumer", wrong)
    await scene.ask(
        "sync",
        sync(
            scene,
            connect,
            1,
            worker.member_id,
            {worker.member_id: b"a"},
            protocol_type="connect",
            protocol="default",
        ),
    )
    await scene.ask("delete an offset of the workers", offset_delete(connect, {topic: [0]}))
    await scene.ask("a consumer joins the simple one", join(scene, simple, "nobody"))
    await scene.ask(
        "delete all three, one of them twice", m.DeleteGroupsRequest([connect, simple, gone, simple])
    )
    await scene.ask("delete twice", m.DeleteGroupsRequest([gone, gone]))
    await scene.ask("delete none", m.DeleteGroupsRequest([]))
    await scene.ask("the worker leaves", leave(scene, connect, (worker.member_id, None)))
    await describe(scene, "an empty group of another type", connect)
    await scene.ask("an offset is deleted", offset_delete(connect, {topic: [0]}))
    await joined(scene, "a consumer takes the name", connect)
