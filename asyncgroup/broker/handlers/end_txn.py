"""EndTxn (26), versions 0-5: commit or abort a transaction.

From version 5 on the producer's epoch is bumped each time (KIP-890).
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.coordinator import TransactionResult
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 5)

_BUMPS_EPOCH_VERSION: Final = 5
_PRODUCER_FENCED_VERSION: Final = 2
"""The first version with the error PRODUCER_FENCED (KIP-588)."""


def handle(node: Node, context: RequestContext, request: m.EndTxnRequest) -> m.EndTxnResponse:
    """End the transaction and write its markers."""
    error, producer = _end(node, context, request)
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < _PRODUCER_FENCED_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return m.EndTxnResponse(error_code=error, producer_id=producer.id, producer_epoch=producer.epoch)


def error_response(_context: RequestContext, _request: m.EndTxnRequest, code: int) -> m.EndTxnResponse:
    """Return the error."""
    return m.EndTxnResponse(error_code=code)


def _end(node: Node, context: RequestContext, request: m.EndTxnRequest) -> TransactionResult:
    name = request.transactional_id
    if error := node.transactions.error_for(name, node.id):
        return TransactionResult(error)
    end = (
        node.transactions.end_and_bump
        if context.api_version >= _BUMPS_EPOCH_VERSION
        else node.transactions.end
    )
    return end(
        name, ProducerIdAndEpoch(request.producer_id, request.producer_epoch), commit=request.committed
    )


register("EndTxn", VERSIONS, handle, error_response)
