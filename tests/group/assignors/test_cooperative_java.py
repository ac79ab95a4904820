"""The cooperative sticky assignor beside Java's: bytes, balance, moves, and which partitions are withheld."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from asyncgroup.group.assignors import Assignment, MemberSubscription
from asyncgroup.group.assignors.cooperative import (
    CooperativeStickyAssignor,
    claimed_partitions,
    withhold_claimed,
)
from asyncgroup.group.assignors.sticky import assign_sticky, find_owners
from asyncgroup.group.classic.join_requests import decode_members
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.group.assignors.java_cooperative import (
    CooperativeCase,
    CooperativeOracle,
    JavaAnswer,
    claimed_case,
    encode_subscription,
    owning,
)
from tests.group.assignors.java_program import jars_of_clients
from tests.group.assignors.stickiness import all_of, loads
from tests.profiles import examples

Plan = dict[str, list[TopicPartition]]

ASSIGNOR = CooperativeStickyAssignor()


@pytest.fixture(scope="module")
def java() -> Iterable[CooperativeOracle]:
    """Kafka's assignor, if Java and Kafka's jars are available."""
    with CooperativeOracle(jars_of_clients()) as oracle:
        yield oracle


def whole_plan(case: CooperativeCase) -> Plan:
    """Return our assignment before partitions are withheld."""
    ordered = sorted(case.members, key=lambda member: member.order)
    return assign_sticky(ordered, case.counts, claimed_partitions(ordered))


def moves(case: CooperativeCase, plan: Plan) -> int:
    """Return how many partitions move away from members that own them."""
    owners = find_owners(case.members, case.counts, claimed_partitions(case.members))
    takers = {tp: member for member, partitions in plan.items() for tp in partitions}
    return sum(takers[tp] != case.members[owner].member_id for tp, owner in owners.items())


def withheld(whole: Plan, plan: Plan) -> set[tuple[str, TopicPartition]]:
    return {(member, tp) for member, tps in whole.items() for tp in set(tps) - set(plan[member])}


def claimants(case: CooperativeCase, tp: TopicPartition) -> list[MemberSubscription]:
    return [member for member in case.members if tp in member.owned]


def check(case: CooperativeCase, java: JavaAnswer) -> int:
    """Compare the plans. Returns 1 if ours is more balanced than Java's, else 0."""
    ours = whole_plan(case)
    assert all_of(ours) == all_of(java.whole), case
    heaviest_first, theirs_first = loads(ours)[::-1], loads(java.whole)[::-1]
    for number in range(len(heaviest_first)):
        assert sum(heaviest_first[:number]) <= sum(theirs_first[:number]), case
    if loads(ours) == loads(java.whole):
        assert moves(case, ours) <= moves(case, java.whole), case
        return 0
    return 1


def check_withheld(case: CooperativeCase, java: JavaAnswer) -> int:
    """Compare what is withheld of Java's assignment. Returns how many partitions are.

    With unequal subscriptions Java takes a partition for its new owner's if that member claims it in any generation,
    although another member owns it, or claims it as well. There, only such partitions are withheld in addition.
    """
    ours = withheld(java.whole, withhold_claimed(case.members, java.whole, case.counts))
    theirs = withheld(java.whole, java.plan)
    assert theirs <= ours, case
    more = ours - theirs
    if case.has_equal_subscriptions:
        assert not more, case
    for member, tp in more:
        claiming = claimants(case, tp)
        assert len(claiming) > 1, case
        assert member in [each.member_id for each in claiming], case
    return len(ours)


@pytest.mark.parametrize("equal", [True, False])
def test_groups_in_any_state(java: CooperativeOracle, equal: bool) -> None:
    """Owned partitions of older generations, contested ones, members that are gone, topics that are."""
    rng = random.Random(20200420)
    compared = more_even = held = contested = 0
    while compared < examples(400):
        case = claimed_case(rng)
        if case.has_equal_subscriptions is not equal:
            continue
        answer = java.answer(case)
        if not answer.plan:
            assert not equal, "Java's algorithm for equal subscriptions does not fail"
            continue
        compared += 1
        more_even += check(case, answer)
        held += check_withheld(case, answer)
        contested += any(len(claimants(case, tp)) > 1 for member in case.members for tp in member.owned)
    assert more_even < compared / 20, "Java's assignments are less balanced than expected"
    assert held > compared
    assert contested > compared / 4


