"""Stories about membership: joins, syncs, heartbeats, leaves, static members, and their errors."""

from __future__ import annotations

from asyncgroup.wire import messages as m
from tests.interop.parity.asks import ASSIGNED, RANGE, heartbeat, join, joined, leave, sync
from tests.interop.parity.scene import Scene

__all__ = ["a_member_alone", "refused_joins", "static_members", "two_members", "unknown_groups_and_members"]

NOBODY = "nobody"


async def refused_joins(scene: Scene) -> None:
    """Invalid JoinGroup requests."""
    group = await scene.group("refused")
    cases = {
        "no group": join(scene, ""),
        "a session that is too short": join(scene, group, session_timeout_ms=1),
        "a session that is too long": join(scene, group, session_timeout_ms=2_000_000_000),
        "a negative session": join(scene, group, session_timeout_ms=-1),
        "a member that is not known": join(scene, group, NOBODY),
        "no protocols": join(scene, group, protocols=()),
        "no protocol type": join(scene, group, protocol_type=""),
        "no protocols and no type": join(scene, group, protocols=(), protocol_type=""),
    }
    for label, request in cases.items():
        await scene.ask(label, request)
    await describe(scene, "what is left of it", group)


async def a_member_alone(scene: Scene) -> None:
    """The life of a group with one member."""
    group = await scene.group("alone")
    await describe(scene, "before", group)
    mine = await joined(scene, "join", group)
    me, generation = mine.member_id, mine.generation_id
    await scene.ask("heartbeat before sync", heartbeat(scene, group, generation, me))
    await describe(scene, "before sync", group)
    await scene.ask("join again before sync", join(scene, group, me))
    await scene.ask("sync without a plan for itself", sync(scene, group, generation, me, {NOBODY: b"x"}))
    await scene.ask("sync again", sync(scene, group, generation, me, {me: ASSIGNED}))
    await scene.ask("heartbeat", heartbeat(scene, group, generation, me))
    again = await scene.ask("the leader joins again", join(scene, group, me))
    await scene.ask("sync", sync(scene, group, again.generation_id, me, {me: ASSIGNED}))
    await describe(scene, "stable", group)
    generation = again.generation_id
    cases = {
        "heartbeat of an old generation": heartbeat(scene, group, generation - 1, me),
        "heartbeat of a generation to come": heartbeat(scene, group, generation + 1, me),
        "heartbeat of no generation": heartbeat(scene, group, -1, me),
        "heartbeat of nobody": heartbeat(scene, group, generation, NOBODY),
        "heartbeat without a member": heartbeat(scene, group, generation, ""),
        "sync of an old generation": sync(scene, group, generation - 1, me),
        "sync of nobody": sync(scene, group, generation, NOBODY),
        "sync of another protocol": sync(scene, group, generation, me, protocol="sticky"),
        "sync of another type": sync(scene, group, generation, me, protocol_type="connect"),
        "sync without a protocol": sync(scene, group, generation, me, protocol=None),
        "sync without a type": sync(scene, group, generation, me, protocol_type=None),
        "join of another type": join(scene, group, protocol_type="connect"),
        "join of another protocol": join(scene, group, protocols=(("sticky", b""),)),
        "leave of nobody": leave(scene, group, (NOBODY, None)),
        "leave": leave(scene, group, (me, None)),
        "leave twice": leave(scene, group, (me, None)),
        "heartbeat afterwards": heartbeat(scene, group, generation, me),
        "sync afterwards": sync(scene, group, generation, me),
        "join afterwards": join(scene, group, me),
    }
    for label, request in cases.items():
        await scene.ask(label, request)
    await describe(scene, "afterwards", group)
    await listed(scene, "list", group)
    await joined(scene, "a newcomer", group)


async def two_members(scene: Scene) -> None:
    """A rebalance: a second member joins, the first one rejoins after a heartbeat, both sync, one leaves."""
    group = await scene.group("two")
    protocols = (("sticky", b"s"), *RANGE)
    first = await joined(scene, "first joins", group, protocols=protocols)
    await scene.ask(
        "first syncs", sync(scene, group, 1, first.member_id, {first.member_id: b"all"}, protocol="sticky")
    )
    second_id = ""
    if scene.version("JoinGroup") >= 4:
        second_id = (await scene.ask("second asks for an id", join(scene, group), via="second")).member_id
        await describe(scene, "second has an id only", group)
    waiting = await scene.send("second joins", join(scene, group, second_id), via="second")
    await scene.ask(
        "first hears of it",
        heartbeat(scene, group, 1, first.member_id),
        until=lambda answer: answer.error_code,
    )
    await describe(scene, "preparing", group)
    await scene.ask("sync while preparing", sync(scene, group, 1, first.member_id, protocol="sticky"))
    rejoined = await scene.ask("first joins again", join(scene, group, first.member_id, protocols=protocols))
    second = await scene.receive(waiting)
    await describe(scene, "completing", group)
    follower = await scene.send("second syncs", sync(scene, group, 2, second.member_id), via="second")
    plan = {first.member_id: b"half", second.member_id: b"the other half"}
    await scene.ask("first syncs again", sync(scene, group, rejoined.generation_id, first.member_id, plan))
    await scene.receive(follower)
    await describe(scene, "stable", group)
    await scene.ask("the follower joins again, unchanged", join(scene, group, second.member_id), via="second")
    await scene.ask("the leader leaves", leave(scene, group, (first.member_id, None)))
    await scene.ask("the follower hears of it", heartbeat(scene, group, 2, second.member_id), via="second")
    alone = await scene.ask("the follower joins alone", join(scene, group, second.member_id), via="second")
    await scene.ask(
        "it syncs", sync(scene, group, alone.generation_id, second.member_id, {second.member_id: b"all"})
    )
    await scene.ask(
        "two leave, one of whom is gone",
        leave(scene, group, (second.member_id, None), (first.member_id, None)),
    )
    await describe(scene, "empty", group)


