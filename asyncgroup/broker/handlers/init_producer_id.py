"""InitProducerId (22), versions 0-5, for idempotent producers.

Gap: no transactions; a transactional id is refused with UNSUPPORTED_VERSION, which every client takes as
final.
"""

from __future__ import annotations

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)


def handle(node: Node, context: RequestContext, request: m.InitProducerIdRequest) -> m.InitProducerIdResponse:
    """Give out a fresh producer id with epoch 0, also to a producer that has one already (KIP-360)."""
    if request.transactional_id is not None:
        code = ErrorCode.INVALID_REQUEST if not request.transactional_id else ErrorCode.UNSUPPORTED_VERSION
        return refuse(context, request, code)
    return m.InitProducerIdResponse(producer_id=node.controller.next_producer_id(), producer_epoch=0)


def refuse(
    _context: RequestContext, _request: m.InitProducerIdRequest, code: int
) -> m.InitProducerIdResponse:
    """An error and no producer id."""
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
