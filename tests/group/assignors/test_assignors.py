"""Assignors: same assignments as Java, every partition once, balance, independence of the input order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import accumulate

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.config.consumer import ASSIGNOR_NAMES
from asyncgroup.errors import ConfigError
from asyncgroup.group.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    resolve_assignors,
)
from asyncgroup.group.assignors.sticky_user_data import decode_member_data
from asyncgroup.model import TopicPartition
from tests.group.assignors.java_plans import Case, JavaOracle, Plans, make_case, next_case, stored
from tests.group.assignors.java_program import jars_of_clients
from tests.group.assignors.stickiness import all_of, loads, moved
from tests.profiles import examples

PLAIN: list[RangeAssignor | RoundRobinAssignor] = [RangeAssignor(), RoundRobinAssignor()]
STICKY = StickyAssignor()
COOPERATIVE = CooperativeStickyAssignor()
BOTH = pytest.mark.parametrize("assignor", PLAIN, ids=lambda assignor: assignor.name)
ALL = pytest.mark.parametrize("assignor", [*PLAIN, STICKY, COOPERATIVE], ids=lambda assignor: assignor.name)


def check_plain(case: Case, plans: Plans) -> None:
    """Check that range and roundrobin make the same assignments as Java."""
    for assignor in PLAIN:
        if assignor.name in plans:
            plan = assignor.assign(case.subscriptions(), case.counts)
            assert {member: sorted(tps) for member, tps in plan.items()} == plans[assignor.name], case


def check_sticky(case: Case, plans: Plans) -> int:
    """Check that our sticky assignment is at least as balanced as Java's, with no more moves for the same loads.

    Java's sticky assignment is not unique. Returns 1 if ours is more balanced, else 0.
    """
    members, theirs = case.subscriptions(), plans["sticky"]
    ours = STICKY.assign(members, case.counts)
    assert all_of(ours) == all_of(theirs), case
    # for each n, the n most loaded members have no more than Java's n most loaded: better by any measure of balance
    assert all(a <= b for a, b in zip(heaviest(ours), heaviest(theirs), strict=True)), case
    assert loads(ours)[-1] - loads(ours)[0] <= loads(theirs)[-1] - loads(theirs)[0], case
    if loads(ours) != loads(theirs):
        return 1
    assert moved(members, case.counts, ours) <= moved(members, case.counts, theirs), case
    return 0


def heaviest(plan: Mapping[str, Iterable[TopicPartition]]) -> list[int]:
    """Return the load of the most loaded member, of the two most loaded ones together, and so on."""
    return list(accumulate(reversed(loads(plan))))


# -- Java ---------------------------------------------------------------------------------------------------------------


def test_stored_assignments_of_java() -> None:
    cases = stored()
    assert len(cases) >= 100
    for case, plans in cases:
        check_plain(case, plans)
        check_sticky(case, plans)
    assert sum(bool(case.claims) for case, _ in cases) >= 50


@pytest.fixture(scope="module")
def java() -> Iterable[JavaOracle]:
    """Kafka's assignors, if Java and Kafka's jars are available."""
    with JavaOracle(jars_of_clients()) as oracle:
        yield oracle


def test_fresh_assignments_of_java(java: JavaOracle) -> None:
    """The same comparison with other random groups."""
    rng, sticky, count = random.Random(20130101), 0, examples(400)
    for _ in range(count):
        case = make_case(rng)
        plans = java.plans(case)
        check_plain(case, plans)
        if "sticky" in plans:
            sticky += 1
            check_sticky(case, plans)
    assert sticky > count // 2


@pytest.mark.parametrize("history", ["java", "ours"])
def test_sticky_sequences_against_java(java: JavaOracle, history: str) -> None:
    """Sequences of events: at each step both assign from the same previous assignment, Java's or ours."""
    rng = random.Random(1789)
    compared = more_even = 0
    for _ in range(60):
        case = make_case(rng)
        for generation in range(1, 7):
            plans = java.plans(case)
            plan = STICKY.assign(case.subscriptions(), case.counts)
            if "sticky" in plans:
                compared += 1
                more_even += check_sticky(case, plans)
                plan = plans["sticky"] if history == "java" else plan
            case = next_case(rng, case, plan, generation)
    assert compared > 250
    assert more_even < compared / 20, "Java's assignments are less balanced than expected"


