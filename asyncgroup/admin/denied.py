"""Denied calls: their errors name the operation that the user needs, and the resource, and say how it is allowed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, ParamSpec, TypeVar

from asyncgroup.admin.results import AdminResults
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode

__all__ = ["DENIALS", "explained", "needs"]

P = ParamSpec("P")
R = TypeVar("R")

DENIALS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
"""The codes of an authorizer that denied an operation."""


def needs(
    permission: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorate a call that needs this permission, such as `ALTER on the topic`: its errors of a denial say so.

    Brokers name the resource, but not the operation. The permissions are those of Kafka's documentation (Security, "Operations
    and resources on protocols") and of `KafkaApis.scala`.
    """

    def decorate(call: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @functools.wraps(call)
        async def explaining(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                result = await call(*args, **kwargs)
            except BrokerError as error:
                better = explained(error, permission)
                if better is error:
                    raise
                raise better from error
            return _explained_result(result, permission)

        return explaining

    return decorate


def explained(error: AsyncGroupError, permission: str) -> AsyncGroupError:
    """Return the error; that of a denial with the permission that the user needs."""
    if not isinstance(error, BrokerError) or error.code not in DENIALS:
        return error
    ways = "`asyncgroup acls create`, admin.acls.create, kafka-acls.sh"
    advice = f"this user needs {permission}; an administrator can allow it with an ACL ({ways})"
    return BrokerError(error.code, error.what, advice)


def _explained_result(result: R, permission: str) -> R:
    """Return the result of a call, with the errors of its names or nodes explained."""
    errors: Any = getattr(result, "errors", None)
    if not isinstance(errors, Mapping) or not any(_is_denial(error) for error in errors.values()):
        return result
    better = {name: explained(error, permission) for name, error in errors.items()}
    if isinstance(result, AdminResults):
        found: Any = AdminResults(Results(dict(result.values_by_name), better))
        return found  # type: ignore[no-any-return]
    if is_dataclass(result) and not isinstance(result, type) and "errors" in {f.name for f in fields(result)}:
        return replace(result, errors=better)
    return result


def _is_denial(error: object) -> bool:
    return isinstance(error, BrokerError) and error.code in DENIALS
