"""The sticky assignor: best balance, then fewest moves; claims to owned partitions; user data."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
from hypothesis import example, given, settings, strategies as st

from asyncgroup.group.assignors import Assignment, MemberSubscription, StickyAssignor, resolve_assignors
from asyncgroup.group.assignors.sticky import assign_sticky, find_owners
from asyncgroup.group.assignors.sticky_user_data import MemberData, decode_member_data, encode_member_data
from asyncgroup.model import TopicPartition as TP
from tests.group.assignors.java_plans import Case, make_case
from tests.group.assignors.stickiness import loads, moved, with_claims
from tests.peers import import_peer
from tests.profiles import examples, thinned

STICKY = StickyAssignor()
SEEDS = st.integers(0, 1 << 32)


def members_of(case: Case) -> list[MemberSubscription]:
    return [MemberSubscription(member, tuple(topics), instance) for member, instance, topics in case.members]


def equal(size: int, topics: Iterable[str] = ("t",), first: int = 0) -> list[MemberSubscription]:
    return [MemberSubscription(f"m{number:03}", tuple(topics)) for number in range(first, first + size)]


# -- optimality --------------------------------------------------------------------------------------------------------


def every_plan(
    members: Sequence[MemberSubscription], counts: Mapping[str, int]
) -> Iterator[dict[str, list[TP]]]:
    """Yield all ways to assign each partition to a subscribed member."""
    partitions = [TP(topic, number) for topic, count in counts.items() for number in range(count)]
    takers = {topic: [m.member_id for m in members if topic in m.topics] for topic in counts}
    wanted = [tp for tp in partitions if takers[tp.topic]]
    for choice in itertools.product(*(takers[tp.topic] for tp in wanted)):
        plan: dict[str, list[TP]] = {member.member_id: [] for member in members}
        for tp, member_id in zip(wanted, choice, strict=True):
            plan[member_id].append(tp)
        yield plan


def unevenness(plan: Mapping[str, Iterable[TP]]) -> int:
    return sum(load * load for load in loads(plan))


def small_group(rng: random.Random) -> tuple[list[MemberSubscription], dict[str, int]]:
    """Return a random group: at most 4 members and 6 partitions, unequal subscriptions, arbitrary claims."""
    topics = ["a", "b", "c", "d"][: rng.randint(1, 4)]
    counts = {topic: rng.randint(1, 2) for topic in topics}
    if len(topics) <= 3:
        counts["a"] += rng.randint(0, 2)
    ids = rng.sample(["p", "q", "r", "s"], rng.randint(1, 4))
    members = [MemberSubscription(m, tuple(rng.sample(topics, rng.randint(0, len(topics))))) for m in ids]
    everything = [TP(topic, number) for topic in topics for number in range(4)]
    claims = {
        m: MemberData(
            tuple(rng.sample(everything, rng.randint(0, len(everything) // 2))), rng.choice([3, 4, 4])
        )
        for m in ids
    }
    return with_claims(members, claims), counts


@given(SEEDS)
@settings(max_examples=examples(250), deadline=None)
def test_the_assignment_is_optimal(seed: int) -> None:
    """No assignment has a lower sum of squared loads, and none with the same sum has fewer moves: by trying all."""
    members, counts = small_group(random.Random(seed))
    plan = STICKY.assign(members, counts)
    assert sorted(map(sorted, every_owner(plan))) == sorted(
        map(sorted, every_owner(next(every_plan(members, counts))))
    )
    best = min((unevenness(other), moved(members, counts, other)) for other in every_plan(members, counts))
    assert (unevenness(plan), moved(members, counts, plan)) == best


def every_owner(plan: Mapping[str, Iterable[TP]]) -> list[list[str]]:
    """Return the partitions of a plan, each as often as it is assigned."""
    return [[str(tp)] for partitions in plan.values() for tp in partitions]


def test_a_chain_of_moves() -> None:
    """Java stops here: no member can give to one with a load lower by two. But x can give to y, and y to z."""
    members = [
        MemberSubscription(name, tuple(topics)) for name, topics in [("x", "ab"), ("y", "bc"), ("z", "cd")]
    ]
    had = {"x": [TP("a", 0), TP("b", 0), TP("b", 1)], "y": [TP("c", 0), TP("c", 1)], "z": [TP("d", 0)]}
    counts = {"a": 1, "b": 2, "c": 2, "d": 1}
    plan = STICKY.assign(with_claims(members, had), counts)
    assert loads(plan) == [2, 2, 2]
    assert moved(with_claims(members, had), counts, plan) == 2


# -- sequences ----------------------------------------------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=examples(100), deadline=None)
def test_nothing_moves_without_a_change(seed: int) -> None:
    case = make_case(random.Random(seed))
    plan = STICKY.assign(members_of(case), case.counts)
    assert STICKY.assign(with_claims(members_of(case), plan), case.counts) == plan


@given(SEEDS, st.randoms(use_true_random=False))
@settings(max_examples=examples(100), deadline=None)
def test_the_input_order_does_not_matter(seed: int, rng: random.Random) -> None:
    """sarama made up to 33 assignments for one input (reference: H4)."""
    members, counts = small_group(random.Random(seed))
    plan = STICKY.assign(members, counts)
    shuffled = [
        MemberSubscription(m.member_id, tuple(rng.sample(m.topics, len(m.topics))), None, m.user_data)
        for m in rng.sample(members, len(members))
    ]
    assert STICKY.assign(shuffled, dict(rng.sample(list(counts.items()), len(counts)))) == plan


@given(st.integers(2, 8), st.dictionaries(st.sampled_from("abc"), st.integers(1, 20), min_size=1))
def test_only_the_partitions_of_a_leaving_member_move(size: int, counts: dict[str, int]) -> None:
    members = equal(size, counts)
    before = STICKY.assign(members, counts)
    assert loads(before)[-1] - loads(before)[0] <= 1
    after = STICKY.assign(with_claims(members[1:], before), counts)
    for member in members[1:]:
        assert set(before[member.member_id]) <= set(after[member.member_id])
    assert loads(after)[-1] - loads(after)[0] <= 1


@given(
    st.integers(1, 8),
    st.integers(1, 4),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 20), min_size=1),
)
def test_partitions_only_move_to_joining_members(size: int, joiners: int, counts: dict[str, int]) -> None:
    members = equal(size, counts)
    before = STICKY.assign(members, counts)
    after = STICKY.assign([*with_claims(members, before), *equal(joiners, counts, first=size)], counts)
    for member in members:
        assert set(after[member.member_id]) <= set(before[member.member_id])
    assert loads(after)[-1] - loads(after)[0] <= 1


def test_added_partitions_go_to_the_least_loaded() -> None:
    members = equal(3)
    before = STICKY.assign(members, {"t": 4})
    after = STICKY.assign(with_claims(members, before), {"t": 7})
    assert all(set(before[m]) <= set(after[m]) for m in before)
    assert loads(after) == [2, 2, 3]


def test_a_deleted_or_unsubscribed_topic() -> None:
    members = equal(2, ("t", "u"))
    plan = STICKY.assign(members, {"t": 4, "u": 4})
    kept = STICKY.assign(with_claims(members, plan), {"t": 4})
    assert all(kept[m] == [tp for tp in plan[m] if tp.topic == "t"] for m in plan)
    only_t = [MemberSubscription("m000", ("t",)), *members[1:]]
    after = STICKY.assign(with_claims(only_t, plan), {"t": 4, "u": 4})
    assert loads(after) == [4, 4]
    assert {tp.topic for tp in after["m000"]} == {"t"}
    assert moved(with_claims(only_t, plan), {"t": 4, "u": 4}, after) == 2, (
        "m001 gives up its two partitions of t for two of u"
    )


def test_a_fresh_group_spreads_each_topic() -> None:
    plan = STICKY.assign(equal(3, ("a", "b")), {"a": 3, "b": 3})
    assert [{tp.topic for tp in partitions} for partitions in plan.values()] == [{"a", "b"}] * 3


def test_a_returning_static_member_gets_its_partitions_back() -> None:
    """It has no state and a new member id; the partitions of the others do not move."""
    desks = [MemberSubscription(f"m{n}", ("t",), f"desk-{n}") for n in range(3)]
    before = STICKY.assign(desks, {"t": 6})
    returned = MemberSubscription("zzz-new", ("t",), "desk-1")
    after = STICKY.assign([returned, *with_claims([desks[0], desks[2]], before)], {"t": 6})
    assert after["zzz-new"] == before["m1"]
    assert {m: after[m] for m in ("m0", "m2")} == {m: before[m] for m in ("m0", "m2")}


@pytest.mark.parametrize(("topics", "each"), [(20, 100), (2000, 1)])
@pytest.mark.parametrize("share", thinned([0.3, 1.0]))
def test_a_large_group_takes_little_time(topics: int, each: int, share: float) -> None:
    """500 members, 2,000 partitions, equal or random subscriptions: about 0.5 s, bounded by the test's limit."""
    rng = random.Random(20)
    names = [f"t{number}" for number in range(topics)]
    counts = dict.fromkeys(names, each)
    members = [MemberSubscription(f"m{n}", tuple(rng.sample(names, int(topics * share)))) for n in range(500)]
    before = STICKY.assign(members, counts)
    after = STICKY.assign(with_claims(members[5:], before), counts)
    assert loads(before) == [4] * 500
    assert loads(after) == [4] * 475 + [5] * 20
    assert moved(with_claims(members[5:], before), counts, after) == 0


