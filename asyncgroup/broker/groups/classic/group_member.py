"""The members of a classic group (Kafka's `ClassicGroupMember`), and the protocols and topics that they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from asyncgroup.broker.groups.shared.requests import (
    ClientDetails,
    JoinReply,
    MemberSnapshot,
    MemberTimeouts,
    SyncReply,
)
from asyncgroup.errors import DecodeError
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned

__all__ = ["GroupMember", "SupportedProtocols", "subscribed_topics"]


@dataclass(slots=True, eq=False, kw_only=True)
class GroupMember:
    """A member with its protocols, its assignment and its parked request, if any. Timeouts are in seconds."""

    member_id: str
    group_instance_id: str | None
    client: ClientDetails
    timeouts: MemberTimeouts
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) pairs in the member's order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """Added in the current join phase: its session can expire although its JoinGroup is parked."""
    awaiting_join: JoinReply | None = field(default=None, repr=False)
    awaiting_sync: SyncReply | None = field(default=None, repr=False)

    @property
    def is_static(self) -> bool:
        """Whether the member has a group instance id (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        """Whether a JoinGroup of this member is parked."""
        return self.awaiting_join is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether an expired session is ignored.

        It is while the member's JoinGroup or SyncGroup is parked, as the member sends no heartbeats then.
        """
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    @property
    def protocol_names(self) -> tuple[str, ...]:
        """The names of the protocols in the member's order of preference."""
        return tuple(name for name, _ in self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for `protocol_name`. Raise KeyError if the member does not support it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(f"member {self.member_id} does not support protocol {protocol_name!r}")

    def vote(self, candidates: Collection[str]) -> str:
        """Return the protocol among `candidates` that the member prefers. Raise KeyError if it supports none."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise KeyError(f"member {self.member_id} supports none of {sorted(candidates)}")

    def snapshot(self, protocol_name: str | None, assignment: bytes) -> MemberSnapshot:
        """Return the member as stored in a group metadata record."""
        return MemberSnapshot(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client=self.client,
            timeouts=self.timeouts,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )


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
