"""Consumer groups: members, their sessions and claims, and what users write to handle them.

Where to look, from the user's call inwards:

- What users meet: `group` (ConsumerGroup), `running` (a group as a whole program), `handler`, `session`, `claim`,
  `threads` (handlers that block), `records` (one loop in place of a handler) with `group_marks`, `health`, and
  `assignors/`.
- A member's way: `run_loop` (session after session) asks `member` for a round: `topics` says what the subscription means
  now, `membership` joins and syncs with the requests of `join_plan` and the assignors of `offers`, then a `session_run`
  lives. `known_topics` and `pauses` outlast the sessions.
- A session's life, in `session_run`: `session_start` finds the start offsets and makes the claims; `handler_calls` runs
  the handler's methods in `handler_tasks`; `heartbeats` and `watch` look out for what ends it; `session_causes` turns
  that into the cause; `limits` says by when each part of the end has to be through.
- How it is: everybody writes into `vitals`, `diagnosis` makes words of them; `reasons` are the words for the broker.
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
from asyncgroup.group.records import Records
from asyncgroup.group.running import run
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
