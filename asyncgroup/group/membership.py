"""The seam between a member and the protocol of its group: how it joins, stays and leaves.

A `Membership` talks to the coordinator. A member calls `join`, then `stay` until its session ends, then `join` again or
`leave`. During `stay` the membership reports heartbeat results and further assignments to an `Assignable`, the member's
side. With an eager protocol a rebalance ends the session (`HeartbeatResult.REBALANCE`), so that all claims are revoked
before the next join. An incremental protocol calls `Assignable.assign` instead: the session and the claims that are in
both assignments go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from asyncgroup.errors import AsyncGroupError, SessionEnd
from asyncgroup.group.assignors.racks import PartitionRacks
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import MemberIdentity

if TYPE_CHECKING:
    from asyncgroup.group.liveness.heartbeat_snapshot import ThreadHandover

__all__ = [
    "CANCELLED",
    "CLOSED",
    "HEARTBEAT_LANE",
    "JOIN_GRACE",
    "RETRY_BACKOFF_SHARE",
    "Assignable",
    "ClaimChanges",
    "HeartbeatResult",
    "HeartbeatStatus",
    "JoinedGroup",
    "Membership",
    "heartbeat_timeout",
]

HEARTBEAT_LANE: Final = "heartbeat"
"""The purpose of the connection for a heartbeat that a request in flight on that of the group, such as a commit, may delay: a
broker serves the requests of a connection one after another, and may hold a commit for 5 s
(`offsets.commit.timeout.ms`). It is opened for the first such heartbeat."""

JOIN_GRACE: Final = 5.0
"""Seconds beyond `rebalance_timeout` that a join may take (`JOIN_GROUP_TIMEOUT_LAPSE` in Java)."""

RETRY_BACKOFF_SHARE: Final = 0.1
"""The longest backoff between attempts to reach the coordinator, as a share of the session timeout."""

CLOSED: Final = "closing: the group object was closed"
"""The reason to leave at `aclose()`."""

CANCELLED: Final = "closing: the task that consumes was cancelled"
"""The reason to leave when `consume()` or `run()` was cancelled."""


def heartbeat_timeout(interval: float, session_timeout: float) -> float:
    """Return the seconds for one heartbeat: a later response may leave no time for another one in the session."""
    return max(interval, session_timeout / 3)


class HeartbeatResult(Enum):
    """What the response to a heartbeat means for the membership."""

    ALIVE = "the coordinator knows the member"
    REBALANCE = "the group rebalances: join again; heartbeats continue"
    COORDINATOR_MOVED = "look up the coordinator again; the member stays"
    RETRY = "the coordinator is not ready; the member stays"
    LOST = "the member was removed, or its session has timed out: commit nothing more"
    FATAL = "not retriable"


class JoinedGroup(NamedTuple):
    """An assignment, with the identity that it belongs to."""

    identity: MemberIdentity
    assignment: dict[str, list[int]]
    """Partition numbers by topic."""
    is_leader: bool
    partition_counts: Mapping[str, int]
    """For the leader: the partition counts of all members' topics that the assignment is for. Empty for followers."""
    user_data: bytes | None = None
    """The user data in this member's assignment."""
    synced_at: float | None = None
    """Loop time of the response with the assignment; the classic coordinator sends it to all members at once."""
    racks: PartitionRacks | None = None
    """For a leader that balances by rack: the racks of the replicas that the assignment is for."""


class ClaimChanges(NamedTuple):
    """The difference that an assignment makes, each sorted."""

    revoked: list[TopicPartition]
    """Owned partitions that are no longer assigned: their claims end."""
    added: list[TopicPartition]
    """Assigned partitions that were not owned: they need a claim."""


