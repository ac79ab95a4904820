"""Admin beside kafka-python's and confluent-kafka's admin clients on Kafka 4.3 and 3.9: topics, partitions, records, offsets; partial results."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from typing import Any

import pytest

from asyncgroup import BrokerError, Producer, TopicPartition
from asyncgroup.admin import Admin, NewPartitions, NewTopic, OffsetSpec, TopicDescription
from asyncgroup.admin.acl_values import OPERATIONS
from asyncgroup.admin.topics import describe_topics
from asyncgroup.error_codes import error_name
from asyncgroup.errors import AsyncGroupError
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.cli.admin_commands import Commands
from tests.interop.test_foreign_clients import in_thread
from tests.real.support import RunningKafka, resume_node, until_shown
from tests.real.test_admin_brokers import by_kafka_python, raised_by_kafka_python, unique

pytestmark = pytest.mark.full


# --- both kinds of results, as names of errors ----------------------------------------------------------------------------


def outcomes(results: Mapping[Any, Any]) -> dict[Any, str]:
    """Return "NONE" or the error of each name, with the broker's text."""
    return {name: outcome(found) for name, found in results.items()}


def outcome(found: Any) -> str:
    if not isinstance(found, AsyncGroupError):
        return "NONE"
    assert isinstance(found, BrokerError), found
    _, _, text = str(found).partition(f"{found.name} ({found.code})")
    return f"{found.name}{text}"


def their_outcomes(results: Sequence[Any]) -> dict[str, str]:
    """Return the same of results of kafka-python, which are dictionaries or objects."""
    found = {}
    for each in results:
        fields = each if isinstance(each, dict) else each.to_dict()
        text = fields.get("error_message")
        name = error_name(fields["error_code"])
        found[fields["name"]] = f"{name}: {text}" if text and name != "NONE" else name
    return found


def renamed(found: Mapping[str, str], ours: str, theirs: str) -> dict[str, str]:
    """Return the results as if the topics of this client had the names of the other's."""
    return {name.replace(ours, theirs): text.replace(ours, theirs) for name, text in found.items()}


async def by_confluent(servers: str, ask: Callable[[Any], Mapping[Any, Any]]) -> dict[Any, Any]:
    """Return for each future that `ask` returns with confluent-kafka's admin client its value, or the name of its error."""

    def run() -> dict[Any, Any]:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        found = {}
        client = AdminClient({"bootstrap.servers": servers})
        for key, future in ask(client).items():
            name = TopicPartition(key.topic, key.partition) if hasattr(key, "partition") else key
            try:
                found[name] = future.result(timeout=30)
            except KafkaException as error:
                found[name] = error.args[0].name().lstrip("_")
        return found

    found: dict[Any, Any] = await in_thread(run)
    return found


def as_dict(topic: NewTopic) -> dict[str, Any]:
    """Return a topic to create as kafka-python takes it."""
    if topic.assignments:
        return {"assignments": dict(enumerate(topic.assignments)), "configs": topic.configs}
    return {
        "num_partitions": -1 if topic.partitions is None else topic.partitions,
        "replication_factor": -1 if topic.replication_factor is None else topic.replication_factor,
        "configs": topic.configs,
    }


# --- topics ---------------------------------------------------------------------------------------------------------------

NEW = {
    "good": NewTopic(3, 1, {"retention.ms": "60000", "cleanup.policy": "compact,delete"}),
    "assigned": NewTopic(assignments=[[1], [1]]),
    "default": NewTopic(),
    "exists": NewTopic(1, 1),
    "to.collide": NewTopic(1, 1),
    "factor": NewTopic(1, 7),
    "config": NewTopic(1, 1, {"nonsense": "1"}),
    "value": NewTopic(1, 1, {"retention.ms": "soon"}),
    "node": NewTopic(assignments=[[99]]),
    "gap": NewTopic(assignments=[[1], [1, 1]]),
}
"""The first three are created."""


