"""AlterClientQuotas (49), versions 0-1: set and remove client quotas (KIP-546).

They are stored, but nothing is throttled.
"""

from __future__ import annotations

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.quotas import QuotaEntity
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

VERSIONS = (0, 1)

Response = m.AlterClientQuotasResponse
Entry = m.AlterClientQuotasRequest.EntryData


def handle(node: Node, _context: RequestContext, request: m.AlterClientQuotasRequest) -> Response:
    """Apply the changes of each entity, all or none; an entity named twice is changed once and gets an error."""
    results: dict[QuotaEntity, tuple[ErrorCode, str | None]] = {}
    for entry in request.entries:
        entity = _entity(entry)
        try:
            if entity in results:
                raise Refused(ErrorCode.INVALID_REQUEST, "the request names this entity twice")
            _alter(node, entity, entry, validate_only=request.validate_only)
        except Refused as error:
            results[entity] = error.code, str(error)
        else:
            results[entity] = ErrorCode.NONE, None
    return _response(results)


def error_response(_context: RequestContext, request: m.AlterClientQuotasRequest, code: int) -> Response:
    """Return the error for every entity."""
    error = ErrorCode(code)
    return _response({_entity(entry): (error, error.name) for entry in request.entries})


def _entity(entry: Entry) -> QuotaEntity:
    return tuple(sorted({part.entity_type: part.entity_name for part in entry.entity}.items()))


def _alter(node: Node, entity: QuotaEntity, entry: Entry, *, validate_only: bool) -> None:
    changes = {op.key: None if op.remove else op.value for op in entry.ops}
    if len(changes) < len(entry.ops):
        raise Refused(ErrorCode.INVALID_REQUEST, "the request names a quota of this entity twice")
    values = node.controller.quotas.merged(entity, changes)
    if not validate_only:
        node.controller.alter_quotas(entity, values)


def _response(results: dict[QuotaEntity, tuple[ErrorCode, str | None]]) -> Response:
    return Response(
        entries=[
            Response.EntryData(code, message, [Response.EntityData(*part) for part in entity])
            for entity, (code, message) in results.items()
        ]
    )


register("AlterClientQuotas", VERSIONS, handle, error_response)
