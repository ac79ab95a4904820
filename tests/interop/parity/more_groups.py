"""More stories about membership: timeouts, pending member ids, protocol selection."""

from __future__ import annotations

from typing import Any

from asyncgroup.wire import messages as m
from tests.interop.parity.asks import ASSIGNED, RANGE, heartbeat, join, joined, leave, offset_fetch, sync
from tests.interop.parity.groups import describe
from tests.interop.parity.scene import Scene

__all__ = [
    "expired_members",
    "offset_fetches_of_members",
    "pending_member_ids",
    "selected_protocols",
    "several_static_members",
]


async def pending_member_ids(scene: Scene) -> None:
    """Member ids from MEMBER_ID_REQUIRED, used and unused (KIP-394)."""
    if scene.version("JoinGroup") < 4:
        return
    group = await scene.group("ids")
    first = await scene.ask("an id", join(scene, group))
    second = await scene.ask("another id", join(scene, group))
    await describe(scene, "nobody has joined", group)
    await scene.ask("heartbeat with an id only", heartbeat(scene, group, 0, first.member_id))
    await scene.ask("sync with an id only", sync(scene, group, 0, first.member_id))
    await scene.ask("leave with an id only", leave(scene, group, (second.member_id, None)))
    await scene.ask("which is void then", join(scene, group, second.member_id))
    await scene.ask("deletion meanwhile", m.DeleteGroupsRequest([group]))
    await describe(scene, "is it there", group)
    await scene.ask("join with the other id", join(scene, group, first.member_id))


async def expired_members(scene: Scene) -> None:
    """A session that expires, and a rebalance that ends without a missing member."""
    group = await scene.group("time")
    only = await joined(scene, "join", group, session_timeout_ms=500)
    await scene.ask("sync", sync(scene, group, 1, only.member_id, {only.member_id: ASSIGNED}))
    await scene.ask(
        "its session ends",
        m.DescribeGroupsRequest([group]),
        until=lambda answer: answer.groups[0].group_state == "Empty",
    )
    await scene.ask("it comes too late", heartbeat(scene, group, 1, only.member_id))
    if scene.version("JoinGroup") < 1:
        return  # without a rebalance timeout the session's is taken
    limits: dict[str, Any] = {"rebalance_timeout_ms": 500}
    first = await joined(scene, "first", group, **limits)
    await scene.ask(
        "first syncs", sync(scene, group, first.generation_id, first.member_id, {first.member_id: b"1"})
    )
    second = await joined(scene, "second, without the first", group, via="second", **limits)
    await scene.ask("the first is out", heartbeat(scene, group, first.generation_id, first.member_id))
    plan = {second.member_id: b"2"}
    await scene.ask("second syncs", sync(scene, group, second.generation_id, second.member_id, plan))
    await describe(scene, "second alone", group)


async def selected_protocols(scene: Scene) -> None:
    """The protocol preferred by most members among those that all support."""
    group = await scene.group("votes")
    names = {"first": ("a", "b", "c"), "second": ("b", "a"), "third": ("b", "c", "a")}
    protocols = {who: tuple((name, name.encode()) for name in named) for who, named in names.items()}
    ids = {}
    for who, wanted in protocols.items():
        ids[who] = ""
        if scene.version("JoinGroup") >= 4:
            ids[who] = (
                await scene.ask(f"{who} asks", join(scene, group, protocols=wanted), via=who)
            ).member_id
    alone = await scene.ask(
        "first joins", join(scene, group, ids["first"], protocols=protocols["first"]), via="first"
    )
    ids["first"] = alone.member_id
    late = []
    for count, who in ((2, "second"), (3, "third")):
        request = join(scene, group, ids[who], protocols=protocols[who])
        late.append(await scene.send(f"{who} joins", request, via=who))
        await scene.ask(
            f"{who} is waited for",
            m.DescribeGroupsRequest([group]),
            until=lambda answer, n=count: len(answer.groups[0].members) == n,  # type: ignore[misc]
        )
    again = await scene.ask(
        "first joins again", join(scene, group, ids["first"], protocols=protocols["first"]), via="first"
    )
    for sent, who in zip(late, ("second", "third"), strict=True):
        ids[who] = (await scene.receive(sent)).member_id
    await scene.ask("nothing in common", join(scene, group, protocols=(("d", b""),)))
    plan = {member_id: who.encode() for who, member_id in ids.items()}
    waiting = [
        await scene.send(
            f"{who} syncs", sync(scene, group, again.generation_id, ids[who], protocol="b"), via=who
        )
        for who in ("second", "third")
    ]
    leads = sync(scene, group, again.generation_id, ids["first"], plan, protocol="b")
    await scene.ask("first syncs", leads, via="first")
    for sent in waiting:
        await scene.receive(sent)
    await describe(scene, "all three", group)