def test_user_data_of_java_is_decoded(java: JavaOracle) -> None:
    """The reverse, Java decoding ours, is covered by the sequences."""
    rng, compared = random.Random(4), 0
    for _ in range(20):
        case = make_case(rng)
        plan = java.plans(case).get("sticky", {})
        for member, partitions in plan.items():
            claim = decode_member_data(java.user_data[member])
            assert (sorted(claim.partitions), claim.generation) == (partitions, 7)
            compared += 1
    assert compared >= 20


# -- properties ---------------------------------------------------------------------------------------------------------

CASES = st.integers(0, 1 << 32).map(lambda seed: make_case(random.Random(seed)))


@ALL
@given(case=CASES)
@settings(max_examples=examples(150), deadline=None)
def test_every_partition_of_a_subscribed_topic_is_assigned_once(assignor: Assignor, case: Case) -> None:
    members = case.subscriptions()
    plan = assignor.assign(members, case.counts)
    assert set(plan) == {member.member_id for member in members}, "including members without partitions"
    given_out = [tp for partitions in plan.values() for tp in partitions]
    wanted = {topic for member in members for topic in member.topics}
    expected = {TopicPartition(t, p) for t, count in case.counts.items() if t in wanted for p in range(count)}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == expected
    for member in members:
        assert {tp.topic for tp in plan[member.member_id]} <= set(member.topics)


@ALL
@given(case=CASES, seed=st.integers())
@settings(max_examples=examples(100), deadline=None)
def test_the_assignment_does_not_depend_on_the_input_order(assignor: Assignor, case: Case, seed: int) -> None:
    """sarama made up to 33 assignments for one input (reference: H4)."""
    members, rng = case.subscriptions(), random.Random(seed)
    plan = assignor.assign(members, case.counts)
    shuffled = [
        MemberSubscription(m.member_id, tuple(rng.sample(m.topics, len(m.topics))), m.group_instance_id)
        for m in rng.sample(members, len(members))
    ]
    counts = dict(rng.sample(list(case.counts.items()), len(case.counts)))
    assert assignor.assign(shuffled, counts) == plan


@given(case=CASES)
@settings(max_examples=examples(100), deadline=None)
def test_range_assigns_consecutive_partitions_of_nearly_equal_size(case: Case) -> None:
    members = case.subscriptions()
    plan = RangeAssignor().assign(members, case.counts)
    for topic in case.counts:
        ranges = [[tp.partition for tp in plan[m.member_id] if tp.topic == topic] for m in members]
        sizes = [len(each) for each, m in zip(ranges, members, strict=True) if topic in m.topics]
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        for each in ranges:
            assert each == list(range(each[0], each[0] + len(each))) if each else True


@given(
    count=st.integers(1, 30), topics=st.sets(st.sampled_from("abcdef"), min_size=2), size=st.integers(1, 9)
)
def test_range_co_partitions_topics_of_equal_counts(count: int, topics: set[str], size: int) -> None:
    """Partitions with the same number go to the same member, so that the topics can be joined."""
    members = [MemberSubscription(f"m{number}", tuple(topics)) for number in range(size)]
    plan = RangeAssignor().assign(members, dict.fromkeys(topics, count))
    assert len(plan) == size
    for partitions in plan.values():
        numbers = [{tp.partition for tp in partitions if tp.topic == topic} for topic in topics]
        assert all(each == numbers[0] for each in numbers)


@given(counts=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 30)), size=st.integers(1, 9))
def test_roundrobin_balances_equal_subscriptions(counts: Mapping[str, int], size: int) -> None:
    members = [MemberSubscription(f"m{number}", tuple(counts)) for number in range(size)]
    plan = RoundRobinAssignor().assign(members, counts)
    sizes = [len(partitions) for partitions in plan.values()]
    assert max(sizes) - min(sizes) <= 1


@ALL
def test_numeric_order(assignor: Assignor) -> None:
    """sarama's roundrobin sorts 10 and 11 before 2 (reference: H5)."""
    members = [MemberSubscription("a", ("t",)), MemberSubscription("b", ("t",))]
    plan = assignor.assign(members, {"t": 12})
    for partitions in plan.values():
        assert [tp.partition for tp in partitions] == sorted(tp.partition for tp in partitions)  # type: ignore[attr-defined]


