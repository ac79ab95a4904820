"""Create topics that do not exist, where the broker allows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode, RequestTimedOut
from asyncgroup.wire import messages as m

__all__ = ["NewTopic", "create_topics", "existing_topics"]

TIMEOUT_MS: Final = 30_000
"""Milliseconds that the controller may wait until the topics exist on all brokers."""

LIMIT: Final = 60.0
"""Seconds after which retriable errors are no longer retried."""

DEFAULT_REPLICATION_VERSION: Final = 4
"""The lowest version of CreateTopics in which -1 means the broker's default (KIP-464, Kafka 2.4)."""

_EXISTS: Final = frozenset({ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS})


@dataclass(frozen=True, slots=True)
class NewTopic:
    """Properties of a topic to be created."""

    partitions: int
    """The number of its partitions."""
    replication_factor: int | None = None
    """The replicas of each partition; None means the broker's default, 1 for brokers before Kafka 2.4."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Its topic configs, by Kafka's names."""


async def create_topics(
    cluster: ClusterClient, wanted: Mapping[str, NewTopic], *, limit: float = LIMIT
) -> dict[str, AsyncGroupError]:
    """Create the missing topics; return the error of each one that could not be created.

    An existing topic is left as it is, so that only a missing one needs the permission to create it. Retriable errors are
    retried for `limit` seconds. Raises ClosedError.
    """
    missing = dict(wanted)
    errors: dict[str, AsyncGroupError] = {}
    retry = cluster.retry(timeout=limit)
    while missing:
        try:
            existing = await existing_topics(cluster, missing)
            missing = {name: topic for name, topic in missing.items() if name not in existing}
            if not missing:
                break
            failed = await _create_once(cluster, missing)
        except ClosedError:
            raise
        except AsyncGroupError as error:
            failed = dict.fromkeys(missing, error)
        errors |= {name: error for name, error in failed.items() if not error.retriable}
        missing = {name: missing[name] for name, error in failed.items() if error.retriable}
        if missing:
            if not retry.failed():
                return errors | {name: failed[name] for name in missing}
            await retry.wait()
    return errors


async def existing_topics(cluster: ClusterClient, names: Iterable[str]) -> set[str]:
    """Return those that exist, by fresh metadata; a topic that may not be described is not among them."""
    found = await cluster.existing_topics(names)
    return {name for name, topic in found.items() if not topic.error_code}


async def _create_once(cluster: ClusterClient, wanted: Mapping[str, NewTopic]) -> dict[str, AsyncGroupError]:
    """Send one request to the controller; with KRaft any broker forwards it. Return the errors by topic."""

    def build(version: int) -> m.CreateTopicsRequest:
        return m.CreateTopicsRequest(
            [_creatable(name, topic, version) for name, topic in wanted.items()], timeout_ms=TIMEOUT_MS
        )

    controller = cluster.view.controller_id
    timeout = max(cluster.config.request_timeout, TIMEOUT_MS / 1000 + 1)
    if controller in cluster.view.brokers:
        try:
            response = await cluster.network.request_versioned(
                controller, m.CreateTopicsRequest, build, timeout=timeout
            )
        except AsyncGroupError:
            await cluster.refresh()  # another broker may be the controller now
            raise
    else:
        response = await cluster.network.request_any(m.CreateTopicsRequest, build)
    found = {result.name: result for result in response.topics}
    errors: dict[str, AsyncGroupError] = {}
    for name in wanted:
        if (result := found.get(name)) is None:
            errors[name] = RequestTimedOut(f"creating topic {name!r}: the response does not contain it")
        elif result.error_code not in _EXISTS:
            errors[name] = BrokerError(result.error_code, f"creating topic {name!r}", result.error_message)
    if any(
        isinstance(error, BrokerError) and error.code == ErrorCode.NOT_CONTROLLER for error in errors.values()
    ):
        await cluster.refresh()
    return errors


def _creatable(name: str, topic: NewTopic, version: int) -> m.CreateTopicsRequest.CreatableTopic:
    default = -1 if version >= DEFAULT_REPLICATION_VERSION else 1
    configs = [m.CreateTopicsRequest.CreatableTopicConfig(key, value) for key, value in topic.configs.items()]
    return m.CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=topic.partitions,
        replication_factor=default if topic.replication_factor is None else topic.replication_factor,
        configs=configs,
    )
