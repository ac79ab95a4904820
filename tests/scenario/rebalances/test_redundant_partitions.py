"""Partitions assigned to several members on purpose: warm standbys, or an index that is built several times.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from asyncgroup import Claim, Record, Session
from asyncgroup.group import Assignment, MemberSubscription
from asyncgroup.model import TopicPartition
from tests.scenario.support import WorkHandler, committed, member, running
from tests.stories.virtual import VirtualEnvironment


class Redundant:
    """Assigns every partition to `copies` members; the first one owns it. A member's user data lists what it owns.

    This is the redundant partitioning of Kafka's client-side assignment proposal: an index that is built several
    times, or a warm standby.
    """

    name = "redundant"

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, Assignment]:
        ordered = [member.member_id for member in sorted(members, key=lambda member: member.order)]
        holds: dict[str, list[TopicPartition]] = {member: [] for member in ordered}
        owns: dict[str, list[bytes]] = {member: [] for member in ordered}
        partitions = [
            TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])
        ]
        for index, tp in enumerate(partitions):
            holders = [
                ordered[(index + copy) % len(ordered)] for copy in range(min(self.copies, len(ordered)))
            ]
            owns[holders[0]].append(str(tp).encode())
            for holder in holders:
                holds[holder].append(tp)
        return {member: Assignment(tuple(holds[member]), b" ".join(owns[member])) for member in ordered}


async def test_a_partition_of_two_members(env: VirtualEnvironment) -> None:
    """Both get all its records; when one leaves, others take over its copies."""
    redundant = {"assignors": (Redundant(2),)}
    members = [await env.member(name, **redundant) for name in ("ann", "bob", "cat")]
    group = await env.settled(*members)
    holders = {p: [n for n, t in group.assignment.items() if p in t["orders"]] for p in range(4)}
    assert [len(names) for names in holders.values()] == [2, 2, 2, 2]
    await env.produce(10, range(4))

    def all_twice() -> bool:
        return all(
            [offset for _, p, offset in each.log.handled if p == partition] == list(range(10))
            for partition, names in holders.items()
            for each in members
            if each.name in names
        )

    await env.bell.until(all_twice, "every record handled by both holders of its partition", env.limit)
    assert sum(len(each.log.handled) for each in members) == 80
    await env.all_committed()
    await members.pop(1).leave()
    assert (await env.settled(*members)).assignment == {
        "ann": {"orders": [0, 1, 2, 3]},
        "cat": {"orders": [0, 1, 2, 3]},
    }


async def test_the_last_commit_of_two_members_wins(env: VirtualEnvironment) -> None:
    """Marks only move forward within one member: the slower member moves the group's offset back."""
    quick, slow = asyncio.Event(), asyncio.Event()

    async def at_its_time(_session: Session, _claim: Claim, record: Record) -> None:
        if record.offset == 0:
            await quick.wait()
        if record.offset == 2:
            await slow.wait()

    config = {"assignors": (Redundant(2),)}
    first, second = WorkHandler(env), WorkHandler(env, at_its_time)

    def both() -> bool:
        return first.sessions[-1].generation_id == second.sessions[-1].generation_id

    async with (
        member(env, "ann", **config) as ann,
        running(ann.run("orders", first)),
        member(env, "bob", **config) as bob,
        running(bob.run("orders", second)),
    ):
        await second.until("setup")
        await env.bell.until(both, "both in one generation", env.limit)
        await env.produce(5, [0])
        await first.until("done 0@4")
        await env.bell.until(lambda: committed(env) == {0: 5}, "ann's commit", env.limit)
        quick.set()
        await env.bell.until(lambda: committed(env) == {0: 2}, "bob's commit, which is behind", env.limit)
        slow.set()
        await env.bell.until(lambda: committed(env) == {0: 5}, "bob's last commit", env.limit)


class Standby(WorkHandler):
    """Marks records of partitions that its member owns; others are read and not marked."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        owns = str(claim.tp).encode() in (session.assignment_user_data or b"").split()
        async for record in claim:
            if owns:
                claim.mark(record)
            self.note(f"{'owner' if owns else 'standby'} {record.partition}@{record.offset}")


async def test_a_standby_becomes_the_owner(env: VirtualEnvironment) -> None:
    """Only the owner named in the user data marks, so committed offsets never move back."""
    config = {"assignors": (Redundant(2),)}
    one, other = Standby(env), Standby(env)
    await env.produce(3, [0, 1])
    async with member(env, "bob", **config) as bob, running(bob.run("orders", other)):
        async with member(env, "ann", **config) as ann, running(ann.run("orders", one)):
            await env.bell.until(lambda: len(env.cluster.group("g").members) == 2, "both", env.limit)
            await one.until("setup")
            await env.bell.until(lambda: committed(env) == {0: 3, 1: 3}, "the owners' commits", env.limit)
            await env.produce(2, [0, 1])
            await env.bell.until(lambda: committed(env) == {0: 5, 1: 5}, "the owners' commits", env.limit)
            for number in (0, 1):
                for offset in (3, 4):
                    roles = {
                        s.split()[0]
                        for c in (one, other)
                        for s in c.calls
                        if s.endswith(f" {number}@{offset}")
                    }
                    assert roles == {"owner", "standby"}
        await env.produce(2, [0, 1])
        await other.until("owner 0@6")
        await other.until("owner 1@6")