def test_range_of_four_partitions_over_three_members() -> None:
    members = [MemberSubscription(name, ("t",)) for name in "abc"]
    plan = RangeAssignor().assign(members, {"t": 4})
    assert {name: [tp.partition for tp in tps] for name, tps in plan.items()} == {
        "a": [0, 1],
        "b": [2],
        "c": [3],
    }


@BOTH
def test_a_static_member_keeps_its_partitions_across_restarts(assignor: Assignor) -> None:
    """Static members are sorted first, by instance id (reference: H14), not by their member id, which changes."""
    others = [MemberSubscription("a-dynamic", ("t",)), MemberSubscription("zz", ("t",), "instance-1")]
    before = assignor.assign([*others, MemberSubscription("aaa-old", ("t",), "instance-2")], {"t": 7})
    after = assignor.assign([*others, MemberSubscription("zzz-new", ("t",), "instance-2")], {"t": 7})
    assert before["aaa-old"] == after["zzz-new"]
    assert list(before["zz"])[0] == TopicPartition("t", 0)  # noqa: RUF015  an Iterable by the protocol


def test_the_order_of_members() -> None:
    members = [
        MemberSubscription("b", ()),
        MemberSubscription("a", (), "x2"),
        MemberSubscription("a", ()),
        MemberSubscription("z", (), "x1"),
    ]
    assert [(m.group_instance_id, m.member_id) for m in sorted(members, key=lambda m: m.order)] == [
        ("x1", "z"),
        ("x2", "a"),
        (None, "a"),
        (None, "b"),
    ]


@ALL
def test_nothing_to_assign(assignor: Assignor) -> None:
    assert assignor.assign([MemberSubscription("a", ("t",))], {}) == {"a": []}
    assert assignor.assign([MemberSubscription("a", ())], {"t": 3}) == {"a": []}
    assert assignor.assign([], {"t": 3}) == {}


@ALL
def test_a_large_group_needs_no_linear_searches(assignor: Assignor) -> None:
    """The leader assigns on its event loop: a pattern over a thousand topics must not block it."""
    topics = tuple(f"t{number}" for number in range(1000))
    members = [MemberSubscription(f"m{number}", topics) for number in range(100)]
    seen = 0

    class Counted(tuple):
        __slots__ = ()

        def __contains__(self, topic: object) -> bool:
            nonlocal seen
            seen += 1
            return super().__contains__(topic)

    counted = [MemberSubscription(m.member_id, Counted(m.topics)) for m in members]
    plan = assignor.assign(counted, dict.fromkeys(topics, 4))
    assert sum(len(list(partitions)) for partitions in plan.values()) == 4000
    assert seen == 0, "`in` searches the tuple of topics from its start each time"


# -- resolving ----------------------------------------------------------------------------------------------------------


class Custom:
    name = "own"

    def assign(self, members, counts):
        return {}


def test_assignors_by_name_and_as_objects() -> None:
    own = Custom()
    found = resolve_assignors(("roundrobin", own, "range"))
    assert [assignor.name for assignor in found] == ["roundrobin", "own", "range"]
    assert found[1] is own
    assert isinstance(own, Assignor)


@pytest.mark.parametrize("wrong", ["cooperative", 7, None, RangeAssignor, object()])
def test_other_values_are_rejected(wrong: object) -> None:
    with pytest.raises(
        ConfigError, match=r"assignors=.*range, roundrobin, sticky, cooperative-sticky, or an object"
    ):
        resolve_assignors(["range", wrong])


def test_the_names_are_those_of_the_configuration() -> None:
    assert [assignor.name for assignor in resolve_assignors(ASSIGNOR_NAMES)] == list(ASSIGNOR_NAMES)


def test_a_repeated_name_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"assignors='range'.*each name once"):
        resolve_assignors(["range", RangeAssignor()])


def test_values_of_assignors_keep_sequences_as_tuples() -> None:
    places = [TopicPartition("t", 1), TopicPartition("t", 0)]
    assert Assignment(places) == Assignment(tuple(places))
    assert hash(Assignment(places)) == hash(Assignment(tuple(places)))
    member = MemberSubscription("a", ["t"], owned=places)
    assert member == MemberSubscription("a", ("t",), owned=tuple(places))
