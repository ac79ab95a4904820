"""Consumer groups: members, their sessions and claims, and what users write to handle them."""

from asyncgroup.group.assignors import (
    Assignment,
    Assignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from asyncgroup.group.claim import Claim
from asyncgroup.group.group import ConsumerGroup
from asyncgroup.group.handler import Handler
from asyncgroup.group.health import ClaimHealth, ErrorSeen, Health
from asyncgroup.group.session import Session
from asyncgroup.group.threads import ThreadClaim, in_thread

__all__ = [
    "Assignment",
    "Assignor",
    "Claim",
    "ClaimHealth",
    "ConsumerGroup",
    "ErrorSeen",
    "Handler",
    "Health",
    "MemberSubscription",
    "RangeAssignor",
    "RoundRobinAssignor",
    "Session",
    "StickyAssignor",
    "ThreadClaim",
    "in_thread",
]
