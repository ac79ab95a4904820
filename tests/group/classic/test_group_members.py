"""The members of a group, from responses to DescribeGroups and ConsumerGroupDescribe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup.cluster.connection import Address
from asyncgroup.errors import BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.group.assignors import Assignment
from asyncgroup.group.classic.group_members import (
    DescribedMember,
    describe_assignment,
    describe_current_assignment,
    describe_members,
)
from asyncgroup.group.classic.join_requests import encode_assignment
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

pytestmark = pytest.mark.real

Classic, Consumer = m.DescribeGroupsResponse, m.ConsumerGroupDescribeResponse
NONE: dict[str, Any] = {"error_code": ErrorCode.GROUP_ID_NOT_FOUND}


class Coordinators:
    """A fake cluster that returns given responses and records requests."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.marked_unknown: list[str] = []

    async def locate_each(self, keys: Any, kind: int) -> Any:
        return {key: Address(1, "10.0.0.1", 9092) for key in keys}, {}

    async def request_at(self, address: Address, keys: Any, cls: Any, build: Any, **options: Any) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def mark_unknown(self, key: str, node_id: int, kind: int) -> None:
        self.marked_unknown.append(key)


def classic(*members: str, state: str = "Stable", **fields: Any) -> Any:
    found = [Classic.DescribedGroupMember(name, None, "app", "/10.0.0.7") for name in members]
    group = Classic.DescribedGroup(group_id="g", group_state=state, members=found, **fields)
    return Classic(groups=[group])


def consumer(*members: str, **fields: Any) -> Any:
    found = [Consumer.Member(name, client_id="app", client_host="/10.0.0.7") for name in members]
    return Consumer(groups=[Consumer.DescribedGroup(group_id="g", members=found, **fields)])


@pytest.mark.parametrize(
    ("answers", "members"),
    [
        ([classic("a", "b")], ["a (client 'app' at 10.0.0.7)", "b (client 'app' at 10.0.0.7)"]),
        ([classic(state="Empty")], []),
        ([classic(state="Dead"), consumer("c")], ["c (client 'app' at 10.0.0.7)"]),
        ([classic(state="Dead", **NONE), consumer("c")], ["c (client 'app' at 10.0.0.7)"]),
        ([classic(state="Dead", **NONE), consumer(**NONE)], []),
        ([classic(state="Dead"), UnsupportedVersionError("an old broker")], []),
        ([classic(state="Dead"), consumer(error_code=ErrorCode.UNSUPPORTED_VERSION)], []),
    ],
)
async def test_members(answers: list[Any], members: list[str]) -> None:
    cluster: Any = SimpleNamespace(coordinators=Coordinators(*answers))
    assert [str(member) for member in await describe_members(cluster, "g", lane="control")] == members


@pytest.mark.parametrize("first", [True, False])
async def test_a_coordinator_that_has_moved_is_looked_up_again(first: bool) -> None:
    moved: dict[str, Any] = {"error_code": ErrorCode.NOT_COORDINATOR}
    answers = [classic(**moved)] if first else [classic(state="Dead"), consumer(**moved)]
    cluster: Any = SimpleNamespace(coordinators=Coordinators(*answers))
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        await describe_members(cluster, "g", lane="control")
    assert cluster.coordinators.marked_unknown == ["g"]


def assigning() -> Any:
    """Return a response with the assignments of two members, and a third one without."""
    response = classic("a", "b", "c")
    assigned = [[("orders", 0), ("orders", 5)], [("orders", 3), ("bills", 0), ("left", 1)]]
    for member, places in zip(response.groups[0].members, assigned, strict=False):
        partitions = [TopicPartition(*place) for place in places]
        member.member_assignment = encode_assignment(Assignment(partitions))
    return response


async def test_the_partitions_of_the_current_assignment() -> None:
    empty, none = classic(state="Empty"), classic(state="Dead", **NONE)
    cluster: Any = SimpleNamespace(coordinators=Coordinators(assigning(), empty, none))
    assert await describe_assignment(cluster, "g", lane="join-1") == {
        ("bills", 0), ("left", 1), ("orders", 0), ("orders", 3), ("orders", 5)
    }  # fmt: skip
    assert await describe_assignment(cluster, "g", lane="join-1") is None
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        await describe_assignment(cluster, "g", lane="join-1")


async def test_what_a_returning_leader_learns() -> None:
    """The counts that the assignment knows, and what it leaves out below them; of a failure or an empty group nothing."""
    present = {"orders": 8, "bills": 1, "new": 2}
    answers = [assigning(), classic(state="Empty"), classic(state="Dead", **NONE)]
    cluster: Any = SimpleNamespace(coordinators=Coordinators(*answers))
    assert await describe_current_assignment(cluster, "g", present, lane="join-1") == (
        {"orders": 6, "bills": 1, "new": 0},
        {TopicPartition("orders", number) for number in (1, 2, 4)},
    )
    for _ in range(2):
        found = await describe_current_assignment(cluster, "g", present, lane="join-1")
        assert found == (present, frozenset())


def test_members_of_a_group_are_shown_escaped() -> None:
    def shown(client_id: str, host: str, member_id: str) -> str:
        return str(DescribedMember(member_id, client_id, host, None))

    assert shown("a\n", "/10.0.0.1\x1b", "m\x1b[2J" + "x" * 5000).isprintable()
    assert shown("me", "/10.0.0.1", "me-1") == "me-1 (client 'me' at 10.0.0.1)"
    assert len(shown("c" * 40_000, "h" * 40_000, "m" * 40_000)) < 4000
