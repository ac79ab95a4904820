"""Policies of namespaces and topics in the admin API: each is set by POST or PUT, shown by GET, and removed by DELETE."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from asyncgroup.pulsar_broker.admin.http import HttpRefusal, HttpRequest, fields_of, number_of
from asyncgroup.pulsar_broker.schemas.schema_registry import SchemaStrategy
from asyncgroup.pulsar_broker.topics.policies import BacklogQuota, Policies, RetentionPolicies

__all__ = ["serve_policy"]

QUOTAS: Final = ("destination_storage", "message_age")
ACTIONS: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")

_METHODS: Final = ("GET", "POST", "PUT", "DELETE")

WITHOUT_EFFECT: Final = frozenset(
    {
        "antiAffinity",
        "compactionThreshold",  # topics are compacted on request
        "delayedDelivery",
        "inactiveTopicPolicies",
        "permissions",  # no request is refused for lack of one
        "persistence",
        "replication",
    }
)
"""Policies that are kept and shown: a broker in memory has nothing to do for them."""


def serve_policy(policies: Policies, request: HttpRequest, name: str) -> Any:
    """Set, show or remove a policy."""
    method, body = request.method, request.body
    if method not in _METHODS:
        raise HttpRefusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} of a policy is not served")
    if name in ("backlogQuota", "backlogQuotaMap"):
        return _quota(policies, request)
    if name in WITHOUT_EFFECT:
        return _kept(policies.others, method, name, body)
    sets = method in ("POST", "PUT")
    match name:
        case "messageTTL":
            if method == "GET":
                return policies.message_ttl
            policies.message_ttl = int(number_of(request.query.get("messageTTL", body))) if sets else None
        case "retention":
            if method == "GET":
                return _shown_retention(policies.retention)
            policies.retention = _parse_retention(body) if sets else None
        case "deduplication" | "deduplicationEnabled":
            if method == "GET":
                return policies.deduplication
            policies.deduplication = _flag(body) if sets else None
        case "publishRate":
            if method == "GET":
                return _rate(policies.publish_rate)
            policies.publish_rate = _publish_rate(body) if sets else None
        case "schemaCompatibilityStrategy":
            if method == "GET":
                return "UNDEFINED" if policies.schema_strategy is None else policies.schema_strategy.value
            policies.schema_strategy = _strategy(body) if sets else None
        case "schemaValidationEnforced":
            if method == "GET":
                return policies.requires_schemas
            policies.requires_schemas = sets and body is True
        case _:
            raise HttpRefusal(
                HTTPStatus.PRECONDITION_FAILED, f"policy {name} is not served: the brokers do not act on it"
            )
    return None


def _kept(others: dict[str, Any], method: str, name: str, body: Any) -> Any:
    if method == "GET":
        return others.get(name)
    if method == "DELETE":
        others.pop(name, None)
    else:
        others[name] = body
    return None


def _publish_rate(body: Any) -> float:
    return float(number_of(fields_of(body).get("publishThrottlingRateInMsg", -1)))


def _flag(body: Any) -> bool:
    if not isinstance(body, bool):
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, f"{body!r} is neither true nor false")
    return body


def _shown_retention(retention: RetentionPolicies | None) -> dict[str, int] | None:
    if retention is None:
        return None
    return {
        "retentionTimeInMinutes": -1 if retention.time is None else int(retention.time // 60),
        "retentionSizeInMB": -1 if retention.size is None else retention.size >> 20,
    }


def _parse_retention(body: Any) -> RetentionPolicies:
    """Return the policy; -1 is no limit (`AdminResource.validateRetentionPolicies`)."""
    minutes, size = (fields_of(body).get(key, 0) for key in ("retentionTimeInMinutes", "retentionSizeInMB"))
    if not isinstance(minutes, int) or not isinstance(size, int):
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "minutes and megabytes of a retention are whole numbers")
    if min(minutes, size) < -1:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "Invalid retention policy: limits must be >= -1")
    if (minutes == 0) != (size == 0):
        text = "Invalid retention policy: use the value of -1 instead of 0 to ignore a specific limit"
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, text)
    return RetentionPolicies(None if minutes < 0 else minutes * 60.0, None if size < 0 else size << 20)


def _rate(rate: float | None) -> dict[str, Any] | None:
    return None if rate is None else {"publishThrottlingRateInMsg": rate}


def _strategy(body: Any) -> SchemaStrategy | None:
    if body == "UNDEFINED":
        return None
    if not isinstance(body, str) or body not in SchemaStrategy.__members__:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, f"{body!r} is no compatibility strategy")
    return SchemaStrategy[body]


def _quota(policies: Policies, request: HttpRequest) -> Any:
    quotas = policies.backlog_quotas
    if request.method == "GET":
        return {
            kind: {
                "limit": quota.limit_size,
                "limitSize": quota.limit_size,
                "limitTime": quota.limit_time,
                "policy": quota.policy,
            }
            for kind, quota in quotas.items()
        }
    kind = request.query.get("backlogQuotaType", QUOTAS[0])
    if kind not in QUOTAS:
        raise HttpRefusal(
            HTTPStatus.BAD_REQUEST, f"{kind!r} is no type of a backlog quota: {', '.join(QUOTAS)}"
        )
    if request.method == "DELETE":
        quotas.pop(kind, None)
    else:
        quotas[kind] = _parse_quota(request.body)
    return None


def _parse_quota(body: Any) -> BacklogQuota:
    found = fields_of(body)
    action = found.get("policy")
    if action not in ACTIONS:
        raise HttpRefusal(
            HTTPStatus.BAD_REQUEST, f"{action!r} is no policy of a backlog quota: {', '.join(ACTIONS)}"
        )
    size = next((found[key] for key in ("limitSize", "limit") if found.get(key) is not None), -1)
    time = found.get("limitTime") or -1
    return BacklogQuota(int(number_of(size)), int(number_of(time)), action)
