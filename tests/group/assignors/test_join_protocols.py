"""User data of the assignors, and the check of the leader's assignment."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence

import pytest

from asyncgroup.errors import AssignmentError
from asyncgroup.group.assignors import (
    Assignment,
    GroupAssignment,
    MemberSubscription,
    ProvidesUserData,
    RangeAssignor,
    SeesAssignment,
    StickyAssignor,
    resolve_assignors,
)
from asyncgroup.group.assignors.protocol import check_assignment
from asyncgroup.group.classic.join_requests import JoinProtocols
from asyncgroup.model import TopicPartition as TP

MEMBERS = [MemberSubscription("a", ("t",)), MemberSubscription("b", ("t", "u"))]
COUNTS = {"t": 3, "u": 1}


class Own(RangeAssignor):
    """Returns or raises the given user data, and records its calls."""

    name = "own"

    def __init__(self, says: bytes | BaseException | None = None) -> None:
        self.says = says
        self.asked: list[list[str]] = []
        self.heard: list[tuple[Assignment, int]] = []

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        self.asked.append(list(topics))
        if isinstance(self.says, BaseException):
            raise self.says
        return self.says

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        self.heard.append((assignment, generation_id))
        if isinstance(self.says, BaseException):
            raise self.says


def test_optional_protocols_of_assignors() -> None:
    assert isinstance(Own(), ProvidesUserData)
    assert isinstance(Own(), SeesAssignment)
    assert isinstance(StickyAssignor(), ProvidesUserData)
    assert not isinstance(RangeAssignor(), ProvidesUserData)


class OwnCooperative(RangeAssignor):
    """Says whether it is cooperative, as an assignor by a user may."""

    name = "own-cooperative"

    def __init__(self, *, is_cooperative: bool = True) -> None:
        self.is_cooperative = is_cooperative


@pytest.mark.parametrize(
    ("assignors", "expected"),
    [
        (["range"], False),
        (["roundrobin"], False),
        (["sticky"], False),
        (["cooperative-sticky"], True),
        (["cooperative-sticky", "range"], False),
        (["range", "cooperative-sticky"], False),
        (["cooperative-sticky", "sticky"], False),
        (["cooperative-sticky", Own()], False),
        (["cooperative-sticky", OwnCooperative()], True),
        ([OwnCooperative()], True),
        (["cooperative-sticky", OwnCooperative(is_cooperative=False)], False),
    ],
)
def test_a_list_is_cooperative_if_all_its_assignors_are(assignors: list[object], expected: bool) -> None:
    """The constructor of Java's `ConsumerCoordinator`: the highest protocol that all assignors support.

    All of them support the eager one, so that any list has a protocol.
    """
    assert JoinProtocols("g", resolve_assignors(assignors), None).are_cooperative is expected


# -- sending ------------------------------------------------------------------------------------------------------------


def test_each_assignor_sends_its_own_user_data() -> None:
    own = Own(b"my load")
    protocols = JoinProtocols("g", [own, RangeAssignor(), StickyAssignor()], b"configured")
    user_data = protocols.subscription_user_data(["t", "u"])
    assert user_data == {"own": b"my load", "range": b"configured", "sticky": None}
    assert list(user_data) == protocols.names == ["own", "range", "sticky"], "in order of preference"
    assert own.asked == [["t", "u"]]


@pytest.mark.parametrize("says", [None, b""])
def test_empty_user_data_is_sent_unchanged(says: bytes | None) -> None:
    assert JoinProtocols("g", [Own(says)], b"configured").subscription_user_data(["t"]) == {"own": says}


@pytest.mark.parametrize(
    "error", [LookupError("no load today"), asyncio.CancelledError()], ids=["error", "cancelled"]
)
def test_subscription_user_data_that_raises(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """The configured user data is sent, even if an assignment came with other data.

    A CancelledError of the callback would end the member's task as if its program had cancelled it.
    """
    own = Own(error)
    protocols = JoinProtocols("g", [own], b"configured")
    protocols.on_assignment("own", Assignment((), b"from the leader"), 1)
    caplog.clear()
    assert protocols.subscription_user_data(["t"]) == {"own": b"configured"}
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "group g: subscription_user_data of assignor own failed" in record.getMessage()
    assert record.exc_info is not None


# -- receiving ------------------------------------------------------------------------------------------------------------


def test_user_data_is_kept_until_an_assignment_without_it() -> None:
    protocols = JoinProtocols("g", [RangeAssignor()], b"configured")

    def next_join() -> bytes | None:
        return protocols.subscription_user_data(["t"])["range"]

    assert next_join() == b"configured"
    protocols.on_assignment("range", Assignment((), b"one"), 1)
    assert next_join() == next_join() == b"one"
    protocols.on_assignment("range", Assignment((), b"two"), 2)
    assert next_join() == b"two"
    protocols.on_assignment("range", Assignment(), 3)
    assert next_join() == b"configured"
    protocols.on_assignment("range", Assignment((), b""), 4)
    assert next_join() == b"configured", "leaders of kafka-python and aiokafka send empty bytes"


def test_the_chosen_assignor_gets_the_assignment() -> None:
    """With the generation, which aiokafka does not pass (#1176)."""
    own, other = Own(), Own()
    other.name = "other"
    protocols = JoinProtocols("g", [own, other], None)
    protocols.on_assignment("other", Assignment((TP("t", 1),), b"x"), 12)
    assert other.heard == [(Assignment((TP("t", 1),), b"x"), 12)]
    assert own.heard == []
    protocols.on_assignment("nobody's", Assignment(), 13)


def test_on_assignment_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    protocols = JoinProtocols("g", [Own(LookupError("deaf"))], None)
    protocols.on_assignment("own", Assignment(), 1)
    assert "group g: on_assignment of assignor own failed; the assignment is used all the same" in caplog.text


# -- assigning ----------------------------------------------------------------------------------------------------------


def test_an_assignment_is_completed_and_sorted() -> None:
    given: GroupAssignment = {"b": Assignment((TP("u", 0), TP("t", 2), TP("t", 2)), b"be quick")}
    assert check_assignment("own", given, MEMBERS, COUNTS) == {
        "a": Assignment(),
        "b": Assignment((TP("t", 2), TP("u", 0)), b"be quick"),
    }


def test_a_partition_assigned_to_several_members() -> None:
    everybody: GroupAssignment = {"a": [TP("t", 0)], "b": iter([TP("t", 0)])}
    plan = check_assignment("own", everybody, MEMBERS, COUNTS)
    assert plan["a"] == plan["b"] == Assignment((TP("t", 0),))


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ({"nobody": [TP("t", 0)]}, ["'nobody' is not a member"]),
        ({"a": [TP("v", 0), TP("v", 1)]}, ["topic 'v'"]),
        ({"a": [TP("t", 3)]}, ["t-3 does not exist: the topic has 3 partitions"]),
        ({"a": [TP("t", -1)], "b": [TP("u", 1)]}, ["t--1", "u-1 does not exist: the topic has 1 partitions"]),
        ({"nobody": [TP("v", 0)], "a": [TP("t", 9)]}, ["'nobody'", "'v'", "t-9"]),
    ],
)
def test_unknown_members_topics_and_partitions(plan: GroupAssignment, named: list[str]) -> None:
    with pytest.raises(AssignmentError, match="assignor 'own' made an invalid assignment: ") as caught:
        check_assignment("own", plan, MEMBERS, COUNTS)
    for text in named:
        assert re.search(re.escape(text), str(caught.value))


