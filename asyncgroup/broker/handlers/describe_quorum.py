"""DescribeQuorum (55), versions 0-2: the leader and voters of the controller quorum (KIP-595).

Every node is a voter. All nodes share the metadata and there is no metadata log to replicate, so all offsets are 0.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

_TOPIC: Final = "__cluster_metadata"

Response = m.DescribeQuorumResponse
Partition = m.DescribeQuorumResponse.PartitionData


def handle(node: Node, context: RequestContext, request: m.DescribeQuorumRequest) -> Response:
    """Describe the only partition of `__cluster_metadata`; a request for anything else gets an error."""
    requested = [
        (topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics
    ]
    if requested != [(_TOPIC, [0])]:
        return _of_partitions(context, request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    now = node.clock()
    partition = Partition(
        partition_index=0,
        leader_id=node.controller.controller_id,
        leader_epoch=1,
        high_watermark=0,
        current_voters=[_voter(context, node_id, now) for node_id in node.controller.node_ids],
    )
    response = Response(topics=[Response.TopicData(_TOPIC, [partition])])
    if context.api_version >= 2:
        listener = node.listener.protocol
        response.nodes = [
            Response.Node(peer.id, [Response.Listener(listener, peer.advertised_host, peer.port)])
            for peer in node.peers.values()
        ]
    return response


def error_response(context: RequestContext, request: m.DescribeQuorumRequest, code: int) -> Response:
    """Return the error for the request and for every partition."""
    response = _of_partitions(context, request, code)
    response.error_code = code
    return response


def _voter(context: RequestContext, node_id: int, now: int) -> m.DescribeQuorumResponse.ReplicaState:
    voter = Response.ReplicaState(replica_id=node_id, log_end_offset=0)
    if context.api_version >= 1:
        voter.last_fetch_timestamp = voter.last_caught_up_timestamp = now
    return voter


def _of_partitions(context: RequestContext, request: m.DescribeQuorumRequest, code: int) -> Response:
    text = ErrorCode(code).name if context.api_version >= 2 else ""
    return Response(
        topics=[
            Response.TopicData(
                topic.topic_name,
                [
                    Partition(partition_index=p.partition_index, error_code=code, error_message=text)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


register("DescribeQuorum", VERSIONS, handle, error_response)
