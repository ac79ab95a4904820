"""The planner of a reset: its rules as properties, one refused partition, what is cleared, targets, and CSV."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup import ConfigError, TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.admin import GroupOffset, PartitionReset, ResetPlan, ResetRefused, ShiftBy
from asyncgroup.admin.offsets_csv import offsets_to_csv, parse_offsets_csv
from asyncgroup.admin.reset_plan import ResetFacts, plan_offsets
from asyncgroup.admin.reset_target import ParsedTarget, TargetKind, checked_scope, parse_target
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.offsets.window_encoding import encode_window

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = 1_700_000_000_000


def clock() -> int:
    return NOW


# --- properties -------------------------------------------------------------------------------------------------------

offsets = st.integers(0, 40)
partitions = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3))


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[TopicPartition], ResetFacts]:
    """Partitions with logs, some of them with commits, and some with a record at the target's time."""
    names = draw(st.lists(partitions, min_size=1, max_size=5, unique=True))
    starts = {tp: draw(offsets) for tp in names}
    ends = {tp: starts[tp] + draw(offsets) for tp in names}
    committed = {tp: GroupOffset(draw(offsets)) for tp in names if draw(st.booleans())}
    at_time = {tp: draw(st.none() | st.integers(starts[tp], ends[tp])) for tp in names}
    return names, ResetFacts(committed, starts, ends, at_time)


@st.composite
def targets(draw: st.DrawFn, names: list[TopicPartition]) -> ParsedTarget:
    made: Any = draw(
        st.sampled_from(["earliest", "latest", "current", timedelta(hours=1)])
        | offsets
        | st.builds(ShiftBy, st.integers(-50, 50))
        | st.fixed_dictionaries(dict.fromkeys(names, offsets))
    )
    return parse_target(made, clock)


@given(st.data())
def test_a_plan_has_each_partition_once_or_refuses_all(data: st.DataObject) -> None:
    names, facts = data.draw(logs())
    target = data.draw(targets(names))
    lacks = {tp for tp in names if target.kind is TargetKind.SHIFT and tp not in facts.committed}
    if lacks:
        with pytest.raises(ResetRefused, match="no committed offset") as refused:
            plan_offsets("g", target, names, facts)
        assert set(refused.value.reasons) == lacks
        return
    plan = plan_offsets("g", target, [*names, names[0]], facts)
    assert list(plan.partitions) == sorted(names)
    for tp, each in plan.partitions.items():
        check(tp, each, target, facts)


def check(tp: TopicPartition, each: PartitionReset, target: ParsedTarget, facts: ResetFacts) -> None:
    """Compare with the rules, written down a second time as conditions of the result."""
    old = facts.committed.get(tp)
    assert each.old_offset == (old and old.offset)
    assert (each.log_start, each.log_end) == (facts.starts[tp], facts.ends[tp])
    is_inside = each.log_start <= each.new_offset <= each.log_end
    assert is_inside or (target.kind is TargetKind.CURRENT and each.new_offset == each.old_offset)
    wanted = {
        TargetKind.EARLIEST: each.log_start,
        TargetKind.LATEST: each.log_end,
        TargetKind.CURRENT: each.old_offset,
        TargetKind.OFFSET: target.number,
        TargetKind.SHIFT: (each.old_offset or 0) + target.number,
        TargetKind.TIME: facts.at_time.get(tp),
        TargetKind.EACH: target.offsets.get(tp),
    }[target.kind]
    assert each.wanted_offset == wanted
    if wanted is None:
        assert each.new_offset == each.log_end
        assert each.adjusted == ("no_record" if target.kind is TargetKind.TIME else "no_commit")
    elif wanted == each.new_offset:
        assert each.adjusted is None
    else:
        assert each.adjusted == ("log_start" if wanted < each.new_offset else "log_end")
        assert each.new_offset == (each.log_start if wanted < each.new_offset else each.log_end)


