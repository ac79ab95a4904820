"""KeepAlive: what another thread needs to keep a member in its group while the member's event loop is blocked.

The heartbeats of a member publish one whenever its identity or the time of the next heartbeat changes. It is immutable, so
`StandIn` may use it in its own thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias
from uuid import UUID

from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import AsyncGroupError, ErrorCode
from asyncgroup.group.leaving import LeaveResult, build_leave, leave_result
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Request

__all__ = [
    "ClassicKeepAlive",
    "ConsumerKeepAlive",
    "KeepAlive",
    "KeepAliveResult",
    "KeptAlive",
    "Partitions",
    "TopicIdPartition",
    "by_topic_id",
]


TopicIdPartition: TypeAlias = "tuple[UUID, int]"
"""A partition by the id of its topic."""

Partitions: TypeAlias = "frozenset[TopicIdPartition]"
"""What a member of the consumer protocol owns, or is to own."""


class KeepAliveResult(Enum):
    """What the response to a heartbeat means for a member whose event loop is blocked."""

    ALIVE = "the coordinator has the member"
    REBALANCE = "it has, and the group rebalances: it waits until `rebalance_timeout` has passed"
    COORDINATOR_MOVED = "look up the coordinator, and send it again"
    RETRY = "send it again later"
    REFUSED = "the member's own heartbeats have to find out, once the event loop runs again"


class KeepAlive(Protocol):
    """A member at one moment, by one of the group protocols."""

    @property
    def group_id(self) -> str:
        """The group."""
        ...

    @property
    def epoch(self) -> int:
        """The member epoch; -1 by the classic protocol."""
        ...

    @property
    def due(self) -> float:
        """Loop time of the next heartbeat."""
        ...

    @property
    def interval(self) -> float:
        """Seconds between heartbeats."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds for one heartbeat."""
        ...

    def request(self) -> Request[Any]:
        """Return a heartbeat that only says that the member is there."""
        ...

    def result(self, response: Any) -> tuple[KeepAliveResult, Self]:
        """Return what the response means, and the member after it."""
        ...

    @property
    def leaves(self) -> bool:
        """Whether this kind of member leaves its group; a static one of a classic group only stops its heartbeats."""
        ...

    @property
    def leave_type(self) -> type[Request[Any]]:
        """The type of the request that leaves."""
        ...

    def leave_request(self, version: int) -> Request[Any]:
        """Return the request that leaves."""
        ...

    def leave_result(self, response: Any) -> LeaveResult:
        """Return the error code and message of its response."""
        ...


class KeptAlive(NamedTuple):
    """What was done for a member while its event loop was blocked; its heartbeats take it when the loop runs again."""

    at: float
    """Loop time at which the last heartbeat was sent that was accepted; minus infinity if there was none."""
    stable_at: float
    """Loop time at which the last one was sent that found no rebalance; minus infinity if there was none."""
    epoch: int
    """The member epoch after it; -1 by the classic protocol."""
    left_because: AsyncGroupError | None = None
    """Why the member has left its group, or stopped its heartbeats."""


_RESULTS: Final[Mapping[int, KeepAliveResult]] = {
    ErrorCode.NONE: KeepAliveResult.ALIVE,
    ErrorCode.REBALANCE_IN_PROGRESS: KeepAliveResult.REBALANCE,
    ErrorCode.NOT_COORDINATOR: KeepAliveResult.COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: KeepAliveResult.COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: KeepAliveResult.RETRY,
}
"""By error code; other codes: RETRY if they are retriable, else REFUSED."""


def _result(code: int) -> KeepAliveResult:
    return _RESULTS.get(code, KeepAliveResult.RETRY if is_retriable(code) else KeepAliveResult.REFUSED)


LEFT: Final = "the event loop or a handler does not go on"
"""The reason to leave."""


