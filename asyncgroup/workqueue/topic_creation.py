"""Create retry and dead letter topics before the first copy, where the broker allows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode, RequestTimedOut
from asyncgroup.group.topics import Pattern
from asyncgroup.wire import messages as m
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.topic_names import CopyTopics

__all__ = ["CopyTopicCreation", "NewTopic", "create_topics"]

_log = logging.getLogger("asyncgroup.workqueue")

TIMEOUT_MS: Final = 30_000
"""Milliseconds that the controller may wait until the topics exist on all brokers."""

LIMIT: Final = 60.0
"""Seconds after which retriable errors are no longer retried."""

INTERVAL: Final = 30.0
"""Seconds between two attempts to create a topic of copies while the queue runs."""

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
    """Create those of the topics that do not exist; return the errors of those that could not be created.

    An existing topic is left as it is, so that only a missing one needs the permission to create it. Retriable errors are
    retried for `limit` seconds. Raises ClosedError.
    """
    missing = dict(wanted)
    errors: dict[str, AsyncGroupError] = {}
    retry = cluster.retry(timeout=limit)
    while missing:
        try:
            existing = await _existing(cluster, missing)
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


async def _existing(cluster: ClusterClient, names: Iterable[str]) -> set[str]:
    """Return those that exist, by fresh metadata; a topic that may not be described is not among them."""
    topics = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    response = await cluster.network.request_any(
        m.MetadataRequest,
        lambda version: m.MetadataRequest(topics, allow_auto_topic_creation=version < 4),
    )
    return {topic.name for topic in response.topics if topic.name and not topic.error_code}


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


# --- topics of copies ---------------------------------------------------------------------------------------------------------

_KEPT: Final = {"retention.ms": "-1"}
"""Copies keep the timestamps of their originals, from which retention counts: it could delete a copy of an old record at once,
and its original is acknowledged."""


class CopyTopicCreation:
    """Creates the retry and the dead letter topic of a queue, if they do not exist and the brokers allow it.

    One that could not be created stops nothing else: the queue is opened without it. If the reason may pass, as that the
    controller or a replica's broker is down, it is tried again while the queue runs.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group_id: str,
        topics: list[str] | Pattern,
        names: CopyTopics,
        settings: QueueSettings,
        on_error: Callable[[AsyncGroupError], None],
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._topics = topics
        self._policies = ((names.retry, settings.retry), (names.dead_letter, settings.dead_letter_policy))
        self._on_error = on_error
        self._wanted: dict[str, NewTopic] = {}
        """The topics that are to be tried again."""

    def __repr__(self) -> str:
        return f"<CopyTopicCreation of {self._group_id!r}: {', '.join(self._wanted) or 'nothing'} to create>"

    async def create(self) -> None:
        """Create the topics; log and report errors. Raises ClosedError."""
        for name, policy in self._policies:
            if name is not None and policy is not None:
                partitions = policy.partitions or await _source_partitions(self._cluster, self._topics)
                self._wanted[name] = NewTopic(partitions, policy.replication_factor, _KEPT)
        errors = await create_topics(self._cluster, self._wanted)
        for topic, error in errors.items():
            _log.warning("group %s: topic %r could not be created: %s", self._group_id, topic, error)
            self._on_error(error)
        self._keep(errors)

    async def run(self) -> None:
        """Go on with the topics whose errors may pass, every `INTERVAL` seconds, until there are none."""
        while self._wanted:
            await asyncio.sleep(INTERVAL)
            try:
                errors = await create_topics(self._cluster, self._wanted, limit=0.0)
            except ClosedError:
                return
            for topic in self._wanted.keys() - errors.keys():
                _log.info("group %s: topic %r exists now", self._group_id, topic)
            self._keep(errors)

    def _keep(self, errors: Mapping[str, AsyncGroupError]) -> None:
        self._wanted = {name: self._wanted[name] for name, error in errors.items() if _may_pass(error)}


def _may_pass(error: AsyncGroupError) -> bool:
    """Whether a later attempt may succeed: also with fewer brokers than replicas, which is no retriable error in Kafka."""
    too_few = isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_REPLICATION_FACTOR
    return error.retriable or too_few


async def _source_partitions(cluster: ClusterClient, topics: list[str] | Pattern) -> int:
    """Return the number of partitions of the first topic; 1 if it does not exist, and for patterns."""
    if not isinstance(topics, list):
        return 1
    try:
        return len(await cluster.partitions(topics[0])) or 1
    except AsyncGroupError as error:
        _log.info("partitions of topic %r: %s", topics[0], error)
        return 1
