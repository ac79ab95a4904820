"""Create and delete topics and add partitions, at the controller.

A request may have been executed though its response was lost. A repetition is then refused, because its work is done: the topic
exists, does not exist any more, or has its partitions. `Unanswered` knows the names for which such a refusal means success.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.metadata import TopicInfo
from asyncgroup.cluster.requests.actions import ErrorTable, RequestAction
from asyncgroup.cluster.requests.fan_out import request_each
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByController, Target
from asyncgroup.cluster.requests.unanswered import Unanswered
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = ["NewPartitions", "NewTopic", "add_partitions", "create_topics", "delete_topics", "existing_topics"]

TIMEOUT_MS: Final = 30_000
"""Milliseconds that the controller may wait until a change has reached all brokers."""

DEFAULT_REPLICATION_VERSION: Final = 4
"""The lowest version of CreateTopics in which -1 means the broker's default (KIP-464, Kafka 2.4)."""

TOPIC_STATES_VERSION: Final = 6
"""The lowest version of DeleteTopics that takes topics by name or id (KIP-516, Kafka 2.8)."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """Properties of a topic to be created."""

    partitions: int | None = None
    """The number of its partitions; None means the broker's default (Kafka 2.4), or as many as `assignments` has."""
    replication_factor: int | None = None
    """The replicas of each partition; None means the broker's default, 1 for brokers before Kafka 2.4."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Its topic configs, by Kafka's names."""
    assignments: Sequence[Sequence[int]] = ()
    """The node ids of the replicas of each partition, the preferred leader first; without the two numbers above."""


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """More partitions for a topic."""

    total: int
    """The number of its partitions afterwards."""
    assignments: Sequence[Sequence[int]] = ()
    """The node ids of the replicas of each new partition, the preferred leader first; empty: the controller decides."""


async def create_topics(
    cluster: ClusterClient,
    wanted: Mapping[str, NewTopic],
    *,
    retry: RetryLoop | None = None,
    only_missing: bool = False,
    validate_only: bool = False,
) -> Results[str, None]:
    """Create topics; return the error of each one that could not be created. Raises ClosedError.

    With `only_missing` an existing topic is left as it is, and counts as created. It is looked for first, so that only a
    missing one needs the permission to create it. With `validate_only` the controller only checks the request.
    """
    unanswered: Unanswered[str] = Unanswered(ErrorCode.TOPIC_ALREADY_EXISTS)

    async def is_like(name: str) -> bool:
        topic = (await cluster.existing_topics([name])).get(name)
        # a broker that does not know the topic yet cannot say that it is another one
        return topic is None or bool(topic.error_code) or _is_like(topic, wanted[name])

    async def create(target: Target, missing: Mapping[str, NewTopic]) -> Results[str, None]:
        if validate_only:
            return await _create(cluster, target, missing, validate_only=True)
        return await unanswered.track(missing, lambda: _create(cluster, target, missing), is_like)

    async def ask(target: Target, names: list[str]) -> Results[str, None]:
        existing = await existing_topics(cluster, names) if only_missing else set()
        missing = {name: wanted[name] for name in names if name not in existing}
        results: Results[str, None] = Results()
        if missing:
            results = await create(target, missing)
        # another client may have created one in between
        existing |= {name for name, error in results.errors.items() if only_missing and _exists(error)}
        errors = {name: error for name, error in results.errors.items() if name not in existing}
        return Results(results.values | dict.fromkeys(existing), errors)

    return await request_each(wanted, ByController(cluster), ask, api="CreateTopics", retry=retry)


async def existing_topics(cluster: ClusterClient, names: Iterable[str]) -> set[str]:
    """Return those that exist, by fresh metadata; a topic that may not be described is not among them."""
    found = await cluster.existing_topics(names)
    return {name for name, topic in found.items() if not topic.error_code}


async def _create(
    cluster: ClusterClient, target: Target, wanted: Mapping[str, NewTopic], *, validate_only: bool = False
) -> Results[str, None]:
    def build(version: int) -> m.CreateTopicsRequest:
        topics = [_creatable(name, topic, version) for name, topic in wanted.items()]
        return m.CreateTopicsRequest(topics, timeout_ms=TIMEOUT_MS, validate_only=validate_only)

    response = await target.request(m.CreateTopicsRequest, build, timeout=_timeout(cluster))
    codes = {result.name: (result.error_code, result.error_message) for result in response.topics}
    return _results(codes, "creating")


def _creatable(name: str, topic: NewTopic, version: int) -> m.CreateTopicsRequest.CreatableTopic:
    request = m.CreateTopicsRequest
    configs = [request.CreatableTopicConfig(key, value) for key, value in topic.configs.items()]
    if topic.assignments:
        numbered = enumerate(topic.assignments)
        assignments = [request.CreatableReplicaAssignment(number, list(nodes)) for number, nodes in numbered]
        return request.CreatableTopic(name, -1, -1, assignments, configs)
    default = -1 if version >= DEFAULT_REPLICATION_VERSION else 1
    return request.CreatableTopic(
        name=name,
        num_partitions=default if topic.partitions is None else topic.partitions,
        replication_factor=default if topic.replication_factor is None else topic.replication_factor,
        configs=configs,
    )