@given(logs(), st.data())
def test_a_partition_with_a_problem_refuses_the_plan(
    made: tuple[list[TopicPartition], ResetFacts], data: st.DataObject
) -> None:
    names, facts = made
    bad = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    unknown = ResetFacts(facts.committed, {}, {}, {}, dict.fromkeys(bad, "it has no leader"))
    with pytest.raises(ResetRefused) as refused:
        plan_offsets("g", data.draw(targets(names)), names, unknown)
    assert refused.value.reasons == dict.fromkeys(sorted(bad), "it has no leader")


@given(logs(), st.data())
def test_a_plan_survives_its_csv(made: tuple[list[TopicPartition], ResetFacts], data: st.DataObject) -> None:
    names, facts = made
    target = data.draw(targets(names).filter(lambda each: each.kind is not TargetKind.SHIFT))
    plan = plan_offsets("g", target, names, facts)
    assert parse_offsets_csv(plan.to_csv(), "g") == plan.offsets


# --- messages and what is cleared -----------------------------------------------------------------------------------------


def planned(target: Any, old: Mapping[TopicPartition, GroupOffset] = {}) -> ResetPlan:
    facts = ResetFacts(old, {ZERO: 3, ONE: 0}, {ZERO: 10, ONE: 0}, {ZERO: None, ONE: None})
    return plan_offsets("g", parse_target(target, clock), [ONE, ZERO], facts)


@pytest.mark.parametrize(
    ("target", "warnings"),
    [
        ("earliest", []),
        (0, ["orders-0: offset 0 is before the log's start, 3 is the new offset"]),
        (7, ["orders-1: offset 7 is after the log's end, 0 is the new offset"]),
        (
            timedelta(1),
            [
                f"orders-{n}: no record is that new, the log's end {end} is the new offset"
                for n, end in ((0, 10), (1, 0))
            ],
        ),
        (
            "current",
            [
                f"orders-{n}: the group has no committed offset, the log's end {end} is the new offset"
                for n, end in ((0, 10), (1, 0))
            ],
        ),
    ],
)
def test_warnings(target: Any, warnings: list[str]) -> None:
    assert list(planned(target).warnings) == warnings


def test_an_ack_window_that_is_cleared_is_named() -> None:
    window = encode_window(AckWindow(5, [(6, 8), (9, 10)]), 5, 1000).text
    metadata = encode_metadata(ZERO, 5, CommitMetadata("text", UUID(int=1), window))
    plan = planned("current", {ZERO: GroupOffset(5, metadata), ONE: GroupOffset(0, "text")})
    zero, one = plan.partitions[ZERO], plan.partitions[ONE]
    assert (zero.acked_above, zero.clears_window, zero.clears_metadata) == (3, True, True)
    assert (one.acked_above, one.clears_window, one.clears_metadata) == (None, False, True)
    assert plan.warnings == (
        "orders-0: the reset clears the ack window of offset 5, with 3 acknowledged records",
    )
    copied = planned("current", {ZERO: GroupOffset(6, metadata), ONE: GroupOffset(0)})
    assert not copied.partitions[ZERO].clears_window  # an envelope of another offset is text
    assert not copied.partitions[ONE].clears_metadata


def test_a_window_of_parallel_consumer_is_named() -> None:
    plan = planned("earliest", {ZERO: GroupOffset(5, "bAAEBgA=")})  # bits 1 and 2 of four
    assert plan.partitions[ZERO].acked_above == 2


def test_a_window_that_cannot_be_decoded_is_metadata() -> None:
    metadata = encode_metadata(ZERO, 5, CommitMetadata(window="~"))
    assert planned("earliest", {ZERO: GroupOffset(5, metadata)}).partitions[ZERO].clears_window is False


