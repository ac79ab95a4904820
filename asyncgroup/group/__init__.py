"""Consumer groups: members, their sessions and claims, and what users write to handle them."""

from asyncgroup.group.assignors import Assignor, MemberSubscription, RangeAssignor, RoundRobinAssignor
from asyncgroup.group.claim import Claim
from asyncgroup.group.group import ConsumerGroup
from asyncgroup.group.handler import Handler
from asyncgroup.group.session import Session
from asyncgroup.group.threads import ThreadClaim, in_thread

__all__ = [
    "Assignor",
    "Claim",
    "ConsumerGroup",
    "Handler",
    "MemberSubscription",
    "RangeAssignor",
    "RoundRobinAssignor",
    "Session",
    "ThreadClaim",
    "in_thread",
]