# -- claims ------------------------------------------------------------------------------------------------------------

P0, P1 = TP("t", 0), TP("t", 1)


@pytest.mark.parametrize(
    ("claims", "owner"),
    [
        (((P0, 5), None, None), 0),
        (((P0, 5), (P0, 6), None), 1),
        (((P0, 6), (P0, 5), None), 0),
        (((P0, 5), (P0, 5), None), None),
        (((P0, 5), (P0, 5), (P0, 6)), 2),
        (((P0, 6), (P0, 5), (P0, 5)), 0),
        (((P0, 5), (P0, 5), (P0, 4)), None),  # an older claim stays invalid if newer ones conflict
        (((P0, -1), (P0, 0), None), 1),  # version 0 of the user data has no generation
        (((P0, 2), None, (P1, 2)), 0),
        (((TP("gone", 0), 5), None, None), None),
        (((TP("t", 9), 5), None, None), None),
        (((TP("t", -1), 5), None, None), None),
    ],
)
def test_owners_by_claims(claims: tuple[tuple[TP, int] | None, ...], owner: int | None) -> None:
    """`AbstractStickyAssignor`: the newest generation counts; two claims of the same generation cancel each other."""
    members = equal(3)
    made = [MemberData((claim[0],), claim[1]) if claim else MemberData() for claim in claims]
    assert find_owners(members, {"t": 2}, made).get(claims[0][0] if claims[0] else P0) == owner


