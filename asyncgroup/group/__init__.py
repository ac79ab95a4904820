"""Consumer groups: members, their sessions and claims, and what users write to handle them.

Where to look, starting at the user's call:

- User-facing: `group` (ConsumerGroup), `program` (`asyncgroup.run`), `handler`, `session`, `claim`, `threads` (blocking
  handlers), `records` (one loop instead of a handler) with `group_marks`, `health`, and `assignors/`.
- Member: `run_loop` runs one session after another through `member`. `topics` resolves the subscription, `membership`
  joins and syncs with the requests of `join_requests` and the assignors of `join_protocols`, then `session_run` runs
  the session. `known_topics` and `paused_partitions` are kept across sessions.
- Session: `session_start` finds the start offsets and creates the claims; `handler_calls` runs the handler's methods in
  `handler_tasks`; `heartbeats` and `topic_watch` detect what ends the session; `session_causes` sets the cause;
  `limits` computes the deadline of each phase of shutdown.
- Health: all of these write to `member_health`, `diagnosis` turns it into text. `reasons` holds the join and leave
  reasons that are sent to the broker.
"""

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
from asyncgroup.group.program import run
from asyncgroup.group.records import Records
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
    "Records",
    "RoundRobinAssignor",
    "Session",
    "StickyAssignor",
    "ThreadClaim",
    "in_thread",
    "run",
]
