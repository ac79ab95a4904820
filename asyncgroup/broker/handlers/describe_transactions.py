"""DescribeTransactions (65), version 0: the state of transactional ids (KIP-664)."""

from __future__ import annotations

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 0)

Response = m.DescribeTransactionsResponse
State = m.DescribeTransactionsResponse.TransactionState


def handle(node: Node, _context: RequestContext, request: m.DescribeTransactionsRequest) -> Response:
    """Describe each transactional id."""
    return Response(transaction_states=[_describe(node, name) for name in request.transactional_ids])


def error_response(_context: RequestContext, request: m.DescribeTransactionsRequest, code: int) -> Response:
    """Return the error for every transactional id."""
    return Response(transaction_states=[State(code, name) for name in request.transactional_ids])


def _describe(node: Node, name: str) -> State:
    if error := node.transactions.error_for(name, node.id):
        return State(error, name)
    found = node.transactions.find(name)
    if found is None:
        return State(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name)
    topics: dict[str, list[int]] = {}
    for tp in found.partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return State(
        ErrorCode.NONE,
        name,
        str(found.state),
        int(found.timeout * 1000),
        found.start_timestamp,
        found.producer.id,
        found.producer.epoch,
        [Response.TopicData(topic, partitions) for topic, partitions in topics.items()],
    )


register("DescribeTransactions", VERSIONS, handle, error_response)