def test_conflicting_claims_still_give_a_complete_assignment() -> None:
    members, everything = equal(3), tuple(TP("t", number) for number in range(6))
    plan = assign_sticky(members, {"t": 6}, [MemberData(everything, 4)] * 3)
    assert Counter(tp for partitions in plan.values() for tp in partitions) == Counter(everything)
    assert loads(plan) == [2, 2, 2]


# -- user data ----------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=5) | st.just("ü")
CLAIMS = st.builds(
    MemberData,
    st.sets(st.builds(TP, NAMES, st.integers(0, 2**31 - 1)), max_size=12).map(lambda tps: tuple(sorted(tps))),
    st.integers(-1, 2**31 - 1),
)


@given(CLAIMS)
def test_user_data_round_trip(claim: MemberData) -> None:
    assert decode_member_data(encode_member_data(claim)) == claim


@given(CLAIMS)
def test_version_0_has_no_generation(claim: MemberData) -> None:
    assert decode_member_data(encode_member_data(claim)[:-4]) == MemberData(claim.partitions, -1)


@given(st.binary(max_size=40))
@example(b"")
@example(b"\x00\x01\x00\x00\x00\x00")
@example(b"\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00")
@example(b"\x7f\xff\xff\xff" + b"\x00" * 40)
@example(b"\x00\x00\x00\x01\x00\x01t\x7f\xff\xff\xff")
def test_any_bytes_can_be_decoded(data: bytes) -> None:
    claim = decode_member_data(data)
    assert isinstance(claim.generation, int)


