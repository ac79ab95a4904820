"""Assignments by rack (KIP-881): beside Java's, and the properties of each assignor."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from asyncgroup.group.assignors import (
    CooperativeStickyAssignor,
    MemberSubscription,
    RackAware,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from asyncgroup.group.assignors.cooperative import claimed_partitions
from asyncgroup.group.assignors.sticky import assign_sticky, find_owners
from asyncgroup.model import TopicPartition
from tests.group.assignors.java_cooperative import claimed_case, encode_subscription, is_sound, owning
from tests.group.assignors.java_program import JavaProgram, jars_of_clients, partitions_in
from tests.group.assignors.stickiness import all_of, loads
from tests.profiles import examples

Plan = dict[str, list[TopicPartition]]


class RackCase(NamedTuple):
    """A group whose members have racks, and the replicas of its topics."""

    members: list[MemberSubscription]
    counts: dict[str, int]
    replicas: dict[TopicPartition, list[str]]
    """The racks of the replicas; `-` for a broker without one."""

    @property
    def racks(self) -> dict[TopicPartition, frozenset[str]]:
        """As an assignor receives them."""
        return {tp: frozenset(racks) - {"-"} for tp, racks in self.replicas.items()}

    def lines(self) -> list[str]:
        """Return the case in the format of the Java program."""
        return [
            *(
                f"partition {tp.topic} {tp.partition} {','.join(racks)}"
                for tp, racks in self.replicas.items()
            ),
            *(
                f"member {member.member_id} {member.group_instance_id or '-'} {encode_subscription(member, 3).hex()}"
                for member in self.members
            ),
        ]


def rack_case(rng: random.Random) -> RackCase:
    """Return a random group: with one to four racks, some without brokers or members, replicas anywhere or in order."""
    members, counts, _ = claimed_case(rng)
    racks = [f"rack-{number}" for number in range(rng.randint(1, 4))]
    brokers = [rng.choice([*racks, "-"] if rng.random() < 0.2 else racks) for _ in range(rng.randint(1, 6))]
    factor, in_order = rng.randint(1, min(3, len(brokers))), rng.random() < 0.5
    replicas = {}
    for topic, count in counts.items():
        for number in range(count):
            if in_order:
                chosen = [brokers[(number + offset) % len(brokers)] for offset in range(factor)]
            else:
                chosen = rng.sample(brokers, factor)
            replicas[TopicPartition(topic, number)] = chosen
    without = rng.choice([0.0, 0.0, 0.3, 1.0])
    members = [
        replace(
            member,
            rack_id=None
            if rng.random() < without
            else rng.choice([*racks, "elsewhere"][: len(racks) + (rng.random() < 0.1)]),
        )
        for member in members
    ]
    return RackCase(members, counts, replicas)


def mismatches(case: RackCase, plan: Mapping[str, Sequence[TopicPartition]]) -> int:
    """Return how many partitions have no replica in the rack of their member; 0 if no broker has a rack."""
    if not any(case.racks.values()):
        return 0
    rack_of = {member.member_id: member.rack_id for member in case.members}
    return sum(
        rack_of[member] is not None and rack_of[member] not in case.racks[tp]
        for member, partitions in plan.items()
        for tp in partitions
    )


def moves(case: RackCase, plan: Mapping[str, Sequence[TopicPartition]]) -> int:
    """Return how many partitions move away from members that own them."""
    owners = find_owners(case.members, case.counts, claimed_partitions(case.members))
    takers = {tp: member for member, partitions in plan.items() for tp in partitions}
    return sum(takers[tp] != case.members[owner].member_id for tp, owner in owners.items())


def sticky_plan(case: RackCase) -> Plan:
    """Return our assignment of both sticky assignors, before partitions are withheld."""
    ordered = sorted(case.members, key=lambda member: member.order)
    return assign_sticky(ordered, case.counts, claimed_partitions(ordered), case.racks)


# --- beside Java --------------------------------------------------------------------------------------------------------


class RackOracle:
    """Kafka's assignors in a Java process that runs for the `with` block."""

    def __init__(self, program: JavaProgram) -> None:
        self._program = program

    def plans(self, case: RackCase) -> dict[str, Plan]:
        """Return the assignment by each assignor; one that fails has none."""
        found: dict[str, Plan] = {}
        for line in self._program.ask(case.lines()):
            name, member, *words = line.split()
            if name != "failed":
                found.setdefault(name, {})[member] = partitions_in(words)
        return found


@pytest.fixture(scope="module")
def java() -> Iterator[RackOracle]:
    """Kafka's assignors, if Java and Kafka's jars are available."""
    with JavaProgram("racks", jars_of_clients()) as program:
        yield RackOracle(program)


