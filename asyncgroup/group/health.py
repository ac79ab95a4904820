"""Health of a group member, as a value for operators and probes, and how it is derived from the member's state.

`diagnose` writes the texts for its problems and for what it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.partition_consumer import partition_of
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.group.claim import Claim
from asyncgroup.group.join_requests import JOIN_GRACE
from asyncgroup.group.member_health import MemberHealth, MemberState, ProblemSource
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import MemberIdentity

__all__ = [
    "NO_RUNNING_CALLS",
    "ClaimHealth",
    "ErrorSeen",
    "Health",
    "HealthSnapshot",
    "RunningCalls",
    "diagnose",
]


@dataclass(frozen=True, slots=True)
class ClaimHealth:
    """The progress of one claim. `high_water_mark` and `lag` are None before the first fetch."""

    topic: str
    partition: int
    position: int
    """The offset of the next record to return to the handler."""
    next_mark: int
    """The first offset that is not marked as done."""
    high_water_mark: int | None
    lag: int | None
    """Offsets between `position` and `high_water_mark`."""
    stalled: bool
    paused: bool

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    """One kind of error, counted since the group object was created."""

    text: str
    """The text of the newest one."""
    count: int
    age: float
    """Seconds since the newest one."""

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.text} ({times}, last {self.age:.1f} s ago)"


@dataclass(frozen=True, slots=True)
class Health:
    """A snapshot of a group member, returned by `ConsumerGroup.health()`.

    - `state`: one of `closed`, `not consuming`, `looking up topics`, `looking for the coordinator`, `joining`,
      `syncing`, `starting`, `stable`, `draining`, `committing`, `waiting to join again`, `leaving`; `state_age` is its
      age in seconds.
    - `member_id`, `generation_id`: of the last join, also while the member rejoins.
    - `last_heartbeat`, `last_fetch`: seconds since the last response to one; None if there was none.
    - `waits_for`: what the member waits for and for how long, in words; None if it waits for nothing.
    - `problems`: what is wrong now, in words, including that nothing consumes. A handler's exception is a problem, with
      its type, topic, partition and offset, until a later session is stable.
    - `errors`: the last kinds of errors, newest first, at most five.
    - `is_healthy`: whether there are no `problems`: the member consumes or is about to. Stalled or paused claims and a
      slow rebalance are no problems.
    """

    group_id: str
    state: str
    state_age: float
    member_id: str
    generation_id: int
    last_heartbeat: float | None
    last_fetch: float | None
    claims: tuple[ClaimHealth, ...]
    waits_for: str | None
    problems: tuple[str, ...]
    errors: tuple[ErrorSeen, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def lag(self) -> int:
        """The sum of the known lags of all claims."""
        return sum(claim.lag or 0 for claim in self.claims)

    @property
    def stalled(self) -> tuple[TopicPartition, ...]:
        """Claims whose handler read no record for `max_processing_time` while some were buffered."""
        return tuple(claim.tp for claim in self.claims if claim.stalled)

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """Claims that the user paused."""
        return tuple(claim.tp for claim in self.claims if claim.paused)

    def as_dict(self) -> dict[str, Any]:
        """Return the health as dicts, lists, strings and numbers, ready for JSON."""
        return {
            "group_id": self.group_id,
            "is_healthy": self.is_healthy,
            "state": self.state,
            "state_age": round(self.state_age, 3),
            "member_id": self.member_id,
            "generation_id": self.generation_id,
            "last_heartbeat": _rounded(self.last_heartbeat),
            "last_fetch": _rounded(self.last_fetch),
            "lag": self.lag,
            "stalled": [str(tp) for tp in self.stalled],
            "paused": [str(tp) for tp in self.paused],
            "waits_for": self.waits_for,
            "problems": list(self.problems),
            "errors": [{"text": e.text, "count": e.count, "age": round(e.age, 3)} for e in self.errors],
            "claims": [
                {name: getattr(claim, name) for name in ClaimHealth.__dataclass_fields__}
                for claim in self.claims
            ],
        }

    def __str__(self) -> str:
        parts = [f"{printable(self.group_id)}: {self.state} for {self.state_age:.1f} s"]
        if self.member_id:
            parts.append(
                f"member {printable(self.member_id, MAX_TEXT_LENGTH)}, generation {self.generation_id}"
            )
        for what, age in (("heartbeat", self.last_heartbeat), ("fetch", self.last_fetch)):
            if age is not None:
                parts.append(f"last {what} {age:.1f} s ago")
        count = len(self.claims)
        parts.append(f"{count} claim{'s' * (count != 1)}, lag {self.lag}")
        parts += [
            f"{word} {', '.join(map(str, tps))}"
            for word, tps in (("stalled", self.stalled), ("paused", self.paused))
            if tps
        ]
        if self.waits_for is not None:
            parts.append(f"waits for {self.waits_for}")
        parts += [f"wrong: {problem}" for problem in self.problems]
        if self.errors:
            parts.append(f"last error: {self.errors[0]}")
        # a broker's error message may have several lines; this is one line for logs
        return " ".join("; ".join(parts).split())

    def __repr__(self) -> str:
        return f"<Health {'well' if self.is_healthy else 'NOT WELL'}: {self}>"


def _rounded(age: float | None) -> float | None:
    return None if age is None else round(age, 3)


ERRORS_SHOWN: Final = 5
"""Maximum number of different errors in `Health.errors`."""
MISSED_HEARTBEATS: Final = 2
"""Heartbeat intervals without a response that are not yet a problem."""
FETCH_GRACE: Final = 2.0
"""Seconds beyond `fetch_max_wait` after which a fetch without a response is a problem."""


class RunningCalls(NamedTuple):
    """Handler methods that the session waits for while it begins or ends."""

    labels: Sequence[str]
    since: float
    """Loop time at which the session began to wait."""
    deadline: float
    """Loop time at which the methods are cancelled; infinity if there is no limit."""


NO_RUNNING_CALLS: Final = RunningCalls((), 0.0, 0.0)
"""The session waits for no handler method."""


class HealthSnapshot(NamedTuple):
    """The input of a diagnosis."""

    group_id: str
    config: ConsumerConfig
    identity: MemberIdentity
    member_health: MemberHealth
    claims: Sequence[Claim] = ()
    running_calls: RunningCalls = NO_RUNNING_CALLS
    unanswered_fetches: Mapping[int, float] = MappingProxyType({})
    """Nodes with a fetch in flight, and the loop time at which it was sent."""
    idle_reason: str = "a partition: other members own all of them"
    """What a member without claims waits for, in words."""
    missing_topics: Mapping[str, float] = MappingProxyType({})
    """Topics that no longer exist, with the loop time at which each was found missing."""


def diagnose(snapshot: HealthSnapshot, now: float) -> Health:
    """Return the health of a member at loop time `now`."""
    member_health, identity = snapshot.member_health, snapshot.identity
    problems = tuple(_problems(snapshot, now))
    errors = tuple(
        ErrorSeen(error.text, error.occurrences, _age(now, error.last_at))
        for error in member_health.errors[:ERRORS_SHOWN]
    )
    return Health(
        group_id=snapshot.group_id,
        state=member_health.state.value,
        state_age=_age(now, member_health.state_since),
        member_id=identity.member_id,
        generation_id=identity.generation_id,
        last_heartbeat=None
        if member_health.last_heartbeat is None
        else _age(now, member_health.last_heartbeat),
        last_fetch=None if member_health.last_fetch is None else _age(now, member_health.last_fetch),
        claims=tuple(map(_claim_health, snapshot.claims)),
        waits_for=_waits_for(snapshot, now, problems),
        problems=problems,
        errors=errors,
    )


def _age(now: float, when: float) -> float:
    return max(0.0, now - when)


def _claim_health(claim: Claim) -> ClaimHealth:
    known = claim.high_water_mark >= 0
    return ClaimHealth(
        topic=claim.topic,
        partition=claim.partition,
        position=claim.position,
        next_mark=claim.next_mark,
        high_water_mark=claim.high_water_mark if known else None,
        lag=claim.lag if known else None,
        stalled=claim.stalled,
        paused=claim.paused,
    )


# --- problems ---------------------------------------------------------------------------------------------------------


def _problems(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    member_health, config = snapshot.member_health, snapshot.config
    for source in (ProblemSource.HANDLER, ProblemSource.LOST, ProblemSource.JOIN, ProblemSource.COMMIT):
        if (problem := member_health.problems.get(source)) is not None:
            yield f"{source.value}: {problem.text}"
    yield from _missed_heartbeats(member_health, config, now)
    yield from _failing_fetches(snapshot, now)
    for topic, since in sorted(snapshot.missing_topics.items()):
        yield (
            f"topic {topic!r} no longer exists, missing for {_age(now, since):.1f} s; "
            f"after {config.session_timeout:g} s an error is raised"
        )
    yield from _overdue(snapshot, now)
    if member_health.state in _IDLE:
        yield _IDLE[member_health.state]


_IDLE: Final = {
    MemberState.CLOSED: "the group is closed",
    MemberState.NOT_CONSUMING: "nothing consumes: neither run() nor consume() is running",
    MemberState.LEAVING: "nothing consumes: the member is leaving the group",
}
"""States in which the member neither consumes nor is about to consume, with the problem that is reported."""

_IN_SESSION: Final = (MemberState.STARTING, MemberState.STABLE, MemberState.DRAINING, MemberState.COMMITTING)


def _missed_heartbeats(member_health: MemberHealth, config: ConsumerConfig, now: float) -> Iterable[str]:
    problem = member_health.problems.get(ProblemSource.HEARTBEAT)
    if member_health.state not in _IN_SESSION or member_health.last_heartbeat is None:
        return
    age = _age(now, member_health.last_heartbeat)
    if problem is not None and problem.last_at >= member_health.last_heartbeat:
        yield f"heartbeats fail, the last successful one was {age:.1f} s ago: {problem.text}"
    elif age > MISSED_HEARTBEATS * config.heartbeat_interval:
        yield f"no response to heartbeats for {age:.1f} s"


def _failing_fetches(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    member_health = snapshot.member_health
    if member_health.state is not MemberState.STABLE:
        return
    failing = [
        str(claim.tp) for claim in snapshot.claims if partition_of(claim._state.consumer).fetch_failures.count
    ]
    problem = member_health.problems.get(ProblemSource.FETCH)
    if failing and problem is not None:
        yield f"{_names(failing)} cannot be fetched: {problem.text}"
    for node_id, sent_at in snapshot.unanswered_fetches.items():
        age = _age(now, sent_at)
        if age > snapshot.config.fetch_max_wait + FETCH_GRACE:
            yield f"no response to a fetch from node {node_id} for {age:.1f} s"


def _overdue(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    """Yield a problem if the member is in its state for longer than the state's time limit."""
    member_health, config, running_calls = snapshot.member_health, snapshot.config, snapshot.running_calls
    age = _age(now, member_health.state_since)
    if member_health.state in (MemberState.JOINING, MemberState.SYNCING):
        if age > config.rebalance_timeout + JOIN_GRACE:
            yield f"{member_health.state.value} for {age:.1f} s"
    elif member_health.state in (
        MemberState.LOOKING_UP_COORDINATOR,
        MemberState.LOOKING_UP_TOPICS,
        MemberState.COMMITTING,
    ):
        if age > config.session_timeout:
            yield f"{member_health.state.value} for {age:.1f} s"
    elif (
        member_health.state is MemberState.DRAINING and running_calls.labels and now > running_calls.deadline
    ):
        yield f"{_names(running_calls.labels)} still running {now - running_calls.deadline:.1f} s after cancellation"


