"""CopyTopicCreation: the retry and the dead letter topic are created before the first copy, where the broker allows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.topics import NewTopic, create_topics, existing_topics
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode
from asyncgroup.group.topics.topics import Pattern
from asyncgroup.lifecycle import describe_error
from asyncgroup.workqueue.group_engine.topic_names import CopyTopics
from asyncgroup.workqueue.settings import QueueSettings

__all__ = ["CopyTopicCreation"]

_log = logging.getLogger("asyncgroup.workqueue")

INTERVAL: Final = 30.0
"""Seconds between two attempts while the queue runs."""

LIMIT: Final = 60.0
"""Seconds for which retriable errors are retried before the queue is opened without a topic."""

KEPT: Final = {"retention.ms": "-1"}
"""Copies keep the timestamps of their originals, from which retention counts. Without this, the copy of an old record, whose
original is acknowledged, could be deleted at once."""


class CopyTopicCreation:
    """Creates the retry and the dead letter topic of a queue, if they do not exist and the brokers allow it.

    One that could not be created stops nothing else: the queue is opened without it. If the reason may pass, as that the
    controller or a replica's broker is down, it is tried again while the queue runs. Of one that was refused only the existence
    is looked up. `on_error(error)` is called once for each reason.

    No metadata request creates them: with the brokers' defaults they would have another number of partitions, and a retention
    time.
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
        policies = ((names.retry, settings.retry), (names.dead_letter, settings.dead_letter_policy))
        self._policies = {
            name: policy for name, policy in policies if name is not None and policy is not None
        }
        self._read_by_group = names.retry
        """The topic of which the group itself says that it is missing, and that it exists now."""
        self._on_error = on_error
        self.missing: dict[str, AsyncGroupError] = {}
        """The topics that could not be created, each with the reason."""

    def __repr__(self) -> str:
        return f"<CopyTopicCreation of {self._group_id!r}: {', '.join(self.missing) or 'nothing'} missing>"

    async def create(self) -> None:
        """Create the topics; log and report errors. Raises ClosedError."""
        self._cluster.never_create(self._policies)
        self._note(await self._create(self._policies, LIMIT))

    async def run(self) -> None:
        """Go on with the topics that are missing, every `INTERVAL` seconds, until there are none."""
        while self.missing:
            await asyncio.sleep(INTERVAL)
            try:
                self._note(await self._create(self.missing, 0.0))
            except ClosedError:
                return
            except Exception:  # noqa: BLE001  a bug: the next attempt may still succeed
                _log.exception("%r: bug", self)

    def problems(self) -> list[str]:
        """Return what is missing, in words, without what the group itself reports."""
        return [
            f"topic {name!r} could not be created: {describe_error(error)}"
            for name, error in self.missing.items()
            if name != self._read_by_group
        ]

    # --- one attempt ------------------------------------------------------------------------------------------------------

    async def _create(self, names: Iterable[str], limit: float) -> dict[str, AsyncGroupError]:
        """Create the missing topics, with the properties that they should have now; return errors."""
        try:
            existing = await existing_topics(self._cluster, names)
        except ClosedError:
            raise
        except AsyncGroupError:
            existing = set()  # `create_topics` looks again
        wanted: dict[str, NewTopic] = {}
        errors: dict[str, AsyncGroupError] = {}
        for name in names:
            if name in existing:
                continue
            before, policy = self.missing.get(name), self._policies[name]
            if before is not None and not _may_pass(before):
                errors[name] = before
                continue
            try:
                partitions = policy.partitions or await _source_partitions(self._cluster, self._topics)
            except AsyncGroupError as error:
                if isinstance(error, ClosedError):
                    raise
                errors[name] = error
            else:
                wanted[name] = NewTopic(partitions, policy.replication_factor, KEPT)
        retry = self._cluster.retry(timeout=limit)
        created = await create_topics(self._cluster, wanted, retry=retry, only_missing=True)
        return errors | created.errors

    def _note(self, errors: dict[str, AsyncGroupError]) -> None:
        """Take over what an attempt says of the missing topics; log and report what is new."""
        for name in self.missing.keys() - errors.keys():
            if name != self._read_by_group:
                _log.info("group %s: topic %r exists now", self._group_id, name)
        for name, error in errors.items():
            before = self.missing.get(name)
            if before is None or (_may_pass(before) and not _may_pass(error)):
                _log.warning("group %s: topic %r could not be created: %s", self._group_id, name, error)
                self._on_error(error)
        self.missing = errors


def _may_pass(error: AsyncGroupError) -> bool:
    """Whether a later attempt may succeed: also with fewer brokers than replicas, which is no retriable error in Kafka."""
    too_few = isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_REPLICATION_FACTOR
    return error.retriable or too_few


async def _source_partitions(cluster: ClusterClient, topics: list[str] | Pattern) -> int:
    """Return the number of partitions of the first topic; 1 if it does not exist, and for patterns.

    It is created if brokers create topics, as the group that reads it would create it. Raises an error that may pass: a topic
    with too few partitions would stay.
    """
    if not isinstance(topics, list):
        return 1
    try:
        with cluster.tracking(topics[:1]):
            return len(await cluster.partitions(topics[0])) or 1
    except AsyncGroupError as error:
        is_missing = isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if isinstance(error, ClosedError) or (error.retriable and not is_missing):
            raise
        _log.info("partitions of topic %r: %s", topics[0], error)
        return 1
