"""The cooperative sticky assignor: nothing moves in one step, two rebalances reach the sticky plan, Java's bytes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given, settings, strategies as st

from asyncgroup.group.assignors import Assignment, MemberSubscription
from asyncgroup.group.assignors.cooperative import (
    CooperativeStickyAssignor,
    claimed_partitions,
    withhold_claimed,
)
from asyncgroup.group.assignors.sticky import assign_sticky, find_owners
from asyncgroup.model import TopicPartition as TP
from tests.group.assignors.java_cooperative import CooperativeCase, claimed_case, owning
from tests.group.assignors.java_plans import make_case
from tests.group.assignors.stickiness import loads
from tests.profiles import examples

SEEDS = st.integers(0, 1 << 32)
ASSIGNOR = CooperativeStickyAssignor()


def sticky(members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> dict[str, list[TP]]:
    ordered = sorted(members, key=lambda member: member.order)
    return assign_sticky(ordered, counts, claimed_partitions(ordered))


def random_change(rng: random.Random, members: Sequence[MemberSubscription]) -> list[MemberSubscription]:
    """Return the group after some left, some joined and some changed their topics."""
    topics = sorted({topic for member in members for topic in member.topics})
    kept = [member for member in members if rng.random() < 0.8]
    for index, member in enumerate(kept):
        if rng.random() < 0.2:
            kept[index] = replace(member, topics=tuple(rng.sample(topics, rng.randint(0, len(topics)))))
    joined = [MemberSubscription(f"new{number}", tuple(topics)) for number in range(rng.randint(0, 3))]
    return kept + joined


@given(SEEDS)
@settings(max_examples=examples(300), deadline=None)
def test_no_partition_changes_its_owner_in_one_rebalance(seed: int) -> None:
    rng = random.Random(seed)
    case = make_case(rng)
    members = case.subscriptions()
    members = random_change(rng, owning(members, ASSIGNOR.assign(members, case.counts), 1))
    first = ASSIGNOR.assign(members, case.counts)
    aim = sticky(members, case.counts)
    for member in members:
        got, wanted = set(first[member.member_id]), set(aim[member.member_id])
        others = {tp for other in members if other is not member for tp in other.owned}
        assert got <= wanted
        assert not got & (others - set(member.owned))
        assert wanted - got <= others


@given(SEEDS)
@settings(max_examples=examples(300), deadline=None)
def test_the_second_rebalance_completes_the_first(seed: int) -> None:
    """It assigns all that the first one withheld, revokes nothing, and a third one changes nothing."""
    rng = random.Random(seed)
    case = make_case(rng)
    members = case.subscriptions()
    members = random_change(rng, owning(members, ASSIGNOR.assign(members, case.counts), 1))
    aim = sticky(members, case.counts)
    first = ASSIGNOR.assign(members, case.counts)
    second = ASSIGNOR.assign(owning(members, first, 2), case.counts)
    assert all(set(first[member]) <= set(second[member]) for member in first)
    assert sorted(tp for partitions in second.values() for tp in partitions) == sorted(
        tp for partitions in aim.values() for tp in partitions
    )
    assert sorted(map(len, second.values())) == sorted(map(len, aim.values()))
    assert ASSIGNOR.assign(owning(members, second, 3), case.counts) == second


def test_a_new_member_waits_for_one_rebalance() -> None:
    members = [
        MemberSubscription("a", ("t",), owned=(TP("t", 0), TP("t", 1)), generation_id=4),
        MemberSubscription("b", ("t",), owned=(TP("t", 2), TP("t", 3)), generation_id=4),
        MemberSubscription("c", ("t",)),
    ]
    first = ASSIGNOR.assign(members, {"t": 4})
    assert first["c"] == []
    assert sum(map(len, first.values())) == 3
    second = ASSIGNOR.assign(owning(members, first, 5), {"t": 4})
    assert len(second["c"]) == 1
    assert all(set(first[member]) <= set(second[member]) for member in first)


CLAIMED = SEEDS.map(lambda seed: claimed_case(random.Random(seed)))


@given(CLAIMED)
@settings(max_examples=examples(400), deadline=None)
def test_from_any_state_no_partition_changes_its_owner_in_one_round(case: CooperativeCase) -> None:
    """A partition is assigned to its owner, or to a member if no other one may be consuming it."""
    members, counts = case.members, case.counts
    owners = find_owners(members, counts, claimed_partitions(members))
    for member_id, partitions in ASSIGNOR.assign(members, counts).items():
        for tp in partitions:
            if tp in owners:
                assert members[owners[tp]].member_id == member_id
            else:
                assert {member.member_id for member in members if tp in member.owned} <= {member_id}


@given(CLAIMED)
@settings(max_examples=examples(400), deadline=None)
def test_from_any_state_two_rounds_reach_a_stable_assignment(case: CooperativeCase) -> None:
    """The second round only adds, and assigns everything, as evenly as the whole plan of the first; a third is the same."""
    members, counts = case.members, case.counts
    aim = sticky(members, counts)
    first = ASSIGNOR.assign(members, counts)
    second = ASSIGNOR.assign(owning(members, first, 6), counts)
    assert all(set(first[member_id]) <= set(second[member_id]) for member_id in first)
    assigned = Counter(tp for partitions in second.values() for tp in partitions)
    assert assigned == Counter(tp for partitions in aim.values() for tp in partitions)
    assert loads(second) == loads(aim)
    assert ASSIGNOR.assign(owning(members, second, 7), counts) == second


def test_what_two_members_own_is_revoked_by_both() -> None:
    """As in Java, if they claim it in the same generation; it is assigned in the next round, and to no third member."""
    both = (TP("t", 0),)
    members = [
        MemberSubscription("a", ("t",), owned=both, generation_id=4),
        MemberSubscription("b", ("t",), owned=both, generation_id=4),
    ]
    first = ASSIGNOR.assign(members, {"t": 1})
    assert first == {"a": [], "b": []}
    assert sorted(map(len, ASSIGNOR.assign(owning(members, first, 5), {"t": 1}).values())) == [0, 1]
    plan = {"c": [TP("t", 0), TP("t", 1)]}
    assert withhold_claimed(members, plan, {"t": 2}) == {"c": [TP("t", 1)]}


def test_a_claim_of_an_older_generation_is_not_enough() -> None:
    """A member that claims a partition which a newer owner gives up gets it one round later, as any other member."""
    members = [
        MemberSubscription("a", ("t",), owned=(TP("t", 0),), generation_id=3),
        MemberSubscription("b", ("t",), owned=(TP("t", 0), TP("t", 1)), generation_id=4),
    ]
    plan = {"a": [TP("t", 0)], "b": [TP("t", 1)]}
    assert withhold_claimed(members, plan, {"t": 2}) == {"a": [], "b": [TP("t", 1)]}


def test_a_former_owner_of_an_older_generation_keeps_nothing() -> None:
    members = [
        MemberSubscription("a", ("t",), owned=(TP("t", 0), TP("t", 1)), generation_id=3),
        MemberSubscription("b", ("t",), owned=(TP("t", 0), TP("t", 1)), generation_id=4),
    ]
    first = ASSIGNOR.assign(members, {"t": 2})
    assert len(first["b"]) == 1
    assert len(first["a"]) <= 1
    assert not set(first["a"]) & set(first["b"])


def test_the_generation_is_that_of_the_subscription_or_of_the_user_data() -> None:
    owned = (TP("t", 0),)
    subscriptions = [
        MemberSubscription("new", ("t",), None, b"\0\0\0\x05", owned, 7),
        MemberSubscription("old", ("t",), None, b"\0\0\0\x05", owned),
        MemberSubscription("none", ("t",), None, None, owned),
        MemberSubscription("short", ("t",), None, b"\0\0", owned),
    ]
    assert [data.generation for data in claimed_partitions(subscriptions)] == [7, 5, -1, -1]


def test_the_user_data_is_the_generation_of_the_last_assignment() -> None:
    """Bytes of Java 4.3.1's `subscriptionUserData`, before the first assignment and after one in generation 7."""
    assignor = CooperativeStickyAssignor()
    assert assignor.subscription_user_data(["t"]) == b"\xff\xff\xff\xff"
    assignor.on_assignment(Assignment((TP("t", 0),)), 7)
    assert assignor.subscription_user_data(["t"]) == b"\0\0\0\x07"
    assert assignor.for_group().subscription_user_data(["t"]) == b"\xff\xff\xff\xff"
