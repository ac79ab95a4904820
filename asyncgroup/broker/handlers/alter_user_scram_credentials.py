"""AlterUserScramCredentials (51), version 0: create, replace and delete SCRAM credentials (KIP-554).

Kafka's counterpart is `ScramControlManager`.
"""

from __future__ import annotations

from collections import Counter

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.metadata.scram_users import MAX_ITERATIONS, MECHANISM_TYPES, ScramCredential
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.scram import MIN_ITERATIONS

VERSIONS = (0, 0)

Request = m.AlterUserScramCredentialsRequest
Response = m.AlterUserScramCredentialsResponse
Change = Request.ScramCredentialDeletion | Request.ScramCredentialUpsertion
Result = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


def handle(node: Node, _context: RequestContext, request: Request) -> Response:
    """Apply the changes; a user that is named twice gets an error and stays unchanged."""
    changes: list[Change] = [*request.deletions, *request.upsertions]
    counts = Counter(change.name for change in changes)
    results: dict[str, Result] = {}
    for change in changes:
        if change.name in results:
            continue
        try:
            mechanism = _mechanism(change.name, change.mechanism)
            credential = None
            if isinstance(change, Request.ScramCredentialUpsertion):
                credential = _credential(change, mechanism)
            elif node.controller.scram_users.get(mechanism, change.name) is None:
                raise Refused(
                    ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
                )
            if counts[change.name] > 1:
                raise Refused(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            node.controller.alter_scram_user(mechanism, change.name, credential)
        except Refused as error:
            results[change.name] = Result(change.name, error.code, str(error))
        else:
            results[change.name] = Result(change.name, ErrorCode.NONE, None)
    return Response(results=list(results.values()))


def error_response(_context: RequestContext, request: Request, code: int) -> Response:
    """Return the error for every user."""
    changes: list[Change] = [*request.deletions, *request.upsertions]
    names = sorted({change.name for change in changes})
    return Response(results=[Result(name, code, ErrorCode(code).name) for name in names])


def _mechanism(name: str, number: int) -> str:
    if not name:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if number not in MECHANISM_TYPES:
        raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return MECHANISM_TYPES[number]


def _credential(change: Request.ScramCredentialUpsertion, mechanism: str) -> ScramCredential:
    if change.iterations < MIN_ITERATIONS:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > MAX_ITERATIONS:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    salt, salted = bytes(change.salt), bytes(change.salted_password)
    return ScramCredential.from_salted_password(mechanism, salt, salted, change.iterations)


register("AlterUserScramCredentials", VERSIONS, handle, error_response)
