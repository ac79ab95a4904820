"""Wait until every broker knows topics: a controller answers before its brokers have the change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.actions import ErrorTable, RequestAction
from asyncgroup.cluster.requests.budget import NODE_TIMEOUT
from asyncgroup.cluster.requests.fan_out import request_each
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import Located, Shard, Target, ToNode
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = ["wait_for_topics"]

_log = logging.getLogger("asyncgroup.cluster")

NO_CREATION_VERSION: Final = 4
"""The first Metadata version that can ask without creating a topic."""


class _Place(NamedTuple):
    """A topic as one node knows it."""

    node: int
    topic: str


async def wait_for_topics(
    cluster: ClusterClient, counts: Mapping[str, int | None], *, retry: RetryLoop
) -> dict[str, AsyncGroupError]:
    """Return when each broker that answers knows these topics, with this many partitions (None: any) and their leaders.

    Returns the error of each topic that some broker did not know when `retry` ended. A broker that does not answer within
    `NODE_TIMEOUT` is left out: it learns of the topics when it is back. Raises ClosedError.
    """

    async def ask(target: Target, asked: list[_Place]) -> Results[_Place, None]:
        node = asked[0].node
        try:
            response = await within(
                asyncio.get_running_loop().time() + NODE_TIMEOUT,  # connecting included
                target.request(
                    m.MetadataRequest,
                    lambda version: _request([place.topic for place in asked], version),
                ),
            )
        except TransportError as error:
            _log.debug(
                "topics %s: node %d is not waited for: %s", [place.topic for place in asked], node, error
            )
            return Results(dict.fromkeys(asked))
        found = {topic.name: topic for topic in response.topics if topic.name is not None}
        results: Results[_Place, None] = Results()
        for place in asked:
            missing = _missing(found.get(place.topic), counts[place.topic])
            if missing is None:
                results.values[place] = None
            else:
                code, detail = missing
                results.errors[place] = BrokerError(
                    code, f"topic {place.topic!r}", f"the change is made, but node {node} {detail}"
                )
        return results

    places = [_Place(node, topic) for node in cluster.view.brokers for topic in counts]
    results = await request_each(places, _ByPlace(cluster), ask, api="Metadata", retry=retry, table=_TABLE)
    return {place.topic: error for place, error in results.errors.items() if not _is_silent(error)}


def _is_silent(error: AsyncGroupError) -> bool:
    """Return whether the time of the call ended before the node had answered once."""
    return isinstance(error, TransportError) and error.__cause__ is None


_TABLE: Final[ErrorTable] = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: RequestAction.RETRY}


def _request(topics: list[str], version: int) -> m.MetadataRequest:
    wanted = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    return m.MetadataRequest(topics=wanted, allow_auto_topic_creation=version < NO_CREATION_VERSION)


def _missing(
    topic: m.MetadataResponse.MetadataResponseTopic | None, count: int | None
) -> tuple[int, str] | None:
    """Return an error code and what the node lacks; None if it knows the topic, or if this user may not know."""
    if topic is not None and topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return None  # a user may create topics that it may not describe
    if topic is None or topic.error_code:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
        return code, "does not know the topic yet"
    if not topic.partitions or (count is not None and len(topic.partitions) < count):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"knows {len(topic.partitions)} of its partitions"
    leaderless = [part.partition_index for part in topic.partitions if part.leader_id < 0]
    if leaderless:
        return ErrorCode.LEADER_NOT_AVAILABLE, f"knows no leader of partition {leaderless[0]}"
    return None


class _ByPlace:
    """Each topic at the node that it is named with."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def locate(self, keys: Sequence[_Place]) -> Located[_Place]:
        """See `RequestRoute`."""
        by_node: dict[int, list[_Place]] = {}
        for place in keys:
            by_node.setdefault(place.node, []).append(place)
        return Located([Shard(ToNode(self._cluster, node), part) for node, part in by_node.items()], {})

    def forget(self, shard: Shard[_Place], key: _Place) -> None:
        """See `RequestRoute`: nothing was looked up."""
