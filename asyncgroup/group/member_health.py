"""What a member is about, and what goes wrong meanwhile: written where it happens, read by `health()`."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, NamedTuple

from asyncgroup.errors import BrokerError
from asyncgroup.lifecycle import describe_error

__all__ = ["ErrorCount", "HealthProblem", "MemberHealth", "MemberState", "ProblemSource"]

MAX_ERROR_KINDS: Final = 32
"""Kinds of errors that are counted; the one that is longest ago makes room for a new one."""


class MemberState(Enum):
    """What a member is about."""

    CLOSED = "closed"
    NOT_CONSUMING = "not consuming"
    LOOKING_UP_TOPICS = "looking up topics"
    LOOKING_UP_COORDINATOR = "looking for the coordinator"
    JOINING = "joining"
    SYNCING = "syncing"
    STARTING = "starting"
    STABLE = "stable"
    DRAINING = "draining"
    COMMITTING = "committing"
    WAITING_TO_REJOIN = "waiting to join again"
    LEAVING = "leaving"


class ProblemSource(Enum):
    """Where something can go wrong, by what the member waits for then."""

    LOST = "the membership was lost"
    JOIN = "joining fails"
    HEARTBEAT = "heartbeats fail"
    FETCH = "fetching fails"
    COMMIT = "commits fail"
    HANDLER = "the handler failed"


class HealthProblem(NamedTuple):
    """Something that goes wrong now: the newest error, and loop times."""

    text: str
    since: float
    last_at: float


class ErrorCount(NamedTuple):
    """One kind of error: its newest text, how often it came, and when it came last."""

    text: str
    occurrences: int
    last_at: float


class MemberHealth:
    """The state of a member and its errors. Times are the loop's; `state_since` is 0 until the group has met its loop."""

    def __init__(self) -> None:
        self.state = MemberState.NOT_CONSUMING
        self.state_since = 0.0
        self.last_heartbeat: float | None = None
        self.last_fetch: float | None = None
        self.problems: dict[ProblemSource, HealthProblem] = {}
        self._errors: dict[tuple[str, str], ErrorCount] = {}

    def transition_to(self, state: MemberState) -> None:
        """The member does something else from now on."""
        if state is not self.state:
            self.state, self.state_since = state, asyncio.get_running_loop().time()

    def update_last_responses(self, heartbeat: float, fetch: float) -> None:
        """Take in loop times of the last heartbeat and fetch that were answered; minus infinity: none."""
        if heartbeat > float("-inf"):
            self.last_heartbeat = max(self.last_heartbeat or heartbeat, heartbeat)
        if fetch > float("-inf"):
            self.last_fetch = max(self.last_fetch or fetch, fetch)

    def report(self, source: ProblemSource, error: BaseException, text: str | None = None) -> None:
        """Something went wrong and is tried again; it stays a problem until `clear`. `text` replaces the error's own."""
        now = asyncio.get_running_loop().time()
        before = self.problems.get(source)
        self.problems[source] = HealthProblem(text or _text(error), before.since if before else now, now)

    def clear(self, *sources: ProblemSource) -> None:
        """What went wrong there works again."""
        for source in sources:
            self.problems.pop(source, None)

    def count_error(self, error: BaseException, text: str | None = None) -> None:
        """Count an error, whatever becomes of it. `text` replaces the error's own."""
        code = error.name if isinstance(error, BrokerError) else _text(error)
        kind = (type(error).__name__, code)
        before = self._errors.pop(kind, None)
        if before is None and len(self._errors) == MAX_ERROR_KINDS:
            del self._errors[next(iter(self._errors))]
        now = asyncio.get_running_loop().time()
        self._errors[kind] = ErrorCount(text or _text(error), before.occurrences + 1 if before else 1, now)

    @property
    def errors(self) -> list[ErrorCount]:
        """Every kind of error, the newest first."""
        return list(reversed(self._errors.values()))


def _text(error: BaseException) -> str:
    kind = type(error).__name__
    return describe_error(error).removeprefix(f"{kind}: ")
