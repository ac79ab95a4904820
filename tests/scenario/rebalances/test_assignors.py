"""Assignors in groups: sticky, custom and several assignors, user data, invalid assignments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from asyncgroup import Session
from asyncgroup.errors import AssignmentError
from asyncgroup.group import Assignment, MemberSubscription, RangeAssignor, StickyAssignor
from asyncgroup.group.assignors.sticky_user_data import decode_member_data
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned
from tests.scenario.support import WorkHandler, member
from tests.stories.members import LocalMember, Member
from tests.stories.virtual import VirtualEnvironment


def subscriptions_of(
    env: VirtualEnvironment, name: str, protocol: str
) -> list[m.ConsumerProtocolSubscription]:
    """Return a member's subscriptions for an assignor, by join; joins without a member id are omitted."""
    joins = [e.request for e in env.cluster.history.of("JoinGroup", client_id=name) if e.request.member_id]
    return [
        decode_versioned(m.ConsumerProtocolSubscription, offered.metadata)
        for join in joins
        for offered in join.protocols
        if offered.name == protocol
    ]


def now(one: Member) -> Session:
    """Return a member's current session."""
    assert isinstance(one, LocalMember)
    assert one.group.session is not None
    return one.group.session


# -- sticky -------------------------------------------------------------------------------------------------------------


async def test_sticky_members_come_and_go(network: object) -> None:
    """Of 12 partitions only the necessary ones move; each member reports its partitions and their generation."""
    async with VirtualEnvironment.made(partitions=12) as env:
        sticky = {"assignors": ("sticky",)}
        names = ["ann", "bob", "cat", "dan"]
        members: list[Member] = []
        had: Mapping[str, set[int]] = {}
        for name in names:
            members.append(await env.member(name, **sticky))
            group = await env.settled(*members)
            has = {each: set(topics["orders"]) for each, topics in group.assignment.items()}
            assert {len(numbers) for numbers in has.values()} == {12 // len(members)}
            assert all(has[each] <= had[each] for each in had), (
                "no partition moves between old members while a new one has too few"
            )
            had = has

        await members.pop(1).leave()
        has = {name: set(t["orders"]) for name, t in (await env.settled(*members)).assignment.items()}
        assert all(had[name] < has[name] for name in has), (
            "bob's three partitions moved to the other three members"
        )
        assert set().union(*has.values()) == set(range(12))

        claims = [decode_member_data(each.user_data) for each in subscriptions_of(env, "ann", "sticky")]
        assert [claim.generation for claim in claims] == [-1, 1, 2, 3, 4]
        assert [len(claim.partitions) for claim in claims] == [0, 12, 6, 4, 3]


async def test_one_sticky_object_for_two_members(env: VirtualEnvironment) -> None:
    """Members that share a configuration must not share the assignor's state (aiokafka #1175)."""
    shared = {"assignors": (StickyAssignor(),)}
    ann = await env.member("ann", **shared)
    await env.settled(ann)
    bob = await env.member("bob", **shared)
    before = await env.settled(ann, bob)
    cat = await env.member("cat", **shared)
    after = await env.settled(ann, bob, cat)
    for name in ("ann", "bob"):
        (claim,) = [decode_member_data(each.user_data) for each in subscriptions_of(env, name, "sticky")][-1:]
        assert [tp.partition for tp in claim.partitions] == before.assignment[name]["orders"]
        assert set(after.assignment[name]["orders"]) <= set(before.assignment[name]["orders"])


async def test_a_sticky_static_leader_restarts(env: VirtualEnvironment) -> None:
    """It gets its partitions from SyncGroup, sends no assignment (KIP-814), and reports them in the next join."""
    desk = {"assignors": ("sticky",)}
    ann = await env.member("ann", group_instance_id="desk-a", **desk)
    await env.settled(ann)
    bob = await env.member("bob", group_instance_id="desk-b", **desk)
    before = await env.settled(ann, bob)
    await ann.leave()
    again = await env.member("ann-again", group_instance_id="desk-a", **desk)
    after = await env.settled(again, bob)
    assert after.assignment["ann-again"] == before.assignment["ann"]
    assert after.generation == before.generation
    (sync,) = env.cluster.history.of("SyncGroup", client_id="ann-again")
    assert sync.request.assignments == []

    cat = await env.member("cat", **desk)
    last = await env.settled(again, bob, cat)
    kept = {name: set(topics["orders"]) for name, topics in last.assignment.items()}
    assert kept["ann-again"] <= set(before.assignment["ann"]["orders"])
    assert kept["bob"] <= set(before.assignment["bob"]["orders"])
    claim = decode_member_data(subscriptions_of(env, "ann-again", "sticky")[-1].user_data)
    assert claim.generation == before.generation
    assert [tp.partition for tp in claim.partitions] == before.assignment["ann"]["orders"]


# -- several ------------------------------------------------------------------------------------------------------------


async def test_the_coordinator_chooses_an_assignor_of_all_members(env: VirtualEnvironment) -> None:
    ann = await env.member("ann", assignors=("sticky", "range", "roundrobin"))
    await env.settled(ann)
    bob = await env.member("bob", assignors=("roundrobin", "range"))
    cat = await env.member("cat", assignors=("range", "roundrobin"))
    await env.settled(ann, bob, cat)
    answers = [e.response for e in env.cluster.history.of("JoinGroup") if not e.response.error_code]
    assert answers[0].protocol_name == "sticky"
    assert answers[-1].protocol_name == "range", "two of three members prefer it"


# -- user data ----------------------------------------------------------------------------------------------------------


class UserDataAssignor(RangeAssignor):
    """Sends every member the number of members as user data, unless `silent`; members return it with their next join."""

    name = "user-data"

    def __init__(self) -> None:
        self.silent = False
        self.assignments: list[tuple[Assignment, int]] = []

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, Assignment]:  # type: ignore[override]
        text = None if self.silent else b"%d members" % len(members)
        plan = super().assign(members, counts)
        return {member: Assignment(tuple(partitions), text) for member, partitions in plan.items()}

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        self.assignments.append((assignment, generation_id))


