"""Replicas and leaders of partitions: elect leaders, and change the nodes that have the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.actions import ErrorTable, RequestAction
from asyncgroup.cluster.requests.fan_out import request_each, request_one
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByController, Target, ToNode, ToOneTarget
from asyncgroup.cluster.requests.unanswered import Unanswered
from asyncgroup.errors import BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.topic_partition import by_topic
from asyncgroup.wire import messages as m

__all__ = [
    "PREFERRED",
    "UNCLEAN",
    "OngoingReassignment",
    "alter_log_dirs",
    "alter_reassignments",
    "elect_all_leaders",
    "elect_leaders",
    "list_reassignments",
]

TIMEOUT_MS: Final = 30_000
"""Milliseconds that the controller may wait until a change is made."""

PREFERRED: Final = 0
UNCLEAN: Final = 1
"""`ElectionType` in Kafka."""

UNCLEAN_VERSION: Final = 1
"""The first ElectLeaders version with a kind of election (KIP-460, Kafka 2.4)."""
FIXED_FACTOR_VERSION: Final = 1
"""The first AlterPartitionReassignments version that can forbid other replication factors (KIP-860, Kafka 4.1)."""

OngoingReassignment: TypeAlias = "m.ListPartitionReassignmentsResponse.OngoingPartitionReassignment"

_NOT_NEEDED: Final = ErrorCode.ELECTION_NOT_NEEDED
_FINAL: Final[ErrorTable] = {
    # the controller knows which partitions exist: a repetition would not find one
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: RequestAction.FAIL,
    # retriable in Kafka's list of codes; in Java a caller decides after one election
    _NOT_NEEDED: RequestAction.FAIL,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: RequestAction.FAIL,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: RequestAction.FAIL,
}


_NOT_HERE: Final[ErrorTable] = {
    # the broker that is asked knows its replicas: no other one has an answer
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: RequestAction.FAIL,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: RequestAction.FAIL,
    ErrorCode.REPLICA_NOT_AVAILABLE: RequestAction.FAIL,
    ErrorCode.KAFKA_STORAGE_ERROR: RequestAction.FAIL,
}


async def elect_leaders(
    cluster: ClusterClient,
    partitions: Iterable[TopicPartition],
    election_type: int,
    *,
    retry: RetryLoop | None = None,
) -> Results[TopicPartition, bool]:
    """Elect the preferred leader of each partition, or one that was not in sync (KIP-460). Raises ClosedError.

    Returns whether there was an election: False if the partition has the leader already.
    """

    async def ask(target: Target, asked: list[TopicPartition]) -> Results[TopicPartition, bool]:
        return await _elect(cluster, target, asked, election_type)

    return await request_each(
        partitions, ByController(cluster), ask, api="ElectLeaders", retry=retry, table=_FINAL
    )


async def elect_all_leaders(
    cluster: ClusterClient, election_type: int, *, retry: RetryLoop | None = None
) -> Results[TopicPartition, bool]:
    """As `elect_leaders`, for all partitions that need an election; others are not named.

    Raises BrokerError if the controller refuses the request as a whole, and what `request_one` raises.
    """

    async def ask(target: Target) -> Results[TopicPartition, bool]:
        return await _elect(cluster, target, None, election_type)

    return await request_one(ByController(cluster), ask, api="ElectLeaders", retry=retry, table=_FINAL)


async def _elect(
    cluster: ClusterClient, target: Target, asked: list[TopicPartition] | None, election_type: int
) -> Results[TopicPartition, bool]:
    topics = (
        None
        if asked is None
        else [m.ElectLeadersRequest.TopicPartitions(*each) for each in by_topic(asked).items()]
    )

    def build(version: int) -> m.ElectLeadersRequest:
        # an older broker would elect the preferred leader, which is another request
        if election_type != PREFERRED and version < UNCLEAN_VERSION:
            raise UnsupportedVersionError(
                "this broker elects only preferred leaders (Kafka 2.4 others as well)"
            )
        return m.ElectLeadersRequest(election_type, topics, TIMEOUT_MS)

    # the controller may take its time, and the client must not give up before
    response = await target.request(m.ElectLeadersRequest, build, timeout=_timeout(cluster))
    if response.error_code:
        raise BrokerError(response.error_code, "electing leaders")
    results: Results[TopicPartition, bool] = Results()
    for topic in response.replica_election_results:
        for part in topic.partition_result:
            tp = TopicPartition(topic.topic, part.partition_id)
            # that there was nothing to do is a result and no error
            if part.error_code in (ErrorCode.NONE, _NOT_NEEDED):
                results.values[tp] = part.error_code != _NOT_NEEDED
            else:
                results.errors[tp] = BrokerError(
                    part.error_code, f"electing a leader of {tp}", part.error_message
                )
    return results


async def list_reassignments(
    cluster: ClusterClient,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    retry: RetryLoop | None = None,
) -> dict[TopicPartition, OngoingReassignment]:
    """Return the reassignments in progress of these partitions, or all (KIP-455, Kafka 2.4).

    Raises BrokerError and what `request_one` raises.
    """
    names = m.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    # null stands for all; an empty list for none
    topics = None if partitions is None else [names(*each) for each in by_topic(partitions).items()]
    request = m.ListPartitionReassignmentsRequest(TIMEOUT_MS, topics)

    async def ask(target: Target) -> dict[TopicPartition, OngoingReassignment]:
        timeout = _timeout(cluster)
        response = await target.request(
            m.ListPartitionReassignmentsRequest, lambda _: request, timeout=timeout
        )
        if response.error_code:
            raise BrokerError(response.error_code, "reassignments in progress", response.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): part
            for topic in response.topics
            for part in topic.partitions
        }

    return await request_one(ByController(cluster), ask, api="ListPartitionReassignments", retry=retry)


async def alter_reassignments(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
    retry: RetryLoop | None = None,
) -> Results[TopicPartition, None]:
    """Begin to move each partition to these nodes, the preferred leader first; None cancels what is in progress (KIP-455).

    Returns when the reassignments have begun. Raises ClosedError.
    """
    unanswered: Unanswered[TopicPartition] = Unanswered(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)

    async def send(target: Target, asked: list[TopicPartition]) -> Results[TopicPartition, None]:
        def build(version: int) -> m.AlterPartitionReassignmentsRequest:
            # an older broker would ignore it, and change the factor
            if not allow_replication_factor_change and version < FIXED_FACTOR_VERSION:
                raise UnsupportedVersionError(
                    "this broker always allows another replication factor (Kafka 4.1 can forbid it)"
                )
            return _alter(asked, wanted, allow_replication_factor_change=allow_replication_factor_change)

        timeout = _timeout(cluster)
        response = await target.request(m.AlterPartitionReassignmentsRequest, build, timeout=timeout)
        if response.error_code:
            raise BrokerError(response.error_code, "reassigning partitions", response.error_message)
        results: Results[TopicPartition, None] = Results()
        for topic in response.responses:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.error_code:
                    what = (
                        f"cancelling the reassignment of {tp}" if wanted[tp] is None else f"reassigning {tp}"
                    )
                    results.errors[tp] = BrokerError(part.error_code, what, part.error_message)
                else:
                    results.values[tp] = None
        return results

    async def ask(target: Target, asked: list[TopicPartition]) -> Results[TopicPartition, None]:
        return await unanswered.track(asked, lambda: send(target, asked))

    return await request_each(
        wanted, ByController(cluster), ask, api="AlterPartitionReassignments", retry=retry, table=_FINAL
    )


def _alter(
    asked: Iterable[TopicPartition],
    wanted: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool,
) -> m.AlterPartitionReassignmentsRequest:
    request = m.AlterPartitionReassignmentsRequest

    def replicas(tp: TopicPartition) -> list[int] | None:
        # null cancels the reassignment
        nodes = wanted[tp]
        return None if nodes is None else list(nodes)

    topics = [
        request.ReassignableTopic(
            name, [request.ReassignablePartition(n, replicas(TopicPartition(name, n))) for n in numbers]
        )
        for name, numbers in by_topic(asked).items()
    ]
    return request(TIMEOUT_MS, allow_replication_factor_change, topics)


async def alter_log_dirs(
    cluster: ClusterClient, node: int, wanted: Mapping[TopicPartition, str], *, retry: RetryLoop | None = None
) -> Results[TopicPartition, None]:
    """Begin to move this node's replica of each partition to a log directory of the node (KIP-113). Raises ClosedError.

    Returns when the copies have begun: a replica in the directory already is a success, so a repetition does no harm.
    """

    async def ask(target: Target, asked: list[TopicPartition]) -> Results[TopicPartition, None]:
        response = await target.request(
            m.AlterReplicaLogDirsRequest, lambda _: _alter_log_dirs(asked, wanted)
        )
        results: Results[TopicPartition, None] = Results()
        for topic in response.results:
            for part in topic.partitions:
                tp = TopicPartition(topic.topic_name, part.partition_index)
                if part.error_code:
                    what = f"moving {tp} of node {node} to {wanted.get(tp, '')!r}"
                    results.errors[tp] = BrokerError(part.error_code, what)
                else:
                    results.values[tp] = None
        return results

    route: ToOneTarget[TopicPartition] = ToOneTarget(ToNode(cluster, node))
    return await request_each(wanted, route, ask, api="AlterReplicaLogDirs", retry=retry, table=_NOT_HERE)


def _alter_log_dirs(
    asked: Iterable[TopicPartition], wanted: Mapping[TopicPartition, str]
) -> m.AlterReplicaLogDirsRequest:
    request = m.AlterReplicaLogDirsRequest
    by_path: dict[str, list[TopicPartition]] = {}
    for tp in asked:
        # the request is by directory
        by_path.setdefault(wanted[tp], []).append(tp)
    return request(
        [
            request.AlterReplicaLogDir(
                path, [request.AlterReplicaLogDirTopic(*each) for each in by_topic(partitions).items()]
            )
            for path, partitions in by_path.items()
        ]
    )


def _timeout(cluster: ClusterClient) -> float:
    """Return the seconds to wait for a response that the controller may delay."""
    return max(cluster.config.request_timeout, TIMEOUT_MS / 1000 + 1)
