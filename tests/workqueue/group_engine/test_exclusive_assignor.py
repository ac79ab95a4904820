"""The exclusive assignor: one member owns everything and keeps it, and the others learn who it is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.group.assignors import Assignment, MemberSubscription, are_cooperative, resolve_assignors
from asyncgroup.model import TopicPartition as TP
from asyncgroup.workqueue.group_engine.exclusive_group import ExclusiveAssignor, GroupHolder, decode_holder
from tests.group.assignors.stickiness import owning
from tests.profiles import examples

SEEDS = st.integers(0, 1 << 32)
ASSIGNOR = ExclusiveAssignor(0)


def subscribed(member_id: str, since_ms: int, topics: Sequence[str] = ("t",)) -> MemberSubscription:
    data = ExclusiveAssignor(since_ms).subscription_user_data(topics)
    return MemberSubscription(member_id, tuple(topics), user_data=data)


def holder_in(plan: Mapping[str, Assignment]) -> str:
    """Return the one member that holds the group; all assignments must agree."""
    found = {each: decode_holder(assignment.user_data) for each, assignment in plan.items()}
    holders = [each for each, holder in found.items() if holder is not None and holder.is_own]
    assert len(holders) == 1
    assert {holder.member_id for holder in found.values() if holder is not None} == set(holders)
    assert None not in found.values()
    return holders[0]


def lists(plan: Mapping[str, Assignment]) -> dict[str, list[TP]]:
    return {each: list(assignment.partitions) for each, assignment in plan.items()}


def test_the_one_that_waits_longest_gets_everything() -> None:
    members = [subscribed("a", 200), subscribed("b", 100), subscribed("c", 300)]
    plan = ASSIGNOR.assign(members, {"t": 3})
    assert holder_in(plan) == "b"
    assert lists(plan) == {"a": [], "b": [TP("t", 0), TP("t", 1), TP("t", 2)], "c": []}


def test_the_owner_keeps_everything_with_any_clocks() -> None:
    owner = replace(subscribed("a", 200), owned=(TP("t", 0),), generation_id=1)
    plan = ASSIGNOR.assign([owner, subscribed("b", 100)], {"t": 2, "u": 1})
    assert lists(plan) == {"a": [TP("t", 0), TP("t", 1)], "b": []}
    assert holder_in(plan) == "a"


def test_of_two_owners_the_one_with_the_newer_claim_keeps_the_group() -> None:
    """The other one, a member that the coordinator had expelled, revokes its partitions first."""
    former = replace(subscribed("a", 100), owned=(TP("t", 0),), generation_id=3)
    owner = replace(subscribed("b", 200), owned=(TP("t", 1),), generation_id=5)
    members = [former, owner]
    first = ASSIGNOR.assign(members, {"t": 2})
    assert holder_in(first) == "b"
    assert lists(first) == {"a": [], "b": [TP("t", 1)]}
    second = ASSIGNOR.assign(owning(members, lists(first), 6), {"t": 2})
    assert lists(second) == {"a": [], "b": [TP("t", 0), TP("t", 1)]}


def test_a_member_holds_the_group_before_its_topic_exists() -> None:
    plan = ASSIGNOR.assign([subscribed("a", 2), subscribed("b", 1)], {})
    assert holder_in(plan) == "b"
    assert lists(plan) == {"a": [], "b": []}


@given(SEEDS)
@settings(max_examples=examples(300), deadline=None)
def test_one_member_holds_the_group_until_it_leaves(seed: int) -> None:
    rng = random.Random(seed)
    counts = {topic: rng.randint(1, 4) for topic in "tu"}
    members = [subscribed(f"m{number}", rng.randint(0, 3), "tu") for number in range(rng.randint(1, 4))]
    plan = ASSIGNOR.assign(members, counts)
    holder = holder_in(plan)
    assert len(plan[holder].partitions) == sum(counts.values())
    rng.shuffle(members)
    assert ASSIGNOR.assign(members, counts) == plan
    members = owning(members, lists(plan), 1)
    members = [member for member in members if member.member_id == holder or rng.random() < 0.5]
    members += [subscribed(f"new{number}", rng.randint(0, 3), "tu") for number in range(2)]
    again = ASSIGNOR.assign(members, counts)
    assert holder_in(again) == holder
    assert again[holder] == plan[holder]
    rest = [member for member in members if member.member_id != holder]
    after = ASSIGNOR.assign(rest, counts)
    assert len(after[holder_in(after)].partitions) == sum(counts.values())


@given(st.binary(max_size=40), st.binary(max_size=40))
@settings(max_examples=examples(200), deadline=None)
def test_foreign_user_data_is_no_error(data: bytes, other: bytes) -> None:
    decode_holder(data)
    members = [
        MemberSubscription("1", ("t",), user_data=data),
        MemberSubscription("2", ("t",), user_data=other),
    ]
    holder_in(ASSIGNOR.assign(members, {"t": 1}))


@pytest.mark.parametrize(
    "data", [None, b"", b"\0\0", b"\0\0\1\0\2a", b"\0\0\1\xff\xff", b"\xff\xff\1\0\0", b"\0\0\1\0\1\xff"]
)
def test_user_data_of_other_assignors_names_no_holder(data: bytes | None) -> None:
    assert decode_holder(data) is None


def test_a_later_version_may_append_fields() -> None:
    assert decode_holder(b"\0\1\1\0\1a" + b"more") == GroupHolder(is_own=True, member_id="a")


def test_it_is_a_cooperative_assignor() -> None:
    assert are_cooperative(resolve_assignors([ASSIGNOR]))
    assert repr(ASSIGNOR) == "<ExclusiveAssignor since 0>"
    assert ASSIGNOR.assign([], {"t": 1}) == {}
