"""Admin, brokers: the cluster, log directories with an error for each silent node, the metadata quorum, and features."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup import BrokerError, ConfigError, ErrorCode, TopicPartition, UnsupportedVersionError
from asyncgroup.admin import Admin, FeatureUpdate
from asyncgroup.errors import TransportError
from asyncgroup.wire import messages as m
from tests.stories.holding import limit_version
from tests.stories.virtual import VirtualEnvironment


def code(error: object) -> int:
    assert isinstance(error, BrokerError)
    return error.code


def changed(change: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return a mutation of a response."""

    def mutate(response: Any) -> Any:
        change(response)
        return response

    return mutate


# --- the cluster ----------------------------------------------------------------------------------------------------------


async def test_the_cluster_is_described() -> None:
    async with VirtualEnvironment.made(racks=["a", "b", "c"]) as env, Admin(env.bootstrap_servers) as admin:
        found = await admin.brokers.describe()
        assert [(each.node_id, each.rack, each.is_fenced) for each in found.brokers] == [
            (1, "a", False),
            (2, "b", False),
            (3, "c", False),
        ]
        addresses = {f"{each.host}:{each.port}" for each in found.brokers}
        assert addresses == set(env.bootstrap_servers.split(","))
        assert found.cluster_id
        assert found.controller in (1, 2, 3)
        await env.cluster.stop_node(3)
        assert [each.node_id for each in (await admin.brokers.describe()).brokers] == [1, 2]


async def test_fenced_brokers_are_included_if_they_are_wanted(env: VirtualEnvironment) -> None:
    def add(response: Any) -> None:
        response.brokers.append(type(response).DescribeClusterBroker(9, "h", 1, None, True))

    env.cluster.faults.on("DescribeCluster", times=None).mutate(changed(add))
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.brokers.describe(include_fenced=True)
        assert [each.node_id for each in found.brokers if each.is_fenced] == [9]
        (exchange,) = env.cluster.history.of("DescribeCluster")
        assert exchange.request.include_fenced_brokers
    limit_version(env.cluster, m.DescribeClusterRequest.API_KEY, 1)
    async with Admin(env.bootstrap_servers) as admin:
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.0"):
            await admin.brokers.describe(include_fenced=True)


