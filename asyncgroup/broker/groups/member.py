"""One member of a classic group (Kafka's `ClassicGroupMember`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from asyncgroup.broker.groups.requests import JoinReply, MemberSnapshot, SyncReply

__all__ = ["GroupMember"]


@dataclass(slots=True, eq=False, kw_only=True)
class GroupMember:
    """A member with its protocols, its assignment and its parked request, if any. Timeouts are in seconds."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: float
    session_timeout: float
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
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout,
            session_timeout=self.session_timeout,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )
