"""DescribeLogDirs (35), versions 1-5: the log directory of a node, and the sizes of its logs (KIP-113, KIP-827).

Gap: the disk's total and usable bytes are not reported, as in versions before 4.
"""

from __future__ import annotations

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.topics import Topic
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.wire import messages as m

VERSIONS = (1, 5)

Response = m.DescribeLogDirsResponse


def handle(node: Node, context: RequestContext, request: m.DescribeLogDirsRequest) -> Response:
    """Return the requested partitions that have a replica on this node; other partitions are omitted."""
    topics = node.controller.topics
    if request.topics is None:
        wanted = {name: list(range(len(topic.partitions))) for name, topic in topics.items()}
    else:
        wanted = {topic.topic: topic.partitions for topic in request.topics if topic.topic in topics}
    found = []
    for name, partitions in wanted.items():
        if name not in context.topic_errors and (sizes := _sizes(node, topics[name], partitions)):
            found.append(Response.DescribeLogDirsTopic(name, sizes))
    return Response(results=[Response.DescribeLogDirsResult(log_dir=node.log_dir, topics=found)])


def error_response(_context: RequestContext, _request: m.DescribeLogDirsRequest, code: int) -> Response:
    """Return the error for the request."""
    return Response(error_code=code)


def _sizes(node: Node, topic: Topic, partitions: list[int]) -> list[Response.DescribeLogDirsPartition]:
    return [
        Response.DescribeLogDirsPartition(
            index, topic.partitions[index].log.size, offset_lag=0, is_future_key=False
        )
        for index in dict.fromkeys(partitions)
        if 0 <= index < len(topic.partitions) and node.id in topic.partitions[index].replicas
    ]


register("DescribeLogDirs", VERSIONS, handle, error_response)
