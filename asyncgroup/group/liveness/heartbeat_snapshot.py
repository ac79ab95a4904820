"""HeartbeatSnapshot: what the heartbeat thread needs to keep a member in its group while the member's event loop is blocked.

The heartbeats of a member publish one in their ThreadHandover whenever its identity or the time of the next heartbeat
changes. It is immutable, so `ThreadHeartbeats` may use it in its own thread; what they did comes back as a ThreadReport.
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
    "ClassicSnapshot",
    "ConsumerSnapshot",
    "HeartbeatSnapshot",
    "Partitions",
    "ThreadHandover",
    "ThreadReport",
    "ThreadResult",
    "TopicIdPartition",
    "by_topic_id",
]


TopicIdPartition: TypeAlias = "tuple[UUID, int]"
"""A partition by the id of its topic."""

Partitions: TypeAlias = "frozenset[TopicIdPartition]"
"""What a member of the consumer protocol owns, or is to own."""


class ThreadResult(Enum):
    """What the response to a heartbeat means for a member whose event loop is blocked."""

    ALIVE = "the coordinator has the member"
    REBALANCE = "it has, and the group rebalances: it waits until `rebalance_timeout` has passed"
    COORDINATOR_MOVED = "look up the coordinator, and send it again"
    RETRY = "send it again later"
    REFUSED = "the member's own heartbeats have to find out, once the event loop runs again"


class HeartbeatSnapshot(Protocol):
    """A member at one moment, by one of the group protocols."""

    @property
    def group_id(self) -> str:
        """The group."""
        ...

    @property
    def identity(self) -> MemberIdentity:
        """The member, with its generation or epoch."""
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

    def result(self, response: Any) -> tuple[ThreadResult, Self]:
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


class ThreadReport(NamedTuple):
    """What the heartbeat thread has done for a member; the next heartbeat of the member takes it."""

    accepted_at: float
    """Loop time at which the last heartbeat was sent that was accepted; minus infinity if there was none."""
    stable_at: float
    """Loop time at which the last one was sent that found no rebalance; minus infinity if there was none."""
    identity: MemberIdentity
    """The member after it."""
    left_because: AsyncGroupError | None = None
    """Why the member has left its group, or stopped its heartbeats."""


class ThreadHandover:
    """What the heartbeats of a member and the heartbeat thread pass to each other. Each field has one writer at a time."""

    def __init__(self) -> None:
        self.snapshot: HeartbeatSnapshot | None = None
        """The member; None if there is none to keep in the group. Written on the event loop."""
        self.report: ThreadReport | None = None
        """Written by the thread while the event loop is blocked."""
        self.accepted_at = float("-inf")
        """Loop time of the last heartbeat of the thread that was accepted, of all reports that were taken."""

    def take_report(self) -> ThreadReport | None:
        """Return what the thread has done since the last call; None if it has sent nothing."""
        report, self.report = self.report, None
        if report is not None:
            self.accepted_at = max(self.accepted_at, report.accepted_at)
        return report


_RESULTS: Final[Mapping[int, ThreadResult]] = {
    ErrorCode.NONE: ThreadResult.ALIVE,
    ErrorCode.REBALANCE_IN_PROGRESS: ThreadResult.REBALANCE,
    ErrorCode.NOT_COORDINATOR: ThreadResult.COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ThreadResult.COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ThreadResult.RETRY,
}
"""By error code; other codes: RETRY if they are retriable, else REFUSED."""


def _result(code: int) -> ThreadResult:
    return _RESULTS.get(code, ThreadResult.RETRY if is_retriable(code) else ThreadResult.REFUSED)


LEFT: Final = "the event loop or a handler does not go on"
"""The reason to leave."""


@dataclass(frozen=True, slots=True)
class ClassicSnapshot:
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

    def request(self) -> m.HeartbeatRequest:
        """Return a heartbeat."""
        return m.HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.identity.generation_id,
            member_id=self.identity.member_id,
            group_instance_id=self.identity.group_instance_id,
        )

    def result(self, response: m.HeartbeatResponse) -> tuple[ThreadResult, Self]:
        """See `HeartbeatSnapshot`; after a join that is complete the next heartbeat has the next generation."""
        # the group has got its next generation while the response to the join waits to be read
        if self.joins and response.error_code == ErrorCode.ILLEGAL_GENERATION:
            identity = self.identity._replace(generation_id=self.identity.generation_id + 1)
            # only once: a generation after that is without this member
            return ThreadResult.RETRY, replace(self, identity=identity, joins=False)
        return _result(response.error_code), self

    @property
    def leaves(self) -> bool:
        """See `HeartbeatSnapshot`."""
        # LeaveGroup would remove a static member, whose partitions wait for its restart (KIP-345)
        return self.identity.group_instance_id is None

    @property
    def leave_type(self) -> type[m.LeaveGroupRequest]:
        """See `HeartbeatSnapshot`."""
        return m.LeaveGroupRequest

    def leave_request(self, version: int) -> m.LeaveGroupRequest:
        """See `HeartbeatSnapshot`."""
        return build_leave(self.group_id, self.identity, LEFT, version)

    def leave_result(self, response: m.LeaveGroupResponse) -> LeaveResult:
        """See `HeartbeatSnapshot`."""
        return leave_result(response)


@dataclass(frozen=True, slots=True)
class ConsumerSnapshot:
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

    def request(self) -> m.ConsumerGroupHeartbeatRequest:
        """Return a heartbeat with the epoch and the partitions."""
        return m.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.identity.member_id,
            member_epoch=self.identity.generation_id,
            instance_id=self.identity.group_instance_id,
            # without them the coordinator would not accept the epoch before its own
            topic_partitions=by_topic_id(self.owned),
        )

    def result(self, response: m.ConsumerGroupHeartbeatResponse) -> tuple[ThreadResult, Self]:
        """See `HeartbeatSnapshot`; the response may have a newer epoch."""
        result = _result(response.error_code)
        if result is ThreadResult.ALIVE and response.assignment is not None:
            result = ThreadResult.REBALANCE  # it may revoke partitions
        # an older epoch is of a response that was overtaken
        if response.error_code or response.member_epoch <= self.identity.generation_id:
            return result, self
        identity = self.identity._replace(generation_id=response.member_epoch)
        return result, replace(self, identity=identity)

    @property
    def leaves(self) -> bool:
        """True: a static member also leaves, but its partitions wait for it; else it could not join again."""
        return True

    @property
    def leave_type(self) -> type[m.ConsumerGroupHeartbeatRequest]:
        """See `HeartbeatSnapshot`."""
        return m.ConsumerGroupHeartbeatRequest

    def leave_request(self, version: int) -> m.ConsumerGroupHeartbeatRequest:  # noqa: ARG002  as HeartbeatSnapshot
        """See `HeartbeatSnapshot`."""
        return self.leave

    def leave_result(self, response: m.ConsumerGroupHeartbeatResponse) -> LeaveResult:
        """See `HeartbeatSnapshot`."""
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
