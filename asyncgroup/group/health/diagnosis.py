"""Diagnosis of a group member: the value for `health()`, with texts for the problems and for what the member waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from asyncgroup.consumer.partition_consumer import partition_of
from asyncgroup.error_codes import error_name
from asyncgroup.group.health.health import ClaimHealth, ErrorSeen, Health
from asyncgroup.group.health.member_health import (
    ENDING,
    JOINING_AGAIN,
    NOT_YET,
    MemberHealth,
    MemberState,
    ProblemSource,
    RunningCalls,
    error_kind,
    error_text,
)
from asyncgroup.group.membership import JOIN_GRACE

if TYPE_CHECKING:
    from asyncgroup.config import ConsumerConfig
    from asyncgroup.group.sessions.claim import Claim
    from asyncgroup.group.sessions.start_lookups import PendingStart
    from asyncgroup.group.topics.topics import Absence
    from asyncgroup.offsets import MemberIdentity

__all__ = ["HOOK_TIMEOUT_SHOWN", "HealthSnapshot", "diagnose"]

ERRORS_SHOWN: Final = 5
"""Maximum number of different errors in `Health.errors`."""
MISSED_HEARTBEATS: Final = 2
"""Heartbeat intervals without a response that are not yet a problem."""
FETCH_GRACE: Final = 2.0
"""Seconds beyond `fetch_max_wait` after which a fetch without a response is a problem."""
START_GRACE: Final = 5.0
"""Seconds without a response to the lookup of a start offset that are not yet a problem."""
HOOK_TIMEOUT_SHOWN: Final = 10.0
"""Seconds for which a hook that was cancelled at its limit is a problem. The member works again: a liveness probe that
restarts it after three failures at intervals of 10 s (Kubernetes' defaults) does not see three."""
QUICK_STEPS: Final = 1.0
"""Seconds of a join before its present state that are not worth a mention."""


class HealthSnapshot(NamedTuple):
    """The input of a diagnosis."""

    group_id: str
    config: ConsumerConfig
    identity: MemberIdentity
    member_health: MemberHealth
    session_timeout: float
    """Seconds; by the consumer protocol the group's, as for the interval."""
    heartbeat_interval: float
    """Seconds."""
    group_protocol: str
    """`classic` or `consumer`."""
    claims: Sequence[Claim] = ()
    pending_starts: Sequence[PendingStart] = ()
    """Assigned partitions whose start offsets are not known yet."""
    running_calls: Sequence[RunningCalls] = ()
    unanswered_fetches: Mapping[int, float] = MappingProxyType({})
    """Nodes with a fetch in flight, and the loop time at which it was sent."""
    idle_reason: str = "a partition: other members own all of them"
    """What a member without claims waits for, in words."""
    absent_topics: Mapping[str, Absence] = MappingProxyType({})
    """Topics that do not exist, or cannot be used."""


def diagnose(snapshot: HealthSnapshot, now: float) -> Health:
    """Return the health of a member at loop time `now`."""
    member_health = snapshot.member_health
    problems = tuple(_problems(snapshot, now))
    return Health(
        group_id=snapshot.group_id,
        state=member_health.state.value,
        state_age=_age(now, member_health.state_since),
        member_id=snapshot.identity.member_id,
        generation_id=snapshot.identity.generation_id,
        group_protocol=snapshot.group_protocol,
        last_heartbeat=_age_if_any(now, member_health.last_heartbeat),
        last_fetch=_age_if_any(now, member_health.last_fetch),
        claims=tuple(map(_claim_health, snapshot.claims)),
        waits_for=_waits_for(snapshot, now, problems),
        problems=problems,
        errors=tuple(
            ErrorSeen(text, times, _age(now, last_at))
            for text, times, last_at in list(reversed(member_health.errors.values()))[:ERRORS_SHOWN]
        ),
        fatal=member_health.liveness.fatal,
        not_ready=_not_ready(snapshot, now),
    )


def _not_ready(snapshot: HealthSnapshot, now: float) -> str | None:
    member_health = snapshot.member_health
    if (state := member_health.state) in _IDLE and member_health.liveness.fatal is None:
        return _IDLE[state]
    lost = member_health.problems.get(ProblemSource.LOST)
    last_response = max(member_health.last_heartbeat, member_health.last_fetch)
    return member_health.liveness.not_ready(
        None if lost is None else lost.text, last_response, snapshot.session_timeout, now
    )


def _age(now: float, when: float) -> float:
    return max(0.0, now - when)


def _age_if_any(now: float, when: float) -> float | None:
    return None if when == NOT_YET else _age(now, when)


def _claim_health(claim: Claim) -> ClaimHealth:
    known = claim.high_watermark >= 0
    return ClaimHealth(
        topic=claim.topic,
        partition=claim.partition,
        position=claim.position,
        next_mark=claim.next_mark,
        high_watermark=claim.high_watermark if known else None,
        lag=claim.lag if known else None,
        stalled=claim.stalled,
        paused=claim.paused,
    )


_IN_SESSION: Final = (MemberState.STARTING, MemberState.STABLE, MemberState.DRAINING, MemberState.COMMITTING)

_STARTS: Final = (MemberState.STARTING, MemberState.STABLE, *JOINING_AGAIN)
"""States in which `setup` and `on_assigned` run."""

_IDLE: Final = {
    MemberState.CLOSED: "the group is closed",
    MemberState.NOT_CONSUMING: "nothing consumes: neither run() nor consume() is running",
    MemberState.LEAVING: "nothing consumes: the member is leaving the group",
}
"""States in which the member neither consumes nor is about to consume, with the problem that is reported."""

_NAMED: Final = (
    ProblemSource.HANDLER,
    ProblemSource.HOOK,
    ProblemSource.LOST,
    ProblemSource.JOIN,
    ProblemSource.COMMIT,
)
"""Sources whose problems are named with the text of their last error."""

_WAITS_FOR: Final = {
    MemberState.LOOKING_UP_TOPICS: "the metadata of its topics",
    MemberState.LOOKING_UP_COORDINATOR: "the coordinator of group {!r}",
    MemberState.JOINING: "the group to complete the join",
    MemberState.SYNCING: "the group leader to send the assignment",
    MemberState.COMMITTING: "the response to its last commit",
    MemberState.WAITING_TO_REJOIN: "the backoff before it joins again",
    MemberState.LEAVING: "the response to its request to leave",
}


def _time_limit(state: MemberState, snapshot: HealthSnapshot) -> float:
    """Return the seconds in a state beyond which it is a problem. That of JOINING is also the limit for all attempts together."""
    if state in (MemberState.JOINING, MemberState.SYNCING):
        return snapshot.config.rebalance_timeout + JOIN_GRACE
    if state in (MemberState.LOOKING_UP_COORDINATOR, MemberState.LOOKING_UP_TOPICS, MemberState.COMMITTING):
        return snapshot.session_timeout
    return float("inf")


def _problems(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    member_health = snapshot.member_health
    state = member_health.state
    problems, join_age = dict(member_health.problems), member_health.join_age(now)
    is_long_join = join_age > _time_limit(MemberState.JOINING, snapshot)
    if is_long_join and member_health.join_refusal is not None:
        problems.setdefault(ProblemSource.JOIN, member_health.join_refusal)
    if not _shows_hook(member_health, now):
        problems.pop(ProblemSource.HOOK, None)
    for source in _NAMED:
        if source in problems:
            yield f"{source.value}: {problems[source].text}"
    is_lost = state in ENDING and ProblemSource.LOST in problems  # then no heartbeats are sent
    if state in _IN_SESSION and not is_lost and member_health.last_heartbeat > NOT_YET:
        yield from _heartbeat_problems(member_health, snapshot.heartbeat_interval, now)
    if state in (MemberState.STARTING, MemberState.STABLE):
        yield from _start_problems(snapshot, now)
    if state is MemberState.STABLE:
        yield from _fetch_problems(snapshot, now)
    yield from _absence_problems(snapshot, now)
    if (age := _age(now, member_health.state_since)) > _time_limit(state, snapshot):
        yield f"{state.value} for {age:.1f} s"
    elif is_long_join:
        yield f"{MemberState.JOINING.value} for {join_age:.1f} s"
    yield from _call_problems(snapshot, now)
    if state in _IDLE:
        yield _IDLE[state]


def _call_problems(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    """Name the calls that ignore their cancellation, and the hooks that claims have waited for too long."""
    running, limit = snapshot.running_calls, snapshot.config.rebalance_timeout
    if overdue := [calls for calls in running if now > calls.deadline]:
        age = now - min(calls.deadline for calls in overdue)
        yield f"{_labels(overdue)} still running {age:.1f} s after cancellation"
    is_start = snapshot.member_health.state in _STARTS
    slow = [calls for calls in running if now <= calls.deadline and _age(now, calls.since) > limit]
    if is_start and slow:
        age = _age(now, min(calls.since for calls in slow))
        yield f"{_labels(slow)} running for {age:.1f} s: claims wait for it"


def _labels(running: Iterable[RunningCalls]) -> str:
    return _names([label for calls in running for label in calls.labels])


def _shows_hook(member_health: MemberHealth, now: float) -> bool:
    """Return whether a hook has timed out so recently that it is still a problem."""
    problem = member_health.problems.get(ProblemSource.HOOK)
    return problem is not None and now < problem.last_at + HOOK_TIMEOUT_SHOWN


def _heartbeat_problems(member_health: MemberHealth, interval: float, now: float) -> Iterable[str]:
    problem = member_health.problems.get(ProblemSource.HEARTBEAT)
    age = _age(now, member_health.last_heartbeat)
    if problem is not None and problem.last_at >= member_health.last_heartbeat:
        yield f"heartbeats fail, the last successful one was {age:.1f} s ago: {problem.text}"
    elif age > MISSED_HEARTBEATS * interval:
        yield f"no response to heartbeats for {age:.1f} s"


def _fetch_problems(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    by_reason: dict[object, list[tuple[str, float, str]]] = {}
    for claim in snapshot.claims:
        failures = partition_of(claim._state.consumer).fetch_failures
        if failures.error is not None:
            failing = (str(claim.tp), failures.began_at, error_text(failures.error))
            by_reason.setdefault(error_kind(failures.error), []).append(failing)
    for alike in by_reason.values():
        names, since, texts = zip(*alike, strict=True)
        yield f"{_names(names)} cannot be fetched for {_age(now, min(since)):.1f} s: {texts[0]}"
    for node_id, sent_at in snapshot.unanswered_fetches.items():
        if (age := _age(now, sent_at)) > snapshot.config.fetch_max_wait + FETCH_GRACE:
            yield f"no response to a fetch from node {node_id} for {age:.1f} s"


def _absence_problems(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    for topic, absence in sorted(snapshot.absent_topics.items()):
        age = f"{_age(now, absence.since):.1f} s"
        if absence.is_missing:
            yield f"topic {topic!r} does not exist, missing for {age}; it is read once it exists"
        else:
            yield f"topic {topic!r} cannot be used for {age}: {error_name(absence.code)}"


def _start_problems(snapshot: HealthSnapshot, now: float) -> Iterable[str]:
    """Name the partitions that cannot start, together for each reason."""
    by_reason: dict[object, list[PendingStart]] = {}
    for pending in snapshot.pending_starts:
        if pending.error is not None:
            by_reason.setdefault(error_kind(pending.error), []).append(pending)
        elif _age(now, pending.since) > START_GRACE:
            by_reason.setdefault(None, []).append(pending)
    for waiting in by_reason.values():
        error, age = waiting[0].error, _age(now, min(pending.since for pending in waiting))
        text = "no response" if error is None else error_text(error)
        names = _names([str(pending.tp) for pending in waiting])
        yield f"{names} cannot start for {age:.1f} s: {text}"


def _waits_for(snapshot: HealthSnapshot, now: float, problems: Sequence[str]) -> str | None:
    state, running = snapshot.member_health.state, snapshot.running_calls
    age, join_age = _age(now, snapshot.member_health.state_since), snapshot.member_health.join_age(now)
    if state in _WAITS_FOR:
        # a state begins again with each attempt to join
        of_join = f", {join_age:.1f} s since it began to join" if join_age > age + QUICK_STEPS else ""
        return f"{_WAITS_FOR[state].format(snapshot.group_id)}: {age:.1f} s{of_join}"
    if running:
        since, deadline = min(calls.since for calls in running), min(calls.deadline for calls in running)
        limit = f" of {deadline - since:.1f} s" if deadline < float("inf") else ""
        return f"{_labels(running)} to end: {_age(now, since):.1f} s{limit}"
    if state is MemberState.STARTING:
        return f"its start offsets: {age:.1f} s"
    if state is MemberState.STABLE and snapshot.pending_starts and not snapshot.claims:
        names = _names([str(pending.tp) for pending in snapshot.pending_starts])
        age = _age(now, min(pending.since for pending in snapshot.pending_starts))
        return f"the start offset of {names}: {age:.1f} s"
    # problems that no broker's answer ends
    others = len(snapshot.absent_topics) + _shows_hook(snapshot.member_health, now)
    others += ProblemSource.HANDLER in snapshot.member_health.problems
    if state is MemberState.STABLE and len(problems) > others:
        return (
            "brokers to respond without errors; it retries, and the session ends after "
            f"{snapshot.session_timeout:g} s without a heartbeat response"
        )
    if state is MemberState.STABLE and snapshot.absent_topics:
        topic, absence = min(snapshot.absent_topics.items())
        return f"topic {topic!r} to {'exist' if absence.is_missing else 'be usable'}"
    return snapshot.idle_reason if state is MemberState.STABLE and not snapshot.claims else None


def _names(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:3])
    return shown if len(labels) <= 3 else f"{shown} and {len(labels) - 3} others"
