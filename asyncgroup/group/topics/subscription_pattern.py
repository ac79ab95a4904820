"""SubscriptionPattern: a regular expression for topic names that the broker matches (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asyncgroup.errors import ConfigError

__all__ = ["SubscriptionPattern", "check_classic"]


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """Topics whose whole name matches a regular expression of RE2, by the group's coordinator; as in Java.

        await group.run(SubscriptionPattern("orders-(eu|us)"), handler)

    In contrast to a compiled pattern, which this client matches, the client does not request the metadata of all topics again
    and again, and all members have the same topics at the same time. Only groups of the consumer protocol have it
    (`group_protocol`, Kafka 4.0). Raises ConfigError if the pattern is not a string or is empty. Whether its syntax is valid is
    known only at the coordinator: the group's call then raises BrokerError, INVALID_REGULAR_EXPRESSION.
    """

    pattern: str
    """The regular expression, in the syntax of RE2 (github.com/google/re2/wiki/Syntax)."""

    def __post_init__(self) -> None:
        pattern: object = self.pattern
        if not isinstance(pattern, str):
            raise ConfigError(
                "pattern", pattern, "a string in the syntax of RE2; pass a compiled pattern as it is"
            )
        if not pattern:  # on the wire an empty one means none
            raise ConfigError("pattern", pattern, "a regular expression; it is empty")

    def __repr__(self) -> str:
        return f"SubscriptionPattern({self.pattern!r})"


def check_classic(topics: Iterable[str] | SubscriptionPattern) -> list[str]:
    """Return the topics for a group of the classic protocol, sorted. Raises ConfigError for a pattern: no broker matches it."""
    if isinstance(topics, SubscriptionPattern):
        allowed = (
            "a topic, several topics, or a compiled pattern, since the group has the classic protocol; "
            "a SubscriptionPattern needs the consumer protocol (group_protocol)"
        )
        raise ConfigError("topics", topics, allowed)
    return sorted(topics)
