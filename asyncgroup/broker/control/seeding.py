"""Topics, records and committed offsets that a test gives a cluster directly, without a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from asyncgroup.broker.arguments import SeedRecord, key_and_value
from asyncgroup.broker.groups.shared.requests import CommitRequest, OffsetAndMetadata
from asyncgroup.broker.metadata.topics import Partition, Topic
from asyncgroup.broker.node import ClusterState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.hashing.murmur2 import partition_for_key
from asyncgroup.model import Header, RecordMetadata, TopicPartition
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.records import BatchBuilder

__all__ = [
    "TopicSeed",
    "append_records",
    "check_int64",
    "commit_offsets",
    "topic_seeds",
]

_BATCH_BYTES: Final = 512 * 1024
_TOPIC_OPTIONS: Final = ("partitions", "replication_factor", "configs", "records")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeed:
    """A topic to create: `options` are the arguments of `create_topic`, `records` are appended to it."""

    options: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[SeedRecord] = ()


def topic_seeds(given: object) -> dict[str, TopicSeed]:
    """Parse the argument `topics` of `EmbeddedCluster`.

    `"orders"`, `["orders", "bills"]`, `{"orders": 6}` or `{"orders": {"partitions": 6, "records": […]}}`. Raise
    ConfigError for anything else.
    """
    if given is None:
        return {}
    if isinstance(given, str):
        return {given: TopicSeed()}
    if isinstance(given, Mapping):
        return {name: _topic_seed(given, name, what) for name, what in given.items()}
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise ConfigError("topics", given, "a name, a list of names, or partitions by name")
    return {name: TopicSeed() for name in given}


def _topic_seed(given: object, topic: object, what: object) -> TopicSeed:
    options = dict(what) if isinstance(what, Mapping) else {"partitions": what}
    if unknown := options.keys() - set(_TOPIC_OPTIONS):
        raise ConfigError("topics", given, f"a topic has {', '.join(sorted(_TOPIC_OPTIONS))}, not {unknown}")
    for name in ("partitions", "replication_factor"):
        value = options.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            allowed = f"a whole number, 1 or more, or None for the cluster's default (topic {topic!r})"
            raise ConfigError(name, value, allowed)
    configs = options.get("configs")
    if configs is not None and not (
        isinstance(configs, Mapping) and all(isinstance(value, str) for value in configs.values())
    ):
        raise ConfigError("configs", configs, 'text by Kafka\'s names, such as {"retention.ms": "60000"}')
    records = options.pop("records", ())
    if isinstance(records, str | bytes) or not isinstance(records, Sequence):
        raise ConfigError(
            "records", records, 'a list of values, or of (key, value), such as [b"a", ("k", "v")]'
        )
    for record in records:
        key_and_value(record)
    return TopicSeed(options=options, records=records)


def check_int64(name: str, value: object) -> None:
    """Raise ConfigError unless the value is a whole number from 0 to 2**63 - 1."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ConfigError(name, value, "a whole number from 0 to 2**63 - 1")


def append_records(
    topic: Topic,
    records: Sequence[SeedRecord],
    *,
    partition: int | None,
    headers: Sequence[Header],
    timestamp: int | None,
    now: int,
    on_append: Callable[[Partition], None],
) -> list[RecordMetadata]:
    """Append records to a topic's logs, see `EmbeddedCluster.produce`; `on_append` is called for each partition."""
    if partition is not None and not 0 <= partition < len(topic.partitions):
        last = len(topic.partitions) - 1
        raise UsageError(f"topic {topic.name!r} has partitions 0 to {last}, not {partition}")
    stamp = now if timestamp is None else timestamp
    check_int64("timestamp", stamp)
    chosen: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {}
    for number, record in enumerate(records):
        key, value = key_and_value(record)
        if partition is not None:
            place = partition
        elif key is not None:
            place = partition_for_key(key, len(topic.partitions))
        else:
            place = number % len(topic.partitions)
        chosen.setdefault(place, []).append((number, key, value))
    placed: dict[int, RecordMetadata] = {}
    for place, rows in sorted(chosen.items()):
        log_of = topic.partitions[place]
        if log_of.leader < 0:
            raise UsageError(
                f"{topic.name}-{place} has no leader: none of its replicas {list(log_of.replicas)} is running"
            )
        left = list(reversed(rows))
        while left:
            builder = BatchBuilder(size_limit=_BATCH_BYTES)
            taken = []
            while left and builder.append(stamp, left[-1][1], left[-1][2], headers):
                taken.append(left.pop()[0])
            batch = log_of.validator.validate(BatchView(builder.build()), now)
            first = log_of.log.append(batch, log_of.leader_epoch).base_offset
            for index, number in enumerate(taken):
                placed[number] = RecordMetadata(topic.name, place, first + index, stamp)
        on_append(log_of)
    return [placed[number] for number in sorted(placed)]


def commit_offsets(
    state: ClusterState, group_id: str, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
) -> None:
    """Commit offsets of existing partitions, see `EmbeddedCluster.commit`."""
    controller = state.controller
    committed = {}
    for (topic, partition), offset in offsets.items():
        check_int64("offset", offset)
        topic_id = controller.topics[topic].id
        committed[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, topic_id=topic_id)
    node = state.nodes.get(controller.coordinators.group_coordinator(group_id))
    if node is None:
        raise UsageError(f"no node coordinates group {group_id!r}")
    outcomes: list[ErrorCode | dict[TopicPartition, ErrorCode]] = []
    node.coordinator.offsets.commit(CommitRequest(group_id=group_id, offsets=committed), outcomes.append)
    if outcomes and isinstance(outcomes[0], ErrorCode) and outcomes[0]:
        group = node.coordinator.groups.get(group_id)
        members = 0 if group is None else len(group.members)
        raise UsageError(
            f"cannot commit offsets of group {group_id!r}, which has {members} members: {outcomes[0].name}"
        )
