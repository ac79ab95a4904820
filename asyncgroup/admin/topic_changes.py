"""Create and delete topics, add partitions, and delete records: checks of what is wanted, and waits until it is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asyncgroup.admin.partitions import existing_partitions
from asyncgroup.checks import TEXT, check_count, check_offset, check_partition, check_topic, wrong_type
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import records, topics
from asyncgroup.cluster.requests.list_offsets import ask_high_watermarks
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.cluster.requests.topic_spread import wait_for_topics
from asyncgroup.cluster.requests.topics import NewPartitions, NewTopic
from asyncgroup.errors import ConfigError
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.secret import HIDDEN

__all__ = [
    "NewPartitions",
    "NewTopic",
    "checked_new_partitions",
    "checked_new_topics",
    "checked_offsets",
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
]

# --- checks -----------------------------------------------------------------------------------------------------------


def checked_new_topics(wanted: Mapping[str, NewTopic | int | None]) -> dict[str, NewTopic]:
    """Return a NewTopic for each name. Raises ConfigError for wrong names and values."""
    return {check_topic(name): _new_topic(name, each) for name, each in _items("topics", wanted)}


def _new_topic(name: str, wanted: object) -> NewTopic:
    topic = wanted if isinstance(wanted, NewTopic) else NewTopic(wanted)  # type: ignore[arg-type]  # checked here
    key = f"the new topic {name!r}: partitions"
    if topic.partitions is not None:
        check_count(key, topic.partitions)
    if topic.replication_factor is not None:
        check_count(f"the new topic {name!r}: replication_factor", topic.replication_factor)
    if topic.assignments and (topic.partitions, topic.replication_factor) != (None, None):
        given = topic.partitions if topic.partitions is not None else topic.replication_factor
        raise ConfigError(
            key, given, "no number of partitions or replicas beside assignments, which give both"
        )
    _check_assignments(f"the new topic {name!r}: assignments", topic.assignments)
    if not isinstance(topic.configs, Mapping):
        raise wrong_type(
            f"the new topic {name!r}: configs", topic.configs, "a mapping from Kafka's names to values"
        )
    for config, value in topic.configs.items():
        if not isinstance(config, str) or not isinstance(value, str):
            raise wrong_type(
                f"the new topic {name!r}: {config}", value, "Kafka's name and its value, as text"
            )
        if not TEXT[0](config) or not TEXT[0](value):
            raise ConfigError(f"the new topic {name!r}: {config[:20]!r}", HIDDEN, TEXT[1])
    return topic


def checked_new_partitions(wanted: Mapping[str, NewPartitions | int]) -> dict[str, NewPartitions]:
    """Return NewPartitions for each name. Raises ConfigError for wrong names and values."""
    return {check_topic(name): _new_partitions(name, each) for name, each in _items("topics", wanted)}


def _new_partitions(name: str, wanted: object) -> NewPartitions:
    new = wanted if isinstance(wanted, NewPartitions) else NewPartitions(wanted)  # type: ignore[arg-type]
    check_count(f"partitions of {name!r}", new.total)
    _check_assignments(f"partitions of {name!r}: assignments", new.assignments)
    return new


def _check_assignments(key: str, assignments: object) -> None:
    rule = "for each partition the node ids of its replicas, as [[1, 2], [2, 3]]"
    if not isinstance(assignments, list | tuple):
        raise wrong_type(key, assignments, rule)
    for nodes in assignments:
        is_list = isinstance(nodes, list | tuple) and bool(nodes)
        if not is_list or not all(isinstance(node, int) and node >= 0 for node in nodes):
            raise ConfigError(key, nodes, rule)


def checked_offsets(before: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    """Return the offset for each partition, HIGH_WATERMARK for None. Raises ConfigError for wrong values."""
    found: dict[TopicPartition, int] = {}
    for place, offset in _items("offsets", before):
        tp = check_partition(place)
        check_topic(tp.topic)
        found[tp] = records.HIGH_WATERMARK if offset is None else check_offset(offset)
    return found


def _items(key: str, wanted: object) -> Iterable[tuple[Any, Any]]:
    if not isinstance(wanted, Mapping):
        raise wrong_type(key, wanted, "a mapping from each name to what is wanted")
    return wanted.items()


# --- changes ----------------------------------------------------------------------------------------------------------


async def create_topics(
    cluster: ClusterClient, wanted: Mapping[str, NewTopic], retry: RetryLoop, *, validate_only: bool
) -> Results[str, None]:
    """Create topics, and wait until each broker knows them."""
    created = await topics.create_topics(cluster, wanted, retry=retry, validate_only=validate_only)
    if validate_only:
        return created
    counts = {
        name: wanted[name].partitions or len(wanted[name].assignments) or None for name in created.values
    }
    return await _known_everywhere(cluster, created, counts, retry)


async def create_partitions(
    cluster: ClusterClient, wanted: Mapping[str, NewPartitions], retry: RetryLoop, *, validate_only: bool
) -> Results[str, None]:
    """Add partitions, and wait until each broker knows them."""
    added = await topics.add_partitions(cluster, wanted, retry=retry, validate_only=validate_only)
    if validate_only:
        return added
    return await _known_everywhere(cluster, added, {name: wanted[name].total for name in added.values}, retry)


async def _known_everywhere(
    cluster: ClusterClient, done: Results[str, None], counts: Mapping[str, int | None], retry: RetryLoop
) -> Results[str, None]:
    errors = await wait_for_topics(cluster, counts, retry=retry)
    values = {name: None for name in done.values if name not in errors}
    return Results(values, done.errors | errors)


async def delete_topics(cluster: ClusterClient, names: Iterable[str], retry: RetryLoop) -> Results[str, None]:
    """Delete topics; those that existed and do not after a lost response were deleted."""
    wanted = list(dict.fromkeys(names))
    existed = (
        await within(retry.cut_at, topics.existing_topics(cluster, wanted), what="Metadata")
        if wanted
        else set()
    )
    return await topics.delete_topics(cluster, wanted, existed=existed, retry=retry)


async def delete_records(
    cluster: ClusterClient, offsets: Mapping[TopicPartition, int], retry: RetryLoop
) -> Results[TopicPartition, int]:
    """Delete the records before these offsets; return the new start of each log."""
    async with existing_partitions(cluster, offsets, "deleting records of", retry.cut_at) as (found, errors):
        wanted = {tp: offsets[tp] for tp in found}
        deleted = await records.delete_records(
            cluster, wanted, ask_ends=ask_high_watermarks(cluster), retry=retry
        )
    return Results(deleted.values, errors | deleted.errors)
