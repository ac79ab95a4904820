"""InitProducerId (22), versions 0-5: give an idempotent or transactional producer its id and epoch.

Gap: version 6 (two-phase commit, KIP-939), which is unstable in Kafka 4.3.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)

_PRODUCER_FENCED_VERSION: Final = 4
"""The first version with the error PRODUCER_FENCED (KIP-588)."""


def handle(node: Node, context: RequestContext, request: m.InitProducerIdRequest) -> m.InitProducerIdResponse:
    """Return a producer id and epoch.

    Without a transactional id it is always a new producer id, even if the producer has one already (KIP-360). With a
    transactional id it is the next epoch, which fences the previous producer.
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
    """Return the error."""
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


register("InitProducerId", VERSIONS, handle, error_response)