@pytest.mark.parametrize(
    "plan",
    [
        {"a": {"greetings": [0, 1]}},
        {"a": {"ab": [0]}},
        {"a": [("t", "0")]},
        {"a": ["t"]},
        {"a": None},
        {"a": Assignment(None)},  # type: ignore[arg-type]
        [TP("t", 0)],
        None,
    ],
)
def test_values_of_wrong_types(plan: object) -> None:
    with pytest.raises(AssignmentError, match=r"assignor 'own' returned .*; allowed is "):
        check_assignment("own", plan, MEMBERS, COUNTS)  # type: ignore[arg-type]


def test_a_protocol_that_was_not_offered() -> None:
    with pytest.raises(
        AssignmentError, match=r"'g' chose the protocol 'sticky'; this member offered \['range'\]"
    ):
        JoinProtocols("g", [RangeAssignor()], None).assign("sticky", MEMBERS, COUNTS)


def test_missing_topics_are_not_assigned() -> None:
    plan = JoinProtocols("g", [RangeAssignor()], None).assign("range", MEMBERS, {"t": 2, "u": 0})
    assert plan == {"a": Assignment((TP("t", 0),)), "b": Assignment((TP("t", 1),))}


# -- cooperative assignors ----------------------------------------------------------------------------------------------

OWNERS = [
    MemberSubscription("a", ("t",), owned=(TP("t", 0), TP("t", 1)), generation_id=3),
    MemberSubscription("b", ("t",), owned=(TP("t", 2),), generation_id=3),
]


class Fixed(OwnCooperative):
    """Makes the given assignment."""

    def __init__(self, plan: dict[str, list[TP]], *, is_cooperative: bool = True) -> None:
        super().__init__(is_cooperative=is_cooperative)
        self.plan = plan

    def assign(self, members: object, counts: object) -> dict[str, list[TP]]:
        return self.plan


def test_a_cooperative_assignor_must_not_move_a_partition_that_its_owner_consumes() -> None:
    """`validateCooperativeAssignment` in Java's `ConsumerCoordinator`."""
    moves = Fixed({"a": [TP("t", 0)], "b": [TP("t", 1), TP("t", 2)]})
    with pytest.raises(
        AssignmentError, match=r"'own-cooperative' .*t-1 would move to another member in one rebalance"
    ):
        JoinProtocols("g", [moves], None).assign(moves.name, OWNERS, {"t": 3})


@pytest.mark.parametrize(
    "plan",
    [
        {"a": [TP("t", 0)], "b": [TP("t", 2)]},
        {"a": [TP("t", 0), TP("t", 1), TP("t", 3)], "b": [TP("t", 2)]},
        {"a": [TP("t", 0), TP("t", 1)], "b": [TP("t", 0), TP("t", 2)]},  # a copy for a standby
    ],
)
def test_a_cooperative_assignor_may_withhold_add_and_copy(plan: dict[str, list[TP]]) -> None:
    assigned = JoinProtocols("g", [Fixed(plan)], None).assign(Fixed.name, OWNERS, {"t": 4})
    assert {member: list(assignment.partitions) for member, assignment in assigned.items()} == plan


def test_members_that_offer_an_eager_assignor_revoke_everything_first() -> None:
    moves = Fixed({"a": [TP("t", 0)], "b": [TP("t", 1), TP("t", 2)]}, is_cooperative=False)
    assigned = JoinProtocols("g", [moves], None).assign(moves.name, OWNERS, {"t": 3})
    assert assigned["b"].partitions == (TP("t", 1), TP("t", 2))