@pytest.mark.parametrize("history", ["java", "ours"])
def test_sequences(java: CooperativeOracle, history: str) -> None:
    """Rounds in which members leave, join and change their topics; Java's or our assignments become the owned ones."""
    rng = random.Random(429)
    compared = 0
    for _ in range(examples(60)):
        case = claimed_case(rng)
        for generation in range(6, 12):
            answer = java.answer(case)
            plan = ASSIGNOR.assign(case.members, case.counts)
            if answer.plan:
                compared += 1
                check(case, answer)
                check_withheld(case, answer)
                plan = answer.plan if history == "java" else plan
            case = next_round(rng, case, plan, generation)
    assert compared > examples(60) * 4


def next_round(rng: random.Random, case: CooperativeCase, plan: Plan, generation: int) -> CooperativeCase:
    members, counts = owning(case.members, plan, generation), dict(case.counts)
    match rng.choice(["none", "none", "join", "leave", "topics", "grow", "missed"]):
        case "join":
            model = rng.choice(members)
            members.append(MemberSubscription(f"j{generation}", model.topics, None, b"\xff\xff\xff\xff"))
        case "leave" if len(members) > 1:
            members.pop(rng.randrange(len(members)))
        case "topics":
            index = rng.randrange(len(members))
            topics = sorted({topic for member in members for topic in member.topics})
            members[index] = replace(
                members[index], topics=tuple(rng.sample(topics, rng.randint(0, len(topics))))
            )
        case "grow" if counts:
            counts[rng.choice(sorted(counts))] += 2
        case "missed":
            index = rng.randrange(len(members))
            before = {member.member_id: member for member in case.members}
            members[index] = before.get(members[index].member_id, members[index])
    return CooperativeCase(members, counts)


def test_bytes_of_the_subscription_and_the_user_data(java: CooperativeOracle) -> None:
    """All versions of the subscription, with owned partitions, generation and rack."""
    rng = random.Random(792)
    for _ in range(examples(60)):
        case = claimed_case(rng)
        answer = java.answer(case)
        for member in case.members:
            theirs = answer.subscriptions[member.member_id]
            assert [encode_subscription(member, version) for version in range(4)] == theirs
            response = m.JoinGroupResponse(
                members=[
                    m.JoinGroupResponse.JoinGroupResponseMember(
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                        metadata=theirs[3],
                    )
                ]
            )
            (decoded,) = decode_members(response)
            assert decoded == replace(
                member, topics=tuple(sorted(member.topics)), owned=tuple(sorted(member.owned))
            )
        for member_id, (before, after) in answer.user_data.items():
            assignor = CooperativeStickyAssignor()
            assert assignor.subscription_user_data([]) == before
            assignor.on_assignment(Assignment(tuple(answer.plan.get(member_id, ()))), 7)
            assert assignor.subscription_user_data([]) == after


def test_generations_in_the_user_data_alone(java: CooperativeOracle) -> None:
    """Members that send version 1 of the subscription; their generation is in the user data (before KIP-792)."""
    rng, compared = random.Random(1), 0
    while compared < examples(100):
        case = claimed_case(rng)
        if any(len(claimants(case, tp)) > 1 for member in case.members for tp in member.owned):
            continue  # Java compares the generations of contested partitions by the subscription alone
        old = {member.member_id: 1 for member in case.members if rng.random() < 0.5}
        answer = java.answer(case._replace(versions=old))
        if answer.plan:
            compared += 1
            seen = [
                replace(member, generation_id=-1, rack_id=None) if member.member_id in old else member
                for member in case.members
            ]
            check(case._replace(members=seen), answer)
            check_withheld(case._replace(members=seen), answer)