class Assignable(Protocol):
    """The member's side while it is in the group."""

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that the member owns now, sorted. A revoked one is owned until its revocation is complete."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the session ends: a member whose session ends does not join again during it."""
        ...

    def on_heartbeat(self, result: HeartbeatResult, error: AsyncGroupError | None) -> None:
        """Handle the result of a heartbeat, any but ALIVE. REBALANCE, LOST and FATAL end the session."""
        ...

    def on_epoch(self, identity: MemberIdentity) -> None:
        """Commit under this newer epoch from now on, also while the session ends (KIP-848).

        The member still has all of its partitions: the coordinator gives none away before it is reported as revoked.
        Coordinators before Kafka 4.3 accept no other epoch.
        """
        ...

    async def prepare_join(self) -> list[str] | SubscriptionPattern | None:
        """Look up the topics of the subscription, and return them for the next join of a session that goes on.

        Partitions of topics that are not in it any more are revoked first, as by `assign` (`onJoinPrepare` in Java's
        `ConsumerCoordinator`). None if the session ends.
        """
        ...

    async def assign(self, joined: JoinedGroup) -> ClaimChanges:
        """Replace the assignment while the session goes on, and return the changes.

        Returns when the revocation is complete: the claims have ended, their handlers have drained, their marks were
        committed, `on_revoked` was called. Added claims start in the background. Commits use the new identity at once.
        Heartbeats have to go on during all of it: handlers may take `rebalance_timeout`.
        """
        ...


class HeartbeatStatus(Protocol):
    """What the member has to know of the heartbeats that `stay` sends."""

    @property
    def session_timeout(self) -> float:
        """Seconds without a heartbeat after which the coordinator removes the member: its own, or the group's (KIP-848)."""
        ...

    @property
    def heartbeat_interval(self) -> float:
        """Longest time between two heartbeats, in seconds: the member's own, or the group's (KIP-848)."""
        ...

    handover: ThreadHandover
    """To the heartbeat thread. It has a snapshot during a session. Between two sessions only a member of a classic group has one, if it was
    in a generation: after a rebalance at once, else from its next JoinGroup on."""
    last_response_at: float
    """Loop time of the last response of the coordinator; minus infinity before the first."""
    last_stable_sent_at: float
    """Loop time at which the last heartbeat was sent that found the group stable: a later rebalance began after it."""

    def next_heartbeat_after(self, moment: float) -> float | None:
        """Return the loop time of the first heartbeat after `moment`; None if it is unknown."""
        ...

    async def confirm_refusal(self, lookup: int | None, sent_at: float) -> bool:
        """Return whether the refusal of a commit, sent then to that coordinator, ends the membership; ask again if in doubt."""
        ...

    async def wait_joined(self) -> bool:
        """Wait until the member has joined again; return whether it has. False at once if it is not joining."""
        ...


class Membership(Protocol):
    """A member's place in its group, by one of the group protocols. It lasts as long as the group object."""

    @property
    def identity(self) -> MemberIdentity:
        """The current identity; without a member id before the first join and after `leave`."""
        ...

    @property
    def lanes(self) -> Collection[str]:
        """The purposes of connections that only this member uses."""
        ...

    @property
    def heartbeats(self) -> HeartbeatStatus:
        """The heartbeats of the current or last session."""
        ...

    async def join(self, topics: Iterable[str] | SubscriptionPattern) -> JoinedGroup:
        """Join until the member has an assignment.

        Raises BrokerError, TransportError, AssignmentError, and ConfigError for a pattern that the coordinator cannot match.
        """
        ...

    async def stay(self, joined: JoinedGroup, member: Assignable) -> None:
        """Send heartbeats after `join`, and report their results and further assignments, until cancelled or lost."""
        ...

    def rejoin(self, cause: SessionEnd) -> bool:
        """Join again during `stay`, with the topics of `Assignable.prepare_join`; False if this protocol cannot."""
        ...

    def is_fatal(self, code: int) -> bool:
        """Whether a commit refused with this error code ends the membership as FATAL does, so that the error is raised."""
        ...

    def after_session(self, cause: SessionEnd | None) -> None:
        """Take note of the cause of a session's end, before the next join."""
        ...

    async def leave(self, reason: str, leaves: bool | None, timeout: float) -> None:
        """Leave the group within `timeout` seconds. `leaves` overrides whether this kind of member leaves at all."""
        ...
