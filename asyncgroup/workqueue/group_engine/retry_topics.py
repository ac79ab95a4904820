"""The retry topic of a group: who else uses it, how long its copies are kept, and the deletion of those that are done.

`RetryTopicCleanup` deletes the copies that all readers have done, up to the committed offsets. Nothing else removes them: a retention
time might delete copies that still wait, whose originals are acknowledged (`warn_of_retention`). Without it the topic grows without end,
and all its copies would be delivered again after the group's offsets have expired. A topic with copies of other groups is left alone
(`is_shared`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.records import delete_records
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode
from asyncgroup.group.topics.topics import Pattern
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.workqueue.group_engine.topic_names import other_sources
from asyncgroup.workqueue.policies import RetryTopic

__all__ = ["INTERVAL", "RetryTopicCleanup", "is_shared", "warn_of_retention"]

_log = logging.getLogger("asyncgroup.workqueue")

INTERVAL: Final = 30.0
"""Seconds between a commit and the deletion of the records that it covers; at most one round of requests in this time."""


class RetryTopicCleanup:
    """Deletes what is done in the partitions of the retry topic that this member has.

    `committed()` returns the committed offsets of all partitions of the member. After an error that a retry does not change,
    as without the permission to delete, and after `stop`, when the topic has copies of other groups, nothing more is deleted.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group_id: str,
        topic: str,
        committed: Callable[[], Mapping[TopicPartition, int]],
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._topic = topic
        self._committed = committed
        self._deleted: dict[TopicPartition, int] = {}
        """The offset that each partition was deleted up to."""
        self._is_wanted = asyncio.Event()
        self._is_over = False

    def __repr__(self) -> str:
        return f"<RetryTopicCleanup of {self._topic!r}>"

    def note_commit(self) -> None:
        """Offsets were committed."""
        self._is_wanted.set()

    def stop(self) -> bool:
        """Delete nothing more; return whether it would have."""
        # so that it is logged once
        before, self._is_over = self._is_over, True
        return not before

    async def run(self) -> None:
        """Delete records until cancelled, or until the brokers refuse it."""
        try:
            while True:
                await self._is_wanted.wait()
                # after the event: commits in this time are deleted in the same round
                await asyncio.sleep(INTERVAL)
                self._is_wanted.clear()
                if self._is_over or not await self._delete():
                    return
        except Exception:  # noqa: BLE001  a bug: the queue goes on without it
            _log.exception("%r: bug", self)

    async def _delete(self) -> bool:
        """Delete what is done now; return whether to go on."""
        committed = {tp: offset for tp, offset in self._committed().items() if tp.topic == self._topic}
        for tp, offset in committed.items():
            if offset < self._deleted.get(tp, 0):  # the topic was recreated, or its log truncated
                del self._deleted[tp]
        due = {tp: offset for tp, offset in committed.items() if offset > self._deleted.get(tp, 0)}
        try:
            errors = (await delete_records(self._cluster, due)).errors
        except ClosedError:
            return False
        self._deleted |= {tp: offset for tp, offset in due.items() if tp not in errors}
        for tp, error in errors.items():
            if not error.retriable and not _may_pass(error):
                _log.warning(
                    "group %s: records of retry topic %r that are done are not deleted: %s",
                    self._group_id,
                    self._topic,
                    describe_error(error),
                )
                return False
            _log.debug("group %s: records of %s are deleted later: %s", self._group_id, tp, error)
            self._is_wanted.set()
        return True


def _may_pass(error: AsyncGroupError) -> bool:
    """Whether a later request may succeed: the log was truncated, its topic recreated, or the broker failed for once."""
    passing = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_SERVER_ERROR)
    return isinstance(error, BrokerError) and error.code in passing


TOPIC_RESOURCE: Final = 2
"""The type of a topic in DescribeConfigs (`ConfigResource.Type.TOPIC` in Kafka)."""

DESCRIBE_TIMEOUT: Final = 5.0
"""Seconds to wait for the response."""

RETENTION: Final = "retention.ms"
POLICY: Final = "cleanup.policy"


async def warn_of_retention(cluster: ClusterClient, group_id: str, topic: str) -> None:
    """Log a warning if a retry topic has a finite `retention.ms`: the originals of its copies are acknowledged.

    Sends one DescribeConfigs request. Nothing is logged if the brokers do not say it. Raises nothing.
    """
    try:
        async with asyncio.timeout(DESCRIBE_TIMEOUT):
            configs = await _describe(cluster, topic)
        retention = int(configs.get(RETENTION) or -1)
    except (AsyncGroupError, ValueError, TimeoutError) as error:
        _log.debug("group %s: %s of topic %r is unknown: %s", group_id, RETENTION, topic, error)
        return
    # -1 keeps them; of a compacted topic the retention does not count
    if retention >= 0 and "delete" in (configs.get(POLICY) or "delete"):
        _log.warning(
            "group %s: retry topic %r has %s=%d: brokers delete copies by the timestamps of their originals, which are "
            "acknowledged; set it to -1",
            group_id,
            topic,
            RETENTION,
            retention,
        )


async def _describe(cluster: ClusterClient, topic: str) -> dict[str, str | None]:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[RETENTION, POLICY]
    )
    request = m.DescribeConfigsRequest(resources=[resource])
    response = await cluster.network.request_any(m.DescribeConfigsRequest, lambda _: request)
    configs: dict[str, str | None] = {}
    for result in response.results:
        if result.error_code:
            raise BrokerError(result.error_code, f"configuration of topic {topic!r}", result.error_message)
        configs |= {config.name: config.value for config in result.configs}
    return configs


NO_CREATION_VERSION: Final = 4
"""The first version of Metadata that can ask for a topic without creating it (`KafkaApis.handleTopicMetadataRequest`)."""


async def is_shared(
    cluster: ClusterClient, retry: RetryTopic, topics: list[str] | Pattern, group_id: str
) -> bool:
    """Return whether other groups may also use the retry topic.

    A name that the user chose, and one without the group, count as shared. A default name belongs to the group unless a topic
    exists that gives the same name with another group. If the brokers do not say so, it also counts as shared. Raises nothing.
    """
    # None: the user has chosen the name, which other groups may have chosen as well
    sources = None if retry.topic is not None else other_sources(retry.names, topics, group_id)
    if not sources:
        return sources is None
    try:
        return not await _are_missing(cluster, sources)
    except AsyncGroupError as error:
        _log.info("group %s: whether the retry topic is shared is unknown: %s", group_id, error)
        return True


async def _are_missing(cluster: ClusterClient, names: list[str]) -> bool:
    """Return whether none of the topics exists; one that may not be described may exist."""

    def build(version: int) -> m.MetadataRequest:
        # to ask must not create a topic of another group
        if version < NO_CREATION_VERSION:
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, "metadata that creates no topic")
        asked = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        return m.MetadataRequest(asked, allow_auto_topic_creation=False)

    response = await cluster.network.request_any(m.MetadataRequest, build)
    missing = {
        topic.name for topic in response.topics if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    return missing.issuperset(names)
