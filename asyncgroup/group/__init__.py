"""Consumer groups: members, their sessions and claims, and what users write to handle them.

Where to look, starting at the user's call:

- User-facing: `consumer_group` (ConsumerGroup, a thin object over the engine in `group`), `program` (`asyncgroup.run`), `handler`, `session`, `claim`, `threads` (blocking
  handlers), `records` (one loop instead of a handler) with `group_marks`, `health`, and `assignors/`.
- Member: `run_loop` runs one session after another through `member`. `topics` resolves the subscription, `membership`
  joins and syncs with the requests of `join_requests` and the assignors of `join_protocols`, then `session_run` runs
  the session. KnownTopics (in `topics`) and `paused_partitions` are kept across sessions.
- Session: `session_start` finds the start offsets and creates the claims; `handler_calls` runs the handler's methods in
  `handler_tasks`; `heartbeats` and `topic_watch` detect what ends the session; `session_causes` sets the cause;
  `limits` computes the deadline of each phase of shutdown.
- Health: all of these write to `member_health`, from which `health` makes a value and text.
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
    from asyncgroup.group.consumer_group import ConsumerGroup
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

_HOMES = {
    "Assignment": "assignors",
    "Assignor": "assignors",
    "Claim": "claim",
    "ClaimHealth": "health",
    "ConsumerGroup": "consumer_group",
    "ErrorSeen": "health",
    "Handler": "handler",
    "Health": "health",
    "MemberSubscription": "assignors",
    "RangeAssignor": "assignors",
    "Records": "records",
    "RoundRobinAssignor": "assignors",
    "Session": "session",
    "StickyAssignor": "assignors",
    "ThreadClaim": "threads",
    "in_thread": "threads",
    "run": "program",
}
"""The module of each public name."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
