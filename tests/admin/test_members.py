"""Admin, members of a group: removed by member id or instance id, or all; lost responses, both protocols, bad arguments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup import BrokerError, Claim, ConfigError, ConsumerConfig, ConsumerGroup, ErrorCode, Session
from asyncgroup.admin import Admin, MemberToRemove
from asyncgroup.errors import UnsupportedVersionError
from tests.stories.holding import limit_version
from tests.stories.virtual import VirtualEnvironment

LEAVE_GROUP = 13


@asynccontextmanager
async def member(env: VirtualEnvironment, **config: Any) -> AsyncIterator[asyncio.Queue[str]]:
    """Run a member that reads nothing; in the block it has partitions. The queue gets the id of each later membership."""
    ids: asyncio.Queue[str] = asyncio.Queue()
    seen: set[str] = set()

    async def wait(session: Session, claim: Claim) -> None:
        if session.member_id not in seen:
            seen.add(session.member_id)
            ids.put_nowait(session.member_id)
        await claim.wait_ended()

    group = ConsumerGroup(env.bootstrap_servers, "g", ConsumerConfig(**config))
    async with group, asyncio.TaskGroup() as tasks:
        tasks.create_task(group.run("orders", wait))
        first = await ids.get()
        ids.put_nowait(first)
        yield ids
        await group.aclose()


def reasons(env: VirtualEnvironment) -> list[list[tuple[str, str | None, str | None]]]:
    """Return who was to leave, and why, for each request of an Admin."""
    requests = [each.request for each in env.cluster.history.of("LeaveGroup")]
    return [[(who.member_id, who.group_instance_id, who.reason) for who in each.members] for each in requests]


def names(results: Any) -> dict[MemberToRemove, str]:
    return {who: error.name for who, error in results.errors.items()}


async def test_a_static_member_that_stopped_is_removed_by_its_instance_id(env: VirtualEnvironment) -> None:
    async with member(env, group_instance_id="one"), member(env, group_instance_id="two"):
        pass
    one, none = MemberToRemove(group_instance_id="one"), MemberToRemove(group_instance_id="none")
    async with Admin(env.bootstrap_servers) as admin:
        removed = await admin.remove_members("g", [one, none, MemberToRemove("m")], reason="scaled down")
        assert list(removed.values_by_name) == [one]
        assert names(removed) == {none: "UNKNOWN_MEMBER_ID", MemberToRemove("m"): "UNKNOWN_MEMBER_ID"}
        assert "static member 'none' from group 'g'" in str(removed[none])
        left = (await admin.describe_groups(["g"])).raise_first()["g"].members
        assert [each.group_instance_id for each in left] == ["two"]
        assert (await admin.remove_members("g", "all")).raise_first().keys() == {
            MemberToRemove(group_instance_id="two")
        }
        assert (await admin.describe_groups(["g"])).raise_first()["g"].state == "Empty"
    assert reasons(env)[-2:] == [
        [("", "one", "scaled down"), ("", "none", "scaled down"), ("m", None, "scaled down")],
        [("", "two", "member was removed by an admin")],
    ]


async def test_a_member_id_beside_an_instance_id_protects_its_successor(env: VirtualEnvironment) -> None:
    async with member(env, group_instance_id="one") as ids:
        former = MemberToRemove("an-old-id", "one")
        current = MemberToRemove(ids.get_nowait(), "one")
        async with Admin(env.bootstrap_servers) as admin:
            assert names(await admin.remove_members("g", [former])) == {former: "FENCED_INSTANCE_ID"}
            assert (await admin.remove_members("g", [current])).raise_first().keys() == {current}


async def test_a_running_member_is_removed_and_joins_again(env: VirtualEnvironment) -> None:
    async with member(env) as ids, Admin(env.bootstrap_servers) as admin:
        first = ids.get_nowait()
        assert (await admin.remove_members("g", "all", reason="x" * 300)).raise_first().keys() == {
            MemberToRemove(first)
        }
        assert await ids.get() != first
    assert reasons(env)[0] == [(first, None, "x" * 255)]


@pytest.mark.parametrize("by", ["member id", "instance id"])
async def test_a_member_of_the_consumer_protocol_is_removed_and_joins_again(
    env: VirtualEnvironment, by: str
) -> None:
    static = {"group_instance_id": "one"} if by == "instance id" else {}
    async with member(env, group_protocol="consumer", **static) as ids, Admin(env.bootstrap_servers) as admin:
        first = ids.get_nowait()
        before = (await admin.describe_groups(["g"])).raise_first()["g"].members[0]
        who = MemberToRemove(**static) if static else MemberToRemove(first)
        (await admin.remove_members("g", [who])).raise_first()
        assert not (await admin.describe_groups(["g"])).raise_first()["g"].members
        assert await ids.get() != first
        assert before.member_id == first


async def test_the_response_of_a_mixed_group_may_name_a_static_member_with_its_member_id(
    env: VirtualEnvironment,
) -> None:
    """Before Kafka 4.0 (KAFKA-18188)."""

    def with_member_id(response: Any) -> Any:
        response.members[0].member_id = "m"
        return response

    async with member(env, group_instance_id="one"):
        pass
    env.cluster.faults.on("LeaveGroup").mutate(with_member_id)
    one = MemberToRemove(group_instance_id="one")
    async with Admin(env.bootstrap_servers) as admin:
        assert (await admin.remove_members("g", [one])).raise_first().keys() == {one}
        assert (await admin.describe_groups(["g"])).raise_first()["g"].state == "Empty"


@pytest.mark.parametrize("fault", ["lost", "moved"])
async def test_a_member_that_a_request_without_response_removed_is_a_success(
    env: VirtualEnvironment, fault: str
) -> None:
    async with member(env, group_instance_id="one"):
        pass
    one, none = MemberToRemove(group_instance_id="one"), MemberToRemove(group_instance_id="none")
    on = env.cluster.faults.on("LeaveGroup")
    if fault == "lost":
        on.disconnect("after")
    else:
        on.error("NOT_COORDINATOR")
    async with Admin(env.bootstrap_servers) as admin:
        removed = await admin.remove_members("g", [one, none])
        assert removed[one] is None
        if fault == "moved":  # no response was lost: the error is that of the member
            assert names(removed) == {none: "UNKNOWN_MEMBER_ID"}


async def test_a_group_that_does_not_exist_or_has_no_members(admin: Admin, env: VirtualEnvironment) -> None:
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        await admin.remove_members("g", "all")
    who = MemberToRemove("m")
    assert names(await admin.remove_members("g", [who])) == {who: "UNKNOWN_MEMBER_ID"}
    (await admin.alter_group_offsets("g", {("orders", 0): 0})).raise_first()
    assert not await admin.remove_members("g", "all")
    assert not await admin.remove_members("g", [])


async def test_a_denied_call_names_the_member_and_the_group(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("LeaveGroup").error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    async with Admin(env.bootstrap_servers) as admin:
        (error,) = (await admin.remove_members("g", [MemberToRemove("m")])).errors.values()
        assert str(error).startswith("removing member 'm' from group 'g': GROUP_AUTHORIZATION_FAILED")


async def test_an_old_broker_removes_one_member_by_its_id(env: VirtualEnvironment) -> None:
    limit_version(env.cluster, LEAVE_GROUP, 2)
    async with member(env) as ids, Admin(env.bootstrap_servers) as admin:
        who = MemberToRemove(ids.get_nowait())
        other = MemberToRemove("m")
        (await admin.remove_members("g", [who])).raise_first()
        assert names(await admin.remove_members("g", [other])) == {other: "UNKNOWN_MEMBER_ID"}
        for refused in ([who, other], [MemberToRemove(group_instance_id="one")]):
            errors = (await admin.remove_members("g", refused)).errors
            assert {type(error) for error in errors.values()} == {UnsupportedVersionError}


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ("m", "all"),
        (["m"], "MemberToRemove"),
        (MemberToRemove("m"), "several"),
        ([MemberToRemove()], "member id"),
        ([MemberToRemove(group_instance_id="a b")], "group_instance_id"),
        ([MemberToRemove(1)], "member_id"),  # type: ignore[arg-type]
        (None, "several"),
    ],
)
async def test_bad_members(admin: Admin, env: VirtualEnvironment, members: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        await admin.remove_members("g", members)
    with pytest.raises(ConfigError, match="reason"):
        await admin.remove_members("g", [MemberToRemove("m")], reason=1)  # type: ignore[arg-type]
