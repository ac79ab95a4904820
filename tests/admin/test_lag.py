"""Admin, lag: groups of both protocols, committed and uncommitted ends, loss, ack windows; errors of groups and partitions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from asyncgroup import (
    BrokerError,
    ConfigError,
    ConsumerConfig,
    ConsumerGroup,
    ErrorCode,
    Producer,
    ProducerConfig,
    TopicPartition,
    WorkQueue,
)
from asyncgroup.admin import AckWindowLag, Admin, GroupOffset
from asyncgroup.cluster.requests.budget import NODE_TIMEOUT
from asyncgroup.errors import RequestTimedOut
from asyncgroup.model import GroupOffsets
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.wire import messages as m
from asyncgroup.workqueue import Mode
from tests.stories.holding import holding, limit_version
from tests.stories.virtual import VirtualEnvironment, now

TPS = [TopicPartition("orders", number) for number in range(4)]
ZERO, ONE, TWO, THREE = TPS


def fill(env: VirtualEnvironment, count: int, *partitions: int) -> None:
    for partition in partitions:
        env.cluster.produce("orders", *[b"x"] * count, partition=partition)


async def test_a_group_without_members(admin: Admin, env: VirtualEnvironment) -> None:
    fill(env, 10, 0, 1, 2)
    await admin.alter_group_offsets("g", {ZERO: GroupOffset(4, "", 0), ONE: 2})
    (await admin.delete_records({ONE: 5})).raise_first()
    found = (await admin.lag(["g"])).raise_first()["g"]
    assert (found.group.state, found.group.group_type) == ("Empty", "classic")
    assert list(found.partitions) == [ZERO, ONE]
    zero, one = found.partitions.values()
    assert (zero.committed_offset, zero.leader_epoch, zero.log_start, zero.log_end) == (4, 0, 0, 10)
    assert (zero.lag, zero.lost, zero.member_id) == (6, 0, None)
    assert (one.leader_epoch, one.log_start, one.lag, one.lost) == (None, 5, 5, 3)
    assert (found.lag_sum, found.lag_max, found.lost_sum) == (11, 6, 3)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_with_a_member(env: VirtualEnvironment, protocol: str) -> None:
    fill(env, 10, 0, 3)
    config = ConsumerConfig(group_protocol=protocol, client_id="c")  # type: ignore[arg-type]
    async with Admin(env.bootstrap_servers) as admin:
        (await admin.alter_group_offsets("g", {ZERO: 4})).raise_first()
        async with ConsumerGroup(env.bootstrap_servers, "g", config) as group, holding(group, "orders", 4):
            found = (await admin.lag(["g"])).raise_first()["g"]
    (member,) = found.group.members
    assert list(found.partitions) == TPS
    for each in found.partitions.values():
        assert (each.member_id, each.host, each.client_id) == (member.member_id, member.host, "c")
    assert found.without_commit == (ONE, TWO, THREE)
    assert found.partitions[THREE].lag is None
    assert found.partitions[THREE].log_end == 10
    assert found.lag_sum == found.partitions[ZERO].lag == 6


async def test_the_isolation_level_decides_where_the_log_ends(env: VirtualEnvironment) -> None:
    fill(env, 3, 0)
    async with (
        Admin(env.bootstrap_servers) as admin,
        Producer(env.bootstrap_servers, ProducerConfig(transactional_id="t")) as producer,
        producer.transaction(),
    ):
        await producer.send("orders", b"x", partition=0)
        await admin.alter_group_offsets("g", {ZERO: 1})
        found = await admin.lag(["g"])
        assert found.raise_first()["g"].partitions[ZERO].lag == 3
        found = await admin.lag(["g"], isolation_level="read_committed")
        assert found.raise_first()["g"].partitions[ZERO].lag == 2
        await admin.alter_group_offsets("g", {ZERO: 4})
        found = await admin.lag(["g"], isolation_level="read_committed")
        partition = found.raise_first()["g"].partitions[ZERO]
        assert (partition.lag, partition.is_beyond_log_end) == (0, True)


async def test_an_offset_in_an_open_transaction_is_an_error_if_stable_ones_are_required(
    env: VirtualEnvironment,
) -> None:
    fill(env, 3, 0, 1)
    config = ProducerConfig(transactional_id="t")
    async with Admin(env.bootstrap_servers) as admin, Producer(env.bootstrap_servers, config) as producer:
        await admin.alter_group_offsets("g", {ZERO: 1, ONE: 1})
        async with producer.transaction():
            await producer.send_offsets(GroupOffsets("g", {ZERO: 2}))
            found = (await admin.lag(["g"])).raise_first()["g"]
            assert found.lag_sum == 4
            found = (await admin.lag(["g"], require_stable=True)).raise_first()["g"]
            error = found.partitions[ZERO].error
            assert isinstance(error, BrokerError)
            assert error.name == "UNSTABLE_OFFSET_COMMIT"
            assert found.lag_sum == found.partitions[ONE].lag == 2
        found = (await admin.lag(["g"], require_stable=True)).raise_first()["g"]
        assert found.lag_sum == 3


async def test_a_truncated_log(env: VirtualEnvironment) -> None:
    for _ in range(10):
        fill(env, 1, 0)
    async with Admin(env.bootstrap_servers) as admin:
        await admin.alter_group_offsets("g", {ZERO: 8})
        env.cluster.truncate("orders", 0, 5)
        partition = (await admin.lag(["g"])).raise_first()["g"].partitions[ZERO]
        assert (partition.log_end, partition.lag, partition.lost) == (5, 0, 0)
        assert partition.is_beyond_log_end


async def test_a_commit_that_is_of_a_deleted_topic_of_the_same_name(env: VirtualEnvironment) -> None:
    fill(env, 7, 0)
    async with Admin(env.bootstrap_servers) as admin:
        text = encode_metadata(ZERO, 30, CommitMetadata("", UUID(int=9)))
        (await admin.alter_group_offsets("g", {ZERO: GroupOffset(30, text)})).raise_first()
        partition = (await admin.lag(["g"])).raise_first()["g"].partitions[ZERO]
        assert (partition.lag, partition.lost, partition.is_of_deleted_topic) == (7, 0, True)
        topic = (await admin.describe_topics(["orders"])).raise_first()["orders"]
        text = encode_metadata(ZERO, 3, CommitMetadata("", topic.topic_id))
        (await admin.alter_group_offsets("g", {ZERO: GroupOffset(3, text)})).raise_first()
        partition = (await admin.lag(["g"])).raise_first()["g"].partitions[ZERO]
        assert (partition.lag, partition.is_of_deleted_topic) == (4, False)


async def test_a_topic_that_no_longer_exists_is_an_error_of_its_partitions(env: VirtualEnvironment) -> None:
    def deleted(response: Any) -> Any:
        for topic in response.topics:
            if topic.name == "other":
                topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
        return response

    fill(env, 7, 0)
    env.cluster.create_topic("other", 1)
    env.cluster.commit("g", {ZERO: 1, TopicPartition("other", 0): 0})
    env.cluster.faults.on("Metadata", times=None).mutate(deleted)
    async with Admin(env.bootstrap_servers) as admin:
        begun = now()
        found = (await admin.lag(["g"])).raise_first()["g"]
        assert now() - begun < 1.0
        assert found.lag_sum == 6
        (error,) = found.errors.values()
        assert str(error).startswith("offset of other-0: UNKNOWN_TOPIC_OR_PARTITION")


async def test_the_ack_window_of_a_work_queue(admin: Admin, env: VirtualEnvironment) -> None:
    fill(env, 10, 0)
    options: dict[str, Any] = {"initial_position": "earliest", "nack_backoff": 1000.0}
    async with WorkQueue(env.bootstrap_servers, "g", "orders", mode=Mode.SHARED, **options) as queue:
        deliveries = [await queue.receive() for _ in range(6)]
        deliveries[3].nack()
        for offset in (0, 2):
            deliveries[offset].ack()
        await deliveries[5].ack(durable=True)
        found = (await admin.lag(["g"])).raise_first()["g"].partitions[ZERO]
    assert (found.committed_offset, found.lag, found.lost) == (1, 7, 0)
    assert found.window == AckWindowLag(acked_above=2, open=3, failed=1, end=6, beyond=4)


async def test_several_groups_with_one_request_to_each_node(env: VirtualEnvironment) -> None:
    fill(env, 5, 0, 1, 2, 3)
    names = [f"g{number}" for number in range(6)]
    for number, name in enumerate(names):
        env.cluster.commit(name, {TPS[number % 4]: 1})
    async with Admin(env.bootstrap_servers) as admin:
        found = (await admin.lag([*names, "g0"])).raise_first()
        assert {name: each.lag_sum for name, each in found.items()} == dict.fromkeys(names, 4)
        leaders = {env.cluster.leader(*tp) for tp in TPS}
        assert len(env.cluster.history.of("ListOffsets")) == 2 * len(leaders)
        assert len(env.cluster.history.of("FindCoordinator")) == 1
        coordinators = sorted({env.cluster.coordinator(name) for name in names})
        for api in "ConsumerGroupDescribe", "DescribeGroups", "OffsetFetch":
            assert sorted(each.node_id for each in env.cluster.history.of(api)) == coordinators
        assert len(env.cluster.history.of("ListGroups")) == 0
        assert not await admin.lag([])


async def test_old_brokers_are_asked_for_each_group_by_itself(env: VirtualEnvironment) -> None:
    limit_version(env.cluster, m.OffsetFetchRequest.API_KEY, 7)
    fill(env, 5, 0)
    names = [f"g{number}" for number in range(6)]
    for name in names:
        env.cluster.commit(name, {ZERO: 1})
    env.cluster.faults.on("OffsetFetch", node=env.cluster.coordinator("g0"), times=2).error("NOT_COORDINATOR")
    async with Admin(env.bootstrap_servers) as admin:
        found = (await admin.lag(names)).raise_first()
        assert {name: each.lag_sum for name, each in found.items()} == dict.fromkeys(names, 4)


async def test_a_group_whose_offsets_are_refused_costs_the_others_nothing(env: VirtualEnvironment) -> None:
    def refuse(response: Any) -> Any:
        for group in response.groups:
            if group.group_id == "g0":
                group.error_code, group.topics = ErrorCode.GROUP_AUTHORIZATION_FAILED, []
        return response

    fill(env, 5, 0)
    names = [f"g{number}" for number in range(6)]
    for name in names:
        env.cluster.commit(name, {ZERO: 1})
    env.cluster.faults.on("OffsetFetch", times=None).mutate(refuse)
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.lag(names)
        assert list(found.values_by_name) == names[1:]
        assert str(found["g0"]).startswith("committed offsets of group 'g0': GROUP_AUTHORIZATION_FAILED")


async def test_an_unknown_group_and_one_of_another_type(env: VirtualEnvironment) -> None:
    def shared(response: Any) -> Any:
        response.groups.append(m.ListGroupsResponse.ListedGroup("s", "share", "Stable", "share"))
        return response

    env.cluster.commit("g", {ZERO: 0})
    env.cluster.faults.on("ListGroups", node=2).mutate(shared)
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.lag(["g", "none", "s"])
        assert list(found.values_by_name) == ["g"]
        assert [error.name for error in found.errors.values()] == ["GROUP_ID_NOT_FOUND"] * 2  # type: ignore[attr-defined]
        assert "lag of group 's': GROUP_ID_NOT_FOUND (69): it is a share group" in str(found["s"])


@pytest.mark.parametrize(
    "api",
    [
        "ConsumerGroupDescribe",
        pytest.param("DescribeGroups", marks=pytest.mark.full),
        pytest.param("OffsetFetch", marks=pytest.mark.full),
    ],
)
async def test_a_silent_coordinator_costs_the_other_groups_a_few_seconds(
    env: VirtualEnvironment, api: str
) -> None:
    fill(env, 5, 0)
    names = [f"g{number}" for number in range(12)]
    for name in names:
        env.cluster.commit(name, {ZERO: 1})
    silent = env.cluster.coordinator("g0")
    lost = [name for name in names if env.cluster.coordinator(name) == silent]
    assert len(lost) < len(names)
    env.cluster.faults.on(api, node=silent, times=None).drop()
    async with Admin(env.bootstrap_servers) as admin:
        begun = now()
        found = await admin.lag(names)
        assert now() - begun == pytest.approx(NODE_TIMEOUT, abs=0.1)
        assert set(found.errors) == set(lost)
        assert all(isinstance(error, RequestTimedOut) for error in found.errors.values())
        assert {each.lag_sum for each in found.values_by_name.values()} == {4}


async def test_a_silent_leader_is_an_error_of_its_partitions(env: VirtualEnvironment) -> None:
    fill(env, 5, 0, 1, 2, 3)
    env.cluster.commit("g", dict.fromkeys(TPS, 1))
    silent = env.cluster.leader(*ZERO)
    env.cluster.faults.on("ListOffsets", node=silent, times=None).drop()
    async with Admin(env.bootstrap_servers) as admin:
        begun = now()
        found = (await admin.lag(["g"])).raise_first()["g"]
        assert now() - begun == pytest.approx(NODE_TIMEOUT, abs=0.1)
    assert set(found.errors) == {tp for tp in TPS if env.cluster.leader(*tp) == silent}
    for tp, each in found.partitions.items():
        assert each.committed_offset == 1
        assert each.lag == (None if tp in found.errors else 4)


async def test_a_moved_coordinator_and_a_moved_leader_are_found(env: VirtualEnvironment) -> None:
    fill(env, 5, 0)
    env.cluster.commit("g", {ZERO: 1})
    async with Admin(env.bootstrap_servers) as admin:
        assert (await admin.lag(["g"])).raise_first()["g"].lag_sum == 4
        env.cluster.move_coordinator("g", env.cluster.coordinator("g") % 3 + 1)
        env.cluster.move_leader("orders", 0, env.cluster.leader("orders", 0) % 3 + 1)
        assert (await admin.lag(["g"])).raise_first()["g"].lag_sum == 4


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    with pytest.raises(ConfigError, match="group_id"):
        await admin.lag([""])
    with pytest.raises(ConfigError, match="isolation_level=1"):
        await admin.lag(["g"], isolation_level=1)  # type: ignore[arg-type]
    assert not env.cluster.history.of("OffsetFetch")