async def compare_topics(servers: str) -> None:
    ours, theirs = unique(), unique()
    async with Admin(servers) as admin:
        for prefix in (ours, theirs):
            (await admin.create_topics({f"{prefix}-exists": 1, f"{prefix}-to_collide": 1})).raise_first()
        for validate_only in (True, False):
            created = await admin.create_topics(
                {f"{ours}-{name}": new for name, new in NEW.items()}, validate_only=validate_only
            )
            wanted = {f"{theirs}-{name}": as_dict(new) for name, new in NEW.items()}
            create = operator.methodcaller(
                "create_topics", wanted, raise_errors=False, validate_only=validate_only
            )
            found = await by_kafka_python(servers, create)
            compared = renamed(outcomes(created), ours, theirs)
            assert compared == their_outcomes(found["topics"])
            assert {
                name.removeprefix(f"{theirs}-"): text.split(":")[0] for name, text in compared.items()
            } == {
                "good": "NONE",
                "assigned": "NONE",
                "default": "NONE",
                "exists": "TOPIC_ALREADY_EXISTS",
                "to.collide": "INVALID_TOPIC_EXCEPTION",
                "factor": "INVALID_REPLICATION_FACTOR",
                "config": "INVALID_CONFIG",
                "value": "INVALID_CONFIG",
                "node": "INVALID_REPLICA_ASSIGNMENT",
                "gap": "INVALID_REPLICA_ASSIGNMENT",
            }
            names = await names_of_topics(admin)
            assert (f"{ours}-good" in names) is (not validate_only)

        created_by_them = {f"{theirs}-{name}" for name in ("good", "assigned", "default")}
        # their call returns before the broker knows its topics
        await until_shown(lambda: names_of_topics(admin, created_by_them), created_by_them)
        await until_shown(lambda: differing_names(admin, servers), set())
        await compare_partitions(admin, servers, ours, theirs)
        await compare_descriptions(
            admin, servers, [f"{ours}-good", f"{ours}-none", f"{theirs}-good", f"{ours}-default"]
        )
        await compare_deletions(admin, servers, ours, theirs)


async def names_of_topics(admin: Admin, among: AbstractSet[str] | None = None) -> AbstractSet[str]:
    """Return the names of all topics that the broker lists, or of those in `among`."""
    found = {topic.name for topic in await admin.list_topics()}
    return found if among is None else found & among


async def differing_names(admin: Admin, servers: str) -> AbstractSet[str]:
    """Return the topics that only one of the clients lists, for which one may have been earlier than a change."""
    theirs = set(await by_kafka_python(servers, lambda their: their.list_topics()))
    return theirs ^ {topic.name for topic in await admin.list_topics(internal=True)}


async def compare_partitions(admin: Admin, servers: str, ours: str, theirs: str) -> None:
    wanted: dict[str, int | NewPartitions] = {
        "good": 4,
        "default": NewPartitions(100, [[1]]),
        "exists": 1,
        "to_collide": NewPartitions(2, [[99]]),
        "assigned": NewPartitions(4, [[1], [1]]),
        "none": 2,
    }

    def as_theirs(new: int | NewPartitions) -> Any:
        return new if isinstance(new, int) else {"count": new.total, "assignments": list(new.assignments)}

    for validate_only in (True, False):
        added = await admin.create_partitions(
            {f"{ours}-{name}": new for name, new in wanted.items()}, validate_only=validate_only
        )
        totals = {f"{theirs}-{name}": as_theirs(new) for name, new in wanted.items()}
        add = operator.methodcaller(
            "create_partitions", totals, raise_errors=False, validate_only=validate_only
        )
        found = await by_kafka_python(servers, add)
        compared = renamed(outcomes(added), ours, theirs)
        assert compared == their_outcomes(found.results)
        assert {name.removeprefix(f"{theirs}-"): text.split(":")[0] for name, text in compared.items()} == {
            "good": "NONE",
            "default": "INVALID_REPLICA_ASSIGNMENT",
            "exists": "INVALID_PARTITIONS",
            "to_collide": "INVALID_REPLICA_ASSIGNMENT",
            "assigned": "NONE",
            "none": "UNKNOWN_TOPIC_OR_PARTITION",
        }

    async def totals_of(prefix: str) -> list[int]:
        described = (await admin.describe_topics([f"{prefix}-good", f"{prefix}-assigned"])).raise_first()
        return [len(topic.partitions) for topic in described.values()]

    assert await totals_of(ours) == [4, 4]
    await until_shown(lambda: totals_of(theirs), [4, 4])


async def compare_descriptions(admin: Admin, servers: str, names: list[str]) -> None:
    """By Metadata and, page by page, by DescribeTopicPartitions."""
    found = await admin.describe_topics(names)
    in_pages = await describe_topics(admin._client, names, admin._budget(), page_size=2)
    assert (in_pages.values, list(in_pages.errors)) == (found.values_by_name, list(found.errors))
    by_metadata = await by_kafka_python(servers, lambda their: their.describe_topics(names))
    assert {each["name"]: described_by_metadata(each) for each in by_metadata} == {
        name: our_description(found[name]) for name in names
    }
    pages = await by_kafka_python(servers, lambda their: their_pages(their, names))
    assert pages == {name: our_page(topic) for name, topic in found.values_by_name.items()}