def test_a_refusal_names_some_partitions_and_the_number_of_the_others() -> None:
    names = [TopicPartition("a", n) for n in range(8)]
    facts = ResetFacts({}, {}, {}, problems=dict.fromkeys(names, "it has no leader"))
    with pytest.raises(ResetRefused) as caught:
        plan_offsets("g", parse_target("latest", clock), names, facts)
    assert str(caught.value) == (
        "the offsets of group 'g' are not reset: "
        + "; ".join(f"a-{n}: it has no leader" for n in range(5))
        + "; and 3 more"
    )
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.reasons, copy.group_id) == (str(caught.value), caught.value.reasons, "g")


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "kind", "number"),
    [
        (0, TargetKind.OFFSET, 0),
        (ShiftBy(-3), TargetKind.SHIFT, -3),
        (timedelta(hours=1), TargetKind.TIME, NOW - 3_600_000),
        (timedelta(0), TargetKind.TIME, NOW),
        (timedelta(days=40_000), TargetKind.TIME, 0),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), TargetKind.TIME, NOW),
        (
            datetime(2023, 11, 14, 23, 13, 20, 1, tzinfo=timezone(timedelta(hours=1))),
            TargetKind.TIME,
            NOW + 1,
        ),
    ],
)
def test_targets(target: Any, kind: TargetKind, number: int) -> None:
    parsed = parse_target(target, clock)
    assert (parsed.kind, parsed.number) == (kind, number)


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (datetime(2026, 1, 1), "time zone"),  # noqa: DTZ001
        (timedelta(seconds=-1), "not negative"),
        (-1, "offset"),
        (1 << 63, "64 bits"),
        (True, "earliest"),
        (1.5, "earliest"),
        ("now", "earliest"),
        (None, "earliest"),
        ({ZERO: -1}, "offset"),
        ({"orders": 1}, "partition"),
        ({("a b", 0): 1}, "topic"),
    ],
)
def test_bad_targets(target: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_target(target, clock)


@pytest.mark.parametrize("number", [True, 1.5, "1", 1 << 63])
def test_a_shift_is_a_whole_number(number: Any) -> None:
    with pytest.raises(ConfigError, match="ShiftBy"):
        ShiftBy(number)


def test_scopes() -> None:
    latest, each = parse_target("latest", clock), parse_target({("orders", 1): 5, ZERO: 3}, clock)
    assert checked_scope(latest, None, None) == (None, None)
    assert checked_scope(latest, ["b", "a", "b"], [ZERO, ("orders", 0)]) == (("b", "a"), (ZERO,))
    assert checked_scope(each, None, None) == (None, (ZERO, ONE))
    for topics, chosen, what in (
        (b"a", None, "topics of type bytes"),
        (["a b"], None, "topic"),
        (None, ["a"], "partition"),
    ):
        with pytest.raises(ConfigError, match=what):
            checked_scope(latest, topics, chosen)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="none beside"):
        checked_scope(each, ["orders"], None)


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_rows_of_one_group_and_of_several() -> None:
    assert parse_offsets_csv("orders,0,5\norders,1,7\n", "g") == {ZERO: 5, ONE: 7}
    assert parse_offsets_csv("\ufefforders,0,5\n\n", "g") == {ZERO: 5}
    assert parse_offsets_csv('"a\u2028b",orders,0,5\n', "a\u2028b") == {ZERO: 5}
    assert parse_offsets_csv('g,orders,0,5\r\nh,orders,0,6\n"g",orders,1,7', "g") == {ZERO: 5, ONE: 7}
    assert offsets_to_csv({"g": {ONE: 7, ZERO: 5}}) == "orders,0,5\norders,1,7\n"
    assert offsets_to_csv({"g": {ZERO: 5}, 'h "x", y': {ONE: 7}}) == 'g,orders,0,5\n"h ""x"", y",orders,1,7\n'


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no rows|0 rows"),
        ("h,orders,0,5\n", "group 'g'"),
        ("orders,0\n", "row 1"),
        ("orders,0,5\ng,orders,0,5\n", "row 2"),
        ("orders,x,5\n", "row 1"),
        ("orders,0,-5\n", "row 1"),
        ("orders,0,5\norders,1,9223372036854775808\n", "^row 2 of the CSV: offset=.*64 bits"),
        ("orders,2147483648,5\n", "row 1"),
        ("orders,0,5\na b,0,5\n", "^row 2 of the CSV: topic='a b'"),
        ("orders,0,5\norders,0,6\n", "row 2.*one offset for orders-0"),
        ('"orders,0,5\n', "CSV"),
    ],
)
def test_bad_rows(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_offsets_csv(text, "g")