def test_ranges_are_those_of_java(java: RackOracle) -> None:
    rng, differing, drawn = random.Random(881), 0, examples(600)
    for _ in range(drawn):
        case = rack_case(rng)
        plan = RangeAssignor().assign_by_rack(case.members, case.counts, case.racks)
        assert plan == java.plans(case)["range"], case
        plain = RangeAssignor().assign(case.members, case.counts)
        differing += plan != {member: sorted(partitions) for member, partitions in plain.items()}
    assert differing > drawn / 6


def test_sticky_is_never_worse_than_java(java: RackOracle) -> None:
    """Never less even; with equal loads never with more partitions in other racks; with equally many, never more moves."""
    rng, compared, useful = random.Random(54), 0, 0
    while compared < examples(400):
        case = rack_case(rng)
        theirs = java.plans(case).get("whole")
        if theirs is None or not is_sound(case.members, case.counts, theirs):
            continue  # Java's algorithm for unequal subscriptions fails for some groups
        compared += 1
        ours = sticky_plan(case)
        assert all_of(ours) == all_of(theirs), case
        heaviest, theirs_heaviest = loads(ours)[::-1], loads(theirs)[::-1]
        for number in range(len(heaviest)):
            assert sum(heaviest[:number]) <= sum(theirs_heaviest[:number]), case
        useful += mismatches(case, ours) < mismatches(case, sticky_plan(case._replace(replicas={})))
        if loads(ours) != loads(theirs):
            continue
        assert mismatches(case, ours) <= mismatches(case, theirs), case
        if mismatches(case, ours) == mismatches(case, theirs):
            assert moves(case, ours) <= moves(case, theirs), case
    assert useful > compared / 8


# --- properties ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(examples(200)))
def test_loads_are_as_even_as_without_racks_and_the_next_assignment_is_the_same(seed: int) -> None:
    case = rack_case(random.Random(seed))
    plain = sticky_plan(case._replace(replicas={}))
    plan = sticky_plan(case)
    assert all_of(plan) == all_of(plain)
    assert loads(plan) == loads(plain)
    assert mismatches(case, plan) <= mismatches(case, plain)
    members = [replace(member, user_data=None) for member in owning(case.members, plan, 9)]
    assert sticky_plan(case._replace(members=members)) == plan


@pytest.mark.parametrize("seed", range(examples(200)))
def test_the_cooperative_assignor_reaches_the_same_in_two_rebalances(seed: int) -> None:
    """From an assignment without racks: what moves has no owner in between."""
    case = rack_case(random.Random(seed))
    plain = sticky_plan(case._replace(replicas={}))
    before = case._replace(members=owning(case.members, plain, 9))
    assignor = CooperativeStickyAssignor()
    first = assignor.assign_by_rack(before.members, case.counts, case.racks)
    for member in case.members:
        others = {tp for other, partitions in plain.items() if other != member.member_id for tp in partitions}
        assert not others.intersection(first[member.member_id])
    second = assignor.assign_by_rack(owning(case.members, first, 10), case.counts, case.racks)
    assert all_of(second) == all_of(plain)
    assert loads(second) == loads(plain)
    assert mismatches(case, second) == mismatches(case, sticky_plan(before))


def test_racks_that_make_no_difference() -> None:
    """All partitions have replicas in the racks of all members, no member has the rack of one, or no broker has a rack."""
    members = [MemberSubscription(f"m{n}", ("t",), rack_id=f"rack-{n}") for n in range(2)]
    partitions = [TopicPartition("t", number) for number in range(4)]
    for racks in (["rack-0", "rack-1"], ["elsewhere"], ["-"]):
        case = RackCase(members, {"t": 4}, dict.fromkeys(partitions, racks))
        for assignor in (RangeAssignor(), StickyAssignor(), CooperativeStickyAssignor()):
            assert assignor.assign_by_rack(members, case.counts, case.racks) == assignor.assign(
                members, case.counts
            )


def test_which_assignors_know_racks() -> None:
    aware = [
        assignor.name
        for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
        if isinstance(assignor, RackAware)
    ]
    assert aware == ["range", "sticky", "cooperative-sticky"]


def test_each_member_reads_in_its_rack_if_it_can() -> None:
    """Three racks, and partitions with two replicas."""
    members = [MemberSubscription(f"m{n}", ("t",), rack_id=f"rack-{n // 2}") for n in range(6)]
    replicas = {
        TopicPartition("t", number): [f"rack-{number % 3}", f"rack-{(number + 1) % 3}"]
        for number in range(24)
    }
    case = RackCase(members, {"t": 24}, replicas)
    assignors = (RangeAssignor(), StickyAssignor(), CooperativeStickyAssignor())
    plans = [assignor.assign_by_rack(case.members, case.counts, case.racks) for assignor in assignors]
    assert [loads(plan) for plan in plans] == [[4] * 6] * 3
    assert [mismatches(case, plan) for plan in plans] == [2, 0, 0], "the ranges are Java's"
    plain = [assignor.assign(case.members, case.counts) for assignor in assignors]
    assert all(mismatches(case, plan) > 4 for plan in plain)
