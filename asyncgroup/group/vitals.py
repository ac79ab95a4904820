"""What a member is about, and what goes wrong meanwhile: written where it happens, read by `health()`."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, NamedTuple

from asyncgroup.errors import BrokerError
from asyncgroup.lifecycle import describe

__all__ = ["ErrorCount", "GroupState", "Source", "Trouble", "Vitals"]

KINDS_MAX: Final = 32
"""Kinds of errors that are counted; the one that is longest ago makes room for a new one."""


class GroupState(Enum):
    """What a member is about."""

    CLOSED = "closed"
    NOT_CONSUMING = "not consuming"
    LOOKING_UP_TOPICS = "looking up topics"
    LOOKING = "looking for the coordinator"
    JOINING = "joining"
    SYNCING = "syncing"
    STARTING = "starting"
    STABLE = "stable"
    DRAINING = "draining"
    COMMITTING = "committing"
    WAITING = "waiting to join again"
    LEAVING = "leaving"


class Source(Enum):
    """Where something can go wrong, by what the member waits for then."""

    LOST = "the membership was lost"
    JOIN = "joining fails"
    HEARTBEAT = "heartbeats fail"
    FETCH = "fetching fails"
    COMMIT = "commits fail"
    HANDLER = "the handler failed"


class Trouble(NamedTuple):
    """Something that goes wrong now: the newest error, and loop times."""

    text: str
    since: float
    last: float


class ErrorCount(NamedTuple):
    """One kind of error: its newest text, how often it came, and when it came last."""

    text: str
    times: int
    last: float


class Vitals:
    """The state of a member and its errors. Times are the loop's; `since` is 0 until the group has met its loop."""

    def __init__(self) -> None:
        self.state = GroupState.NOT_CONSUMING
        self.since = 0.0
        self.last_heartbeat: float | None = None
        self.last_fetch: float | None = None
        self.troubles: dict[Source, Trouble] = {}
        self._errors: dict[tuple[str, str], ErrorCount] = {}

    def enter(self, state: GroupState) -> None:
        """The member does something else from now on."""
        if state is not self.state:
            self.state, self.since = state, asyncio.get_running_loop().time()

    def alive(self, heartbeat: float, fetch: float) -> None:
        """Take in loop times of the last heartbeat and fetch that were answered; minus infinity: none."""
        if heartbeat > float("-inf"):
            self.last_heartbeat = max(self.last_heartbeat or heartbeat, heartbeat)
        if fetch > float("-inf"):
            self.last_fetch = max(self.last_fetch or fetch, fetch)

    def trouble(self, source: Source, error: BaseException, text: str | None = None) -> None:
        """Something went wrong and is tried again; it stays a trouble until `fine`. `text` replaces the error's own."""
        now = asyncio.get_running_loop().time()
        before = self.troubles.get(source)
        self.troubles[source] = Trouble(text or _text(error), before.since if before else now, now)

    def fine(self, *sources: Source) -> None:
        """What went wrong there works again."""
        for source in sources:
            self.troubles.pop(source, None)

    def count(self, error: BaseException, text: str | None = None) -> None:
        """Count an error, whatever becomes of it. `text` replaces the error's own."""
        code = error.name if isinstance(error, BrokerError) else _text(error)
        kind = (type(error).__name__, code)
        before = self._errors.pop(kind, None)
        if before is None and len(self._errors) == KINDS_MAX:
            del self._errors[next(iter(self._errors))]
        now = asyncio.get_running_loop().time()
        self._errors[kind] = ErrorCount(text or _text(error), before.times + 1 if before else 1, now)

    @property
    def errors(self) -> list[ErrorCount]:
        """Every kind of error, the newest first."""
        return list(reversed(self._errors.values()))


def _text(error: BaseException) -> str:
    kind = type(error).__name__
    return describe(error).removeprefix(f"{kind}: ")
