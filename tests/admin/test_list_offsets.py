"""Admin, offsets of partitions: ends, times, special timestamps, isolation levels; errors of single partitions and leaders."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from asyncgroup import BrokerError, ConfigError, Producer, ProducerConfig, TopicPartition
from asyncgroup.admin import Admin, ListOffsetsResultInfo, OffsetSpec
from asyncgroup.cluster.requests.budget import NODE_TIMEOUT
from asyncgroup.errors import RequestTimedOut, UnsupportedVersionError
from asyncgroup.wire import messages as m
from tests.stories.holding import limit_version
from tests.stories.virtual import VirtualEnvironment, now

TPS = [TopicPartition("orders", number) for number in range(4)]
ZERO, ONE, TWO, THREE = TPS


def codes(results: Any) -> dict[Any, str]:
    return {name: error.name for name, error in results.errors.items()}


def fill(env: VirtualEnvironment, partition: int = 0) -> None:
    """Write the records of the timestamps 1000, 3000 and 2000."""
    for timestamp in (1000, 3000, 2000):
        env.cluster.produce("orders", b"x", partition=partition, timestamp=timestamp)


async def test_each_spec(admin: Admin, env: VirtualEnvironment) -> None:
    fill(env)
    (await admin.delete_records({ZERO: 1})).raise_first()

    async def at(spec: OffsetSpec) -> tuple[int | None, int | None]:
        found = (await admin.list_offsets({ZERO: spec})).raise_first()[ZERO]
        return found.offset, found.timestamp

    assert await at("earliest") == (1, None)
    assert await at("earliest-local") == (1, None)
    assert await at("latest") == (3, None)
    assert await at("max-timestamp") == (1, 3000)
    assert await at(1500) == (1, 3000)
    assert await at(datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)) == (1, 3000)
    assert await at(datetime(1970, 1, 1, 0, 0, 3, 1, tzinfo=UTC)) == (None, None)
    assert await at("latest-tiered") == (None, None)
    assert await at("earliest-pending-upload") == (None, None)


async def test_the_leader_epoch_is_that_of_the_record_or_of_the_end(env: VirtualEnvironment) -> None:
    env.cluster.produce("orders", b"x", partition=0, timestamp=1000)
    for node in (1, 2, 3):
        env.cluster.move_leader("orders", 0, node)
    env.cluster.produce("orders", b"x", partition=0, timestamp=2000)
    epoch = env.cluster.topic("orders").partitions[0].leader_epoch
    async with Admin(env.bootstrap_servers) as admin:
        assert (await admin.list_offsets({ZERO: 1000})).raise_first() == {
            ZERO: ListOffsetsResultInfo(0, 1000, 0)
        }
        found = (await admin.list_offsets({ZERO: "latest"})).raise_first()[ZERO]
        assert (found.offset, found.leader_epoch) == (2, epoch)
        assert epoch >= 2


async def test_the_last_stable_offset(env: VirtualEnvironment) -> None:
    fill(env)
    async with (
        Admin(env.bootstrap_servers) as admin,
        Producer(env.bootstrap_servers, ProducerConfig(transactional_id="t")) as producer,
    ):
        async with producer.transaction():
            await producer.send("orders", b"x", partition=0)

            async def end(level: Any) -> int | None:
                found = await admin.list_offsets({ZERO: "latest"}, isolation_level=level)
                return found.raise_first()[ZERO].offset

            assert await end("read_committed") == 3
            assert await end("read_uncommitted") == 4
        assert await end("read_committed") == await end("read_uncommitted") == 5


async def test_one_request_to_each_leader(admin: Admin, env: VirtualEnvironment) -> None:
    found = (await admin.list_offsets(dict.fromkeys(TPS, "latest"))).raise_first()
    assert list(found) == TPS
    leaders = {env.cluster.leader(*tp) for tp in TPS}
    assert sorted(each.node_id for each in env.cluster.history.of("ListOffsets")) == sorted(leaders)
    assert not await admin.list_offsets({})


async def test_each_partition_has_its_own_error(env: VirtualEnvironment) -> None:
    missing, other = TopicPartition("orders", 9), TopicPartition("none", 0)

    def refuse(response: Any) -> Any:
        for topic in response.topics:
            for part in topic.partitions:
                if part.partition_index == 1:
                    part.error_code = 29
        return response

    env.cluster.faults.on("ListOffsets", node=env.cluster.leader(*ONE)).mutate(refuse)
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.list_offsets(dict.fromkeys([*TPS, missing, other], "latest"))
        assert set(found.values_by_name) == {ZERO, TWO, THREE}
        assert codes(found) == {
            missing: "UNKNOWN_TOPIC_OR_PARTITION",
            other: "UNKNOWN_TOPIC_OR_PARTITION",
            ONE: "TOPIC_AUTHORIZATION_FAILED",
        }
        assert str(found[missing]).startswith("offset of orders-9: UNKNOWN_TOPIC_OR_PARTITION")
    assert env.cluster.topics == ["orders"]


async def test_a_moved_leader_is_found(admin: Admin, env: VirtualEnvironment) -> None:
    fill(env)
    (await admin.list_offsets({ZERO: "latest"})).raise_first()
    env.cluster.faults.on("ListOffsets").error("NOT_LEADER_OR_FOLLOWER")
    env.cluster.faults.on("ListOffsets").error("FENCED_LEADER_EPOCH")
    env.cluster.faults.on("ListOffsets").disconnect()
    assert (await admin.list_offsets({ZERO: "latest"})).raise_first()[ZERO].offset == 3


async def test_a_silent_leader_costs_a_few_seconds_and_the_others_nothing(env: VirtualEnvironment) -> None:
    """The other leaders' partitions are repeated during that time."""
    silent = env.cluster.leader(*ZERO)
    lost = [tp for tp in TPS if env.cluster.leader(*tp) == silent]
    env.cluster.faults.on("ListOffsets", node=silent, times=None).drop()
    for node in {1, 2, 3} - {silent}:
        env.cluster.faults.on("ListOffsets", node=node, times=3).error("OFFSET_NOT_AVAILABLE")
    async with Admin(env.bootstrap_servers) as admin:
        begun = now()
        found = await admin.list_offsets(dict.fromkeys(TPS, "latest"))
        assert now() - begun == pytest.approx(NODE_TIMEOUT, abs=0.1)
        assert set(found.values_by_name) == set(TPS) - set(lost)
        assert set(found.errors) == set(lost)
        assert all(isinstance(error, RequestTimedOut) for error in found.errors.values())
        assert f"ListOffsets to node {silent}: no answer in time" in str(found[ZERO])


