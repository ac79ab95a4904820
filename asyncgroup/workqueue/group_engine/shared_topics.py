"""Whether a retry topic belongs to one group alone, or may have copies of other groups."""

from __future__ import annotations

import logging
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.group.topics.topics import Pattern
from asyncgroup.wire import messages as m
from asyncgroup.workqueue.group_engine.topic_names import other_sources
from asyncgroup.workqueue.policies import RetryTopic

__all__ = ["is_shared"]

_log = logging.getLogger("asyncgroup.workqueue")

NO_CREATION_VERSION: Final = 4
"""The first version of Metadata that can ask for a topic without creating it (`KafkaApis.handleTopicMetadataRequest`)."""


async def is_shared(
    cluster: ClusterClient, retry: RetryTopic, topics: list[str] | Pattern, group_id: str
) -> bool:
    """Return whether other groups may use the retry topic too.

    A name that the user chose, and one without the group, count as shared. A default name belongs to the group unless a topic
    exists that gives the same name with another group. If the brokers do not say so, it also counts as shared. Raises nothing.
    """
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
        if version < NO_CREATION_VERSION:
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, "metadata that creates no topic")
        asked = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        return m.MetadataRequest(asked, allow_auto_topic_creation=False)

    response = await cluster.network.request_any(m.MetadataRequest, build)
    missing = {
        topic.name for topic in response.topics if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    return missing.issuperset(names)
