"""ACLs as an administrator sees them, with Kafka's words, and their numbers in the protocol (`org.apache.kafka.common.acl`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from asyncgroup.admin.arguments import check_text
from asyncgroup.cluster.requests.acls import AclFields, AclFilterFields
from asyncgroup.cluster.requests.results import raise_first
from asyncgroup.errors import AsyncGroupError, ConfigError

__all__ = [
    "AccessControlEntry",
    "AclBinding",
    "AclBindingFilter",
    "AclsDeleted",
    "ResourcePattern",
    "acl_fields",
    "binding_of",
    "filter_fields",
]

RESOURCE_TYPES: Final = {
    "TOPIC": 2,
    "GROUP": 3,
    "CLUSTER": 4,
    "TRANSACTIONAL_ID": 5,
    "DELEGATION_TOKEN": 6,
    "USER": 7,
}
PATTERN_TYPES: Final = {"LITERAL": 3, "PREFIXED": 4}
OPERATIONS: Final = {
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
    "CREATE_TOKENS": 13,
    "DESCRIBE_TOKENS": 14,
    "TWO_PHASE_COMMIT": 15,
}
PERMISSION_TYPES: Final = {"DENY": 2, "ALLOW": 3}

CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    """The resources that an ACL is about (KIP-290)."""

    resource_type: str
    """`TOPIC`, `GROUP`, `CLUSTER`, `TRANSACTIONAL_ID`, `DELEGATION_TOKEN` or `USER`."""
    name: str = CLUSTER_NAME
    """The name, its prefix, or `*` for all; for CLUSTER `kafka-cluster`."""
    pattern_type: str = "LITERAL"
    """`LITERAL`: this name, or all for `*`; `PREFIXED`: all names that begin with it."""


@dataclass(frozen=True, slots=True)
class AccessControlEntry:
    """Who may, or may not, do what from where."""

    principal: str
    """The type and name of a user, such as `User:alice`; `User:*` means every user."""
    operation: str
    """Kafka's word, such as `READ`, `WRITE`, `DESCRIBE` or `ALL`."""
    permission_type: str = "ALLOW"
    """`ALLOW` or `DENY`; a denial takes precedence."""
    host: str = "*"
    """The address that the user must connect from; `*` means any."""


@dataclass(frozen=True, slots=True)
class AclBinding:
    """An ACL: an entry for the resources of a pattern."""

    pattern: ResourcePattern
    """The resources."""
    entry: AccessControlEntry
    """Who may do what."""


@dataclass(frozen=True, slots=True)
class AclBindingFilter:
    """A filter of ACLs; the default matches all. Kafka's ResourcePatternFilter and AccessControlEntryFilter in one."""

    resource_type: str = "ANY"
    """That of ResourcePattern, or `ANY`."""
    name: str | None = None
    """A name as it is in the ACL, with pattern type `MATCH` the name of a resource; None matches any."""
    pattern_type: str = "ANY"
    """`LITERAL`, `PREFIXED`, `ANY`, or `MATCH`: the ACLs that affect the resource `name`, by prefixes and `*` as well."""
    principal: str | None = None
    """A principal, or None for any."""
    host: str | None = None
    """A host as it is in the ACL, or None for any."""
    operation: str = "ANY"
    """An operation as it is in the ACL, or `ANY`: `READ` does not find an ACL for `ALL`."""
    permission_type: str = "ANY"
    """`ALLOW`, `DENY` or `ANY`."""

    @classmethod
    def exactly(cls, binding: AclBinding) -> AclBindingFilter:
        """Return the filter that matches only this ACL."""
        pattern, entry = binding.pattern, binding.entry
        return cls(
            pattern.resource_type,
            pattern.name,
            pattern.pattern_type,
            entry.principal,
            entry.host,
            entry.operation,
            entry.permission_type,
        )


