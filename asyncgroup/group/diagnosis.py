"""From a member's state to its health: what it waits for and what is wrong, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from asyncgroup.config import ConsumerConfig
from asyncgroup.group.claim import Claim
from asyncgroup.group.health import ClaimHealth, ErrorSeen, Health
from asyncgroup.group.join_requests import JOIN_GRACE
from asyncgroup.group.member_health import MemberHealth, MemberState, ProblemSource
from asyncgroup.offsets import MemberIdentity

__all__ = ["NO_RUNNING_CALLS", "HealthSnapshot", "RunningCalls", "diagnose"]

ERRORS_SHOWN: Final = 5
MISSED_HEARTBEATS: Final = 2
FETCH_GRACE: Final = 2.0
"""Seconds beyond `fetch_max_wait` that the answer to a fetch may take before the silence is worth a word."""


class RunningCalls(NamedTuple):
    """What runs of the handler while a session begins or ends: labels, since when, and until when (loop times)."""

    labels: Sequence[str]
    since: float
    deadline: float


NO_RUNNING_CALLS: Final = RunningCalls((), 0.0, 0.0)
"""Nothing of the handler is waited for."""


class HealthSnapshot(NamedTuple):
    """All that a diagnosis looks at."""

    group_id: str
    config: ConsumerConfig
    identity: MemberIdentity
    member_health: MemberHealth
    claims: Sequence[Claim] = ()
    running_calls: RunningCalls = NO_RUNNING_CALLS
    unanswered_fetches: Mapping[int, float] = MappingProxyType({})
    """The nodes that owe the answer to a fetch, and since when."""
    idle_reason: str = "a partition: others own all of them"
    """What a member without claims waits for."""
    missing_topics: Mapping[str, float] = MappingProxyType({})
    """Topics that are gone, and since when."""


def diagnose(snapshot: HealthSnapshot, now: float) -> Health:
    """The health of a member at loop time `now`."""
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


# --- what is wrong ----------------------------------------------------------------------------------------------------


def _problems(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    member_health, config = snapshot.member_health, snapshot.config
    for source in (ProblemSource.HANDLER, ProblemSource.LOST, ProblemSource.JOIN, ProblemSource.COMMIT):
        if (problem := member_health.problems.get(source)) is not None:
            yield f"{source.value}: {problem.text}"
    yield from _silent_heartbeats(member_health, config, now)
    yield from _failing_fetches(snapshot, now)
    for topic, since in sorted(snapshot.missing_topics.items()):
        yield (
            f"topic {topic!r} does not exist any more: for {_age(now, since):.1f} s, "
            f"given up after {config.session_timeout:g} s"
        )
    yield from _overdue(snapshot, now)
    if member_health.state in _IDLE:
        yield _IDLE[member_health.state]


_IDLE: Final = {
    MemberState.CLOSED: "the group is closed",
    MemberState.NOT_CONSUMING: "nothing consumes: neither run() nor consume() is under way",
    MemberState.LEAVING: "nothing consumes: the member leaves the group",
}
"""States in which no record is consumed and none will be: a member in one of them is not healthy."""

_IN_SESSION: Final = (MemberState.STARTING, MemberState.STABLE, MemberState.DRAINING, MemberState.COMMITTING)


def _silent_heartbeats(member_health: MemberHealth, config: ConsumerConfig, now: float) -> Iterable[str]:
    problem = member_health.problems.get(ProblemSource.HEARTBEAT)
    if member_health.state not in _IN_SESSION or member_health.last_heartbeat is None:
        return
    age = _age(now, member_health.last_heartbeat)
    if problem is not None and problem.last_at >= member_health.last_heartbeat:
        yield f"heartbeats fail, the last good one was {age:.1f} s ago: {problem.text}"
    elif age > MISSED_HEARTBEATS * config.heartbeat_interval:
        yield f"no heartbeat was answered for {age:.1f} s"


def _failing_fetches(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    member_health = snapshot.member_health
    if member_health.state is not MemberState.STABLE:
        return
    failing = [str(claim.tp) for claim in snapshot.claims if claim.consumer.fetch_failures.count]
    problem = member_health.problems.get(ProblemSource.FETCH)
    if failing and problem is not None:
        yield f"{_names(failing)} cannot be fetched: {problem.text}"
    for node_id, asked_at in snapshot.unanswered_fetches.items():
        age = _age(now, asked_at)
        if age > snapshot.config.fetch_max_wait + FETCH_GRACE:
            yield f"node {node_id} has not answered a fetch for {age:.1f} s"


def _overdue(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    """States that should be over by now."""
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
        yield f"{_names(running_calls.labels)} went on for {now - running_calls.deadline:.1f} s after the cancellation"


# --- what it waits for ------------------------------------------------------------------------------------------------


def _waits_for(snapshot: HealthSnapshot, now: float, problems: Sequence[str]) -> str | None:
    member_health, config, running_calls = snapshot.member_health, snapshot.config, snapshot.running_calls
    age = f"{_age(now, member_health.state_since):.1f} s"
    if member_health.state is MemberState.JOINING:
        text = f"the group to complete its join: {age}"
    elif member_health.state is MemberState.SYNCING:
        text = f"the group's leader to hand out its plan: {age}"
    elif member_health.state is MemberState.LOOKING_UP_COORDINATOR:
        text = f"the coordinator of group {snapshot.group_id!r}: {age}"
    elif member_health.state is MemberState.LOOKING_UP_TOPICS:
        text = f"the metadata of its topics: {age}"
    elif member_health.state is MemberState.WAITING_TO_REJOIN:
        text = f"a pause before it joins again: {age}"
    elif member_health.state is MemberState.COMMITTING:
        text = f"its last commit to be answered: {age}"
    elif member_health.state is MemberState.LEAVING:
        text = f"the coordinator to let it go: {age}"
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
        text = f"topic {min(snapshot.missing_topics)!r} to be there again"
    elif member_health.state is MemberState.STABLE and problems:
        text = "brokers to answer and to accept: it tries again; the session ends after "
        text += f"{config.session_timeout:g} s without a heartbeat"
    elif member_health.state is MemberState.STABLE and not snapshot.claims:
        text = snapshot.idle_reason
    else:
        return None
    return text


def _names(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:3])
    return shown if len(labels) <= 3 else f"{shown} and {len(labels) - 3} others"