async def test_user_data_is_received_and_sent_with_the_next_join(
    env: VirtualEnvironment,
) -> None:
    assignor = UserDataAssignor()
    ann = await env.member("ann", assignors=(assignor,), user_data=b"configured", rack_id="r1")
    await env.settled(ann)
    assert now(ann).assignment_user_data == b"1 members"
    bob = await env.member("bob", assignors=(UserDataAssignor(),))
    await env.settled(ann, bob)
    assert now(ann).assignment_user_data == now(bob).assignment_user_data == b"2 members"
    assignor.silent = True
    await bob.leave()
    await env.settled(ann)
    assert now(ann).assignment_user_data is None
    cat = await env.member("cat", assignors=(UserDataAssignor(),))
    await env.settled(ann, cat)

    subscriptions = subscriptions_of(env, "ann", "user-data")
    assert [each.user_data for each in subscriptions] == [
        b"configured",
        b"1 members",
        b"2 members",
        b"configured",
    ]
    assert {each.rack_id for each in subscriptions} == {"r1"}
    assert [each.user_data for each in subscriptions_of(env, "bob", "user-data")] == [None]
    assert [generation for _, generation in assignor.assignments] == [1, 2, 3, 4]
    orders = [TopicPartition("orders", number) for number in range(4)]
    assert assignor.assignments[0][0] == Assignment(tuple(orders), b"1 members")
    assert assignor.assignments[1][0] == Assignment(tuple(orders[:2]), b"2 members")


# -- invalid assignments ------------------------------------------------------------------------------------------------


class WrongAssignor(RangeAssignor):
    name = "wrong"

    def __init__(self, *given: tuple[str, int]) -> None:
        self.given = [TopicPartition(*tp) for tp in given]

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        return {member.member_id: self.given for member in members}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("orders", 4), "orders-4 does not exist: the topic has 4 partitions"),
        (("unheard-of", 0), "topic 'unheard-of'"),
    ],
)
async def test_an_invalid_assignment(env: VirtualEnvironment, given: tuple[str, int], named: str) -> None:
    async with member(env, assignors=(WrongAssignor(("orders", 0), given),)) as group:
        with pytest.raises(AssignmentError, match=f"assignor 'wrong' made an invalid assignment: {named}"):
            await group.run("orders", WorkHandler(env))
    assert env.cluster.group("g").members == {}


class CancellingAssignor(WrongAssignor):
    """Raises what the result of a cancelled future raises."""

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        raise asyncio.CancelledError("the result of a cancelled future")


async def test_an_assignor_raises_a_cancellation(env: VirtualEnvironment) -> None:
    """Regression test: `run` returned without an error, as if the group had been closed."""
    async with member(env, assignors=(CancellingAssignor(),)) as group:
        with pytest.raises(AssignmentError, match="assignor 'wrong' raised CancelledError"):
            await group.run("orders", WorkHandler(env))
    assert env.cluster.group("g").members == {}