# --- waiting for ------------------------------------------------------------------------------------------------------


def _waits_for(snapshot: HealthSnapshot, now: float, problems: Sequence[str]) -> str | None:
    member_health, config, running_calls = snapshot.member_health, snapshot.config, snapshot.running_calls
    age = f"{_age(now, member_health.state_since):.1f} s"
    if member_health.state is MemberState.JOINING:
        text = f"the group to complete the join: {age}"
    elif member_health.state is MemberState.SYNCING:
        text = f"the group leader to send the assignment: {age}"
    elif member_health.state is MemberState.LOOKING_UP_COORDINATOR:
        text = f"the coordinator of group {snapshot.group_id!r}: {age}"
    elif member_health.state is MemberState.LOOKING_UP_TOPICS:
        text = f"the metadata of its topics: {age}"
    elif member_health.state is MemberState.WAITING_TO_REJOIN:
        text = f"the backoff before it joins again: {age}"
    elif member_health.state is MemberState.COMMITTING:
        text = f"the response to its last commit: {age}"
    elif member_health.state is MemberState.LEAVING:
        text = f"the response to its LeaveGroup: {age}"
    elif member_health.state is MemberState.STARTING and not running_calls.labels:
        text = f"its start offsets: {age}"
    elif running_calls.labels:
        limit = (
            f" of {running_calls.deadline - running_calls.since:.1f} s"
            if running_calls.deadline < float("inf")
            else ""
        )
        text = f"{_names(running_calls.labels)} to end: {_age(now, running_calls.since):.1f} s{limit}"
    elif member_health.state is MemberState.STABLE and snapshot.missing_topics and not snapshot.claims:
        text = f"topic {min(snapshot.missing_topics)!r} to exist again"
    elif member_health.state is MemberState.STABLE and problems:
        text = "brokers to respond without errors; it retries, and the session ends after "
        text += f"{config.session_timeout:g} s without a heartbeat response"
    elif member_health.state is MemberState.STABLE and not snapshot.claims:
        text = snapshot.idle_reason
    else:
        return None
    return text


def _names(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:3])
    return shown if len(labels) <= 3 else f"{shown} and {len(labels) - 3} others"