async def test_a_partition_without_a_leader_costs_the_others_nothing(env: VirtualEnvironment) -> None:
    def leaderless(response: Any) -> Any:
        for topic in response.topics:
            for part in topic.partitions:
                if part.partition_index == 0:
                    part.leader_id = -1
        return response

    env.cluster.faults.on("Metadata", times=None).mutate(leaderless)
    async with Admin(env.bootstrap_servers) as admin:
        begun = now()
        found = await admin.list_offsets(dict.fromkeys(TPS, "latest"))
        assert now() - begun <= NODE_TIMEOUT
        assert codes(found) == {ZERO: "LEADER_NOT_AVAILABLE"}
        assert set(found.values_by_name) == {ONE, TWO, THREE}


async def test_a_leader_that_lacks_a_spec_refuses_its_partitions_only(env: VirtualEnvironment) -> None:
    limit_version(env.cluster, m.ListOffsetsRequest.API_KEY, 7)
    fill(env)
    async with Admin(env.bootstrap_servers) as admin:
        wanted: dict[TopicPartition, OffsetSpec] = {
            ZERO: "max-timestamp",
            ONE: "earliest-local",
            TWO: "latest-tiered",
            THREE: "earliest-pending-upload",
        }
        found = await admin.list_offsets(wanted)
        assert found.values_by_name[ZERO].offset == 1
        for tp, text in (ONE, "KIP-405"), (TWO, "KIP-1005"), (THREE, "KIP-1023"):
            assert isinstance(found[tp], UnsupportedVersionError)
            assert text in str(found[tp])
            assert f"offset of {tp}" in str(found[tp])


async def test_a_refused_spec_does_not_delay_a_partition_of_the_same_leader(
    env: VirtualEnvironment,
) -> None:
    limit_version(env.cluster, m.ListOffsetsRequest.API_KEY, 6)
    node = env.cluster.leader(*ZERO)
    env.cluster.move_leader("orders", 1, node)
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.list_offsets({ZERO: "max-timestamp", ONE: "latest"})
        assert found.values_by_name[ONE].offset == 0
        assert isinstance(found[ZERO], UnsupportedVersionError)
        assert len(env.cluster.history.of("ListOffsets")) == 1


async def test_each_refused_partition_of_a_leader_is_named(env: VirtualEnvironment) -> None:
    """Found on Kafka 3.9: if a request had no other partition, all of them had the error of the first."""

    limit_version(env.cluster, m.ListOffsetsRequest.API_KEY, 9)
    env.cluster.move_leader("orders", 1, env.cluster.leader(*ZERO))
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.list_offsets(dict.fromkeys([ZERO, ONE], "earliest-pending-upload"))
        for tp in ZERO, ONE:
            assert str(found[tp]).startswith(f"offset of {tp}: node ")
            assert isinstance(found[tp], UnsupportedVersionError)


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    cases: list[tuple[str, Any]] = [
        ("a mapping", [ZERO]),
        ("partition=", {"orders": "latest"}),
        ("offset='last'.*'earliest', 'latest'", {ZERO: "last"}),
        ("offset=-1", {ZERO: -1}),
        ("offset=1.5", {ZERO: 1.5}),
        ("offset=True", {ZERO: True}),
        ("no time zone", {ZERO: datetime(2026, 1, 1)}),  # noqa: DTZ001
        ("offset=None", {ZERO: None}),
    ]
    for text, wanted in cases:
        with pytest.raises(ConfigError, match=text):
            await admin.list_offsets(wanted)
    with pytest.raises(ConfigError, match=r"isolation_level='committed'.*'read_committed'"):
        await admin.list_offsets({ZERO: "latest"}, isolation_level="committed")  # type: ignore[arg-type]
    assert not env.cluster.history.of("ListOffsets")


async def test_an_error_is_a_broker_error_that_names_the_partition(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("ListOffsets").error("UNKNOWN_SERVER_ERROR")  # passes, as in Java
    env.cluster.faults.on("ListOffsets", times=None).error("INVALID_REQUEST")
    async with Admin(env.bootstrap_servers) as admin:
        error = (await admin.list_offsets({ZERO: "latest"}))[ZERO]
        assert isinstance(error, BrokerError)
        assert str(error).startswith("offset of orders-0: INVALID_REQUEST")
