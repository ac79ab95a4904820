"""FindCoordinator (10), versions 0-6: the coordinators of groups and transactional ids.

From version 4 on a request may contain several keys (KIP-699).

Gap: share groups (key type 2, version 6) get INVALID_REQUEST, as from a broker without share groups.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 6)

_GROUP: Final = 0
_TRANSACTION: Final = 1

Coordinator = m.FindCoordinatorResponse.Coordinator


def handle(
    node: Node, context: RequestContext, request: m.FindCoordinatorRequest
) -> m.FindCoordinatorResponse:
    """Return the coordinating node of each key."""
    if context.api_version >= 4:
        found = [_find(node, request.key_type, key) for key in request.coordinator_keys]
        return m.FindCoordinatorResponse(coordinators=found)
    one = _find(node, request.key_type, request.key)
    return m.FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message or ErrorCode.NONE.name,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def error_response(
    context: RequestContext, request: m.FindCoordinatorRequest, code: int
) -> m.FindCoordinatorResponse:
    """Return the error for every key."""
    if context.api_version >= 4:
        found = [_error(key, ErrorCode(code)) for key in request.coordinator_keys]
        return m.FindCoordinatorResponse(coordinators=found)
    return m.FindCoordinatorResponse(
        error_code=code, error_message=ErrorCode(code).name, node_id=-1, host="", port=-1
    )


def _find(node: Node, key_type: int, key: str) -> Coordinator:
    if key_type == _GROUP:
        try:
            node.controller.offsets_topic()
        except Refused:  # the topic cannot be created, for example because the disk is full
            return _error(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        node_id = node.controller.coordinators.group_coordinator(key)
    elif key_type == _TRANSACTION:
        node_id = node.transactions.coordinator_of(key)
    else:
        return _error(key, ErrorCode.INVALID_REQUEST)
    peer = node.peers.get(node_id)
    if peer is None:
        return _error(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(key, peer.id, peer.advertised_host, peer.port)


def _error(key: str, error: ErrorCode) -> Coordinator:
    return Coordinator(key, -1, "", -1, error, error.name)


register("FindCoordinator", VERSIONS, handle, error_response)
