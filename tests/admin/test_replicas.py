"""Admin, replicas: leaders are elected and partitions reassigned, each with its own error; a lost response changes no outcome."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup import BrokerError, ConfigError, ErrorCode, TopicPartition, UnsupportedVersionError
from asyncgroup.admin import Admin, ReassignmentDescription
from asyncgroup.wire import messages as m
from tests.admin.test_brokers import changed, code
from tests.stories.holding import limit_version
from tests.stories.virtual import VirtualEnvironment

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
MISSING = TopicPartition("orders", 99)


async def move_leaders(env: VirtualEnvironment) -> dict[TopicPartition, int]:
    """Move the leaders of two partitions away from their preferred replicas; return these."""
    preferred = {tp: env.cluster.leader(*tp) for tp in (ZERO, ONE)}
    for tp, node in preferred.items():
        env.cluster.move_leader(*tp, node % 3 + 1)
    return preferred


async def test_preferred_leaders_are_elected(env: VirtualEnvironment) -> None:
    preferred = await move_leaders(env)
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.replicas.elect_leaders("preferred", [ZERO, TopicPartition("orders", 2), MISSING])
        assert found.values_by_name == {ZERO: True, TopicPartition("orders", 2): False}
        assert code(found[MISSING]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert env.cluster.leader(*ZERO) == preferred[ZERO]
        rest = await admin.replicas.elect_leaders()
        assert rest.raise_first() == {ONE: True}
        assert not await admin.replicas.elect_leaders()


async def test_a_preferred_leader_that_is_down_is_an_error_of_its_own(env: VirtualEnvironment) -> None:
    down = (await move_leaders(env))[ZERO]
    await env.cluster.stop_node(down)
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.replicas.elect_leaders("preferred", [ZERO, ONE])
        assert code(found[ZERO]) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert str(found[ZERO]).startswith("electing a leader of orders-0: PREFERRED_LEADER_NOT_AVAILABLE")
        assert len(env.cluster.history.of("ElectLeaders")) == 1


async def test_an_unclean_election(admin: Admin, env: VirtualEnvironment) -> None:
    found = await admin.replicas.elect_leaders("unclean", [ZERO])
    assert found.raise_first() == {ZERO: False}
    (exchange,) = env.cluster.history.of("ElectLeaders")
    assert exchange.request.election_type == 1


async def test_an_old_controller_elects_preferred_leaders_only(env: VirtualEnvironment) -> None:
    preferred = await move_leaders(env)
    limit_version(env.cluster, m.ElectLeadersRequest.API_KEY, 0)
    async with Admin(env.bootstrap_servers) as admin:
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 2\.4"):
            await admin.replicas.elect_leaders("unclean")
        assert (await admin.replicas.elect_leaders("preferred", [ZERO])).raise_first() == {ZERO: True}
        assert env.cluster.leader(*ZERO) == preferred[ZERO]


async def test_an_election_whose_response_is_lost_has_been_held(env: VirtualEnvironment) -> None:
    preferred = await move_leaders(env)
    async with Admin(env.bootstrap_servers) as admin:
        env.cluster.faults.on("ElectLeaders").error("NOT_CONTROLLER")
        env.cluster.faults.on("ElectLeaders").disconnect("after")
        found = await admin.replicas.elect_leaders("preferred", [ZERO])
        assert found.raise_first() == {ZERO: False}
        assert env.cluster.leader(*ZERO) == preferred[ZERO]


async def test_a_partition_is_reassigned(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        wanted = {ZERO: [3, 1], ONE: [9], MISSING: [1]}
        env.cluster.faults.on("AlterPartitionReassignments").error("NOT_CONTROLLER")
        found = await admin.replicas.alter_reassignments(wanted)
        assert list(found.values_by_name) == [ZERO]
        assert code(found[ONE]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert code(found[MISSING]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        described = (await admin.describe_topics(["orders"])).raise_first()["orders"]
        assert described.partitions[0].replicas == (3, 1)
        assert await admin.replicas.list_reassignments() == {}
        fixed = await admin.replicas.alter_reassignments({ZERO: [3]}, allow_replication_factor_change=False)
        assert code(fixed[ZERO]) == ErrorCode.INVALID_REPLICATION_FACTOR
    limit_version(env.cluster, m.AlterPartitionReassignmentsRequest.API_KEY, 0)
    async with Admin(env.bootstrap_servers) as admin:
        fixed = await admin.replicas.alter_reassignments({ZERO: [3]}, allow_replication_factor_change=False)
        assert "Kafka 4.1" in str(fixed[ZERO])


async def test_reassignments_in_progress_are_listed(admin: Admin, env: VirtualEnvironment) -> None:
    response = m.ListPartitionReassignmentsResponse

    def add(answer: Any) -> None:
        part = response.OngoingPartitionReassignment(0, [3, 1, 2], [3], [2])
        answer.topics.append(response.OngoingTopicReassignment("orders", [part]))

    env.cluster.faults.on("ListPartitionReassignments").error("NOT_CONTROLLER")
    env.cluster.faults.on("ListPartitionReassignments").mutate(changed(add))
    found = await admin.replicas.list_reassignments([ZERO, ONE])
    assert found == {ZERO: ReassignmentDescription((3, 1, 2), (3,), (2,))}
    assert found[ZERO].target == (3, 1)
    exchange = env.cluster.history.of("ListPartitionReassignments")[-1]
    assert [(each.name, each.partition_indexes) for each in exchange.request.topics] == [("orders", [0, 1])]
    env.cluster.faults.on("ListPartitionReassignments").error("CLUSTER_AUTHORIZATION_FAILED")
    with pytest.raises(BrokerError, match="reassignments in progress: CLUSTER_AUTHORIZATION_FAILED"):
        await admin.replicas.list_reassignments()


async def test_a_cancellation(admin: Admin, env: VirtualEnvironment) -> None:
    found = await admin.replicas.cancel_reassignments([ZERO])
    assert code(found[ZERO]) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert str(found[ZERO]).startswith("cancelling the reassignment of orders-0: ")
    # after a request without a response there is nothing to cancel because that one has cancelled it
    env.cluster.faults.on("AlterPartitionReassignments").disconnect("after")
    assert not (await admin.replicas.cancel_reassignments([ZERO])).errors


async def test_a_replica_moves_to_another_log_directory(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("single", 3, 1)
    places = {number: env.cluster.leader("single", number) for number in range(3)}
    (here,) = (TopicPartition("single", number) for number, node in places.items() if node == 2)
    (elsewhere,) = (TopicPartition("single", number) for number, node in places.items() if node == 3)
    missing = TopicPartition("single", 9)
    async with Admin(env.bootstrap_servers) as admin:
        ((directory,),) = (await admin.brokers.log_dirs(2)).raise_first().values()
        path = directory.path
        env.cluster.faults.on("AlterReplicaLogDirs").disconnect("after")
        found = await admin.replicas.alter_log_dirs(2, {here: path, elsewhere: path, missing: path})
        assert list(found.values_by_name) == [here]
        assert code(found[elsewhere]) == ErrorCode.REPLICA_NOT_AVAILABLE
        assert code(found[missing]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = await admin.replicas.alter_log_dirs(2, {here: "/nowhere"})
        assert str(found[here]).startswith(f"moving {here} of node 2 to '/nowhere': LOG_DIR_NOT_FOUND (57)")
        assert {each.node_id for each in env.cluster.history.of("AlterReplicaLogDirs")} == {2}


async def test_a_node_without_an_answer_about_its_log_directories(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers, timeout=20) as admin:
        await env.cluster.stop_node(3)
        for node in (3, 9):
            found = await admin.replicas.alter_log_dirs(node, {ZERO: "/d", ONE: "/e"})
            assert list(found.errors) == [ZERO, ONE]
            assert not isinstance(found[ZERO], BrokerError)


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    calls: list[tuple[str, Any]] = [
        ("election_type='clean'", admin.replicas.elect_leaders("clean")),  # type: ignore[arg-type]
        ("partition", admin.replicas.elect_leaders("preferred", ["orders"])),  # type: ignore[list-item]
        ("partition", admin.replicas.list_reassignments([("orders", -1)])),  # type: ignore[list-item]
        ("a mapping", admin.replicas.alter_reassignments([ZERO])),  # type: ignore[arg-type]
        ("replicas of orders-0 of type int", admin.replicas.alter_reassignments({ZERO: 1})),  # type: ignore[dict-item]
        ("one node id or more", admin.replicas.alter_reassignments({ZERO: []})),
        ("each once", admin.replicas.alter_reassignments({ZERO: [1, 1]})),
        ("replicas of orders-0=-1", admin.replicas.alter_reassignments({ZERO: [-1]})),
        ("node=-1", admin.replicas.alter_log_dirs(-1, {ZERO: "/d"})),
        ("a mapping", admin.replicas.alter_log_dirs(1, [ZERO])),  # type: ignore[arg-type]
        ("log directory of orders-0=''", admin.replicas.alter_log_dirs(1, {ZERO: ""})),
        ("log directory of orders-0=1", admin.replicas.alter_log_dirs(1, {ZERO: 1})),  # type: ignore[dict-item]
        ("topic='a/b'", admin.replicas.cancel_reassignments([TopicPartition("a/b", 0)])),
    ]
    for text, call in calls:
        with pytest.raises(ConfigError, match=text):
            await call
    apis = (
        "ElectLeaders",
        "ListPartitionReassignments",
        "AlterPartitionReassignments",
        "AlterReplicaLogDirs",
    )
    assert not env.cluster.history.of(*apis)
