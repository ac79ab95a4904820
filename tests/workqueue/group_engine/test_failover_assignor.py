"""The failover assignor: the highest priority owns everything, evenly by name; the others stand by."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.errors import ConfigError
from asyncgroup.group.assignors import MemberSubscription, are_cooperative, resolve_assignors
from asyncgroup.model import TopicPartition as TP
from asyncgroup.workqueue.group_engine.failover_assignor import FailoverAssignor
from tests.group.assignors.stickiness import owning
from tests.profiles import examples

SEEDS = st.integers(0, 1 << 32)
ASSIGNOR = FailoverAssignor()
Plan = dict[str, list[TP]]


def subscribed(
    member_id: str, priority: int = 0, name: str = "", topics: Sequence[str] = ("t",)
) -> MemberSubscription:
    data = FailoverAssignor(priority, name).subscription_user_data(topics)
    return MemberSubscription(member_id, tuple(topics), user_data=data)


def random_group(rng: random.Random) -> tuple[list[MemberSubscription], dict[str, int], dict[str, int]]:
    """Return members, partition counts, and the priorities by member id."""
    counts = {topic: rng.randint(0, 7) for topic in rng.sample("stuv", rng.randint(1, 4))}
    priorities = {f"m{number}": rng.randint(0, 2) for number in range(rng.randint(1, 6))}
    members = [
        subscribed(each, priority, rng.choice("abc"), rng.sample("stuv", rng.randint(0, 4)))
        for each, priority in priorities.items()
    ]
    return members, counts, priorities


def settled(members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> Plan:
    """Return the plan of members that own nothing."""
    return ASSIGNOR.assign([replace(member, owned=(), generation_id=-1) for member in members], counts)


def test_the_figures_of_pulsars_documentation() -> None:
    everything = [TP("t", 0)]
    same = [subscribed("1", 0, "aaa"), subscribed("2", 0, "bbb")]
    assert ASSIGNOR.assign(same, {"t": 1}) == {"1": everything, "2": []}
    other = [subscribed("1", 1, "aaa"), subscribed("2", 0, "bbb")]
    assert ASSIGNOR.assign(other, {"t": 1}) == {"1": [], "2": everything}


def test_partitions_go_round_the_names() -> None:
    members = [subscribed("1", 0, "c"), subscribed("2", 0, "a"), subscribed("3", 0, "b"), subscribed("4", 1)]
    plan = ASSIGNOR.assign(members, {"t": 5})
    assert {each: [tp.partition for tp in got] for each, got in plan.items()} == {
        "2": [0, 3],
        "3": [1, 4],
        "1": [2],
        "4": [],
    }


@given(SEEDS)
@settings(max_examples=examples(300), deadline=None)
def test_each_partition_has_one_owner_of_the_highest_priority(seed: int) -> None:
    rng = random.Random(seed)
    members, counts, priorities = random_group(rng)
    plan = ASSIGNOR.assign(members, counts)
    topics = {member.member_id: member.topics for member in members}
    for topic, count in counts.items():
        subscribers = [each for each in priorities if topic in topics[each]]
        best = min((priorities[each] for each in subscribers), default=None)
        active = {each for each in subscribers if priorities[each] == best}
        owned = [
            (tp.partition, each)
            for each, partitions in plan.items()
            for tp in partitions
            if tp.topic == topic
        ]
        assert sorted(number for number, _ in owned) == (list(range(count)) if active else [])
        assert {each for _, each in owned} <= active
        loads = [sum(owner == each for _, owner in owned) for each in active]
        assert not loads or max(loads) - min(loads) <= 1
    rng.shuffle(members)
    assert ASSIGNOR.assign(members, counts) == plan


@given(SEEDS)
@settings(max_examples=examples(300), deadline=None)
def test_what_moves_is_withheld_and_given_in_the_next_rebalance(seed: int) -> None:
    rng = random.Random(seed)
    members, counts, _ = random_group(rng)
    members = owning(members, ASSIGNOR.assign(members, counts), 1)
    changed = [member for member in members if rng.random() < 0.7]
    changed += [
        subscribed(f"new{number}", rng.randint(0, 2), rng.choice("abc"), "stuv") for number in range(2)
    ]
    aim = settled(changed, counts)
    first = ASSIGNOR.assign(changed, counts)
    for member in changed:
        others = {tp for other in changed if other is not member for tp in other.owned}
        assert set(first[member.member_id]) == set(aim[member.member_id]) - others
        # what stays is not interrupted
        assert set(member.owned) & set(aim[member.member_id]) <= set(first[member.member_id])
    second = ASSIGNOR.assign(owning(changed, first, 2), counts)
    assert second == aim
    assert ASSIGNOR.assign(owning(changed, second, 3), counts) == aim


def test_a_better_priority_takes_over_in_two_rebalances() -> None:
    standby = replace(subscribed("1", 1, "aaa"), owned=(TP("t", 0), TP("t", 1)), generation_id=1)
    members = [standby, subscribed("2", 0, "bbb")]
    first = ASSIGNOR.assign(members, {"t": 2})
    assert first == {"1": [], "2": []}
    assert ASSIGNOR.assign(owning(members, first, 2), {"t": 2}) == {"1": [], "2": [TP("t", 0), TP("t", 1)]}


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"\0",
        struct.pack(">hih", 0, 0, 4) + b"abc",
        struct.pack(">hih", 0, 0, -1),
        struct.pack(">hih", 0, -1, 0),
        struct.pack(">hih", -1, 0, 0),
        struct.pack(">hih", 0, 0, 1) + b"\xff",
    ],
)
def test_invalid_user_data_is_the_lowest_priority(data: bytes | None) -> None:
    broken = [MemberSubscription(name, ("t",), user_data=data) for name in ("b", "a")]
    lowest = subscribed("z", (1 << 31) - 1, "zzz")
    assert ASSIGNOR.assign([*broken, lowest], {"t": 1})["z"] == [TP("t", 0)]
    assert ASSIGNOR.assign(broken, {"t": 2}) == {"a": [TP("t", 0)], "b": [TP("t", 1)]}


def test_a_later_version_may_append_fields() -> None:
    data = struct.pack(">hih", 1, 0, 1) + b"a" + b"more"
    members = [subscribed("1", 0, "b"), MemberSubscription("2", ("t",), user_data=data)]
    assert ASSIGNOR.assign(members, {"t": 1})["2"] == [TP("t", 0)]


@given(st.binary(max_size=40), st.text(max_size=20), st.integers(0, (1 << 31) - 1))
@settings(max_examples=examples(200), deadline=None)
def test_foreign_user_data_is_no_error(data: bytes, name: str, priority: int) -> None:
    members = [MemberSubscription("1", ("t",), user_data=data), MemberSubscription("2", ("t",))]
    members.append(subscribed("3", priority, name.encode(errors="ignore").decode()))
    plan = ASSIGNOR.assign(members, {"t": 3})
    assert sorted(tp.partition for got in plan.values() for tp in got) == [0, 1, 2]


def test_a_static_member_keeps_its_place_among_equal_names() -> None:
    first = replace(subscribed("x"), group_instance_id="i1")
    second = replace(subscribed("a"), group_instance_id="i2")
    assert ASSIGNOR.assign([second, first], {"t": 2}) == {"x": [TP("t", 0)], "a": [TP("t", 1)]}


@pytest.mark.parametrize("priority", [-1, 1 << 31, True, "0", 1.0, None])
def test_an_invalid_priority(priority: object) -> None:
    with pytest.raises(ConfigError, match="priority"):
        FailoverAssignor(priority)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [b"a", "\ud800", "x" * 32_768, None])
def test_an_invalid_name(name: object) -> None:
    with pytest.raises(ConfigError, match="name"):
        FailoverAssignor(0, name)  # type: ignore[arg-type]


def test_it_is_a_cooperative_assignor() -> None:
    assert are_cooperative(resolve_assignors([FailoverAssignor(1, "ann")]))
    assert repr(FailoverAssignor(1, "ann")) == "<FailoverAssignor: priority 1, member 'ann'>"
