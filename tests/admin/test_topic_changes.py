"""Admin: topics created and deleted, partitions added, records deleted; lost responses, moved controllers, silent nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import BrokerError, ConfigError, ErrorCode, Producer, TopicPartition
from asyncgroup.admin import Admin, NewPartitions, NewTopic
from tests.stories.virtual import VirtualEnvironment


def codes(results: Any) -> dict[Any, str]:
    """Return the name of each error code."""
    return {name: error.name for name, error in results.errors.items()}


def replicas(env: VirtualEnvironment, topic: str) -> list[list[int]]:
    return [list(partition.replicas) for partition in env.cluster.topic(topic).partitions]


async def test_topics_are_created_with_partitions_replicas_and_configs(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        made = await admin.create_topics(
            {
                "a": 3,
                "b": NewTopic(2, 1, {"retention.ms": "60000"}),
                "c": NewTopic(assignments=[[1, 2], [2, 3]]),
                "d": None,
                "orders": 9,
            }
        )
        assert sorted(made.values_by_name) == ["a", "b", "c", "d"]
        assert codes(made) == {"orders": "TOPIC_ALREADY_EXISTS"}
        assert [len(replicas(env, name)) for name in ("a", "b", "orders")] == [3, 2, 4]
        assert replicas(env, "c") == [[1, 2], [2, 3]]
        assert env.cluster.topic("b").configs["retention.ms"] == "60000"
        described = (await admin.describe_topics(made.values_by_name)).raise_first()
        assert all(part.leader is not None for topic in described.values() for part in topic.partitions)


async def test_a_dry_run_changes_nothing(admin: Admin, env: VirtualEnvironment) -> None:
    checked = await admin.create_topics({"a": 3, "orders": 1}, validate_only=True)
    assert list(checked.values_by_name) == ["a"]
    assert codes(checked) == {"orders": "TOPIC_ALREADY_EXISTS"}
    checked = await admin.create_partitions({"orders": 6, "none": 2}, validate_only=True)
    assert list(checked.values_by_name) == ["orders"]
    assert codes(checked) == {"none": "UNKNOWN_TOPIC_OR_PARTITION"}
    assert env.cluster.topics == ["orders"]
    assert len(replicas(env, "orders")) == 4


@pytest.mark.parametrize("fault", ["lost", "silent", "times_out"])
async def test_a_topic_that_a_request_without_response_created_is_a_success(
    env: VirtualEnvironment, fault: str
) -> None:
    def timed_out(response: Any) -> Any:
        response.topics[0].error_code = ErrorCode.REQUEST_TIMED_OUT
        return response

    on = env.cluster.faults.on("CreateTopics")
    if fault == "lost":
        on.disconnect("after")
    elif fault == "silent":
        on.mutate(lambda response: response).delay(40.0)
    else:
        on.mutate(timed_out)
    async with Admin(env.bootstrap_servers, timeout=120.0) as admin:
        made = await admin.create_topics({"a": 3, "orders": 3})
        assert list(made.values_by_name)[:1] == ["a"]
        if fault == "times_out":
            assert codes(made) == {"orders": "TOPIC_ALREADY_EXISTS"}
    assert env.cluster.topics == ["a", "orders"]


async def test_names_that_a_response_lacks_may_be_done(env: VirtualEnvironment) -> None:
    def first(parts: str) -> Any:
        def changed(response: Any) -> Any:
            setattr(response, parts, getattr(response, parts)[:1])
            return response

        return changed

    env.cluster.faults.on("CreateTopics").mutate(first("topics"))
    env.cluster.faults.on("CreatePartitions").mutate(first("results"))
    env.cluster.faults.on("DeleteTopics").mutate(first("responses"))
    async with Admin(env.bootstrap_servers) as admin:
        (await admin.create_topics({"a": 1, "b": 1})).raise_first()
        (await admin.create_partitions({"a": 2, "b": 2})).raise_first()
        (await admin.delete_topics(["a", "b"])).raise_first()
        assert env.cluster.topics == ["orders"]


@pytest.mark.parametrize("wanted", [6, NewTopic(4, 2), NewTopic(assignments=[[1]])])
async def test_another_topic_is_not_what_a_request_without_response_created(
    env: VirtualEnvironment, wanted: NewTopic | int
) -> None:
    env.cluster.faults.on("CreateTopics").disconnect("after")
    async with Admin(env.bootstrap_servers) as admin:
        begun = asyncio.get_running_loop().time()
        made = await admin.create_topics({"orders": wanted, "a": 1})
        assert (list(made.values_by_name), codes(made)) == (["a"], {"orders": "TOPIC_ALREADY_EXISTS"})
        assert asyncio.get_running_loop().time() - begun < 1


async def test_a_topic_that_another_request_created_is_an_error(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("CreateTopics").error("NOT_CONTROLLER")
    async with Admin(env.bootstrap_servers) as admin:
        assert codes(await admin.create_topics({"orders": 3})) == {"orders": "TOPIC_ALREADY_EXISTS"}


async def test_a_moved_controller_is_asked_again(env: VirtualEnvironment) -> None:
    for api in ("CreateTopics", "CreatePartitions", "DeleteTopics"):
        env.cluster.faults.on(api, times=2).error("NOT_CONTROLLER")
    async with Admin(env.bootstrap_servers) as admin:
        (await admin.create_topics({"a": 1})).raise_first()
        (await admin.create_partitions({"a": 2})).raise_first()
        assert len(replicas(env, "a")) == 2
        (await admin.delete_topics(["a"])).raise_first()
    assert env.cluster.topics == ["orders"]


async def test_without_a_timeout_nothing_is_repeated(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("CreateTopics").error("NOT_CONTROLLER")
    async with Admin(env.bootstrap_servers, timeout=0) as admin:
        assert codes(await admin.create_topics({"a": 1})) == {"a": "NOT_CONTROLLER"}


async def test_a_created_topic_is_known_to_every_node_with_its_leaders(env: VirtualEnvironment) -> None:
    def unknown(response: Any) -> Any:
        for topic in response.topics:
            topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
        return response

    def leaderless(response: Any) -> Any:
        response.topics[0].partitions[1].leader_id = -1
        return response

    def named(request: Any) -> bool:
        return any(topic.name == "a" for topic in request.topics or ())

    env.cluster.faults.on("Metadata", node=2, where=named, times=2).mutate(unknown)
    env.cluster.faults.on("Metadata", node=3, where=named, times=3).mutate(leaderless)
    async with Admin(env.bootstrap_servers) as admin:
        (await admin.create_topics({"a": 2})).raise_first()
        asked = [each.node_id for each in env.cluster.history.of("Metadata") if named(each.request)]
        assert [asked.count(node) for node in (1, 2, 3)] == [1, 3, 4]


async def test_a_node_that_never_knows_the_topic_is_named(env: VirtualEnvironment) -> None:
    def leaderless(response: Any) -> Any:
        for topic in response.topics:
            topic.partitions[0].leader_id = -1
        return response

    env.cluster.faults.on("Metadata", node=2, times=None).mutate(leaderless)
    async with Admin(env.bootstrap_servers, timeout=5.0) as admin:
        made = await admin.create_topics({"a": 2})
        assert codes(made) == {"a": "LEADER_NOT_AVAILABLE"}
        assert "the change is made, but node 2 knows no leader of partition 0" in str(made["a"])
    assert "a" in env.cluster.topics


async def test_a_silent_node_is_not_waited_for(admin: Admin, env: VirtualEnvironment) -> None:
    controller = admin._client.view.controller_id
    silent = next(node for node in (1, 2, 3) if node != controller)
    env.cluster.faults.on("Metadata", node=silent, times=None).drop()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    (await admin.create_topics({"a": 2})).raise_first()
    assert 4.9 < loop.time() - begun < 7.0


async def test_topics_are_deleted_each_by_itself(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("a", 1)
    env.cluster.faults.on("DeleteTopics").disconnect("after")
    async with Admin(env.bootstrap_servers) as admin:
        gone = await admin.delete_topics(["a", "none"])
        assert list(gone.values_by_name) == ["a"]  # by the request whose response was lost
        assert codes(gone) == {"none": "UNKNOWN_TOPIC_OR_PARTITION"}
        assert not await admin.delete_topics([])
    assert env.cluster.topics == ["orders"]


async def test_partitions_are_added(admin: Admin, env: VirtualEnvironment) -> None:
    added = await admin.create_partitions({"orders": 6, "none": 2})
    assert codes(added) == {"none": "UNKNOWN_TOPIC_OR_PARTITION"}
    request = env.cluster.history.of("CreatePartitions")[-1].request
    assert [topic.assignments for topic in request.topics] == [None, None]
    (await admin.create_partitions({"orders": NewPartitions(7, [[3, 1]])})).raise_first()
    assert replicas(env, "orders")[6] == [3, 1]
    assert codes(await admin.create_partitions({"orders": 7})) == {"orders": "INVALID_PARTITIONS"}
    described = await admin.describe_topics(["orders"])
    assert len(described.raise_first()["orders"].partitions) == 7


@pytest.mark.parametrize(("total", "expected"), [(6, {}), (3, {"orders": "INVALID_PARTITIONS"})])
async def test_partitions_that_a_lost_request_added_are_a_success(
    env: VirtualEnvironment, total: int, expected: dict[str, str]
) -> None:
    env.cluster.faults.on("CreatePartitions").disconnect("after")
    async with Admin(env.bootstrap_servers) as admin:
        assert codes(await admin.create_partitions({"orders": total})) == expected
    assert len(env.cluster.history.of("CreatePartitions")) == 2


async def test_records_are_deleted(env: VirtualEnvironment) -> None:
    places = [TopicPartition("orders", number) for number in range(3)]
    async with Producer(env.bootstrap_servers) as producer:
        for tp in places:
            for _ in range(5):
                await producer.send("orders", b"x", partition=tp.partition)
    async with Admin(env.bootstrap_servers) as admin:
        env.cluster.faults.on("DeleteRecords").error("NOT_LEADER_OR_FOLLOWER")
        missing, other = TopicPartition("orders", 9), TopicPartition("none", 0)
        deleted = await admin.delete_records(
            {places[0]: 3, places[1]: None, places[2]: 6, missing: 1, other: 1}
        )
        assert deleted.values_by_name == {places[0]: 3, places[1]: 5}
        assert codes(deleted) == {
            places[2]: "OFFSET_OUT_OF_RANGE",
            missing: "UNKNOWN_TOPIC_OR_PARTITION",
            other: "UNKNOWN_TOPIC_OR_PARTITION",
        }
        assert "deleting records of orders-9: UNKNOWN_TOPIC_OR_PARTITION" in str(deleted[missing])
        assert not await admin.delete_records({})


async def test_a_repeated_deletion_keeps_what_was_written_after_the_first_one(
    env: VirtualEnvironment,
) -> None:
    place, plain = TopicPartition("orders", 0), TopicPartition("orders", 1)
    async with Producer(env.bootstrap_servers) as producer, Admin(env.bootstrap_servers) as admin:
        for _ in range(5):
            await producer.send("orders", b"old", partition=0)
            await producer.send("orders", b"old", partition=1)
        node = env.cluster.leader("orders", 0)
        env.cluster.faults.on("DeleteRecords", node=node).disconnect("after")
        repeated = env.cluster.faults.on("DeleteRecords", node=node, nth=2).hold()
        deleting = asyncio.create_task(admin.delete_records({place: None, plain: 2}))
        await repeated.wait_hit()
        await producer.send("orders", b"new", partition=0)
        repeated.release()
        assert (await deleting).raise_first() == {place: 5, plain: 2}
        assert (await admin.list_offsets({place: "latest"})).raise_first()[place].offset == 6


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    cases: list[tuple[str, Any]] = [
        ("topic", lambda admin: admin.create_topics({"no/topic": 1})),
        ("partitions=0", lambda admin: admin.create_topics({"a": 0})),
        ("replication_factor=0", lambda admin: admin.create_topics({"a": NewTopic(1, 0)})),
        ("beside assignments", lambda admin: admin.create_topics({"a": NewTopic(1, assignments=[[1]])})),
        ("assignments", lambda admin: admin.create_topics({"a": NewTopic(assignments=[[]])})),
        ("retention.ms", lambda admin: admin.create_topics({"a": NewTopic(1, configs={"retention.ms": 5})})),  # type: ignore[dict-item]
        ("a mapping", lambda admin: admin.create_topics(["a"])),
        ("partitions of 'a'", lambda admin: admin.create_partitions({"a": "2"})),
        ("node ids", lambda admin: admin.create_partitions({"a": NewPartitions(2, 3)})),  # type: ignore[arg-type]
        ("topic", lambda admin: admin.delete_topics([""])),
        ("offset=-1", lambda admin: admin.delete_records({TopicPartition("a", 0): -1})),
        ("partition=", lambda admin: admin.delete_records({"a": 1})),
    ]
    for text, call in cases:
        with pytest.raises(ConfigError, match=text):
            await call(admin)
    assert not env.cluster.history.of("CreateTopics", "CreatePartitions", "DeleteTopics", "DeleteRecords")


async def test_an_error_of_a_broker_is_that_of_its_topic(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("CreateTopics", topic="b").error("POLICY_VIOLATION")
    async with Admin(env.bootstrap_servers) as admin:
        made = await admin.create_topics({"a": 1, "b": 1})
        assert isinstance(made["b"], BrokerError)
        assert codes(made) == {"b": "POLICY_VIOLATION"}


async def test_a_topic_that_the_user_may_create_but_not_describe_is_created(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("Metadata", topic="secret", times=None).error("TOPIC_AUTHORIZATION_FAILED")
    async with Admin(env.bootstrap_servers) as admin:
        (await admin.create_topics({"secret": 1})).raise_first()
        assert "secret" in env.cluster.topics
