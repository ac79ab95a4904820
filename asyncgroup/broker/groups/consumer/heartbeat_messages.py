"""Requests to the coordinator of consumer groups and their results. Durations are in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from asyncgroup.broker.groups.consumer.consumer_group_member import TopicIdPartition
from asyncgroup.error_codes import ErrorCode

__all__ = ["MemberHeartbeat", "MemberHeartbeatReply", "MemberHeartbeatResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHeartbeat:
    """A ConsumerGroupHeartbeat. None in an optional field: unchanged since the member's last request."""

    group_id: str
    member_id: str
    member_epoch: int
    """0 joins, -1 leaves, -2 leaves for a while (static members)."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: float | None = None
    topics: frozenset[str] | None = None
    regex: str | None = None
    server_assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None
    """The partitions that the member owns now."""
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the member repeats all that the server knows of it, as it does after a lost response."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.rebalance_timeout is not None and has_subscription and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHeartbeatResult:
    """The result of a ConsumerGroupHeartbeat; `heartbeat_interval` is in seconds."""

    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval: float = 0.0
    assignment: frozenset[TopicIdPartition] | None = None
    """The partitions that the member shall have now; None: unchanged."""


MemberHeartbeatReply: TypeAlias = Callable[[MemberHeartbeatResult], None]
"""Called with the result of a ConsumerGroupHeartbeat, when what it changed is written."""
