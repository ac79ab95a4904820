"""Quotas of clients (KIP-546): kept and shown, as nothing is throttled here (`ClientQuotaControlManager`,
`ClientQuotasImage`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

from asyncgroup.broker.errors import Refused
from asyncgroup.error_codes import ErrorCode

__all__ = ["ClientQuotas", "Entity", "filter_of"]

Entity = tuple[tuple[str, str | None], ...]
"""What a quota is for: types and names, sorted by type; None stands for all that have no quota of their own."""

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_CLIENT_KEYS: Final = {
    "consumer_byte_rate": 2**63 - 1,
    "controller_mutation_rate": None,
    "producer_byte_rate": 2**63 - 1,
    "request_percentage": None,
}
_IP_KEYS: Final = {"connection_creation_rate": 2**31 - 1}
"""The largest number of those that are whole numbers, None for the others (`QuotaConfig`)."""

_EXACT: Final = 0
_DEFAULT: Final = 1
_SPECIFIED: Final = 2


class ClientQuotas:
    """Values by key, by entity."""

    def __init__(self) -> None:
        self.entries: dict[Entity, dict[str, float]] = {}

    def __repr__(self) -> str:
        return f"<ClientQuotas of {len(self.entries)} entities>"

    def altered(self, entity: Entity, changes: Mapping[str, float | None]) -> dict[str, float]:
        """What the values of an entity are to be; None removes one. Raises Refused(INVALID_REQUEST)."""
        keys = _keys(entity)
        values = dict(self.entries.get(entity, {}))
        for key, value in changes.items():
            if value is None:
                values.pop(key, None)
            else:
                _check_value(keys, key, value)
                values[key] = value
        return values

    def put(self, entity: Entity, values: Mapping[str, float]) -> None:
        """Replace the values of an entity."""
        if values:
            self.entries[entity] = dict(values)
        else:
            self.entries.pop(entity, None)

    def find(self, exact: Mapping[str, str | None], types: set[str], *, strict: bool) -> list[Entity]:
        """The entities of all these names and types; `strict`: of these types only."""
        found = []
        for entity in self.entries:
            names = dict(entity)
            if strict and len(names) != len(exact) + len(types):
                continue
            if all(kind in names and names[kind] == name for kind, name in exact.items()) and types.issubset(
                names
            ):
                found.append(entity)
        return found


def _keys(entity: Entity) -> Mapping[str, int | None]:
    names = dict(entity)
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise Refused(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
    if not entity:
        raise Refused(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    if IP not in names:
        return _CLIENT_KEYS
    if len(names) > 1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
        )
    if not _is_address(names[IP]):
        raise Refused(ErrorCode.INVALID_REQUEST, f"{names[IP]} is not a valid IP or resolvable host.")
    return _IP_KEYS


def _is_address(name: str | None) -> bool:
    if name is None or name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False  # a name: none is looked up here
    return True


def _check_value(keys: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in keys:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
    if value <= 0:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Quota {key} must be greater than 0")
    highest = keys[key]
    if highest is None:
        return
    if value > highest:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Proposed value for {key} is too large: at most {highest}")
    if abs(value % 1.0) > 1e-6:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{key} cannot be a fractional value.")


def filter_of(
    components: list[tuple[str, int, str | None]],
) -> tuple[dict[str, str | None], set[str]]:
    """The names and the types that DescribeClientQuotas asks for: type, kind of match and name of each component.

    Raises Refused.
    """
    exact: dict[str, str | None] = {}
    types: set[str] = set()
    for kind, match, name in components:
        if not kind:
            raise Refused(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in exact or kind in types:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in (IP, USER, CLIENT_ID):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown match type {match}")
        if (name is None) is (match == _EXACT):
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"match type {match} with the match string {name!r} makes no sense"
            )
        if match == _SPECIFIED:
            types.add(kind)
        else:
            exact[kind] = name
    asked = {*exact, *types}
    if IP in asked and len(asked) > 1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )
    return exact, types
