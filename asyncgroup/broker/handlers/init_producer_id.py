"""InitProducerId (22), versions 0-5: an id and an epoch for an idempotent or transactional producer.

Gap: version 6, unstable in Kafka 4.3 (two-phase commit, KIP-939).
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)

_PRODUCER_FENCED_VERSION: Final = 4
"""The first version whose clients know PRODUCER_FENCED (KIP-588)."""


def handle(node: Node, context: RequestContext, request: m.InitProducerIdRequest) -> m.InitProducerIdResponse:
    """Without a transactional id a fresh producer id, also for a producer that has one already (KIP-360).

    With one the producer's next epoch, which fences whoever wrote under this transactional id before.
    """
    name = request.transactional_id
    if name is None:
        return m.InitProducerIdResponse(producer_id=node.controller.next_producer_id(), producer_epoch=0)
    if error := node.transactions.error_for(name, node.id):
        return error_response(context, request, error)
    expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    if (expected.id < 0) != (expected.epoch < 0):
        return error_response(context, request, ErrorCode.INVALID_REQUEST)
    error, producer = node.transactions.init_producer_id(
        name, request.transaction_timeout_ms / 1000, expected
    )
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < _PRODUCER_FENCED_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return m.InitProducerIdResponse(error_code=error, producer_id=producer.id, producer_epoch=producer.epoch)


def error_response(
    _context: RequestContext, _request: m.InitProducerIdRequest, code: int
) -> m.InitProducerIdResponse:
    """The error."""
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