def our_description(found: TopicDescription | AsyncGroupError) -> Any:
    if isinstance(found, AsyncGroupError):
        return outcome(found)
    return (
        str(found.topic_id),
        found.is_internal,
        [
            (each.partition, each.leader, each.leader_epoch, each.replicas, each.isr, each.offline_replicas)
            for each in found.partitions
        ],
    )


def described_by_metadata(topic: Mapping[str, Any]) -> Any:
    if topic["error_code"]:
        return error_name(topic["error_code"])
    return str(topic["topic_id"]), topic["is_internal"], partition_rows(topic)


def partition_rows(topic: Mapping[str, Any]) -> list[Any]:
    return [
        (
            each["partition_index"],
            each["leader_id"],
            each["leader_epoch"],
            tuple(each["replica_nodes"]),
            tuple(each["isr_nodes"]),
            tuple(each["offline_replicas"]),
        )
        for each in sorted(topic["partitions"], key=lambda each: each["partition_index"])
    ]


def our_page(found: TopicDescription) -> Any:
    assert found.authorized_operations is not None
    bits = sum(1 << OPERATIONS[each] for each in found.authorized_operations)
    return bits, [(each.elr or None, each.last_known_elr or None) for each in found.partitions]


def their_pages(admin: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what the pages of kafka-python say besides; it has None for an empty list of replicas."""
    found: dict[str, Any] = {}
    cursor = None
    while True:
        page = admin.describe_topic_partitions(names, response_partition_limit=3, cursor=cursor)
        for topic in page["topics"]:
            if topic["error_code"] == 0:
                _, replicas = found.setdefault(topic["name"], (topic["topic_authorized_operations"], []))
                replicas += [
                    tuple(
                        None if each[key] is None else tuple(each[key])
                        for key in ("eligible_leader_replicas", "last_known_elr")
                    )
                    for each in topic["partitions"]
                ]
        cursor = page["next_cursor"]
        if cursor is None:
            return found
        names = [name for name in names if name >= cursor["topic_name"]]


async def compare_deletions(admin: Admin, servers: str, ours: str, theirs: str) -> None:
    names = ["good", "none", "default"]
    deleted = await admin.delete_topics([f"{ours}-{name}" for name in names])
    found = await by_kafka_python(
        servers, lambda their: their.delete_topics([f"{theirs}-{name}" for name in names], raise_errors=False)
    )
    compared = renamed(outcomes(deleted), ours, theirs)
    assert compared == their_outcomes(found["topics"])
    assert [text.split(":")[0] for _, text in sorted(compared.items())] == [
        "NONE",
        "NONE",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ]
    gone = {f"{prefix}-{name}" for prefix in (ours, theirs) for name in names}
    await until_shown(lambda: names_of_topics(admin, gone), set())


async def test_topics(apache_kafka: RunningKafka) -> None:
    await compare_topics(apache_kafka.bootstrap_servers)


async def test_topics_of_kafka_3_9(kafka_39: ApacheKafka) -> None:
    await compare_topics(kafka_39.bootstrap_servers)


# --- records and offsets --------------------------------------------------------------------------------------------------


async def compare_records(servers: str) -> None:
    """Ten records in each partition of two topics; one partition for each outcome."""
    ours, theirs = unique(), unique()
    before: dict[int, int | None] = {0: 3, 1: 0, 2: 10, 3: 11, 4: None}
    async with Admin(servers) as admin:
        (await admin.create_topics(dict.fromkeys([ours, theirs], NewTopic(5, 1)))).raise_first()
        async with Producer(servers) as producer:
            for topic in (ours, theirs):
                for number in range(50):
                    await producer.send(topic, b"x", partition=number % 5, timestamp=1000 + number)
        none = TopicPartition(ours, 9)
        offsets = {TopicPartition(ours, part): at for part, at in before.items()}
        deleted = await admin.delete_records({**offsets, none: 0})

        def delete(their: Any) -> Any:
            from confluent_kafka import OFFSET_END, TopicPartition as Theirs

            wanted = [Theirs(theirs, part, OFFSET_END if at is None else at) for part, at in before.items()]
            return their.delete_records(wanted)

        found = await by_confluent(servers, delete)
        expected = {0: 3, 1: 0, 2: 10, 3: "OFFSET_OUT_OF_RANGE", 4: 10}
        assert expected == {
            tp.partition: each if isinstance(each, str) else each.low_watermark for tp, each in found.items()
        }
        assert {**expected, 9: "UNKNOWN_TOPIC_OR_PARTITION"} == {
            tp.partition: each if isinstance(each, int) else outcome(each).split(":")[0]
            for tp, each in deleted.items()
        }
        raised, _ = await raised_by_kafka_python(servers, operator.methodcaller("delete_records", {none: 0}))
        assert raised == "UNKNOWN_TOPIC_OR_PARTITION"
        await compare_offsets(admin, servers, ours)


async def compare_offsets(admin: Admin, servers: str, topic: str) -> None:
    """Each spec for a partition, and in the same call for one that does not exist."""
    zero, none = TopicPartition(topic, 0), TopicPartition(topic, 9)
    specs: list[OffsetSpec] = ["earliest", "latest", "max-timestamp", 1000, 1017, 5000]
    for spec in specs:
        listed = await admin.list_offsets({zero: spec, none: spec})

        def ask(their: Any, spec: OffsetSpec = spec) -> Any:
            from confluent_kafka import TopicPartition as Theirs
            from confluent_kafka.admin import OffsetSpec as TheirSpec  # type: ignore[attr-defined]

            if isinstance(spec, str):
                their_spec = getattr(TheirSpec, spec.replace("-", "_"))()
            else:
                assert isinstance(spec, int)
                their_spec = TheirSpec.for_timestamp(spec)
            return their.list_offsets({Theirs(*zero): their_spec})

        found = await by_confluent(servers, ask)
        value = listed.values_by_name[zero]
        their_offset = found[zero].offset if found[zero].offset >= 0 else None
        assert (value.offset, value.timestamp or -1) == (their_offset, found[zero].timestamp), spec
        assert outcome(listed[none]).startswith("UNKNOWN_TOPIC_OR_PARTITION")
    ask_both = operator.methodcaller("list_partition_offsets", {zero: -1, none: -1}, timeout_ms=1000)
    raised, _ = await raised_by_kafka_python(servers, ask_both)
    assert raised == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_records_and_offsets(apache_kafka: RunningKafka) -> None:
    await compare_records(apache_kafka.bootstrap_servers)


async def test_records_and_offsets_of_kafka_3_9(kafka_39: ApacheKafka) -> None:
    await compare_records(kafka_39.bootstrap_servers)


# --- eligible leader replicas ---------------------------------------------------------------------------------------------


async def test_eligible_leader_replicas_are_as_kafkas_tool_sees_them(
    apache_kafka_3: ApacheKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replica that leaves the ISR below `min.insync.replicas` stays eligible."""
    kafka, name = apache_kafka_3, unique()
    servers = kafka.bootstrap_servers
    async with Admin(servers) as admin:
        leader = (await admin.brokers.quorum()).leader
        assert leader is not None
        suspended = leader % 3 + 1
        new = NewTopic(assignments=[[leader, suspended]] * 3, configs={"min.insync.replicas": "2"})
        (await admin.create_topics({name: new})).raise_first()
        await asyncio.to_thread(kafka.suspend, suspended)
        try:

            async def replicas() -> list[tuple[Sequence[int], ...]]:
                topic = (await admin.describe_topics([name])).raise_first()[name]
                return [(part.isr, part.elr, part.last_known_elr) for part in topic.partitions]

            await until_shown(replicas, [((leader,), (suspended,), ())] * 3, limit=60)
            printed = await asyncio.to_thread(
                kafka.run_tool,
                "org.apache.kafka.tools.TopicCommand",
                *("--bootstrap-server", kafka.address(leader), "--describe", "--topic", name),
            )
            rows = [line.split("\t") for line in printed.splitlines() if "Partition: " in line]
            words = [dict(word.partition(":")[::2] for word in row if ":" in word) for row in rows]
            assert [(row["Elr"].strip(), row["LastKnownElr"].strip()) for row in words] == [
                (str(suspended), "")
            ] * 3
            shown = await Commands(kafka.address(leader), capsys).json("topics", "describe", name)
            assert [(row["elr"], row["last_known_elr"]) for row in shown] == [([suspended], [])] * 3
        finally:
            await resume_node(kafka, suspended)
