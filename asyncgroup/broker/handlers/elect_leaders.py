"""ElectLeaders (43), versions 0-2: elect the preferred leaders of partitions (KIP-460).

An unclean election takes any live replica for a leaderless partition.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.topics import NO_LEADER, Partition
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

_PREFERRED: Final = 0
_UNCLEAN: Final = 1

Response = m.ElectLeadersResponse
Result = m.ElectLeadersResponse.PartitionResult


def handle(node: Node, context: RequestContext, request: m.ElectLeadersRequest) -> Response:
    """Elect a leader for each partition. A null list stands for all partitions that need an election."""
    if request.election_type not in (_PREFERRED, _UNCLEAN) and request.topic_partitions != []:
        return error_response(context, request, ErrorCode.INVALID_REQUEST)
    preferred = request.election_type == _PREFERRED
    if request.topic_partitions is None:
        wanted = {name: list(range(len(t.partitions))) for name, t in node.controller.topics.items()}
    else:
        wanted = {topic.topic: topic.partitions for topic in request.topic_partitions}
    response = Response()
    for name, partitions in wanted.items():
        results = [_elect(node, context, name, index, preferred=preferred) for index in partitions]
        if request.topic_partitions is None:
            results = [result for result in results if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        response.replica_election_results.append(Response.ReplicaElectionResult(name, results))
    return response


def error_response(context: RequestContext, request: m.ElectLeadersRequest, code: int) -> Response:
    """Return the error for the request (from version 1 on) and for every partition."""
    name = ErrorCode(code).name
    return Response(
        error_code=code if context.api_version >= 1 else ErrorCode.NONE,
        replica_election_results=[
            Response.ReplicaElectionResult(
                topic.topic, [Result(index, code, name) for index in topic.partitions]
            )
            for topic in request.topic_partitions or []
        ],
    )


def _elect(node: Node, context: RequestContext, name: str, index: int, *, preferred: bool) -> Result:
    try:
        partition = node.partition(context, node.controller.topics.get(name), index)
        leader = _candidate(node, partition, preferred=preferred)
    except Refused as error:
        return Result(index, error.code, str(error))
    node.controller.move_leader(partition, leader)
    return Result(index, ErrorCode.NONE, None)


def _candidate(node: Node, partition: Partition, *, preferred: bool) -> int:
    """Return the replica to elect. Raise Refused if no replica is available or no election is needed."""
    alive = node.controller.alive
    if preferred:
        if partition.leader == partition.replicas[0]:
            raise Refused(ErrorCode.ELECTION_NOT_NEEDED)
        if partition.replicas[0] not in alive:
            raise Refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        return partition.replicas[0]
    if partition.leader != NO_LEADER:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED)
    found = next((replica for replica in partition.replicas if replica in alive), None)
    if found is None:
        raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    return found


register("ElectLeaders", VERSIONS, handle, error_response)
