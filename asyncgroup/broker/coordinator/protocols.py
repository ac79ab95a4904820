"""What the members of a group support, and which topics they want: the parts of Kafka's `ClassicGroup` about protocols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from asyncgroup.broker.coordinator.member import GroupMember
from asyncgroup.errors import DecodeError
from asyncgroup.wire import messages as m
from asyncgroup.wire.versioned import decode_versioned

__all__ = ["CONSUMER_PROTOCOL", "SupportedProtocols", "subscribed_topics"]

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of consumer groups."""


class SupportedProtocols:
    """How many members support each protocol (assignor, for consumers)."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<SupportedProtocols {dict(self._count)}>"

    def add(self, member: GroupMember) -> None:
        """One more member."""
        self._count.update(set(member.protocol_names))

    def remove(self, member: GroupMember) -> None:
        """One less; it must support what it did when it was added."""
        self._count.subtract(set(member.protocol_names))
        self._count = +self._count

    def candidates(self, members: int) -> set[str]:
        """The protocols that all of so many members support."""
        return {name for name, count in self._count.items() if count == members}

    def any_supported_by_all(self, names: Iterable[str], members: int) -> bool:
        """Whether one of these is supported by all of so many members."""
        return any(self._count[name] == members for name in names)

    def select(self, members: Collection[GroupMember]) -> str:
        """The protocol that most members want among those that all support; there must be a member."""
        candidates = self.candidates(len(members))
        votes = Counter(member.vote(candidates) for member in members)
        return max(votes, key=lambda name: votes[name])


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics in the metadata of consumers, whatever their version; None if one cannot be read."""
    try:
        return frozenset(
            topic
            for metadata in subscriptions
            for topic in decode_versioned(m.ConsumerProtocolSubscription, metadata).topics
        )
    except DecodeError:
        return None