async def several_static_members(scene: Scene) -> None:
    """Two static members, one of which rejoins without a change, and a dynamic member."""
    if scene.version("JoinGroup") < 5:
        return
    group = await scene.group("statics")
    one = await joined(scene, "one joins", group, instance="one")
    await scene.ask("one syncs", sync(scene, group, 1, one.member_id, {one.member_id: b"1"}, instance="one"))
    waiting = await scene.send("two joins", join(scene, group, instance="two"), via="two")
    await scene.ask(
        "one hears of it",
        heartbeat(scene, group, 1, one.member_id, "one"),
        until=lambda answer: answer.error_code,
    )
    again = await scene.ask("one joins again", join(scene, group, one.member_id, instance="one"))
    two = await scene.receive(waiting)
    generation, plan = again.generation_id, {one.member_id: b"1", two.member_id: b"2"}
    await scene.ask("one syncs again", sync(scene, group, generation, one.member_id, plan, instance="one"))
    await scene.ask("two syncs", sync(scene, group, generation, two.member_id, instance="two"), via="two")
    back = await scene.ask("two comes back", join(scene, group, instance="two"), via="two")
    await scene.ask("its sync", sync(scene, group, generation, back.member_id, instance="two"), via="two")
    leader = await scene.ask("one, who leads, comes back", join(scene, group, instance="one"))
    await scene.ask("one goes on", heartbeat(scene, group, generation, leader.member_id, "one"))
    await scene.ask("two goes on", heartbeat(scene, group, generation, back.member_id, "two"), via="two")
    await describe(scene, "both", group)
    gone = [("", "one"), ("", "three"), (back.member_id, "two"), (back.member_id, None)]
    await scene.ask("they leave, with some that are not there", leave(scene, group, *gone))
    await describe(scene, "afterwards", group)


async def offset_fetches_of_members(scene: Scene) -> None:
    """OffsetFetch of several groups at once, and with member id and epoch (KIP-709, KIP-848)."""
    version, cls = scene.version("OffsetFetch"), m.OffsetFetchRequest
    if version < 8:
        return
    group, other = await scene.group("asking"), await scene.group("other")
    topic = await scene.topic("asked", 1)
    mine = await joined(scene, "join", group, protocols=RANGE)
    await scene.ask("sync", sync(scene, group, 1, mine.member_id, {mine.member_id: ASSIGNED}))
    one = cls.OffsetFetchRequestGroup
    await scene.quietly(m.DeleteGroupsRequest([""]))  # others may have committed without a group
    await scene.ask(
        "three groups", cls(groups=[one(group, topics=None), one(other, topics=None), one("", topics=None)])
    )
    await scene.ask("twice the same", cls(groups=[one(group, topics=None), one(group, topics=None)]))
    await scene.ask("no groups", cls(groups=[]))
    named = offset_fetch(scene, group, {topic: [0]}).groups[0].topics
    if version >= 9:
        for label, member_id, epoch in (
            ("of the member", mine.member_id, 1),
            ("of an old generation", mine.member_id, 0),
            ("of a generation to come", mine.member_id, 9),
            ("of nobody", "nobody", 1),
            ("of no member", None, 1),
        ):
            await scene.ask(label, cls(groups=[one(group, member_id, epoch, named)]))