def test_invalid_user_data_means_no_partitions() -> None:
    claim = encode_member_data(MemberData((P0, P1), 3))
    assert decode_member_data(claim[:-7]) == MemberData()
    assert decode_member_data(None) == decode_member_data(b"") == MemberData()


def test_the_format_of_java() -> None:
    """`STICKY_ASSIGNOR_USER_DATA_V1`: topics, each with its partitions, then the generation."""
    data = encode_member_data(MemberData((TP("b", 3), TP("b", 0), TP("a", 7)), 9))
    assert data.hex() == (
        "00000002"  # two topics
        "000161"
        "00000001"
        "00000007"  # a: 7
        "000162"
        "00000002"
        "00000000"
        "00000003"  # b: 0, 3
        "00000009"
    )


def test_user_data_of_kafka_python() -> None:
    """Since version 3 it prepends the version, which Java does not; the rest is the same."""
    module = import_peer("kafka.coordinator.assignors.sticky.user_data")
    theirs = module.StickyAssignorUserData
    claim = MemberData((TP("a", 7), TP("b", 0), TP("b", 3)), 9)
    user_data = theirs([("a", [7]), ("b", [0, 3])], 9)
    assert user_data.encode(header=False) == encode_member_data(claim)
    assert user_data.encode() == b"\x00\x01" + encode_member_data(claim)
    assert decode_member_data(user_data.encode()) == claim
    assert decode_member_data(theirs([], 9).encode()) == MemberData((), 9)


def test_aiokafka_decodes_our_user_data() -> None:
    module = import_peer("aiokafka.coordinator.assignors.sticky.sticky_assignor")
    theirs = module.StickyAssignorUserDataV1
    data = encode_member_data(MemberData((TP("a", 7), TP("b", 0), TP("b", 3)), 9))
    user_data = theirs.decode(data)
    assert list(user_data.previous_assignment) == [("a", [7]), ("b", [0, 3])]
    assert user_data.generation == 9
    assert theirs([("a", [7]), ("b", [0, 3])], 9).encode() == data


# -- state --------------------------------------------------------------------------------------------------------------


def test_it_keeps_its_last_assignment_with_the_generation() -> None:
    """aiokafka does not pass the generation to its assignor, so its claims cannot be compared (#1176)."""
    assignor = StickyAssignor()
    assert assignor.subscription_user_data(["t"]) is None
    assert repr(assignor) == "<StickyAssignor: no assignment yet>"
    assignor.on_assignment(Assignment((P1, P0)), 7)
    assert decode_member_data(assignor.subscription_user_data(["t"])) == MemberData((P0, P1), 7)
    assignor.on_assignment(Assignment(), 8)
    assert decode_member_data(assignor.subscription_user_data(["t"])) == MemberData((), 8)
    assert repr(assignor) == "<StickyAssignor: owned 0>"


def test_each_group_has_its_own_state() -> None:
    """aiokafka keeps it on the class: members in one process overwrite each other's (#1175)."""
    given_out = StickyAssignor()
    (one,), (other,), (named,) = (resolve_assignors([wanted]) for wanted in (given_out, given_out, "sticky"))
    one.on_assignment(Assignment((P0,)), 3)  # type: ignore[attr-defined]
    for untouched in (given_out, other, named):
        assert untouched.subscription_user_data(["t"]) is None  # type: ignore[attr-defined]
