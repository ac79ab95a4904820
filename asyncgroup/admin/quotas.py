"""`admin.quotas`: describes and alters client quotas."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from asyncgroup.admin.arguments import check_text
from asyncgroup.admin.denied import needs
from asyncgroup.admin.results import AdminResults
from asyncgroup.checks import wrong_type
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import quotas as requests
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.quotas import EXACT, NAMELESS, SPECIFIED, EntityKey, QuotaComponent
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import ConfigError

__all__ = ["AdminQuotas", "ClientQuotaEntity", "QuotaName"]

TYPES: Final = {"user": "user", "client_id": "client-id", "ip": "ip"}
"""Kafka's types of quota entities, by the fields of ClientQuotaEntity."""


class QuotaName(Enum):
    """Names with a meaning in quota entities."""

    DEFAULT = "<default>"
    """Every user, client id or address that has no other quotas."""
    ANY = "<any>"
    """In filters only: all names, and the default."""


@dataclass(frozen=True, slots=True)
class ClientQuotaEntity:
    """What a quota is for: a user, a client id, both together, or an IP address. None means that the type is not a part of it."""

    user: str | QuotaName | None = None
    """The name of a user, without `User:`."""
    client_id: str | QuotaName | None = None
    """A client id."""
    ip: str | QuotaName | None = None
    """An IP address, which is not combined with others."""


class AdminQuotas:
    """Client quotas: `admin.quotas`. As Kafka's `kafka-configs.sh --entity-type users|clients|ips` (KIP-546, Kafka 2.6).

    alice = ClientQuotaEntity(user="alice")
    (await admin.quotas.alter({alice: {"producer_byte_rate": 1_000_000}})).raise_first()
    """

    def __init__(self, client: ClusterClient, budget: Callable[[], RequestBudget]) -> None:
        self._client = client
        self._budget = budget

    def __repr__(self) -> str:
        return f"<AdminQuotas of {self._client!r}>"

    @needs("DESCRIBE_CONFIGS on the cluster")
    async def describe(
        self,
        *,
        user: str | QuotaName | None = None,
        client_id: str | QuotaName | None = None,
        ip: str | QuotaName | None = None,
        strict: bool = False,
    ) -> dict[ClientQuotaEntity, dict[str, float]]:
        """Return the quotas of the entities that have all these parts, by Kafka's names of quotas; without parts of all entities.

        A part is a name, `QuotaName.DEFAULT`, or `QuotaName.ANY`. With `strict` entities with further parts are left out. Raises
        ConfigError for an invalid part, BrokerError, NoBrokersError.
        """
        parts = {"user": user, "client_id": client_id, "ip": ip}
        components = [_component(key, name) for key, name in parts.items() if name is not None]
        found = await requests.describe_client_quotas(
            self._client, components, strict=strict, retry=self._budget().retry()
        )
        return {_entity(key): dict(found[key]) for key in sorted(found, key=_order)}

    @needs("ALTER_CONFIGS on the cluster")
    async def alter(
        self, wanted: Mapping[ClientQuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> AdminResults[ClientQuotaEntity, None]:
        """Set these quotas of each entity, by Kafka's names; None removes one, all others stay as they are.

        Rates are bytes per second (`producer_byte_rate`, `consumer_byte_rate`), `request_percentage` of one thread, mutations per second
        (`controller_mutation_rate`), and for addresses connections per second (`connection_creation_rate`). INVALID_REQUEST for other
        names. The changes of an entity are made together or not at all; with `validate_only` they are only checked. Raises ConfigError for
        wrong entities and values.
        """
        if not isinstance(wanted, Mapping):
            raise wrong_type("wanted", wanted, "a mapping from each ClientQuotaEntity to its quotas")
        entities = {_key(entity): entity for entity in wanted}
        changes = {key: _checked_values(entity, wanted[entity]) for key, entity in entities.items()}
        altered = await requests.alter_client_quotas(
            self._client, changes, validate_only=validate_only, retry=self._budget().retry()
        )
        values = {entities[key]: value for key, value in altered.values.items()}
        return AdminResults(Results(values, {entities[key]: error for key, error in altered.errors.items()}))


# --- entities -----------------------------------------------------------------------------------------------------------


def _component(key: str, name: object) -> QuotaComponent:
    if name is QuotaName.ANY:
        return QuotaComponent(TYPES[key], SPECIFIED, None)
    if name is QuotaName.DEFAULT:
        return QuotaComponent(TYPES[key], NAMELESS, None)
    return QuotaComponent(TYPES[key], EXACT, _checked_name(key, name))


def _checked_name(key: str, name: object) -> str:
    return check_text(key, name, "a name, which is not empty, or a QuotaName")


def _key(entity: object) -> EntityKey:
    if not isinstance(entity, ClientQuotaEntity):
        raise ConfigError("a quota entity", entity, "a ClientQuotaEntity")
    names = {key: getattr(entity, key) for key in TYPES if getattr(entity, key) is not None}
    if not names:
        raise ConfigError("a quota entity", entity, "a user, a client id, both, or an address")
    for key, name in names.items():
        if name is QuotaName.ANY:
            raise ConfigError(key, name, "a name or QuotaName.DEFAULT: ANY is for filters")
    pairs = (
        (TYPES[key], None if name is QuotaName.DEFAULT else _checked_name(key, name))
        for key, name in names.items()
    )
    return tuple(sorted(pairs))


def _entity(key: EntityKey) -> ClientQuotaEntity:
    names = {kind: QuotaName.DEFAULT if name is None else name for kind, name in key}
    return ClientQuotaEntity(**{field: names[kind] for field, kind in TYPES.items() if kind in names})


def _order(key: EntityKey) -> list[tuple[str, str]]:
    return [(kind, name or "") for kind, name in key]


def _checked_values(entity: ClientQuotaEntity, values: Any) -> dict[str, float | None]:
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f"quotas of {entity}", values, "one quota or more, by Kafka's names")
    for name, value in values.items():
        check_text(f"a quota of {entity}", name, "Kafka's name, as text")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= sys.float_info.max):
            raise ConfigError(name, value, "a finite number above 0, or None to remove the quota")
    return {name: None if value is None else float(value) for name, value in values.items()}
