"""Client quotas (KIP-546; Kafka's `ClientQuotaControlManager`, `ClientQuotasImage`).

Quotas are stored and returned, but this broker does not enforce them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

from asyncgroup.broker.errors import Refused
from asyncgroup.error_codes import ErrorCode

__all__ = ["ClientQuotas", "QuotaEntity", "parse_filter"]

QuotaEntity = tuple[tuple[str, str | None], ...]
"""A quota entity: pairs of type and name, sorted by type; the name None is the default entity of a type."""

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
"""The largest value of each quota that is a whole number, None for the others (`QuotaConfig`)."""

_EXACT: Final = 0
_DEFAULT: Final = 1
_SPECIFIED: Final = 2


class ClientQuotas:
    """The quotas of all entities: values by key."""

    def __init__(self) -> None:
        self.entries: dict[QuotaEntity, dict[str, float]] = {}

    def __repr__(self) -> str:
        return f"<ClientQuotas of {len(self.entries)} entities>"

    def merged(self, entity: QuotaEntity, changes: Mapping[str, float | None]) -> dict[str, float]:
        """Return an entity's quotas with the changes applied (None removes a quota). Raise Refused(INVALID_REQUEST)."""
        keys = _keys(entity)
        values = dict(self.entries.get(entity, {}))
        for key, value in changes.items():
            if value is None:
                values.pop(key, None)
            else:
                _check_value(keys, key, value)
                values[key] = value
        return values

    def put(self, entity: QuotaEntity, values: Mapping[str, float]) -> None:
        """Replace an entity's quotas; without values it is removed."""
        if values:
            self.entries[entity] = dict(values)
        else:
            self.entries.pop(entity, None)

    def find(self, exact: Mapping[str, str | None], types: set[str], *, strict: bool) -> list[QuotaEntity]:
        """Return the entities that have all these names and types; `strict`: and no other types."""
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


def _keys(entity: QuotaEntity) -> Mapping[str, int | None]:
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
        return False  # a host name; names are not resolved here
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


def parse_filter(
    components: list[tuple[str, int, str | None]],
) -> tuple[dict[str, str | None], set[str]]:
    """Return the exact names and the types in the filter of DescribeClientQuotas.

    `components` are (entity type, match type, name). Raise Refused.
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
                ErrorCode.INVALID_REQUEST, f"match type {match} does not allow the match string {name!r}"
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
