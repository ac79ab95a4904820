"""Consumer groups: members, their sessions and claims, and what users write to handle them.

Where to look, starting at the user's call:

- User-facing: `consumer_group` (ConsumerGroup, a thin object over the engine in `group`), `handler`, `session`, `claim`, `threads` (what a function of `in_thread` gets), `records` (reading and marking without a handler),
  `subscription_pattern`, `health`, `hook`, and `assignors/`. Session and Claim show what a handler may call; their
  private `_state` is for the files of this room.
- `exclusive_producer` uses a group as the lock of a producer, with the assignor in `assignors/lock`.
- Member: `member` runs one session after another: `topics` resolves the subscription, a `membership` joins the group,
  then `session_life` runs the session. The ClaimSource in `claim_source` makes the claims and is kept across sessions.
- Session: `session_life` from top to bottom. `session_state` says why a session ends, its ClaimSet what an assignment
  revokes and adds; `session_claims` starts and revokes them, `session_commits` commits by itself; `handler_calls` runs the
  handler's methods and has the deadlines of the shutdown; heartbeats and `topic_watch` (with `topic_names`) detect what
  ends the session.
- Transactions: `consume_transform_produce` is a handler with its own producer. Its `session_transactions` runs the
  transactions of a session, `shared_transactions` is their state, `transaction_output` what the user's function writes with,
  `transaction_errors` what follows a failure.
- Membership: `membership` is the seam for group protocols, and has what both sides of it share; `group_protocol` chooses
  one. `classic_membership` is the classic one, with `classic_heartbeats` (when they are due: `heartbeat_schedule`) and
  `join_requests`; with cooperative assignors `cooperative_stay` joins again while the session goes on, and `withheld` has
  the partitions that wait for the leader's next assignment; `returning_leader` is for a static leader that was restarted. `leaving` leaves the group by either protocol. `consumer_membership` is that of the consumer protocol
  (KIP-848): `consumer_member_state` decides what the next heartbeat says, `consumer_heartbeats` sends it,
  `consumer_heartbeat_errors` has the actions for error codes, `group_configs` reads the group's settings at the broker.
- Blocked event loop and stuck claims: `heartbeat_thread` notices that the event loop is blocked, and logs where (`block_log`:
  once for all groups of the loop). `stand_in` then sends the heartbeats in that thread, and leaves the group after
  `max_poll_interval`; what it needs of the member the heartbeats publish as a `keep_alive`. Without the thread `loop_watch`
  notices a block when it has ended. `stuck_claims` finds claims without progress, on the event loop and in the thread.
  `stalls` reports these, long joins and unknown coordinators to the log, the hook `on_member_stalled` and `errors()`.
- Health: all of these write to the MemberHealth in `member_health` (`join_watch` times its joins), which makes the value in
  `health` of it.
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
    from asyncgroup.group.claim import Claim
    from asyncgroup.group.consume_transform_produce import ConsumeTransformProduce
    from asyncgroup.group.consumer_group import ConsumerGroup
    from asyncgroup.group.exclusive_producer import ExclusiveProducer
    from asyncgroup.group.handler import Handler
    from asyncgroup.group.health import ClaimHealth, ErrorSeen, Health
    from asyncgroup.group.records import Records
    from asyncgroup.group.session import Session
    from asyncgroup.group.subscription_pattern import SubscriptionPattern
    from asyncgroup.group.threads import ThreadClaim
    from asyncgroup.group.transaction_output import TransactionOutput
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
    "MemberSubscription",
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
    "claim": ["Claim"],
    "consume_transform_produce": ["ConsumeTransformProduce"],
    "consumer_group": ["ConsumerGroup"],
    "exclusive_producer": ["ExclusiveProducer"],
    "handler": ["Handler"],
    "health": ["ClaimHealth", "ErrorSeen", "Health"],
    "records": ["Records"],
    "session": ["Session"],
    "subscription_pattern": ["SubscriptionPattern"],
    "threads": ["ThreadClaim"],
    ".threads": ["in_thread"],
    "transaction_output": ["TransactionOutput"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
