"""MemberHealth: the state and current problems of a member, written where they occur."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from asyncgroup.errors import BrokerError, ClaimStuck
from asyncgroup.group.health.problems import ProblemKind, WaitKind
from asyncgroup.lifecycle import describe_error

__all__ = [
    "ENDING",
    "JOINING_AGAIN",
    "MAX_ERROR_KINDS",
    "NOT_YET",
    "WAITS_FOR",
    "Liveness",
    "MemberHealth",
    "MemberState",
    "Occurrences",
    "RunningCalls",
    "error_kind",
    "error_text",
]

MAX_ERROR_KINDS: Final = 32
"""Kinds of errors that are counted; beyond that the least recent one is dropped."""

NOT_YET: Final = float("-inf")
"""The loop time of what has not happened."""


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


ENDING: Final = (MemberState.DRAINING, MemberState.COMMITTING)
"""States in which a session ends."""
JOINING_AGAIN: Final = (MemberState.LOOKING_UP_COORDINATOR, MemberState.JOINING, MemberState.SYNCING)
"""The steps of a join after the lookup of the topics; further attempts go through them again."""
_JOINING: Final = (MemberState.LOOKING_UP_TOPICS, *JOINING_AGAIN)
"""All steps of a join."""
_JOINED: Final = {MemberState.STABLE: True, MemberState.LEAVING: False, MemberState.CLOSED: False}
"""States in which the member begins or ends to take part in its group."""
_BETWEEN_ATTEMPTS: Final = (MemberState.NOT_CONSUMING, MemberState.WAITING_TO_REJOIN)
"""States in which a join neither goes on nor ends: a backoff comes next, or nothing consumes."""


WAITS_FOR: Final = {
    MemberState.LOOKING_UP_TOPICS: WaitKind.TOPICS,
    MemberState.LOOKING_UP_COORDINATOR: WaitKind.COORDINATOR,
    MemberState.JOINING: WaitKind.JOIN,
    MemberState.SYNCING: WaitKind.SYNC,
    MemberState.COMMITTING: WaitKind.COMMIT,
    MemberState.WAITING_TO_REJOIN: WaitKind.BACKOFF,
    MemberState.LEAVING: WaitKind.LEAVE,
}
"""States of a member without a session, and what it waits for in them."""


class Occurrences(NamedTuple):
    """One kind of error, or the errors of one source."""

    text: str
    """The text of the newest one."""
    times: int
    last_at: float
    """Loop time of the newest one."""


class Liveness:
    """What probes ask of a member: whether only a restart helps, and whether it takes part in its group.

    A restart of all members makes an outage longer. So brokers that do not answer, rebalances and lag are never a reason.
    """

    def __init__(self) -> None:
        self.stuck: ClaimStuck | None = None
        """The claim that was stuck for `max_poll_interval`, until its handler has ended."""
        self.failure: str | None = None
        """The error that `run()` or `consume()` has raised, until the next call."""
        self.has_joined = False
        """Whether the member has consumed since it last entered its group; a rebalance does not change that."""

    def __repr__(self) -> str:
        return f"<Liveness: {'joined' if self.has_joined else 'not joined'}, fatal: {self.fatal}>"

    def note_failure(self, error: BaseException) -> None:
        """`run()` or `consume()` raises this error: nothing consumes until they are called again.

        Also GROUP_MAX_SIZE_REACHED, as for Java's `poll`: a restart joins once there is a place.
        """
        self.failure = f"run() has ended: {describe_error(error)}"

    @property
    def fatal(self) -> str | None:
        """Why only a restart helps, in words; None while the member goes on by itself."""
        return str(self.stuck) if self.stuck is not None else self.failure


class JoinTimer:
    """For how long the member has been joining its group, from the first step on, however many attempts that takes."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._limit = float("inf")
        self._on_long: Callable[[float], bool] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<JoinTimer: {'no join' if self._since is None else f'joins since {self._since:.3f}'}>"

    @property
    def is_joining(self) -> bool:
        """Whether a join has begun, and has not ended."""
        return self._since is not None

    def report(self, limit: float, on_long: Callable[[float], bool]) -> None:
        """Call `on_long(seconds)` for each join that takes longer than `limit` seconds, again until it returns True."""
        self._limit, self._on_long = limit, on_long

    def begin(self) -> None:
        """A join begins, and not as a further attempt of the one before."""
        self.end()
        self._since = asyncio.get_running_loop().time()
        self._set_timer()

    def end(self) -> None:
        """The member has joined, or does not try again."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def age(self, now: float) -> float:
        """Return the seconds from the start of the join to loop time `now`; 0 without one."""
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def _set_timer(self) -> None:
        if self._on_long is not None:
            self._timer = asyncio.get_running_loop().call_later(self._limit, self._on_timer, self._on_long)

    def _on_timer(self, on_long: Callable[[float], bool]) -> None:
        if not on_long(self.age(asyncio.get_running_loop().time())):
            self._set_timer()


class MemberHealth:
    """The state of a member, its problems and errors. All times are the loop's.

    `on_error` is called with errors that are retried; it returns whether a reader of `errors()` receives them.
    """

    def __init__(self, on_error: Callable[[Exception], bool]) -> None:
        self._on_error = on_error
        self.state = MemberState.NOT_CONSUMING
        self.state_since = 0.0
        """0 until the group is bound to its event loop."""
        self.last_heartbeat = NOT_YET
        """Time of the last response to a heartbeat."""
        self.last_fetch = NOT_YET
        """Time of the last response to a fetch."""
        self.problems: dict[ProblemKind, Occurrences] = {}
        self.errors: dict[tuple[str, str], Occurrences] = {}
        """By type and error code or text, the least recent first."""
        self.liveness = Liveness()
        self.join = JoinTimer()
        self.join_refusal: Occurrences | None = None
        """Errors of the attempts of the last join that do not count as failures."""
        self._watched: Mapping[MemberState, tuple[float, Callable[[float], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, states: Mapping[MemberState, tuple[float, Callable[[float], None]]]) -> None:
        """Call a function with the seconds that a state has lasted, once for each of these states that lasts that long."""
        self._watched = states

    def transition_to(self, state: MemberState) -> None:
        """Change the state, with the current time.

        While a session ends, a join that it had begun is not shown: the next one begins with the lookup of the topics.
        """
        # the age of a state is that of its first report
        if state is self.state or (self.state in ENDING and state in JOINING_AGAIN):
            return
        loop = asyncio.get_running_loop()
        before, self.state, self.state_since = self.state, state, loop.time()
        if state in _JOINED:
            self.liveness.has_joined = _JOINED[state]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state in self._watched:
            seconds, function = self._watched[state]
            self._timer = loop.call_later(seconds, function, seconds)
        if state in _JOINING:
            # after NOT_CONSUMING it is the join of another call
            if not self.join.is_joining or before is MemberState.NOT_CONSUMING:
                self.join_refusal = None
                self.join.begin()
        elif state not in _BETWEEN_ATTEMPTS:
            self.join.end()

    def join_age(self, now: float) -> float:
        """Return for how many seconds the member has been joining at loop time `now`; 0 if it is not."""
        return 0.0 if self.state is MemberState.NOT_CONSUMING else self.join.age(now)

    @property
    def refused_with(self) -> str | None:
        """The error of the last attempt to join, if it was refused and the next one has not begun."""
        # either kind of error may be the last one
        errors = [e for e in (self.join_refusal, self.problems.get(ProblemKind.JOIN)) if e is not None]
        last = max(errors, key=lambda e: e.last_at, default=None)
        return last.text if last is not None and last.last_at >= self.state_since else None

    def update_last_responses(self, heartbeat: float, fetch: float) -> None:
        """Update the times of the last responses to a heartbeat and a fetch; minus infinity means none."""
        # those of the heartbeat thread may be newer than those of the event loop
        self.last_heartbeat = max(self.last_heartbeat, heartbeat)
        self.last_fetch = max(self.last_fetch, fetch)

    def report(self, source: ProblemKind, error: BaseException, text: str | None = None) -> None:
        """Report an error as a problem, which lasts until `clear`. `text` replaces the text of the error."""
        self.problems[source] = _once_more(self.problems.get(source), text or error_text(error))

    def report_attempt(self, error: Exception, *, is_failure: bool) -> None:
        """Count the error of an attempt to join, which is a problem at once if `is_failure`, else only during a long join."""
        self.count_error(error)
        if is_failure:
            self.report(ProblemKind.JOIN, error)
        else:
            self.join_refusal = _once_more(self.join_refusal, error_text(error))

    def clear(self, *sources: ProblemKind) -> None:
        """Remove the problems of these sources: they work again."""
        for source in sources:
            self.problems.pop(source, None)

    def report_error(self, error: Exception) -> bool:
        """Count a retried error and pass it to the readers of `errors()`; return whether there are any."""
        self.count_error(error)
        return self._on_error(error)

    def count_error(self, error: BaseException, text: str | None = None) -> None:
        """Count an error, retried or not. `text` replaces the text of the error."""
        kind = error_kind(error)
        before = self.errors.pop(kind, None)
        # the kind that was not seen for longest makes room
        if before is None and len(self.errors) == MAX_ERROR_KINDS:
            del self.errors[next(iter(self.errors))]
        # popped above, so it is the newest now
        self.errors[kind] = _once_more(before, text or error_text(error))


def error_kind(error: BaseException) -> tuple[str, str]:
    """Return what errors of one kind have in common: the type, and the error code or else the text."""
    # count broker errors by code: their texts name partitions, and each text would be a kind
    return type(error).__name__, error.name if isinstance(error, BrokerError) else error_text(error)


def _once_more(before: Occurrences | None, text: str) -> Occurrences:
    times = 1 if before is None else before.times + 1
    return Occurrences(text, times, asyncio.get_running_loop().time())


def error_text(error: BaseException) -> str:
    """Return the text of an error, without its type."""
    return describe_error(error).removeprefix(f"{type(error).__name__}: ")


class RunningCalls(NamedTuple):
    """Handler methods with a common deadline that the session waits for while it begins or ends."""

    labels: Sequence[str]
    since: float
    """Loop time at which the session began to wait."""
    deadline: float
    """Loop time at which the methods are cancelled; infinity if there is no limit."""