@dataclass(frozen=True, slots=True)
class ClassicKeepAlive:
    """A member by the classic protocol.

    While it joins the group may get the next generation, and the response that says so is not read before the event loop
    runs again. The one after that is of no use: it is without the members that did not send another JoinGroup.
    """

    group_id: str
    identity: MemberIdentity
    due: float
    interval: float
    timeout: float
    joins: bool = False
    """Whether it waits for the response to a JoinGroup."""
    epoch: int = -1
    """Unused by this protocol."""

    def request(self) -> m.HeartbeatRequest:
        """Return a heartbeat."""
        return m.HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.identity.generation_id,
            member_id=self.identity.member_id,
            group_instance_id=self.identity.group_instance_id,
        )

    def result(self, response: m.HeartbeatResponse) -> tuple[KeepAliveResult, Self]:
        """See `KeepAlive`; after a join that is complete the next heartbeat has the next generation."""
        if self.joins and response.error_code == ErrorCode.ILLEGAL_GENERATION:
            identity = self.identity._replace(generation_id=self.identity.generation_id + 1)
            return KeepAliveResult.RETRY, replace(self, identity=identity, joins=False)
        return _result(response.error_code), self

    @property
    def leaves(self) -> bool:
        """See `KeepAlive`."""
        return self.identity.group_instance_id is None

    @property
    def leave_type(self) -> type[m.LeaveGroupRequest]:
        """See `KeepAlive`."""
        return m.LeaveGroupRequest

    def leave_request(self, version: int) -> m.LeaveGroupRequest:
        """See `KeepAlive`."""
        return build_leave(self.group_id, self.identity, LEFT, version)

    def leave_result(self, response: m.LeaveGroupResponse) -> LeaveResult:
        """See `KeepAlive`."""
        return leave_result(response)


@dataclass(frozen=True, slots=True)
class ConsumerKeepAlive:
    """A member by the consumer protocol (KIP-848).

    Its heartbeats confirm no assignment: they report what the member may use, both what it is about to revoke and what it
    was assigned last. The list has to be in the request, since only then the coordinator accepts the epoch before its own,
    if a response was lost.
    """

    group_id: str
    identity: MemberIdentity
    due: float
    interval: float
    timeout: float
    owned: Partitions
    """The partitions to report."""
    leave: m.ConsumerGroupHeartbeatRequest
    """The request that leaves."""

    @property
    def epoch(self) -> int:
        """The member epoch."""
        return self.identity.generation_id

    def request(self) -> m.ConsumerGroupHeartbeatRequest:
        """Return a heartbeat with the epoch and the partitions."""
        return m.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.identity.member_id,
            member_epoch=self.epoch,
            instance_id=self.identity.group_instance_id,
            topic_partitions=by_topic_id(self.owned),
        )

    def result(self, response: m.ConsumerGroupHeartbeatResponse) -> tuple[KeepAliveResult, Self]:
        """See `KeepAlive`; the response may have a newer epoch."""
        result = _result(response.error_code)
        if result is KeepAliveResult.ALIVE and response.assignment is not None:
            result = KeepAliveResult.REBALANCE  # it may revoke partitions
        if response.error_code or response.member_epoch <= self.epoch:
            return result, self
        identity = self.identity._replace(generation_id=response.member_epoch)
        return result, replace(self, identity=identity)

    @property
    def leaves(self) -> bool:
        """True: a static member also leaves, but its partitions wait for it; else it could not join again."""
        return True

    @property
    def leave_type(self) -> type[m.ConsumerGroupHeartbeatRequest]:
        """See `KeepAlive`."""
        return m.ConsumerGroupHeartbeatRequest

    def leave_request(self, version: int) -> m.ConsumerGroupHeartbeatRequest:  # noqa: ARG002  as KeepAlive
        """See `KeepAlive`."""
        return self.leave

    def leave_result(self, response: m.ConsumerGroupHeartbeatResponse) -> LeaveResult:
        """See `KeepAlive`."""
        return response.error_code, response.error_message


def by_topic_id(partitions: Partitions) -> list[m.ConsumerGroupHeartbeatRequest.TopicPartitions]:
    """Return the partitions as a heartbeat of the consumer protocol lists them, sorted."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return [
        m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in topics.items()
    ]
