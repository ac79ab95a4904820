"""Admin, the time of a call: one deadline for all of its requests, and a few seconds for a node that is silent or dead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncgroup import ClientConfig, TopicPartition
from asyncgroup.admin import Admin
from asyncgroup.cluster.requests.budget import NODE_TIMEOUT
from asyncgroup.errors import AsyncGroupError, BrokerError, ConnectError, RequestTimedOut
from asyncgroup.wire import messages as m
from tests.stories.virtual import HOST, VirtualEnvironment, now

ZERO = TopicPartition("orders", 0)


def port_of(env: VirtualEnvironment, node: int) -> int:
    return int(env.bootstrap_servers.split(",")[node - 1].rpartition(":")[2])


def other_than_coordinator(env: VirtualEnvironment) -> int:
    return env.cluster.coordinator("g") % 3 + 1


@pytest.mark.parametrize("state", ["silent", "frozen", "dead"])
async def test_one_node_costs_a_list_of_groups_a_few_seconds(env: VirtualEnvironment, state: str) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        (await admin.alter_group_offsets("g", {ZERO: 0})).raise_first()
        bad = other_than_coordinator(env)
        if state == "silent":
            env.cluster.faults.on("ListGroups", node=bad, times=None).drop()
        else:
            port = port_of(env, bad)
            (env.network.blackhole if state == "frozen" else env.network.refuse)(HOST, port)
            env.network.cut(HOST, port)
        begun = now()
        found = await admin.list_groups()
        assert now() - begun <= NODE_TIMEOUT + 1.1  # a hedged Metadata request waits 1 s at the frozen node
        assert [group.group_id for group in found.groups] == ["g"]
        assert list(found.errors) == [bad]
        if state == "dead":  # the last attempt may be cut while the client waits to connect again
            assert isinstance(found.errors[bad], ConnectError | RequestTimedOut)
            assert "Connection refused" in str(found.errors[bad])
        else:
            assert isinstance(found.errors[bad], RequestTimedOut)
        if state == "silent":
            assert str(found.errors[bad]) == f"ListGroups to node {bad}: no answer in time"


async def test_a_node_that_answers_late_is_waited_for(admin: Admin, env: VirtualEnvironment) -> None:
    (await admin.alter_group_offsets("g", {ZERO: 0})).raise_first()
    env.cluster.faults.on("ListGroups", times=2).error("COORDINATOR_LOAD_IN_PROGRESS")
    env.cluster.faults.on("ListGroups").delay(NODE_TIMEOUT - 1)
    assert [group.group_id for group in (await admin.list_groups()).raise_first()] == ["g"]


async def test_a_silent_broker_costs_described_configurations_a_few_seconds(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        env.cluster.faults.on("DescribeConfigs", node=2, times=None).drop()
        begun = now()
        found = await admin.describe_configs("broker", [1, 2, 3], keys=["node.id"])
        assert now() - begun == pytest.approx(NODE_TIMEOUT)
        assert list(found.values_by_name) == ["1", "3"]
        assert isinstance(found["2"], RequestTimedOut)


async def test_two_requests_of_a_call_share_its_deadline(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers, timeout=10.0) as admin:
        (await admin.alter_group_offsets("g", {ZERO: 0})).raise_first()
        env.cluster.faults.on("ConsumerGroupDescribe").delay(8.0)  # then: not a consumer group
        env.cluster.faults.on("DescribeGroups", times=None).drop()
        begun = now()
        found = await admin.describe_groups(["g"])
        assert now() - begun == pytest.approx(10.0)
        assert isinstance(found["g"], RequestTimedOut)
        assert len(env.cluster.history.of("DescribeGroups")) == 1


Call = Callable[[Admin], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "ConsumerGroupDescribe": lambda admin: admin.describe_groups(["g"]),
    "DeleteGroups": lambda admin: admin.delete_groups(["g"]),
    "OffsetCommit": lambda admin: admin.alter_group_offsets("g", {ZERO: 0}),
    "OffsetFetch": lambda admin: admin.list_group_offsets("g"),
    "OffsetDelete": lambda admin: admin.delete_group_offsets("g", [ZERO]),
    "CreateTopics": lambda admin: admin.create_topics({"a": 1}),
    "DeleteTopics": lambda admin: admin.delete_topics(["orders"]),
    "CreatePartitions": lambda admin: admin.create_partitions({"orders": 9}),
    "DeleteRecords": lambda admin: admin.delete_records({ZERO: None}),
    "DescribeConfigs": lambda admin: admin.describe_configs("topic", ["orders"]),
    "Metadata": lambda admin: admin.list_topics(),
    "DescribeTopicPartitions": lambda admin: admin.describe_topics(["orders"]),
}


QUICK = ("DeleteGroups", "OffsetFetch", "CreateTopics", "Metadata")


@pytest.mark.parametrize(
    "api", [*QUICK, *(pytest.param(api, marks=pytest.mark.full) for api in CALLS if api not in QUICK)]
)
async def test_a_request_in_flight_ends_with_the_call(env: VirtualEnvironment, api: str) -> None:
    async with Admin(env.bootstrap_servers, timeout=3.0) as admin:
        env.cluster.faults.on(api, times=None).drop()
        begun = now()
        try:
            found = await CALLS[api](admin)
        except AsyncGroupError as error:
            errors = [error]
        else:
            errors = list(found.errors.values())
        assert now() - begun == pytest.approx(3.0)
        (error,) = errors
        assert isinstance(error, RequestTimedOut)
        assert api in str(error)


async def test_a_lookup_in_flight_ends_with_the_call_and_names_it(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers, timeout=3.0) as admin:
        env.cluster.faults.on("FindCoordinator", times=None).drop()
        (error,) = (await admin.delete_groups(["g"])).errors.values()
        assert str(error).startswith("lookup of the node for DeleteGroups: no answer in time")


async def test_without_a_timeout_each_request_is_sent_once(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers, timeout=0) as admin:
        (await admin.alter_group_offsets("g", {ZERO: 0})).raise_first()
        assert set((await admin.list_group_offsets("g")).raise_first()) == {ZERO}
        assert [group.group_id for group in (await admin.list_groups()).raise_first()] == ["g"]
        env.cluster.faults.on("ListGroups", node=1).error("COORDINATOR_LOAD_IN_PROGRESS")
        assert list((await admin.list_groups()).errors) == [1]


async def test_without_a_timeout_a_response_has_the_request_timeout(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers, ClientConfig(request_timeout=7.0), timeout=0) as admin:
        (await admin.alter_group_offsets("g", {ZERO: 0})).raise_first()
        for api, call, seconds in (
            ("OffsetFetch", admin.list_group_offsets("g"), 7.0),
            ("ListGroups", admin.list_groups(), 5.0),
        ):
            env.cluster.faults.on(api, times=3).drop()
            begun = now()
            with pytest.raises(RequestTimedOut):
                (await call).raise_first()  # type: ignore[attr-defined]
            assert now() - begun == pytest.approx(seconds)
            assert len(env.cluster.history.of(api)) == (1 if api == "OffsetFetch" else 3)
        env.cluster.faults.clear()


async def test_a_created_topic_is_a_success_if_only_a_silent_node_is_left_at_the_deadline(
    env: VirtualEnvironment,
) -> None:
    async with Admin(env.bootstrap_servers, timeout=3.0) as admin:
        silent = admin._client.view.controller_id % 3 + 1
        env.cluster.faults.on("Metadata", node=silent, times=None).drop()
        begun = now()
        (await admin.create_topics({"a": 2})).raise_first()
        assert now() - begun == pytest.approx(3.0)


async def test_a_frozen_node_that_is_not_connected_is_not_waited_for_longer(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers, ClientConfig(connect_timeout=30.0)) as admin:
        frozen = admin._client.view.controller_id % 3 + 1
        env.network.blackhole(HOST, port_of(env, frozen))
        env.network.cut(HOST, port_of(env, frozen))
        begun = now()
        (await admin.create_topics({"a": 2})).raise_first()
        assert now() - begun == pytest.approx(NODE_TIMEOUT, abs=1.1)


@pytest.mark.parametrize("former", ["Empty", pytest.param("Dead", marks=pytest.mark.full), "Stable"])
async def test_a_group_that_two_nodes_list_is_listed_once_with_the_live_state(
    admin: Admin, env: VirtualEnvironment, former: str
) -> None:
    """The former coordinator has a lower node id than the new one, or a higher one."""
    live = "Dead" if former == "Stable" else "Stable"

    def listed(state: str) -> Callable[[Any], Any]:
        def change(response: Any) -> Any:
            group = m.ListGroupsResponse.ListedGroup("g", "consumer", state, "classic")
            response.groups = [group]
            return response

        return change

    env.cluster.faults.on("ListGroups", node=1).mutate(listed(former))
    env.cluster.faults.on("ListGroups", node=2).mutate(listed(live))
    (group,) = (await admin.list_groups()).raise_first()
    assert (group.group_id, group.state) == ("g", "Stable")


async def test_an_error_of_the_broker_is_final_before_the_deadline(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        env.cluster.faults.on("ListGroups", node=2, times=None).error("CLUSTER_AUTHORIZATION_FAILED")
        begun = now()
        found = await admin.list_groups()
        assert now() - begun < 1.0
        assert isinstance(found.errors[2], BrokerError)


async def test_a_silent_node_costs_a_list_of_transactions_a_few_seconds(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        env.cluster.faults.on("ListTransactions", node=2, times=None).drop()
        begun = now()
        found = await admin.transactions.list()
        assert now() - begun == pytest.approx(NODE_TIMEOUT)
        assert list(found.errors) == [2]


async def test_a_silent_coordinator_costs_described_groups_a_few_seconds(env: VirtualEnvironment) -> None:
    """The groups of other coordinators are described in the second request, as classic ones."""
    names = [f"g{number}" for number in range(12)]
    for name in names:
        env.cluster.commit(name, {ZERO: 0})
    silent = env.cluster.coordinator("g0")
    lost = {name for name in names if env.cluster.coordinator(name) == silent}
    env.cluster.faults.on("ConsumerGroupDescribe", node=silent, times=None).drop()
    async with Admin(env.bootstrap_servers) as admin:
        begun = now()
        found = await admin.describe_groups(names)
        assert now() - begun == pytest.approx(NODE_TIMEOUT, abs=0.1)
        assert set(found.errors) == lost
        assert set(found.values_by_name) == set(names) - lost
        assert list(found) == [*(name for name in names if name not in lost), *found.errors]


async def test_a_coordinator_that_moved_is_asked_again_while_another_is_silent(
    env: VirtualEnvironment,
) -> None:
    names = [f"g{number}" for number in range(12)]
    for name in names:
        env.cluster.commit(name, {ZERO: 0})
    silent = env.cluster.coordinator("g0")
    lost = {name for name in names if env.cluster.coordinator(name) == silent}
    env.cluster.faults.on("DeleteGroups", node=silent, times=None).drop()
    for node in {1, 2, 3} - {silent}:
        env.cluster.faults.on("DeleteGroups", node=node, times=2).error("NOT_COORDINATOR")
    async with Admin(env.bootstrap_servers, timeout=10.0) as admin:
        found = await admin.delete_groups(names)
        assert set(found.errors) == lost
        assert set(found.values_by_name) == set(names) - lost


async def test_records_are_deleted_at_a_leader_that_moved_while_another_is_silent(
    env: VirtualEnvironment,
) -> None:
    tps = [TopicPartition("orders", number) for number in range(4)]
    for tp in tps:
        env.cluster.produce("orders", b"x", b"x", partition=tp.partition)
    silent = env.cluster.leader(*ZERO)
    lost = {tp for tp in tps if env.cluster.leader(*tp) == silent}
    env.cluster.faults.on("DeleteRecords", node=silent, times=None).drop()
    for node in {1, 2, 3} - {silent}:
        env.cluster.faults.on("DeleteRecords", node=node, times=2).error("NOT_LEADER_OR_FOLLOWER")
    async with Admin(env.bootstrap_servers, timeout=10.0) as admin:
        found = await admin.delete_records(dict.fromkeys(tps, 1))
        assert set(found.errors) == lost
        assert set(found.values_by_name) == set(tps) - lost
