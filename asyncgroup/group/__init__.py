"""Consumer groups: members, their sessions and claims, and what users write to handle them.

Where to look, starting at the user's call; each room says more in its `__init__`:

- User-facing: `consumer_group` (ConsumerGroup, a thin object over the engine in `group`), `records` (reading and marking
  without a handler), `sessions/` (Handler, Session, Claim), `topics/subscription_pattern`, `health/`, `assignors/`.
- Member: `member` runs one session after another: `topics/` resolves the subscription, a `membership` joins the group,
  then `sessions/life` runs the session.
- Membership: `membership` is the seam for group protocols, and has what both sides of it share; `group_protocol` chooses
  one: `classic/`, or `consumer/` (KIP-848). `leaving` leaves the group by either.
- `liveness/`: a blocked event loop and stuck claims. `transactions/`: records and offsets of a session in transactions.
  `locks/`: a group as the lock of a producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.group.assignors import (
        Assignment,
        Assignor,
        MemberSubscription,
        RangeAssignor,
        RoundRobinAssignor,
        StickyAssignor,
    )
    from asyncgroup.group.consumer_group import ConsumerGroup
    from asyncgroup.group.health.health import ClaimHealth, ErrorSeen, Health
    from asyncgroup.group.health.problems import MemberProblem, ProblemKind
    from asyncgroup.group.locks.exclusive_producer import ExclusiveProducer
    from asyncgroup.group.records import Records
    from asyncgroup.group.sessions.claim import Claim
    from asyncgroup.group.sessions.handler import Handler
    from asyncgroup.group.sessions.session import Session
    from asyncgroup.group.sessions.threads import ThreadClaim
    from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern
    from asyncgroup.group.transactions.consume_transform_produce import ConsumeTransformProduce
    from asyncgroup.group.transactions.output import TransactionOutput
    from asyncgroup.threads import in_thread

__all__ = [
    "Assignment",
    "Assignor",
    "Claim",
    "ClaimHealth",
    "ConsumeTransformProduce",
    "ConsumerGroup",
    "ErrorSeen",
    "ExclusiveProducer",
    "Handler",
    "Health",
    "MemberProblem",
    "MemberSubscription",
    "ProblemKind",
    "RangeAssignor",
    "Records",
    "RoundRobinAssignor",
    "Session",
    "StickyAssignor",
    "SubscriptionPattern",
    "ThreadClaim",
    "TransactionOutput",
    "in_thread",
]

_NAMES = {
    "assignors": [
        "Assignment",
        "Assignor",
        "MemberSubscription",
        "RangeAssignor",
        "RoundRobinAssignor",
        "StickyAssignor",
    ],
    "sessions.claim": ["Claim"],
    "transactions.consume_transform_produce": ["ConsumeTransformProduce"],
    "consumer_group": ["ConsumerGroup"],
    "locks.exclusive_producer": ["ExclusiveProducer"],
    "sessions.handler": ["Handler"],
    "health.health": ["ClaimHealth", "ErrorSeen", "Health"],
    "health.problems": ["MemberProblem", "ProblemKind"],
    "records": ["Records"],
    "sessions.session": ["Session"],
    "topics.subscription_pattern": ["SubscriptionPattern"],
    "sessions.threads": ["ThreadClaim"],
    ".threads": ["in_thread"],
    "transactions.output": ["TransactionOutput"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
