"""AlterReplicaLogDirs (34), versions 1-2: move replicas to another log directory (KIP-113).

Each node has only one. A node without a replica of the partition has REPLICA_NOT_AVAILABLE (`ReplicaManager.alterReplicaLogDirs`
in Kafka keeps that code for this request).
"""

from __future__ import annotations

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (1, 2)

Response = m.AlterReplicaLogDirsResponse
Result = m.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


def handle(node: Node, context: RequestContext, request: m.AlterReplicaLogDirsRequest) -> Response:
    """Return an error for each replica, unless it is in the requested directory already."""
    found: dict[str, list[Result]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = _moved(node, context, directory.path, topic.name, index)
                found.setdefault(topic.name, []).append(Result(index, code))
    return _response(found)


def error_response(_context: RequestContext, request: m.AlterReplicaLogDirsRequest, code: int) -> Response:
    """Return the error for every partition."""
    found: dict[str, list[Result]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            found.setdefault(topic.name, []).extend(Result(index, code) for index in topic.partitions)
    return _response(found)


def _moved(node: Node, context: RequestContext, path: str, topic: str, index: int) -> ErrorCode:
    if path != node.log_dir:
        return ErrorCode.LOG_DIR_NOT_FOUND
    try:
        partition = node.partition(context, node.controller.topics.get(topic), index)
    except Refused as error:
        return error.code
    return ErrorCode.NONE if node.id in partition.replicas else ErrorCode.REPLICA_NOT_AVAILABLE


def _response(found: dict[str, list[Result]]) -> Response:
    return Response(
        results=[
            Response.AlterReplicaLogDirTopicResult(name, partitions) for name, partitions in found.items()
        ]
    )


register("AlterReplicaLogDirs", VERSIONS, handle, error_response)
