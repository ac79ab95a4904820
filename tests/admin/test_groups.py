"""Admin, groups: what it lists and describes of both protocols, committed offsets, and errors of single nodes and groups."""

from __future__ import annotations

import pytest

from asyncgroup import (
    BrokerError,
    ConfigError,
    ConsumerConfig,
    ConsumerGroup,
    ErrorCode,
    TopicPartition,
)
from asyncgroup.admin import Admin, GroupOffset
from asyncgroup.errors import AsyncGroupError, RequestTimedOut
from tests.stories.holding import holding
from tests.stories.virtual import VirtualEnvironment

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def code(error: object) -> int:
    assert isinstance(error, BrokerError)
    return error.code


async def test_offsets_are_altered_read_and_deleted(admin: Admin, env: VirtualEnvironment) -> None:
    altered = await admin.alter_group_offsets("g", {ZERO: 0, ONE: GroupOffset(0, "text", 0)})
    assert set(altered.raise_first()) == {ZERO, ONE}
    found = (await admin.list_group_offsets("g", require_stable=True)).raise_first()
    assert found == {ZERO: GroupOffset(0), ONE: GroupOffset(0, "text", 0)}
    (await admin.delete_group_offsets("g", [ONE])).raise_first()
    assert set(await admin.list_group_offsets("g")) == {ZERO}


async def test_a_partition_that_does_not_exist_costs_the_others_nothing(env: VirtualEnvironment) -> None:
    missing = TopicPartition("nothing", 0)
    async with Admin(env.bootstrap_servers) as admin:
        altered = await admin.alter_group_offsets("g", {ZERO: 0, missing: 0})
        assert altered[ZERO] is None
        assert code(altered[missing]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_unknown_group_and_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    assert code((await admin.describe_groups(["g"]))["g"]) == ErrorCode.GROUP_ID_NOT_FOUND
    assert code((await admin.delete_groups(["g"]))["g"]) == ErrorCode.GROUP_ID_NOT_FOUND
    assert not await admin.list_group_offsets("g")
    deleted = await admin.delete_group_offsets("g", [ZERO])
    assert code(deleted[ZERO]) == ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(ConfigError, match="offset"):
        await admin.alter_group_offsets("g", {ZERO: -1})
    with pytest.raises(ConfigError, match="group_id"):
        await admin.describe_groups([" "])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_with_a_member(env: VirtualEnvironment, protocol: str) -> None:
    config = ConsumerConfig(group_protocol=protocol, client_id="c")  # type: ignore[arg-type]
    async with (
        ConsumerGroup(env.bootstrap_servers, "g", config) as group,
        Admin(env.bootstrap_servers) as admin,
    ):
        async with holding(group, "orders", 4):
            described = (await admin.describe_groups(["g"])).raise_first()["g"]
            (member,) = described.members
            assert (described.group_type, described.state, member.client_id) == (protocol, "Stable", "c")
            assert member.assignment == tuple(TopicPartition("orders", n) for n in range(4))
            assert (member.target_assignment == member.assignment) == (protocol == "consumer")
            assert (member.epoch is None) == (described.group_epoch is None) == (protocol == "classic")
            (listed,) = (await admin.list_groups(states=["Stable"], types=[protocol])).raise_first()
            assert (listed.group_id, listed.group_type, listed.state) == ("g", protocol, "Stable")
            assert not (await admin.list_groups(states=["Empty"])).groups
            assert code((await admin.delete_groups(["g"]))["g"]) == ErrorCode.NON_EMPTY_GROUP
            altered = await admin.alter_group_offsets("g", {ZERO: 0, ONE: 0})
            assert {code(error) for error in altered.values()} == {ErrorCode.UNKNOWN_MEMBER_ID}
            deleted = await admin.delete_group_offsets("g", [ZERO])
            assert code(deleted[ZERO]) == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        (await admin.delete_groups(["g"])).raise_first()
        assert not (await admin.list_groups()).raise_first()


async def test_a_silent_node_is_an_error_of_its_own(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers, timeout=5.0) as admin:
        (await admin.alter_group_offsets("g", {ZERO: 0})).raise_first()
        silent = next(n for n in (1, 2, 3) if n != env.cluster.coordinator("g"))
        env.cluster.faults.on("ListGroups", node=silent, times=None).drop()
        found = await admin.list_groups()
        assert [group.group_id for group in found.groups] == ["g"]
        assert list(found.errors) == [silent]
        assert isinstance(found.errors[silent], RequestTimedOut)
        with pytest.raises(AsyncGroupError):
            found.raise_first()


async def test_a_coordinator_that_moved_is_asked_again(admin: Admin, env: VirtualEnvironment) -> None:
    (await admin.alter_group_offsets("g", {ZERO: 0})).raise_first()
    env.cluster.move_coordinator("g", env.cluster.coordinator("g") % 3 + 1)
    (await admin.alter_group_offsets("g", {ONE: 0})).raise_first()
    env.cluster.move_coordinator("g", env.cluster.coordinator("g") % 3 + 1)
    assert set((await admin.list_group_offsets("g")).raise_first()) == {ZERO, ONE}
    env.cluster.move_coordinator("g", env.cluster.coordinator("g") % 3 + 1)
    (await admin.delete_group_offsets("g", [ONE])).raise_first()
    env.cluster.move_coordinator("g", env.cluster.coordinator("g") % 3 + 1)
    assert (await admin.describe_groups(["g"])).raise_first()["g"].state == "Empty"
    (await admin.delete_groups(["g"])).raise_first()