async def static_members(scene: Scene) -> None:
    """Static members: replaced, fenced, removed by their group instance id (KIP-345)."""
    if scene.version("JoinGroup") < 5:
        return
    group = await scene.group("static")
    mine = await joined(scene, "join", group, instance="one")
    me, generation = mine.member_id, mine.generation_id
    await scene.ask("sync", sync(scene, group, generation, me, {me: ASSIGNED}, instance="one"))
    await scene.ask("heartbeat", heartbeat(scene, group, generation, me, "one"))
    await scene.ask("heartbeat of another instance", heartbeat(scene, group, generation, me, "two"))
    await scene.ask(
        "heartbeat of nobody in this instance", heartbeat(scene, group, generation, NOBODY, "one")
    )
    back = await scene.ask("it comes back", join(scene, group, instance="one"))
    await describe(scene, "back again", group)
    await scene.ask("the one before is fenced", heartbeat(scene, group, generation, me, "one"))
    await scene.ask("and may not sync", sync(scene, group, generation, me, instance="one"))
    await scene.ask("nor join", join(scene, group, me, instance="one"))
    await scene.ask("without its instance it is unknown", heartbeat(scene, group, generation, me))
    await scene.ask("a member without an id in no instance", join(scene, group, NOBODY, instance="three"))
    now = back.member_id
    await scene.ask("its sync", sync(scene, group, back.generation_id, now, {now: ASSIGNED}, instance="one"))
    await scene.ask("its heartbeat", heartbeat(scene, group, back.generation_id, now, "one"))
    changed = await scene.ask(
        "it comes back with another protocol",
        join(scene, group, instance="one", protocols=(("sticky", b""),)),
    )
    await describe(scene, "changed", group)
    later = changed.member_id
    await scene.ask(
        "which it syncs",
        sync(scene, group, changed.generation_id, later, {later: b"x"}, instance="one", protocol="sticky"),
    )
    await scene.ask("an unknown instance leaves", leave(scene, group, ("", "four")))
    await scene.ask("a wrong member of the instance leaves", leave(scene, group, (NOBODY, "one")))
    await scene.ask("the instance leaves", leave(scene, group, ("", "one")))
    await describe(scene, "afterwards", group)


async def unknown_groups_and_members(scene: Scene) -> None:
    """Requests for unknown groups, and with invalid group ids."""
    gone = await scene.group("gone")
    await scene.quietly(m.DeleteGroupsRequest([""]))  # others may have committed without a group
    for name, group in (("a group that is not there", gone), ("no group", "")):
        await scene.ask(f"heartbeat in {name}", heartbeat(scene, group, 1, NOBODY))
        await scene.ask(f"sync in {name}", sync(scene, group, 1, NOBODY))
        await scene.ask(f"leave of {name}", leave(scene, group, (NOBODY, None)))
        await describe(scene, f"description of {name}", group)
        await scene.ask(f"deletion of {name}", m.DeleteGroupsRequest([group]))
        await coordinator(scene, f"coordinator of {name}", group, 0)
    await scene.transactional_id("any")
    await coordinator(scene, "coordinator of no transactional id", "", 1)
    await coordinator(scene, "coordinator of a key of no kind", "x", 9)
    group = await scene.group("deleted")
    mine = await joined(scene, "join", group)
    await scene.ask("deletion of a group with members", m.DeleteGroupsRequest([group, gone]))
    await scene.ask("leave", leave(scene, group, (mine.member_id, None)))
    await scene.ask("deletion", m.DeleteGroupsRequest([group]))
    await scene.ask("deletion once more", m.DeleteGroupsRequest([group]))
    await scene.ask("heartbeat in a deleted group", heartbeat(scene, group, 1, mine.member_id))
    await scene.ask("join of a deleted group", join(scene, group, mine.member_id))
    await joined(scene, "the group is made anew", group)


async def describe(scene: Scene, label: str, group: str) -> None:
    """DescribeGroups, with authorized operations in the versions that have them."""
    authorized = scene.version("DescribeGroups") >= 3
    request = m.DescribeGroupsRequest([group], include_authorized_operations=authorized)
    await scene.ask(f"describe: {label}", request, via="describe")


async def listed(scene: Scene, label: str, group: str) -> None:
    """ListGroups; only this group is compared, as other tests use the same broker."""
    version = scene.version("ListGroups")
    filters = {"": m.ListGroupsRequest()}
    if version >= 4:
        filters |= {
            " of its state": m.ListGroupsRequest(states_filter=["Empty"]),
            " of small letters": m.ListGroupsRequest(states_filter=["empty"]),
            " of other states": m.ListGroupsRequest(states_filter=["Stable", "Dead"]),
            " of no state": m.ListGroupsRequest(states_filter=["nonsense"]),
        }
    if version >= 5:
        filters |= {
            " of its type": m.ListGroupsRequest(types_filter=["classic"]),
            " of another type": m.ListGroupsRequest(types_filter=["consumer"]),
            " of no type": m.ListGroupsRequest(types_filter=["nonsense"]),
        }
    for name, request in filters.items():
        answer = await scene.quietly(request, version)
        answer.groups = [each for each in answer.groups if each.group_id == group]
        scene.keep(f"{label}{name}", answer, version)


async def coordinator(scene: Scene, label: str, key: str, key_type: int) -> None:
    """FindCoordinator; version 0 is for groups only."""
    version = scene.version("FindCoordinator")
    if version < 1 and key_type:
        return
    keys = m.FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
    await scene.ask(label, keys if version >= 4 else m.FindCoordinatorRequest(key, key_type))
