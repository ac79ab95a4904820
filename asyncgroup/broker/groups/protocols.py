"""The protocols that a group's members support, and their subscriptions.

These are the parts of Kafka's `ClassicGroup` about protocols.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from asyncgroup.broker.groups.member import GroupMember
from asyncgroup.errors import DecodeError
from asyncgroup.wire import messages as m
from asyncgroup.wire.versioned import decode_versioned

__all__ = ["CONSUMER_PROTOCOL", "SupportedProtocols", "subscribed_topics"]

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of consumer groups."""


class SupportedProtocols:
    """Counts the members that support each protocol (for consumers, an assignor)."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<SupportedProtocols {dict(self._count)}>"

    def add(self, member: GroupMember) -> None:
        """Count a member."""
        self._count.update(set(member.protocol_names))

    def remove(self, member: GroupMember) -> None:
        """Stop counting a member, whose protocols must be the same as when it was added."""
        self._count.subtract(set(member.protocol_names))
        self._count = +self._count

    def candidates(self, members: int) -> set[str]:
        """Return the protocols that all members support; `members` is their number."""
        return {name for name, count in self._count.items() if count == members}

    def any_supported_by_all(self, names: Iterable[str], members: int) -> bool:
        """Whether all members support one of `names`; `members` is their number."""
        return any(self._count[name] == members for name in names)

    def select(self, members: Collection[GroupMember]) -> str:
        """Return the protocol preferred by most members among those that all support. There must be a member."""
        candidates = self.candidates(len(members))
        votes = Counter(member.vote(candidates) for member in members)
        return max(votes, key=lambda name: votes[name])


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics in the consumers' metadata, of any version, or None if one of them cannot be decoded."""
    try:
        return frozenset(
            topic
            for metadata in subscriptions
            for topic in decode_versioned(m.ConsumerProtocolSubscription, metadata).topics
        )
    except DecodeError:
        return None
