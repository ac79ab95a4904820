"""ListTransactions (66), versions 0-2: the transactional ids that a node coordinates (KIP-664, KIP-994, KIP-1152).

The pattern is a regular expression of RE2 that matches the whole id.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.re2_pattern import PatternError, Re2Pattern
from asyncgroup.broker.transactions.metadata import TransactionMetadata, TransactionState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 2)

Response = m.ListTransactionsResponse


def handle(node: Node, context: RequestContext, request: m.ListTransactionsRequest) -> Response:
    """Return the transactional ids that pass all filters."""
    try:
        is_wanted = _filter(request, node.clock())
    except PatternError:
        return error_response(context, request, ErrorCode.INVALID_REGULAR_EXPRESSION)
    known = {str(state) for state in TransactionState}
    return Response(
        unknown_state_filters=[state for state in request.state_filters if state not in known],
        transaction_states=[
            Response.TransactionState(one.transactional_id, one.producer.id, str(one.state))
            for one in node.transactions.transactions.values()
            if node.transactions.coordinator_of(one.transactional_id) == node.id and is_wanted(one)
        ],
    )


def error_response(_context: RequestContext, _request: m.ListTransactionsRequest, code: int) -> Response:
    """Return the error and no transactions."""
    return Response(error_code=code)


def _filter(request: m.ListTransactionsRequest, now: int) -> Callable[[TransactionMetadata], bool]:
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    pattern = Re2Pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None

    def is_wanted(one: TransactionMetadata) -> bool:
        return (
            (not states or str(one.state) in states)
            and (not producers or one.producer.id in producers)
            and (request.duration_filter < 0 or now - one.start_timestamp > request.duration_filter)
            and (pattern is None or pattern.fullmatch(one.transactional_id))
        )

    return is_wanted


register("ListTransactions", VERSIONS, handle, error_response)