async def test_an_old_cluster_is_described_by_its_metadata(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.brokers.describe()
    limit_version(env.cluster, m.DescribeClusterRequest.API_KEY, None)
    async with Admin(env.bootstrap_servers) as admin:
        begun = asyncio.get_running_loop().time()
        old = await admin.brokers.describe()
        assert asyncio.get_running_loop().time() - begun < 1
        assert (old.cluster_id, old.brokers) == (found.cluster_id, found.brokers)
        with pytest.raises(UnsupportedVersionError):
            await admin.brokers.describe(include_fenced=True)


async def test_a_refusal_names_the_call(env: VirtualEnvironment) -> None:
    for api, call, text in (
        ("DescribeCluster", lambda admin: admin.brokers.describe(), "describing the cluster"),
        ("DescribeQuorum", lambda admin: admin.brokers.quorum(), "describing the metadata quorum"),
        ("ApiVersions", lambda admin: admin.brokers.features(broker=1), "features of node 1"),
    ):
        async with Admin(env.bootstrap_servers, timeout=2.0) as admin:
            await admin.brokers.features(broker=1)  # the connection exists
            env.cluster.faults.on(api).error("CLUSTER_AUTHORIZATION_FAILED")
            with pytest.raises(BrokerError, match=f"{text}: CLUSTER_AUTHORIZATION_FAILED"):
                await call(admin)


# --- log directories ------------------------------------------------------------------------------------------------------


async def test_log_directories_of_all_nodes(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.create_topic("alone", 1, replication_factor=1)
    env.cluster.produce("alone", b"x" * 1000, partition=0)
    tp, holder = TopicPartition("alone", 0), env.cluster.leader("alone", 0)
    found = (await admin.brokers.log_dirs()).raise_first()
    assert sorted(found) == [1, 2, 3]
    holders = {node for node, (one,) in found.items() if tp in {each.partition for each in one.replicas}}
    assert holders == {holder}
    (replica,) = (each for each in found[holder][0].replicas if each.partition == tp)
    assert replica.size > 1000
    assert (replica.offset_lag, replica.is_future) == (0, False)
    (one,) = (await admin.brokers.log_dirs([holder], partitions=[tp])).raise_first()[holder]
    assert one.replicas == (replica,)
    assert (one.total_bytes, one.error) == (None, None)


async def test_a_silent_and_a_dead_node_cost_the_others_nothing(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        env.cluster.faults.on("DescribeLogDirs", node=1, times=None).drop()
        env.cluster.faults.on("DescribeLogDirs", node=2, times=None).disconnect()
        begun = asyncio.get_running_loop().time()
        found = await admin.brokers.log_dirs([1, 2, 3, 9])
        assert asyncio.get_running_loop().time() - begun <= 5.1
        assert list(found.values_by_name) == [3]
        assert sorted(found.errors) == [1, 2, 9]
        assert all(isinstance(error, TransportError) for error in found.errors.values())


async def test_an_offline_directory_and_a_future_replica(env: VirtualEnvironment) -> None:
    def change(response: Any) -> None:
        (one,) = response.results
        one.total_bytes, one.usable_bytes, one.is_cordoned = 100, 60, True
        first = one.topics[0].partitions[0]
        first.is_future_key, first.offset_lag = True, 7
        offline = type(response).DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, "/broken")
        response.results.append(offline)

    env.cluster.faults.on("DescribeLogDirs", node=1).mutate(changed(change))
    async with Admin(env.bootstrap_servers) as admin:
        good, broken = (await admin.brokers.log_dirs([1])).raise_first()[1]
        assert (good.total_bytes, good.usable_bytes, good.is_cordoned) == (100, 60, True)
        assert [each.offset_lag for each in good.replicas if each.is_future] == [7]
        assert broken.path == "/broken"
        assert str(broken.error) == "log directory '/broken': KAFKA_STORAGE_ERROR (56)"


async def test_a_refusal_without_a_code_is_a_refusal(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("DescribeLogDirs", node=1).mutate(
        changed(lambda response: response.results.clear())
    )
    env.cluster.faults.on("DescribeLogDirs", node=2).error("CLUSTER_AUTHORIZATION_FAILED")
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.brokers.log_dirs()
        assert [code(found[node]) for node in (1, 2)] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2


# --- quorum and features --------------------------------------------------------------------------------------------------


async def test_the_quorum(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        found = await admin.brokers.quorum()
        assert found.leader in (1, 2, 3)
        assert (found.leader_epoch, found.high_watermark) == (1, 0)
        assert [each.node_id for each in found.voters] == [1, 2, 3]
        assert found.voters[0].log_end_offset == 0
        assert found.voters[0].last_fetch_timestamp is not None
        assert found.voters[0].directory_id is None
        assert found.observers == ()
        assert {f"{each.host}:{each.port}" for (each,) in found.endpoints.values()} == set(
            env.bootstrap_servers.split(",")
        )
    limit_version(env.cluster, m.DescribeQuorumRequest.API_KEY, 0)
    async with Admin(env.bootstrap_servers) as admin:
        old = await admin.brokers.quorum()
        assert old.voters[0].last_fetch_timestamp is None
        assert old.endpoints == {}


async def test_a_quorum_without_a_leader_is_asked_again(admin: Admin, env: VirtualEnvironment) -> None:
    def elect(response: Any) -> None:
        response.topics[0].partitions[0].error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER

    env.cluster.faults.on("DescribeQuorum", times=2).mutate(changed(elect))
    assert (await admin.brokers.quorum()).leader in (1, 2, 3)
    assert len(env.cluster.history.of("DescribeQuorum")) == 3
    env.cluster.faults.on("DescribeQuorum").mutate(changed(lambda response: response.topics.clear()))
    assert (await admin.brokers.quorum()).leader in (1, 2, 3)  # as a response that lacks its entry


async def test_features_are_described_and_updated(admin: Admin, env: VirtualEnvironment) -> None:
    name = "transaction.version"
    before = await admin.brokers.features()
    assert before.supported[name] == (0, 2)
    assert before.finalized[name] == 2
    refused = await admin.brokers.update_features({name: 1})
    assert code(refused[name]) == ErrorCode.INVALID_UPDATE_VERSION
    down = FeatureUpdate(1, "SAFE_DOWNGRADE")
    (await admin.brokers.update_features({name: down}, validate_only=True)).raise_first()
    assert (await admin.brokers.features()).finalized[name] == 2
    (await admin.brokers.update_features({name: down})).raise_first()
    after = await admin.brokers.features(broker=2)
    assert after.finalized[name] == 1
    assert after.epoch is not None
    assert before.epoch is not None
    assert after.epoch > before.epoch
    (await admin.brokers.update_features({name: FeatureUpdate(0, "UNSAFE_DOWNGRADE")})).raise_first()
    assert name not in (await admin.brokers.features()).finalized


async def test_features_change_together_or_not_at_all(admin: Admin, env: VirtualEnvironment) -> None:
    wanted = {"transaction.version": FeatureUpdate(1, "SAFE_DOWNGRADE"), "none": FeatureUpdate(1)}
    found = await admin.brokers.update_features(wanted)
    assert sorted(found.errors) == ["none", "transaction.version"]
    assert str(found.errors["none"]).startswith("updating feature 'none': INVALID_UPDATE_VERSION (95)")
    assert (await admin.brokers.features()).finalized["transaction.version"] == 2


async def test_an_old_controller_answers_for_each_feature_and_has_no_dry_run(env: VirtualEnvironment) -> None:
    def refuse(response: Any) -> None:
        response.results[0].error_code = ErrorCode.INVALID_REQUEST

    limit_version(env.cluster, m.UpdateFeaturesRequest.API_KEY, 0)
    async with Admin(env.bootstrap_servers) as admin:
        name = "transaction.version"
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 3\.3"):
            (await admin.brokers.update_features({name: 2}, validate_only=True)).raise_first()
        env.cluster.faults.on("UpdateFeatures").mutate(changed(refuse))
        found = await admin.brokers.update_features({name: 2, "group.version": 1})
        assert code(found[name]) == ErrorCode.INVALID_REQUEST
        assert list(found.values_by_name) == ["group.version"]


async def test_a_moved_controller_is_asked_again(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.faults.on("UpdateFeatures").error("NOT_CONTROLLER")
    env.cluster.faults.on("UpdateFeatures").disconnect("after")  # the same level again is the same level
    down = FeatureUpdate(1, "SAFE_DOWNGRADE")
    (await admin.brokers.update_features({"transaction.version": down})).raise_first()
    assert len(env.cluster.history.of("UpdateFeatures")) == 3


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    calls: list[tuple[str, Any]] = [
        ("broker=-1", admin.brokers.log_dirs([-1])),
        ("broker=-1", admin.brokers.log_dirs(-1)),
        ("partition", admin.brokers.log_dirs(partitions=["orders"])),  # type: ignore[list-item]
        ("broker='1'", admin.brokers.features(broker="1")),  # type: ignore[arg-type]
        ("a mapping", admin.brokers.update_features(["f"])),  # type: ignore[arg-type]
        ("feature=''", admin.brokers.update_features({"": 1})),
        ("level of f=-1", admin.brokers.update_features({"f": -1})),
        ("level of f='2'", admin.brokers.update_features({"f": "2"})),  # type: ignore[dict-item]
        ("upgrade_type='DOWN'", admin.brokers.update_features({"f": FeatureUpdate(1, "DOWN")})),
    ]
    for text, call in calls:
        with pytest.raises(ConfigError, match=text):
            await call
    assert not env.cluster.history.of("DescribeLogDirs", "UpdateFeatures")
