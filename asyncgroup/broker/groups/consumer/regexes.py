"""Subscriptions by regular expression: which topics match those of a group's members.

Kafka resolves them on another thread after the heartbeat that names a new one, so that a member gets its partitions with
its next heartbeat (`GroupMetadataManager.maybeUpdateRegularExpressions`). Here the result has the same effect right
after the heartbeat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import lru_cache

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup, ResolvedRegex
from asyncgroup.broker.groups.consumer.topics import TopicsImage, metadata_hash
from asyncgroup.broker.re2_pattern import PatternError, Re2Pattern
from asyncgroup.error_codes import ErrorCode

__all__ = ["check_regex", "is_unresolved", "resolved", "used_regexes"]


@lru_cache(maxsize=64)
def _pattern(text: str) -> Re2Pattern:
    return Re2Pattern(text)


def check_regex(text: str) -> None:
    """Raise Refused(INVALID_REGULAR_EXPRESSION) if the expression cannot be compiled."""
    try:
        _pattern(text)
    except PatternError as error:
        raise Refused(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {error}.",
        ) from error


def used_regexes(group: ModernGroup) -> frozenset[str]:
    """Return the regular expressions of the members."""
    return frozenset(member.regex for member in group.members.values() if member.regex)


def is_unresolved(group: ModernGroup) -> bool:
    """Whether a member has a regular expression that has not been resolved."""
    return any(member.regex and member.regex not in group.regexes for member in group.members.values())


def resolved(group: ModernGroup, topics: TopicsImage, now: int) -> ModernGroup:
    """Return the group with its regular expressions resolved at `now` (ms since 1970).

    If the topics of one have changed, the group is in its next epoch.
    """
    names = list(topics.names())
    found = {text: _matching(text, names) for text in sorted(used_regexes(group))}
    known = {text: entry.topics for text, entry in group.regexes.items()}
    if found == known:
        return group
    regexes = {
        text: group.regexes[text] if known.get(text) == matching else ResolvedRegex(matching, now)
        for text, matching in found.items()
    }
    changed = dataclasses.replace(group, regexes=regexes, epoch=group.epoch + 1)
    return dataclasses.replace(changed, metadata_hash=metadata_hash(topics, changed.subscribed_topics))


def _matching(text: str, names: Iterable[str]) -> frozenset[str]:
    pattern = _pattern(text)
    return frozenset(name for name in names if pattern.fullmatch(name))
