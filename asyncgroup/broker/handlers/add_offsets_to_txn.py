"""AddOffsetsToTxn (25), versions 0-4: add the offsets of a group to a transaction."""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 4)

_PRODUCER_FENCED_VERSION: Final = 2
"""The first version with the error PRODUCER_FENCED (KIP-588)."""


def handle(
    node: Node, context: RequestContext, request: m.AddOffsetsToTxnRequest
) -> m.AddOffsetsToTxnResponse:
    """Add the group's partition of `__consumer_offsets` to the transaction."""
    name = request.transactional_id
    error = node.transactions.error_for(name, node.id)
    if not error:
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        partition = node.transactions.offsets_topic_partition(request.group_id)
        error = node.transactions.add_partitions(name, producer, (partition,))
    if error is ErrorCode.PRODUCER_FENCED and context.api_version < _PRODUCER_FENCED_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return m.AddOffsetsToTxnResponse(error_code=error)


def error_response(
    _context: RequestContext, _request: m.AddOffsetsToTxnRequest, code: int
) -> m.AddOffsetsToTxnResponse:
    """Return the error."""
    return m.AddOffsetsToTxnResponse(error_code=code)


register("AddOffsetsToTxn", VERSIONS, handle, error_response)
