"""Client quotas: described by any broker, changed by the controller (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.fan_out import request_each, request_one
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByController, Target, ToAnyNode, ToOneTarget
from asyncgroup.errors import BrokerError
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = [
    "EXACT",
    "NAMELESS",
    "SPECIFIED",
    "EntityKey",
    "QuotaComponent",
    "alter_client_quotas",
    "describe_client_quotas",
]

EntityKey: TypeAlias = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, sorted by type; the name None means the default entity of the type."""

EXACT: Final = 0
NAMELESS: Final = 1
SPECIFIED: Final = 2
"""In a filter: this name, the default entity, any name or the default entity."""


class QuotaComponent(NamedTuple):
    """A part of a filter of entities."""

    entity_type: str
    match_type: int
    match: str | None


async def describe_client_quotas(
    cluster: ClusterClient,
    components: Iterable[QuotaComponent],
    *,
    strict: bool = False,
    retry: RetryLoop | None = None,
) -> dict[EntityKey, dict[str, float]]:
    """Return the quotas of the entities that match; with `strict` only of those without further types.

    Raises BrokerError and what `request_one` raises.
    """
    parts = [m.DescribeClientQuotasRequest.ComponentData(*each) for each in components]
    request = m.DescribeClientQuotasRequest(parts, strict)

    async def ask(target: Target) -> dict[EntityKey, dict[str, float]]:
        response = await target.request(m.DescribeClientQuotasRequest, lambda _: request)
        if response.error_code:
            raise BrokerError(response.error_code, "describing client quotas", response.error_message)
        return {
            tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
                value.key: value.value for value in entry.values
            }
            for entry in response.entries or ()
        }

    return await request_one(ToOneTarget(ToAnyNode(cluster)), ask, api="DescribeClientQuotas", retry=retry)


async def alter_client_quotas(
    cluster: ClusterClient,
    wanted: Mapping[EntityKey, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
    retry: RetryLoop | None = None,
) -> Results[EntityKey, None]:
    """Set these quotas of each entity, None removes one; the others stay. Raises ClosedError.

    The changes of an entity are made together or not at all. With `validate_only` the controller only checks them.
    """
    cls = m.AlterClientQuotasRequest

    async def ask(target: Target, asked: list[EntityKey]) -> Results[EntityKey, None]:
        entries = [
            cls.EntryData(
                [cls.EntityData(*part) for part in entity],
                [cls.OpData(key, value or 0.0, value is None) for key, value in wanted[entity].items()],
            )
            for entity in asked
        ]
        response = await target.request(cls, lambda _: cls(entries, validate_only))
        results: Results[EntityKey, None] = Results()
        for found in response.entries:
            entity = tuple(sorted((part.entity_type, part.entity_name) for part in found.entity))
            if found.error_code:
                what = f"altering quotas of {_name(entity)}"
                results.errors[entity] = BrokerError(found.error_code, what, found.error_message)
            else:
                results.values[entity] = None
        return results

    return await request_each(wanted, ByController(cluster), ask, api="AlterClientQuotas", retry=retry)


def _name(entity: EntityKey) -> str:
    return ", ".join(f"{kind} {'<default>' if name is None else repr(name)}" for kind, name in entity)