@dataclass(frozen=True, slots=True)
class AclsDeleted:
    """What the deletion by one filter did."""

    acls: tuple[AclBinding, ...]
    """The ACLs that were deleted."""
    errors: Mapping[AclBinding, AsyncGroupError]
    """Of ACLs that match, but could not be deleted."""

    def raise_first(self) -> tuple[AclBinding, ...]:
        """Return the ACLs that were deleted. Raises the first error if there is one."""
        raise_first(self.errors)
        return self.acls


# --- words and numbers --------------------------------------------------------------------------------------------------


def acl_fields(binding: object) -> AclFields:
    """Return the numbers of an ACL to be created. Raises ConfigError for wrong words and values."""
    if not isinstance(binding, AclBinding):
        raise ConfigError("an ACL", binding, "an AclBinding of a ResourcePattern and an AccessControlEntry")
    pattern, entry = binding.pattern, binding.entry
    if not isinstance(pattern, ResourcePattern) or not isinstance(entry, AccessControlEntry):
        raise ConfigError("an ACL", binding, "an AclBinding of a ResourcePattern and an AccessControlEntry")
    resource_type = _number("resource_type", pattern.resource_type, RESOURCE_TYPES)
    name = check_text("name", pattern.name, "the name of a resource, a prefix, or *")
    if pattern.resource_type == "CLUSTER" and name != CLUSTER_NAME:
        raise ConfigError("name", name, f"{CLUSTER_NAME}, the only resource of type CLUSTER")
    return AclFields(
        resource_type,
        name,
        _number("pattern_type", pattern.pattern_type, PATTERN_TYPES),
        _principal(entry.principal),
        check_text("host", entry.host, "an address, or *"),
        _number("operation", entry.operation, OPERATIONS),
        _number("permission_type", entry.permission_type, PERMISSION_TYPES),
    )


def filter_fields(wanted: object) -> AclFilterFields:
    """Return the numbers of a filter. Raises ConfigError for wrong words and values."""
    if not isinstance(wanted, AclBindingFilter):
        raise ConfigError("a filter of ACLs", wanted, "an AclBindingFilter")
    if wanted.pattern_type == "MATCH" and wanted.name is None:
        raise ConfigError("name", None, "the name of a resource, with the pattern type MATCH")
    return AclFilterFields(
        _number("resource_type", wanted.resource_type, RESOURCE_TYPES, ANY=1),
        None if wanted.name is None else check_text("name", wanted.name, "the name of a resource, or None"),
        _number("pattern_type", wanted.pattern_type, PATTERN_TYPES, ANY=1, MATCH=2),
        None if wanted.principal is None else _principal(wanted.principal),
        None if wanted.host is None else check_text("host", wanted.host, "an address, * or None"),
        _number("operation", wanted.operation, OPERATIONS, ANY=1),
        _number("permission_type", wanted.permission_type, PERMISSION_TYPES, ANY=1),
    )


def binding_of(fields: AclFields) -> AclBinding:
    """Return the ACL with Kafka's words; a number that is not known is `UNKNOWN`."""
    pattern = ResourcePattern(
        _word(fields.resource_type, RESOURCE_TYPES), fields.name, _word(fields.pattern_type, PATTERN_TYPES)
    )
    entry = AccessControlEntry(
        fields.principal,
        _word(fields.operation, OPERATIONS),
        _word(fields.permission_type, PERMISSION_TYPES),
        fields.host,
    )
    return AclBinding(pattern, entry)


def _number(key: str, word: Any, known: Mapping[str, int], **further: int) -> int:
    allowed = {**known, **further}
    if not isinstance(word, str) or word not in allowed:
        raise ConfigError(key, word, f"one of {', '.join(allowed)}")
    return allowed[word]


def _word(number: int, known: Mapping[str, int]) -> str:
    return next((word for word, each in known.items() if each == number), "UNKNOWN")


def _principal(principal: Any) -> str:
    kind, colon, name = principal.partition(":") if isinstance(principal, str) else ("", "", "")
    if not (kind and colon and name):
        raise ConfigError("principal", principal, "a type and a name, as User:alice")
    return check_text("principal", principal, "a type and a name, as User:alice")
