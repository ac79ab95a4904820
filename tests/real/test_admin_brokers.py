"""Admin on a real Kafka: brokers, log directories, quorum, features, elections and reassignments, beside kafka-python and Kafka's tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from asyncgroup import BrokerError, Cluster, Producer, TopicPartition
from asyncgroup.admin import Admin, FeatureUpdate, NewTopic
from asyncgroup.error_codes import error_name
from asyncgroup.errors import TransportError
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.interop.test_foreign_clients import in_thread
from tests.real.support import RunningKafka, resume_node, until_shown


def unique() -> str:
    return f"admin-{uuid4().hex[:8]}"


def name_of(error: object) -> str:
    assert isinstance(error, BrokerError)
    return error.name


async def by_kafka_python(servers: str, ask: Callable[[Any], Any]) -> Any:
    """Return what `ask` returns for an admin client of kafka-python."""

    def run() -> Any:
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=servers.split(","))
        try:
            return ask(admin)
        finally:
            admin.close()

    return await in_thread(run)


async def raised_by_kafka_python(servers: str, ask: Callable[[Any], Any]) -> tuple[str, str]:
    """Return the name and the text of the error that kafka-python raises, as it has no partial results of some calls."""

    def caught(admin: Any) -> tuple[str, str]:
        from kafka.errors import BrokerResponseError

        try:
            ask(admin)
        except BrokerResponseError as error:
            return error_name(error.errno), str(error)
        return "NONE", ""

    found: tuple[str, str] = await by_kafka_python(servers, caught)
    return found


async def test_one_node_describes_itself(apache_kafka: RunningKafka) -> None:
    topic = unique()
    zero = TopicPartition(topic, 0)
    async with Admin(apache_kafka.bootstrap_servers) as admin:
        (await admin.create_topics({topic: NewTopic(1, 1)})).raise_first()
        async with Producer(apache_kafka.bootstrap_servers) as producer:
            await producer.send(topic, b"x" * 1000, partition=0)
        (broker,) = (await admin.brokers.describe()).brokers
        dirs = (await admin.brokers.log_dirs(partitions=[zero])).raise_first()[broker.node_id]
        (replica,) = (each for found in dirs for each in found.replicas)
        assert replica.partition == zero
        assert replica.size > 1000
        assert dirs[0].usable_bytes is not None
        assert (await admin.brokers.quorum()).leader == broker.node_id
        assert "metadata.version" in (await admin.brokers.features()).finalized
        refused = await admin.brokers.update_features({"metadata.version": 10**4}, validate_only=True)
        assert name_of(refused["metadata.version"]) == "INVALID_UPDATE_VERSION"
        assert (await admin.replicas.elect_leaders("preferred", [zero])).raise_first() == {zero: False}
        assert zero not in await admin.replicas.list_reassignments()
        cancelled = await admin.replicas.cancel_reassignments([zero])
        assert name_of(cancelled[zero]) == "NO_REASSIGNMENT_IN_PROGRESS"


# --- beside others --------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_the_cluster_is_as_others_see_it(apache_kafka_3: ApacheKafka) -> None:
    await compare_cluster(apache_kafka_3, include_fenced=True)


async def compare_cluster(kafka: ApacheKafka, *, include_fenced: bool) -> None:
    """Three nodes. Brokers say which are fenced since Kafka 4.0."""
    topic, servers = unique(), kafka.bootstrap_servers
    async with Admin(servers) as admin:
        (await admin.create_topics({topic: NewTopic(assignments=[[1, 2], [3, 1]])})).raise_first()
        cluster = await admin.brokers.describe(include_fenced=include_fenced)
        theirs = await by_kafka_python(servers, lambda their: their.describe_cluster())
        assert cluster.cluster_id == theirs["cluster_id"] == kafka.cluster_id
        assert [
            (each["broker_id"], each["host"], each["port"], each["rack"], each.get("is_fenced", False))
            for each in sorted(theirs["brokers"], key=lambda each: each["broker_id"])
        ] == [(each.node_id, each.host, each.port, each.rack, each.is_fenced) for each in cluster.brokers]

        wanted = [TopicPartition(topic, 0), TopicPartition(topic, 1)]

        async def replicas() -> dict[int, int]:
            """Return the number of replicas of each node, which creates them after it knows the topic."""
            dirs = (await admin.brokers.log_dirs(partitions=wanted)).raise_first()
            return {node: len(one.replicas) for node, (one,) in dirs.items()}

        await until_shown(replicas, {1: 2, 2: 1, 3: 1})
        dirs = (await admin.brokers.log_dirs(partitions=wanted)).raise_first()
        found = await by_kafka_python(servers, lambda their: their.describe_log_dirs({topic: [0, 1]}))
        assert {
            each["broker"]: [
                (
                    one["log_dir"],
                    one["total_bytes"],
                    sorted(
                        (
                            part["partition_index"],
                            part["partition_size"],
                            part["offset_lag"],
                            part["is_future_key"],
                        )
                        for name in one["topics"]
                        for part in name["partitions"]
                    ),
                )
                for one in each["log_dirs"]
            ]
            for each in found
        } == {
            node: [
                (
                    one.path,
                    one.total_bytes,
                    [
                        (each.partition.partition, each.size, each.offset_lag, each.is_future)
                        for each in one.replicas
                    ],
                )
                for one in described
            ]
            for node, described in dirs.items()
        }
        assert {node for node, (one,) in dirs.items() if one.replicas} == {1, 2, 3}

        features = await admin.brokers.features()
        described = await by_kafka_python(servers, lambda their: their.describe_features())
        assert {name: each["supported"] for name, each in described.items()} == features.supported
        assert {
            name: each["finalized"][1] for name, each in described.items() if "finalized" in each
        } == features.finalized
        printed = await asyncio.to_thread(
            kafka.run_tool, "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", servers, "describe"
        )
        levels = {}
        for words in (line.split() for line in printed.splitlines() if line.startswith("Feature:")):
            levels[words[1]] = words[words.index("FinalizedVersionLevel:") + 1]
        del levels["metadata.version"]  # printed as the name of a release
        assert levels == {name: str(features.finalized.get(name, 0)) for name in levels}


@pytest.mark.full
async def test_the_quorum_is_as_kafkas_tool_sees_it(apache_kafka_3: ApacheKafka) -> None:
    await compare_quorum(apache_kafka_3)


async def compare_quorum(kafka: ApacheKafka) -> None:
    servers = kafka.bootstrap_servers
    tool = "org.apache.kafka.tools.MetadataQuorumCommand"
    async with Admin(servers) as admin:
        found = await admin.brokers.quorum()
        printed = await asyncio.to_thread(
            kafka.run_tool, tool, "--bootstrap-server", servers, "describe", "--replication"
        )
        rows = [line.split() for line in printed.splitlines()[1:] if line.strip()]
        voters = {int(row[0]) for row in rows if row[-1] in ("Leader", "Follower")}
        assert {each.node_id for each in found.voters} == voters
        assert {int(row[0]) for row in rows if row[-1] == "Observer"} == {
            each.node_id for each in found.observers
        }
        assert [int(row[0]) for row in rows if row[-1] == "Leader"] == [found.leader]
        theirs = await by_kafka_python(servers, lambda their: their.describe_metadata_quorum())
        (part,) = theirs["topics"][0]["partitions"]
        assert (part["leader_id"], part["leader_epoch"]) == (found.leader, found.leader_epoch)
        assert {each["node_id"] for each in theirs["nodes"]} == set(found.endpoints)
        assert {str(each["replica_directory_id"]) for each in part["current_voters"]} == {
            str(each.directory_id) for each in found.voters
        }
        assert found.high_watermark is not None
        assert found.high_watermark <= part["high_watermark"]


@pytest.mark.full
async def test_leaders_are_elected(apache_kafka_3: ApacheKafka) -> None:
    topic = unique()
    zero, missing = TopicPartition(topic, 0), TopicPartition(topic, 9)
    async with Admin(apache_kafka_3.bootstrap_servers) as admin:
        (await admin.create_topics({topic: NewTopic(assignments=[[1, 2]])})).raise_first()
        (await admin.replicas.alter_reassignments({zero: [2, 1]})).raise_first()  # node 1 stays the leader
        found = await admin.replicas.elect_leaders("preferred", [zero, missing])
        assert found.values_by_name == {zero: True}
        assert name_of(found[missing]) == "UNKNOWN_TOPIC_OR_PARTITION"
        assert (await admin.replicas.elect_leaders("preferred", [zero])).raise_first() == {zero: False}
        assert (await admin.replicas.elect_leaders("unclean", [zero])).raise_first() == {zero: False}
        assert zero not in await admin.replicas.elect_leaders()
        await until_shown(partial(replicas_of, admin, zero), (2, 1))


async def replicas_of(admin: Admin, tp: TopicPartition) -> Sequence[int]:
    """Return the replicas of a partition as the broker describes them."""
    described = (await admin.describe_topics([tp.topic])).raise_first()[tp.topic]
    return described.partitions[tp.partition].replicas


@pytest.mark.full
async def test_what_a_suspended_node_holds_up_is_listed_cancelled_and_said(
    apache_kafka_3: ApacheKafka,
) -> None:
    kafka, topic = apache_kafka_3, unique()
    zero = TopicPartition(topic, 0)
    async with Cluster(kafka.bootstrap_servers) as cluster, Admin(cluster) as admin:
        # the controller and the node that forwards to it answer, so that no request waits for its timeout
        needed = {cluster.view.controller_id, (await admin.brokers.quorum()).leader}
        suspended, one, other = sorted((1, 2, 3), key=lambda node: node in needed)
        missing = TopicPartition(topic, 9)
        (await admin.create_topics({topic: NewTopic(assignments=[[one, other]])})).raise_first()
        await asyncio.to_thread(kafka.suspend, suspended)
        try:
            altered = await admin.replicas.alter_reassignments({zero: [one, suspended], missing: [1]})
            assert list(altered.values_by_name) == [zero]
            assert name_of(altered[missing]) == "UNKNOWN_TOPIC_OR_PARTITION"
            progress = (await admin.replicas.list_reassignments([zero]))[zero]
            assert (progress.adding, progress.removing) == ((suspended,), (other,))
            assert progress.target == (one, suspended)
            (await admin.replicas.cancel_reassignments([zero])).raise_first()
            assert await admin.replicas.list_reassignments([zero]) == {}
            await until_shown(partial(replicas_of, admin, zero), (one, other))
            dirs = await admin.brokers.log_dirs([1, 2, 3])
            assert list(dirs.errors) == [suspended]
            assert isinstance(dirs.errors[suspended], TransportError)
            assert sorted(dirs.values_by_name) == sorted([one, other])
        finally:
            await resume_node(kafka, suspended)


@pytest.mark.full
async def test_a_dry_run_changes_no_feature_and_a_change_does(kafka_to_break: ApacheKafka) -> None:
    name = "transaction.version"
    async with Admin(kafka_to_break.bootstrap_servers) as admin:
        level = (await admin.brokers.features()).finalized[name]
        down = FeatureUpdate(level - 1, "SAFE_DOWNGRADE")
        refused = await admin.brokers.update_features({name: level - 1})
        assert name_of(refused[name]) == "INVALID_UPDATE_VERSION"
        (await admin.brokers.update_features({name: down}, validate_only=True)).raise_first()
        assert (await admin.brokers.features()).finalized[name] == level
        (await admin.brokers.update_features({name: down})).raise_first()
        (await admin.brokers.update_features({name: level})).raise_first()