def _is_like(topic: TopicInfo, wanted: NewTopic) -> bool:
    """Return whether a topic has the partitions and replicas of a new one, so that the request may have created it."""
    partitions = wanted.partitions if wanted.partitions is not None else len(wanted.assignments) or None
    if partitions is not None and len(topic.partitions) != partitions:
        return False
    factor = wanted.replication_factor
    return factor is None or all(len(each.replicas) == factor for each in topic.partitions.values())


def _exists(error: AsyncGroupError) -> bool:
    return isinstance(error, BrokerError) and error.code == ErrorCode.TOPIC_ALREADY_EXISTS


async def delete_topics(
    cluster: ClusterClient,
    names: Iterable[str],
    *,
    existed: Container[str] = (),
    retry: RetryLoop | None = None,
) -> Results[str, None]:
    """Delete topics; return the error of each one that could not be deleted. Raises ClosedError.

    A topic that `existed` before the call, and does not after a request without a response, counts as deleted.
    """
    unanswered: Unanswered[str] = Unanswered(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def did_exist(name: str) -> bool:
        return name in existed

    async def ask(target: Target, asked: list[str]) -> Results[str, None]:
        return await unanswered.track(asked, lambda: _delete(cluster, target, asked), did_exist)

    return await request_each(
        names, ByController(cluster), ask, api="DeleteTopics", retry=retry, table=_KNOWN_TOPICS
    )


async def _delete(cluster: ClusterClient, target: Target, asked: list[str]) -> Results[str, None]:
    def build(version: int) -> m.DeleteTopicsRequest:
        if version >= TOPIC_STATES_VERSION:
            states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in asked]
            return m.DeleteTopicsRequest(topics=states, timeout_ms=TIMEOUT_MS)
        return m.DeleteTopicsRequest(topic_names=asked, timeout_ms=TIMEOUT_MS)

    response = await target.request(m.DeleteTopicsRequest, build, timeout=_timeout(cluster))
    codes = {each.name: (each.error_code, each.error_message) for each in response.responses if each.name}
    return _results(codes, "deleting")


async def add_partitions(
    cluster: ClusterClient,
    wanted: Mapping[str, NewPartitions],
    *,
    retry: RetryLoop | None = None,
    validate_only: bool = False,
) -> Results[str, None]:
    """Add partitions to topics (KIP-195); return the error of each topic that got none. Raises ClosedError.

    With `validate_only` the controller only checks the request.
    """
    unanswered: Unanswered[str] = Unanswered(ErrorCode.INVALID_PARTITIONS)

    async def has_total(name: str) -> bool:
        topic = (await cluster.existing_topics([name])).get(name)
        return topic is not None and len(topic.partitions) == wanted[name].total

    async def ask(target: Target, asked: list[str]) -> Results[str, None]:
        topics = [_more(name, wanted[name]) for name in asked]
        request = m.CreatePartitionsRequest(topics, timeout_ms=TIMEOUT_MS, validate_only=validate_only)

        async def send() -> Results[str, None]:
            timeout = _timeout(cluster)
            response = await target.request(m.CreatePartitionsRequest, lambda _: request, timeout=timeout)
            codes = {each.name: (each.error_code, each.error_message) for each in response.results}
            return _results(codes, "adding partitions to")

        return await (send() if validate_only else unanswered.track(asked, send, has_total))

    return await request_each(
        wanted, ByController(cluster), ask, api="CreatePartitions", retry=retry, table=_KNOWN_TOPICS
    )


def _more(name: str, new: NewPartitions) -> m.CreatePartitionsRequest.CreatePartitionsTopic:
    request = m.CreatePartitionsRequest
    # null, not an empty list: the controller would compare its length with the number of new partitions
    assignments = [request.CreatePartitionsAssignment(list(nodes)) for nodes in new.assignments] or None
    return request.CreatePartitionsTopic(name, new.total, assignments)


_KNOWN_TOPICS: Final[ErrorTable] = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: RequestAction.FAIL}
"""The controller knows which topics exist: a repetition would not find one."""


def _timeout(cluster: ClusterClient) -> float:
    """Return the seconds to wait for a response that the controller may delay."""
    return max(cluster.config.request_timeout, TIMEOUT_MS / 1000 + 1)


def _results(codes: Mapping[str, tuple[int, str | None]], doing: str) -> Results[str, None]:
    results: Results[str, None] = Results()
    for name, (code, detail) in codes.items():
        if code:
            results.errors[name] = BrokerError(code, f"{doing} topic {name!r}", detail)
        else:
            results.values[name] = None
    return results
