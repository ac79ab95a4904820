"""State and current problems of a member, written where they occur and read by `health()`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from asyncgroup.errors import BrokerError
from asyncgroup.lifecycle import describe_error

__all__ = ["ErrorCount", "HealthProblem", "MemberHealth", "MemberState", "ProblemSource"]

MAX_ERROR_KINDS: Final = 32
"""Kinds of errors that are counted; beyond that the least recent one is dropped."""


class MemberState(Enum):
    """The state of a member; the values are the texts in `Health.state`."""

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
    """What a problem affects; the values are texts for `Health.problems`."""

    LOST = "the membership was lost"
    JOIN = "joining fails"
    HEARTBEAT = "heartbeats fail"
    FETCH = "fetching fails"
    COMMIT = "commits fail"
    HANDLER = "the handler failed"


class HealthProblem(NamedTuple):
    """A problem that is not resolved yet."""

    text: str
    """The text of the newest error."""
    since: float
    """Loop time of the first error."""
    last_at: float
    """Loop time of the newest error."""


class ErrorCount(NamedTuple):
    """One kind of error and its count."""

    text: str
    """The text of the newest one."""
    occurrences: int
    last_at: float
    """Loop time of the newest one."""


class MemberHealth:
    """The state of a member, its problems and errors. All times are the loop's.

    `on_error` is called with errors that are retried; it returns whether a reader of `errors()` receives them.
    """

    def __init__(self, on_error: Callable[[Exception], bool] = lambda _error: False) -> None:
        self._on_error = on_error
        self.state = MemberState.NOT_CONSUMING
        self.state_since = 0.0
        """0 until the group is bound to its event loop."""
        self.last_heartbeat: float | None = None
        """Time of the last response to a heartbeat; None if there was none."""
        self.last_fetch: float | None = None
        """Time of the last response to a fetch; None if there was none."""
        self.problems: dict[ProblemSource, HealthProblem] = {}
        self._errors: dict[
            tuple[str, str], ErrorCount
        ] = {}  # by (type, error code or text), least recent first

    def transition_to(self, state: MemberState) -> None:
        """Change the state, with the current time."""
        if state is not self.state:
            self.state, self.state_since = state, asyncio.get_running_loop().time()

    def update_last_responses(self, heartbeat: float, fetch: float) -> None:
        """Update the times of the last responses to a heartbeat and a fetch; minus infinity means none."""
        if heartbeat > float("-inf"):
            self.last_heartbeat = max(self.last_heartbeat or heartbeat, heartbeat)
        if fetch > float("-inf"):
            self.last_fetch = max(self.last_fetch or fetch, fetch)

    def report(self, source: ProblemSource, error: BaseException, text: str | None = None) -> None:
        """Report an error as a problem, which lasts until `clear`. `text` replaces the text of the error."""
        now = asyncio.get_running_loop().time()
        before = self.problems.get(source)
        self.problems[source] = HealthProblem(text or _text(error), before.since if before else now, now)

    def clear(self, *sources: ProblemSource) -> None:
        """Remove the problems of these sources: they work again."""
        for source in sources:
            self.problems.pop(source, None)

    def report_error(self, error: Exception) -> bool:
        """Count a retried error and pass it to the readers of `errors()`; return whether there are any."""
        self.count_error(error)
        return self._on_error(error)

    def count_error(self, error: BaseException, text: str | None = None) -> None:
        """Count an error, retried or not. `text` replaces the text of the error."""
        code = error.name if isinstance(error, BrokerError) else _text(error)
        kind = (type(error).__name__, code)
        before = self._errors.pop(kind, None)
        if before is None and len(self._errors) == MAX_ERROR_KINDS:
            del self._errors[next(iter(self._errors))]
        now = asyncio.get_running_loop().time()
        self._errors[kind] = ErrorCount(text or _text(error), before.occurrences + 1 if before else 1, now)

    @property
    def errors(self) -> list[ErrorCount]:
        """The counted kinds of errors, most recent first."""
        return list(reversed(self._errors.values()))


def _text(error: BaseException) -> str:
    kind = type(error).__name__
    return describe_error(error).removeprefix(f"{kind}: ")
